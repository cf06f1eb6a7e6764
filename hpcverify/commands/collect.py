"""``hpcverify collect``: take in what nodes have found, judge, act."""

from __future__ import annotations

import sys

import click


@click.command("collect")
def command() -> None:
    """
    Take in finished runs from the spool, judge them, and act on the nodes.

    What was killed in between goes on where it was: run it as often as you like.
    Exit status 4 while the breaker is tripped or a check is doubted: failures are not
    acted on then.

    \b
    Example:
      hpcverify collect
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import controller, tell_brakes

    acting = controller()
    with acting.alone():
        acting.turn()
    left = len(acting.ledger.open_tickets())
    click.echo(f"runs taken in: {acting.taken_in}; verifications under way: {left}")
    sys.exit(tell_brakes(acting) or acting.status())
