"""
The document of ``hpcverify nodes --json``: the nodes of a fleet, for programs.

Its words are those of the events (`hpcverify.events.event`), its times are UTC, and a time
that is unknown is null. Fields are added, never renamed; what only the controller needs,
such as tickets and the ids of holds, is not in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import asdict

from hpcverify.fleet.breaker import Doubt
from hpcverify.fleet.event_log import AuditEntry
from hpcverify.fleet.ledger import Malfunction
from hpcverify.fleet.states import Caveat, Hold, State
from hpcverify.insight.drift import Drift
from hpcverify.insight.judgement import FleetJudgement
from hpcverify.insight.outlook import NodeOutlook
from hpcverify.insight.overview import NodeRow, Overview, list_diagnoses
from hpcverify.isolation.links import LinkCoverage
from hpcverify.model import Verdict
from hpcverify.summary.diagnosis import Diagnosis
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
    diagnoses: tuple[Diagnosis, ...]
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
