"""How reliable the fleet is, from its own outages."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Literal

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, is_gone
from hpcverify.insight.comparison import make_locator
from hpcverify.plan.config import Site
from hpcverify.reliability.outages import (
    MIN_NODE_DAYS,
    MIN_OUTAGES,
    Estimate,
    FleetReliability,
    measure_reliability,
)
from hpcverify.units import UtcTime, format_age, format_count

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
