"""Whether far values are common in a fleet, as its better side shows."""

from __future__ import annotations

import random

import pytest

from hpcverify.peers.tail import find_heavy_tail
from tests.peers.fleets import draw_heavy_tailed


@pytest.mark.parametrize("count", [16, 68, 500, 4000])
def test_normal_distances_seldom_have_a_heavy_tail(count: int) -> None:
    found = 0
    for seed in range(40):
        rng = random.Random(seed)
        found += find_heavy_tail([abs(rng.gauss(0, 0.006)) for _ in range(count)]) is not None
    assert found <= 4


@pytest.mark.parametrize("count", [200, 4000])
def test_the_tail_of_students_t_is_found_with_its_scale(count: int) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        tail = find_heavy_tail([abs(0.006 * draw_heavy_tailed(rng)) for _ in range(count)])

        assert tail is not None
        assert tail.freedom <= 7
        assert tail.scale == pytest.approx(0.006, rel=0.25)


@pytest.mark.parametrize("distances", [[], [0.0] * 50, [0.01] * 9])
def test_few_or_equal_distances_have_no_tail_to_tell(distances: list[float]) -> None:
    assert find_heavy_tail(distances) is None
