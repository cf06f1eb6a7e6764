"""
The whole fleet in one table: what the controller knows, and each check's last result.

The same for a terminal, a page and JSON: a row for each node, worst first. Nodes that need
attention are first, then nodes without a known run.

`NodesDocument` is the document of ``hpcverify nodes --json``. Its words are those of the events
(`hpcverify.events.event`), its times are UTC, and a time that is unknown is null. Fields are
added, never renamed; what only the controller needs, such as tickets and the ids of holds, is
not in it.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from hpcverify.check import severity_sort_key
from hpcverify.fleet.breaker import Doubt, find_doubts
from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.evidence import OpenFault, diagnose_alone
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger, Malfunction
from hpcverify.fleet.states import (
    DAY_S,
    FAILED_STATES,
    OTHERS_STATE,
    REPAIR_ADVICE,
    Caveat,
    Hold,
    Node,
    State,
    is_gone,
    needs_repair,
)
from hpcverify.insight.comparison import make_locator
from hpcverify.insight.drift import Drift, compare_nodes, gather_node_facts, name_rollouts
from hpcverify.insight.judgement import FleetJudgement, describe_nodes
from hpcverify.insight.month import FleetMonth
from hpcverify.insight.node_names import make_natural_key
from hpcverify.insight.outlook import FleetOutlook, NodeOutlook
from hpcverify.isolation.links import LinkCoverage, count_coverage
from hpcverify.model import Cause, Source, Verdict
from hpcverify.plan.config import load_site
from hpcverify.records.last_result import LastResult
from hpcverify.records.reported_facts import ReportedFacts
from hpcverify.records.store import RunEntry, Store
from hpcverify.summary.diagnosis import Diagnosis
from hpcverify.summary.verdict import join_lines
from hpcverify.summary.wording import format_duration
from hpcverify.units import UtcTime, convert_time, format_count

DEFAULT_OVERDUE_S = 7 * DAY_S
"""Seconds without a full pass that make a node overdue, unless the site sets another
number: a nightly sweep has had seven turns by then."""
GONE_REASON = "the scheduler no longer has this node"
"""Begins the reason of a node that the scheduler has not named for an hour."""
FAILURE_WINDOW_S = 7 * DAY_S
"""Seconds for which a failed run is shown, unless a full pass came after it."""
FACTS_WINDOW_S = 60 * DAY_S
"""Seconds for which the versions of a node are compared, and how they changed."""
MAX_CLOCK_LEAD = timedelta(days=1)
"""A run dated further ahead is from a node whose clock was wrong."""
STATE_RANKS = {
    word: rank
    for rank, word in enumerate(
        (
            State.HEALTHY,
            OTHERS_STATE,
            State.VERIFYING,
            State.UNVERIFIED,
            State.HELD,
            State.SUSPECT,
            State.QUARANTINED,
            State.REPEAT_OFFENDER,
        )
    )
}
"""How urgent a state is, which is not the order of its life."""
OUTCOME_LABELS = {
    Verdict.FAIL: "failed",
    Verdict.ERROR: "could not be judged",
    Verdict.WARN: "with warnings",
    Verdict.PASS: "passed",
    None: "without a run",
}
"""The outcome of a node in words, worst first."""


class NodeRow(Struct, frozen=True, kw_only=True, dict=True):  # the dict is for what is cached
    """A node, what is shown of it, and the newest result of each check."""

    node: Node
    state: str
    """That of the node, or held by others."""
    verdict: Verdict | None
    """The verdict of its last finished run; None without one."""
    attention: bool
    """Whether it failed or could not be judged, and was not cleared since."""
    overdue: bool
    """Whether its last full pass is too long ago."""
    why: str
    standing: str = ""
    """How it is worse than its peers, or than it was, by the newest judgement."""
    rollouts: Mapping[str, tuple[str, ...]] = {}
    """The rollouts that changed the node in the run of the last result of a check, by check."""
    heard: float = 0.0
    """When its newest finished run began, of any suite, with or without an order; 0: never."""
    said: tuple[LastResult, ...] = ()
    known: bool = True
    """Whether the controller knows it; if not, only its own runs are known."""
    failures: int = 0
    """Runs that failed in the last seven days and since its last full pass, whoever
    ordered them."""
    failed: float = 0.0
    """When the last of them began; 0: never."""

    @property
    def notice(self) -> str:
        """What no run of the node shows: what other sources found, and its standing."""
        outer = (describe_outer_result(result) for result in self.said if not result.run)
        return "; ".join(filter(None, (*outer, self.standing)))

    @property
    def state_label(self) -> str:
        """The state in words, and whether it is acted on."""
        if self.node.state not in FAILED_STATES or self.node.enforced:
            return self.state
        is_spared = self.node.caveat is Caveat.SPARED
        return f"{self.state} ({'not acted on' if is_spared else 'observed only'})"

    @cached_property
    def outcome(self) -> Verdict | None:
        """
        Its outcome, whatever its state; None: no run is known.

        The worst of its last ordered run and of each check's last result, and a warning if it
        is worse than its peers. A node that failed and was not released yet still counts as
        failed.
        """
        if self.node.state in FAILED_STATES:
            return Verdict.FAIL
        if self.verdict is None and not self.said:
            return None
        least = Verdict.WARN if self.standing else Verdict.PASS
        worst = max(self.worst, self.verdict or Verdict.PASS, least)
        return Verdict.PASS if worst is Verdict.SKIP else worst

    @cached_property
    def worst(self) -> Verdict:
        """The worst of its checks' last results, as far as they count."""
        return max((cap_verdict(result) for result in self.said), default=Verdict.PASS)


