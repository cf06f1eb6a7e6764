"""A GPU that hangs is named with what it was doing; its siblings and the budget are cleared."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcverify.check import HUNG_CODE
from hpcverify.model import Cause, Remedy, Result, Run, Verdict
from tests.rehearsal.node import Node

Rehearse = Callable[..., Node]
PATIENCE = 12.0
"""Seconds for each check; healthy GPUs take a fraction of that, even on a busy machine."""
OPERATIONS = {
    "gemm": "fp64 products",
    "sdc": "the first kernels",
}
"""What each check begins with."""
LATER = "pcie_bandwidth"


def name_checks(*names: str) -> list[str]:
    return [word for name in names for word in ("--check", name)]


def find_result(run: Run, name: str) -> Result:
    return next(result for result in run.results if result.check == name)


def list_labels(run: Run, *ids: str) -> list[str]:
    return [run.inventory.find_label(part).partition(" (")[0] for part in ids]


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_gpu_that_hangs_is_named_by_its_siblings_and_left_alone_from_then_on(
    rehearse: Rehearse, name: str
) -> None:
    run = rehearse(gpus=3, timeout=PATIENCE).run(*name_checks(name, LATER), faults="hang@2")
    result, later = find_result(run, name), find_result(run, LATER)
    (finding,) = (f for f in result.findings if f.code == HUNG_CODE)
    (short,) = later.shortfalls

    assert (result.verdict, result.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert f"it hung in {OPERATIONS[name]} for" in finding.text
    assert not result.rulings[HUNG_CODE].hard
    assert (later.verdict, later.cause) == (Verdict.ERROR, Cause.HUNG)
    assert f"did not come back from {OPERATIONS[name]} in {name}" in short.reason
    assert list_labels(run, finding.where, short.where) == ["GPU 2", "GPU 2"]
    assert list_labels(run, *sorted({m.where for m in later.measurements})) == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize(("gpus", "faults"), [(1, "hang@0"), (3, "hang@*")])
def test_a_lone_gpu_or_all_of_them_that_hang_are_no_fail(
    rehearse: Rehearse, gpus: int, faults: str
) -> None:
    run = rehearse(gpus=gpus, timeout=4.0).run(*name_checks("gemm"), faults=faults)
    gemm = find_result(run, "gemm")

    assert (gemm.verdict, gemm.cause, gemm.remedy) == (
        Verdict.ERROR,
        Cause.TIMEOUT,
        Remedy.INSPECT,
    )
    assert len(gemm.shortfalls) == gpus
    assert all("in fp64 products on GPU" in short.reason for short in gemm.shortfalls)
