"""The bound of a rate is the exact one of a Poisson process."""

from __future__ import annotations

import pytest

from hpcverify.qualification.bounds import bound_rate, compute_poisson_share


@pytest.mark.parametrize(
    ("events", "mean"),
    # The usual table of one-sided limits at 95 %, as in Gehrels, ApJ 303, 336 (1986).
    [(0, 2.996), (1, 4.744), (2, 6.296), (3, 7.754), (5, 10.51), (10, 16.96)],
)
def test_the_bound_is_that_of_the_table(events: int, mean: float) -> None:
    assert bound_rate(events, 1000) * 1000 == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize("events", [0, 1, 7, 40])
def test_at_the_bound_so_few_events_have_a_chance_of_one_in_twenty(events: int) -> None:
    assert compute_poisson_share(events, bound_rate(events, 10**6) * 10**6) == pytest.approx(0.05)


@pytest.mark.parametrize(("events", "tries"), [(0, 0), (0, 1), (0, 2), (5, 5)])
def test_no_rate_is_bounded_above_one(events: int, tries: int) -> None:
    assert bound_rate(events, tries) == 1.0
