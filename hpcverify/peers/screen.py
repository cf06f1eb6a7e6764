"""
Say from the summary of a list, and its few worst values, that nobody in it stands apart.

A database gives both for all metrics of a night at once. The test is on the safe side: the
spread that `level` works with is never less than that of the MAD without the far values, so no
value has a higher score than here, and a list that has an outlier is not turned away.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from hpcverify.peers.level import FREEDOM_SHARE, find_tail
from hpcverify.peers.rule import FALSE_SHARE, MIN_PEERS, SCREEN_SCORE
from hpcverify.peers.tail import StudentTail
from hpcverify.stats import MAD_SCALE

MAD_LOSS = 2.0
"""Without a share of far values, the MAD is less by at most so many times that share: of normal
values, by 1.1 times a twentieth and 1.3 times a fifth on one side."""


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
        return max(floor * abs(self.centre), SCREEN_SCORE * MAD_SCALE * self.mad)

    def has_far(self, floor: float) -> bool:
        """Whether any value is beyond that reach, on either side."""
        reach = self.find_reach(floor)
        return self.centre - self.low >= reach or self.high - self.centre >= reach

    def find_least(self, floor: float) -> float:
        """
        Find how much worse than its peers a single part has to be until it is named.

        Raises:
            ZeroDivisionError: the centre is 0, so relative distances are undefined.

        """
        spread = MAD_SCALE * self.mad / abs(self.centre)
        tail = StudentTail(spread, FREEDOM_SHARE * self.peers)
        return max(floor, SCREEN_SCORE * spread, tail.find_distance(FALSE_SHARE / self.peers))

    def may_be_split(self, floor: float) -> bool:
        """Whether the values spread so much that they may be of two kinds."""
        return MAD_SCALE * self.mad >= floor / 2 * abs(self.centre)


def may_have_outlier(summary: ListSummary, far: Sequence[float]) -> bool:
    """
    Whether chance alone does not explain the values *far*, those beyond the reach.

    It is Benjamini and Hochberg's procedure as `level` has it. Values on both sides may be
    given: then the test is passed more easily.
    """
    if summary.peers < MIN_PEERS:
        return False
    spread = MAD_SCALE * summary.mad * (1 - MAD_LOSS * len(far) / summary.peers)
    if spread <= 0:
        return bool(far)
    scores = sorted((abs(value - summary.centre) / spread for value in far), reverse=True)
    allowed = FALSE_SHARE / summary.peers
    return any(
        find_tail(score, summary.peers) <= allowed * rank for rank, score in enumerate(scores, 1)
    )
