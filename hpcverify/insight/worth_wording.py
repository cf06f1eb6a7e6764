"""What verification is worth, as a table for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.insight.worth import FleetWorth, format_range
from hpcverify.reliability.jobs import JobOutlook
from hpcverify.reliability.outages import Estimate
from hpcverify.units import format_count

JOB_HEADS = ("nodes", "GPUs", "MTBF", "ETTR", "goodput", "lost", "saved")
JOB_COLUMNS_NOTE = (
    "goodput: GPU-hours of progress an hour; lost: GPU-hours by one interruption; "
    "saved: GPU-hours at most, if each failure that was found had struck such a job"
)
DAY_HOURS = 24.0


def list_job_rows(worth: FleetWorth) -> Iterator[tuple[str, ...]]:
    """Yield a row under `JOB_HEADS` for each size of a job; none without a history."""
    for job in worth.jobs:
        yield _build_row(job, worth.reliability.found)


def _build_row(job: JobOutlook, failures_found: int) -> tuple[str, ...]:
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


def describe_assumptions(worth: FleetWorth) -> str:
    """Say what the table rests on."""
    assumptions = worth.assumptions
    gpus = format_count(assumptions.gpus_per_node, "GPU")
    return (
        f"assumed: {assumptions.checkpoint_write_minutes:g} min to write a checkpoint, "
        f"{assumptions.restart_minutes:g} min to restart, {gpus} a node, checkpoints at the "
        "best interval, all nodes alike: of first order, too low below 0.5 (arXiv:2410.21680)"
    )
