"""
The document of ``hpcverify nodes --json``: the nodes of a fleet, for programs.

Its words are those of the events (`hpcverify.events.event`), its times are UTC, and a time
that is unknown is null. Fields are added, never renamed; what only the controller needs,
such as tickets and the ids of holds, is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any, Literal

from msgspec import Struct, convert
from msgspec.structs import asdict

from hpcverify.fleet.breaker import Doubt
from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.states import Caveat, Hold, State
from hpcverify.insight.drift import Deviation, Drift, Rollout, Split
from hpcverify.insight.judgement import FleetJudgement, JudgedOutlier, NightCoverage
from hpcverify.insight.outlook import NodeOutlook
from hpcverify.insight.overview import NodeRow, Overview, list_diagnoses
from hpcverify.model import Remedy, Verdict
from hpcverify.selection.ranking import NodeRisk
from hpcverify.summary.diagnosis import Diagnosis
from hpcverify.trends.fleet import PartChange
from hpcverify.units import UtcTime, convert_time

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


class DoubtedCheck(Struct, frozen=True, kw_only=True):
    """A check that fails on so many nodes that no node is held for it alone."""

    check: str
    reason: str
    nodes: tuple[str, ...]
    """Those that fail it."""
    until: UtcTime | None


class MalfunctionEntry(Struct, frozen=True, kw_only=True):
    """A convenience of the controller that does not work at the moment."""

    name: str
    since: UtcTime | None
    reason: str


class DiagnosisEntry(Struct, frozen=True, kw_only=True):
    """What is wrong with a part, or alike with several, by the last result of each check."""

    parts: tuple[str, ...]
    """What survives a reseat, the worst first; "node" is the node itself."""
    label: str
    """The names of the parts for people, with their serial numbers; empty for the node."""
    checks: tuple[str, ...]
    codes: tuple[str, ...]
    """The codes of the findings, and the metrics that are outside their limits."""
    verdict: Verdict
    remedy: Remedy
    fix: str
    """The exact steps, where they are known."""
    text: str


class NodeEntry(Struct, frozen=True, kw_only=True):
    """A node: its state first, then its runs, then its past."""

    node: str
    known: bool
    """Whether the controller knows it; if not, only its own runs are known."""
    state: ShownState
    own_state: State
    """The state that the controller gives it, also while somebody else holds it."""
    since: UtcTime | None
    """When it came into its own state."""
    enforced: bool
    """Whether its own state is acted on: false while the site only observes."""
    hold: Hold
    """How the controller keeps users' jobs off it."""
    held_by_others: str
    """Why somebody else holds it; empty if nobody does."""
    by: str
    """The person who put it into its own state, if a person did."""
    why: str
    """What is to be said of it, in one line."""
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
    """Whether it failed or could not be judged, and nothing has cleared that."""
    overdue: bool
    """Whether its last full pass is too long ago."""
    verdict: Verdict | None
    """That of its last finished run; if the controller knows it, the last that it ordered."""
    last_ordered_run_at: UtcTime | None
    """When the last run that the controller ordered ended."""
    last_pass_at: UtcTime | None
    """The last full pass."""
    last_run_at: UtcTime | None
    """When its newest run began, of any suite, whoever ordered it."""
    failed_runs: int
    """Those of the last seven days and since its last full pass."""
    diagnoses: tuple[DiagnosisEntry, ...]
    """What its last results say is wrong, the gravest first; whatever its state is."""
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


class RolloutEntry(Struct, frozen=True, kw_only=True):
    """A change that goes over like nodes: *count* of *total* have *after*."""

    name: str
    before: tuple[str, ...]
    after: str
    count: int
    total: int
    began: UtcTime | None
    """When the first node changed."""
    last: UtcTime | None
    """When the last one did."""
    behind: tuple[str, ...]
    """The nodes that still have what was before."""
    uncounted: tuple[str, ...]
    """Those of them that are out of service, or were silent lately."""


class DeviationEntry(Struct, frozen=True, kw_only=True):
    """Nodes with *value*, where *count* of *total* like nodes have *majority*."""

    name: str
    value: str
    majority: str
    count: int
    total: int
    nodes: tuple[str, ...]
    uncounted: tuple[str, ...]
    """Those of *nodes* that are out of service, or were silent lately."""
    since: UtcTime | None
    """When the last of them changed, if it did so lately."""


