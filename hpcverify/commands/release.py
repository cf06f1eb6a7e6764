"""``hpcverify release``: put nodes back into service by hand."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("release")
@click.argument("hostlist")
@click.option("--reason", required=True, type=REASON_TYPE, help="Why it may go back.")
@click.option("--force", is_flag=True, help="Though it has not passed since it failed.")
def command(hostlist: str, reason: str, *, force: bool) -> None:
    """
    Put nodes back into service: held by hand, or lemons that have passed.

    A quarantined node goes back by `hpcverify repair`, which verifies it first; --force
    is for when you know better, and your name stands beside it.

    \b
    Example:
      hpcverify release n17 --reason "fans are new"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import choose_status, decide, make_controller, record_decision
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Node, State, add_return

    acting = make_controller()

    def release(node: Node) -> None:
        failed = node.checks or node.state in (State.QUARANTINED, State.LEMON)
        if not node.enforced:
            raise ActionError(f"{node.name} is {node.state} and not out of service")
        if failed and not force:
            raise ActionError(
                f"{node.name} has not passed {', '.join(node.checks)} since it failed: "
                f"hpcverify repair {node.name} --reason … verifies and releases it"
            )
        back = add_return(node, acting.clock()) if failed or node.lemon else node
        record_decision(
            acting,
            node,
            "release by force" if failed else "release",
            reason,
            state=State.UNVERIFIED,
            enforced=False,
            lemon=False,
            hard=False,
            checks=(),
            not_before_ticket=acting.ledger.read_last_ticket_number(),
            returned_at=back.returned_at,
        )
        acting.dispatcher.cancel_verification(node.name)

    released, refused = decide(acting, hostlist, release)
    if released and not acting.choose_exit_status():
        click.echo(f"{released}: back in service")
    sys.exit(choose_status(acting, refused))