class Overview(Struct, frozen=True, kw_only=True):
    """The fleet at one moment."""

    made: float
    """Seconds since 1970."""
    tripped: str
    """Why the breaker is tripped; empty if it is not."""
    doubts: tuple[Doubt, ...] = ()
    """Which checks are doubted, how widely each fails, and until when that counts."""
    rows: tuple[NodeRow, ...]
    """Worst first."""
    places: Mapping[str, str] = {}
    """The switch or rack of each node, as far as it is known."""
    overdue_days: float = DEFAULT_OVERDUE_S / DAY_S
    """Days without a full pass that make a node overdue."""
    drift: Drift = Drift()
    """How the nodes differ from their peers in versions and settings."""
    links: LinkCoverage | None = None
    """How many links between nodes were tried lately; None: sweeps do not try them."""
    link_days: float = 0
    """The number of days that count as lately."""
    outlook: FleetOutlook | None = None
    """The outlook; None: it was not requested."""
    month: FleetMonth | None = None
    """The last 30 days; None: they were not requested."""
    malfunctions: tuple[Malfunction, ...] = ()
    """The conveniences of the controller that do not work at the moment."""


def read_overview(ledger: Ledger, store: Store, since: datetime | None = None) -> Overview:
    """Collect what is known of every node, with the results of runs from *since* on."""
    now = time.time()
    today = datetime.fromtimestamp(now, UTC)
    until = today + MAX_CLOCK_LEAD
    week = today - timedelta(seconds=FAILURE_WINDOW_S)
    lately = max(week, since.replace(tzinfo=UTC)) if since else week
    forgotten = ledger.list_forgotten()

    def is_current(run: RunEntry | LastResult) -> bool:
        """Whether its node was not forgotten since; such runs are kept, but not shown."""
        return run.started.timestamp() > forgotten.get(run.node, -math.inf)

    site = load_site()
    days = site.fabric.period_days
    overview = build_overview(
        ledger.list_nodes(),
        filter(is_current, store.list_newest(since, until)),
        (
            *filter(is_current, store.list_last_results(since, until)),
            *map(_build_outer_result, ledger.list_outer_faults()),
        ),
        now=now,
        tripped=ledger.read_trip_reason(),
        doubts=tuple(find_doubts(ledger, store, site.quarantine, now)),
        overdue_days=site.fleet.overdue_days,
        failures=(
            (node, when)
            for node, when in store.list_failures(lately, until)
            if when > forgotten.get(node, -math.inf)
        ),
        told=(
            record
            for record in store.list_facts(today - timedelta(seconds=FACTS_WINDOW_S), until)
            if record.last > forgotten.get(record.node, -math.inf)
        ),
        links=count_coverage(ledger.read_links(), now - days * DAY_S) if days else None,
        link_days=days,
    )
    locate = make_locator(site, ledger)
    names = [row.node.name for row in overview.rows]
    return replace(
        overview,
        places={name: place for name in names for place in locate(name).values()},
        malfunctions=tuple(ledger.list_malfunctions()),
    )


