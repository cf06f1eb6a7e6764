"""
What people decide about nodes, and about the breaker.

`hold`, `release`, `repaired` and `admit` apply a function of `transitions`; `adopt` and `forget`
are for nodes that the ledger or Slurm does not know; `breaker` is about all nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import click

from hpcverify.commands._controller import (
    REFUSED_KEY,
    identify_caller,
    make_controller,
    record_command,
    refuse_unknown,
)
from hpcverify.commands._options import (
    SUITE,
    hostlist_argument,
    optional_hostlist_argument,
    reason_option,
)
from hpcverify.console import echo, say
from hpcverify.errors import ActionError, StoreError
from hpcverify.fleet import adopt as adoption
from hpcverify.fleet import transitions
from hpcverify.fleet.breaker import find_doubts
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.holds import HoldReading, apply_reading, read_hold_history
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, NodeChange, State
from hpcverify.fleet.transitions import Decision
from hpcverify.plan import catalog
from hpcverify.plan.config import load_site, state_dir
from hpcverify.plan.hostlist import expand, fold
from hpcverify.records import spool
from hpcverify.records.store import Store

UNDER_VERIFICATION = "under verification; hpcverify fleet collect continues it"


@click.command("hold")
@hostlist_argument
@reason_option("Reason, shown in Slurm and in the audit log.")
@record_command()
def hold(hostlist: str, reason: str) -> None:
    """
    Take the nodes of HOSTLIST out of service: drain them, with your name and reason.

    \b
    Example:
      hpcverify nodes hold n17 --reason "fan replacement on Monday"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    done = "held; running jobs continue to their end"
    sys.exit(decide(make_controller(), hostlist, reason, transitions.hold, done))


@click.command("release")
@hostlist_argument
@reason_option("Reason, for the audit log.")
@click.option("--force", is_flag=True, help="Release nodes that have not passed since they failed.")
@record_command()
def release(hostlist: str, reason: str, *, force: bool) -> None:
    """
    Return nodes to service: held nodes, and repeat offenders that passed.

    For a quarantined node use `hpcverify nodes repaired`, which verifies the node first.
    The audit log keeps your name.

    \b
    Example:
      hpcverify nodes release n17 --reason "fans are new"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    event = partial(transitions.release, force=force)
    sys.exit(decide(make_controller(), hostlist, reason, event, "back in service"))


@click.command("repaired")
@hostlist_argument
@reason_option("Description of the repair, for the audit log.")
@click.option("--suite", type=SUITE, help="Run this suite (default: the suite that failed).")
@record_command()
def repaired(hostlist: str, reason: str, suite: str | None) -> None:
    """
    Verify repaired nodes under a reservation, and release those that pass.

    The nodes stay out of service until they pass.

    \b
    Example:
      hpcverify nodes repaired n17 --reason "GPU 3 replaced"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    if suite is not None:
        controller.dispatcher.compute_job_minutes(suite)  # reports a mistake at once
    event = partial(transitions.repair, suite=suite, default=controller.site.fleet.suite)
    sys.exit(decide(controller, hostlist, reason, event, UNDER_VERIFICATION))


