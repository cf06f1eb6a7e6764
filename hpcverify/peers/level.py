"""
Judge one list of values, such as one per node: who is worse than chance explains.

The centre is the median and the spread that of the MAD, which a minority of bad values hardly
moves. How far chance goes is Student's t, and how many may be named is Benjamini and Hochberg's
procedure. Lists of fewer than `MIN_SPREAD_PEERS` values have no MAD to trust: there, each value is
compared with those that are better.

`hpcverify.isolation.outliers` does the same for the few ranks of one job, by their steps over time;
it says why that needs other rules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from msgspec import Struct

from hpcverify.peers.rule import (
    FALSE_NAMES,
    FALSE_SHARE,
    FEW_PEERS,
    MIN_PEERS,
    MIN_SPREAD_PEERS,
    MIN_STEPS,
    SCREEN_SCORE,
    widen_floor,
)
from hpcverify.stats import MAD_SCALE, compute_student_tail, find_mad, find_student_score, median

FREEDOM_SHARE = 0.37
"""The efficiency of the MAD at normal values (Rousseeuw and Croux, JASA 88, 1993): it knows
the spread of n values as well as the standard deviation knows that of 0.37 n."""


class LevelJudgement(Struct, frozen=True):
    """How a list of values is spread, and who is an outlier. Positive distances are worse."""

    centre: float
    """The median distance."""
    spread: float
    least: float
    """How much worse than its peers a single one has to be until it is named."""
    outliers: dict[int, float] = {}
    """How far from the centre each outlier is, by its index."""


def judge_level(
    distances: Sequence[float],
    floor: float,
    errors: Sequence[float] = (),
    resolution: float = 0.0,
) -> LevelJudgement:
    """
    Find the outliers among *distances*, which are at least `MIN_COMPARED`.

    Args:
        distances: One for each peer, from a common value and relative to it.
        floor: The least distance from the median that is worth a word.
        errors: By how much each is less certain than most: a relative standard deviation.
        resolution: The relative step in which the values were recorded.

    """
    peers, centre = len(distances), median(distances)
    floor = max(widen_floor(floor, peers), MIN_STEPS * resolution)
    if peers < MIN_SPREAD_PEERS:
        return _judge_few(distances, floor)
    spread = MAD_SCALE * max(find_mad(distances, centre), resolution / 2)
    chances = {
        i: find_tail(distance - centre, math.hypot(spread, errors[i] if errors else 0.0), peers)
        for i, distance in enumerate(distances)
        if distance - centre >= max(floor, SCREEN_SCORE * spread)
    }
    # The rarest that Benjamini and Hochberg's procedure keeps.
    ranked, allowed = sorted(chances, key=chances.__getitem__), FALSE_NAMES / peers
    rare = (rank for rank, i in enumerate(ranked, 1) if chances[i] <= allowed * rank)
    outliers = {i: distances[i] - centre for i in ranked[: max(rare, default=0)]}
    return LevelJudgement(centre, spread, find_least(spread, floor, peers), outliers)


def _judge_few(distances: Sequence[float], floor: float) -> LevelJudgement:
    """Compare each value with the better ones (Rosner's ESD, Technometrics 25, 1983)."""
    peers = len(distances)
    ranked = sorted(range(peers), key=lambda i: -distances[i])
    outliers: dict[int, float] = {}
    needed = []
    for count in range(1, (peers - 1) // 2 + 1):
        better = [distances[i] for i in ranked[count:]]
        spread = stdev(better)
        needed.append(max(floor, spread * _find_few_score(peers, len(better))))
        if distances[ranked[count - 1]] - median(better) >= needed[-1]:
            outliers = {i: distances[i] - median(better) for i in ranked[:count]}
    centre = median(distances)
    spread = MAD_SCALE * find_mad(distances, centre)
    return LevelJudgement(centre, spread, needed[0], outliers)


def _find_few_score(peers: int, better: int) -> float:
    """Return how many standard deviations of those that are *better* chance goes."""
    allowed = FALSE_NAMES if peers >= MIN_PEERS else FALSE_SHARE
    if peers >= FEW_PEERS:  # fewer have twice the floor
        allowed /= peers
    return find_student_score(allowed, better - 1) * math.sqrt(1 + 1 / better)


def find_tail(distance: float, spread: float, peers: int) -> float:
    """Return the chance that a healthy one of *peers* is beyond *distance*, if they are normal."""
    if not spread:
        return 0.0
    return compute_student_tail(distance / spread, FREEDOM_SHARE * peers)


def find_least(spread: float, floor: float, peers: int) -> float:
    """Find how much worse than its *peers* a single one has to be until it is named."""
    if peers < MIN_SPREAD_PEERS:
        return max(widen_floor(floor, peers), spread * _find_few_score(peers, peers - 1))
    score = find_student_score(FALSE_NAMES / peers, FREEDOM_SHARE * peers)
    return max(floor, SCREEN_SCORE * spread, score * spread)