def build_overview(
    nodes: Mapping[str, Node],
    newest: Iterable[RunEntry],
    results: Iterable[LastResult],
    *,
    now: float,
    tripped: str = "",
    doubts: tuple[Doubt, ...] = (),
    overdue_days: float = 0,
    failures: Iterable[tuple[str, float]] = (),
    told: Iterable[ReportedFacts] = (),
    links: LinkCoverage | None = None,
    link_days: float = 0,
) -> Overview:
    """
    Combine what the ledger knows of *nodes* with their runs in the store.

    *newest* is the last finished run of each node, *results* the last result of each
    check, *failures* the nodes and start times of failed runs, *told* the facts of each
    node, oldest first. A node that only the store knows was never verified by the
    controller. *links* counts those that sweeps tried within *link_days*.
    """
    entries = {entry.node: entry for entry in newest}
    by_node: dict[str, list[LastResult]] = {}
    for result in results:
        by_node.setdefault(result.node, []).append(result)
    failed: dict[str, list[float]] = {}
    for name, when in failures:
        failed.setdefault(name, []).append(when)
    long = overdue_days * DAY_S or DEFAULT_OVERDUE_S
    gone = {name for name, node in nodes.items() if is_gone(node, now)}
    held = {
        name for name, node in nodes.items() if node.foreign or node.desired_hold is not Hold.NONE
    }
    facts = gather_node_facts((record for record in told if record.node not in gone), held)
    drift = compare_nodes(facts, now)
    moved = name_rollouts(facts, drift)
    rows = [
        _build_row(
            _mark_gone(nodes[name], now)
            if name in nodes
            else _build_unknown_node(name, entries.get(name)),
            entries.get(name),
            _keep_latest(by_node.get(name, ())),
            failed.get(name, ()),
            moved.get(name, {}),
            now=now,
            long=long,
            known=name in nodes,
        )
        for name in {*nodes, *entries, *by_node}
    ]
    return Overview(
        made=now,
        tripped=tripped,
        doubts=doubts,
        rows=tuple(sorted(rows, key=_make_badness_key)),
        overdue_days=long / DAY_S,
        drift=drift,
        links=links,
        link_days=link_days,
    )


def add_judgement(fleet: Overview, judgement: FleetJudgement | None) -> Overview:
    """Return *fleet* with what the newest *judgement* says about each of its nodes."""
    standings = describe_nodes(judgement) if judgement else {}
    rows = (
        replace(row, standing=standing, why=row.why or standing)
        if (standing := standings.get(row.node.name, ""))
        else row
        for row in fleet.rows
    )
    return replace(fleet, rows=tuple(sorted(rows, key=_make_badness_key)))


def cap_verdict(result: LastResult) -> Verdict:
    """Return what a verdict counts as: no more than in its run, where beta is capped."""
    return min(result.verdict, result.overall)


def list_diagnoses(results: Iterable[LastResult]) -> list[Diagnosis]:
    """List the diagnoses behind *results*, the worst first; those of one run only once."""
    found = {(result.run, d): d for result in results for d in result.diagnoses}
    return sorted(
        found.values(), key=lambda d: severity_sort_key(d.verdict, d.remedy), reverse=True
    )


def count_states(rows: Iterable[NodeRow]) -> str:
    """Count the states, the worst first."""
    counts = Counter(row.state for row in rows)
    ordered = sorted(counts, key=lambda state: STATE_RANKS[state], reverse=True)
    return ", ".join(f"{counts[state]} {state}" for state in ordered)


def count_outcomes(rows: Iterable[NodeRow]) -> str:
    """Count the outcomes, worst first; they add up to all nodes."""
    counts = Counter(row.outcome for row in rows)
    return ", ".join(
        f"{counts[outcome]} {word}" for outcome, word in OUTCOME_LABELS.items() if counts[outcome]
    )


def summarize_fleet(fleet: Overview) -> str:
    """Sum up in a line the outcomes of all nodes, and the state of the breaker."""
    nodes = format_count(len(fleet.rows), "node")
    return f"{nodes}: {count_outcomes(fleet.rows)}; {describe_breaker(fleet)}"


