"""How reliable the fleet is, from its own outages, and what its jobs can expect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, is_gone
from hpcverify.reliability.assumptions import JobAssumptions
from hpcverify.reliability.jobs import JobForecast, forecast_job
from hpcverify.reliability.outages import (
    MIN_NODE_DAYS,
    MIN_OUTAGES,
    Estimate,
    FleetReliability,
    measure_reliability,
)
from hpcverify.selection.places import find_rack
from hpcverify.units import format_age, format_count

DEFAULT_DAYS = 90.0
DAY_HOURS = 24.0
JOB_SIZE_STEP = 4
"""The factor from one size of a job to the next."""
INDEPENDENT = (
    "the intervals hold if failures are independent",
    "four weeks show whether they are",
)

JOB_HEADS = ("nodes", "GPUs", "MTBF", "ETTR", "goodput", "lost", "saved")
JOB_COLUMNS_NOTE = (
    "goodput: GPU-hours of progress an hour; lost: GPU-hours by one interruption; "
    "saved: GPU-hours at most, if each failure that was found had struck such a job"
)


class ReliabilityReport(Struct, frozen=True, kw_only=True):
    """How reliable the fleet was, and what its jobs have to expect."""

    days: float
    """The days with known outages, at most those that were asked for."""
    reliability: FleetReliability
    assumptions: JobAssumptions
    jobs: tuple[JobForecast, ...]
    """From one node to all of them; empty: there is no history yet."""


def build_reliability_report(
    ledger: Ledger, assumptions: JobAssumptions, days: float = DEFAULT_DAYS
) -> ReliabilityReport:
    """Report on the last *days* of the nodes that the scheduler still has."""
    now = ledger.clock()
    began = max(now - days * DAY_S, ledger.read_fleet_start())
    nodes = (node for node in ledger.list_nodes().values() if not is_gone(node, now))
    seen_since = {node.name: node.first_seen_at / DAY_S for node in nodes}
    records = ledger.list_outages(began)
    outages = [record.convert_to_days(now) for record in records if record.is_failure]
    places = _find_places(seen_since, ledger)
    measured = measure_reliability(seen_since, outages, began / DAY_S, now / DAY_S, places)
    sizes = list_job_sizes(measured.nodes)
    rate = measured.failure_rate
    return ReliabilityReport(
        days=max(0.0, now - began) / DAY_S,
        reliability=measured,
        assumptions=assumptions,
        jobs=tuple(forecast_job(size, rate, assumptions) for size in sizes) if rate else (),
    )


def _find_places(nodes: Iterable[str], ledger: Ledger) -> dict[str, str]:
    """Find the switch of each node as the last sweep saw it, or the rack that its name has."""
    racks = {node: rack for node in nodes if (rack := find_rack(node))}
    return {**racks, **ledger.read_links().switches}


def list_job_sizes(nodes: int) -> list[int]:
    """List sizes of jobs from one node to all *nodes*."""
    count = math.ceil(math.log(max(nodes, 1), JOB_SIZE_STEP))
    return [*(JOB_SIZE_STEP**power for power in range(count)), nodes] if nodes else []


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


def list_job_rows(report: ReliabilityReport) -> Iterator[tuple[str, ...]]:
    """Yield a row under `JOB_HEADS` for each size of a job; none without a history."""
    for job in report.jobs:
        yield _build_row(job, report.reliability.found)


def _build_row(job: JobForecast, failures_found: int) -> tuple[str, ...]:
    """Build the row of a size of jobs; each of *failures_found* would have struck such a job."""
    ettr = job.ettr
    return (
        f"{job.nodes:,}",
        f"{job.gpus:,}",
        _format_hours(job.mtbf_hours),
        f"{ettr.value * 100:.1f} % ({ettr.low * 100:.1f}-{ettr.high * 100:.1f})",
        f"{job.gpus * ettr.value:,.0f}",
        f"{job.lost_gpu_hours:,.0f}",
        f"{failures_found * job.lost_gpu_hours:,.0f}",
    )


def _format_hours(hours: Estimate) -> str:
    """Format *hours* in the unit in which they are read most easily."""
    size, unit = DAY_HOURS, "d"
    if hours.value < 2 * DAY_HOURS:
        size, unit = (1.0, "h") if hours.value > 1 else (1 / 60, "min")
    shown = hours.map(lambda value: value / size)
    interval = format_range(shown, ",.3g").replace(" to ", "-")  # narrow, as all cells here
    return f"{shown.value:,.3g} {unit} ({interval})"


def describe_assumptions(report: ReliabilityReport) -> str:
    """Say what the table rests on."""
    assumptions = report.assumptions
    gpus = format_count(assumptions.gpus_per_node, "GPU")
    return (
        f"assumed: {assumptions.checkpoint_write_minutes:g} min to write a checkpoint, "
        f"{assumptions.restart_minutes:g} min to restart, {gpus} a node, checkpoints at the "
        "best interval, all nodes alike: of first order, too low below 0.5 (arXiv:2410.21680)"
    )
