"""
The outlook of a fleet: parts worse than their peers, nodes due next and why, reliability.

From the state directory alone, so that a page can be made without asking the scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import OutageCause
from hpcverify.fleet.risk import HISTORY_S, read_ranking
from hpcverify.fleet.schedule import list_due
from hpcverify.insight.judgement import FleetJudgement, read_judgement
from hpcverify.insight.reliability_report import ReliabilityReport, build_reliability_report
from hpcverify.plan.config import Fleet, Site
from hpcverify.selection.ranking import NodeRisk
from hpcverify.selection.weighting import describe_weighting
from hpcverify.units import UtcTime, convert_time

MAX_DUE = 100
"""Nodes that are listed with a reason: more than a night verifies on most fleets."""


class DueNode(Struct, frozen=True, kw_only=True):
    """A node that is due."""

    node: str
    risk: NodeRisk
    why: str
    """What makes it due."""


class FleetOutlook(Struct, frozen=True, kw_only=True):
    """What is to come of a fleet."""

    due: tuple[DueNode, ...]
    """The first `MAX_DUE`, in their order."""
    due_count: int
    """All that are due, idle or not."""
    judged_by: str
    """What the risks are judged by."""
    reliability: ReliabilityReport
    judgement: FleetJudgement | None
    """What peers and the past say of the newest night; None: no night was judged yet."""
    judgement_error: str = ""
    """Why it cannot be shown, if it is damaged."""


class PastOutage(Struct, frozen=True, kw_only=True):
    """One outage of a node."""

    began: UtcTime | None
    ended: UtcTime | None
    """None: it is not over."""
    cause: OutageCause
    reason: str
    checks: tuple[str, ...]
    confirmed: bool
    """Whether the node was judged to be at fault, or Slurm itself set it down."""
    held: bool
    """Whether users' jobs were kept off it."""


class NodeOutlook(Struct, frozen=True, kw_only=True):
    """The risk of a node to fail next, and its outages of the last two years."""

    risk: NodeRisk | None
    """None: it is out of service."""
    outages: tuple[PastOutage, ...]
    """The newest first."""


def read_outlook(state: Path, site: Site, clock: Callable[[], float] = time.time) -> FleetOutlook:
    """
    Read from the state directory *state* what is to come of the fleet of *site*.

    Without the judgement of the newest night, if that is damaged.
    """
    ledger = Ledger(state, clock)
    now = ledger.clock()
    ranking = read_ranking(ledger, site.fleet, now)
    judgement, judgement_error = read_shown_judgement(state)
    due = list_due(
        ledger.list_nodes(),
        {ticket.node for ticket in ledger.list_open_tickets()},
        site.fleet,
        now,
        tried=ledger.find_last_ended(),
        risks=ranking.scores,
        seed=ledger.read_seed(),
    )
    return FleetOutlook(
        due=tuple(
            DueNode(node=pick.node, risk=ranking.explain(pick.node), why=pick.why)
            for pick in due[:MAX_DUE]
        ),
        due_count=len(due),
        judged_by=describe_weighting(ranking.weighting),
        reliability=build_reliability_report(ledger, site),
        judgement=judgement,
        judgement_error=judgement_error,
    )


def read_shown_judgement(state: Path) -> tuple[FleetJudgement | None, str]:
    """Read the newest judgement, or say why it cannot be shown: nobody's view ends with it."""
    try:
        return read_judgement(state), ""
    except StoreError as exc:
        return None, f"what peers and the past say is not shown: {exc}"


def read_node_outlook(ledger: Ledger, fleet: Fleet, node: str) -> NodeOutlook:
    """Read from *ledger* what is to come of *node* of the *fleet*, which it knows."""
    now = ledger.clock()
    ranking = read_ranking(ledger, fleet, now)
    outages = [outage for outage in ledger.list_outages(now - HISTORY_S) if outage.node == node]
    return NodeOutlook(
        risk=ranking.explain(node) if node in ranking.scores else None,
        outages=tuple(
            PastOutage(
                began=convert_time(outage.began),
                ended=convert_time(outage.ended),
                cause=outage.cause,
                reason=outage.reason,
                checks=outage.checks,
                confirmed=outage.confirmed,
                held=outage.held,
            )
            for outage in sorted(outages, key=lambda outage: -outage.began)
        ),
    )
