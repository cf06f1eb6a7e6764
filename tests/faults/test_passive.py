"""Each fault gets its verdict, for its reason, and with its remedy; none is missed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcverify.model import Verdict
from tests.cli import Cli, make_cli
from tests.faults.table import PASSIVE, Fault
from tests.nvml_lab.nvmllab import Lab

pytestmark = pytest.mark.needs("root")

HURRY = "tests.nvml_lab.hurry"
STATUS = {Verdict.PASS: 0, Verdict.WARN: 0, Verdict.FAIL: 1, Verdict.ERROR: 3}


def verified(cli: Cli, lab: Lab, *options: str) -> dict[str, Any]:
    """Run the suite prolog, or what *options* say, on the node of *lab*."""
    cli.preload = HURRY
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    done = cli("run", *(options or ("--suite", "prolog")), "--json")
    run = json.loads(done.stdout)
    assert done.returncode == STATUS[Verdict(run["verdict"])], done.stderr
    return dict(run)


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, nvml_library: Path) -> Path:
    """Keep a run in which the board was well; return the state."""
    folder = tmp_path_factory.mktemp("past")
    lab = Lab(folder, nvml_library)
    lab.write()
    cli = make_cli(folder)
    run = verified(cli, lab)
    assert run["verdict"] == "pass"
    return cli.state


@pytest.mark.parametrize("fault", PASSIVE, ids=lambda fault: fault.name)
def test_a_fault_is_seen_for_what_it_is(cli: Cli, lab: Lab, past: Path, fault: Fault) -> None:
    shutil.copytree(past, cli.state)
    lab.write(*fault.lines)
    run = verified(cli, lab)
    result = next(r for r in run["results"] if r["check"] == fault.check)

    assert result["verdict"] == fault.verdict.value, result["reason"]
    calls = (found["evidence"].get("calls", "") for found in result["findings"])
    assert fault.says in "\n".join((result["reason"], *calls))
    assert (result["remedy"], result["cause"]) == (fault.remedy, fault.cause)
    meant = set(re.findall(r"gpu[.=](\d)", fault.scenario))
    if meant and "lock=1" not in fault.scenario:  # which keeps the others from answering
        assert set(re.findall(r"\bGPU (\d)", result["reason"])) <= meant


def test_a_board_that_is_well_stays_so_run_after_run(cli: Cli, lab: Lab, past: Path) -> None:
    shutil.copytree(past, cli.state)
    for _ in range(5):
        run = verified(cli, lab)
        assert {r["verdict"] for r in run["results"]} == {"pass"}, run["results"]
