"""``hpcverify breaker``: see why failures are not acted on, and reset it."""

from __future__ import annotations

import time

import click

from hpcverify.commands._controller import identify_caller, record_command
from hpcverify.commands._options import reason_option
from hpcverify.console import echo
from hpcverify.errors import ActionError
from hpcverify.fleet.breaker import find_doubts
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import load_site, state_dir
from hpcverify.plan.hostlist import fold
from hpcverify.records.store import Store


@click.group("breaker", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """
    Say whether the breaker is tripped, and which checks are doubted, and why.

    \b
    Examples:
      hpcverify breaker
      hpcverify breaker reset --reason "it was the driver of image 41"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if ctx.invoked_subcommand is not None:
        return
    ledger, store = Ledger(state_dir()), Store(state_dir())
    why = ledger.read_trip_reason()
    reset = "reset with: hpcverify breaker reset --reason …"
    echo(f"tripped: {why}; {reset}" if why else "not tripped")
    for doubt in find_doubts(ledger, store, load_site().quarantine, time.time()):
        echo(f"doubted: {doubt.text}")


@command.command("reset")
@reason_option("The cause that was found.")
@record_command()
def reset(reason: str) -> None:
    """Act on failures again, from now on; earlier ones no longer count."""
    ledger, store = Ledger(state_dir()), Store(state_dir())
    if not ledger.read_trip_reason():
        doubts = find_doubts(ledger, store, load_site().quarantine, time.time())
        if not doubts:
            raise ActionError("the breaker is not tripped: nothing to reset")
        checks = ", ".join(doubt.check for doubt in doubts)
        nodes = fold({node for doubt in doubts for node in doubt.nodes})
        raise ActionError(
            f"the breaker is not tripped, and a doubt ends by itself: fix what makes "
            f"{checks} fail (a limit, the driver, the image), then hpcverify sweep "
            f"--nodes {nodes}"
        )
    ledger.reset(identify_caller(), reason)
    echo("reset: failures found from now on count")
