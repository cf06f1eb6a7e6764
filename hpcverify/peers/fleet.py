"""
Judge one metric of a fleet, from the coarse to the fine: places and versions, nodes, parts.

What a group explains is taken off its members before the next level is judged: in a job over
four GPUs, one that is slow drags the other three along, and it is the node that is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import inf, isfinite
from statistics import correlation, median

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.model import Verdict
from hpcverify.peers.cause import compare_sensors, explain, explain_members
from hpcverify.peers.floors import PeerFloor, Worse
from hpcverify.peers.groups import explain_split, find_group_outliers
from hpcverify.peers.level import Judgeability, PeerSpread, find_tail, find_unnamed, judge_level
from hpcverify.peers.reference import ReferenceEntry
from hpcverify.peers.rule import FALSE_SHARE, MIN_PEERS, SCREEN_SCORE, find_distance
from hpcverify.peers.screen import ListSummary
from hpcverify.peers.split import find_cut
from hpcverify.peers.values import (
    NODE_PART,
    PLACES,
    SENSORS,
    MetricName,
    PartValue,
    find_errors,
    find_resolution,
)
from hpcverify.stats import MAD_SCALE
from hpcverify.units import format_count, format_percent

MIN_DRAGGED = 2
"""The parts of a node that can drag each other along."""
MAX_OUTLIER_SHARE = 0.1
"""The largest share of bad parts: beyond it, several bad ones may be a kind of their own."""
MAX_UNNAMED_LISTED = 5
"""Parts that are not named are listed, the worst first."""


class PeerOutlier(Struct, frozen=True, kw_only=True):
    """Who is worse than its peers, by how much, and why if the numbers show it."""

    level: str
    """What is named: part, node, or the field of a group, as cabinet."""
    name: str
    node: str = ""
    verdict: Verdict
    distance: float
    """From its peers, relative: 0.04 is 4 % worse."""
    score: float | None = None
    """The same in spreads of its peers; None: they do not differ at all."""
    members: tuple[str, ...] = ()
    runs: int = 0
    cause: str = ""


class MetricJudgement(Struct, frozen=True, kw_only=True):
    """What is said of one metric of a fleet."""

    name: MetricName
    judgeability: Judgeability = msgspec.field(name="standing")
    note: str
    """Why it could not be judged in full, in a sentence; empty if it was."""
    parts: int
    nodes: int
    median: float | None = None
    spread: float | None = None
    """Robust and relative, of the parts."""
    floor: float
    worse: Worse
    outliers: tuple[PeerOutlier, ...] = ()
    correlations: dict[str, float] = {}
    """How a bad value goes with a sensor over the fleet: Pearson's r, by the sensor."""
    least: float | None = None
    """How much worse than its peers a single part has to be until it is named."""
    moved: float | None = None
    """How much worse the fleet's median is than that of the learned reference."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; a fleet that is worse than its reference is worth a look."""
        degraded = self.moved is not None and self.moved >= self.floor
        least = Verdict.WARN if degraded else Verdict.PASS
        return max((outlier.verdict for outlier in self.outliers), default=least)


