"""
The outlook of a fleet: parts worse than their peers, nodes due next and why, reliability.

From the state directory alone, so that a page can be made without asking the scheduler.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import OutageCause
from hpcverify.fleet.risk import HISTORY_S, read_ranking
from hpcverify.fleet.schedule import list_due
from hpcverify.fleet.states import DAY_S, is_gone
from hpcverify.insight.comparison import make_locator
from hpcverify.insight.judgement import FleetJudgement, read_judgement
from hpcverify.plan.config import Fleet, Site
from hpcverify.reliability.outages import (
    MIN_NODE_DAYS,
    MIN_OUTAGES,
    Estimate,
    FleetReliability,
    measure_reliability,
)
from hpcverify.selection.ranking import NodeRisk
from hpcverify.selection.weighting import describe_weighting
from hpcverify.units import UtcTime, convert_time, format_age, format_count

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
    """Read the newest judgement, or explain why it cannot be shown."""
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


DEFAULT_DAYS = 90.0
INDEPENDENT = (
    "the intervals hold if failures are independent",
    "four weeks show whether they are",
)


class ReliabilityReport(Struct, frozen=True, kw_only=True):
    """How reliable the fleet was: the document of ``hpcverify fleet reliability --json``."""

    schema: Literal[1]
    time: UtcTime
    days: float
    """The days with known outages, at most those that were asked for."""
    reliability: FleetReliability


def build_reliability_report(
    ledger: Ledger, site: Site, days: float = DEFAULT_DAYS
) -> ReliabilityReport:
    """Report on the last *days* of the nodes that the scheduler still has."""
    now = ledger.clock()
    began = max(now - days * DAY_S, ledger.read_fleet_start())
    nodes = (node for node in ledger.list_nodes().values() if not is_gone(node, now))
    seen_since = {node.name: node.first_seen_at / DAY_S for node in nodes}
    records = ledger.list_outages(began)
    outages = [record.convert_to_days(now) for record in records if record.is_failure]
    locate = make_locator(site, ledger)
    places = {node: place for node in seen_since for place in locate(node).values()}
    return ReliabilityReport(
        schema=1,
        time=datetime.fromtimestamp(int(now), UTC),
        days=max(0.0, now - began) / DAY_S,
        reliability=measure_reliability(seen_since, outages, began / DAY_S, now / DAY_S, places),
    )


def describe_reliability(report: ReliabilityReport) -> list[str]:
    """Say in a few lines what is known, and from what."""
    facts = (f"{name}: {figure}" for name, figure in list_reliability_facts(report))
    return [introduce_reliability(report), *facts]


def introduce_reliability(report: ReliabilityReport) -> str:
    """Say from what the reliability is known; if that is not enough, what it needs."""
    reliability = report.reliability
    failures = format_count(reliability.outages, "failure")
    span = (
        f"{format_count(reliability.nodes, 'node')}, {format_age(report.days * DAY_S)}, "
        f"{reliability.node_days:,.0f} node-days in service"
    )
    if reliability.failure_rate is None or reliability.share_out is None:
        needed = f"at least {MIN_OUTAGES} failures in {MIN_NODE_DAYS:.0f} node-days"
        return f"no history yet: {failures} of {span}; a rate needs {needed}"
    return f"{failures} of {span}"


def list_reliability_facts(report: ReliabilityReport) -> list[tuple[str, str]]:
    """List what is known, each with its figure; empty if there is too little history."""
    reliability = report.reliability
    if reliability.failure_rate is None or reliability.share_out is None:
        return []
    mtbf = reliability.failure_rate.map(lambda rate: 1 / rate if rate else math.inf)
    rate = reliability.failure_rate.map(lambda r: r * 1000)
    out = reliability.share_out.map(lambda s: s * 100)
    before_jobs = f"{reliability.found} of {reliability.outages}"
    return [
        ("failures per 1,000 node-days", f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"),
        ("MTBF of a node", f"{mtbf.value:,.0f} days ({format_range(mtbf, ',.0f')})"),
        ("time out of service", f"{out.value:.2f} % ({out.low:.2f} to {out.high:.2f})"),
        ("found by a verification, before a job met them", before_jobs),
        *([] if reliability.weeks else [INDEPENDENT]),
    ]


def format_range(estimate: Estimate, form: str) -> str:
    """Format the interval of *estimate*, each number in the *form* of a format specifier."""
    if math.isinf(estimate.high):
        return f"{estimate.low:{form}} or more"
    return f"{estimate.low:{form}} to {estimate.high:{form}}"