class DriftEntry(Struct, frozen=True, kw_only=True):
    """How the nodes differ from like ones in versions and settings."""

    rollouts: tuple[RolloutEntry, ...]
    deviations: tuple[DeviationEntry, ...]
    splits: tuple[Split, ...]
    uncompared: tuple[str, ...]
    """Nodes with fewer than two others of their kind."""


class LinksEntry(Struct, frozen=True, kw_only=True):
    """How many links between nodes the sweeps tried in the last *days*."""

    days: float
    nodes: int
    nodes_tried: int
    switch_pairs: int
    switch_pairs_tried: int
    untried: tuple[str, ...]
    """The nodes whose link was not."""


class OutlierEntry(Struct, frozen=True, kw_only=True):
    """What is worse than its peers, followed over the nights."""

    level: str
    """What is named: part, node, or the field of a group, as cabinet."""
    name: str
    node: str
    """Empty if it is about several."""
    nodes: tuple[str, ...]
    metric: str
    """With its check, suite and model."""
    suite: str
    verdict: Verdict
    distance: float
    """From its peers, relative: 0.04 is 4 % worse."""
    runs: int
    cause: str
    since: date
    """The first night."""
    last: date
    """The newest night on which it ran."""
    nights: int
    """Those of its last ten runs in which it stood out."""
    shown: tuple[bool, ...]
    """Whether it stood out in each of them, the newest last."""
    reported: bool
    """Whether it made the node a suspect."""


class JudgementEntry(Struct, frozen=True, kw_only=True):
    """What peers and the past say of the newest night."""

    night: date
    coverage: NightCoverage
    outliers: tuple[OutlierEntry, ...]
    """Those that stood out in two of their last runs at least, the worst first."""
    unconfirmed: tuple[OutlierEntry, ...]
    """Those that stood out in one of them, or in several by chance."""
    changes: tuple[PartChange, ...]
    """Steps and trends to the worse, the largest first."""
    notes: tuple[str, ...]
    least: str
    """How much worse than its peers a part has to be until it is named."""


class OutageEntry(Struct, frozen=True, kw_only=True):
    """One outage of a node."""

    began: UtcTime | None
    ended: UtcTime | None
    """Null: it is not over."""
    cause: OutageCause
    reason: str
    checks: tuple[str, ...]
    confirmed: bool
    """Whether the node was judged to be at fault, or Slurm itself set it down."""
    held: bool
    """Whether users' jobs were kept off it."""


class OutlookEntry(Struct, frozen=True, kw_only=True):
    """The risk of a node to fail next, and its outages of the last two years."""

    risk: NodeRisk | None
    """Null: it is out of service."""
    outages: tuple[OutageEntry, ...]
    """The newest first."""


class AuditLine(Struct, frozen=True, kw_only=True):
    """A line of the audit log of a node."""

    time: UtcTime | None
    actor: str
    what: str
    detail: str


class NodesDocument(Struct, frozen=True, kw_only=True):
    """The nodes of a fleet at one moment, worst first."""

    schema: Literal[1]
    time: UtcTime
    breaker: Breaker
    doubts: tuple[DoubtedCheck, ...]
    malfunctions: tuple[MalfunctionEntry, ...]
    nodes: tuple[NodeEntry, ...]
    drift: DriftEntry
    links: LinksEntry | None
    """Null: sweeps do not try links."""
    judgement: JudgementEntry | None
    """Null: no night was judged yet, or *judgement_error* says why it cannot be shown."""
    judgement_error: str
    outlook: OutlookEntry | None
    """Null unless one node was asked for that the controller knows."""
    audit: tuple[AuditLine, ...]
    """Empty unless one node was asked for."""