class PeerComparison(Struct, dict=True):
    """The parts of a fleet, and what of each distance no group explains yet."""

    parts: Sequence[PartValue]
    left: list[float]
    floor: PeerFloor
    low_is_bad: bool
    errors: Sequence[float] = ()
    resolution: float = 0.0
    outliers: list[PeerOutlier] = []
    notes: list[str] = []

    @cached_property
    def nodes(self) -> dict[str, list[int]]:
        """The indices of the parts of each known node."""
        nodes: dict[str, list[int]] = {}
        for i, part in enumerate(self.parts):
            if part.node:
                nodes.setdefault(part.node, []).append(i)
        return nodes

    @cached_property
    def units(self) -> dict[str, list[int]]:
        """What counts as one in a group: nodes, and parts whose node is unknown."""
        strays = {part.name: [i] for i, part in enumerate(self.parts) if not part.node}
        return self.nodes | strays

    def find_middle(self, indices: Iterable[int]) -> float:
        """Return the median of what is left of the distances of some parts."""
        return median(self.left[i] for i in indices)

    def name(self, level: str, name: str, distance: float, score: float, who: list[int]) -> None:
        """Name who is worse, and take off its members what that explains."""
        members = [self.parts[i] for i in who]
        inside = set(who)
        has_sensors = any(member.sensors for member in members)
        peers = [p for i, p in enumerate(self.parts) if i not in inside] if has_sensors else []
        if level == "part":
            cause = explain(compare_sensors(members[0], peers))
        else:
            cause = explain_members(members, peers)
        self.outliers.append(
            PeerOutlier(
                level=level,
                name=name,
                node=members[0].node if level in {"part", "node"} else "",
                verdict=self._judge_verdict(members),
                distance=distance,
                score=score if isfinite(score) else None,
                members=tuple(part.name for part in members),
                runs=sum(part.runs for part in members),
                cause=cause,
            )
        )
        for i in who:
            self.left[i] -= distance

    def _judge_verdict(self, members: Iterable[PartValue]) -> Verdict:
        """FAIL where the limits of the specification say the same, or where the site says so."""
        beyond = all(
            part.limit is not None
            and (part.value < part.limit if self.low_is_bad else part.value > part.limit)
            for part in members
        )
        return Verdict.FAIL if beyond else self.floor.otherwise


def judge_metric(
    name: MetricName,
    parts: Sequence[PartValue],
    floor: PeerFloor,
    worse: Worse,
    reference: ReferenceEntry | None = None,
) -> MetricJudgement:
    """Judge the values of *parts* in one metric by each other."""
    nodes = len({part.node for part in parts if part.node})
    centre = median(part.value for part in parts)
    entry = MetricJudgement(
        name=name,
        judgeability=Judgeability.TOO_FEW,
        note="",
        parts=len(parts),
        nodes=nodes,
        median=centre,
        floor=floor.floor,
        worse=worse,
        moved=_find_move(reference, centre, worse),
    )
    if len(parts) < MIN_PEERS:
        return _judge_few(entry, parts, floor, reference)
    if centre == 0:
        return replace(entry, judgeability=Judgeability.ZERO, note=_describe_zero(parts, worse))
    low = worse == "low"
    comparison = PeerComparison(
        parts=parts,
        left=[find_distance(part.value, centre, low_is_bad=low) for part in parts],
        errors=find_errors(parts, centre),
        resolution=find_resolution(part.value for part in parts) / abs(centre),
        floor=floor,
        low_is_bad=low,
    )
    distances = tuple(comparison.left)
    fields = sorted({field for part in parts for field in part.groups})
    _compare_with_like(comparison, [field for field in fields if field not in PLACES])
    for field in fields:
        _name_groups(comparison, field)
    _compare_with_like(comparison, [field for field in fields if field in PLACES])
    _name_nodes(comparison)
    spread = _name_parts(comparison)
    many = list(_describe_many(comparison))
    return replace(
        entry,
        judgeability=Judgeability.MANY if many else spread.judgeability,
        note="; ".join([*comparison.notes, *many, *_describe_judgeability(spread, comparison)]),
        spread=spread.spread,
        least=spread.least,
        outliers=tuple(comparison.outliers),
        correlations=_correlate(parts, distances),
    )


def _describe_zero(parts: Sequence[PartValue], worse: Worse) -> str:
    note = "the usual value is 0, so only its limits judge it"
    sign = 1 if worse == "high" else -1
    bad = sorted((p for p in parts if sign * p.value > 0), key=lambda p: -sign * p.value)
    listed = _list_first(f"{part.name} ({part.value:g})" for part in bad)
    return f"{note}; not 0, the worst first: {listed}" if bad else note


def _list_first(descriptions: Iterable[str]) -> str:
    first = [*descriptions]
    more = len(first) - MAX_UNNAMED_LISTED
    return ", ".join([*first[:MAX_UNNAMED_LISTED], *([f"{more} more"] if more > 0 else [])])


