"""The formulas of the rule."""

from __future__ import annotations

import pytest

from hpcverify.peers.rule import find_distance


def test_a_distance_is_positive_on_the_bad_side() -> None:
    assert find_distance(97, 100, low_is_bad=True) == 0.03
    assert find_distance(97, 100, low_is_bad=False) == -0.03


def test_of_zero_nothing_is_a_share() -> None:
    with pytest.raises(ZeroDivisionError):
        find_distance(1, 0, low_is_bad=True)
