"""
The metrics of the fleet, written after each cycle of the controller into one text file.

Only nodes that need attention have series of their own, at most `MAX_LISTED_NODES`, unless the
site asks for all: so the file stays small however many nodes there are, and whatever happens
to all of them at once. What nodes claim in their documents is bounded too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, time
from importlib.metadata import version
from itertools import product
from math import isfinite
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import HpcverifyError, StoreError
from hpcverify.fleet.breaker import compute_allowance, compute_out_limit, list_out
from hpcverify.fleet.controller import METRICS, Controller, Cycle
from hpcverify.fleet.holds import PROLOG_ERROR
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.part_counts import PartCount
from hpcverify.fleet.states import (
    FAILED_STATES,
    HOUR_S,
    MAX_RETURNS,
    WATCH_S,
    Hold,
    Node,
    State,
    compute_elapsed,
    is_gone,
    needs_repair,
)
from hpcverify.fleet.transitions import has_unanswered_evidence
from hpcverify.history.columns import NIGHT_BEGINS
from hpcverify.history.screen import PeerMetric
from hpcverify.history.values import Locate
from hpcverify.insight.comparison import make_locator
from hpcverify.insight.judgement import read_judgement
from hpcverify.insight.overview import DEFAULT_OVERDUE_S, STATE_RANKS
from hpcverify.limits.specs import find_spec
from hpcverify.metrics.table import (
    CAUSES,
    FLEET_FILE_NAME,
    FORGOTTEN,
    HOLDS,
    KIND,
    MAX_LISTED_NODES,
    STATES,
    STATISTICS,
)
from hpcverify.metrics.text import LabelValues, MetricFamily, make_gauge, make_state_set
from hpcverify.model import Part, Remedy, Verdict
from hpcverify.peers.screen import ListSummary
from hpcverify.plan.catalog import list_check_names
from hpcverify.plan.config import Site
from hpcverify.records.text_files import write_text_file
from hpcverify.run.folders import explain_silence
from hpcverify.trends.fleet import PartChange
from hpcverify.units import DAY_SECONDS, UNIT_FACTORS, convert_unit

MAX_PLACES = 1000
"""With more, what names say is not a rack: then there is no series for each."""
MAX_CROSSINGS = 200
MAX_NAME_CHARACTERS = 100
"""The most characters of a name in a node's document: no metric, code or product is as long."""
OTHER_NAME = "other"
IN_SERVICE = frozenset({State.HEALTHY, State.UNVERIFIED})
HOLD_NAMES = {Hold.DRAIN: "drain", Hold.RESERVATION: "reservation", Hold.NONE: "drain"}
"""By how a node is to be held: one that is to be let go still has its drain."""
OTHERS = "others"


def write_fleet_metrics(controller: Controller, cycle: Cycle) -> None:
    """
    Write the metrics of the fleet into the directory that the site names.

    Raises:
        StoreError: the file cannot be written; the one before stays as it is.

    """
    now = controller.clock()
    fleet = read_fleet_state(controller, cycle, now)
    controller.ledger.count_node_seconds(fleet.by_state, fleet.by_hold)
    directory = Path(controller.site.metrics.directory)
    if silence := explain_silence(directory):
        raise StoreError(silence)
    write_text_file(directory / FLEET_FILE_NAME, list_families(controller, cycle, fleet))


class FleetSnapshot(Struct, frozen=True, kw_only=True):
    """The nodes at one moment."""

    now: float
    current: Mapping[str, Node]
    """Those that the scheduler has, by name."""
    gone: int
    holds: Mapping[str, str]
    """How users' jobs are kept off, by the nodes where they are."""
    attention: Sequence[Node]
    """Those that have series of their own, the worst first."""
    unlisted: int
    """Those that should have, and are too many."""
    parts: Sequence[PartCount]

    @property
    def by_state(self) -> Mapping[str, int]:
        """Nodes in each state."""
        counts = Counter(node.shown_state for node in self.current.values())
        return {state: counts[state] for state in STATES}

    @property
    def by_hold(self) -> Mapping[str, int]:
        """Nodes with each hold."""
        counts = Counter(self.holds.values())
        return {hold: counts[hold] for hold in HOLDS}