def describe_breaker(fleet: Overview) -> str:
    """Say whether the breaker is tripped, and if so what to do."""
    if not fleet.tripped:
        return "the breaker is not tripped"
    return (
        f"automatic draining is paused: the breaker tripped ({fleet.tripped}); "
        "once the cause is clear: hpcverify fleet breaker reset"
    )


def list_malfunction_lines(fleet: Overview) -> list[str]:
    """Say in a line each what of the controller does not work, and since when."""
    return [
        f"{item.name}: not working for {format_duration(age)}: {item.why}"
        for item in fleet.malfunctions
        for age in (fleet.made - item.since.timestamp(),)
    ]


def describe_links(fleet: Overview) -> str:
    """Say how many links were tried lately; empty if sweeps do not try them."""
    if (links := fleet.links) is None:
        return ""
    between = ""
    if links.switch_pairs:
        between = f", {links.switch_pairs_tried} of {links.switch_pairs} pairs of switches"
    return (
        f"{links.nodes_tried} of {links.nodes} nodes{between} in the last "
        f"{format_count(fleet.link_days, 'day')}"
    )


def _keep_latest(results: Iterable[LastResult]) -> tuple[LastResult, ...]:
    """
    Keep the last result of each check of a node, whatever suite it ran in, by name.

    If the node and its BMC both speak of one, neither takes back what the other found.
    """
    newest: dict[tuple[str, bool], LastResult] = {}
    for result in sorted(results, key=lambda result: result.started):
        newest[result.check, result.suite == Source.BMC] = result
    worst: dict[str, LastResult] = {}
    for (check, _), result in sorted(newest.items()):
        # A skipped result has less weight than any other.
        worst[check] = max(
            worst.get(check, result),
            result,
            key=lambda said: (cap_verdict(said) is not Verdict.SKIP, cap_verdict(said)),
        )
    return tuple(worst[check] for check in sorted(worst))


def describe_outer_result(result: LastResult) -> str:
    """Say which source found what, and when."""
    return f"{result.started:%-d %b}, {result.suite}: {result.reason}"


def read_outer_results(state: Path, node: str) -> list[LastResult]:
    """Read what is open of *node* by sources without runs, if the ledger in *state* is ours."""
    if not os.access(state / LEDGER_FILE_NAME, os.W_OK):
        return []
    return [_build_outer_result(fault) for fault in Ledger(state).list_outer_faults(node)]


def _build_outer_result(fault: OpenFault) -> LastResult:
    """Build the result of the source of *fault*, which has no run."""
    return LastResult(
        node=fault.node,
        suite=fault.source,
        run="",
        started=datetime.fromtimestamp(fault.since, UTC),
        overall=fault.verdict,
        check=fault.check,
        verdict=fault.verdict,
        reason=fault.text,
        cause=Cause.NONE,
        remedy=fault.remedy,
        diagnoses=(diagnose_alone(fault.check, fault.code, fault.text, fault.remedy),),
    )


def _mark_gone(node: Node, now: float) -> Node:
    if not is_gone(node, now):
        return node
    was = f"; it was {node.state}: {node.full_reason}" if node.reason else ""
    return replace(node, foreign=f"{GONE_REASON}{was}")


def _build_unknown_node(name: str, entry: RunEntry | None) -> Node:
    if entry is None:
        return Node(name=name)
    ended = entry.started.timestamp() + entry.seconds
    return Node(name=name, last_run_at=ended, verdict=entry.verdict.value)


def _build_row(
    node: Node,
    entry: RunEntry | None,
    results: tuple[LastResult, ...],
    failed: Iterable[float],
    moved: Mapping[float, Sequence[str]],
    *,
    now: float,
    long: float,
    known: bool,
) -> NodeRow:
    rollouts = {
        result.check: tuple(moved[result.started.timestamp()])
        for result in results
        if result.started.timestamp() in moved
    }
    verdict = Verdict(node.verdict) if node.verdict else None
    worst = max((cap_verdict(result) for result in results), default=Verdict.PASS)
    lately = [when for when in failed if when > max(node.last_pass_at, now - FAILURE_WINDOW_S)]
    return NodeRow(
        node=node,
        state=node.shown_state,
        verdict=verdict,
        attention=node.state in FAILED_STATES
        or bool(node.owed_checks)
        or needs_repair(node, now)
        or max(worst, verdict or worst) >= Verdict.ERROR,
        overdue=max(node.last_pass_at, node.first_seen_at) < now - long,
        why=_choose_reason(node, entry, results, rollouts, failures=len(lately), now=now),
        rollouts=rollouts,
        heard=0.0 if entry is None else entry.started.timestamp(),
        said=results,
        known=known,
        failures=len(lately),
        failed=max(lately, default=0.0),
    )