@click.command("admit")
@hostlist_argument
@click.option(
    "--suite",
    type=SUITE,
    default="burnin",
    show_default=True,
    help="Run this suite on each node.",
)
@reason_option("Reason, for the audit log.", default="new")
@record_command()
def admit(hostlist: str, suite: str, reason: str) -> None:
    """
    Verify new nodes before any job runs on them, and admit those that pass.

    Each node stays in a maintenance reservation until it passes. `hpcverify nodes` shows the
    progress. If [fabric] period_days is set, `hpcverify fleet sweep` then tests several
    admitted nodes with each other.

    \b
    Examples:
      hpcverify nodes admit n[17-32]
      hpcverify nodes admit n17 --suite idle --reason "back from the vendor"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    controller.dispatcher.compute_job_minutes(suite)  # reports a mistake at once
    names = expand(hostlist)
    batch = fold(names) if controller.site.fabric.period_days and len(names) > 1 else ""
    event = partial(transitions.admit, suite=suite, batch=batch)
    sys.exit(decide(controller, hostlist, reason, event, UNDER_VERIFICATION))


def decide(
    controller: Controller,
    hostlist: str,
    reason: str,
    event: Callable[[Node, Decision], NodeChange],
    done: str,
) -> int:
    """
    Apply a person's decision to each node of *hostlist*, and act; return the status.

    *event* is one of `transitions`. *done* is printed with the nodes that it worked
    for, and a line for each of the others says why it did not.

    Raises:
        UnknownNameError: a node does not exist; nothing was decided.

    """
    names = expand(hostlist)
    decided: list[str] = []
    with controller.hold_lock():
        there = controller.observe_holds()
        refuse_unknown(names, there)
        decision = _make_decision(controller, reason)
        for name in names:
            try:
                change = event(_read_decidable_node(controller, name, there), decision)
                controller.ledger.put(
                    change.node, change.what, change.detail, decision.by, text=change.detail
                )
                if change.node.desired_hold is not Hold.RESERVATION:  # no run is waited for
                    controller.dispatcher.cancel_verification(name)
            except ActionError as exc:
                say(str(exc))
            else:
                decided.append(name)
        controller.reconcile()
    if decided and not controller.has_failed_action():
        echo(f"{fold(decided)}: {done}")
    return _choose_status(controller, len(names) - len(decided))


def _make_decision(controller: Controller, reason: str) -> Decision:
    last = controller.ledger.read_last_ticket_number()
    return Decision(by=identify_caller(), reason=reason, at=controller.clock(), last_ticket=last)


def _read_decidable_node(
    controller: Controller, name: str, there: Mapping[str, HoldReading]
) -> Node:
    """Read the node *name* as it is *there*; an ActionError if somebody else holds it."""
    seen, node = there[name], controller.ledger.read_node(name)
    # As it is now: since the last cycle somebody may have released or taken it over.
    node = apply_reading(node, seen, read_hold_history(node, controller.ledger))
    if seen.unregistered:
        raise ActionError(
            f"{name} has not registered with Slurm since slurmctld started: nothing was done; try "
            "again once it has"
        )
    if node.foreign or seen.unavailable:
        fix = f"update nodename={name} state=resume"
        if "MAINT" in seen.unavailable and not seen.drained:
            fix = "delete reservationname=…, or wait for its end"
        raise ActionError(
            f"{name} is held by {seen.by or 'somebody else'} "
            f"({node.foreign or seen.unavailable}): nothing was done; release it first, "
            f"for example: scontrol {fix}"
        )
    return node


def _choose_status(controller: Controller, refused: int) -> int:
    """Choose the exit status after decisions, *refused* of which were refused."""
    if refused and (ctx := click.get_current_context(silent=True)):
        ctx.meta[REFUSED_KEY] = True
    return ActionError.exit_code if refused or controller.has_failed_action() else 0


@click.command("adopt")
@optional_hostlist_argument
@reason_option("Reason, for the audit log.", default="the ledger was lost")
@record_command()
def adopt(hostlist: str | None, reason: str) -> None:
    """
    Take over holds of hpcverify that the ledger does not have.

    Use it after fleet.sqlite was lost without a backup. A node that hpcverify drained is
    quarantined again, for the reason in Slurm. A node that hpcverify reserved is verified,
    and returns to service if it passes. Without HOSTLIST, all such nodes.

    \b
    Examples:
      hpcverify nodes adopt
      hpcverify nodes adopt n[17-19] --reason "the disk of ctl1 died"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    ledger = controller.ledger
    asked = expand(hostlist) if hostlist else []
    with controller.hold_lock():
        there = controller.observe_holds()
        refuse_unknown(asked, there)
        unowned = adoption.find_unowned(there, ledger)
        strangers = [name for name in asked if name not in unowned]
        for name in strangers:
            say(f"{name}: it has no hold of hpcverify, or the ledger knows it")
        chosen = asked or [
            name for name, seen in unowned.items() if not adoption.is_taken_over(seen, ledger)
        ]
        checks = set(catalog.list_check_names(controller.site.packages))
        suite, decision = controller.site.fleet.suite, _make_decision(controller, reason)
        nodes = [
            adoption.adopt(unowned[name], ledger, checks, suite, decision)
            for name in chosen
            if name in unowned
        ]
        controller.reconcile()
    for state, text in (
        (State.QUARANTINED, "quarantined; hpcverify nodes repaired verifies and releases them"),
        (State.VERIFYING, UNDER_VERIFICATION),
    ):
        if names := [node.name for node in nodes if node.state is state]:
            echo(f"{fold(names)}: {text}")
    if not (nodes or strangers):
        echo("the ledger knows every hold of hpcverify")
    sys.exit(_choose_status(controller, len(strangers)))


