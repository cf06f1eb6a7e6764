"""
Judge one list of values, such as one per node: who stands apart, or why nobody can say.

The spread is the largest of three: the MAD, and how far the 10th and the 90th percentile are, each
as in a normal distribution, so that values which trail off widen it. It is measured without those
that look bad beside the better side alone: else the bad ones of a fleet would hide each other.

`hpcverify.isolation.outliers` does the same for the few ranks of one job, by their steps over time;
it says why that needs other rules.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import nlargest
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.peers.rule import FALSE_SHARE, MIN_PEERS, NOISY_SPREAD, SCREEN_SCORE
from hpcverify.peers.split import find_cut
from hpcverify.peers.tail import (
    ExponentialTail,
    StudentTail,
    Tail,
    find_heavy_tail,
)
from hpcverify.stats import MAD_SCALE, compute_student_tail, find_mad, median

NORMAL = NormalDist()
TENTH = 0.1
FREEDOM_SHARE = 0.37
"""The efficiency of the MAD at normal values (Rousseeuw and Croux, JASA 88, 1993): it knows
the spread of n values as well as the standard deviation knows that of 0.37 n."""
MANY_SHARE = 0.25
"""If the worse of two kinds has more of the peers than this, nobody can say which is healthy."""
SUSPECT_SCORE = 3.5
"""Values beyond this many spreads of the better side do not show how healthy ones differ."""
NOTED = 0.05
"""A part this far away is reported even if chance explains it."""
NOISY_FACTOR = 1.5
"""In a noisy metric, an outlier is this many times as far as chance goes."""
APART = 2.5
"""Where values trail off, an outlier is so many times as far as others go; and so is what one node
alone claims on the better side, which says nothing of the others."""
FAR_APART = 4.0
"""The same of several nodes: two healthy ones are more easily far than one."""
TRAIL_CHANCE = 0.05
"""Normal values that lie beyond the second best one of a fleet, in one fleet of a thousand."""
SHARED_ERROR = 2.0
"""The standard error of the share of variance that the parts of a node have in common, of n values,
is about 2 / sqrt(n)."""
MAX_SKEW, SKEW_ERROR = 1.25, 3.0
"""The 90th percentile may be so much farther than the 10th, and 1.6 standard errors more: for n
normal values the error of the ratio is 1.9 / sqrt(n)."""
SLOPE = 0.93
"""The scale of an exponential distribution is so many times the distance of its 90th percentile
from its median, where what is beyond three spreads was left out."""


class Judgeability(StrEnum):
    """Whether a list of values can be judged: a closed list."""

    JUDGED = "judged"
    TOO_FEW = "too few"
    TOO_NOISY = "too noisy"
    SPLIT = "split in two"
    ZERO = "zero"
    """The usual value is 0, so relative distances are undefined."""
    TRAILING = "trailing off"
    """Far values are common, as the better side shows: only one far beyond those is named."""
    SKEWED = "skewed"
    """Values trail off on the worse side alone: only one far beyond all others is named."""
    MANY = "many"
    """The named parts may be a kind of their own: they are too many."""


class PeerSpread(Struct, frozen=True):
    """How the values of *peers* differ. Distances are relative; positive ones are worse."""

    judgeability: Judgeability
    peers: int
    centre: float = 0.0
    """The median distance: of the worse half, if they are split in two."""
    spread: float = 0.0
    cut: float | None = None
    """The distance that divides a split list."""
    reach: float = 0.0
    """How far from the centre values go on the better side, but for the best one."""
    slope: float = 0.0
    """The scale of an exponential distribution that goes as far as theirs on the worse side."""
    least: float | None = None
    """How much worse than its peers a single part has to be until it is named."""


class LevelJudgement(Struct, frozen=True):
    """What came of one list: its spread, and the score of each outlier by its index."""

    spread: PeerSpread
    outliers: dict[int, float] = {}


def judge_level(
    distances: Sequence[float],
    floor: float,
    errors: Sequence[float],
    resolution: float = 0.0,
    nodes: Sequence[str] = (),
) -> LevelJudgement:
    """
    Find the outliers among *distances*; positive ones are worse.

    Args:
        distances: One for each peer, from a common value and relative to it.
        floor: The least distance from the median that is worth a word.
        errors: By how much each is less certain than most: a relative standard deviation.
        resolution: The relative step in which the values were recorded.
        nodes: Whose each is. Without them, each is of a node of its own.

    """
    peers = len(distances)
    if peers < MIN_PEERS:
        return LevelJudgement(PeerSpread(Judgeability.TOO_FEW, peers))
    cut = find_cut(distances, floor)
    half = [i for i, distance in enumerate(distances) if cut is None or distance > cut]
    if cut is None or len(half) <= MANY_SHARE * peers:
        return _name_outliers(distances, floor, errors, resolution, nodes)
    if len(half) < MIN_PEERS:
        return LevelJudgement(PeerSpread(Judgeability.SPLIT, peers, cut=cut))
    judged = _name_outliers(
        [distances[i] for i in half],
        floor,
        [errors[i] for i in half],
        resolution,
        [nodes[i] for i in half] if nodes else (),
    )
    spread = replace(judged.spread, judgeability=Judgeability.SPLIT, peers=peers, cut=cut)
    return LevelJudgement(spread, {half[i]: score for i, score in judged.outliers.items()})


def _name_outliers(
    distances: Sequence[float],
    floor: float,
    errors: Sequence[float],
    resolution: float,
    nodes: Sequence[str],
) -> LevelJudgement:
    peers = len(distances)
    sound = _leave_out_freaks(distances, nodes)
    spread = measure_spread(_leave_out_suspects(sound, resolution), resolution, peers)
    heavy = find_heavy_tail([spread.centre - d for d in sound if d < spread.centre])
    factor = NOISY_FACTOR if spread.judgeability is Judgeability.TOO_NOISY else 1.0
    apart = APART * spread.reach if spread.judgeability is Judgeability.TRAILING else 0.0
    least = max(floor, apart, factor * SCREEN_SCORE * spread.spread)
    far = {i: d - spread.centre for i, d in enumerate(distances) if d - spread.centre >= least}
    allowed = FALSE_SHARE / peers
    for tail in _list_tails(spread, heavy):
        least = max(least, factor * tail.find_distance(allowed))
        chances = {i: tail.find_chance(d / factor, errors[i]) for i, d in far.items()}
        far = {i: far[i] for i in _find_rare(chances, allowed)}
    tail = StudentTail(spread.spread, FREEDOM_SHARE * _count_independent(distances, nodes))
    chances = {i: tail.find_chance(d / factor, errors[i]) for i, d in far.items()}
    rare = {*_find_rare(chances, allowed), *_find_alone(distances, floor, resolution, nodes)}
    far = {i: d for i, d in far.items() if i in rare}
    if heavy and spread.judgeability is Judgeability.JUDGED:
        spread = replace(spread, judgeability=Judgeability.TRAILING)
    scores = {i: _divide(d, math.hypot(spread.spread, errors[i])) for i, d in far.items()}
    return LevelJudgement(replace(spread, least=least), scores)


def _list_tails(spread: PeerSpread, heavy: Tail | None) -> Iterator[Tail]:
    """List how far chance may take a healthy part: whoever is named is beyond all of them."""
    yield StudentTail(spread.spread, FREEDOM_SHARE * spread.peers)
    if heavy:
        yield heavy
    if spread.judgeability is Judgeability.SKEWED:
        yield ExponentialTail(spread.slope)


def _count_independent(distances: Sequence[float], nodes: Sequence[str]) -> float:
    """
    Count the independent ones of *distances*: where those of a node go together, they are fewer.

    It is n / (1 + (g - 1) r), where the g parts of a node share r of their variance (Kish 1965).
    What r may be by chance does not count: few nodes always differ by something.
    """
    members: dict[str, list[float]] = {}
    for node, distance in zip(nodes, distances, strict=False):  # each may be a node of its own
        members.setdefault(node, []).append(distance)
    size, whole = len(distances) / max(1, len(members)), find_mad(distances, median(distances))
    if not members or size <= 1 or not whole:
        return len(distances)
    inside = find_mad([d - median(own) for own in members.values() for d in own], 0.0)
    shared = (
        1 - (inside / whole) ** 2 * size / (size - 1) - SHARED_ERROR / math.sqrt(len(distances))
    )
    return len(distances) / (1 + (size - 1) * max(0.0, shared))


def _find_alone(
    distances: Sequence[float], floor: float, resolution: float, nodes: Sequence[str]
) -> set[int]:
    """
    Find the parts that are beyond chance beside the others of their own node, too.

    That these go together says nothing for them: what all parts of a node share, they do not.
    """
    members: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        members.setdefault(node, []).append(i)
    apart: dict[int, float] = {}
    for own in members.values():
        middle = median(distances[i] for i in own)
        apart |= {i: distances[i] - middle for i in own if len(own) > 1}
    freedom = len(apart) - sum(len(own) > 1 for own in members.values())
    if not apart:
        return set()
    mad = max(find_mad(list(apart.values()), 0.0), resolution / 2)
    spread = MAD_SCALE * mad * math.sqrt(len(apart) / freedom)  # the medians took some of it
    tail = StudentTail(spread, FREEDOM_SHARE * freedom)
    allowed = FALSE_SHARE / len(distances)
    return {i for i, d in apart.items() if d >= floor and tail.find_chance(d) <= allowed}


def _leave_out_freaks(distances: Sequence[float], nodes: Sequence[str]) -> Sequence[float]:
    """
    Leave out what a few nodes reach or claim: values far better than the best of all others.

    They would make far values look common, and hide who is bad elsewhere. Where values trail off,
    each is about as far as the next.
    """
    centre = median(distances)
    best: dict[str, float] = {}
    owners = nodes or list(map(str, range(len(distances))))
    for node, distance in zip(owners, distances, strict=True):
        best[node] = max(best.get(node, 0.0), centre - distance)
    if len(best) < MIN_PEERS:
        return distances
    few = max(1, int(TENTH * len(best)))
    ranked = nlargest(few + 1, best.values())
    gaps = [
        count
        for count in range(1, few + 1)
        if ranked[count - 1] > (APART if count == 1 else FAR_APART) * ranked[count]
    ]
    return [d for d in distances if centre - d <= ranked[max(gaps)]] if gaps else distances


def _leave_out_suspects(distances: Sequence[float], resolution: float) -> list[float]:
    """
    Return in order the *distances* without those that look bad beside the better side alone.

    Bad parts do not reach that side, however many and however different they are; the spread of
    all would grow with them, and each would hide the others. More than half of all are never left
    out: so few say nothing of the others.
    """
    rest = sorted(distances)
    while True:
        centre = median(rest)
        mad = max(find_mad(rest, centre), resolution / 2)
        better = (centre - _find_tenth(rest)) / _expect_tenth(len(rest))
        most = centre + SUSPECT_SCORE * max(MAD_SCALE * mad, better)
        kept = bisect_right(rest, most)
        if kept == len(rest) or 2 * kept <= len(distances):
            return rest
        rest = rest[:kept]


def measure_spread(distances: Iterable[float], resolution: float, peers: int) -> PeerSpread:
    """Measure the centre and the spread of *distances*, which are those of most *peers*."""
    ordered = sorted(distances)
    centre = median(ordered)
    mad = max(find_mad(ordered, centre), resolution / 2)
    better = centre - _find_tenth(ordered)
    worse = -_find_tenth([-distance for distance in reversed(ordered)]) - centre
    spread = max(MAD_SCALE * mad, max(better, worse) / _expect_tenth(len(ordered)))
    if spread > NOISY_SPREAD:
        judgeability = Judgeability.TOO_NOISY
    elif _trails_off(ordered, centre, spread):
        judgeability = Judgeability.TRAILING
    elif _is_skewed(better, worse, len(ordered)):
        judgeability = Judgeability.SKEWED
    else:
        judgeability = Judgeability.JUDGED
    slope = SLOPE * worse
    return PeerSpread(judgeability, peers, centre, spread, reach=centre - ordered[1], slope=slope)


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


def _divide(distance: float, spread: float) -> float:
    return distance / spread if spread else math.inf


def _is_skewed(better: float, worse: float, peers: int) -> bool:
    return worse > (MAX_SKEW + SKEW_ERROR / math.sqrt(peers)) * better > 0


def _find_rare(chances: Mapping[int, float], allowed: float) -> list[int]:
    """Find the rarest of *chances* that Benjamini and Hochberg's procedure keeps."""
    ranked = sorted(chances, key=lambda i: chances[i])
    rare = (rank for rank, i in enumerate(ranked, 1) if chances[i] <= allowed * rank)
    return ranked[: max(rare, default=0)]


def find_unnamed(distances: Sequence[float], spread: PeerSpread, floor: float) -> list[int]:
    """
    Find who is far and not named, the worst first, by what is left of the *distances*.

    Where far values are not common, only parts that somebody would miss are reported.
    """
    least = max(floor, NOTED, SUSPECT_SCORE * spread.spread)
    if spread.judgeability is not Judgeability.JUDGED:
        least = floor
    far = [i for i, distance in enumerate(distances) if distance - spread.centre >= least]
    return sorted(far, key=lambda i: -distances[i])


def find_tail(score: float, peers: int) -> float:
    """Return the chance that a healthy one of *peers* is beyond *score*, if they are normal."""
    return compute_student_tail(score, FREEDOM_SHARE * peers)
