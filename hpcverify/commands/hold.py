"""``hpcverify hold``: take a node out of service by hand."""

from __future__ import annotations

import sys

import click


@click.command("hold")
@click.argument("node")
@click.option("--reason", required=True, help="For whoever finds it held.")
def command(node: str, reason: str) -> None:
    """
    Take NODE out of service, by hand: it is drained with your name and reason.

    \b
    Example:
      hpcverify hold n17 --reason "fan replacement on Monday"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import change, controller, known
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, State

    acting = controller()
    with acting.alone():
        found = known(acting, node, acting.keeper.look())
        if found.wanted is Hold.DRAIN:
            raise ActionError(f"{node} is held already: {found.reason}")
        last = acting.ledger.last_ticket()
        change(
            acting, found, "hold", reason, state=State.HELD, enforced=True, after=last
        )
        acting.orders.give_up(node)
        acting.turn()
    if acting.status():
        sys.exit(acting.status())  # it was told why
    click.echo(f"{node}: held; no new job starts there, what runs goes on to its end")
