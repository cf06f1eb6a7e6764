"""
Find a trend in the runs of one part, and the day on which it crosses a limit.

The slope is the median of those between all pairs of days (Theil and Sen), its interval is Sen's
(J. Am. Stat. Assoc. 63, 1968): of 95 %, and free of a normal distribution. Runs of one day share
its air and its load, so each day counts once, with the median of its runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from msgspec import Struct

from hpcverify.stats import CONFIDENCE_SCORE, median
from hpcverify.units import DAY_SECONDS

MIN_DAYS = 20
"""Days with runs: with fewer, the interval of 95 % is too narrow for thousands of series."""


class Slope(Struct, frozen=True):
    """How fast a value moves, per day, with the bounds of 95 %."""

    middle: float
    least: float
    most: float
    level: float
    """The value of the line on its last day."""
    last: float
    """That day, in days since 1970."""
    residual: float
    """The median distance of the days from the line."""
    change: float
    """What the line changes from its first day to its last."""


class Crossing(Struct, frozen=True):
    """The day on which a limit is crossed, in days since 1970; None: not within the bound."""

    day: float
    earliest: float
    latest: float | None


def group_days(times: Sequence[float], values: Sequence[float]) -> list[tuple[float, float]]:
    """Return each day with runs, in days since 1970, with the median of its values."""
    days: dict[int, list[tuple[float, float]]] = {}
    for time, value in zip(times, values, strict=True):
        days.setdefault(int(time // DAY_SECONDS), []).append((time / DAY_SECONDS, value))
    return [
        (median(when for when, _ in runs), median(value for _, value in runs))
        for _, runs in sorted(days.items())
    ]


def find_slope(times: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Find the slope of *values* over *times* (s since 1970); None if 0 is in its interval."""
    days = group_days(times, values)
    if len(days) < MIN_DAYS:
        return None
    slopes = sorted((b - a) / (v - u) for (u, a), (v, b) in combinations(days, 2))
    # Sen's interval of the median.
    n = len(days)
    spread = CONFIDENCE_SCORE * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    least = slopes[max(0, math.floor((len(slopes) - spread) / 2))]
    most = slopes[min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))]
    if least <= 0 <= most:
        return None
    middle = median(slopes)
    base = median(value - middle * day for day, value in days)
    residual = median(abs(value - base - middle * day) for day, value in days)
    last = days[-1][0]
    change = middle * (last - days[0][0])
    return Slope(middle, least, most, base + middle * last, last, residual, change)


def project_crossing(slope: Slope, limit: float) -> Crossing | None:
    """Project when *slope* crosses *limit*; None if it moves away, or is beyond it already."""
    distance = limit - slope.level
    if distance * slope.middle <= 0:
        return None
    near, far = sorted((slope.least, slope.most), key=lambda bound: -abs(bound))
    noise = math.copysign(slope.residual, distance)
    early, late = distance - noise, distance + noise
    return Crossing(
        day=slope.last + distance / slope.middle,
        earliest=slope.last + max(0.0, early / near),
        latest=slope.last + late / far if far * distance > 0 else None,
    )
