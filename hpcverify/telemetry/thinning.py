"""Fewer points for the same picture: no spike is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hpcverify.check import Sample
from hpcverify.model import Series

MAX_POINTS = 600
"""A chart of a report shows no more points apart."""


def thin(
    t: Sequence[float], values: Sequence[float], points: int = MAX_POINTS
) -> tuple[list[float], list[float]]:
    """Keep at most *points* (four or more): the ends, and the extremes of equal stretches."""
    if len(t) <= points:
        return list(t), list(values)
    last = len(t) - 1
    stretches = (points - 2) // 2
    cuts = [1 + (last - 1) * i // stretches for i in range(stretches + 1)]
    kept = {0, last}
    for start, end in pairwise(cuts):
        kept.add(min(range(start, end), key=values.__getitem__))
        kept.add(max(range(start, end), key=values.__getitem__))
    order = sorted(kept)
    return [t[i] for i in order], [values[i] for i in order]


def build_series(samples: Sequence[Sample], start: float) -> Series:
    """Make a `Series`, timed from *start*, of the *samples* of one series."""
    t, values = thin([s.t - start for s in samples], [s.value for s in samples])
    first = samples[0]
    return Series(first.name, first.unit, first.part_id, tuple(t), tuple(values))
