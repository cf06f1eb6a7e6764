"""How the values of a fleet are distributed, in a few numbers: for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf

from msgspec import Struct

BINS = 60


class Distribution(Struct, frozen=True):
    """Counts of values in equal bins from *low* to *high*."""

    low: float
    high: float
    counts: tuple[int, ...]
    """One if all values are equal or too far apart to be distinguished, else `BINS`."""


def count_values(values: Sequence[float]) -> Distribution:
    """Count the finite *values*, at least one."""
    low, high = min(values), max(values)
    span = high - low
    if span == 0 or isinf(span):
        return Distribution(low, high, (len(values),))
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / span * BINS))] += 1
    return Distribution(low, high, tuple(counts))
