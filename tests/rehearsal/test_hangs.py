"""What a run does after a GPU hung, and a hang that no sibling bears witness to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcverify.check import HUNG_CODE
from hpcverify.model import Cause, Remedy, Result, Run, Verdict
from tests.rehearsal.clock import HASTE
from tests.rehearsal.node import Node

pytestmark = pytest.mark.system

Rehearse = Callable[..., Node]
HURRIED = {HASTE: "12"}
"""Seconds of the node in a second: a worker that hangs is ended after two minutes."""


def name_checks(*names: str) -> list[str]:
    return [word for name in names for word in ("--check", name)]


def find_result(run: Run, name: str) -> Result:
    return next(result for result in run.results if result.check == name)


def list_labels(run: Run, *ids: str) -> list[str]:
    return [run.inventory.find_label(part).partition(" (")[0] for part in ids]


def test_a_gpu_that_hung_is_left_alone_and_the_others_go_on(rehearse: Rehearse) -> None:
    run = rehearse(gpus=3).run(*name_checks("gemm", "pcie_bandwidth"), faults="hang@2", **HURRIED)
    gemm, later = find_result(run, "gemm"), find_result(run, "pcie_bandwidth")
    (finding,) = (f for f in gemm.findings if f.code == HUNG_CODE)
    (short,) = later.shortfalls

    assert (gemm.verdict, gemm.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
    assert not gemm.rulings[HUNG_CODE].conclusive
    assert (later.verdict, later.cause) == (Verdict.ERROR, Cause.HUNG)
    assert "did not return from fp64 products in gemm" in short.reason
    assert list_labels(run, finding.part_id, short.part_id) == ["GPU 2", "GPU 2"]
    assert list_labels(run, *sorted({m.part_id for m in later.measurements})) == ["GPU 0", "GPU 1"]


@pytest.mark.parametrize(("gpus", "faults"), [(1, "hang@0"), (3, "hang@*")])
def test_a_lone_gpu_or_all_of_them_that_hang_are_no_fail(
    rehearse: Rehearse, gpus: int, faults: str
) -> None:
    run = rehearse(gpus=gpus).run(*name_checks("gemm"), faults=faults, **HURRIED)
    gemm = find_result(run, "gemm")

    assert (gemm.verdict, gemm.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert gemm.remedy is Remedy.INSPECT
    assert len(gemm.shortfalls) == gpus
    assert all("in fp64 products on GPU" in short.reason for short in gemm.shortfalls)
