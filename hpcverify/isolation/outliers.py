"""
Find the few that are slower than all others, again and again.

Four things must be true of an outlier. They are few: of two kinds, neither is an outlier. They
stand apart from all the rest, by their medians: further than the rest lies from its own median, and
by `MIN_DEVIATIONS` robust deviations (Iglewicz and Hoaglin 1993: 3.5 for one value of normal noise;
here all ranks are compared, and the noise of shared machines is not normal). They are slow in most
steps and in each quarter of the time, so that a pause, a burst of traffic or ranks that are late in
turn name nobody. How much it matters is for the caller to ask.

Medians do not see delays that are rare and long: a lost packet is sent again after 200 ms or more
(RFC 6298), a quota of CPU time pauses a process for most of each 100 ms, and in between all is as
fast as anywhere. Means see them, and also every accident, so `find_unsteady` asks for more: the
delays come back all the time, and with every partner.

`hpcverify.peers.level` finds outliers too, from other data. There a fleet has one value per part
and hundreds of parts: the shape of their distribution says how far chance goes, and the share of
false alarms is bounded over thousands of metrics and nights. Here one job has as few as three
ranks, from which no shape can be learned, but a series of steps for each: what comes back over time
is the evidence.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from statistics import fmean
from typing import TypeVar

from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR, compute_fisher_tail, find_mad, median

MIN_UNITS = 3
"""If only two differ, nobody can say which one is wrong."""
MAX_OUTLIER_SHARE = 0.25
"""The share of all units that can be outliers; one may always be."""
MIN_DEVIATIONS = 6.0
MIN_SEPARATION = 1.0
"""The distance from the furthest of the rest, in multiples of how far that is from their median."""
MIN_EXCESS_SHARE = 0.5
"""Steps with less than this share of a unit's excess do not count."""
MAX_STEP_GROUPS = 16
"""Consecutive steps are grouped: the medians of the groups are what must be slow."""
MIN_GROUPS_SHARE = 0.75
PERIODS = 4
MIN_STEPS = 8
STEP_WINDOWS = 8
"""Consecutive steps whose means must be slow where delays are rare."""
MIN_STEPS_OF_WINDOW = 2
MAX_CHANCE = 1e-4
"""That anybody is slow so much more often than the rest, where all are alike."""

Unit = TypeVar("Unit", bound=Hashable)
Value = TypeVar("Value")


def find_outliers(
    excess: Mapping[Unit, Sequence[float]], resolution: float = 0.0
) -> dict[Unit, float]:
    """Find units that are repeatedly slower by at least *resolution*, and their median excess."""
    middles = {unit: median(steps) for unit, steps in excess.items() if len(steps) >= MIN_STEPS}
    apart = _find_apart(middles, resolution)
    return {u: more for u, more in apart.items() if _lasts(excess[u], more)}


def find_unsteady(
    excess: Mapping[Unit, Sequence[Sequence[float]]], resolution: float
) -> dict[Unit, float]:
    """
    Find who has delays that the rest have not, rare or not, and how long they are (the mean).

    *excess* has for each unit a series for each of its partners: what it takes in each step
    more than the median of all in that step. All series of a unit have the same length. It
    is as slow as with the partner with which it is fastest. Differences below *resolution*
    are none.
    """
    least = MIN_STEPS_OF_WINDOW * STEP_WINDOWS
    pooled = {
        unit: [fmean(step) for step in zip(*series, strict=True)] for unit, series in excess.items()
    }
    means = {u: min(map(fmean, excess[u])) for u, steps in pooled.items() if len(steps) >= least}
    apart = _find_apart(means, resolution)
    rest = [steps for unit, steps in pooled.items() if unit not in apart]
    return {
        unit: more
        for unit, more in apart.items()
        if _comes_back(pooled[unit], rest, means[unit] - MIN_EXCESS_SHARE * more)
    }


def _find_apart(middles: Mapping[Unit, float], resolution: float) -> dict[Unit, float]:
    if len(middles) < MIN_UNITS:
        return {}
    ordered = sorted(middles, key=lambda unit: middles[unit])
    few = max(1, int(MAX_OUTLIER_SHARE * len(ordered)))
    # The largest group that stands apart: a smaller one would leave one as slow unnamed.
    for count in range(few, 0, -1):
        rest, apart = [middles[u] for u in ordered[:-count]], ordered[-count:]
        middle = median(rest)
        distance = max(MIN_DEVIATIONS * _compute_deviation(rest), resolution)
        away = (1 + MIN_SEPARATION) * (max(rest) - middle)
        if middles[apart[0]] - middle > max(distance, away, 0.0):
            return {u: middles[u] - middle for u in apart}
    return {}


def _compute_deviation(values: Sequence[float]) -> float:
    return MAD_SCALE * find_mad(values, median(values))


def _lasts(steps: Sequence[float], more: float) -> bool:
    """Whether it is slow in most *steps*, in each quarter of them, and not by their noise."""
    error = MEDIAN_ERROR * _compute_deviation(steps) / sqrt(len(steps))
    size = max(1, len(steps) // MAX_STEP_GROUPS)
    groups = [median(steps[at : at + size]) for at in range(0, len(steps), size)]
    count = sum(value > MIN_EXCESS_SHARE * more for value in groups)
    steady = all(median(period) > MIN_EXCESS_SHARE * more for period in _divide(steps, PERIODS))
    return more > MIN_DEVIATIONS * error and steady and count >= MIN_GROUPS_SHARE * len(groups)


def _comes_back(own: Sequence[float], rest: Sequence[Sequence[float]], threshold: float) -> bool:
    """Whether one is slow in most windows, in each quarter, and more often than the *rest*."""
    slow = [value > threshold for value in own]
    windows = [fmean(window) > threshold for window in _divide(own, STEP_WINDOWS)]
    returns = all(any(period) for period in _divide(slow, PERIODS))
    others = [value > threshold for steps in rest for value in steps]
    chance = compute_fisher_tail(sum(slow), len(slow), sum(others), len(others)) * (len(rest) + 1)
    return chance < MAX_CHANCE and returns and sum(windows) >= MIN_GROUPS_SHARE * STEP_WINDOWS


def _divide(steps: Sequence[Value], count: int) -> list[Sequence[Value]]:
    edges = [round(len(steps) * n / count) for n in range(count + 1)]
    return [steps[a:b] for a, b in pairwise(edges)]
