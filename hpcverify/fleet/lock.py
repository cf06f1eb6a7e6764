"""One controller acts at a time: a lock on a file, which is gone with its holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from hpcverify.errors import StoreError, UnverifiedError

MAX_WAIT_S = 600.0
"""A turn takes seconds, and minutes where many nodes are to be held, since Slurm is not
asked more than once a second."""
NOTICE_AFTER_S = 3.0
"""After which we say that we wait."""
POLL_S = 0.05


@contextmanager
def hold_controller_lock(
    path: Path, say: Callable[[str], None], max_wait: float = MAX_WAIT_S
) -> Generator[None]:
    """
    Hold the lock at *path*, and say so if it has to be waited for.

    Raises:
        UnverifiedError: another controller holds it all the while.
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
    began, told = time.monotonic(), False
    while not _try_acquire(lock):
        waited = time.monotonic() - began
        if waited > max_wait:
            raise UnverifiedError(
                f"another hpcverify holds {path} for {max_wait:g} s: see who with fuser {path}"
            )
        if waited > NOTICE_AFTER_S and not told:
            say("another hpcverify acts on the fleet: waiting for it")
            told = True
        time.sleep(POLL_S)


def _try_acquire(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
