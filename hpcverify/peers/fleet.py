"""
Judge one metric of a fleet, from the coarse to the fine: places and versions, nodes, parts.

What a group explains is taken off its members before the next level is judged: in a job over
four GPUs, one that is slow drags the other three along, and it is the node that is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from statistics import median, median_low

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.model import Verdict
from hpcverify.peers.cause import compare_sensors, explain, explain_members
from hpcverify.peers.floors import PeerFloor, Worse
from hpcverify.peers.groups import explain_split, find_group_outliers
from hpcverify.peers.level import LevelJudgement, judge_level
from hpcverify.peers.rule import (
    MIN_COMPARED,
    MIN_PEERS,
    MIN_STEPS,
    SCREEN_SCORE,
    find_distance,
    widen_floor,
)
from hpcverify.peers.screen import ListSummary
from hpcverify.peers.split import find_cut
from hpcverify.peers.values import (
    NODE_PART,
    PLACES,
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
"""If more of the parts are outliers, they may have a common cause."""
MIN_KIND_SHARE, MAX_KIND_SHARE = 1 / 6, 1 / 3
"""Nodes that are worse alike, and nothing says why, may be bad or of another kind. Fewer than the
lower share are bad, and more than the upper share are a kind; between them,"""
MAX_KIND_DISTANCE = 0.09
"""a kind is no worse than this: two threads on a core, or none, make 8 %."""
MAX_GROUP_SHARE = 0.25
"""If several groups have more of the nodes than this, they are not outliers."""
NOTED = 0.05
"""A part this far away is listed even if chance explains it."""
MAX_UNNAMED_LISTED = 5
"""Parts that are not named are listed, the worst first."""


class Judgeability(StrEnum):
    """What came of judging a metric: a closed list."""

    JUDGED = "judged"
    TOO_FEW = "too few"
    ZERO = "zero"
    """The usual value is 0, so relative distances are undefined."""
    SPLIT = "two kinds"
    """Nothing says which part is of which kind; each kind is judged by itself."""
    MANY = "many"
    """So many parts are outliers that they may have a common cause."""


class PeerOutlier(Struct, frozen=True, kw_only=True):
    """Who is worse than its peers, by how much, and why if the numbers show it."""

    level: str
    """What is named: part, node, or the field of a group, as cabinet."""
    name: str
    node: str = ""
    verdict: Verdict
    distance: float
    """From its peers, relative: 0.04 is 4 % worse."""
    members: tuple[str, ...] = ()
    runs: int = 0
    cause: str = ""


class MetricJudgement(Struct, frozen=True, kw_only=True):
    """What is said of one metric of a fleet."""

    name: MetricName
    judgeability: Judgeability = Judgeability.JUDGED
    note: str = ""
    """Why it could not be judged in full, in a sentence; empty if it was."""
    parts: int
    nodes: int
    median: float | None = None
    spread: float | None = None
    """Robust and relative, of the parts."""
    floor: float
    worse: Worse
    outliers: tuple[PeerOutlier, ...] = ()
    least: float | None = None
    """How much worse than its peers a single part has to be until it is named."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return max((outlier.verdict for outlier in self.outliers), default=Verdict.PASS)


Fails = Callable[[PartValue], bool]
"""Says whether a part fails by its own limits."""


class PeerComparison(Struct, dict=True):
    """The parts of a fleet, and what of each distance no group explains yet."""

    parts: Sequence[PartValue]
    left: list[float]
    floor: PeerFloor
    fails: Fails
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
        """Return the median of what is left of the distances; of two middle ones, the better."""
        return median_low(self.left[i] for i in indices)

    def name(self, level: str, name: str, distance: float, who: list[int]) -> None:
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
                # FAIL where the parts' own limits say the same, or where the site says so.
                verdict=Verdict.FAIL if all(map(self.fails, members)) else self.floor.otherwise,
                distance=distance,
                members=tuple(part.name for part in members),
                runs=sum(part.runs for part in members),
                cause=cause,
            )
        )
        for i in who:
            self.left[i] -= distance


