"""Counts of values for a picture: each value is in one bin, whatever the values are."""

from __future__ import annotations

import pytest

from hpcverify.peers.distribution import BINS, count_values


def test_each_value_is_counted_once_and_the_ends_are_in_the_outer_bins() -> None:
    found = count_values([700.0, 701.0, 702.0, 640.0])
    assert (found.low, found.high, sum(found.counts)) == (640.0, 702.0, 4)
    assert (found.counts[0], found.counts[-1], len(found.counts)) == (1, 2, BINS)


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0, 5.0], [-1.7e308, 1.7e308]])
def test_values_that_no_bins_can_tell_apart_are_one_bin(values: list[float]) -> None:
    assert count_values(values).counts == (len(values),)
