"""One list of values: its spread, its standing, and how far chance goes."""

from __future__ import annotations

import random

import pytest

from hpcverify.peers.level import Standing, find_tail, judge_level, measure_spread


@pytest.mark.parametrize("peers", [40, 400, 4000])
def test_the_spread_of_normal_values_is_their_sigma(peers: int) -> None:
    rng = random.Random(1)

    spread = measure_spread([rng.gauss(0.01, 0.005) for _ in range(peers)], 0.0, peers)

    assert spread.centre == pytest.approx(0.01, abs=0.002)
    assert spread.spread == pytest.approx(0.005, rel=0.35)


@pytest.mark.parametrize(
    ("freedom", "score", "chance"), [(10, 3.169, 0.005), (30, 3.385, 0.001), (1e6, 3.719, 1e-4)]
)
def test_the_tail_is_that_of_students_t(freedom: float, score: float, chance: float) -> None:
    assert find_tail(score, round(freedom / 0.37)) == pytest.approx(chance, rel=0.05)


def test_a_value_whose_own_error_is_large_needs_more() -> None:
    rng = random.Random(1)
    distances = [0.04, *(rng.gauss(0, 0.004) for _ in range(99))]

    assert list(judge_level(distances, 0.02, [0.0] * 100).outliers) == [0]
    assert judge_level(distances, 0.02, [0.03, *[0.0] * 99]).outliers == {}


def test_a_step_of_the_record_is_no_distance() -> None:
    distances = [0.0] * 90 + [0.05] * 5 + [-0.05] * 5

    assert judge_level(distances, 0.02, [0.0] * 100, resolution=0.05).outliers == {}


def test_where_values_trail_off_only_what_is_far_beyond_them_is_named() -> None:
    rng = random.Random(1)
    distances = [rng.gauss(0, 0.004) for _ in range(190)] + [0.03, -0.03, -0.035, 0.025]

    judged = judge_level([*distances, 0.2], 0.02, [0.0] * 195)

    assert judge_level(distances, 0.02, [0.0] * 194).outliers == {}
    assert judged.spread.standing is Standing.TRAILING
    assert list(judged.outliers) == [194]
