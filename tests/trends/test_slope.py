"""A trend, and the day on which it crosses a limit, with an interval that keeps its word."""

from __future__ import annotations

import random
from statistics import median

import pytest

from hpcverify.trends.slope import find_slope, project_crossing

DAY = 86400.0


def make_runs(
    rng: random.Random, per_day: float, noise: float, days: int = 40
) -> tuple[list[float], list[float]]:
    times = [(20000 + day + hour / 24) * DAY for day in range(days) for hour in (1, 2, 3)]
    return times, [100 + per_day * (t / DAY - 20000) + rng.gauss(0, noise) for t in times]


def test_the_slope_and_its_interval_are_found() -> None:
    held = 0
    for seed in range(100):
        slope = find_slope(*make_runs(random.Random(seed), 0.05, 0.3))
        assert slope is not None
        held += slope.least <= 0.05 <= slope.most

    assert held >= 90


def test_runs_without_a_trend_seldom_have_one() -> None:
    found = [find_slope(*make_runs(random.Random(seed), 0, 0.3)) for seed in range(200)]
    assert sum(slope is not None for slope in found) <= 18


def test_fewer_than_eight_days_make_no_trend() -> None:
    assert find_slope(*make_runs(random.Random(1), 1, 0.1, days=7)) is None


def test_the_day_of_the_crossing_lies_in_its_interval() -> None:
    held, errors = 0, []
    for seed in range(100):
        slope = find_slope(*make_runs(random.Random(seed), 0.05, 0.3))
        assert slope is not None
        crossing = project_crossing(slope, 104.0)
        assert crossing is not None
        held += crossing.earliest <= 20080 <= (crossing.latest or 1e9)
        errors.append(abs(crossing.day - 20080))

    assert held >= 90
    assert median(errors) < 5


@pytest.mark.parametrize("limit", [99.0, 101.0])
def test_a_limit_that_is_behind_is_not_crossed(limit: float) -> None:
    slope = find_slope(*make_runs(random.Random(1), 0.05, 0.1))
    assert slope is not None
    assert project_crossing(slope, limit) is None
