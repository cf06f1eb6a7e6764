"""``hpcverify release``: put a node back into service by hand."""

from __future__ import annotations

import sys

import click


@click.command("release")
@click.argument("node")
@click.option("--reason", required=True, help="Why it may go back.")
@click.option("--force", is_flag=True, help="Though it has not passed since it failed.")
def command(node: str, reason: str, *, force: bool) -> None:
    """
    Put NODE back into service: one that was held by hand, or a lemon that has passed.

    A quarantined node goes back by `hpcverify repair`, which verifies it first; --force
    is for when you know better, and your name stands beside it.

    \b
    Example:
      hpcverify release n17 --reason "fans are new"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import change, controller, known
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import State

    acting = controller()
    with acting.alone():
        found = known(acting, node, acting.keeper.look())
        failed = found.checks or found.state in (State.QUARANTINED, State.LEMON)
        if not found.enforced:
            raise ActionError(f"{node} is {found.state} and not out of service")
        if failed and not force:
            raise ActionError(
                f"{node} has not passed {', '.join(found.checks)} since it failed: "
                f"hpcverify repair {node} --reason … verifies and releases it"
            )
        change(
            acting,
            found,
            "release by force" if failed else "release",
            reason,
            state=State.UNVERIFIED,
            enforced=False,
            lemon=False,
            checks=(),
            after=acting.ledger.last_ticket(),
        )
        acting.orders.give_up(node)
        acting.turn()
    if acting.status():
        sys.exit(acting.status())  # it was told why
    click.echo(f"{node}: back in service")
