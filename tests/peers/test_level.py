"""One list of values: its spread, its standing, and how far chance goes."""

from __future__ import annotations

import random
from statistics import median

import pytest

from hpcverify.peers.level import Judgeability, find_tail, judge_level, measure_spread


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
    assert judged.spread.judgeability is Judgeability.TRAILING
    assert list(judged.outliers) == [194]


FRONTERA = (0.129, 0.129, 0.116, 0.068, 0.057, 0.027, 0.027, 0.022)
"""The slow nodes of a real fleet of 74, whose others spread by 0.5 %."""


@pytest.mark.parametrize("bad", [(0.10,), (0.30,), FRONTERA, (0.13, 0.10, 0.08, 0.06)])
@pytest.mark.parametrize("share", [0.01, 0.06, 0.2])
@pytest.mark.parametrize("count", [64, 400])
def test_bad_values_do_not_hide_each_other(
    count: int, share: float, bad: tuple[float, ...]
) -> None:
    rng = random.Random(0)
    planted = [bad[i % len(bad)] for i in range(max(1, round(share * count)))]
    distances = [rng.gauss(0, 0.005) + d for d in (*planted, *[0.0] * (count - len(planted)))]

    named = judge_level(distances, 0.02, [0.0] * count).outliers.keys()

    assert {i for i, d in enumerate(planted) if d >= 0.05} <= named
    assert len([i for i in named if i >= len(planted)]) <= 1


def test_a_worse_half_is_a_kind_and_nobody_is_named() -> None:
    rng = random.Random(1)
    distances = [rng.gauss(0.1 * (i % 3 == 0), 0.005) for i in range(300)]
    judged = judge_level(distances, 0.02, [0.0] * 300)
    assert judged.spread.judgeability is Judgeability.SPLIT
    assert judged.outliers == {}


def test_values_that_trail_off_on_the_worse_side_alone_are_no_outliers() -> None:
    named = 0
    for seed in range(20):
        rng = random.Random(seed)
        distances = [rng.expovariate(100) for _ in range(400)]
        named += bool(judge_level(distances, 0.02, [0.0] * 400).outliers)

    assert named == 0


@pytest.mark.parametrize("spread", [0.002, 0.006, 0.02, 0.05])
@pytest.mark.parametrize("count", [32, 400])
def test_it_says_how_bad_a_part_has_to_be_until_it_is_named(count: int, spread: float) -> None:
    rng = random.Random(count)
    healthy = [rng.gauss(0, spread) for _ in range(count - 1)]
    least = judge_level([*healthy, 0.0], 0.02, [0.0] * count).spread.least

    assert least is not None
    assert judge_level([*healthy, 1.1 * least], 0.02, [0.0] * count).outliers.keys() == {count - 1}
    assert judge_level([*healthy, 0.8 * least], 0.02, [0.0] * count).outliers == {}


def test_a_small_fleet_whose_values_trail_off_steeply_is_judged() -> None:
    values = [0.0, 1.0, 1.1, 5.0, 20.0, 50.0, 80.0, 99.0]
    judged = judge_level([value - median(values) for value in values], 0.02, [0.0] * 8)
    assert judged.spread.judgeability is Judgeability.TOO_NOISY
    assert judged.outliers == {}


@pytest.mark.parametrize("better", [(0.5, 0.5), (0.08, 0.07, 0.06), (0.15,) * 7])
def test_a_few_parts_that_are_far_better_hide_no_bad_one(better: tuple[float, ...]) -> None:
    rng = random.Random(1)
    planted = [*(-distance for distance in better), 0.05, 0.08, 0.12]
    distances = [rng.gauss(0, 0.005) + d for d in (*planted, *[0.0] * (100 - len(planted)))]
    named = judge_level(distances, 0.02, [0.0] * 100).outliers.keys()
    assert named == {len(better) + i for i in range(3)}


def test_parts_of_a_node_that_go_together_are_no_independent_witnesses() -> None:
    named = 0
    for count, spread in ((8, 0.0165), (8, 0.02), (12, 0.0165)):
        nodes = [f"n{i // 8}" for i in range(8 * count)]
        for seed in range(300):
            rng = random.Random(seed)
            of_node = [rng.gauss(0, spread) for _ in range(count)]
            distances = [of_node[i // 8] for i in range(8 * count)]
            judged = judge_level(distances, 0.02, [0.0] * len(distances), nodes=nodes)
            named += bool(judged.outliers)

    assert named <= 18  # of 900


def test_independent_parts_of_few_nodes_are_judged_as_many() -> None:
    rng = random.Random(1)
    distances = [0.06, *(rng.gauss(0, 0.008) for _ in range(63))]
    nodes = [f"n{i // 8}" for i in range(64)]
    assert [*judge_level(distances, 0.02, [0.0] * 64, nodes=nodes).outliers] == [0]


@pytest.mark.parametrize("count", [3, 6, 12, 25])
def test_a_part_that_is_bad_beside_its_own_node_is_named_though_parts_of_a_node_go_together(
    count: int,
) -> None:
    nodes = [f"n{i // 8}" for i in range(8 * count)]
    named = 0
    for seed in range(20):
        rng = random.Random(seed)
        of_node = [rng.gauss(0, 0.01) for _ in range(count)]
        distances = [of_node[i // 8] + rng.gauss(0, 0.001) for i in range(8 * count)]
        distances[3] = 0.2
        named += 3 in judge_level(distances, 0.02, [0.0] * len(distances), nodes=nodes).outliers

    assert named >= 19
