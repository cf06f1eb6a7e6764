"""The controller for the commands that act on the fleet, and the record of who ran them."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import click

from hpcverify.console import say
from hpcverify.errors import (
    ActionError,
    ConfigError,
    HpcverifyError,
    SlurmError,
    StoreError,
    UnknownNameError,
    UnverifiedError,
    write_install_command,
)
from hpcverify.events.event import Command, EventKind
from hpcverify.fleet.breaker import describe_brakes
from hpcverify.fleet.controller import Controller, Cycle
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.holds import HoldBackend
from hpcverify.fleet.ledger import LEDGER_FILE_NAME, Ledger
from hpcverify.fleet.validate import refuse_mistakes
from hpcverify.history.duck import is_installed
from hpcverify.history.writer import MeasurementWriter
from hpcverify.plan.config import Site, load_site, state_dir
from hpcverify.records.spool import NODE_PATTERN
from hpcverify.records.store import Store
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import RateLimitedRun, RunCommand, run_command

Outcome = Literal["done", "refused", "failed"]
REFUSED_KEY = "hpcverify.refused"
"""In the context of a command: that it refused what was asked, of some nodes at least."""
DONE_STATUSES = (0, 1)
"""The exit statuses of a command that did what was asked: it may have found a failure."""


def make_controller(run: RunCommand = run_command) -> Controller:
    """
    Make the controller of this site, with a limit on its queries to Slurm.

    Raises:
        ConfigError: there is a mistake in the site file, or no spool.
        ActionError: the spool belongs to another user.

    """
    site, state = load_site(), state_dir()
    refuse_mistakes(site)
    _refuse_spool(site)
    slurm = Slurm(run=RateLimitedRun(run), user=site.fleet.user)
    write_metrics: Callable[[Controller, Cycle], None] | None = None
    if site.metrics.directory:
        from hpcverify.insight.fleet_metrics import write_fleet_metrics

        write_metrics = write_fleet_metrics
    return Controller(
        site=site,
        state=state,
        ledger=Ledger(state),
        store=Store(state),
        slurm=slurm,
        backend=_choose_backend(site, slurm),
        say=say,
        measurements=MeasurementWriter(state, say) if is_installed() else None,
        write_metrics=write_metrics,
    )


def _refuse_spool(site: Site) -> None:
    if not site.fleet.spool:
        raise ConfigError(
            f"{site.path} names no spool, a directory that all nodes share: "
            "hpcverify setup slurm --spool DIR"
        )
    spool = Path(site.fleet.spool)
    try:
        owner = spool.stat().st_uid
    except OSError:  # its file server is down: a person can still hold a node
        return
    if os.geteuid() not in (0, owner):
        raise ActionError(
            f"the spool {spool} belongs to user {owner}, who acts on this fleet: run "
            "this as that user, or as root"
        )


def _choose_backend(site: Site, slurm: Slurm) -> HoldBackend:
    """Choose what takes nodes out of service: Slurm or the site's script."""
    if site.quarantine.backend == "command":
        from hpcverify.fleet.holds_script import ScriptBackend

        return ScriptBackend(Path(site.quarantine.command))
    from hpcverify.fleet.holds_slurm import SlurmBackend

    return SlurmBackend(slurm)


def tell_once_of_measurements(ledger: Ledger, writer: MeasurementWriter | None) -> None:
    """Say that no measurements are kept, if so: once, since this runs every few minutes."""
    missing = ""
    if writer is None:
        install = write_install_command("duckdb")
        missing = f"what runs measure is not kept for peers and trends without duckdb: {install}"
    if ledger.record_notice("measurements", missing):
        say(missing)


def identify_caller() -> str:
    """Name the user who runs this command; under sudo, the one who called sudo."""
    try:
        name = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return f"uid {os.getuid()}"
    return name.encode(errors="backslashreplace").decode()  # what is not UTF-8 has no line


@contextmanager
def record_command() -> Generator[None]:
    """
    Have the ledger keep who ran the command of this context, and what became of it.

    As a decorator, it stands next to the function. A dry run is not kept, nor is a command
    on a host without a ledger; one that cannot be opened is what the command itself reports.
    """
    ctx = click.get_current_context()
    outcome: Outcome = "failed"
    status = UnverifiedError.exit_code
    try:
        yield
        outcome, status = "done", 0
    except SystemExit as exc:
        status = exc.code if isinstance(exc.code, int) else 0
        refused = bool(ctx.meta.get(REFUSED_KEY))
        outcome = "refused" if refused else "done" if status in DONE_STATUSES else "failed"
        raise
    except HpcverifyError as exc:
        status = exc.exit_code
        outcome = "failed" if isinstance(exc, SlurmError | StoreError) else "refused"
        raise
    except click.ClickException as exc:
        outcome, status = "refused", exc.exit_code
        raise
    finally:
        idle = ctx.params.get("dry_run") or ctx.params.get("write") is False
        with suppress(HpcverifyError):
            if not idle and (state_dir() / LEDGER_FILE_NAME).exists():
                _append_command(ctx, outcome, status)


def _append_command(ctx: click.Context, outcome: Outcome, status: int) -> None:
    name = ctx.command_path.partition(" ")[2]
    hostlist = str(ctx.params.get("hostlist") or "")
    reason = str(ctx.params.get("reason") or "")
    new = NewEvent(
        kind=EventKind.COMMAND_RUN,
        by=identify_caller(),
        node=hostlist if NODE_PATTERN.fullmatch(hostlist) else "",
        command=Command(name=name, outcome=outcome, exit_status=status),
        text=": ".join(filter(None, (hostlist, reason))),
    )
    Ledger(state_dir()).record_event(new)


def refuse_unknown(names: Iterable[str], there: Collection[str]) -> None:
    """
    Refuse a wrong name at once.

    Raises:
        UnknownNameError: one of *names* is not *there*, at the scheduler.

    """
    for name in names:
        if name not in there:
            raise UnknownNameError("node", name, there)


def report_brakes(controller: Controller) -> int:
    """
    Print why failures are not acted on, if so; return the exit status for it.

    So a site that checks only the status of `fleet collect` and `fleet sweep` notices.
    """
    policy = controller.site.quarantine
    brakes = list(describe_brakes(controller.ledger, controller.store, policy, controller.clock()))
    for brake in brakes:
        say(f"{brake}; see: hpcverify fleet breaker")
    return ActionError.exit_code if brakes else 0
