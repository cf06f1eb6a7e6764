"""``hpcverify admit``: new hardware, verified before any job sees it."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON


@click.command("admit")
@click.argument("hostlist")
@click.option("--suite", default="burnin", show_default=True, help="What to pass.")
@click.option(
    "--reason", default="new", show_default=True, type=REASON, help="For the audit log."
)
def command(hostlist: str, suite: str, reason: str) -> None:
    """
    Verify the nodes of HOSTLIST outside service, and let in what passes.

    Each is kept in a maintenance reservation until it has passed; `hpcverify collect`
    goes on with them, and `hpcverify nodes` shows how far they are.

    \b
    Examples:
      hpcverify admit n[17-32]
      hpcverify admit n17 --suite idle --reason "back from the vendor"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import change, controller, decide, status_of
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, Node, State

    acting = controller()
    acting.orders.minutes(suite)  # what is wrong with it shows now

    def admit(node: Node) -> None:
        if node.wanted is Hold.DRAIN:
            raise ActionError(
                f"{node.name} is {node.state}: hpcverify repair {node.name} --reason …"
            )
        kept = {"state": State.VERIFYING, "enforced": True, "suite": suite}
        last = acting.ledger.last_ticket()
        change(acting, node, "admit", reason, **kept, hard=False, run="", after=last)

    kept, refused = decide(acting, hostlist, admit)
    if kept:
        click.echo(f"{kept}: under verification; hpcverify collect goes on with it")
    sys.exit(status_of(acting, refused))
