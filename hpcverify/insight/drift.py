"""
Which nodes differ from their peers in a version or a setting, and what is being rolled out.

Only nodes of one kind are compared: the same machine, CPUs and GPUs. What two thirds of them
have is the majority, and a node that has something else deviates. If many nodes changed
the same way in the last two weeks, that is a rollout: those that have not changed yet are
behind it. Neither says anything about health.

A node that is out of service, or was silent for a week, does not count; where it
deviates, it is listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.fleet.rollouts import ROLLOUT_WINDOW_S, FactChange, list_changes
from hpcverify.fleet.states import DAY_S
from hpcverify.insight.node_names import fold_names, make_natural_key
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify.summary.facts import KIND_FACTS, PARTS_SOURCE, PLACE_FACTS
from hpcverify.summary.verdict import shorten
from hpcverify.units import UtcTime, convert_time, format_time_since

MIN_NODES = 3
"""Nodes of one kind with facts, from which one of them can be odd."""
MAJORITY = 2 / 3
"""The share of nodes of one kind that is a majority: with 12 and 11 of 23 nobody is odd."""
MIN_ROLLOUT_NODES = 3
MIN_ROLLOUT_SHARE = 0.1
"""Nodes that changed the same way, and their share of the kind, from which it is a rollout
and not a few that somebody tries something on."""
MAX_COUNTER_SHARE = 0.25
"""Changes away from a version, per change to it, with which it is still rolled out: what
jobs switch to and fro is not."""
STALE_S = 7 * DAY_S
"""Facts count this long: a nightly sweep has had seven turns by then."""
MIN_NODES_PER_VALUE = 2
"""If nodes of one kind have more values than one for each two of them, it is each node's own."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """The last facts of a node, and what has changed on it."""

    node: str
    facts: Mapping[str, str]
    changes: tuple[FactChange, ...] = ()
    """At most one of each name: the last."""
    seen_at: float = 0.0
    """When it reported anything last."""
    in_service: bool = True


class Deviation(Struct, frozen=True, kw_only=True):
    """Nodes that have *value*, where *count* of *total* nodes of its kind have *majority*."""

    name: str
    value: str
    majority: str
    count: int
    total: int
    nodes: tuple[str, ...]
    uncounted: tuple[str, ...] = ()
    """Those of *nodes* that are out of service, or were silent lately."""
    since: UtcTime | None = None
    """When the last of them changed, if it did so lately."""


class Rollout(Struct, frozen=True, kw_only=True):
    """A change that goes over the nodes: *count* of *total* nodes of a kind have *after*."""

    name: str
    before: tuple[str, ...]
    after: str
    count: int
    total: int
    began: UtcTime | None
    """When the first node changed."""
    last: UtcTime | None
    """When the last one did."""
    behind: tuple[str, ...] = ()
    """The nodes that still have what was before."""
    uncounted: tuple[str, ...] = ()
    """Those of them that are out of service, or were silent lately."""


class Split(Struct, frozen=True, kw_only=True):
    """Values of which none has a majority of *total* nodes, the most frequent first."""

    name: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    """Each with its nodes."""
    total: int


