"""
How far a rank has come, for another process to read while the rank is stuck.

All ranks of a group wait for each other in the same order. So the number of waits that a
rank has begun and ended says how far it is beside the others: odd while it waits, even while
it does its own work. It lies in a mapped file, and changing it takes a microsecond.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager

from hpcverify.memory_files import create_memory_file

POSITION = struct.Struct("<Q")

_position: mmap.mmap | None = None


def make_file() -> int:
    """Make a file in memory for the position of a rank; give its descriptor."""
    descriptor = create_memory_file("position")
    os.ftruncate(descriptor, POSITION.size)
    return descriptor


def keep_position(descriptor: int) -> None:
    """Keep the position of this process in the file *descriptor* from now on."""
    global _position  # noqa: PLW0603 - one process, one position, changed from deep inside
    _position = mmap.mmap(descriptor, POSITION.size)


def read_position(descriptor: int) -> int:
    """Read the position of another process."""
    return int(POSITION.unpack(os.pread(descriptor, POSITION.size, 0))[0])


@contextmanager
def wait_for_ranks() -> Generator[None]:
    """Wait for other ranks in this block; if it fails, the position stays within."""
    _advance()
    yield
    _advance()


def _advance() -> None:
    if _position is not None:
        (position,) = POSITION.unpack_from(_position)
        POSITION.pack_into(_position, 0, position + 1)