def build_plain_judgement(
    name: MetricName,
    summary: ListSummary,
    nodes: int,
    floor: PeerFloor,
    reference: ReferenceEntry | None = None,
) -> MetricJudgement:
    """Build what is said of a metric whose *summary* shows that nothing in it is far."""
    worse = floor.worse_side or "high"
    return MetricJudgement(
        name=name,
        judgeability=Judgeability.JUDGED,
        note="",
        parts=summary.peers,
        nodes=nodes,
        median=summary.centre,
        spread=MAD_SCALE * summary.mad / abs(summary.centre),
        least=summary.find_least(floor.floor),
        floor=floor.floor,
        worse=worse,
        moved=_find_move(reference, summary.centre, worse),
    )


def _judge_few(
    entry: MetricJudgement,
    parts: Sequence[PartValue],
    floor: PeerFloor,
    reference: ReferenceEntry | None,
) -> MetricJudgement:
    note = f"{format_count(len(parts), 'part')}: at least {MIN_PEERS} make a comparison"
    if reference is None or reference.median == 0:
        return replace(entry, note=note)
    low = entry.worse == "low"
    comparison = PeerComparison(
        parts=parts,
        left=[find_distance(p.value, reference.median, low_is_bad=low) for p in parts],
        floor=floor,
        low_is_bad=low,
    )
    for i, distance in enumerate(comparison.left):
        score = distance / reference.spread if reference.spread else inf
        rare = find_tail(score, reference.parts) <= FALSE_SHARE / len(parts)
        if distance >= floor.floor and score >= SCREEN_SCORE and rare:
            comparison.name("part", parts[i].name, distance, score, [i])
    note += f", so each was compared with the reference of {reference.parts} parts"
    return replace(entry, note=note, outliers=tuple(comparison.outliers))


def _find_move(reference: ReferenceEntry | None, centre: float, worse: Worse) -> float | None:
    if reference is None or reference.median == 0:
        return None
    return find_distance(centre, reference.median, low_is_bad=worse == "low")


def _compare_with_like(comparison: PeerComparison, fields: Sequence[str]) -> None:
    """If the fleet is of two kinds and a field says which is which, compare like with like."""
    units = list(comparison.units.values())
    middles = [comparison.find_middle(unit) for unit in units]
    if len(units) < MIN_PEERS or (cut := find_cut(middles, comparison.floor.floor)) is None:
        return
    kinds = [comparison.parts[unit[0]].groups for unit in units]
    sides = [
        [k for k, m in zip(kinds, middles, strict=True) if (m > cut) is worse]
        for worse in (False, True)
    ]
    field = explain_split(sides[0], sides[1], fields)
    if not field:
        return
    likes: dict[str, list[int]] = {}
    for i, part in enumerate(comparison.parts):
        likes.setdefault(part.groups[field], []).append(i)
    centres = {value: comparison.find_middle(like) for value, like in likes.items()}
    best = min(centres.values())
    kinds_listed = ", ".join(
        f"{value}: {len(likes[value])} parts, {format_percent(c - best)} worse"
        if c > best
        else f"{value}: {len(likes[value])} parts"
        for value, c in sorted(centres.items(), key=lambda item: item[1])
    )
    comparison.notes.append(f"two kinds by {field}, each compared by itself ({kinds_listed})")
    for value, like in likes.items():
        for i in like:
            comparison.left[i] -= centres[value]


def _name_groups(comparison: PeerComparison, field: str) -> None:
    members: dict[str, list[list[int]]] = {}
    for unit in comparison.units.values():
        if value := comparison.parts[unit[0]].groups.get(field):
            members.setdefault(value, []).append(unit)
    if len(members) < 2:  # noqa: PLR2004 - a group and the rest
        return
    units = {value: list(map(comparison.find_middle, own)) for value, own in members.items()}
    for group in find_group_outliers(units, comparison.floor.floor):
        who = [i for i, p in enumerate(comparison.parts) if p.groups.get(field) == group.name]
        comparison.name(field, group.name, group.distance, group.score, who)


