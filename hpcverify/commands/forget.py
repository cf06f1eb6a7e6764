"""``hpcverify forget``: give up nodes that Slurm has no more."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON_TYPE


@click.command("forget")
@click.argument("hostlist")
@click.option(
    "--reason", default="removed", show_default=True, type=REASON_TYPE, help="For the log."
)
def command(hostlist: str, reason: str) -> None:
    """
    Forget nodes that were removed or renamed: Slurm must not have them any more.

    They go from `hpcverify nodes`, and so does their folder in the spool. Their runs
    and their lines in the audit log stay, until the runs are pruned.

    \b
    Example:
      hpcverify forget n[17-32] --reason "rack 4 was sold"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.cli import say
    from hpcverify.commands._acting import (
        choose_status,
        identify_caller,
        make_controller,
        refuse_unknown,
    )
    from hpcverify.errors import ActionError, StoreError
    from hpcverify.fleet.farewell import forget, list_known_nodes
    from hpcverify.slurm.hostlist import expand, fold

    acting = make_controller()
    names = expand(hostlist)
    gone: list[str] = []
    with acting.hold_lock():
        before = acting.backend.read_holds()
        acting.reconcile()  # what they left in the spool is taken in
        refuse_unknown(names, {*before, *list_known_nodes(acting)})
        there = {*before, *acting.backend.read_holds()}  # one answer may leave a node out
        for name in names:
            try:
                forget(name, acting, there, identify_caller(), reason)
            except (ActionError, StoreError) as exc:
                say(str(exc))
            else:
                gone.append(name)
    if gone:
        click.echo(f"{fold(gone)}: forgotten; their runs stay: hpcverify history NODE")
    sys.exit(choose_status(acting, len(names) - len(gone)))
