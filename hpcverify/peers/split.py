"""
Find out whether values are of two kinds, such as those of two drivers or two kinds of parts.

The cut is the one that leaves the least variance on both sides (Otsu, IEEE Trans. SMC 9, 1979;
Fisher's natural breaks). Any list has such a cut; two kinds also have enough values each, are far
from each other, and hardly a value lies between them. The best cut of all places counts: one that
had to leave enough values on either side would go through the healthy ones where few are bad. If
it only takes a few far values off, these are no kind, and the rest is cut again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from hpcverify.stats import MAD_SCALE, find_mad, median

MIN_SHARE, MIN_HALF = 0.1, 4
"""The smaller kind has this share of the values, and this many."""
MIN_SEPARATION = 4.0
"""The distance of the medians of the kinds, in spreads of the wider one. The two halves of a normal
distribution are 2.3 of them apart, those of a uniform one 2.7."""
MAX_BETWEEN = 0.05
"""The share of values in the middle third between the medians; of a uniform list it is 0.17."""


def find_cut(values: Sequence[float], floor: float) -> float | None:
    """Return what divides *values* of two kinds, which differ by at least *floor*, or None."""
    least = max(MIN_HALF, MIN_SHARE * len(values))
    rest = sorted(values)
    while 2 * len(rest) > len(values) and rest[-1] - rest[0] >= floor:
        count = _count_below(rest)
        below, above = rest[:count], rest[count:]
        if min(len(below), len(above)) >= least:
            return (below[-1] + above[0]) / 2 if _are_two_kinds(below, above, floor) else None
        rest = max(below, above, key=len)
    return None


def _are_two_kinds(below: Sequence[float], above: Sequence[float], floor: float) -> bool:
    low, high = median(below), median(above)
    width = max(MAD_SCALE * find_mad(below, low), MAD_SCALE * find_mad(above, high))
    if high - low < max(floor, MIN_SEPARATION * width):
        return False
    third = (high - low) / 3
    between = sum(low + third < value < high - third for value in (*below, *above))
    return between <= MAX_BETWEEN * (len(below) + len(above))


def _count_below(ordered: Sequence[float]) -> int:
    """Return how many values the best cut leaves below it, which are not all equal."""
    sums = list(accumulate(ordered, initial=0.0))
    whole = len(ordered)

    def separate(count: int) -> float:
        difference = sums[count] / count - (sums[-1] - sums[count]) / (whole - count)
        return difference * difference * count * (whole - count)

    return max((c for c in range(1, whole) if ordered[c - 1] < ordered[c]), key=separate)
