"""The controller, for the commands that act on the fleet; and persons' decisions."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import click

from hpcverify.cli import say
from hpcverify.errors import ActionError, ConfigError, UnknownNameError
from hpcverify.fleet.breaker import describe_brakes
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.holds import HoldBackend, HoldReading, apply_reading, read_hold_history
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, NodeChange
from hpcverify.fleet.transitions import Decision
from hpcverify.fleet.validate import refuse_mistakes
from hpcverify.plan.config import Site, load_site, state_dir
from hpcverify.records.store import Store
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import RunCommand, run_command
from hpcverify.slurm.hostlist import expand, fold
from hpcverify.slurm.pace import RateLimitedRun

UNDER_VERIFICATION = "under verification; hpcverify collect goes on with it"


def make_controller(run: RunCommand = run_command) -> Controller:
    """
    Make the controller of this site, which asks Slurm no more than it may.

    Raises:
        ConfigError: there is a mistake in the site file, or no spool.
        ActionError: the spool is somebody else's, as is the fleet.

    """
    site, state = load_site(), state_dir()
    refuse_mistakes(site)
    _refuse_spool(site)
    slurm = Slurm(run=RateLimitedRun(run), user=site.fleet.user)
    return Controller(
        site=site,
        state=state,
        ledger=Ledger(state),
        store=Store(state),
        slurm=slurm,
        backend=choose_backend(site, slurm),
        say=say,
    )


def _refuse_spool(site: Site) -> None:
    if not site.fleet.spool:
        raise ConfigError(
            f"{site.path} names no spool: set [fleet] spool to a directory that the "
            "nodes share (README: A cluster)"
        )
    spool = Path(site.fleet.spool)
    try:
        owner = spool.stat().st_uid
    except OSError:  # its file server is away: a person can still hold a node
        return
    if os.geteuid() not in (0, owner):
        raise ActionError(
            f"the spool {spool} belongs to user {owner}, who acts on this fleet: be "
            "that user, or root"
        )


def choose_backend(site: Site, slurm: Slurm) -> HoldBackend:
    """Choose what takes nodes out of service."""
    if site.quarantine.backend == "command":
        from hpcverify.fleet.holds_script import ScriptBackend

        return ScriptBackend(Path(site.quarantine.command))
    from hpcverify.fleet.holds_slurm import SlurmBackend

    return SlurmBackend(slurm)


def identify_caller() -> str:
    """Name who asks: the one behind sudo, if there is one."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"uid {os.getuid()}"


def refuse_unknown(names: Iterable[str], there: Collection[str]) -> None:
    """
    Say at once that a name is wrong.

    Raises:
        UnknownNameError: *there*, at the scheduler, is no such node.

    """
    for name in names:
        if name not in there:
            raise UnknownNameError("node", name, there)


def _read_decidable_node(acting: Controller, name: str, there: Mapping[str, HoldReading]) -> Node:
    """
    Read what is known of *name*, one of those that are *there*, at the scheduler.

    Raises:
        ActionError: somebody else holds it.

    """
    seen, node = there[name], acting.ledger.read_node(name)
    # As it is now: somebody may have let it go since the last turn, or taken it over.
    node = apply_reading(node, seen, read_hold_history(node, acting.ledger))
    if node.foreign or seen.unavailable:
        raise ActionError(
            f"{name} is held by {seen.by or 'somebody else'} "
            f"({node.foreign or seen.unavailable}): nothing was done; let it go first, "
            f"as with scontrol update nodename={name} state=resume"
        )
    return node


def decide(
    acting: Controller,
    hostlist: str,
    reason: str,
    event: Callable[[Node, Decision], NodeChange],
    done: str,
) -> int:
    """
    Make a person's decision about each node of *hostlist*, and act; return the status.

    *event* is one of `transitions`. *done* is printed of the nodes that it was made
    about; why it could not be made about the others is told.

    Raises:
        UnknownNameError: a node is not there; nothing was decided.

    """
    names = expand(hostlist)
    decided: list[str] = []
    with acting.hold_lock():
        there = acting.observe_holds()
        refuse_unknown(names, there)
        decision = make_decision(acting, reason)
        for name in names:
            try:
                change = event(_read_decidable_node(acting, name, there), decision)
                acting.ledger.put(change.node, change.what, change.detail, decision.by)
                if change.node.desired_hold is not Hold.RESERVATION:  # no run is waited for
                    acting.dispatcher.cancel_verification(name)
            except ActionError as exc:
                say(str(exc))
            else:
                decided.append(name)
        acting.reconcile()
    if decided and not acting.choose_exit_status():
        click.echo(f"{fold(decided)}: {done}")
    return choose_status(acting, len(names) - len(decided))


def make_decision(acting: Controller, reason: str) -> Decision:
    """Note who decides now, and for what *reason*."""
    last = acting.ledger.read_last_ticket_number()
    return Decision(by=identify_caller(), reason=reason, at=acting.clock(), last_ticket=last)


def report_brakes(acting: Controller) -> int:
    """
    Tell what keeps failures from being acted on; give the exit status for it.

    A site that looks at nothing but the status of `collect` and `sweep` learns of it.
    """
    brakes = list(describe_brakes(acting.ledger, acting.site.quarantine, acting.clock()))
    for brake in brakes:
        say(f"{brake}; see: hpcverify breaker")
    return ActionError.exit_code if brakes else 0


def choose_status(acting: Controller, refused: int) -> int:
    """Choose the exit status after decisions of which so many were *refused*."""
    return ActionError.exit_code if refused else acting.choose_exit_status()
