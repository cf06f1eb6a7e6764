"""``hpcverify admit``: new hardware, verified before any job sees it."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("admit")
@click.argument("hostlist")
@click.option("--suite", default="burnin", show_default=True, help="What to pass.")
@click.option(
    "--reason", default="new", show_default=True, type=REASON_TYPE, help="For the audit log."
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
    from hpcverify.commands._acting import choose_status, decide, make_controller, record_decision
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, Node, State

    acting = make_controller()
    acting.dispatcher.compute_job_minutes(suite)  # what is wrong with it shows now

    def admit(node: Node) -> None:
        if node.desired_hold is Hold.DRAIN:
            raise ActionError(
                f"{node.name} is {node.state}: hpcverify repair {node.name} --reason …"
            )
        kept = {"state": State.VERIFYING, "enforced": True, "suite": suite}
        last = acting.ledger.read_last_ticket_number()
        record_decision(
            acting, node, "admit", reason, **kept, hard=False, run="", not_before_ticket=last
        )

    kept, refused = decide(acting, hostlist, admit)
    if kept:
        click.echo(f"{kept}: under verification; hpcverify collect goes on with it")
    sys.exit(choose_status(acting, refused))
