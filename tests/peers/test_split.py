"""Two kinds of values are told from one, however it is spread."""

from __future__ import annotations

import random

import pytest

from hpcverify.peers.split import find_cut

FLOOR = 0.02


@pytest.mark.parametrize("share", [0.12, 0.3, 0.5])
def test_two_kinds_are_divided_between_them(share: float) -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.0 if i < 200 * share else 0.05, 0.004) for i in range(200)]
    cut = find_cut(values, FLOOR)
    assert cut is not None
    assert 0.015 < cut < 0.035


@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "equal"])
def test_one_kind_is_not_divided(kind: str) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        values = {
            "normal": [rng.gauss(0, 0.02) for _ in range(200)],
            "uniform": [rng.uniform(-0.05, 0.05) for _ in range(200)],
            "exponential": [rng.expovariate(50) for _ in range(200)],
            "equal": [0.0] * 200,
        }[kind]
        assert find_cut(values, FLOOR) is None, seed


def test_kinds_that_differ_by_less_than_the_floor_are_one() -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.0 if i % 2 else 0.01, 0.0005) for i in range(200)]
    assert find_cut(values, FLOOR) is None


def test_a_few_far_values_are_no_kind() -> None:
    assert find_cut([0.0] * 97 + [0.1] * 3, FLOOR) is None


@pytest.mark.parametrize("count", [32, 100, 1000])
@pytest.mark.parametrize("share", [0.03, 0.05, 0.06, 0.08])
def test_a_cut_leaves_no_healthy_value_on_the_side_of_a_few_bad_ones(
    count: int, share: float
) -> None:
    rng = random.Random(1)
    bad = round(share * count)
    values = [rng.gauss(0.1 if i < bad else 0.0, 0.004) for i in range(count)]
    assert find_cut(values, FLOOR) is None


@pytest.mark.parametrize("far", [[9.0], [-0.99], [9.0, 8.0, -0.9], [2.0 * 3**i for i in range(9)]])
@pytest.mark.parametrize("share", [0.3, 0.45, 0.6])
def test_a_few_far_values_do_not_hide_two_kinds(far: list[float], share: float) -> None:
    rng = random.Random(1)
    values = [rng.gauss(0.0 if i < 200 * share else 0.06, 0.003) for i in range(200)]
    cut = find_cut([*values, *far], FLOOR)
    assert cut is not None
    assert 0.02 < cut < 0.04
