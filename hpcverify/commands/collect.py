"""``hpcverify fleet collect``: take in finished runs, judge them, and act on the nodes."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._controller import (
    make_controller,
    report_brakes,
    tell_once_of_measurements,
)
from hpcverify.console import echo
from hpcverify.errors import SlurmError
from hpcverify.fabric.leftovers import remove_leftovers
from hpcverify.fleet.controller import Controller
from hpcverify.insight.night import judge_finished_night


@click.command("collect")
def command() -> None:
    """
    Collect finished runs from the spool, judge them, and act on the nodes.

    If it is killed, the next collect continues. Exit status 4 while the breaker is tripped or
    a check is doubted: then no node is held for a failure.

    \b
    Example:
      hpcverify fleet collect
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    take_cycle(controller)
    left = len(controller.ledger.list_open_tickets())
    echo(f"runs taken in: {controller.runs_taken_in}; verifications under way: {left}")
    sys.exit(report_brakes(controller) or controller.choose_exit_status())


def take_cycle(controller: Controller) -> None:
    """
    Do what is due, and what is convenient.

    Raises:
        SlurmError: the scheduler does not answer in full; nothing was done.

    """
    with controller.hold_lock():
        tell_once_of_measurements(controller.ledger, controller.measurements)
        with controller.run_convenience("removal of what a killed sweep left", stops=(SlurmError,)):
            remove_leftovers(controller)
        controller.reconcile()
        judge_finished_night(controller)
