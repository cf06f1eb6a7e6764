"""
Tell the few that are slower than all others, again and again, from noise.

A name is an accusation, so four things must be true of whom it goes to. They are few: of
two kinds, neither is an outlier. They stand apart from all the rest, by their medians:
further than the rest lies from its own median, and by `MIN_DEVIATIONS` robust deviations
(Iglewicz and Hoaglin 1993: 3.5 for one value of normal noise; here all ranks are asked,
and the noise of shared machines is not normal). They are slow in most steps and in each
quarter of the time, so that a pause, a burst of traffic or ranks that are late in turn
name nobody. How much it matters is for the caller to ask.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import median
from typing import TypeVar

MIN_UNITS = 3
"""Of two, none is the odd one out."""
MAX_SHARE = 0.25
"""Of all units; but one may always be."""
MIN_DEVIATIONS = 6.0
MIN_SEPARATION = 1.0
"""From the furthest of the rest, as a multiple of how far that is from their median."""
MAD_TO_DEVIATION = 1.4826
"""For normal noise."""
MEDIAN_ERROR = 1.2533
"""Of a median of n values of normal noise, as a multiple of deviation / sqrt(n)."""
HALF = 0.5
"""Of its excess: steps in which it has less do not count."""
GROUPS = 16
"""Of consecutive steps, if there are more: their medians are what must be slow."""
MIN_GROUPS_SHARE = 0.75
PERIODS = 4
MIN_STEPS = 8

Unit = TypeVar("Unit", bound=Hashable)


def find_outliers(
    excess: Mapping[Unit, Sequence[float]], resolution: float = 0.0
) -> dict[Unit, float]:
    """
    Find who takes longer than the rest, again and again, and by how much (the median).

    *excess* is what each takes in each step more than the median of all in that step.
    Differences below *resolution* are none.
    """
    middles = {unit: median(steps) for unit, steps in excess.items() if len(steps) >= MIN_STEPS}
    if len(middles) < MIN_UNITS:
        return {}
    ordered = sorted(middles, key=lambda unit: middles[unit])
    few = max(1, int(MAX_SHARE * len(ordered)))
    # The largest group that stands apart: a smaller one would leave one of its like unnamed.
    for count in range(few, 0, -1):
        rest, apart = ordered[:-count], ordered[-count:]
        if _stand_apart([middles[u] for u in rest], middles[apart[0]], resolution):
            found = {u: middles[u] - median(middles[v] for v in rest) for u in apart}
            return {u: more for u, more in found.items() if _lasts(excess[u], more)}
    return {}


def _stand_apart(rest: Sequence[float], lowest: float, resolution: float) -> bool:
    """Whether the *lowest* of some stands apart from all of the *rest*."""
    middle = median(rest)
    distance = max(MIN_DEVIATIONS * _compute_deviation(rest), resolution)
    away = (1 + MIN_SEPARATION) * (max(rest) - middle)
    return lowest - middle > max(distance, away, 0.0)


def _compute_deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return MAD_TO_DEVIATION * median(abs(value - middle) for value in values)


def _lasts(steps: Sequence[float], more: float) -> bool:
    """Whether it is slow in most *steps*, in each quarter of them, and not by their noise."""
    error = MEDIAN_ERROR * _compute_deviation(steps) / sqrt(len(steps))
    size = max(1, len(steps) // GROUPS)
    groups = [median(steps[at : at + size]) for at in range(0, len(steps), size)]
    count = sum(value > HALF * more for value in groups)
    edges = [round(len(steps) * n / PERIODS) for n in range(PERIODS + 1)]
    periods = [steps[a:b] for a, b in pairwise(edges)]
    steady = all(median(period) > HALF * more for period in periods)
    return more > MIN_DEVIATIONS * error and steady and count >= MIN_GROUPS_SHARE * len(groups)
