"""``hpcverify collect``: take in finished runs, judge them, and act on the nodes."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._controller import make_controller, report_brakes
from hpcverify.console import say
from hpcverify.fleet.ledger import Ledger
from hpcverify.history.writer import MeasurementWriter
from hpcverify.processes import write_install_command


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
        acting.reconcile()
    left = len(acting.ledger.list_open_tickets())
    click.echo(f"runs taken in: {acting.runs_taken_in}; verifications under way: {left}")
    sys.exit(report_brakes(acting) or acting.choose_exit_status())


def tell_once_of_measurements(ledger: Ledger, writer: MeasurementWriter | None) -> None:
    """Say that no measurements are kept, if so: once, since this runs every few minutes."""
    missing = ""
    if writer is None:
        install = write_install_command("duckdb")
        missing = f"what runs measure is not kept for peers and trends without duckdb: {install}"
    if ledger.record_notice("measurements", missing):
        say(missing)
