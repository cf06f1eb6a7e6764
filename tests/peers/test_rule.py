"""The formulas of the rule."""

from __future__ import annotations

import pytest

from hpcverify.peers.rule import find_distance, find_mad


def test_a_distance_is_positive_on_the_bad_side() -> None:
    assert find_distance(97, 100, low_is_bad=True) == 0.03
    assert find_distance(97, 100, low_is_bad=False) == -0.03


def test_of_zero_nothing_is_a_share() -> None:
    with pytest.raises(ZeroDivisionError):
        find_distance(1, 0, low_is_bad=True)


def test_the_mad_is_the_median_distance_from_the_median() -> None:
    assert find_mad([1, 2, 3, 4, 100], 3) == 1
