"""
One controller acts: a claim in the spool, and a lock beside the ledger.

Two controllers would each take runs that the other ordered, and overwrite each other's
gate files. The claim names the ledger and the host. The ledger may move to another
host; the old host then has only a copy and is refused.

The lock keeps two commands with one state directory apart, and goes when its process
ends. So only the first claim of a spool can be a race: it is a hard link, which only
one process can make.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpcverify import gate
from hpcverify.errors import ActionError, StoreError, UnverifiedError
from hpcverify.fleet.ledger import Ledger

CLAIM_FILE_NAME = ".claim"
"""In the controller's folder of the spool; no node can have this name."""
MAX_CLAIM_BYTES = 4096
REFRESH_S = 60.0
"""Between updates of the last cycle: a sweep takes a cycle every other second."""
MAX_WAIT_S = 600.0
"""A cycle takes seconds, or minutes if many nodes are to be held: Slurm gets at most one
query a second."""
NOTICE_AFTER_S = 3.0
"""After which we say that we are waiting."""
POLL_S = 0.05

Moment = Annotated[float, Meta(ge=0, lt=datetime(9999, 12, 31, tzinfo=UTC).timestamp())]
"""Seconds since 1970, of a year that can be printed."""


class Claim(Struct, frozen=True, kw_only=True):
    """Which controller a spool belongs to."""

    ledger: str
    """The id of the ledger, made once with it."""
    host: str
    since: Moment
    cycle: Moment
    """The last cycle, up to a minute old."""


def build_claim_path(spool: Path) -> Path:
    """Return the path of the claim of *spool*."""
    return spool / gate.GATE_NAME / CLAIM_FILE_NAME


def take_claim(spool: Path, ledger: Ledger, host: str, now: float) -> None:
    """
    Claim *spool* for the controller of *ledger* on *host*, or update its cycle to *now*.

    Raises:
        ActionError: another controller has it.
        StoreError: the claim cannot be read or written; the owner is unknown.

    """
    own = Claim(ledger=ledger.read_identity(), host=host, since=now, cycle=now)
    path = build_claim_path(spool)
    claim = _read(path)
    if claim is None and write_claim(path, own, first=True):
        ledger.record_host(host)
        return
    claim = claim or _read(path) or own
    refuse_other_controller(claim, spool, ledger, host)
    if claim.host != host or not 0 <= now - claim.cycle < REFRESH_S:
        write_claim(path, replace(claim, host=host, cycle=now), first=False)
        ledger.record_host(host)


def check_claim(spool: Path, ledger: Ledger, host: str) -> None:
    """
    Check, read-only, that the controller of *ledger* on *host* may act.

    Raises:
        ActionError: another controller has the spool.
        StoreError: the claim cannot be read.

    """
    if claim := _read(build_claim_path(spool)):
        refuse_other_controller(claim, spool, ledger, host)


def refuse_other_controller(found: Claim, spool: Path, ledger: Ledger, host: str) -> None:
    """
    Refuse a claim *found* of another controller.

    Raises:
        ActionError: it is another ledger's, or the ledger has moved to another host.

    """
    same = found.ledger == ledger.read_identity()
    if same and found.host in (host, ledger.read_host() or host):
        return
    whose = "this state directory moved to" if same else "it belongs to the one on"
    raise ActionError(
        f"another controller has the spool {spool}: {whose} {found.host} since "
        f"{_format_time(found.since)}, last cycle {_format_time(found.cycle)}; nothing was done: "
        f"use that one, or, if it is gone for good, rm {build_claim_path(spool)}"
    )


def _format_time(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC"


def _read(path: Path) -> Claim | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise _build_unreadable_error(path) from exc
        raise StoreError(f"{path} cannot be read: {exc.strerror}") from exc
    try:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
        return msgspec.json.decode(os.read(file, MAX_CLAIM_BYTES) if regular else b"", type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise _build_unreadable_error(path) from exc
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}") from exc
    finally:
        os.close(file)


def _build_unreadable_error(path: Path) -> ActionError:
    return ActionError(
        f"{path} is not a valid claim of the spool; nothing was done: if no other "
        f"controller is running, rm {path}"
    )


def write_claim(path: Path, claim: Claim, *, first: bool) -> bool:
    """Write *claim* atomically; as the *first*, only if there is none. Return whether."""
    new = path.with_name(f"{CLAIM_FILE_NAME}.{claim.ledger}")  # ours alone, under our lock
    try:
        path.parent.mkdir(exist_ok=True)
        new.unlink(missing_ok=True)  # left by one that was killed
        with new.open("xb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(msgspec.json.encode(claim) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if not first:
            new.replace(path)
            return True
        try:
            path.hardlink_to(new)
        except FileExistsError:
            return False
        finally:
            new.unlink()
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc
    return True


@contextmanager
def hold_controller_lock(
    path: Path, say: Callable[[str], None], max_wait: float = MAX_WAIT_S
) -> Generator[None]:
    """
    Hold the lock at *path*; report with *say* a wait of more than `NOTICE_AFTER_S`.

    Raises:
        UnverifiedError: another controller held it for *max_wait* seconds.
        StoreError: the file cannot be made or opened.

    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc
    try:
        _acquire(lock, path, say, max_wait)
        yield
    finally:
        os.close(lock)


def _acquire(lock: int, path: Path, say: Callable[[str], None], max_wait: float) -> None:
    began, reported = time.monotonic(), False
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        waited = time.monotonic() - began
        if waited > max_wait:
            raise UnverifiedError(
                f"another hpcverify has held {path} for {max_wait:g} s: find it with fuser {path}"
            )
        if waited > NOTICE_AFTER_S and not reported:
            say("another hpcverify is acting on the fleet: waiting for it")
            reported = True
        time.sleep(POLL_S)
