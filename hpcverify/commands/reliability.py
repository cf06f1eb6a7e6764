"""``hpcverify fleet reliability``: how often nodes fail."""

from __future__ import annotations

import click

from hpcverify.commands._options import Duration, json_option
from hpcverify.console import echo, print_json
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S
from hpcverify.insight.outlook import (
    DEFAULT_DAYS,
    build_reliability_report,
    describe_reliability,
)
from hpcverify.plan.config import load_site, state_dir

NOTE_CHARACTERS = 80


@click.command("reliability")
@click.option(
    "--period",
    type=Duration(low=DAY_S, high=3650 * DAY_S),
    default=f"{DEFAULT_DAYS:g}d",
    show_default=True,
    help="Analyze outages of this period.",
)
@json_option
def command(*, period: float, as_json: bool) -> None:
    """
    Show how often nodes fail, and how long they are out of service.

    Reads the outages in the ledger of the controller. A failure is a fault that a rerun did
    not clear, or a node that Slurm set down. Drains by people for other reasons do not count.
    Intervals are 95 % confidence intervals.

    \b
    Example:
      hpcverify fleet reliability --period 30d
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    report = build_reliability_report(Ledger(state_dir()), load_site(), period / DAY_S)
    if as_json:
        print_json(report)
        return
    for line in describe_reliability(report):
        echo(click.wrap_text(line, NOTE_CHARACTERS))
