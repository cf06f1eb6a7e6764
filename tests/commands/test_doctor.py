"""``hpcverify doctor`` names what is missing, with the fix, and nothing else."""

from __future__ import annotations

import json

from tests.cli import Cli
from tests.nvml_lab.nvmllab import Lab


def advice(cli: Cli, status: int) -> dict[str, dict[str, str]]:
    done = cli("doctor", "--json")

    assert done.returncode == status, done.stderr
    return {item["subject"]: item for item in json.loads(done.stdout)}


def test_a_node_that_has_all_is_told_so(cli: Cli) -> None:
    assert all(not item["fix"] for item in advice(cli, 0).values())


def test_a_missing_tool_is_named_with_its_package(cli: Cli) -> None:
    cli.environment["PATH"] = "/nonexistent"

    assert advice(cli, 3)["fio"]["fix"] == "apt-get install fio"


def test_a_broken_driver_is_named_with_the_fix(cli: Cli, lab: Lab) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    lab.load("driver-mismatch")

    assert "reboot" in advice(cli, 3)["driver_mismatch"]["state"]


def test_a_build_of_torch_without_cuda_is_named_where_there_are_gpus(
    cli: Cli, lab: Lab
) -> None:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)

    assert "CPU build" in advice(cli, 3)["torch"]["state"]
