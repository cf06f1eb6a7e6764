"""``hpcverify admit``: new hardware, verified before any job sees it."""

from __future__ import annotations

import sys
from functools import partial

import click

from hpcverify.commands._controller import UNDER_VERIFICATION, decide, make_controller
from hpcverify.commands._options import reason_option
from hpcverify.fleet import transitions


@click.command("admit")
@click.argument("hostlist")
@click.option("--suite", default="burnin", show_default=True, help="What to pass.")
@reason_option("For the audit log.", default="new")
def command(hostlist: str, suite: str, reason: str) -> None:
    """
    Verify the nodes of HOSTLIST outside service, and let in what passes.

    Each is kept in a maintenance reservation until it has passed; `hpcverify collect`
    goes on with them, and `hpcverify nodes` shows how far they are.

    \b
    Examples:
      hpcverify admit n[17-32]
      hpcverify admit n17 --suite idle --reason "back from the vendor"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    acting = make_controller()
    acting.dispatcher.compute_job_minutes(suite)  # what is wrong with it shows now
    admit = partial(transitions.admit, suite=suite)
    sys.exit(decide(acting, hostlist, reason, admit, UNDER_VERIFICATION))
