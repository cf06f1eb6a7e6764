"""What the commands that act on the fleet have in common."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from hpcverify.cli import say
from hpcverify.config import Site, load_site, state_dir
from hpcverify.errors import ActionError, ConfigError, UnknownNameError
from hpcverify.fleet.brakes import describe_brakes
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.mistakes import refuse_mistakes
from hpcverify.quarantine.keeper import HoldBackend, HoldReading, apply_reading, read_hold_history
from hpcverify.quarantine.ledger import Ledger
from hpcverify.quarantine.life import Node
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import RunCommand, run_command
from hpcverify.slurm.hostlist import expand, fold
from hpcverify.slurm.pace import RateLimitedRun
from hpcverify.store import Store


def make_controller(run: RunCommand = run_command) -> Controller:
    """
    Make the controller of this site, which asks Slurm no more than it may.

    Raises:
        ConfigError: there is a mistake in the site file, or no spool.
        ActionError: the spool is somebody else's, as are the fleet and its books.

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
            "nodes share, see docs/slurm.md"
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
        from hpcverify.quarantine.command import ScriptBackend

        return ScriptBackend(Path(site.quarantine.command))
    from hpcverify.quarantine.slurm import SlurmBackend

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


def decide(acting: Controller, hostlist: str, about: Callable[[Node], None]) -> tuple[str, int]:
    """
    Have a person's decision *about* each node of *hostlist* written down, and act.

    Return the list of those that it was made about, and how many it could not be, which
    are told.

    Raises:
        UnknownNameError: one is not there; nothing was decided.

    """
    names = expand(hostlist)
    decided: list[str] = []
    with acting.hold_lock():
        there = acting.observe_holds()
        refuse_unknown(names, there)
        for name in names:
            try:
                about(_read_decidable_node(acting, name, there))
            except ActionError as exc:
                say(str(exc))
            else:
                decided.append(name)
        acting.reconcile()
    return fold(decided), len(names) - len(decided)


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


def record_decision(acting: Controller, node: Node, what: str, reason: str, **now: object) -> Node:
    """Write what a person has decided about *node*, in the audit log too."""
    by = identify_caller()
    changed = msgspec.structs.replace(node, since=acting.clock(), reason=reason, by=by, **now)
    acting.ledger.put(changed, what, reason, by)
    return changed
