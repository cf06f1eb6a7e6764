"""``hpcverify adopt``: take back what bears our mark when the ledger is lost."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("adopt")
@click.argument("hostlist", required=False)
@click.option(
    "--reason",
    default="the ledger was lost",
    show_default=True,
    type=REASON_TYPE,
    help="For the audit log.",
)
def command(hostlist: str | None, reason: str) -> None:
    """
    Take back the nodes that bear our mark and that the ledger does not know.

    For when fleet.sqlite is lost and there is no backup. A node that we had drained is
    quarantined again for the reason that stands on it; one that we had reserved is
    verified there, and goes back into service if it passes. Without HOSTLIST, all of
    them.

    \b
    Examples:
      hpcverify adopt
      hpcverify adopt n[17-19] --reason "the disk of ctl1 died"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify import catalog
    from hpcverify.cli import say
    from hpcverify.commands._acting import (
        choose_status,
        identify_caller,
        make_controller,
        refuse_unknown,
    )
    from hpcverify.fleet.adoption import adopt, find_unowned, is_taken_over
    from hpcverify.quarantine.life import State
    from hpcverify.slurm.hostlist import expand, fold

    acting = make_controller()
    asked = expand(hostlist) if hostlist else []
    with acting.hold_lock():
        there = acting.observe_holds()
        refuse_unknown(asked, there)
        unowned = find_unowned(there, acting.ledger)
        strangers = [name for name in asked if name not in unowned]
        for name in strangers:
            say(f"{name}: nothing there bears our mark, or it is ours already")
        chosen = asked or [
            name for name, seen in unowned.items() if not is_taken_over(seen, acting.ledger)
        ]
        checks = set(catalog.list_check_names(acting.site.packages))
        suite, by = acting.site.fleet.suite, identify_caller()
        nodes = [
            adopt(unowned[name], acting.ledger, checks, suite=suite, person=by, why=reason)
            for name in chosen
            if name in unowned
        ]
        acting.reconcile()
    for state, told in (
        (State.QUARANTINED, "quarantined; hpcverify repair verifies and releases them"),
        (State.VERIFYING, "under verification; hpcverify collect goes on with it"),
    ):
        if names := [node.name for node in nodes if node.state is state]:
            click.echo(f"{fold(names)}: {told}")
    if not (nodes or strangers):
        click.echo("nothing bears our mark that is not known")
    sys.exit(choose_status(acting, len(strangers)))
