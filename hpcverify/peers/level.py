"""
Judge one list of values, such as one per node: who stands apart, or why nobody can say.

The spread is the largest of three: the MAD, and how far the 10th and the 90th percentile are, each
as in a normal distribution, so that values which trail off widen it. It is measured without the
outliers that are named already: twenty bad ones of a thousand would hide each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import NormalDist, median

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.peers.rule import (
    FALSE_SHARE,
    MAD_SCALE,
    MIN_PEERS,
    NOISY_SPREAD,
    SCREEN_SCORE,
    find_mad,
)
from hpcverify.peers.split import find_cut
from hpcverify.peers.tail import compute_tail, find_heavy_tail

NORMAL = NormalDist()
TENTH = 0.1
FREEDOM_SHARE = 0.37
"""The efficiency of the MAD at normal values (Rousseeuw and Croux, JASA 88, 1993): it knows
the spread of n values as well as the standard deviation knows that of 0.37 n."""
LARGEST_SHARE = 0.1
"""Of the peers, and more than one: as many outliers are a group of their own."""
NOISY_FACTOR = 1.5
"""In a noisy metric, an outlier is so many times as far as chance goes."""
APART = 2.5
"""Where values trail off, an outlier is so many times as far as the farthest other one."""
TRAIL_CHANCE = 0.05
"""Normal values that lie beyond the second best one of a fleet, in one fleet of a thousand."""
MAX_SKEW, SKEW_ERROR = 1.25, 7.5
"""The 90th percentile may be so much farther than the 10th, and 4 standard errors more: for n
normal values the error of the ratio is 1.9 / sqrt(n)."""


class Standing(StrEnum):
    """Whether a list of values can be judged: a closed list."""

    JUDGED = "judged"
    TOO_FEW = "too few"
    TOO_NOISY = "too noisy"
    SPLIT = "split in two"
    ZERO = "zero"
    """The usual value is 0, of which nothing is a share."""
    TRAILING = "trailing off"
    """Far values are common in this list: only one far beyond all others is named."""


class PeerSpread(Struct, frozen=True):
    """How the values of *peers* differ. Distances are relative; positive ones are worse."""

    standing: Standing
    peers: int
    centre: float = 0.0
    """The median distance: of the worse half, if they are split in two."""
    spread: float = 0.0
    cut: float | None = None
    """The distance that divides a split list."""


class LevelJudgement(Struct, frozen=True):
    """What came of one list: its spread, and the score of each outlier by its index."""

    spread: PeerSpread
    outliers: dict[int, float] = {}


def judge_level(
    distances: Sequence[float], floor: float, errors: Sequence[float], resolution: float = 0.0
) -> LevelJudgement:
    """
    Find the outliers among *distances*, of which positive ones are worse.

    Args:
        distances: One for each peer, from a common value and relative to it.
        floor: The least distance from the median that is worth a word.
        errors: By how much each is less certain than most: a relative standard deviation.
        resolution: The relative step in which the values were recorded.

    """
    peers = len(distances)
    if peers < MIN_PEERS:
        return LevelJudgement(PeerSpread(Standing.TOO_FEW, peers))
    cut = find_cut(distances, floor)
    if cut is None:
        return _name_outliers(distances, floor, errors, resolution)
    half = [i for i, distance in enumerate(distances) if distance > cut]
    if len(half) < MIN_PEERS:
        return LevelJudgement(PeerSpread(Standing.SPLIT, peers, cut=cut))
    judged = _name_outliers(
        [distances[i] for i in half], floor, [errors[i] for i in half], resolution
    )
    spread = replace(judged.spread, standing=Standing.SPLIT, peers=peers, cut=cut)
    return LevelJudgement(spread, {half[i]: score for i, score in judged.outliers.items()})


def _name_outliers(
    distances: Sequence[float], floor: float, errors: Sequence[float], resolution: float
) -> LevelJudgement:
    """Name outliers and measure the rest again, until no more are named."""
    named: dict[int, float] = {}
    while True:
        spread = measure_spread(
            [d for i, d in enumerate(distances) if i not in named], resolution, len(distances)
        )
        far = _find_far(distances, floor, errors, spread)
        found = _keep_beyond_tail(far, distances, errors, spread) if far else far
        if len(found) < len(far) and spread.standing is Standing.JUDGED:
            spread = replace(spread, standing=Standing.TRAILING)
        if len(found) > max(1, LARGEST_SHARE * len(distances)):
            cut = (min(distances[i] for i in found) + spread.centre) / 2
            return LevelJudgement(replace(spread, standing=Standing.SPLIT, cut=cut))
        if found.keys() <= named.keys():
            return LevelJudgement(spread, found)
        named |= found  # and never fewer, or this might not end


def measure_spread(distances: Iterable[float], resolution: float, peers: int) -> PeerSpread:
    """Measure the centre and the spread of *distances*, which are those of most *peers*."""
    ordered = sorted(distances)
    centre = median(ordered)
    mad = max(find_mad(ordered, centre), resolution / 2)
    better = centre - _find_tenth(ordered)
    worse = -_find_tenth([-distance for distance in reversed(ordered)]) - centre
    spread = max(MAD_SCALE * mad, max(better, worse) / _expect_tenth(len(ordered)))
    if spread > NOISY_SPREAD:
        standing = Standing.TOO_NOISY
    elif _trails_off(ordered, centre, spread) or _is_skewed(better, worse, len(ordered)):
        standing = Standing.TRAILING
    else:
        standing = Standing.JUDGED
    return PeerSpread(standing, peers, centre, spread)


def _find_tenth(ordered: Sequence[float]) -> float:
    """Return the 10th percentile of values in rising order, or the second of less than twelve."""
    low, share = divmod(_rank_tenth(len(ordered)), 1)
    return ordered[int(low)] * (1 - share) + ordered[int(low) + 1] * share


def _rank_tenth(count: int) -> float:
    """Return the rank of the 10th percentile, from 0: a single outlier must not be it."""
    return max(1.0, TENTH * (count - 1))


def _expect_tenth(count: int) -> float:
    """Return how far it is from the mean of normal values, in standard deviations (Blom 1958)."""
    return -NORMAL.inv_cdf((_rank_tenth(count) + 0.625) / (count + 0.25))


def _trails_off(ordered: Sequence[float], centre: float, spread: float) -> bool:
    """Whether the second best value is better than normal ones are; one alone may be a freak."""
    expected = -NORMAL.inv_cdf(TRAIL_CHANCE / len(ordered))
    return centre - ordered[1] > expected * spread > 0


def _is_skewed(better: float, worse: float, peers: int) -> bool:
    """Whether values are farther out on the worse side than on the better one."""
    return worse > (MAX_SKEW + SKEW_ERROR / math.sqrt(peers)) * better > 0


def _find_far(
    distances: Sequence[float], floor: float, errors: Sequence[float], spread: PeerSpread
) -> dict[int, float]:
    """Return by index the score of each value that is far from its peers in both senses."""
    scores = {
        i: (distance - spread.centre) / math.hypot(spread.spread, error)
        if spread.spread or error
        else math.inf
        for i, (distance, error) in enumerate(zip(distances, errors, strict=True))
        if distance - spread.centre >= floor
    }
    factor = NOISY_FACTOR if spread.standing is Standing.TOO_NOISY else 1.0
    far = sorted(
        (i for i in scores if scores[i] >= SCREEN_SCORE * factor), key=lambda i: -scores[i]
    )
    allowed = FALSE_SHARE / len(distances)
    far = far[: _count_rare((find_tail(scores[i] / factor, len(distances)) for i in far), allowed)]
    if spread.standing is Standing.TRAILING:
        far = _keep_apart(far, distances, spread.centre)
    return {i: scores[i] for i in far}


def _keep_beyond_tail(
    far: dict[int, float], distances: Sequence[float], errors: Sequence[float], spread: PeerSpread
) -> dict[int, float]:
    """Keep of those *far* whom chance does not explain, if far values are common here."""
    tail = find_heavy_tail([spread.centre - d for d in distances if d < spread.centre])
    if tail is None:
        return far
    factor = NOISY_FACTOR if spread.standing is Standing.TOO_NOISY else 1.0
    chances = {
        i: compute_tail(
            (distances[i] - spread.centre) / math.hypot(tail.scale, errors[i]) / factor,
            tail.freedom,
        )
        for i in far
    }
    ranked = sorted(chances, key=lambda i: chances[i])
    rare = _count_rare((chances[i] for i in ranked), FALSE_SHARE / len(distances))
    return {i: far[i] for i in ranked[:rare]}


def _count_rare(chances: Iterable[float], allowed: float) -> int:
    """Count the rarest of *chances*, which rise, that Benjamini and Hochberg's procedure keeps."""
    return max((rank for rank, p in enumerate(chances, 1) if p <= allowed * rank), default=0)


def _keep_apart(far: list[int], distances: Sequence[float], centre: float) -> list[int]:
    """Keep of those *far* the ones that stand apart from all the rest, on either side."""
    for count in range(len(far), 0, -1):
        group = set(far[:count])
        rest = max(abs(d - centre) for i, d in enumerate(distances) if i not in group)
        if min(distances[i] for i in group) - centre >= APART * rest:
            return far[:count]
    return []


def find_tail(score: float, peers: int) -> float:
    """Return the chance that a healthy one of *peers* is beyond *score*, if they are normal."""
    return compute_tail(score, FREEDOM_SHARE * peers)
