"""The shared formulas have the values of published tables."""

from __future__ import annotations

import statistics

import pytest

from hpcverify.stats import (
    CONFIDENCE_SCORE,
    MAD_SCALE,
    bound_rate,
    compute_binomial_tail,
    compute_excluded_rate,
    compute_fisher_tail,
    compute_poisson_chance,
    compute_student_tail,
    expand_student_score,
    find_mad,
    find_percentile,
    find_poisson_interval,
    find_student_score,
    median,
)


@pytest.mark.parametrize("values", [[3.0], [5.0, 1.0], [4.0, 1.0, 9.0], [4, 1, 3, 2]])
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


def test_the_constants_are_those_of_the_normal_distribution() -> None:
    normal = statistics.NormalDist()

    assert pytest.approx(normal.inv_cdf(0.975)) == CONFIDENCE_SCORE
    assert pytest.approx(1 / normal.inv_cdf(0.75), rel=1e-4) == MAD_SCALE


def test_the_mad_is_the_median_distance_from_the_median() -> None:
    assert find_mad([1, 2, 3, 4, 100], 3) == 1


def test_a_percentile_is_one_of_the_values() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [find_percentile(values, share) for share in (0.0, 0.5, 0.95)] == [1.0, 2.0, 4.0]


def test_three_times_the_inverse_of_a_time_is_excluded() -> None:
    assert compute_excluded_rate(3 * 3600) == pytest.approx(1.0)
    assert compute_excluded_rate(1.0) == pytest.approx(10800)


@pytest.mark.parametrize(
    ("events", "mean"),
    # The usual table of one-sided limits at 95 %, as in Gehrels, ApJ 303, 336 (1986).
    [(0, 2.996), (1, 4.744), (2, 6.296), (3, 7.754), (5, 10.51), (10, 16.96)],
)
def test_the_bound_is_that_of_the_table(events: int, mean: float) -> None:
    assert bound_rate(events, 1000) * 1000 == pytest.approx(mean, rel=1e-3)


@pytest.mark.parametrize("events", [0, 1, 7, 40])
def test_at_the_bound_so_few_events_have_a_chance_of_one_in_twenty(events: int) -> None:
    assert compute_poisson_chance(events, bound_rate(events, 10**6) * 10**6) == pytest.approx(0.05)


@pytest.mark.parametrize(("events", "tries"), [(0, 0), (0, 1), (0, 2), (5, 5)])
def test_no_rate_is_bounded_above_one(events: int, tries: int) -> None:
    assert bound_rate(events, tries) == 1.0


@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (3, 0.6187, 8.767), (100, 81.36, 121.63)],
)
def test_intervals_of_counts_are_those_of_the_tables(count: int, low: float, high: float) -> None:
    """Garwood (1936), as tables of the Poisson distribution have them."""
    assert find_poisson_interval(count) == pytest.approx((low, high), rel=2e-3, abs=1e-9)


def test_the_chance_of_so_many_slow_steps_is_that_of_fishers_exact_test() -> None:
    # 3 of 4 cups of tea: (C(4,3) C(4,1) + C(4,4) C(4,0)) / C(8,4)
    assert compute_fisher_tail(3, 4, 1, 4) == pytest.approx(17 / 70)
    assert compute_fisher_tail(0, 4, 3, 4) == pytest.approx(1.0)
    assert compute_fisher_tail(12, 16, 3, 48) < 1e-6


@pytest.mark.parametrize(
    ("freedom", "score", "chance"), [(3, 5.841, 0.005), (5, 4.032, 0.005), (30, 3.385, 0.001)]
)
def test_a_heavy_tail_is_that_of_students_t(freedom: float, score: float, chance: float) -> None:
    assert compute_student_tail(score, freedom) == pytest.approx(chance, rel=0.1)


def test_the_chance_of_many_events_stays_finite() -> None:
    assert compute_poisson_chance(1000, 1000) == pytest.approx(0.508, abs=1e-3)


def test_of_equal_chances_the_tail_is_that_of_the_binomial_distribution() -> None:
    assert compute_binomial_tail([0.5] * 4, 3) == pytest.approx(5 / 16)
    assert compute_binomial_tail([0.1, 0.4], 1) == pytest.approx(1 - 0.9 * 0.6)
    assert compute_binomial_tail([], 1) == 0


@pytest.mark.parametrize(("freedom", "score"), [(3, 3.182), (10, 2.228), (30, 2.042)])
def test_scores_of_students_t_are_those_of_the_tables(freedom: int, score: float) -> None:
    assert expand_student_score(freedom) == pytest.approx(score, rel=0.02)
    assert find_student_score(0.025, freedom) == pytest.approx(score, rel=0.02)