def _choose_reason(
    node: Node,
    entry: RunEntry | None,
    results: tuple[LastResult, ...],
    rollouts: Mapping[str, Sequence[str]],
    *,
    failures: int,
    now: float,
) -> str:
    worst = max(results, key=cap_verdict, default=None)
    if node.foreign:
        return node.foreign
    reason = node.full_reason
    if needs_repair(node, now) and REPAIR_ADVICE not in reason:
        reason = f"{REPAIR_ADVICE}; {reason}" if reason else REPAIR_ADVICE
    if reason:
        return f"{reason} (by {node.by})" if node.by else reason
    if worst is not None and cap_verdict(worst) >= Verdict.WARN:
        company = describe_company(rollouts.get(worst.check, ()))
        why = join_lines(d.line for d in list_diagnoses(results) if d.verdict >= cap_verdict(worst))
        return f"{why or worst.check}{f' ({company})' if company else ''}"
    if entry is not None and entry.verdict >= Verdict.WARN:
        return entry.reason
    if failures:
        return f"{format_count(failures, 'failed run')} in the last 7 days"
    return ""


def describe_company(rollouts: Sequence[str]) -> str:
    """Say which *rollouts* a result came with, in the run that first saw them."""
    return f"first seen with the rollout of {', '.join(rollouts)}" if rollouts else ""


def _make_badness_key(row: NodeRow) -> tuple[bool, int, bool, int, float, list[tuple[int, str]]]:
    """Order rows by urgency: the worst first, then the longest unverified."""
    seen = max(row.worst, row.verdict or row.worst, row.outcome or row.worst)
    return (
        not row.attention,
        -STATE_RANKS[row.state],
        not row.failures,
        -list(Verdict).index(seen),
        row.node.last_pass_at,
        make_natural_key(row.node.name),
    )


def choose_page_results(row: NodeRow) -> tuple[LastResult, ...]:
    """
    Choose one result of each run of *row* whose page is worth a link.

    First the run with the most checks, then those with a WARN or worse.
    """
    of_runs = [result for result in row.said if result.run]
    counts = Counter(result.suite for result in of_runs)
    by_suite = {result.suite: result for result in of_runs}
    loud = {result.suite for result in of_runs if result.verdict >= Verdict.WARN}
    ordered = sorted(counts, key=lambda suite: (-counts[suite], suite))
    return tuple(
        by_suite[suite] for place, suite in enumerate(ordered) if place == 0 or suite in loud
    )


SCHEMA: Literal[1] = 1
"""The version of the document."""
ShownState = Literal[
    "healthy",
    "unverified",
    "verifying",
    "suspect",
    "held",
    "quarantined",
    "repeat offender",
    "held by others",
]
"""The states of a node as an operator sees them."""


class Breaker(Struct, frozen=True, kw_only=True):
    """The circuit breaker."""

    tripped: bool
    """Whether automatic draining is paused."""
    reason: str
    """Empty if it is not."""


