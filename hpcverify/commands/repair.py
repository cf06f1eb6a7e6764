"""``hpcverify repair``: nodes were repaired; verify them, and let them back."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("repair")
@click.argument("hostlist")
@click.option("--reason", required=True, type=REASON_TYPE, help="What was done.")
@click.option("--suite", help="What to pass; what it failed in when left out.")
def command(hostlist: str, reason: str, suite: str | None) -> None:
    """
    Say that nodes were repaired: verified under a reservation, and then released.

    They stay out of service until they pass.

    \b
    Example:
      hpcverify repair n17 --reason "GPU 3 replaced"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.commands._acting import choose_status, decide, make_controller, record_decision
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, Node, State

    acting = make_controller()
    if suite is not None:
        acting.dispatcher.compute_job_minutes(suite)  # what is wrong with it shows now

    def repair(node: Node) -> None:
        if node.desired_hold is not Hold.DRAIN:
            raise ActionError(
                f"{node.name} is {node.state} and not out of service, nothing to "
                f"repair; to verify it now: hpcverify sweep --nodes {node.name}"
            )
        record_decision(
            acting,
            node,
            "repair",
            reason,
            state=State.VERIFYING,
            hard=False,
            suite=suite or node.suite or acting.site.fleet.suite,
            not_before_ticket=acting.ledger.read_last_ticket_number(),
        )

    kept, refused = decide(acting, hostlist, repair)
    if kept:
        click.echo(f"{kept}: under verification; hpcverify collect goes on with it")
    sys.exit(choose_status(acting, refused))
