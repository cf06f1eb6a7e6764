"""``hpcverify breaker``: see why nobody is acted on, and act again."""

from __future__ import annotations

import click

from hpcverify.commands._reason import REASON


@click.group("breaker", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """
    Say whether the breaker is tripped, and why.

    \b
    Examples:
      hpcverify breaker
      hpcverify breaker reset --reason "it was the driver of image 41"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if ctx.invoked_subcommand is not None:
        return
    from hpcverify.config import state_dir
    from hpcverify.quarantine.ledger import Ledger

    why = Ledger(state_dir()).tripped()
    reset = "act again with: hpcverify breaker reset --reason …"
    click.echo(f"tripped: {why}; {reset}" if why else "not tripped")


@command.command("reset")
@click.option("--reason", required=True, type=REASON, help="What it was.")
def reset(reason: str) -> None:
    """Act again, on what is found from now on: what failed before is left alone."""
    from hpcverify.commands._acting import person
    from hpcverify.config import state_dir
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.ledger import Ledger

    ledger = Ledger(state_dir())
    if not ledger.tripped():
        raise ActionError("the breaker is not tripped: nothing to reset")
    ledger.reset(person(), reason)
    click.echo("acting again, on what is found from now on")