def build_nodes_document(
    fleet: Overview,
    doubts: Iterable[Doubt],
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
        doubts=tuple(
            DoubtedCheck(
                check=doubt.check,
                reason=doubt.why,
                nodes=doubt.nodes,
                until=convert_time(doubt.until),
            )
            for doubt in doubts
        ),
        malfunctions=tuple(
            MalfunctionEntry(name=item.name, since=convert_time(item.since), reason=item.why)
            for item in fleet.malfunctions
        ),
        nodes=tuple(map(_build_node, fleet.rows)),
        drift=_build_drift(fleet.drift),
        links=LinksEntry(days=fleet.link_days, **asdict(fleet.links)) if fleet.links else None,
        judgement=_build_judgement(judgement) if judgement else None,
        judgement_error=judgement_error,
        outlook=_build_outlook(outlook) if outlook else None,
        audit=tuple(
            AuditLine(
                time=convert_time(line.when), actor=line.actor, what=line.what, detail=line.detail
            )
            for line in audit
        ),
    )


def _build_node(row: NodeRow) -> NodeEntry:
    node = row.node
    state: ShownState = "held by others" if node.foreign else node.state.value
    return NodeEntry(
        node=node.name,
        known=row.known,
        state=state,
        own_state=node.state,
        since=convert_time(node.since),
        enforced=node.enforced,
        hold=node.desired_hold,
        held_by_others=node.foreign,
        by=node.by,
        why=row.why,
        reason=node.full_reason,
        caveat=node.caveat,
        caveat_why=node.caveat_why,
        checks=node.checks,
        conclusive=node.conclusive,
        bmc_failures=node.bmc_failures,
        run=node.run,
        suite=node.suite,
        batch=node.batch,
        outcome=row.outcome,
        attention=row.attention,
        overdue=row.overdue,
        verdict=row.verdict,
        last_ordered_run_at=convert_time(node.last_run_at) if row.known else None,
        last_pass_at=convert_time(node.last_pass_at),
        last_run_at=convert_time(row.heard),
        failed_runs=row.failures,
        diagnoses=tuple(map(_build_diagnosis, list_diagnoses(row.said))),
        standing=row.standing,
        rollouts=dict(row.rollouts),
        repeat_offender=node.repeat_offender,
        flakes=node.flakes,
        returned_at=tuple(filter(None, map(convert_time, node.returned_at))),
        first_seen_at=convert_time(node.first_seen_at),
        missing_since=convert_time(node.missing_since),
    )


def _build_diagnosis(diagnosis: Diagnosis) -> DiagnosisEntry:
    return DiagnosisEntry(
        parts=diagnosis.part_ids,
        label=diagnosis.names,
        checks=diagnosis.checks,
        codes=diagnosis.codes,
        verdict=diagnosis.verdict,
        remedy=diagnosis.remedy,
        fix=diagnosis.fix,
        text=diagnosis.text,
    )


def _build_drift(drift: Drift) -> DriftEntry:
    return DriftEntry(
        rollouts=tuple(map(_build_rollout, drift.rollouts)),
        deviations=tuple(map(_build_deviation, drift.deviations)),
        splits=drift.splits,
        uncompared=drift.uncompared,
    )


def _build_rollout(rollout: Rollout) -> RolloutEntry:
    times = {"began": convert_time(rollout.began), "last": convert_time(rollout.last)}
    fields: dict[str, Any] = {**asdict(rollout), **times}
    return RolloutEntry(**fields)


def _build_deviation(deviation: Deviation) -> DeviationEntry:
    fields: dict[str, Any] = {**asdict(deviation), "since": convert_time(deviation.since)}
    return DeviationEntry(**fields)


def _build_judgement(judgement: FleetJudgement) -> JudgementEntry:
    return JudgementEntry(
        night=judgement.night,
        coverage=judgement.coverage,
        outliers=tuple(map(_build_outlier, judgement.outliers)),
        unconfirmed=tuple(map(_build_outlier, judgement.unconfirmed)),
        changes=judgement.changes,
        notes=judgement.notes,
        least=judgement.least,
    )


def _build_outlier(outlier: JudgedOutlier) -> OutlierEntry:
    return convert(outlier, OutlierEntry, from_attributes=True)


def _build_outlook(outlook: NodeOutlook) -> OutlookEntry:
    return OutlookEntry(risk=outlook.risk, outages=tuple(map(_build_outage, outlook.outages)))


def _build_outage(outage: NodeOutage) -> OutageEntry:
    return OutageEntry(
        began=convert_time(outage.began),
        ended=convert_time(outage.ended),
        cause=outage.cause,
        reason=outage.reason,
        checks=outage.checks,
        confirmed=outage.confirmed,
        held=outage.held,
    )
