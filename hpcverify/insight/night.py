"""
Judge each night of the fleet once, when it is over: by peers, and by the past of each part.

A single night names nobody. What stands out is remembered until the node has run ten times more,
and is reported once so many of its last ten runs show it that chance does not explain them: two,
where hardly anything else comes and goes. A change in a part's own past needs three runs anyway.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median

from msgspec.structs import asdict, replace

from hpcverify.errors import StoreError
from hpcverify.events.event import EventKind, StateChange
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.evidence import FaultReport, build_fault
from hpcverify.fleet.states import DAY_S
from hpcverify.history.columns import NIGHT_BEGINS, find_night
from hpcverify.history.database import MIN_NEWEST_NIGHTS, find_database, list_nights
from hpcverify.history.duck import is_installed
from hpcverify.history.reader import Choice, has_measurements
from hpcverify.history.screen import MAX_NODE_METRICS, PeerMetric, read_misdated_runs
from hpcverify.history.values import MAX_TIMES_BETTER
from hpcverify.insight.comparison import JudgedPeers, judge_past, judge_peers, make_locator
from hpcverify.insight.drift import describe_rollout
from hpcverify.insight.judgement import (
    FOLLOWED_RUNS,
    MAX_LEVELS,
    NAMED_NODES,
    FleetJudgement,
    JudgedOutlier,
    NightCoverage,
    describe_outlier,
    name_judged,
    put_judgement_aside,
    read_judgement,
    write_judgement,
)
from hpcverify.insight.node_names import fold_names
from hpcverify.insight.overview import read_overview
from hpcverify.model import Source, Verdict
from hpcverify.peers.distribution import Distribution, count_values
from hpcverify.peers.document import describe_least, describe_too_few
from hpcverify.peers.fleet import MetricJudgement
from hpcverify.peers.rule import FALSE_SHARE, MIN_COMPARED
from hpcverify.peers.screen import ListSummary
from hpcverify.peers.values import MetricName
from hpcverify.stats import CONFIDENCE, compute_binomial_tail
from hpcverify.summary.part_names import fold_labels
from hpcverify.trends.fleet import (
    PartChange,
    TrendJudgement,
    describe_shared,
    format_crossing,
)
from hpcverify.units import format_count

PEER_NIGHTS = 7
"""A sweep comes to every node that is ever idle within a week."""
PAST_NIGHTS = 90
OUTLIER_RETENTION = timedelta(days=14)
"""A node that does not run stays named this long; that it stood out is kept until it runs."""
MIN_NIGHTS = 2
"""Nights on which a value stands out before anything is said."""
SAME_DAYS, MUCH_MORE = 2.0, 2.0
"""Parts of a crowd changed within so many days, and none by so many times as much as most."""
MIN_CROWD_NODES = 4
"""Nodes that step alike have something in common: they are one line."""
MAX_NOTES = 50
"""Metrics that are noted as not judged in full."""
SEPARATOR = "\t"
"""Between the node of what stands out and its name; no name has one."""
CROWD_ADVICE = "look for what they share, such as a switch or a setting"


def judge_finished_night(controller: Controller) -> None:
    """Judge the last night that is over, if that was not done; what it costs is in its room."""
    night = find_night(datetime.fromtimestamp(controller.clock(), UTC)) - timedelta(days=1)
    with controller.run_convenience(f"judgement of the night of {night}", of="nightly judgement"):
        before = _read_last_judgement(controller, night)
        if before and before.night == night:
            return
        if is_installed() and has_measurements(controller.state, Choice(since=night, until=night)):
            judged = judge_night(controller, night, before)
            judged = _report_failed(controller, judged)
            write_judgement(controller.state, judged)
            record_night(controller, judged)


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
        controller.say(f"{exc}; it is now {aside}, and an outlier is named after two runs")
        return None
    if before is None:
        return None
    newest = before.night
    if newest > night:
        later = [other for other in list_nights(controller.state) if night < other <= newest]
        if len(later) >= MIN_NEWEST_NIGHTS:
            raise StoreError(
                f"{format_count(len(later), 'later night')} were judged, up to {newest}: check "
                "the clock; if it is right, it was ahead then: move "
                f"{find_database(controller.state)} away, and hpcverify history --rebuild"
            )
        newest = night - timedelta(days=1)
    return replace(
        before,
        night=newest,
        outliers=tuple(outlier for outlier in before.outliers if outlier.last <= night),
        unconfirmed=tuple(outlier for outlier in before.unconfirmed if outlier.last <= night),
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
    followed = follow_up(list_outliers(peers), before, peers.last_nights)
    counts = {str(entry.name): (entry.parts, entry.nodes) for entry in peers.document.metrics}
    metrics = len(counts) + peers.document.screened
    by_chance = list_by_chance(followed, before, counts, metrics)
    confirmed = choose_named(followed, by_chance, night)
    return FleetJudgement(
        night=night,
        coverage=read_coverage(controller, peers, night),
        outliers=tuple(confirmed),
        unconfirmed=tuple(outlier for outlier in followed if outlier not in confirmed),
        changes=tuple(list_changes(past)),
        notes=(
            *list_notes(peers, past),
            *describe_by_chance(by_chance),
            *list_wrong_clocks(controller.state, night),
        ),
        metrics=tuple(list_metrics(peers)),
        screened=peers.document.screened,
        least=describe_least(peers.document.least),
        levels=tuple(list_levels(peers, controller.site.fleet.suite)),
    )


def read_coverage(controller: Controller, peers: JudgedPeers, night: date) -> NightCoverage:
    """Read how many nodes of the fleet were compared, and how long ago the others ran."""
    nodes = controller.ledger.list_nodes()
    compared, alone = peers.fleet.compared, peers.fleet.alone
    others = nodes.keys() - compared - alone - peers.left_out.keys()
    runs = {node: nodes[node].last_run_at for node in others}
    last = (find_night(datetime.fromtimestamp(began, UTC)) for began in runs.values() if began)
    ages = [(night - of).days for of in last]
    never = sum(not began for began in runs.values())
    old = [age for age in ages if age >= PEER_NIGHTS]
    clauses = (
        f"{len(alone)} have fewer than {MIN_COMPARED} parts like theirs" if alone else "",
        f"{len(old)} last ran {_format_span(old)} days ago" if old else "",
        f"{len(ages) - len(old)} ran without a measurement" if len(ages) > len(old) else "",
        f"{never} never ran" if never else "",
        f"{len(peers.left_out)} claim too many metrics" if peers.left_out else "",
    )
    return NightCoverage(
        compared=len(compared),
        nodes=len(nodes.keys() | compared | alone),
        others=tuple(filter(None, clauses)),
    )


def list_wrong_clocks(state: Path, night: date) -> Iterator[str]:
    """Say whose runs of *night* bear a date that is days off: their clocks may be wrong."""
    runs = read_misdated_runs(state, Choice(since=night, until=night))
    for side, word in ((-1, "before"), (1, "after")):
        days = {run.node: round(abs(run.error) / DAY_S) for run in runs if run.error * side > 0}
        if days:
            yield (
                f"{fold_names(days)}: by the node's clock, runs began {_format_span(days.values())}"
                f" days {word} they arrived; they count for that night: check the clock"
            )


def _format_span(numbers: Collection[int]) -> str:
    return " to ".join(dict.fromkeys(map(str, (min(numbers), max(numbers)))))


def list_levels(peers: JudgedPeers, suite: str) -> list[tuple[PeerMetric, ListSummary]]:
    """List what the parts of the fleet reached in *suite*, in the metrics with most parts first."""
    summaries = [item for item in peers.fleet.summaries.items() if item[0].suite == suite]
    return sorted(summaries, key=lambda item: -item[1].peers)[:MAX_LEVELS]


def list_notes(peers: JudgedPeers, past: Mapping[MetricName, TrendJudgement]) -> Iterator[str]:
    """
    Say what many parts have in common, and what was not judged, or not in full.

    Metrics of most nodes come first: what one node claims does not hide them.
    """
    for name, judged in past.items():
        yield from (f"{name}: {describe_shared(shared)}" for shared in judged.shared)
    for node, metrics in peers.left_out.items():
        yield f"{node} is not judged: it has {metrics} metrics, more than {MAX_NODE_METRICS}"
    noted = [entry for entry in peers.document.metrics if entry.note]
    noted.sort(key=lambda entry: -entry.nodes)
    lines = [f"{entry.name}: {entry.note}" for entry in noted]
    lines += [f"{name}: not judged" for name in peers.document.unjudged]
    lines += filter(None, [describe_too_few(peers.document)])
    lines += [
        f"{name}: {fold_names(nodes)} not compared: no part is more than {MAX_TIMES_BETTER} times "
        "better than most"
        for name, nodes in peers.fleet.absurd.items()
    ]
    yield from lines[:MAX_NOTES]
    if len(lines) > MAX_NOTES:
        yield f"and {format_count(len(lines) - MAX_NOTES, 'other metric')} not judged in full"


def list_metrics(peers: JudgedPeers) -> Iterator[tuple[MetricJudgement, Distribution]]:
    """List the metrics that were judged in full, with how their values are distributed."""
    for entry in peers.document.metrics:
        values = [part.value for part in peers.fleet.values[entry.name]]
        if entry.median is not None and all(map(isfinite, values)):
            yield replace(entry, outliers=()), count_values(values)


def list_outliers(peers: JudgedPeers) -> Iterator[JudgedOutlier]:
    """List who stands out, each as if for the first time."""
    for entry in peers.document.metrics:
        parts = {part.name: part for part in peers.fleet.values[entry.name]}
        suite = peers.fleet.suites[entry.name]
        for outlier in entry.outliers:
            nodes = dict.fromkeys(parts[member].node for member in outlier.members)
            last = max(peers.last_nights[node, suite] for node in nodes)
            yield JudgedOutlier(
                **asdict(replace(outlier, members=())),
                nodes=tuple(nodes),
                suite=suite,
                metric=str(entry.name),
                since=last,
                last=last,
                distance_then=outlier.distance,
            )


def make_key(outlier: JudgedOutlier) -> tuple[str, str, str]:
    """Make what an outlier has in common with the same one on another night."""
    return outlier.level, outlier.name, outlier.metric


def is_of_the_same(outlier: JudgedOutlier, old: JudgedOutlier) -> bool:
    """Whether one is a node and the other one of its parts, or a place and one of its nodes."""
    if outlier.metric != old.metric or outlier.level == old.level:
        return False
    if outlier.node and old.node:
        return outlier.node == old.node
    return (outlier.node or old.node) in (old.nodes if outlier.node else outlier.nodes)


def follow_up(
    outliers: Iterable[JudgedOutlier],
    before: FleetJudgement | None,
    last_nights: Mapping[tuple[str, str], date],
) -> list[JudgedOutlier]:
    """
    Follow up who stood out *before*, run by run: what did not run stays as it was.

    *last_nights* are the last nights of each suite on each node.
    """
    earlier = (*before.outliers, *before.unconfirmed) if before else ()
    tonight = list(outliers)
    found = {make_key(outlier) for outlier in tonight}
    ended = [old for old in earlier if make_key(old) not in found]
    followed = [_follow_one(outlier, earlier, ended) for outlier in tonight]
    for old in ended:
        if any(is_of_the_same(outlier, old) for outlier in tonight):
            continue  # it goes on under another name
        # The file may have one without nodes: nothing shows whether that ran again.
        ran = (last_nights.get((node, old.suite), date.min) for node in old.nodes)
        newest = max(ran, default=date.min)
        if newest > old.last:
            old = replace(old, last=newest, shown=(*old.shown, False)[-FOLLOWED_RUNS:])  # noqa: PLW2901
        if any(old.shown):
            followed.append(old)
    followed.sort(key=lambda outlier: (-outlier.distance, outlier.name))
    return sorted(followed, key=lambda outlier: outlier.verdict, reverse=True)


def _follow_one(
    outlier: JudgedOutlier, earlier: Iterable[JudgedOutlier], ended: Iterable[JudgedOutlier]
) -> JudgedOutlier:
    """
    Follow up an *outlier*, which may be one of *earlier* nights under another name.

    A node near the floor is named one night, and the next night those of its parts that are
    beyond it. What such a name says is taken over if it *ended*, being found no more.
    """
    key = make_key(outlier)
    same = next((old for old in earlier if make_key(old) == key), None)
    if same and outlier.last <= same.last:
        return same
    others = [old for old in ended if is_of_the_same(outlier, old)]
    if not outlier.node and 2 * len({old.node for old in others}) <= len(outlier.nodes):
        others = []  # a few of its nodes say nothing of a place
    olds = [*([same] if same else []), *others]
    if not olds:
        return outlier
    longest = max(olds, key=lambda old: old.nights)
    again = (True,) if outlier.last > longest.last else ()
    return replace(
        outlier,
        since=longest.since,
        shown=(*longest.shown, *again)[-FOLLOWED_RUNS:],
        distance_then=longest.distance_then,
        reported=any(old.reported for old in olds),
    )


def choose_named(
    followed: Iterable[JudgedOutlier], by_chance: Collection[JudgedOutlier], night: date
) -> list[JudgedOutlier]:
    """Choose who is named in *night*: who stood out again lately, and has not run well since."""
    return [
        outlier
        for outlier in followed
        if outlier.nights >= MIN_NIGHTS
        and night - outlier.last <= OUTLIER_RETENTION
        and outlier not in by_chance
        and not is_cleared(outlier)
    ]


def is_cleared(outlier: JudgedOutlier) -> bool:
    """Whether its newest good runs in a row would be a surprise if it were as bad as before."""
    runs = "".join("x" if stood_out else "." for stood_out in outlier.shown)
    before = runs.rstrip(".")
    usual = before.count("x") / (len(before) + 1)
    return (1 - usual) ** (len(runs) - len(before)) <= 1 - CONFIDENCE


def list_by_chance(
    followed: Iterable[JudgedOutlier],
    before: FleetJudgement | None,
    counts: Mapping[str, tuple[int, int]],
    metrics: int,
) -> list[JudgedOutlier]:
    """
    List those *followed* who stood out several times as chance explains it, and were not named.

    Where a few runs of all are slow, others stand out each night, and some of them do so again.
    How often a run is slow show those that come and go: where parts break, they only come, and
    where they are mended, they only go. A metric in which others do not is as quiet as *metrics*
    are, of which there are so many: with each that is restless, chance has one more try, too.
    A part stands out by itself or with its node, and a node as a whole or by any of its parts.
    *counts* are those of parts and nodes, by the metric.
    """
    named = {make_key(outlier) for outlier in before.outliers} if before else set()
    by_metric: defaultdict[str, list[JudgedOutlier]] = defaultdict(list)
    for outlier in followed:
        by_metric[outlier.metric].append(outlier)
    changes = {
        (metric, of_parts): _count_changes(o for o in found if (o.level == "part") == of_parts)
        for metric, found in by_metric.items()
        for of_parts in (True, False)
    }
    restless = len({metric for (metric, _), of in changes.items() if of["came"] and of["went"]})
    unseen = restless / max(1, metrics)
    allowed = FALSE_SHARE / FOLLOWED_RUNS / max(1, restless)
    by_chance: list[JudgedOutlier] = []
    for metric, found in by_metric.items():
        parts, nodes = counts.get(metric, (len(found), len(found)))
        runs = max(len(outlier.shown) for outlier in found)
        chances: dict[int, float] = {}
        for i, outlier in enumerate(found):
            if outlier.nights >= MIN_NIGHTS:
                is_part, own = outlier.level == "part", _count_changes([outlier])
                peers = parts if is_part else nodes
                rate = _find_rate(changes[metric, is_part] - own, runs, unseen) / peers
                rate += _find_rate(changes[metric, not is_part], runs) / nodes
                tail = compute_binomial_tail([min(1.0, rate)] * runs, outlier.nights)
                chances[i] = peers * tail
        order = sorted(chances.values())
        by_chance += (
            found[i]
            for i, chance in chances.items()
            if chance > allowed * bisect_right(order, chance) and make_key(found[i]) not in named
        )
    return by_chance


def _count_changes(outliers: Iterable[JudgedOutlier]) -> Counter[str]:
    """Count how often *outliers* came and went in their last runs."""
    changes: Counter[str] = Counter()
    for outlier in outliers:
        pairs = list(pairwise(outlier.shown))
        began = len(outlier.shown) < FOLLOWED_RUNS
        changes["came"] += pairs.count((False, True)) + began
        changes["went"] += pairs.count((True, False))
    return changes


def _find_rate(changes: Counter[str], runs: int, unseen: float = 0.0) -> float:
    """Find how many come and go in a night, of *runs*, if so many more were *unseen*."""
    return min((changes[side] + unseen) / n for side, n in (("came", runs), ("went", runs - 1)))


def describe_by_chance(outliers: Iterable[JudgedOutlier]) -> Iterator[str]:
    """Say why those who stood out several times are not named, in a line for each metric."""
    by_metric: defaultdict[str, list[str]] = defaultdict(list)
    for outlier in outliers:
        by_metric[outlier.metric].append(outlier.name)
    for metric, names in by_metric.items():
        more = f" and {len(names) - NAMED_NODES} more" if len(names) > NAMED_NODES else ""
        yield (
            f"{metric}: {', '.join(names[:NAMED_NODES])}{more} stood out in several of the last "
            f"{FOLLOWED_RUNS} runs, as chance explains where others come and go: not named yet"
        )


def list_changes(past: Mapping[MetricName, TrendJudgement]) -> list[PartChange]:
    """List the changes to the worse, the largest first; those of parts that go together are one."""
    changes = (
        change for name, judged in past.items() for change in _join_changes(name, judged.changes)
    )
    return sorted(changes, key=lambda change: -change.size)


def _join_changes(name: MetricName, changes: Iterable[PartChange]) -> Iterator[PartChange]:
    worse = [change for change in changes if change.size > 0]
    crowds = find_crowds(worse)
    yield from (_make_crowd_change(name, crowd) for crowd in crowds)
    crowded = {id(change) for crowd in crowds for change in crowd}
    by_node: defaultdict[tuple[str, str], list[PartChange]] = defaultdict(list)
    for change in worse:
        if id(change) not in crowded:
            by_node[change.node, change.kind].append(change)
    for of_node in by_node.values():
        first = min(change.time for change in of_node)
        alike = [change for change in of_node if change.time - first <= SAME_DAYS]
        rest = [change for change in of_node if change not in alike]
        yield from (_make_change(name, group) for group in (alike, rest) if group)


def find_crowds(changes: Iterable[PartChange]) -> list[list[PartChange]]:
    """Find the changes that parts of many nodes made alike at about the same time."""
    rest, crowds = list(changes), []
    while rest:
        around = (
            [o for o in rest if o.kind == change.kind and abs(o.time - change.time) <= SAME_DAYS]
            for change in rest
        )
        near = max(around, key=lambda crowd: len({change.node for change in crowd}))
        usual = median(change.size for change in near)
        crowd = [change for change in near if usual / MUCH_MORE <= change.size <= usual * MUCH_MORE]
        if len({change.node for change in crowd}) < MIN_CROWD_NODES:
            break
        crowds.append(crowd)
        inside = {id(change) for change in crowd}
        rest = [change for change in rest if id(change) not in inside]
    return crowds


def _make_crowd_change(name: MetricName, crowd: list[PartChange]) -> PartChange:
    typical = sorted(crowd, key=lambda change: change.size)[len(crowd) // 2]
    reason, count = Counter(change.why for change in crowd).most_common(1)[0]
    nodes = tuple(sorted({change.node for change in crowd}))
    return replace(
        _make_change(name, [typical]),
        node="",
        nodes=nodes,
        part=format_count(len(crowd), "part"),
        why=reason if reason and count > len(crowd) / 2 else CROWD_ADVICE,
    )


def _make_change(name: MetricName, changes: list[PartChange]) -> PartChange:
    worst = max(changes, key=lambda change: change.size)
    crossing = format_crossing(worst.crossing) if worst.crossing else ""
    return replace(
        worst,
        part=fold_labels(sorted(change.part for change in changes)),
        metric=str(name),
        check=name.check,
        measurement=name.metric,
        unit=name.unit,
        why="; ".join(filter(None, [crossing, worst.why])),
    )


def _report_failed(controller: Controller, judgement: FleetJudgement) -> FleetJudgement:
    """Report each node that failed by its peers, once; a rack or a driver is no node."""
    new = [
        outlier
        for outlier in judgement.outliers
        if outlier.verdict is Verdict.FAIL and outlier.node and not outlier.reported
    ]
    controller.take_faults(map(report_outlier, new))
    outliers = (replace(one, reported=one.reported or one in new) for one in judgement.outliers)
    return replace(judgement, outliers=tuple(outliers))


def report_outlier(outlier: JudgedOutlier) -> FaultReport:
    """Report what peers say against the node of *outlier*."""
    began = datetime(outlier.last.year, outlier.last.month, outlier.last.day, tzinfo=UTC)
    return FaultReport(
        node=outlier.node,
        source=Source.PEERS,
        at=(began + NIGHT_BEGINS).timestamp(),
        key=(*make_key(outlier), str(outlier.since)),
        faults=(build_fault(Source.PEERS, "outlier", describe_outlier(outlier)),),
        examined=frozenset({Source.PEERS}),
    )


def record_night(controller: Controller, judgement: FleetJudgement) -> None:
    """Record what is new and what is over since the night before *judgement*."""
    ledger = controller.ledger
    outliers = {
        f"{one.node}{SEPARATOR}{one.title}: {one.metric}": describe_outlier(one)
        for one in judgement.outliers
    }
    for change in judgement.changes:
        node, title = name_judged(change)
        subject = f"{title}: {change.metric}, {change.kind}"
        outliers[f"{node}{SEPARATOR}{subject}"] = change.why or change.kind
    kinds = (EventKind.OUTLIER_OPENED, EventKind.OUTLIER_CLOSED)
    ledger.record_standing("outliers", outliers, partial(_describe_standing, kinds, "outlier"))
    overview = read_overview(ledger, controller.store)
    rollouts = {
        f"{SEPARATOR}{rollout.name}: {rollout.after}": describe_rollout(rollout, overview.made)
        for rollout in overview.drift.rollouts
    }
    kinds = (EventKind.ROLLOUT_BEGUN, EventKind.ROLLOUT_ENDED)
    ledger.record_standing("rollouts", rollouts, partial(_describe_standing, kinds, "under way"))
    counts = (
        format_count(len(judgement.outliers), "outlier"),
        f"{format_count(len(judgement.changes), 'change')} to the worse",
    )
    text = f"the night of {judgement.night}: {', '.join(counts)}"
    ledger.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED, text=text))


def _describe_standing(
    kinds: tuple[EventKind, EventKind], state: str, key: str, before: str, after: str
) -> NewEvent | None:
    """Describe what began, or is over; that it goes on, with another distance, is no event."""
    if before and after:
        return None
    node, _, subject = key.partition(SEPARATOR)
    states = ("", state) if after else (state, "")
    change = StateChange(subject=subject, before=states[0], after=states[1])
    return NewEvent(kind=kinds[not after], node=node, change=change, text=after or before)
