"""``hpcverify admit``: new hardware, verified before any job sees it."""

from __future__ import annotations

import sys

import click


@click.command("admit")
@click.argument("hostlist")
@click.option("--suite", default="burnin", show_default=True, help="What to pass.")
@click.option("--reason", default="new", show_default=True, help="For the audit log.")
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
    from hpcverify.cli import say
    from hpcverify.commands._acting import change, controller, known, refuse_unknown
    from hpcverify.errors import ActionError
    from hpcverify.quarantine.life import Hold, State
    from hpcverify.slurm.hostlist import expand
    from hpcverify.suite import load_suite

    load_suite(suite)  # a name that is wrong shows now
    acting = controller()
    refused = 0
    with acting.alone():
        last = acting.ledger.last_ticket()
        there = acting.keeper.look()
        names = expand(hostlist)
        refuse_unknown(names, there)
        for name in names:
            try:
                found = known(acting, name, there)
            except ActionError as exc:
                say(str(exc))
                refused += 1
                continue
            if found.wanted is Hold.DRAIN:
                say(f"{name} is {found.state}: hpcverify repair {name} --reason …")
                refused += 1
                continue
            state = {"state": State.VERIFYING, "enforced": True, "suite": suite}
            change(acting, found, "admit", reason, **state, run="", after=last)
        acting.turn()
    kept = len(names) - refused
    if kept:
        click.echo(f"{kept} under verification; hpcverify collect goes on with them")
    sys.exit(ActionError.exit_code if refused else acting.status())
