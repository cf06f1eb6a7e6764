"""
Judge each night of the fleet once, when it is over: by peers, and by the past of each part.

A single night names nobody. What stands out is remembered, and is reported once the next night on
which that node ran shows it again; a night on which it ran and did not stand out clears it.
A change in a part's own past needs three runs anyway.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from math import isfinite
from statistics import median

from msgspec.structs import replace

from hpcverify.errors import StoreError
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.external_run import build_failed_run
from hpcverify.history.columns import NIGHT_BEGINS, find_night
from hpcverify.history.duck import is_installed
from hpcverify.history.files import MIN_NEWEST_NIGHTS, list_nights
from hpcverify.history.reader import Choice
from hpcverify.history.screen import MAX_NODE_METRICS
from hpcverify.history.values import MAX_TIMES_BETTER
from hpcverify.insight.comparison import JudgedPeers, judge_past, judge_peers, make_locator
from hpcverify.insight.judgement import (
    FleetJudgement,
    JudgedChange,
    JudgedMetric,
    JudgedOutlier,
    describe_outlier,
    put_judgement_aside,
    read_judgement,
    write_judgement,
)
from hpcverify.insight.node_names import fold_names
from hpcverify.insight.repeats import (
    describe_repeat,
    is_of_the_same,
    list_repeats_by_chance,
    make_key,
)
from hpcverify.model import PEERS_SUITE, Finding, Run, Verdict
from hpcverify.peers.distribution import count_values
from hpcverify.peers.document import describe_least
from hpcverify.peers.fleet import PeerOutlier
from hpcverify.peers.values import MetricName, PartValue
from hpcverify.summary.part_names import fold_labels
from hpcverify.trends.fleet import (
    SAME_DAYS,
    STEP,
    PartChange,
    TrendJudgement,
    describe_shared,
    format_crossing,
)
from hpcverify.trends.marks import MUCH_MORE
from hpcverify.units import format_count

PEER_NIGHTS = 7
"""In a week, a sweep comes to every node that is ever idle."""
PAST_NIGHTS = 90
KEPT = timedelta(days=14)
"""For how long a node that does not run stays named."""
MIN_NIGHTS = 2
"""Nights on which a value stands out before anything is said."""
MIN_CROWD = 4
"""So many nodes that step alike have something in common: they are one line."""
MAX_NOTES = 50
"""Metrics of which it is noted that they were not judged in full."""
CROWD_ADVICE = "look for what they share, such as a switch or a setting"
OUTLIER_CODE = "outlier"
EPOCH = date(1970, 1, 1)


def judge_finished_night(controller: Controller) -> None:
    """Judge the last night that is over, if that was not done; what it costs is in its room."""
    night = find_night(datetime.fromtimestamp(controller.clock(), UTC)) - timedelta(days=1)
    with controller.run_convenience(f"judgement of the night of {night}", of="nightly judgement"):
        before = _read_last_judgement(controller, night)
        if before and before.night == night:
            return
        if is_installed() and Choice(since=night, until=night).list_paths(controller.state):
            judged = judge_night(controller, night, before)
            write_judgement(controller.state, _accuse(controller, judged))


def _read_last_judgement(controller: Controller, night: date) -> FleetJudgement | None:
    """
    Read the judgement before that of *night*; a damaged one is put aside, and nights count anew.

    What was said while the clock was ahead is forgotten.

    Raises:
        StoreError: so many nights after *night* were judged that the clock is behind now.

    """
    try:
        before = read_judgement(controller.state)
    except StoreError as exc:
        aside = put_judgement_aside(controller.state)
        controller.say(f"{exc}; it is now {aside}, and an outlier is named after two nights")
        return None
    if before is None or before.night <= night:
        return before
    later = [one for one in list_nights(controller.state) if night < one <= before.night]
    if len(later) >= MIN_NEWEST_NIGHTS:
        raise StoreError(
            f"{format_count(len(later), 'later night')} were judged, up to {before.night}: check "
            "the clock; if it is right, it was ahead then: remove the folders of those nights"
        )
    return replace(
        before,
        night=night - timedelta(days=1),
        outliers=tuple(one for one in before.outliers if one.last <= night),
        unconfirmed=tuple(one for one in before.unconfirmed if one.last <= night),
    )


def judge_night(
    controller: Controller, night: date, before: FleetJudgement | None = None
) -> FleetJudgement:
    """
    Judge *night*, and follow up what was said *before*.

    Raises:
        ConfigError: the site file names a switch of no node.
        StoreError: the history is damaged.

    """
    locate = make_locator(controller.site, controller.ledger)
    week = Choice(since=night - timedelta(days=PEER_NIGHTS - 1), until=night)
    peers = judge_peers(controller.state, week, controller.site, locate, newest=True)
    quarter = Choice(since=night - timedelta(days=PAST_NIGHTS - 1), until=night)
    past = judge_past(controller.state, quarter, controller.site)
    followed = follow_up(list_outliers(peers), before, peers.last_nights, night)
    told = (*before.outliers, *before.unconfirmed) if before else ()
    known = {make_key(one) for one in before.outliers} if before else set()
    parts = {str(entry.name): entry.parts for entry in peers.document.metrics}
    by_chance = list_repeats_by_chance(followed, told, parts)
    by_chance = [one for one in by_chance if make_key(one) not in known]
    said = [one for one in followed if one.nights >= MIN_NIGHTS and one not in by_chance]
    return FleetJudgement(
        night=night,
        outliers=tuple(said),
        unconfirmed=tuple(one for one in followed if one not in said),
        changes=tuple(list_changes(past)),
        notes=(*list_notes(peers, past), *map(describe_repeat, by_chance)),
        metrics=tuple(list_metrics(peers)),
        screened=peers.document.screened,
        least=describe_least(peers.document.least),
    )


def list_notes(peers: JudgedPeers, past: Mapping[MetricName, TrendJudgement]) -> Iterator[str]:
    """
    Say what many parts have in common, and what was not judged, or not in full.

    Metrics of most nodes come first: what one node claims does not hide them.
    """
    for name, judged in past.items():
        yield from (f"{name}: {describe_shared(one)}" for one in judged.shared)
    for node, metrics in peers.left_out.items():
        yield f"{node} is not judged: it has {metrics} metrics, more than {MAX_NODE_METRICS}"
    noted = [entry for entry in peers.document.metrics if entry.note]
    noted.sort(key=lambda entry: -entry.nodes)
    told = [f"{entry.name}: {entry.note}" for entry in noted]
    told += [f"{name}: not judged" for name in peers.document.unjudged]
    told += [
        f"{name}: {fold_names(nodes)} not compared: no part is more than {MAX_TIMES_BETTER} times "
        "better than most"
        for name, nodes in peers.fleet.absurd.items()
    ]
    yield from told[:MAX_NOTES]
    if len(told) > MAX_NOTES:
        yield f"and {format_count(len(told) - MAX_NOTES, 'other metric')} not judged in full"


def list_metrics(peers: JudgedPeers) -> Iterator[JudgedMetric]:
    """List the metrics that were judged in full, with how their values are distributed."""
    for entry in peers.document.metrics:
        values = [part.value for part in peers.fleet.values[entry.name]]
        if entry.median is not None and all(map(isfinite, values)):
            yield JudgedMetric(
                name=str(entry.name),
                unit=entry.name.unit,
                worse=entry.worse,
                parts=entry.parts,
                nodes=entry.nodes,
                median=entry.median,
                spread=entry.spread,
                distribution=count_values(values),
            )


def list_outliers(peers: JudgedPeers) -> Iterator[JudgedOutlier]:
    """List who stands out, each as if for the first time."""
    for entry in peers.document.metrics:
        parts = {part.name: part for part in peers.fleet.values[entry.name]}
        suite = peers.fleet.suites[entry.name]
        for outlier in entry.outliers:
            yield _make_outlier(outlier, entry.name, suite, parts)


def _make_outlier(
    outlier: PeerOutlier, name: MetricName, suite: str, parts: Mapping[str, PartValue]
) -> JudgedOutlier:
    members = [parts[member] for member in outlier.members]
    last = max(find_night(datetime.fromtimestamp(part.times[-1], UTC)) for part in members)
    return JudgedOutlier(
        level=outlier.level,
        name=outlier.name,
        node=outlier.node,
        nodes=tuple(dict.fromkeys(part.node for part in members)),
        suite=suite,
        metric=str(name),
        verdict=outlier.verdict,
        distance=outlier.distance,
        cause=outlier.cause,
        since=last,
        last=last,
    )


def follow_up(
    found: Iterable[JudgedOutlier],
    before: FleetJudgement | None,
    last_nights: Mapping[tuple[str, str], date],
    night: date,
) -> list[JudgedOutlier]:
    """
    Follow up who stood out *before*: shown again, cleared, or not run since.

    *last_nights* are the last nights of each suite on each node.
    """
    told = (*before.outliers, *before.unconfirmed) if before else ()
    tonight = list(found)
    named = {make_key(one) for one in tonight}
    ended = [old for old in told if make_key(old) not in named]
    followed = [_follow_one(one, told, ended) for one in tonight]
    for old in ended:
        # The file may have one without nodes: nothing shows whether that ran again.
        ran = (last_nights.get((node, old.suite), date.min) for node in old.nodes)
        newest = max(ran, default=date.min)
        goes_on = any(is_of_the_same(one, old) for one in tonight)
        if newest <= old.last and night - old.last <= KEPT and not goes_on:
            followed.append(old)
    followed.sort(key=lambda one: (-one.distance, one.name))
    return sorted(followed, key=lambda one: one.verdict, reverse=True)


def _follow_one(
    found: JudgedOutlier, told: Iterable[JudgedOutlier], ended: Iterable[JudgedOutlier]
) -> JudgedOutlier:
    """
    Follow up one that was *found*, which may have been *told* under another name.

    A node near the floor is named one night, and the next night those of its parts that are
    beyond it. What such a name says is taken over if it *ended*, being found no more.
    """
    key = make_key(found)
    same = next((old for old in told if make_key(old) == key), None)
    if same and found.last <= same.last:
        return same
    others = [old for old in ended if is_of_the_same(found, old)]
    if not found.node and 2 * len({old.node for old in others}) <= len(found.nodes):
        others = []  # a few of its nodes say nothing of a place
    olds = [*([same] if same else []), *others]
    if not olds:
        return found
    longest = max(olds, key=lambda old: old.nights)
    return replace(
        found,
        since=longest.since,
        nights=longest.nights + (found.last > longest.last),
        accused=any(old.accused for old in olds),
    )


def list_changes(past: Mapping[MetricName, TrendJudgement]) -> list[JudgedChange]:
    """List the changes to the worse, the largest first; those of parts that go together are one."""
    found = (
        change for name, judged in past.items() for change in _join_changes(name, judged.changes)
    )
    return sorted(found, key=lambda change: -change.size)


def _join_changes(name: MetricName, changes: Iterable[PartChange]) -> Iterator[JudgedChange]:
    """Join parts of one node, or of many, that changed alike."""
    worse = [change for change in changes if change.size > 0]
    crowds = find_crowds(worse)
    yield from (_make_crowd_change(name, crowd) for crowd in crowds)
    crowded = {id(change) for crowd in crowds for change in crowd}
    by_node: defaultdict[tuple[str, str], list[PartChange]] = defaultdict(list)
    for change in worse:
        if id(change) not in crowded:
            by_node[change.node, change.kind].append(change)
    for some in by_node.values():
        first = min(change.day for change in some)
        alike = [change for change in some if change.day - first <= SAME_DAYS]
        rest = [change for change in some if change not in alike]
        yield from (_make_change(name, group) for group in (alike, rest) if group)


def find_crowds(changes: Iterable[PartChange]) -> list[list[PartChange]]:
    """Find the steps that parts of `MIN_CROWD` nodes or more made alike at about the same time."""
    rest = [one for one in changes if one.kind == STEP]
    crowds = []
    while rest:
        around = ([o for o in rest if abs(o.day - one.day) <= SAME_DAYS] for one in rest)
        near = max(around, key=lambda some: len({one.node for one in some}))
        usual = median(one.size for one in near)
        crowd = [one for one in near if usual / MUCH_MORE <= one.size <= usual * MUCH_MORE]
        if len({one.node for one in crowd}) < MIN_CROWD:
            break
        crowds.append(crowd)
        inside = {id(one) for one in crowd}
        rest = [one for one in rest if id(one) not in inside]
    return crowds


def _make_crowd_change(name: MetricName, crowd: list[PartChange]) -> JudgedChange:
    """Make one change of *crowd*, with the figures of its middle part."""
    typical = sorted(crowd, key=lambda one: one.size)[len(crowd) // 2]
    said, count = Counter(one.why for one in crowd).most_common(1)[0]
    nodes = tuple(sorted({one.node for one in crowd}))
    return replace(
        _make_change(name, [typical]),
        node="",
        nodes=nodes,
        part=format_count(len(crowd), "part"),
        why=said if said and count > len(crowd) / 2 else CROWD_ADVICE,
    )


def _make_change(name: MetricName, changes: list[PartChange]) -> JudgedChange:
    worst = max(changes, key=lambda change: change.size)
    crossing = format_crossing(worst.crossing) if worst.crossing else ""
    return JudgedChange(
        node=worst.node,
        part=fold_labels(sorted(change.part for change in changes)),
        metric=str(name),
        verdict=worst.verdict,
        kind=worst.kind,
        size=worst.size,
        before=worst.before,
        after=worst.after,
        unit=name.unit,
        day=EPOCH + timedelta(days=int(worst.day)),
        why="; ".join(filter(None, [crossing, worst.why])),
    )


def _accuse(controller: Controller, judgement: FleetJudgement) -> FleetJudgement:
    """
    Leave a run of each node that failed by its peers, once: it becomes a suspect in service.

    One whose run cannot be left is accused the next night.
    """
    told: list[JudgedOutlier] = []
    for one in judgement.outliers:
        accused = one.accused
        if _is_to_be_accused(one):
            mark = controller.ledger.make_mark(*make_key(one), str(one.since))
            run = build_accusing_run(one, mark, controller.clock())
            accused = controller.ledger.is_judged(run.id) or controller.leave_run(run)
        told.append(replace(one, accused=accused))
    return replace(judgement, outliers=tuple(told))


def _is_to_be_accused(outlier: JudgedOutlier) -> bool:
    """Whether it failed for the first time; of a rack or a driver no node is accused."""
    return outlier.verdict is Verdict.FAIL and bool(outlier.node) and not outlier.accused


def build_accusing_run(outlier: JudgedOutlier, mark: str, now: float) -> Run:
    """Build the run that says what its peers say of a node; by its *mark*, it counts once."""
    began = datetime(outlier.last.year, outlier.last.month, outlier.last.day, tzinfo=UTC)
    run = f"{began + NIGHT_BEGINS:%Y%m%d-%H%M%S}-{mark}"
    finding = Finding(OUTLIER_CODE, "node", describe_outlier(outlier))
    return build_failed_run(
        run, outlier.node, PEERS_SUITE, datetime.fromtimestamp(now, UTC), finding
    )
