"""``hpcverify forget``: give up nodes that Slurm has no more."""

from __future__ import annotations

import sys

import click

from hpcverify.commands._reason import REASON


@click.command("forget")
@click.argument("hostlist")
@click.option(
    "--reason", default="removed", show_default=True, type=REASON, help="For the log."
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
        controller,
        person,
        refuse_unknown,
        status_of,
    )
    from hpcverify.errors import ActionError, StoreError
    from hpcverify.fleet.farewell import forget, known_names
    from hpcverify.slurm.hostlist import expand, fold

    acting = controller()
    names = expand(hostlist)
    gone: list[str] = []
    with acting.alone():
        before = acting.keeper.look()
        acting.turn()  # what they left in the spool is taken in
        refuse_unknown(names, {*before, *known_names(acting)})
        there = {*before, *acting.keeper.look()}  # one answer may leave a node out
        for name in names:
            try:
                forget(name, acting, there, person(), reason)
            except (ActionError, StoreError) as exc:
                say(str(exc))
            else:
                gone.append(name)
    if gone:
        click.echo(f"{fold(gone)}: forgotten; their runs stay: hpcverify history NODE")
    sys.exit(status_of(acting, len(names) - len(gone)))
