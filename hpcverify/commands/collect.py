"""``hpcverify collect``: take in finished runs, judge them, and act on the nodes."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._controller import (
    make_controller,
    report_brakes,
    tell_once_of_measurements,
)
from hpcverify.fleet.leftovers import remove_leftovers
from hpcverify.fleet.night import judge_finished_night


@click.command("collect")
def command() -> None:
    """
    Take in finished runs from the spool, judge them, and act on the nodes.

    Run it as often as you like; if it is killed, the next one continues. Exit status 4
    while the breaker is tripped or a check is doubted: failures are not acted on then.

    \b
    Example:
      hpcverify collect
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    acting = make_controller()
    with acting.hold_lock():
        tell_once_of_measurements(acting.ledger, acting.measurements)
        remove_leftovers(acting)
        acting.reconcile()
        judge_finished_night(acting)
    left = len(acting.ledger.list_open_tickets())
    click.echo(f"runs taken in: {acting.runs_taken_in}; verifications under way: {left}")
    sys.exit(report_brakes(acting) or acting.choose_exit_status())
