"""One controller acts at a time: a lock on a file, which is gone with its holder."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from hpcverify.errors import StoreError, UnverifiedError

PATIENCE_S = 600.0
"""A turn takes seconds, and minutes where many nodes are to be held, since Slurm is not
asked more than once a second."""
TOLD_S = 3.0
"""After which we say that we wait."""
LOOK_S = 0.05


@contextmanager
def alone(
    path: Path, say: Callable[[str], None], patience: float = PATIENCE_S
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
        _take(lock, path, say, patience)
        yield
    finally:
        os.close(lock)


def _take(lock: int, path: Path, say: Callable[[str], None], patience: float) -> None:
    began, told = time.monotonic(), False
    while not _taken(lock):
        waited = time.monotonic() - began
        if waited > patience:
            raise UnverifiedError(
                f"another hpcverify holds {path} for {patience:g} s: see who with "
                f"fuser {path}"
            )
        if waited > TOLD_S and not told:
            say("another hpcverify acts on the fleet: waiting for it")
            told = True
        time.sleep(LOOK_S)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