def read_fleet_state(controller: Controller, cycle: Cycle, now: float) -> FleetSnapshot:
    """Read how the nodes are, after *cycle*."""
    known = controller.ledger.list_nodes()
    current = {
        name: node for name, node in known.items() if name in cycle.listed or not is_gone(node, now)
    }
    parts = [part for part in controller.ledger.list_part_counts() if part.node in current]
    incomplete = {part.node for part in parts if part.present < part.expected}
    everyone = controller.site.metrics.all_nodes
    wanted = [
        node
        for node in current.values()
        if everyone
        or node.foreign
        or node.state not in IN_SERVICE
        or node.name in incomplete
        or needs_repair(node, now)
    ]
    wanted.sort(key=lambda node: (-STATE_RANKS[node.shown_state], node.name))
    listed = wanted if everyone else wanted[:MAX_LISTED_NODES]
    return FleetSnapshot(
        now=now,
        current=current,
        gone=len(known) - len(current),
        holds={name: hold for name, node in current.items() if (hold := name_hold(node))},
        attention=listed,
        unlisted=len(wanted) - len(listed),
        parts=parts,
    )


def name_hold(node: Node) -> str:
    """Name how users' jobs are kept off *node*; empty if they are not."""
    if node.foreign:
        return OTHERS
    return HOLD_NAMES[node.desired_hold] if node.hold_id else ""


def list_families(
    controller: Controller, cycle: Cycle, fleet: FleetSnapshot
) -> Iterator[MetricFamily]:
    """Yield all metrics of the controller's file."""
    ledger, site = controller.ledger, controller.site
    yield MetricFamily("hpcverify_build_info", {(version("hpcverify"),): 1})
    yield from list_cycle_families(controller, cycle, fleet.now)
    yield from list_node_families(fleet, site)
    yield from list_place_families(fleet, make_locator(site, ledger))
    yield from list_counter_families(ledger)
    yield from list_brake_families(controller, cycle, fleet.now)
    yield from list_part_families(fleet)
    yield from list_judgement_families(controller, fleet.current)
    yield from list_attention_families(fleet, controller)


def list_cycle_families(controller: Controller, cycle: Cycle, now: float) -> Iterator[MetricFamily]:
    """Yield what the controller says of itself."""
    ledger = controller.ledger
    failing = [m for m in ledger.list_malfunctions() if m.name != METRICS]  # which work: see here
    yield make_gauge("hpcverify_controller_cycle_timestamp_seconds", now)
    yield make_gauge("hpcverify_controller_cycle_duration_seconds", cycle.seconds)
    yield make_gauge("hpcverify_controller_cycle_errors", cycle.errors)
    yield make_gauge("hpcverify_malfunctions", len(failing))
    yield MetricFamily(
        "hpcverify_malfunction_since_timestamp_seconds",
        {(m.name,): m.since.timestamp() for m in failing},
    )
    yield make_gauge("hpcverify_sweep_end_timestamp_seconds", ledger.read_sweep_end())
    yield make_gauge("hpcverify_verifications_open", len(ledger.list_open_tickets()))
    yield make_gauge("hpcverify_spool_refusals", cycle.refusals)
    waiting = {reader.name: reader.pending for reader in ledger.list_readers()}
    waiting["on_transition"] = ledger.count_pending_transitions()
    yield MetricFamily("hpcverify_events_waiting", {(reader,): n for reader, n in waiting.items()})


def list_node_families(fleet: FleetSnapshot, site: Site) -> Iterator[MetricFamily]:
    """Yield how many nodes are in each state, and what is to be done about them."""
    nodes = fleet.current.values()
    since = fleet.now - (site.fleet.overdue_days * DAY_SECONDS or DEFAULT_OVERDUE_S)
    yield MetricFamily("hpcverify_nodes", {(state,): n for state, n in fleet.by_state.items()})
    yield make_gauge("hpcverify_nodes_missing", fleet.gone)
    yield MetricFamily("hpcverify_nodes_held", {(hold,): n for hold, n in fleet.by_hold.items()})
    ours = [node for node in nodes if not node.foreign]
    to_hold = sum(node.desired_hold is not Hold.NONE and not node.hold_id for node in ours)
    yield make_gauge("hpcverify_nodes_to_hold", to_hold)
    observed = sum(n.state in FAILED_STATES and n.desired_hold is Hold.NONE for n in ours)
    yield make_gauge("hpcverify_nodes_observed", observed)
    prolog_errors = sum(node.foreign == PROLOG_ERROR for node in nodes)
    yield make_gauge("hpcverify_nodes_prolog_error", prolog_errors)
    accused = sum(has_unanswered_evidence(node, site) and not node.foreign for node in nodes)
    yield make_gauge("hpcverify_nodes_accused", accused)
    in_service = (node for node in nodes if node.name not in fleet.holds)
    overdue = sum(max(node.last_pass_at, node.first_seen_at) < since for node in in_service)
    yield make_gauge("hpcverify_nodes_overdue", overdue)
    yield make_gauge("hpcverify_nodes_unlisted", fleet.unlisted)


