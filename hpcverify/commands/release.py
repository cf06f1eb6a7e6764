"""``hpcverify release``: put nodes back into service by hand."""

from __future__ import annotations

import sys
from functools import partial

import click

from hpcverify.commands._controller import decide, make_controller, record_command
from hpcverify.commands._options import reason_option
from hpcverify.fleet import transitions


@click.command("release")
@click.argument("hostlist")
@reason_option("Why it may go back.")
@click.option("--force", is_flag=True, help="Even if it has not passed since it failed.")
@record_command()
def command(hostlist: str, reason: str, *, force: bool) -> None:
    """
    Put nodes back into service that were held by hand, or repeat offenders that passed.

    Use `hpcverify repair` for a quarantined node: it verifies the node first. --force
    is for when you know better; the audit log keeps your name.

    \b
    Example:
      hpcverify release n17 --reason "fans are new"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    release = partial(transitions.release, force=force)
    sys.exit(decide(make_controller(), hostlist, reason, release, "back in service"))
