"""``hpcverify repair``: nodes were repaired; verify them, and let them back."""

from __future__ import annotations

import sys
from functools import partial

import click

from hpcverify.commands._controller import UNDER_VERIFICATION, decide, make_controller
from hpcverify.commands._options import reason_option
from hpcverify.fleet import transitions


@click.command("repair")
@click.argument("hostlist")
@reason_option("What was done.")
@click.option("--suite", help="What to pass; what it failed in when left out.")
def command(hostlist: str, reason: str, suite: str | None) -> None:
    """
    Say that nodes were repaired: verified under a reservation, and then released.

    They stay out of service until they pass.

    \b
    Example:
      hpcverify repair n17 --reason "GPU 3 replaced"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    acting = make_controller()
    if suite is not None:
        acting.dispatcher.compute_job_minutes(suite)  # what is wrong with it shows now
    repair = partial(transitions.repair, suite=suite, default=acting.site.fleet.suite)
    sys.exit(decide(acting, hostlist, reason, repair, UNDER_VERIFICATION))
