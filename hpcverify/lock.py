"""
One run on a node at a time, whoever starts it.

The lock is a socket in the kernel's abstract namespace: it needs no file and no
right to write one, it is gone the moment its holder dies, even by -9, and the one
who comes second can ask the kernel for the holder's process id.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from hpcverify.errors import UnverifiedError

POLL_SECONDS = 0.05
HOLDER_SECONDS = 0.5
"""To be told who holds the lock: nobody accepts, and the queue may be full."""
NAME = "\0hpcverify.node"


@contextmanager
def node_lock(
    name: str = NAME, *, wait: float = 0.0, stopped: Callable[[], bool] = lambda: False
) -> Generator[bool]:
    """
    Hold the node for as long as the block runs; say whether we had to wait for it.

    *wait* is how many seconds another run may still hold it, unless we are *stopped*.

    Raises:
        UnverifiedError: another run holds it; says which process that is.

    """
    until = time.monotonic() + wait
    waited = False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        while not _is_bound(holder, name):
            if stopped() or time.monotonic() >= until:
                raise UnverifiedError(
                    "another run is under way on this node (process "
                    f"{_holder(name)}): wait until it ends"
                )
            waited = True
            time.sleep(POLL_SECONDS)
        holder.listen()
        yield waited


def _is_bound(holder: socket.socket, name: str) -> bool:
    try:
        holder.bind(name)
    except OSError:
        return False
    return True


def _holder(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(HOLDER_SECONDS)
        try:
            asker.connect(name)
        except OSError:  # it has just ended
            return "unknown"
        peer = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return str(struct.unpack("3i", peer)[0])