@click.command("forget")
@hostlist_argument
@reason_option("Reason, for the audit log.", default="removed")
@record_command()
def forget(hostlist: str, reason: str) -> None:
    """
    Forget nodes that were removed or renamed: Slurm must no longer have them.

    The nodes disappear from `hpcverify nodes`, with their folders in the spool. Their runs
    and their audit log remain.

    \b
    Example:
      hpcverify nodes forget n[17-32] --reason "rack 4 was sold"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    controller = make_controller()
    ledger, homes = controller.ledger, Path(controller.site.fleet.spool)
    names = expand(hostlist)
    gone: list[str] = []
    with controller.hold_lock():
        before = controller.backend.read_holds()
        controller.reconcile()  # what they left in the spool is taken in
        ran = {entry.node for entry in controller.store.list_newest()}
        known = {*ledger.list_nodes(), *(ran - ledger.list_forgotten().keys())}
        refuse_unknown(names, {*before, *known, *spool.list_homes(homes)})
        there = {*before, *controller.backend.read_holds()}  # one answer may leave a node out
        for name in names:
            if name in there:
                say(f"{name}: Slurm still has it: take it out of slurm.conf first")
                continue
            try:
                # If we are killed in between, it can be repeated.
                controller.dispatcher.cancel_verification(name)
                spool.remove_home(homes, name)
                ledger.forget(name, identify_caller(), reason)
            except (ActionError, StoreError) as exc:
                say(str(exc))
            else:
                gone.append(name)
    if gone:
        echo(f"{fold(gone)}: forgotten; their runs stay: hpcverify history NODE")
    sys.exit(_choose_status(controller, len(names) - len(gone)))


@click.group("breaker", invoke_without_command=True)
@click.pass_context
def breaker(ctx: click.Context) -> None:
    """
    Show whether the circuit breaker is tripped, and which checks are doubted.

    \b
    Examples:
      hpcverify fleet breaker
      hpcverify fleet breaker reset --reason "it was the driver of image 41"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if ctx.invoked_subcommand is not None:
        return
    ledger, store = Ledger(state_dir()), Store(state_dir())
    why = ledger.read_trip_reason()
    how = "reset with: hpcverify fleet breaker reset --reason …"
    echo(f"tripped: {why}; {how}" if why else "not tripped")
    for doubt in find_doubts(ledger, store, load_site().quarantine, time.time()):
        echo(f"doubted: {doubt.text}")


@breaker.command("reset")
@reason_option("Cause, for the audit log.")
@record_command()
def reset(reason: str) -> None:
    """
    Act on failures again, from now on; earlier failures no longer count.

    \b
    Example:
      hpcverify fleet breaker reset --reason "it was the driver of image 41"
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    ledger, store = Ledger(state_dir()), Store(state_dir())
    if not ledger.read_trip_reason():
        doubts = find_doubts(ledger, store, load_site().quarantine, time.time())
        if not doubts:
            raise ActionError("the breaker is not tripped: nothing to reset")
        checks = ", ".join(doubt.check for doubt in doubts)
        nodes = fold({node for doubt in doubts for node in doubt.nodes})
        raise ActionError(
            f"the breaker is not tripped, and a doubt ends by itself: fix what makes "
            f"{checks} fail (a limit, the driver, the image), then hpcverify fleet sweep {nodes}"
        )
    ledger.reset(identify_caller(), reason)
    echo("reset: failures found from now on count")
