"""What jobs have to expect is what the published formula says."""

from __future__ import annotations

import math

import pytest

from hpcverify.reliability.assumptions import JobAssumptions
from hpcverify.reliability.jobs import compute_ettr, find_checkpoint_interval, forecast_job
from hpcverify.reliability.outages import Estimate

RSC_1 = Estimate(6.5e-3, 6.0e-3, 7.0e-3)
"""Failures per node and day in Meta's cluster RSC-1 (arXiv:2410.21680)."""


@pytest.mark.parametrize(("nodes", "mtbf_hours", "ettr"), [(128, 28.8, 0.921), (2048, 1.80, 0.656)])
def test_figures_of_the_study_come_out(nodes: int, mtbf_hours: float, ettr: float) -> None:
    outlook = forecast_job(nodes, RSC_1, JobAssumptions())
    assert outlook.mtbf_hours.value == pytest.approx(mtbf_hours, abs=0.05)
    assert outlook.ettr.value == pytest.approx(ettr, abs=5e-4)
    assert outlook.ettr.low < outlook.ettr.value < outlook.ettr.high


def test_no_other_interval_between_checkpoints_is_clearly_better() -> None:
    rate = 1e-5
    best = compute_ettr(rate, find_checkpoint_interval(rate, 300), 300, 600)
    others = [compute_ettr(rate, every, 300, 600) for every in range(300, 40_000, 100)]
    assert max(others) <= best + 1e-3


def test_a_job_that_is_never_interrupted_makes_progress_all_the_time() -> None:
    never = Estimate(0.0, 0.0, 0.0)
    outlook = forecast_job(8, never, JobAssumptions())
    assert (outlook.ettr, outlook.mtbf_hours.value) == (Estimate(1.0, 1.0, 1.0), math.inf)


def test_a_job_that_only_restarts_makes_no_progress() -> None:
    assert compute_ettr(1 / 60, 300, 300, 600) == 0.0
