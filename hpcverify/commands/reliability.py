"""``hpcverify reliability``: how often nodes fail, and what that costs jobs."""

from __future__ import annotations

import click
import msgspec

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.worth import (
    DEFAULT_DAYS,
    FleetWorth,
    assess_worth,
    describe_worth,
    format_range,
)
from hpcverify.plan.config import load_site, state_dir
from hpcverify.reliability.jobs import JobOutlook
from hpcverify.reliability.outages import Estimate
from hpcverify.summary.terminal import Console, print_table

COLUMN_HEADS = ("nodes", "GPUs", "MTBF", "ETTR", "goodput", "lost", "saved")
DAY_HOURS = 24.0


@click.command("reliability")
@click.option(
    "--days",
    type=click.FloatRange(min=1, max=3650),
    default=DEFAULT_DAYS,
    show_default=True,
    help="Look at so many days.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, days: float, as_json: bool) -> None:
    """
    Say how often nodes fail, and what jobs of each size have to expect.

    From the outages in the controller's ledger. Failures are what a verification or a
    hook found and a rerun did not clear, and what Slurm itself set down. What people
    drain for other reasons is left out. Intervals are of 95 %.

    ETTR, the effective training time ratio, is the share of a job's time that makes
    progress. What is assumed of jobs is the site's table [reliability].

    \b
    Example:
      hpcverify reliability --days 30
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    worth = assess_worth(Ledger(state_dir()), load_site().reliability, days)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(worth), indent=1))
        return
    click.echo("\n".join(describe_worth(worth)))
    if worth.jobs:
        click.echo()
        rows = [build_row(job, worth.reliability.found) for job in worth.jobs]
        print_table(Console(highlight=False), COLUMN_HEADS, rows)
        click.echo(describe_assumptions(worth))


def build_row(job: JobOutlook, found: int) -> tuple[str, ...]:
    """Build the row of a size of jobs; *found* failures that it was spared, if all had hit it."""
    ettr = job.ettr
    return (
        f"{job.nodes:,}",
        f"{job.gpus:,}",
        format_hours(job.mtbf_hours),
        f"{ettr.value:.1%} ({ettr.low * 100:.1f} to {ettr.high * 100:.1f})",
        f"{job.gpus * ettr.value:,.0f}",
        f"{job.lost_gpu_hours:,.0f}",
        f"{found * job.lost_gpu_hours:,.0f}",
    )


def format_hours(hours: Estimate) -> str:
    """Format *hours* in the unit in which they are read most easily."""
    size, unit = DAY_HOURS, "d"
    if hours.value < 2 * DAY_HOURS:
        size, unit = (1.0, "h") if hours.value > 1 else (1 / 60, "min")
    shown = hours.map(lambda each: each / size)
    return f"{shown.value:,.3g} {unit} ({format_range(shown, ',.3g')})"


def describe_assumptions(worth: FleetWorth) -> str:
    """Say what the table rests on."""
    given = worth.assumptions
    return "\n".join(
        (
            "goodput: GPU-hours of progress an hour; lost: GPU-hours by one interruption;",
            "saved: GPU-hours at most, if each failure that was found had struck such a job",
            (
                f"assumed: {given.checkpoint_write_minutes:g} min to write a checkpoint, "
                f"{given.restart_minutes:g} min to restart, {given.gpus_per_node} GPUs a node, "
                "checkpoints at"
            ),
            "the best interval, all nodes alike: the best case (arXiv:2410.21680)",
        )
    )
