"""What verification is worth to this site: from its own outages to figures for its jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.states import DAY_S, is_gone
from hpcverify.reliability.assumptions import JobAssumptions
from hpcverify.reliability.jobs import JobOutlook, forecast_job
from hpcverify.reliability.outages import (
    MIN_NODE_DAYS,
    MIN_OUTAGES,
    Estimate,
    FleetReliability,
    Outage,
    measure_reliability,
)
from hpcverify.selection.places import read_place
from hpcverify.units import format_age, format_count

DEFAULT_DAYS = 90.0
SIZE_STEP = 4
"""From one size of a job to the next."""
INDEPENDENT = (
    "the intervals hold if failures are independent",
    "four weeks show whether they are",
)


class FleetWorth(Struct, frozen=True, kw_only=True):
    """How reliable the fleet was, and what its jobs have to expect."""

    days: float
    """For which the ledger has outages, those that were asked for at most."""
    reliability: FleetReliability
    assumptions: JobAssumptions
    jobs: tuple[JobOutlook, ...]
    """From one node to all of them; empty: there is no history yet."""


def assess_worth(
    ledger: Ledger, assumptions: JobAssumptions, days: float = DEFAULT_DAYS
) -> FleetWorth:
    """Assess the last *days* of the nodes that the scheduler still has."""
    now = ledger.clock()
    began = max(now - days * DAY_S, ledger.read_fleet_start())
    nodes = (node for node in ledger.list_nodes().values() if not is_gone(node, now))
    seen_since = {node.name: node.first_seen_at for node in nodes}
    outages = list(_select_failures(ledger.list_outages(began)))
    found = measure_reliability(seen_since, outages, began, now, _find_places(seen_since, ledger))
    sizes = list_job_sizes(found.nodes)
    rate = found.failure_rate
    return FleetWorth(
        days=max(0.0, now - began) / DAY_S,
        reliability=found,
        assumptions=assumptions,
        jobs=tuple(forecast_job(size, rate, assumptions) for size in sizes) if rate else (),
    )


def _find_places(nodes: Iterable[str], ledger: Ledger) -> dict[str, str]:
    """Find the switch of each node as the last sweep saw it, or the rack that its name has."""
    racks = {node: places[-1] for node in nodes if (places := read_place(node)[0])}
    return {**racks, **ledger.read_links().switches}


def list_job_sizes(nodes: int) -> list[int]:
    """List sizes of jobs from one node to all *nodes*."""
    steps = (SIZE_STEP**power for power in range(math.ceil(math.log(max(nodes, 1), SIZE_STEP))))
    return [*steps, nodes] if nodes else []


def _select_failures(outages: Iterable[NodeOutage]) -> Iterable[Outage]:
    for one in outages:
        if one.is_failure:
            found = one.cause is OutageCause.VERIFICATION
            yield Outage(one.node, one.began, one.ended or math.inf, is_found=found)


def describe_worth(worth: FleetWorth) -> list[str]:
    """Say in a few lines what is known, and from what."""
    facts = (f"{name}: {figure}" for name, figure in list_worth_facts(worth))
    return [introduce_worth(worth), *facts]


def introduce_worth(worth: FleetWorth) -> str:
    """Say from what it is known; if that is not enough, what it needs."""
    found = worth.reliability
    failures = format_count(found.outages, "failure")
    span = (
        f"{format_count(found.nodes, 'node')}, {format_age(worth.days * DAY_S)}, "
        f"{found.node_days:,.0f} node-days in service"
    )
    if found.failure_rate is None or found.share_out is None:
        needed = f"at least {MIN_OUTAGES} failures in {MIN_NODE_DAYS:.0f} node-days"
        return f"no history yet: {failures} of {span}; a rate needs {needed}"
    return f"{failures} of {span}"


def list_worth_facts(worth: FleetWorth) -> list[tuple[str, str]]:
    """List what is known, each with its figure."""
    found = worth.reliability
    if found.failure_rate is None or found.share_out is None:
        return []
    mtbf = found.failure_rate.map(lambda rate: 1 / rate if rate else math.inf)
    rate, out = found.failure_rate.map(lambda r: r * 1000), found.share_out.map(lambda s: s * 100)
    return [
        ("failures per 1,000 node-days", f"{rate.value:.2f} ({rate.low:.2f} to {rate.high:.2f})"),
        ("MTBF of a node", f"{mtbf.value:,.0f} days ({format_range(mtbf, ',.0f')})"),
        ("time out of service", f"{out.value:.2f} % ({out.low:.2f} to {out.high:.2f})"),
        (
            "found by a verification, before a job met them",
            f"{found.found} of {found.outages}",
        ),
        *([] if found.weeks else [INDEPENDENT]),
    ]


def format_range(estimate: Estimate, form: str) -> str:
    """Format the interval of *estimate*, each number in the *form* of a format specifier."""
    if math.isinf(estimate.high):
        return f"{estimate.low:{form}} or more"
    return f"{estimate.low:{form}} to {estimate.high:{form}}"
