"""
Only one run on a node at a time, no matter who starts it.

The lock is a socket in the kernel's abstract namespace. It needs no file and no write
permission, it is gone the moment its holder dies, even by -9, and the kernel knows
which process of which user holds it.

But anybody can take that name. So root's run also holds a file that nobody else can
open, and goes on even if another user has the socket. /proc/locks shows everybody who
holds that file: that is how a user's run finds root's.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import ConfigError, UnverifiedError
from hpcverify.trust import FOLDER_MODE, ROOT, refuse_if_others_can_change

POLL_SECONDS = 0.05
HOLDER_TIMEOUT_SECONDS = 0.5
"""Seconds to find out who holds the lock: nobody accepts, and the queue may be full."""
SOCKET_NAME = "\0hpcverify.node"
LOCK_FOLDER = Path("/run/hpcverify")
"""Root's file is here: not on a disk, which could hang, and gone after a reboot."""
LOCK_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
UNKNOWN_ID = -1


class LockHolder(Struct, frozen=True):
    """A process that holds the node; `UNKNOWN_ID` for a number that we cannot see."""

    pid: int = UNKNOWN_ID
    uid: int = UNKNOWN_ID

    @property
    def description(self) -> str:
        """Name it in a sentence."""
        if self.uid == UNKNOWN_ID:
            return "a process that only root can see"
        process = "unknown" if self.pid == UNKNOWN_ID else self.pid
        return f"process {process} of user {self.uid}"


class NodeLock(Struct, frozen=True):
    """How we got the node."""

    waited: bool
    other_holder: LockHolder | None = None
    """Another user's process that has the socket, which does not stop root."""


class LockWait:
    """Waits for another run to end."""

    def __init__(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        """Wait *seconds* in all, or until *should_stop* says so."""
        self.deadline = time.monotonic() + seconds
        self.should_stop = should_stop
        self.waited = False

    def wait_until(self, holds: Callable[[], bool]) -> bool:
        """Wait until *holds* returns true, and say whether it did."""
        while not holds():
            if self.should_stop() or time.monotonic() >= self.deadline:
                return False
            self.waited = True
            time.sleep(POLL_SECONDS)
        return True


@contextmanager
def node_lock(
    name: str = SOCKET_NAME,
    *,
    folder: Path = LOCK_FOLDER,
    wait: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generator[NodeLock]:
    """
    Hold the node while the block runs, after up to *wait* seconds for another run.

    Then root continues next to another user's process that holds the socket.
    """
    patience = LockWait(wait, should_stop)
    with (
        _hold_root_lock(folder, patience) as alone,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as holder,
    ):

        def bind() -> bool:
            with suppress(OSError):
                holder.bind(name)
                return True
            return False

        if patience.wait_until(bind):
            holder.listen()
            yield NodeLock(patience.waited)
            return
        peer = _find_listener(name)
        other = peer or _find_socket_owner(name)
        if not alone or (peer is not None and peer.uid == ROOT):
            raise _build_refusal(other)
        yield NodeLock(patience.waited, other)


def find_lock_holder(name: str = SOCKET_NAME, *, folder: Path = LOCK_FOLDER) -> LockHolder | None:
    """Find the process that holds the node now, if any does."""
    if (root := _find_root_holder(folder)) is not None:
        return root
    return (_find_listener(name) or _find_socket_owner(name)) if _find_socket_inode(name) else None


def _build_refusal(holder: LockHolder) -> UnverifiedError:
    return UnverifiedError(
        f"another run uses this node ({holder.description}). Fix: wait until it ends"
    )


# -- root's file


@contextmanager
def _hold_root_lock(folder: Path, lock_wait: LockWait) -> Generator[bool]:
    """As root, hold the file; as another user, wait for it. Without a file the socket decides."""
    if os.geteuid() != ROOT:
        if not lock_wait.wait_until(lambda: _find_root_holder(folder) is None):
            raise _build_refusal(_find_root_holder(folder) or LockHolder())
        yield False
        return
    try:
        folder.mkdir(FOLDER_MODE, exist_ok=True)
        refuse_if_others_can_change(folder)
        path = _find_lock_file(folder)
        taken: list[int] = []
        got = lock_wait.wait_until(lambda: _try_lock(path, taken))
    except (OSError, ConfigError):
        yield False
        return
    if not got:
        raise _build_refusal(_find_root_holder(folder) or LockHolder())
    try:
        yield True
    finally:
        with suppress(OSError):  # made read-only meanwhile; the lock goes with the descriptor
            path.unlink()
        os.close(taken[0])


def _find_lock_file(folder: Path) -> Path:
    """Name root's file; like the socket, it belongs to one network namespace."""
    return folder / f"node-{Path('/proc/self/ns/net').stat().st_ino}.lock"


def _try_lock(path: Path, taken: list[int]) -> bool:
    """Lock the file *path*, creating it if need be, and put its descriptor into *taken*."""
    file = os.open(path, LOCK_FILE_FLAGS, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(file).st_ino:
            taken.append(file)
            return True
    except (BlockingIOError, FileNotFoundError):  # held, or just released and removed
        pass
    os.close(file)
    return False


def _find_root_holder(folder: Path) -> LockHolder | None:
    """Ask the kernel who holds root's file: see proc_locks(5)."""
    try:
        status = _find_lock_file(folder).stat()
        locks = Path("/proc/locks").read_text()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in locks.splitlines():
        _, kind, _, _, pid, inode, *_ = line.split()
        if (kind, inode) == ("FLOCK", f"{device}:{status.st_ino}"):
            return LockHolder(int(pid), ROOT)
    return None


# -- the owner of the socket


def _find_listener(name: str) -> LockHolder | None:
    """Ask the kernel who listens: it remembers the process and user that began to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.settimeout(HOLDER_TIMEOUT_SECONDS)
        try:
            asker.connect(name)
        except OSError:  # it does not listen, or its queue is full, or it is gone
            return None
        peer = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, uid, _ = struct.unpack("3i", peer)
    return LockHolder(pid or UNKNOWN_ID, uid)  # 0: in another process namespace


def _find_socket_owner(name: str) -> LockHolder:
    """Find the process with the socket, for the message: a user can pass it to root's program."""
    link = f"socket:[{_find_socket_inode(name)}]"
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if link in _list_open_files(process):
                # The owner of its folder in /proc may differ from its effective user.
                lines = (process / "status").read_text(errors="replace").splitlines()
                uid = next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
                return LockHolder(int(process.name), uid)
    return LockHolder()


def _find_socket_inode(name: str) -> str:
    """Find the inode of the socket bound to *name*; empty if there is none."""
    shown = name.replace("\0", "@").encode()
    try:
        sockets = Path("/proc/net/unix").read_bytes()
    except OSError:  # a sandbox that hides it
        return ""
    for line in sockets.splitlines():
        fields = line.split(maxsplit=7)
        if fields[7:] == [shown]:
            return fields[6].decode()
    return ""


def _list_open_files(process: Path) -> Iterator[str]:
    for link in (process / "fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(link.readlink())
