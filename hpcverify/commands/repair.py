"""``hpcverify repair``: a node was repaired; verify it, and let it back."""

from __future__ import annotations

import sys

import click


@click.command("repair")
@click.argument("node")
@click.option("--reason", required=True, help="What was done.")
def command(node: str, reason: str) -> None:
    """
    Say that NODE was repaired: it is verified under a reservation, and then released.

    It stays out of service all the while, and goes back there if it fails again.

    \b
    Example:
      hpcverify repair n17 --reason "GPU 3 replaced"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import change, controller, known
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, State

    acting = controller()
    with acting.alone():
        found = known(acting, node, acting.keeper.look())
        if found.wanted is not Hold.DRAIN:
            raise ActionError(
                f"{node} is {found.state} and not out of service: nothing to repair"
            )
        change(
            acting,
            found,
            "repair",
            reason,
            state=State.VERIFYING,
            suite=found.suite or acting.site.fleet.suite,
            after=acting.ledger.last_ticket(),
        )
        acting.turn()
    click.echo(f"{node}: verification under way; hpcverify collect goes on with it")
    sys.exit(acting.status())