def list_place_families(fleet: FleetSnapshot, locate: Locate) -> Iterator[MetricFamily]:
    """Yield how many nodes each switch or rack has, and how many of these are out."""
    places = {name: place for name in fleet.current for place in locate(name).values()}
    total = Counter(places.values())
    if len(total) > MAX_PLACES:
        return
    out = Counter(
        place
        for name, place in places.items()
        if name in fleet.holds or fleet.current[name].state in FAILED_STATES
    )
    yield MetricFamily("hpcverify_place_nodes", {(place,): n for place, n in total.items()})
    yield MetricFamily("hpcverify_place_nodes_out", {(place,): out[place] for place in total})


def is_name(text: str) -> bool:
    """Whether *text*, which a node may have made up, can be the value of a label."""
    return len(text) <= MAX_NAME_CHARACTERS and text.isprintable()


def list_counter_families(ledger: Ledger) -> Iterator[MetricFamily]:
    """Yield the counters that the ledger keeps."""
    moves = [(a, b) for a, b in product(STATES, (*STATES, FORGOTTEN)) if a != b]
    for name, possible in (
        ("hpcverify_transitions_total", moves),
        ("hpcverify_node_seconds_total", _list_single(STATES)),
        ("hpcverify_held_node_seconds_total", _list_single(HOLDS)),
        ("hpcverify_outages_total", _list_single(CAUSES)),
        ("hpcverify_failures_total", _list_single(CAUSES)),
    ):
        yield MetricFamily(name, ledger.read_counter(name, possible))
    for name in ("hpcverify_time_to_hold_seconds", "hpcverify_time_to_return_seconds"):
        yield MetricFamily(name, ledger.read_histogram(name, _list_single(CAUSES)))
    opened: dict[LabelValues, float] = {}
    standing: dict[LabelValues, float] = {}
    for item in ledger.count_findings():
        names = (item.check, item.code) if is_name(item.code) else (OTHER_NAME, OTHER_NAME)
        labels = (*names, item.verdict)
        opened[labels] = opened.get(labels, 0) + item.opened_total
        standing[labels] = standing.get(labels, 0) + item.open
    yield MetricFamily("hpcverify_findings_total", opened)
    yield MetricFamily("hpcverify_findings_open", standing)


def _list_single(values: Iterable[str]) -> list[LabelValues]:
    return [(value,) for value in values]


def list_brake_families(controller: Controller, cycle: Cycle, now: float) -> Iterator[MetricFamily]:
    """Yield how near the breaker is, and which checks are doubted."""
    ledger, policy = controller.ledger, controller.site.quarantine
    held = ledger.list_newly_held(now - policy.window_hours * HOUR_S)
    yield make_gauge("hpcverify_breaker_tripped", bool(ledger.read_trip_reason()))
    yield make_gauge("hpcverify_breaker_held_nodes", len(held))
    yield make_gauge("hpcverify_breaker_limit_nodes", compute_allowance(len(cycle.listed), policy))
    out = list_out(ledger.list_nodes().values(), now)
    yield make_gauge("hpcverify_breaker_out_nodes", len(out))
    limit = compute_out_limit(len(cycle.listed), policy)
    yield make_gauge("hpcverify_breaker_out_limit_nodes", limit)
    checks = list_check_names(controller.site.packages)
    yield MetricFamily(
        "hpcverify_check_doubted", {(name,): name in cycle.doubts for name in checks}
    )


def list_part_families(fleet: FleetSnapshot) -> Iterator[MetricFamily]:
    """Yield how many parts the fleet should have, and how many it has."""
    expected, present = Counter[str](), Counter[str]()
    for part in fleet.parts:
        expected[part.kind] += part.expected
        present[part.kind] += part.present
    yield MetricFamily(
        "hpcverify_parts_expected", {(kind,): expected[kind] for kind in KIND.values}
    )
    yield MetricFamily("hpcverify_parts_present", {(kind,): present[kind] for kind in KIND.values})
    shown = {node.name for node in fleet.attention}
    yield MetricFamily(
        "hpcverify_node_parts_missing",
        {(p.node, p.kind): p.expected - p.present for p in fleet.parts if p.node in shown},
    )


