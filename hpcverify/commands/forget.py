"""``hpcverify forget``: forget nodes that Slurm no longer has."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

import click

from hpcverify.commands._controller import (
    choose_status,
    identify_caller,
    make_controller,
    record_command,
    refuse_unknown,
)
from hpcverify.commands._options import reason_option
from hpcverify.console import echo, say
from hpcverify.errors import ActionError, StoreError
from hpcverify.fleet.controller import Controller
from hpcverify.plan.hostlist import expand, fold
from hpcverify.records import spool


@click.command("forget")
@click.argument("hostlist")
@reason_option("For the log.", default="removed")
@record_command()
def command(hostlist: str, reason: str) -> None:
    """
    Forget nodes that were removed or renamed: Slurm must no longer have them.

    They disappear from `hpcverify nodes`, and so does their folder in the spool. Their
    lines in the audit log stay, and their runs until they are pruned.

    \b
    Example:
      hpcverify forget n[17-32] --reason "rack 4 was sold"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    names = expand(hostlist)
    gone: list[str] = []
    with controller.hold_lock():
        before = controller.backend.read_holds()
        controller.reconcile()  # what they left in the spool is taken in
        refuse_unknown(names, {*before, *list_known_nodes(controller)})
        there = {*before, *controller.backend.read_holds()}  # one answer may leave a node out
        for name in names:
            try:
                forget(name, controller, there, identify_caller(), reason)
            except (ActionError, StoreError) as exc:
                say(str(exc))
            else:
                gone.append(name)
    if gone:
        echo(f"{fold(gone)}: forgotten; their runs stay: hpcverify history NODE")
    sys.exit(choose_status(controller, len(names) - len(gone)))


def list_known_nodes(controller: Controller) -> set[str]:
    """Name the nodes that are in the ledger, the store or the spool."""
    ran = {entry.node for entry in controller.store.list_newest()}
    return {
        *controller.ledger.list_nodes(),
        *(ran - controller.ledger.list_forgotten().keys()),
        *spool.list_homes(Path(controller.site.fleet.spool)),
    }


def forget(
    name: str, controller: Controller, there: Collection[str], person: str, reason: str
) -> None:
    """
    Forget *name*, as *person* decided; if killed in between, it can be repeated.

    Raises:
        ActionError: the scheduler still has it among the nodes *there*.
        SlurmError: a job of ours there could not be cancelled.
        StoreError: its folder in the spool holds something that we do not delete.

    """
    if name in there:
        raise ActionError(f"{name}: Slurm still has it: take it out of slurm.conf first")
    controller.dispatcher.cancel_verification(name)
    spool.remove_home(Path(controller.site.fleet.spool), name)
    controller.ledger.forget(name, person, reason)
