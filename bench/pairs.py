"""
Compare two ways of doing the same thing on a machine that is never quiet.

The two are measured in pairs, close in time and in the order A B, B A, A B ..., so
that a slow drift of the machine falls on both alike. What is reported is the median
of the ratio within a pair, with an interval made of order statistics (the inverted
sign test), which supposes nothing about how the noise is distributed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

CONFIDENCE = 0.95
FEWEST_PAIRS = 6
"""Below this, even the whole range of the ratios holds the median less surely."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of ours / other over the pairs, and its 95 % interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Print it as benchmarks report it."""
        return f"{self.median:.4f} (95 % interval {self.low:.4f} to {self.high:.4f})"


def compare(ours: Callable[[], float], other: Callable[[], float], pairs: int = 15) -> Ratio:
    """
    Measure *ours* against *other*; each returns a figure, in the same unit.

    Raises:
        ValueError: *pairs* is too small for an interval.

    """
    return summarise([_pair(ours, other, swapped=i % 2 == 1) for i in range(pairs)])


def summarise(ratios: Sequence[float]) -> Ratio:
    """
    Reduce *ratios* to their median and the interval that holds the true one.

    Raises:
        ValueError: there are fewer than `FEWEST_PAIRS`.

    """
    if len(ratios) < FEWEST_PAIRS:
        raise ValueError(f"{len(ratios)} pairs: at least {FEWEST_PAIRS} are needed")
    ordered = sorted(ratios)
    outside = _outside(len(ordered))
    return Ratio(statistics.median(ordered), ordered[outside], ordered[-1 - outside])


def _pair(ours: Callable[[], float], other: Callable[[], float], *, swapped: bool) -> float:
    if swapped:
        figure = other()
        return ours() / figure
    return ours() / other()


def _outside(count: int) -> int:
    # How many of the sorted values may be cut from either end: the largest r with
    # 2 P(Binomial(count, 1/2) < r) <= 5 %, and so the interval holds 95 % or more.
    tail, cut = 0.0, 0
    while (tail := tail + comb(count, cut) / 2**count) <= (1 - CONFIDENCE) / 2:
        cut += 1
    return cut