def list_judgement_families(
    controller: Controller, current: Collection[str]
) -> Iterator[MetricFamily]:
    """
    Yield what the newest night says of the fleet, and of the nodes that it still has.

    A damaged file of it says nothing.
    """
    try:
        judgement = read_judgement(controller.state)
    except StoreError:  # the next night puts it aside, and says so
        judgement = None
    began = 0.0
    if judgement:
        began = (datetime.combine(judgement.night, time(), UTC) + NIGHT_BEGINS).timestamp()
    yield make_gauge("hpcverify_night_timestamp_seconds", began)
    outliers = Counter(o.verdict for o in judgement.outliers) if judgement else Counter[Verdict]()
    yield MetricFamily(
        "hpcverify_outliers",
        {(verdict.value,): outliers[verdict] for verdict in (Verdict.WARN, Verdict.FAIL)},
    )
    if judgement:
        yield from _list_level_families(judgement.levels)
        changes = [change for change in judgement.changes if change.node in current]
        yield MetricFamily("hpcverify_trend_crossing_timestamp_seconds", _find_crossings(changes))


def _list_level_families(
    levels: Iterable[tuple[PeerMetric, ListSummary]],
) -> Iterator[MetricFamily]:
    values: dict[LabelValues, float] = {}
    shares: dict[LabelValues, float] = {}
    for metric, summary in levels:
        if not all(map(is_name, (metric.metric, metric.model, metric.unit))):
            continue
        peak = find_peak(metric)
        reached = (summary.low, summary.centre, summary.high)
        for statistic, value in zip(STATISTICS, reached, strict=True):
            key = (metric.check, metric.metric, metric.model)
            values[*key, metric.unit, statistic] = value
            if peak:
                shares[*key, statistic] = value / peak
    yield MetricFamily("hpcverify_measurement", values)
    yield MetricFamily("hpcverify_measurement_peak_ratio", shares)


def find_peak(metric: PeerMetric) -> float:
    """Find what the data sheet of a GPU promises for a metric, in its unit; 0: nothing."""
    spec = find_spec(Part("gpu", "", "", {"name": metric.model}))
    promise = spec.find_promise(metric.metric.partition(".")[0]) if spec else None
    if promise is None or metric.unit not in UNIT_FACTORS:
        return 0.0
    try:
        return convert_unit(promise.value, promise.unit, metric.unit)
    except HpcverifyError:  # a metric of another dimension has the same name
        return 0.0


def _find_crossings(changes: Iterable[PartChange]) -> dict[LabelValues, float]:
    """Find the first crossing of each node and metric."""
    crossings: dict[LabelValues, float] = {}
    for change in changes:
        crossing = change.crossing.day * DAY_SECONDS if change.crossing else 0.0
        listed = len(crossings) < MAX_CROSSINGS and is_name(change.measurement)
        if listed and crossing and isfinite(crossing):
            key = (change.node, change.check, change.measurement)
            crossings[key] = min(crossings.get(key, crossing), crossing)
    return crossings


def list_attention_families(fleet: FleetSnapshot, controller: Controller) -> Iterator[MetricFamily]:
    """Yield what there is to say of single nodes."""
    nodes = fleet.attention
    yield make_state_set(
        "hpcverify_node_state", STATES, {(node.name,): node.shown_state for node in nodes}
    )
    for name, values in (
        ("hpcverify_node_state_since_timestamp_seconds", [node.since for node in nodes]),
        ("hpcverify_node_full_pass_timestamp_seconds", [node.last_pass_at for node in nodes]),
        ("hpcverify_node_run_timestamp_seconds", [node.last_run_at for node in nodes]),
        ("hpcverify_node_recent_returns", [_count_returns(node, fleet.now) for node in nodes]),
    ):
        labels = [(node.name,) for node in nodes]
        yield MetricFamily(name, dict(zip(labels, values, strict=True)))
    yield MetricFamily("hpcverify_node_hold_info", dict.fromkeys(_list_holds(fleet, controller), 1))


def _count_returns(node: Node, now: float) -> int:
    recent = [at for at in node.returned_at if compute_elapsed(now, at) < WATCH_S]
    return min(len(recent), MAX_RETURNS)


def _list_holds(fleet: FleetSnapshot, controller: Controller) -> Iterator[LabelValues]:
    held = [node for node in fleet.attention if node.name in fleet.holds]
    remedies = controller.store.list_remedies({node.run for node in held if node.run})
    outer = {(f.node, f.check): f.remedy for f in controller.ledger.list_outer_faults()}
    for node in held:
        hold = fleet.holds[node.name]
        checks: Collection[str] = node.checks if hold != OTHERS else ()
        for check in checks or ("",):
            remedy = remedies.get((node.run, check)) or outer.get((node.name, check), Remedy.NONE)
            yield node.name, hold, check, remedy.value
