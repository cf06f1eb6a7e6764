"""
Say from the summary of a list, and its few worst values, that nobody in it stands apart.

A database gives both for all metrics of a night at once. The test is on the safe side: the spread
that `level` works with is never less than that of the MAD, so no value has a higher score than
here, and a list that has an outlier is not turned away.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcverify.peers.level import find_least, find_tail
from hpcverify.peers.rule import FALSE_NAMES, MIN_SPREAD_PEERS, SCREEN_SCORE
from hpcverify.stats import MAD_SCALE


class ListSummary(Struct, frozen=True):
    """A list of values, one for each of its *peers*, in five numbers."""

    peers: int
    centre: float
    """The median."""
    mad: float
    """The median absolute deviation from it, unscaled."""
    low: float
    high: float

    def find_reach(self, floor: float) -> float:
        """Return how far from the median, in its unit, a value may be and is no outlier."""
        spread = MAD_SCALE * self.mad if self.peers >= MIN_SPREAD_PEERS else 0.0
        return max(floor * abs(self.centre), SCREEN_SCORE * spread)

    def has_far(self, floor: float) -> bool:
        """Whether any value is beyond that reach, on either side."""
        reach = self.find_reach(floor)
        return self.centre - self.low >= reach or self.high - self.centre >= reach

    def find_least(self, floor: float) -> float:
        """Find how much worse than its peers a single part has to be until it is named."""
        return find_least(MAD_SCALE * self.mad / abs(self.centre), floor, self.peers)

    def may_be_split(self, floor: float) -> bool:
        """Whether the values spread so much that they may be of two kinds."""
        return MAD_SCALE * self.mad >= floor / 2 * abs(self.centre)


def may_have_outlier(summary: ListSummary, far: Sequence[float]) -> bool:
    """Whether chance does not explain the values *far* (Benjamini and Hochberg, as `level`)."""
    if summary.peers < MIN_SPREAD_PEERS:
        return bool(far)
    spread = MAD_SCALE * summary.mad
    distances = sorted((abs(value - summary.centre) for value in far), reverse=True)
    allowed = FALSE_NAMES / summary.peers
    return any(
        find_tail(distance, spread, summary.peers) <= allowed * rank
        for rank, distance in enumerate(distances, 1)
    )
