"""
One run on a node at a time, whoever starts it.

The lock is a socket in the kernel's abstract namespace: it needs no file and no
right to write one, it is gone the moment its holder dies, even by -9, and the one
who comes second can ask the kernel for the holder's process id.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager

from hpcverify.errors import UnverifiedError

HOLDER_SECONDS = 0.5
"""To be told who holds the lock: nobody accepts, and the queue may be full."""
NAME = "\0hpcverify.node"


@contextmanager
def node_lock(name: str = NAME) -> Generator[None]:
    """
    Hold the node for as long as the block runs.

    Raises:
        UnverifiedError: another run holds it; says which process that is.

    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder:
        try:
            holder.bind(name)
        except OSError:
            raise UnverifiedError(
                f"another run is under way on this node (process {_holder(name)}): "
                "wait until it ends"
            ) from None
        holder.listen()
        yield


def _holder(name: str) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(HOLDER_SECONDS)
        try:
            asker.connect(name)
        except OSError:  # it has just ended
            return "unknown"
        peer = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return str(struct.unpack("3i", peer)[0])