def judge_metric(
    name: MetricName,
    parts: Sequence[PartValue],
    floor: PeerFloor,
    worse: Worse,
    fails: Fails = lambda _part: False,
) -> MetricJudgement:
    """Judge the values of *parts* in one metric by each other, and who is worse by *fails* too."""
    centre = median(part.value for part in parts)
    entry = MetricJudgement(
        name=name,
        parts=len(parts),
        nodes=len({part.node for part in parts if part.node}),
        median=centre,
        floor=floor.floor,
        worse=worse,
    )
    if len(parts) < MIN_COMPARED:
        note = f"{format_count(len(parts), 'part')}: at least {MIN_COMPARED} make a comparison"
        return replace(entry, judgeability=Judgeability.TOO_FEW, note=note)
    if centre == 0:
        note = "the usual value is 0, so only limits judge it"
        sign = 1 if worse == "high" else -1
        bad = sorted((p for p in parts if sign * p.value > 0), key=lambda p: -sign * p.value)
        listed = _list_first(f"{part.name} ({part.value:g})" for part in bad)
        note = f"{note}; not 0, worst first: {listed}" if bad else note
        return replace(entry, judgeability=Judgeability.ZERO, note=note)
    low = worse == "low"
    resolution = find_resolution(part.value for part in parts) / abs(centre)
    comparison = PeerComparison(
        parts=parts,
        left=[find_distance(part.value, centre, low_is_bad=low) for part in parts],
        errors=find_errors(parts, centre),
        resolution=resolution,
        floor=replace(floor, floor=max(floor.floor, MIN_STEPS * resolution)),
        fails=fails,
    )
    fields = sorted({field for part in parts for field in part.groups})
    if versions := [field for field in fields if field not in PLACES]:
        _compare_with_like(comparison, versions)
    for field in fields:
        _name_groups(comparison, field)
    is_split = _compare_with_like(comparison)
    _name_nodes(comparison)
    judged = _name_parts(comparison)
    many = list[str]()
    outliers = [outlier for outlier in comparison.outliers if outlier.level in {"node", "part"}]
    named = len({outlier.node or outlier.name for outlier in outliers})
    if named > max(1, MAX_OUTLIER_SHARE * len(comparison.units)):
        units = format_count(len(comparison.units), "node" if comparison.nodes else "part")
        many.append(
            f"{named} of {units} are outliers or have outliers. Fix: check what they "
            "share, such as a setting, a version or a place"
        )
    usual = Judgeability.SPLIT if is_split else Judgeability.JUDGED
    return replace(
        entry,
        judgeability=Judgeability.MANY if many else usual,
        note="; ".join([*comparison.notes, *many, *_describe_unnamed(judged, comparison)]),
        spread=judged.spread,
        least=judged.least,
        outliers=tuple(comparison.outliers),
    )


def _list_first(descriptions: Iterable[str]) -> str:
    first = [*descriptions]
    more = len(first) - MAX_UNNAMED_LISTED
    return ", ".join([*first[:MAX_UNNAMED_LISTED], *([f"{more} more"] if more > 0 else [])])


def build_plain_judgement(
    name: MetricName, summary: ListSummary, nodes: int, floor: PeerFloor
) -> MetricJudgement:
    """Build what is said of a metric whose *summary* shows that nothing in it is far."""
    return MetricJudgement(
        name=name,
        parts=summary.peers,
        nodes=nodes,
        median=summary.centre,
        spread=MAD_SCALE * summary.mad / abs(summary.centre),
        least=summary.find_least(floor.floor),
        floor=floor.floor,
        worse=floor.worse_side or "high",
    )


def _compare_with_like(comparison: PeerComparison, fields: Sequence[str] = ()) -> bool:
    """Compare like with like if *fields*, or a cut, divide the fleet in two kinds."""
    units = list(comparison.units.values())
    middles = [comparison.find_middle(unit) for unit in units]
    if len(units) < MIN_PEERS or (cut := find_cut(middles, comparison.floor.floor)) is None:
        return False
    sides: dict[str, list[list[int]]] = {"better": [], "worse": []}
    for unit, middle in zip(units, middles, strict=True):
        sides["worse" if middle > cut else "better"].append(unit)
    better, worse = ([comparison.parts[unit[0]].groups for unit in s] for s in sides.values())
    if field := explain_split(better, worse, fields):
        likes: dict[str, list[int]] = {}
        for i, part in enumerate(comparison.parts):
            likes.setdefault(part.groups[field], []).append(i)
    else:
        likes = {side: [i for unit in own for i in unit] for side, own in sides.items()}
    centres = {kind: median(comparison.left[i] for i in like) for kind, like in likes.items()}
    if field:
        comparison.notes.append(_describe_kinds(field, likes, centres))
    else:
        apart, share = centres["worse"] - centres["better"], len(worse) / len(units)
        is_usual = share >= MAX_KIND_SHARE or apart <= MAX_KIND_DISTANCE
        if fields or apart < comparison.floor.floor or share < MIN_KIND_SHARE or not is_usual:
            return False
        comparison.notes.append(_describe_sides(comparison, likes, centres))
    for kind, like in likes.items():
        for i in like:
            comparison.left[i] -= centres[kind]
    return True


