"""Files in memory: they need no directory and no disk, which may be full, and have no name."""

from __future__ import annotations

import errno
import os

FORBIDDEN = (errno.EPERM, errno.ENOSYS)
"""What a sandbox answers that lets nobody call a function of the kernel."""
FOLDERS = ("/dev/shm", "/tmp")  # noqa: S108 - what is opened there has no name


def create_memory_file(name: str) -> int:
    """Make a file in memory, or an unnamed one in a sandbox; return its descriptor."""
    try:
        return os.memfd_create(name)
    except OSError as exc:
        if exc.errno not in FORBIDDEN:
            raise
    for folder in FOLDERS:
        try:
            return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
    why = "seccomp of this container forbids memfd_create. Fix: allow it, or mount /dev/shm"
    raise OSError(errno.EPERM, why)
