"""One list of values: who is named, and how far chance goes."""

from __future__ import annotations

import random

import pytest

from hpcverify.peers.level import find_tail, judge_level
from tests.peers.fleets import draw_heavy_tailed

FLOOR = 0.02


def draw_values(count: int, spread: float, *planted: float, seed: int = 1) -> list[float]:
    """Draw normal values, to the first of which the *planted* distances are added."""
    rng = random.Random(seed)
    return [rng.gauss(0, spread) + (planted[i] if i < len(planted) else 0.0) for i in range(count)]


def count_named(count: int, spread: float, *planted: float, fleets: int = 100) -> int:
    """Count the fleets in which all *planted* values are named, and nobody else."""
    return sum(
        {*judge_level(draw_values(count, spread, *planted, seed=seed), FLOOR).outliers}
        == {*range(len(planted))}
        for seed in range(fleets)
    )


@pytest.mark.parametrize(
    ("freedom", "score", "chance"), [(10, 3.169, 0.005), (30, 3.385, 0.001), (1e6, 3.719, 1e-4)]
)
def test_the_tail_is_that_of_students_t(freedom: float, score: float, chance: float) -> None:
    assert find_tail(score, 1.0, round(freedom / 0.37)) == pytest.approx(chance, rel=0.05)


def test_a_value_whose_own_error_is_large_needs_more() -> None:
    distances = draw_values(100, 0.004, 0.04)
    assert list(judge_level(distances, FLOOR).outliers) == [0]
    assert judge_level(distances, FLOOR, [0.03, *[0.0] * 99]).outliers == {}


@pytest.mark.parametrize(("steps", "named"), [(1, 0), (4, 5)])
def test_a_step_of_the_record_is_no_distance(steps: int, named: int) -> None:
    distances = [0.0] * 90 + [0.05 * steps] * 5 + [-0.05] * 5
    assert len(judge_level(distances, FLOOR, resolution=0.05).outliers) == named


FRONTERA = (0.129, 0.129, 0.116, 0.068, 0.057, 0.027, 0.027, 0.022)
"""The slow nodes of a real fleet of 74, whose others spread by 0.5 %."""


@pytest.mark.parametrize("bad", [(0.10,), (0.30,), FRONTERA, (0.13, 0.10, 0.08, 0.06)])
@pytest.mark.parametrize("share", [0.01, 0.06, 0.15, 0.3])
@pytest.mark.parametrize("count", [32, 67, 400, 1000])
def test_bad_values_do_not_hide_each_other(
    count: int, share: float, bad: tuple[float, ...]
) -> None:
    planted = [bad[i % len(bad)] for i in range(max(1, round(share * count)))]
    named = judge_level(draw_values(count, 0.005, *planted), FLOOR).outliers.keys()
    assert {i for i, d in enumerate(planted) if d >= 0.05} <= named
    assert len([i for i in named if i >= len(planted)]) <= 1


@pytest.mark.parametrize("spread", [0.002, 0.006, 0.02, 0.05])
@pytest.mark.parametrize("count", [4, 7, 12, 32, 400])
def test_it_says_how_bad_a_part_has_to_be_until_it_is_named(count: int, spread: float) -> None:
    healthy = draw_values(count - 1, spread, seed=count)
    least = judge_level([*healthy, 0.0], FLOOR).least

    assert judge_level([*healthy, 3 * least], FLOOR).outliers.keys() == {count - 1}
    assert judge_level([*healthy, 0.5 * least], FLOOR).outliers == {}


@pytest.mark.parametrize("better", [(0.5, 0.5), (0.08, 0.07, 0.06), (0.15,) * 7])
def test_a_few_parts_that_are_far_better_hide_no_bad_one(better: tuple[float, ...]) -> None:
    planted = [*(-distance for distance in better), 0.05, 0.08, 0.12]
    named = judge_level(draw_values(100, 0.005, *planted), FLOOR).outliers.keys()
    assert named == {len(better) + i for i in range(3)}


@pytest.mark.parametrize(
    ("count", "planted", "found"),
    [
        (4, (0.1,), 95),
        (5, (0.1,), 95),
        (5, (0.1, 0.1), 80),
        (7, (0.1,), 95),
        (7, (0.1, 0.08), 95),
        (8, (0.05,), 95),
        (12, (0.05, 0.05, 0.1), 95),
    ],
)
def test_a_bad_one_of_a_few_is_named(count: int, planted: tuple[float, ...], found: int) -> None:
    assert count_named(count, 0.003, *planted) >= found


@pytest.mark.parametrize("spread", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("count", [3, 4, 7, 12, 20, 100])
def test_healthy_values_are_hardly_ever_named(count: int, spread: float) -> None:
    assert count_named(count, spread, fleets=300) >= 300 * 0.96


@pytest.mark.parametrize("count", [4, 12, 64])
def test_single_runs_with_long_tails_name_nobody_twice(count: int) -> None:
    twice = 0
    for seed in range(100):
        rng = random.Random(seed)
        nights = ([0.003 * draw_heavy_tailed(rng) for _ in range(count)] for _ in range(2))
        first, second = (judge_level(values, FLOOR).outliers for values in nights)
        twice += bool(first.keys() & second.keys())
    assert twice <= 1
