"""``hpcverify hold``: take nodes out of service by hand."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._controller import decide, make_controller, record_command
from hpcverify.commands._options import reason_option
from hpcverify.fleet.transitions import hold


@click.command("hold")
@click.argument("hostlist")
@reason_option("For whoever finds it held.")
@record_command()
def command(hostlist: str, reason: str) -> None:
    """
    Take the nodes of HOSTLIST out of service: drained, with your name and reason.

    \b
    Example:
      hpcverify hold n17 --reason "fan replacement on Monday"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    done = "held; running jobs go on to their end"
    sys.exit(decide(make_controller(), hostlist, reason, hold, done))
