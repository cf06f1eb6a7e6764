"""Every core of the node is verified, whatever the process that starts us was bound to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcverify.model import Result, Verdict
from hpcverify.records import documents
from hpcverify_checks.exact.vote import CORRUPTION_CODE
from tests.checks.sdc.faulty_core.sitecustomize import FOLDER, LAST
from tests.cli import COMMAND, HERE, Cli

SUITE = """
[[check]]
name = "sdc"
params = { seconds = 1, size = 128, depth = 128 }
"""
BINDINGS: dict[str, dict[str, str]] = {
    "OMP_PROC_BIND": {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"},
    "GOMP_CPU_AFFINITY": {"GOMP_CPU_AFFINITY": "0"},
    "KMP_AFFINITY": {"KMP_AFFINITY": "granularity=fine,compact", "KMP_HW_SUBSET": "1c"},
    "taskset": {},
    "none": {},
}

if os.geteuid() != 0:
    del BINDINGS["taskset"]  # a user keeps to it: tests/checks/node/test_cores.py


def run_bound(cli: Cli, binding: str, *paths: Path) -> Result:
    cli.suite("bound", SUITE)
    cli.environment |= BINDINGS[binding]
    cli.environment["PYTHONPATH"] = os.pathsep.join(map(str, (*paths, HERE / "site", HERE.parent)))
    if binding == "taskset":
        cli.command = ("taskset", "--cpu-list", "0", *COMMAND)
    done = cli("run", "--suite", "bound")
    assert done.returncode in (0, 1), done.stderr
    (document,) = cli.list_documents()
    (result,) = documents.read(document).results
    assert result.check == "sdc", done.stderr
    return result


@pytest.mark.system
@pytest.mark.parametrize("binding", BINDINGS)
def test_a_fault_of_the_last_core_is_found_whatever_we_were_bound_to(
    cli: Cli, binding: str
) -> None:
    result = run_bound(cli, binding, FOLDER)
    accused = {f.part_id for f in result.findings if f.code == CORRUPTION_CODE}
    assert (result.verdict, accused) == (Verdict.FAIL, {f"cpu{LAST}"})


@pytest.mark.system
@pytest.mark.parametrize("binding", BINDINGS)
def test_without_it_all_cores_are_verified_and_pass(cli: Cli, binding: str) -> None:
    result = run_bound(cli, binding)
    verified = {m.part_id for m in result.measurements if m.name == "products" and m.value}
    assert (result.verdict, result.reason) == (Verdict.PASS, "")
    assert verified == {f"cpu{core}" for core in range(LAST + 1)}