def _describe_kinds(
    field: str, likes: Mapping[str, Sequence[int]], centres: Mapping[str, float]
) -> str:
    best = min(centres.values())
    listed = ", ".join(
        f"{kind}: {len(likes[kind])} parts, {format_percent(centre - best)} worse"
        if centre > best
        else f"{kind}: {len(likes[kind])} parts"
        for kind, centre in sorted(centres.items(), key=lambda item: item[1])
    )
    return f"two kinds by {field}, each compared separately ({listed})"


def _describe_sides(
    comparison: PeerComparison, likes: Mapping[str, Sequence[int]], centres: Mapping[str, float]
) -> str:
    few = min(likes, key=lambda side: len(likes[side]))
    names = dict.fromkeys(comparison.parts[i].node or comparison.parts[i].name for i in likes[few])
    apart = format_percent(centres["worse"] - centres["better"])
    return (
        f"two kinds: {len(likes['worse'])} of {len(comparison.parts)} parts are {apart} worse than "
        "the others, unexplained by a version, so each kind is compared separately. Fix: if this "
        f"is by design, add [[kinds]] to site.toml; the {few} parts: {_list_first(names)}"
    )


def _name_groups(comparison: PeerComparison, field: str) -> None:
    members: dict[str, list[list[int]]] = {}
    for unit in comparison.units.values():
        if value := comparison.parts[unit[0]].groups.get(field):
            members.setdefault(value, []).append(unit)
    if len(members) < 2:  # noqa: PLR2004 - a group and the rest
        return
    units = {value: list(map(comparison.find_middle, own)) for value, own in members.items()}
    groups = find_group_outliers(units, comparison.floor.floor)
    if len(groups) > 1 and sum(len(units[g.name]) for g in groups) > MAX_GROUP_SHARE * len(
        comparison.units
    ):
        return  # they are of another kind
    for group in groups:
        who = [i for i, p in enumerate(comparison.parts) if p.groups.get(field) == group.name]
        comparison.name(field, group.name, group.distance, who)


def _name_nodes(comparison: PeerComparison) -> None:
    floor = comparison.floor.floor
    nodes = {n: who for n, who in comparison.nodes.items() if len(who) >= MIN_DRAGGED}
    if len(nodes) >= MIN_PEERS:
        middles = list(map(comparison.find_middle, nodes.values()))
        errors = [min(comparison.errors[i] for i in who) for who in nodes.values()]
        judged = judge_level(middles, floor, errors, comparison.resolution)
        names = list(nodes)
        far = {names[i]: distance for i, distance in judged.outliers.items()}
    else:
        units = {node: [comparison.left[i] for i in who] for node, who in nodes.items()}
        groups = find_group_outliers(units, widen_floor(floor, len(nodes)), MIN_DRAGGED)
        far = {group.name: group.distance for group in groups}
    for node, distance in sorted(far.items(), key=lambda item: -item[1]):
        comparison.name("node", node, distance, nodes[node])


def _name_parts(comparison: PeerComparison) -> LevelJudgement:
    """Name the parts that are far from those of other nodes, and from the best of their own."""
    left, floor = comparison.left, comparison.floor.floor
    best = {node: min(left[i] for i in who) for node, who in comparison.nodes.items()}
    judged = judge_level(left, floor, comparison.errors, comparison.resolution)
    for i, distance in sorted(judged.outliers.items(), key=lambda item: -item[1]):
        part = comparison.parts[i]
        alone = len(comparison.nodes.get(part.node, [i])) == 1
        if alone or left[i] - best[part.node] >= floor:
            level = "node" if part.part == NODE_PART else "part"
            comparison.name(level, part.name, distance, [i])
    return judged


def _describe_unnamed(judged: LevelJudgement, comparison: PeerComparison) -> Iterator[str]:
    """List who is so far that somebody would miss it, and is not named."""
    least = max(comparison.floor.floor, NOTED, SCREEN_SCORE * judged.spread)
    ranked = sorted(enumerate(comparison.left), key=lambda item: -item[1])
    far = [(i, distance) for i, distance in ranked if distance - judged.centre >= least]
    if far:
        yield (
            "chance may explain the outliers: a part is reported from "
            f"{format_percent(judged.least)}; not reported, worst first: "
            + _list_first(f"{comparison.parts[i].name} ({format_percent(d)})" for i, d in far)
        )
