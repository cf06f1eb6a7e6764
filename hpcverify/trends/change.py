"""
Find a lasting step in the runs of one part, soon after it: a CUSUM of clipped scores.

Each run is scored against the runs before: z = (x - median) / spread. The sum of z - `SLACK` is
kept from falling below 0, and an alarm is where it passes `ALARM` (Page, Biometrika 41, 1954).
Scores are clipped, so that no single run raises one, however bad: at least three in a row do.
While the sum is above 0, the past does not take in new runs: a step must not be its own measure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from statistics import NormalDist

from msgspec import Struct

from hpcverify.peers.rule import SCREEN_SCORE
from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR, find_mad, median

MIN_PAST = 8
"""Runs before a step: with fewer, the part has no past to be compared with."""
LEAST_SPREAD = 0.0012
"""No part is believed to repeat itself better; the median of 280 V100 is 0.11 %."""
SLACK, ALARM, CLIP = 1.0, 8.0, 4.0
"""In spreads: a step of one is never seen, one of four or more in three runs."""
DEFAULT_STEP = 0.0075
"""The least relative step that is worth a word: four times the spread (0.19 %) by which the
halves of six weeks of a GPU differ."""
MIN_AFTER = 3
"""Runs since a step."""


class LevelChange(Struct, frozen=True):
    """A step: positive sizes are worse."""

    index: int
    """The first run on the new level."""
    before: int
    """The first run on the level before."""
    found: int
    """The run that raised the alarm."""
    size: float
    """Relative to the level before."""
    score: float
    """The same in spreads of the runs before."""


def find_changes(values: Sequence[float], least: float = DEFAULT_STEP) -> list[LevelChange]:
    """
    Find the steps in *values*, which are worse the higher they are, in the order of time.

    Steps smaller than *least* (relative) are none. After each step the level begins anew. Until
    there are enough runs on it, the spread is that of the runs before, and wider by the error of
    so young a level.
    """
    changes: list[LevelChange] = []
    while (change := _find_next(values, changes[-1] if changes else None, least)) is not None:
        changes.append(change)
    return changes


def _find_next(
    values: Sequence[float], last: LevelChange | None, least: float
) -> LevelChange | None:
    worse = better = 0.0
    centre, spread = 0.0, math.inf
    scores: list[float] = []
    begin, known = (last.index, MIN_AFTER) if last else (0, MIN_PAST)
    for i in range(begin + known, len(values)):
        if worse == better == 0.0:
            if last and i - begin < MIN_PAST:
                centre = median(values[begin:i])
                spread = last.size / last.score * math.sqrt(1 + MEDIAN_ERROR**2 / (i - begin))
            else:
                centre, spread = _measure(values[begin:i])
            scores = []
        if not centre:
            continue
        scores.append((values[i] - centre) / abs(centre) / spread)
        clipped = max(-CLIP, min(CLIP, scores[-1]))
        worse, better = max(0.0, worse + clipped - SLACK), max(0.0, better - clipped - SLACK)
        if max(worse, better) <= ALARM:
            continue
        after = _count_after(scores if worse > better else [-score for score in scores])
        size = (median(values[i + 1 - after : i + 1]) - centre) / abs(centre)
        far = abs(size) >= max(least, SCREEN_SCORE * spread)
        if after >= MIN_AFTER and far:
            return LevelChange(i + 1 - after, begin, i, size, size / spread)
    return None


def _count_after(scores: Sequence[float]) -> int:
    """Return how many of the last *scores* are of the new level: the likeliest number of them."""
    middle = median(scores[-MIN_AFTER:]) / 2
    sums = list(accumulate(score - middle for score in reversed(scores)))
    return sums.index(max(sums)) + 1


def _measure(past: Sequence[float]) -> tuple[float, float]:
    """Return the median of *past*, and the relative spread around it."""
    centre = median(past)
    if not centre:
        return 0.0, math.inf
    ordered = sorted(value / centre for value in past)
    rank = max(1.0, 0.1 * (len(ordered) - 1))  # a single outlier is not the 10th percentile
    low, share = int(rank), rank % 1
    tenth = ordered[low] * (1 - share) + ordered[low + 1] * share
    ninetieth = ordered[-1 - low] * (1 - share) + ordered[-2 - low] * share
    expected = -NormalDist().inv_cdf((rank + 0.625) / (len(ordered) + 0.25))  # Blom 1958
    mad = MAD_SCALE * find_mad(ordered, 1.0)
    spread = max(mad, max(1 - tenth, ninetieth - 1) / expected)
    return centre, max(spread, LEAST_SPREAD)
