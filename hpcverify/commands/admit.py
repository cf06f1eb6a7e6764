"""``hpcverify admit``: verify new nodes before any job runs on them."""

from __future__ import annotations

import sys
from functools import partial

import click

from hpcverify.commands._controller import (
    UNDER_VERIFICATION,
    decide,
    make_controller,
    record_command,
)
from hpcverify.commands._options import reason_option
from hpcverify.fleet import transitions
from hpcverify.plan.hostlist import expand, fold


@click.command("admit")
@click.argument("hostlist")
@click.option(
    "--suite", default="burnin", show_default=True, help="Suite that each node must pass."
)
@reason_option("For the audit log.", default="new")
@record_command()
def command(hostlist: str, suite: str, reason: str) -> None:
    """
    Verify new nodes before any job runs on them, and admit those that pass.

    Each stays in a maintenance reservation until it has passed. `hpcverify collect`
    moves them on, and `hpcverify nodes` shows their progress. Several nodes are then
    tested with each other by `hpcverify sweep`, if [fabric] period_days is set.

    \b
    Examples:
      hpcverify admit n[17-32]
      hpcverify admit n17 --suite idle --reason "back from the vendor"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    controller.dispatcher.compute_job_minutes(suite)  # reports a mistake at once
    names = expand(hostlist)
    batch = fold(names) if controller.site.fabric.period_days and len(names) > 1 else ""
    admit = partial(transitions.admit, suite=suite, batch=batch)
    sys.exit(decide(controller, hostlist, reason, admit, UNDER_VERIFICATION))
