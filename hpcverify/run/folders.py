"""Folders that a run makes for itself and always removes."""

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from hpcverify.errors import UnusableError
from hpcverify.model import Remedy
from hpcverify.trust import refuse_folder_of_others

LEFTOVER_SECONDS = 2.0
"""Seconds to clean up after killed runs: a prolog waits, and the next run goes on."""
ANSWER_SECONDS = 2.0
"""How long a file system that the site names may take to answer, as `deadline` of host."""
PRIVATE_MODE = 0o700
WRONG_PATH_ERRNOS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM})
"""The folder is not there or not ours; any other error may be that of a disk."""
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def temporary_folder(
    root: Path, node: str, *, say: Callable[[str], None], make: bool = True
) -> Generator[Path]:
    """
    Make an empty folder in *root*, and always remove it.

    First it removes what runs killed by -9 left there: we hold the node, so no other
    run is active. The name holds the node, since *root* may be shared. Folders with
    such a name that belong to another user stay, and *say* reports them.

    Raises:
        UnusableError: *root* cannot be written.
        ConfigError: another user could rename what is in it.

    """
    prefix = f"hpcverify-{''.join(c if c.isalnum() else '_' for c in node)}-"
    try:
        if make:
            root.mkdir(mode=PRIVATE_MODE, parents=True, exist_ok=True)
        refuse_folder_of_others(root, shared=True)
        _remove_leftovers(root, prefix, say)
        path = root / f"{prefix}{os.urandom(4).hex()}"
        path.mkdir(mode=PRIVATE_MODE)
    except OSError as exc:
        fix = "create it or mount it writable, or change scratch in the site file"
        if make:  # it lies in the state
            fix = "see df and findmnt, or change HPCVERIFY_STATE"
        raise UnusableError(
            f"directory {root} cannot be used ({exc.strerror}). Fix: {fix}"
        ) from exc
    try:
        yield path
    finally:
        remove(path)


class ScratchProblem(Struct, frozen=True):
    """Why nothing can be written to the scratch, and what to do."""

    reason: str
    remedy: Remedy = Remedy.INSPECT


class RunFolders(Struct, frozen=True):
    """The folders of one run, all empty."""

    shared: Path
    scratch: Path
    scratch_problem: ScratchProblem | None = None


@contextmanager
def make_run_folders(
    state: Path, scratch: str, node: str, say: Callable[[str], None]
) -> Generator[RunFolders]:
    """Make the folders of a run below *state* and in *scratch*, whose disk may be faulty."""
    with ExitStack() as stack:
        shared = stack.enter_context(temporary_folder(state / "work", node, say=say))
        root = Path(scratch) if scratch else state / "scratch"
        if scratch and (silence := explain_silence(root)):
            yield RunFolders(shared, shared / "unusable", ScratchProblem(silence))
            return
        try:
            own = stack.enter_context(temporary_folder(root, node, say=say, make=not scratch))
        except UnusableError as exc:
            cause = exc.__cause__
            is_wrong = isinstance(cause, OSError) and cause.errno in WRONG_PATH_ERRNOS
            # A path that is wrong is no part that is.
            remedy = Remedy.FIX_CONFIGURATION if is_wrong else Remedy.INSPECT
            yield RunFolders(shared, root / "unusable", ScratchProblem(str(exc), remedy))
        else:
            yield RunFolders(shared, own)


def explain_silence(root: Path) -> str:
    """Query *root* in a child process, which a hung disk may block; empty if it responds."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            # Else who reads our output, or waits for our lock, would wait for it too.
            os.closerange(0, writing)
            os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
            os.stat(root / ".")  # noqa: PTH116 - in a child that was forked
        finally:
            os._exit(0)
    os.close(writing)
    has_ended = bool(select.select([reading], [], [], ANSWER_SECONDS)[0])
    os.close(reading)
    if has_ended:
        os.waitpid(pid, 0)
        return ""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
    return (
        f"directory {root} did not respond within {ANSWER_SECONDS:g} s; process {pid} may still "
        "wait for "
        "it. Fix: check its server or disk, and the kernel log"
    )


def _remove_leftovers(root: Path, prefix: str, say: Callable[[str], None]) -> None:
    """Remove what is ours in *root* and begins with *prefix*; report the rest."""
    until = time.monotonic() + LEFTOVER_SECONDS
    others: list[tuple[str, int]] = []
    top = os.open(root, FOLDER_FLAGS & ~os.O_NOFOLLOW)
    try:
        for path in root.iterdir():
            if not path.name.startswith(prefix):
                continue
            with suppress(FileNotFoundError):  # its owner has just removed it
                owner = _read_owner(path.name, top)
                if owner == os.geteuid():
                    remove(path, until)
                elif owner is not None:
                    others.append((str(path), owner))
                if time.monotonic() >= until:
                    break
    finally:
        os.close(top)
    if others:
        first, owner = min(others)
        more = f" (and {len(others) - 1} more)" if len(others) > 1 else ""
        say(f"{first} belongs to user {owner}{more} and was not removed. Fix: remove it")


def _read_owner(name: str, top: int) -> int | None:
    """Read the owner of *name* in *top* without asking a FUSE; None if it is a mount point."""
    opened = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        if _read_mount(opened) != _read_mount(top):
            return None
        return os.fstat(opened).st_uid
    finally:
        os.close(opened)


def _read_mount(descriptor: int) -> str:
    """Read the number of the mount that *descriptor* is open on: see proc_pid_fdinfo(5)."""
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    except OSError:  # a sandbox that hides it
        return ""
    return next((line for line in lines if line.startswith("mnt_id:")), "")


def remove(path: Path, until: float = float("inf")) -> None:
    """
    Remove *path* and everything in it that can be removed.

    Depth does not matter: an inner folder is moved up into *path* before it is emptied,
    so no name grows too long. No link is followed, and no other file system entered.
    It stops at *until*, by `time.monotonic`.
    """
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        with suppress(OSError):  # a passive run leaves it empty
            path.rmdir()
            return
        top = os.open(path, FOLDER_FLAGS)
    except OSError:
        return
    try:
        todo = _unlink_files(top, until)
        while todo and time.monotonic() < until:
            name = todo.pop()
            with suppress(OSError):
                todo += _move_folders_up(name, top, until)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        path.rmdir()


def _move_folders_up(name: str, top: int, until: float) -> list[str]:
    """Remove the files of the folder *name*, and move its folders up into *top*."""
    folder = os.open(name, FOLDER_FLAGS, dir_fd=top)
    moved: list[str] = []
    try:
        if os.fstat(folder).st_dev == os.fstat(top).st_dev:
            for inner in _unlink_files(folder, until):
                new = os.urandom(8).hex()
                with suppress(OSError):  # something is mounted there
                    os.rename(inner, new, src_dir_fd=folder, dst_dir_fd=top)
                    moved.append(new)
    finally:
        os.close(folder)
    return moved


def _unlink_files(folder: int, until: float) -> list[str]:
    """Remove the files in *folder*; return the names of the folders."""
    folders: list[str] = []
    for name in os.listdir(folder):
        if time.monotonic() >= until:
            break
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            folders.append(name)
        except OSError:  # then its folder cannot be removed either
            continue
    return folders
