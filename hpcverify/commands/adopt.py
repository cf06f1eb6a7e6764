"""``hpcverify adopt``: take back our holds when the ledger is lost."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._controller import (
    UNDER_VERIFICATION,
    choose_status,
    make_controller,
    make_decision,
    record_command,
    refuse_unknown,
)
from hpcverify.commands._options import reason_option
from hpcverify.console import echo, say
from hpcverify.fleet.adopt import adopt, find_unowned, is_taken_over
from hpcverify.fleet.states import State
from hpcverify.plan import catalog
from hpcverify.plan.hostlist import expand, fold


@click.command("adopt")
@click.argument("hostlist", required=False)
@reason_option("For the audit log.", default="the ledger was lost")
@record_command()
def command(hostlist: str | None, reason: str) -> None:
    """
    Take back nodes with a hold of hpcverify that the ledger does not know.

    For when fleet.sqlite is lost and there is no backup. A node that hpcverify had
    drained is quarantined again, for the reason that Slurm shows. One that it had
    reserved is verified there, and goes back into service if it passes. Without
    HOSTLIST, all of them.

    \b
    Examples:
      hpcverify adopt
      hpcverify adopt n[17-19] --reason "the disk of ctl1 died"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    asked = expand(hostlist) if hostlist else []
    with controller.hold_lock():
        there = controller.observe_holds()
        refuse_unknown(asked, there)
        unowned = find_unowned(there, controller.ledger)
        strangers = [name for name in asked if name not in unowned]
        for name in strangers:
            say(f"{name}: it has no hold of hpcverify, or the ledger knows it")
        chosen = asked or [
            name for name, seen in unowned.items() if not is_taken_over(seen, controller.ledger)
        ]
        checks = set(catalog.list_check_names(controller.site.packages))
        suite, decision = controller.site.fleet.suite, make_decision(controller, reason)
        nodes = [
            adopt(unowned[name], controller.ledger, checks, suite, decision)
            for name in chosen
            if name in unowned
        ]
        controller.reconcile()
    for state, text in (
        (State.QUARANTINED, "quarantined; hpcverify repair verifies and releases them"),
        (State.VERIFYING, UNDER_VERIFICATION),
    ):
        if names := [node.name for node in nodes if node.state is state]:
            echo(f"{fold(names)}: {text}")
    if not (nodes or strangers):
        echo("the ledger knows every hold of hpcverify")
    sys.exit(choose_status(controller, len(strangers)))
