"""``hpcverify hold``: take nodes out of service by hand."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON


@click.command("hold")
@click.argument("hostlist")
@click.option("--reason", required=True, type=REASON, help="For whoever finds it held.")
def command(hostlist: str, reason: str) -> None:
    """
    Take the nodes of HOSTLIST out of service: drained, with your name and reason.

    \b
    Example:
      hpcverify hold n17 --reason "fan replacement on Monday"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import change, controller, decide, status_of
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, Node, State

    acting = controller()

    def hold(node: Node) -> None:
        if node.wanted is Hold.DRAIN:
            raise ActionError(f"{node.name} is held already: {node.reason}")
        last = acting.ledger.last_ticket()
        now = {"state": State.HELD, "enforced": True, "after": last}
        change(acting, node, "hold", reason, **now)
        acting.orders.give_up(node.name)

    held, refused = decide(acting, hostlist, hold)
    if held and not acting.status():
        click.echo(f"{held}: held; what runs there goes on to its end")
    sys.exit(status_of(acting, refused))
