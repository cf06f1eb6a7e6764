"""``hpcverify fleet reliability``: how often nodes fail."""

from __future__ import annotations

import click

from hpcverify.commands._options import FiniteRange
from hpcverify.console import echo, print_json
from hpcverify.fleet.ledger import Ledger
from hpcverify.insight.outlook import (
    DEFAULT_DAYS,
    build_reliability_report,
    describe_reliability,
)
from hpcverify.plan.config import load_site, state_dir

NOTE_CHARACTERS = 80


@click.command("reliability")
@click.option(
    "--days",
    type=FiniteRange(min=1, max=3650),
    default=DEFAULT_DAYS,
    show_default=True,
    help="Look at so many days.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, days: float, as_json: bool) -> None:
    """
    Say how often nodes fail, and how long they are out of service.

    From the outages in the controller's ledger. Failures are what a verification or a
    hook found and a rerun did not clear, and what Slurm itself set down. What people
    drain for other reasons is left out. Intervals are of 95 %.

    \b
    Example:
      hpcverify fleet reliability --days 30
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    report = build_reliability_report(Ledger(state_dir()), load_site(), days)
    if as_json:
        print_json(report)
        return
    for line in describe_reliability(report):
        echo(click.wrap_text(line, NOTE_CHARACTERS))
