"""
A file system that never answers: a real way into uninterruptible sleep.

Once a FUSE request has been read by the daemon, the process that waits for the
answer cannot be ended, not even by KILL, until the answer comes or the connection
is closed. So we mount one, read every request, and answer none but the first.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.own_node import require_root

FUSE_INIT = 26
HEADER = struct.Struct("<IIQQIIII")
ANSWER = struct.Struct("<IiQ")
# major, minor, readahead, flags, background, congestion, write, granularity, pages,
# alignment, flags2, unused
INIT = struct.Struct("<IIIIHHIIHHI28x")
MNT_DETACH = 2

libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def silent_file_system(path: Path, error: int = 0) -> Generator[Path]:
    """Mount one on *path*, or one that answers *error*; who waits in it is let go at the end."""
    require_root()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    check(libc.mount(b"silent", bytes(path), b"fuse", 0, options.encode()))
    wake, waker = os.pipe()
    reader = threading.Thread(target=read_all, args=(device, wake, error))
    reader.start()
    try:
        yield path
    finally:
        os.close(waker)
        reader.join()
        os.close(wake)
        os.close(device)  # the last one: the kernel lets everyone go
        check(libc.umount2(bytes(path), MNT_DETACH))


def read_all(device: int, wake: int, error: int) -> None:
    """Take every request, and answer the one that makes the mount usable; others by *error*."""
    while wake not in select.select([device, wake], [], [])[0]:
        _, opcode, unique, *_ = HEADER.unpack_from(os.read(device, 2**20))
        if opcode == FUSE_INIT:
            body = INIT.pack(7, 31, 0, 0, 0, 0, 4096, 1, 1, 0, 0)
            os.write(device, ANSWER.pack(ANSWER.size + len(body), 0, unique) + body)
        elif error:
            os.write(device, ANSWER.pack(ANSWER.size, -error, unique))


def check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
