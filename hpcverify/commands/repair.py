"""``hpcverify repair``: verify nodes that were repaired, and release what passes."""

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


@click.command("repair")
@click.argument("hostlist")
@reason_option("What was done.")
@click.option("--suite", help="What to pass; default: what it failed in.")
@record_command()
def command(hostlist: str, reason: str, suite: str | None) -> None:
    """
    Verify repaired nodes under a reservation, and release those that pass.

    Until then they stay out of service.

    \b
    Example:
      hpcverify repair n17 --reason "GPU 3 replaced"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    if suite is not None:
        controller.dispatcher.compute_job_minutes(suite)  # reports a mistake at once
    repair = partial(transitions.repair, suite=suite, default=controller.site.fleet.suite)
    sys.exit(decide(controller, hostlist, reason, repair, UNDER_VERIFICATION))
