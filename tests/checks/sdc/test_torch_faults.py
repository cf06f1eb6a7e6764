"""
Faults of arithmetic, put under torch: below all of our code, and on one core alone.

They change nothing in a product that does not round, so that no plan of integers finds them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hpcverify.model import Finding, Verdict
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import sdc
from hpcverify_checks.common.bits import view_integers
from hpcverify_checks.common.cores import run_on_each
from hpcverify_checks.common.dtypes import CPU_FAMILIES
from hpcverify_checks.sdc.prepare import PartResult, prepare
from tests.checks.sdc.benches import a_task
from tests.checks.sdc.work_clock import WorkClock

PARAMS = sdc.SdcParams(seconds=2.0, size=64, depth=128)
BAD = max(os.sched_getaffinity(0))
real_mm = torch.mm

Harm = Callable[[Tensor, Tensor, Tensor], None]
"""Computes a product wrongly."""


def lose_low_bit(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Leave the lowest bit of each operand out of the multiplier."""
    real_mm(*(view_integers(x).bitwise_and(-2).view(x.dtype) for x in (a, b)), out=out)


def round_towards_zero(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Cut off what does not fit, where fp64 shows that rounding went up."""
    real_mm(a, b, out=out)
    exact = real_mm(a.double(), b.double()).abs()
    up = (out.double().abs() > exact) & out.isfinite()
    view_integers(out).sub_(up.to(view_integers(out).dtype))


def flush_results(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Replace subnormal results by zero."""
    real_mm(a, b, out=out)
    out.masked_fill_(out.abs() < torch.finfo(out.dtype).tiny, 0.0)


def flush_operands(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Take subnormal operands for zero."""
    real_mm(a.masked_fill(a.abs() < torch.finfo(a.dtype).tiny, 0.0), b, out=out)


def saturate(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Give the largest number in place of infinity."""
    largest = torch.finfo(out.dtype).max
    out.copy_(real_mm(a, b).clamp(-largest, largest))


def err_on_full_significands(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Add one to the last bit where the last bit of an operand is set, as of few integers."""
    real_mm(a, b, out=out)
    full = (view_integers(a) & 1).bool().any(dim=1, keepdim=True)
    view_integers(out).add_(full.to(view_integers(out).dtype))


HARMS: dict[Harm, tuple[torch.dtype, ...]] = {
    lose_low_bit: (torch.float32, torch.float64),
    round_towards_zero: (torch.float32,),
    flush_results: (torch.float32, torch.float64),
    flush_operands: (torch.float32, torch.float64),
    saturate: (torch.float32, torch.float64),
    err_on_full_significands: (torch.float32, torch.float64),
}
CASES = [(harm, dtype) for harm, dtypes in HARMS.items() for dtype in dtypes]
NAMES = {torch.float32: "fp32", torch.float64: "fp64"}


@dataclass
class FaultyTorch:
    """Multiplies wrongly in one type of operands, on one core or on all."""

    harm: Harm
    dtype: torch.dtype
    core: int | None = None
    calls: set[int] = field(default_factory=set[int])

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        """Stand in for `torch.mm`."""
        here = self.core is None or os.sched_getaffinity(0) == {self.core}
        if here and out.dtype == self.dtype:
            self.harm(a, b, out)
        else:
            real_mm(a, b, out=out)
        return out


@pytest.mark.parametrize(("harm", "dtype"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_only_the_sparse_plan_finds_a_fault_of_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch, "mm", FaultyTorch(harm, dtype).mm)
    prepared = prepare(a_task(tmp_path, family=CPU_FAMILIES[NAMES[dtype]]))
    (failure,) = prepared.failures
    assert failure.corruption
    assert failure.corruption.evidence["plan"].startswith("sparse")
    assert "persistent: 3 of 3" in failure.corruption.text


@pytest.mark.parametrize(("harm", "dtype"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_the_core_that_rounds_wrongly_is_accused_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm, dtype: torch.dtype
) -> None:
    task = a_task(tmp_path, family=CPU_FAMILIES[NAMES[dtype]])
    jobs = prepare(task).jobs
    monkeypatch.setattr(torch, "mm", FaultyTorch(harm, dtype, BAD).mm)

    def hunt(core: int) -> PartResult:
        return task.hunt(f"cpu{core}", jobs, lambda n: n >= len(jobs))

    outcomes = list(run_on_each(sorted(os.sched_getaffinity(0)), hunt))
    (wrong,) = (outcome for outcome in outcomes if outcome.corruption)
    assert wrong.corruption
    assert wrong.where == f"cpu{BAD}"
    assert wrong.corruption.evidence["plan"].startswith("sparse")


@pytest.mark.parametrize("harm", [None, lose_low_bit])
def test_the_check_fails_a_core_that_loses_the_lowest_bit_and_passes_without_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Harm | None
) -> None:
    WorkClock(product_seconds=0.01).put_into(monkeypatch)  # else a busy machine skips plans
    if harm:
        monkeypatch.setattr(torch, "mm", FaultyTorch(harm, torch.float32, BAD).mm)
    items = list(sdc.measure(make_context(tmp_path), PARAMS))
    accused = {i.where for i in items if isinstance(i, Finding) and i.code == "corruption"}
    verdict = judge_items(sdc.CHECK, items).verdict
    assert (accused, verdict) == (({f"cpu{BAD}"}, Verdict.FAIL) if harm else (set(), Verdict.PASS))