class Drift(Struct, frozen=True, kw_only=True):
    """How the nodes of a fleet differ from their peers."""

    rollouts: tuple[Rollout, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    splits: tuple[Split, ...] = ()
    uncompared: tuple[str, ...] = ()
    """Nodes with fewer than two others of their kind."""


def gather_node_facts(
    records: Iterable[ReportedFacts], out_of_service: Collection[str] = ()
) -> list[NodeFacts]:
    """Gather the *records* of the sources, oldest first, node by node."""
    by_node: dict[str, dict[str, list[ReportedFacts]]] = {}
    for record in records:
        by_node.setdefault(record.node, {}).setdefault(record.source, []).append(record)
    merged: dict[tuple[int, ...], Mapping[str, str]] = {}
    gathered: list[NodeFacts] = []
    for node, sources in by_node.items():
        newest = sorted((rows[-1] for rows in sources.values()), key=lambda row: row.last)
        # Its BMC may go on telling of a node that is down.
        latest = sources[PARTS_SOURCE][-1].last if PARTS_SOURCE in sources else newest[-1].last
        fresh = [row.facts for row in newest if row.last >= latest - STALE_S]
        # Nodes of one image share their facts, and so what is made of it.
        key = tuple(map(id, fresh))
        if key not in merged:
            merged[key] = {name: value for facts in fresh for name, value in facts.items()}
        changes = [change for rows in sources.values() for change in list_changes(rows)]
        changes.sort(key=lambda change: change.when)
        gathered.append(
            NodeFacts(
                node=node,
                facts=merged[key],
                changes=tuple({change.name: change for change in changes}.values()),
                seen_at=latest,
                in_service=node not in out_of_service,
            )
        )
    return gathered


def compare_nodes(nodes: Iterable[NodeFacts], now: float) -> Drift:
    """Compare *nodes* with their peers, at the time *now* in s since 1970."""
    kinds: dict[tuple[str, ...], list[NodeFacts]] = {}
    for node in sorted(nodes, key=lambda facts: facts.node):
        kinds.setdefault(tuple(node.facts.get(name, "") for name in KIND_FACTS), []).append(node)
    unknown = kinds.pop(("",) * len(KIND_FACTS), [])  # as one of which only its BMC tells
    drift = Drift(uncompared=tuple(node.node for node in unknown))
    for like in kinds.values():
        within = _compare_like(like, now)
        drift = Drift(
            rollouts=(*drift.rollouts, *within.rollouts),
            deviations=(*drift.deviations, *within.deviations),
            splits=(*drift.splits, *within.splits),
            uncompared=(*drift.uncompared, *within.uncompared),
        )
    return drift


class _Value(Struct):
    """A value of one fact, and who has it."""

    counted: list[str]
    uncounted: list[str]


def _compare_like(nodes: Sequence[NodeFacts], now: float) -> Drift:
    counted = {n.node for n in nodes if n.in_service and n.seen_at >= now - STALE_S}
    if len(counted) < MIN_NODES:
        return Drift(uncompared=tuple(n.node for n in nodes))
    rollouts: list[Rollout] = []
    deviations: list[Deviation] = []
    splits: list[Split] = []
    changes: dict[str, list[tuple[str, FactChange]]] = {}
    for node in nodes:
        for change in node.changes:
            if change.when >= now - ROLLOUT_WINDOW_S:
                changes.setdefault(change.name, []).append((node.node, change))
    for name, values in _group_by_value(nodes, counted).items():
        total = sum(len(value.counted) for value in values.values())
        moves = changes.get(name, [])
        if total < MIN_NODES or (len(values) == 1 and not moves):  # as nearly all are
            continue
        usual = next((t for t, v in values.items() if len(v.counted) >= MAJORITY * total), None)
        rollout = _find_rollout(name, values, [m for m in moves if m[0] in counted], total)
        if rollout is not None:
            rollouts.append(rollout)
            usual = rollout.after
        elif usual is None:
            splits += _describe_split(name, values, total)
        if usual is not None:
            others = set(rollout.behind) if rollout else set[str]()
            deviations += _list_deviations(
                name, values, usual, total=total, behind=others, moves=dict(moves)
            )
    deviations.sort(key=lambda deviation: deviation.nodes)
    return Drift(rollouts=tuple(rollouts), deviations=tuple(deviations), splits=tuple(splits))


def _group_by_value(
    nodes: Iterable[NodeFacts], counted: Collection[str]
) -> dict[str, dict[str, _Value]]:
    sharing: dict[int, tuple[Mapping[str, str], list[str]]] = {}
    for node in nodes:
        sharing.setdefault(id(node.facts), (node.facts, []))[1].append(node.node)
    by_fact: dict[str, dict[str, _Value]] = {}
    for facts, names in sharing.values():
        inside = [name for name in names if name in counted]
        outside = [name for name in names if name not in counted]
        for fact, text in facts.items():
            if fact not in KIND_FACTS and fact not in PLACE_FACTS:
                value = by_fact.setdefault(fact, {}).setdefault(text, _Value([], []))
                value.counted += inside
                value.uncounted += outside
    for values in by_fact.values():
        for value in values.values():  # in parts, from each set of facts that has it
            value.counted.sort()
            value.uncounted.sort()
    return by_fact


def _find_rollout(
    name: str,
    values: Mapping[str, _Value],
    moves: Sequence[tuple[str, FactChange]],
    total: int,
) -> Rollout | None:
    """Find the value that most nodes changed to, if they are many and few changed from it."""
    changes = [change for _, change in moves]
    arrivals = Counter(change.after for change in changes)
    departures = Counter(change.before for change in changes)
    needed = max(MIN_ROLLOUT_NODES, MIN_ROLLOUT_SHARE * total)
    for after, arrived in arrivals.most_common():
        if arrived < needed or departures[after] > MAX_COUNTER_SHARE * arrived:
            continue
        ours = [change for change in changes if change.after == after]
        before = _list_earlier_values(after, changes)
        behind = [values[text] for text in sorted(before) if text in values]
        uncounted = [node for value in behind for node in value.uncounted]
        return Rollout(
            name=name,
            before=tuple(sorted({change.before for change in ours})),
            after=after,
            count=len(values[after].counted),
            total=total,
            began=convert_time(min(change.when for change in ours)),
            last=convert_time(max(change.when for change in ours)),
            behind=(*(node for value in behind for node in value.counted), *uncounted),
            uncounted=tuple(uncounted),
        )
    return None


def _list_earlier_values(after: str, changes: Iterable[FactChange]) -> set[str]:
    """List the values from which nodes came to *after*, in one step or in several."""
    steps = {(change.before, change.after) for change in changes}
    earlier, ahead = set[str](), {after}
    while ahead:
        earlier |= ahead
        ahead = {old for old, new in steps if new in ahead} - earlier
    return earlier - {after}


def _list_deviations(
    name: str,
    values: Mapping[str, _Value],
    usual: str,
    *,
    total: int,
    behind: Collection[str],
    moves: Mapping[str, FactChange],
) -> Iterator[Deviation]:
    for text, value in values.items():
        nodes = (*value.counted, *value.uncounted)
        if text == usual or not nodes or nodes[0] in behind:
            continue
        yield Deviation(
            name=name,
            value=text,
            majority=usual,
            count=len(values[usual].counted),
            total=total,
            nodes=nodes,
            uncounted=tuple(value.uncounted),
            since=convert_time(
                max((moves[node].when for node in nodes if node in moves), default=0.0)
            ),
        )


def _describe_split(name: str, values: Mapping[str, _Value], total: int) -> Iterator[Split]:
    counted = {text: tuple(value.counted) for text, value in values.items() if value.counted}
    if len(counted) * MIN_NODES_PER_VALUE <= total:
        ordered = sorted(counted.items(), key=lambda pair: -len(pair[1]))
        yield Split(name=name, values=tuple(ordered), total=total)


def keep_nodes(drift: Drift, names: Collection[str]) -> Drift:
    """Keep of *drift* what is about the nodes *names*; the counts stay those of the fleet."""

    def choose(nodes: Iterable[str]) -> tuple[str, ...]:
        return tuple(node for node in nodes if node in names)

    def narrow(deviation: Deviation) -> Deviation:
        return replace(
            deviation,
            nodes=choose(deviation.nodes),
            uncounted=choose(deviation.uncounted),
        )

    return Drift(
        rollouts=tuple(
            replace(rollout, behind=choose(rollout.behind), uncounted=choose(rollout.uncounted))
            for rollout in drift.rollouts
            if choose(rollout.behind)
        ),
        deviations=tuple(narrow(rollout) for rollout in drift.deviations if choose(rollout.nodes)),
        splits=tuple(
            rollout for rollout in drift.splits if any(choose(nodes) for _, nodes in rollout.values)
        ),
        uncompared=choose(drift.uncompared),
    )


def name_rollouts(nodes: Iterable[NodeFacts], drift: Drift) -> dict[str, dict[float, list[str]]]:
    """Name the rollouts of *drift* by the node that they changed, and by when that was seen."""
    known = {(rollout.name, rollout.after) for rollout in drift.rollouts}
    names: dict[str, dict[float, list[str]]] = {}
    for node in nodes:
        for change in node.changes:
            if (change.name, change.after) in known:
                moments = names.setdefault(node.node, {})
                moments.setdefault(change.when, []).append(f"{change.name} {change.after}")
    return names


MAX_SPLIT_VALUES = 3
"""Values that are listed of a fact without a majority."""
MAX_LINE_FACTS = 8
"""Facts that are listed of the same nodes: after a reset of a BIOS there may be hundreds."""
LONG_CHARACTERS = 60
"""The longest value shown whole; of longer ones only the words that differ are shown."""


class DriftLine(Struct, frozen=True):
    """One thing to say of versions: about which nodes, and what."""

    kind: str
    """rollout, differs or no majority."""
    hosts: str
    """The nodes as a host list; empty if it is about all that are alike."""
    text: str


def list_drift_lines(drift: Drift, now: float) -> list[DriftLine]:
    """Say how the nodes differ: rollouts first, then nodes with all in which they differ."""
    return [
        *(DriftLine("rollout", "", describe_rollout(rollout, now)) for rollout in drift.rollouts),
        *_list_deviation_lines(drift.deviations, now),
        *(DriftLine("no majority", "", describe_split(split)) for split in drift.splits),
    ]


def summarize_drift(drift: Drift) -> str:
    """Count rollouts and the nodes that differ; empty if there is neither."""
    odd = {node for deviation in drift.deviations for node in deviation.nodes}
    counts = (
        (len(drift.rollouts), "rollout", "rollouts"),
        (len(odd), "node differs from its peers", "nodes differ from their peers"),
        (len(drift.splits), "without a majority", "without a majority"),
    )
    return ", ".join(
        f"{count} {singular if count == 1 else plural}"
        for count, singular, plural in counts
        if count
    )


def describe_rollout(rollout: Rollout, now: float) -> str:
    """Say what changes to what, how far it is, and which nodes are behind."""
    done = (
        f"all {rollout.total} nodes"
        if rollout.count == rollout.total
        else f"{rollout.count} of {rollout.total} nodes"
    )
    first, last = format_time_since(rollout.began, now), format_time_since(rollout.last, now)
    when = f"{first} ago" if first == last else f"{first} to {last} ago"
    behind = (
        f"; not yet: {_name_nodes(rollout.behind, rollout.uncounted)}" if rollout.behind else ""
    )
    if _is_long(*rollout.before, rollout.after):
        change = f"{rollout.name} {_compare_words(rollout.after, rollout.before[0])}"
    else:
        change = f"{rollout.name} from {' or '.join(rollout.before)} to {rollout.after}"
    return f"{change}: {done}, {when}{behind}"


def describe_split(split: Split) -> str:
    """Say which values there are, and on how many nodes."""
    shown = [
        f"{shorten(value, LONG_CHARACTERS)} on {len(nodes)} ({fold_names(nodes)})"
        for value, nodes in split.values[:MAX_SPLIT_VALUES]
    ]
    left = len(split.values) - MAX_SPLIT_VALUES
    more = f" and {left} more" if left > 0 else ""
    return f"{split.name}: {', '.join(shown)}{more}"


def _list_deviation_lines(deviations: Iterable[Deviation], now: float) -> Iterator[DriftLine]:
    groups: dict[tuple[str, ...], list[Deviation]] = {}
    for deviation in deviations:
        groups.setdefault(deviation.nodes, []).append(deviation)
    for nodes in sorted(groups, key=lambda nodes: make_natural_key(nodes[0])):
        alike = groups[nodes]
        hosts = _name_nodes(nodes, alike[0].uncounted)
        descriptions = [describe_deviation(deviation, now) for deviation in alike[:MAX_LINE_FACTS]]
        if (left := len(alike) - MAX_LINE_FACTS) > 0:
            descriptions.append(f"and {left} more: hpcverify nodes --json")
        yield DriftLine("differs", hosts, "; ".join(descriptions))


def describe_deviation(deviation: Deviation, now: float) -> str:
    """Say what its nodes have, and what how many others have; of long values, which words."""
    since = f", changed {format_time_since(deviation.since, now)} ago" if deviation.since else ""
    others = f"{deviation.count} of {deviation.total}"
    if _is_long(deviation.value, deviation.majority):
        words = _compare_words(deviation.value, deviation.majority)
        return f"{deviation.name} {words}, unlike {others}{since}"
    return f"{deviation.name} {deviation.value}, not {deviation.majority} as on {others}{since}"


def _is_long(*values: str) -> bool:
    return max(map(len, values)) > LONG_CHARACTERS


def _compare_words(value: str, other: str) -> str:
    here, there = value.split(), other.split()
    more = " ".join(word for word in here if word not in there)
    less = " ".join(word for word in there if word not in here)
    more, less = shorten(more), shorten(less)
    differences = filter(None, (f"with {more}" if more else "", f"without {less}" if less else ""))
    return " and ".join(differences) or "in another order"


def _name_nodes(nodes: Sequence[str], uncounted: Sequence[str]) -> str:
    names = fold_names(nodes)
    if not uncounted:
        return names
    absent = "" if len(uncounted) == len(nodes) else f"{fold_names(uncounted)} "
    return f"{names} ({absent}out of service or not heard of lately)"