class NodeEntry(Struct, frozen=True, kw_only=True):
    """A node: its state first, then its runs, then its past."""

    node: str
    known: bool
    """Whether the controller knows it; if not, only its own runs are known."""
    state: ShownState
    own_state: State
    """The state in the ledger, also while another owner holds it."""
    since: UtcTime | None
    """When it came into its own state."""
    enforced: bool
    """Whether its own state is acted on: false while the site only observes."""
    hold: Hold
    """How the controller keeps users' jobs off it."""
    held_by_others: str
    """Why another owner holds it; empty if there is none."""
    by: str
    """The person who put it into its own state, if a person did."""
    why: str
    """The reason for its place in the list, in one line."""
    reason: str
    """Why it is in its own state."""
    caveat: Caveat
    """How its hold differs from what its reason alone would call for."""
    caveat_why: str
    checks: tuple[str, ...]
    """Those that it failed and has to pass."""
    conclusive: bool
    """Whether no rerun can clear what failed."""
    bmc_failures: dict[str, str]
    """The checks that failed by its BMC, and why."""
    run: str
    """The id of the run that is the evidence."""
    suite: str
    """The suite that it has to pass."""
    batch: str
    """The nodes that were admitted together with it, as a host list."""
    outcome: Verdict | None
    """The worst of its state, its last ordered run and each check's last result."""
    attention: bool
    """Whether it failed or could not be judged, and was not cleared since."""
    overdue: bool
    """Whether its last full pass is too long ago."""
    verdict: Verdict | None
    """That of its last finished run; if the controller knows it, the last that it ordered."""
    last_ordered_run_at: UtcTime | None
    """When the last run that the controller ordered ended."""
    last_pass_at: UtcTime | None
    """The last full pass."""
    last_run_at: UtcTime | None
    """When its newest run began, of any suite, with or without an order."""
    failed_runs: int
    """Those of the last seven days and since its last full pass."""
    diagnoses: tuple[Diagnosis, ...]
    """What its last results say is wrong, the worst first; whatever its state is."""
    standing: str
    """How it is worse than its peers, or than it was."""
    rollouts: dict[str, tuple[str, ...]]
    """The rollouts that were first seen with the last result of a check, by check."""
    repeat_offender: bool
    """Whether only a named person releases it."""
    flakes: int
    """How often a rerun cleared a failure."""
    returned_at: tuple[UtcTime, ...]
    """When it came back to service after a failure: the last two times."""
    first_seen_at: UtcTime | None
    """When the scheduler first named it."""
    missing_since: UtcTime | None
    """Since when the scheduler has not named it; null: the last answer did."""


class NodesDocument(Struct, frozen=True, kw_only=True):
    """The nodes of a fleet at one moment, worst first."""

    schema: Literal[1]
    time: UtcTime
    breaker: Breaker
    doubts: tuple[Doubt, ...]
    malfunctions: tuple[Malfunction, ...]
    nodes: tuple[NodeEntry, ...]
    drift: Drift
    links: LinkCoverage | None
    """Null: sweeps do not try links."""
    link_days: float
    """The days within which they were tried."""
    judgement: FleetJudgement | None
    """Null: no night was judged yet, or *judgement_error* says why it cannot be shown."""
    judgement_error: str
    outlook: NodeOutlook | None
    """Null unless one node was asked for that the controller knows."""
    audit: tuple[AuditEntry, ...]
    """Empty unless one node was asked for."""


def build_nodes_document(
    fleet: Overview,
    judgement: FleetJudgement | None,
    judgement_error: str = "",
    *,
    outlook: NodeOutlook | None = None,
    audit: Iterable[AuditEntry] = (),
) -> NodesDocument:
    """Build the document of what *fleet* and the rest show."""
    return NodesDocument(
        schema=SCHEMA,
        time=datetime.fromtimestamp(int(fleet.made), UTC),
        breaker=Breaker(tripped=bool(fleet.tripped), reason=fleet.tripped),
        doubts=fleet.doubts,
        malfunctions=fleet.malfunctions,
        nodes=tuple(map(_build_node, fleet.rows)),
        drift=fleet.drift,
        links=fleet.links,
        link_days=fleet.link_days,
        judgement=judgement,
        judgement_error=judgement_error,
        outlook=outlook,
        audit=tuple(audit),
    )


def _build_node(row: NodeRow) -> NodeEntry:
    node = row.node
    shown = {
        "node": node.name,
        "own_state": node.state,
        "hold": node.desired_hold,
        "held_by_others": node.foreign,
        "reason": node.full_reason,
        "outcome": row.outcome,
        "failed_runs": row.failures,
        "diagnoses": list_diagnoses(row.said),
        "last_ordered_run_at": convert_time(node.last_run_at) if row.known else None,
        "last_run_at": convert_time(row.heard),
        "returned_at": tuple(filter(None, map(convert_time, node.returned_at))),
    }
    for name in ("since", "last_pass_at", "first_seen_at", "missing_since"):
        shown[name] = convert_time(getattr(node, name))
    return convert({**asdict(node), **asdict(row), **shown}, NodeEntry)
