"""``hpcverify hold``: take nodes out of service by hand."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("hold")
@click.argument("hostlist")
@click.option("--reason", required=True, type=REASON_TYPE, help="For whoever finds it held.")
def command(hostlist: str, reason: str) -> None:
    """
    Take the nodes of HOSTLIST out of service: drained, with your name and reason.

    \b
    Example:
      hpcverify hold n17 --reason "fan replacement on Monday"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import choose_status, decide, make_controller, record_decision
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, Node, State

    acting = make_controller()

    def hold(node: Node) -> None:
        if node.desired_hold is Hold.DRAIN:
            raise ActionError(f"{node.name} is held already: {node.reason}")
        last = acting.ledger.read_last_ticket_number()
        now = {"state": State.HELD, "enforced": True, "not_before_ticket": last}
        record_decision(acting, node, "hold", reason, **now)
        acting.dispatcher.cancel_verification(node.name)

    held, refused = decide(acting, hostlist, hold)
    if held and not acting.choose_exit_status():
        click.echo(f"{held}: held; what runs there goes on to its end")
    sys.exit(choose_status(acting, refused))