def _name_nodes(comparison: PeerComparison) -> None:
    """Name the nodes whose parts are all far; a few nodes are compared as groups are."""
    floor = comparison.floor.floor
    nodes = {n: who for n, who in comparison.nodes.items() if len(who) >= MIN_DRAGGED}
    middles = {node: comparison.find_middle(who) for node, who in nodes.items()}
    scores: dict[str, float]
    if len(nodes) >= MIN_PEERS:
        errors = [min(comparison.errors[i] for i in who) for who in nodes.values()]
        judged = judge_level(list(middles.values()), floor, errors, comparison.resolution)
        names = list(nodes)
        scores = {names[i]: score for i, score in judged.outliers.items()}
        centre = judged.spread.centre
    else:
        units = {node: [comparison.left[i] for i in who] for node, who in nodes.items()}
        groups = find_group_outliers(units, floor, MIN_DRAGGED)
        scores = {group.name: group.score for group in groups}
        centre = 0.0
    for node, score in scores.items():
        if all(comparison.left[i] - centre >= floor for i in nodes[node]):
            comparison.name("node", node, middles[node] - centre, score, nodes[node])


def _name_parts(comparison: PeerComparison) -> PeerSpread:
    judged = judge_level(
        comparison.left,
        comparison.floor.floor,
        comparison.errors,
        comparison.resolution,
        [part.node or part.name for part in comparison.parts],
    )
    centre = judged.spread.centre
    for i, score in sorted(judged.outliers.items(), key=lambda item: -item[1]):
        part = comparison.parts[i]
        level = "node" if part.part == NODE_PART else "part"
        comparison.name(level, part.name, comparison.left[i] - centre, score, [i])
    return judged.spread


def _describe_many(comparison: PeerComparison) -> Iterator[str]:
    outliers = [outlier for outlier in comparison.outliers if outlier.level in {"node", "part"}]
    named, parts = len({m for outlier in outliers for m in outlier.members}), len(comparison.parts)
    if named > max(1, MAX_OUTLIER_SHARE * parts):
        yield (
            f"{named} of {parts} parts are far from the rest, too many to be outliers: look for "
            "what they share, such as a setting, a version or a place"
        )


def _describe_judgeability(spread: PeerSpread, comparison: PeerComparison) -> Iterator[str]:
    left, floor = comparison.left, comparison.floor.floor
    if spread.judgeability is Judgeability.SPLIT and spread.cut is not None:
        better = [i for i, distance in enumerate(left) if distance <= spread.cut]
        worse = [i for i, distance in enumerate(left) if distance > spread.cut]
        apart = median(left[i] for i in worse) - median(left[i] for i in better)
        few, side = (better, "better") if len(better) < len(worse) else (worse, "worse")
        yield (
            f"{len(better)} parts and {len(worse)} that are {format_percent(apart)} worse: two "
            "kinds, and no column says which is which, so only the tail of the worse kind is "
            f"judged; the {side} ones are {_list_first(comparison.parts[i].name for i in few)}"
        )
        return
    if unnamed := find_unnamed(left, spread, floor):
        why = {
            Judgeability.TOO_NOISY: "healthy parts differ too much "
            f"(spread {format_percent(spread.spread)})",
            Judgeability.TRAILING: "far values are common here, as the better side shows",
            Judgeability.SKEWED: "far values are common on the worse side",
        }.get(spread.judgeability, "chance may explain those that are far")
        far = (f"{comparison.parts[i].name} ({format_percent(left[i])})" for i in unnamed)
        yield (
            f"{why}: one part is named from {format_percent(spread.least or floor)} on; not "
            f"named, the worst first: {_list_first(far)}"
        )


def _correlate(parts: Sequence[PartValue], distances: Sequence[float]) -> dict[str, float]:
    correlations = {}
    for sensor in SENSORS:
        pairs = [
            (distance, part.sensors[sensor])
            for part, distance in zip(parts, distances, strict=True)
            if sensor in part.sensors
        ]
        columns = list(zip(*pairs, strict=True))
        if 2 * len(pairs) >= len(parts) and all(len(set(column)) > 1 for column in columns):
            correlations[sensor] = correlation(columns[0], columns[1])
    return correlations
