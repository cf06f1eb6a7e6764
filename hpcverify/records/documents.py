"""
Run documents: one JSON file for each run, complete or absent.

What is not on disk did not happen: a document is written under another name, flushed
to the disk, and renamed before anybody acts on it.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from hpcverify.check import LimitIndex
from hpcverify.errors import ConfigError, StoreError
from hpcverify.model import SCHEMA_VERSION, Result, Run
from hpcverify.trust import PathEnd, refuse_link_of_others, walk_path

STDOUT_NAME = "-"
"""The file name that means standard output."""
STREAM_DESCRIPTORS = {"/dev/stdout": 1, "/dev/stderr": 2}
DESCRIPTOR_PATTERN = r"/(?:dev|proc/self)/fd/([0-9]{1,9})"
"""Names of what the caller opened for us, such as the pipe of a shell's ``>(gzip)``."""
UNWRITABLE_KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "disk",
}
"""What we refuse to write to; opening a named pipe would wait for a reader."""
DOCUMENT_MODE = 0o644
"""The mode of a new file, less what the umask takes away."""
NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
DEVICE_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
MAX_DOCUMENT_BYTES = 64 * 2**20
"""Larger documents are not read; a round of eight GPUs has 1 MB."""
MAX_COMPARISONS = 500_000
"""
Comparisons of values with limits in a document. A round of eight GPUs has some thousands, and at
most 64 such rounds are written.
"""


def write(run: Run, path: Path) -> None:
    """
    Keep *run* as *path*, atomically and durably.

    Raises:
        StoreError: the directory cannot be written.

    """
    write_bytes(path, _format(run))


def _format(run: Run) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n"


@contextmanager
def open_folder(folder: Path) -> Generator[Callable[[Run], int]]:
    """
    Open *folder* for what keeps a run there under its id, as `write` does; it returns the size.

    At the end all are on the disk: that the names of many last takes one flush.

    Raises:
        StoreError: it cannot be written.

    """
    try:
        with walk_path(folder, refuse_link_of_others) as end:
            opened = os.open(end.name, FOLDER_FLAGS, dir_fd=end.folder)
        try:
            yield partial(_put_run, opened)
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be written: {exc.strerror}") from exc
    except ConfigError as exc:
        raise StoreError(f"{folder} cannot be written: {exc}") from exc


def _put_run(folder: int, run: Run) -> int:
    content = _format(run)
    with _make_file(folder, f"{run.id}.json") as new:
        _write_all(content, os.dup(new))
    return len(content)


def count_bytes(results: Sequence[Result]) -> int:
    """Count the bytes that *results* take in a document."""
    return len(msgspec.json.format(msgspec.json.encode([results]), indent=1))


def write_bytes(path: Path, content: bytes, *, make: bool = False, mode: int | None = None) -> None:
    """
    Write *content* to the file *path*: all of it, or nothing changes.

    A link that another user could have made is not followed. Only the owner may write
    to the new file, even if the umask allows more. A character device such as /dev/null,
    or a descriptor that the caller opened (/dev/stdout, /dev/fd/3), is written to and
    never replaced; a named pipe, socket or disk is refused. With *make*, missing folders
    are created. With a *mode*, the file has that, whatever the umask.

    Raises:
        StoreError: it cannot be written; says why.

    """
    with _open_replacement(path, make=make) as new:
        if mode is not None:
            os.fchmod(new, mode)
        _write_all(content, os.dup(new))


def write_new(path: Path, content: bytes) -> None:
    """
    Write *content* to a file that is not there yet: all of it, or none is left.

    A link that another user could have made is not followed.

    Raises:
        FileExistsError: it is there.
        StoreError: it cannot be written; says why.

    """
    try:
        with _open_target(path) as target:
            made = os.open(target.name, NEW_FILE_FLAGS, DOCUMENT_MODE, dir_fd=target.folder)
            try:
                _write_all(content, made)
            except OSError:
                os.unlink(target.name, dir_fd=target.folder)
                raise
    except FileExistsError:
        raise
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc


@contextmanager
def open_new(path: Path) -> Generator[Path]:
    """
    Give a name for what becomes the file *path* when the block ends well; else nothing changes.

    It is for a library that opens by its name what it writes: nobody can put a link there,
    for it is that of a descriptor. The rest is as in `write_bytes`.

    Raises:
        StoreError: it cannot be written; says why.

    """
    with _open_replacement(path) as new:
        if not names_descriptor(path):
            yield Path(f"/proc/self/fd/{new}")
            return
        import shutil  # noqa: PLC0415 - a prolog, which writes none, does not wait for them
        import tempfile  # noqa: PLC0415 - the same

        with tempfile.TemporaryFile() as kept:  # a library would begin at the start of a file
            yield Path(f"/proc/self/fd/{kept.fileno()}")
            with os.fdopen(os.dup(new), "wb") as out:
                shutil.copyfileobj(kept, out)


def names_descriptor(path: Path) -> bool:
    """Whether *path* names what the caller opened for us, such as standard output."""
    return _find_descriptor(path) is not None


@contextmanager
def _open_replacement(path: Path, *, make: bool = False) -> Generator[int]:
    """Open what becomes the file *path* at the end, or what is written to and never replaced."""
    try:
        if (descriptor := _find_descriptor(path)) is not None:
            yield descriptor
            return
        with _open_target(path, make=make) as target:
            if stat.S_ISCHR(_read_mode(target)):
                device = os.open(target.name, DEVICE_FLAGS, dir_fd=target.folder)
                try:
                    yield device
                finally:
                    os.close(device)
            else:
                with _make_file(target.folder, target.name) as new:
                    yield new
                _sync_folder(target.folder)
    except OSError as exc:
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc


def refuse_unwritable(file: str) -> None:
    """
    Find out now, and not after an hour, whether *file* can be written.

    Raises:
        ConfigError: it cannot; says why.

    """
    path = Path(file)
    if file == STDOUT_NAME or _find_descriptor(path) is not None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{file} cannot be written: there is no directory {folder}")
    try:
        with _open_target(path) as target:
            written = target.name if path.is_char_device() else "."
            writable = os.access(written, os.W_OK, dir_fd=target.folder)
    except (StoreError, OSError) as exc:
        raise ConfigError(str(exc)) from exc
    if not writable:
        raise ConfigError(f"{file} cannot be written: permission denied")


def _find_descriptor(path: Path) -> int | None:
    """Return our descriptor that *path* names, if it names one."""
    named = re.fullmatch(DESCRIPTOR_PATTERN, str(path))
    return int(named[1]) if named else STREAM_DESCRIPTORS.get(str(path))


@contextmanager
def _open_target(path: Path, *, make: bool = False) -> Generator[PathEnd]:
    try:
        with walk_path(path, refuse_link_of_others, make=make) as target:
            kind = UNWRITABLE_KINDS.get(stat.S_IFMT(_read_mode(target)))
            if kind is not None:
                raise StoreError(f"{path} cannot be written: it is a {kind}")
            yield target
    except ConfigError as exc:
        raise StoreError(f"{path} cannot be written: {exc}") from exc


def _read_mode(target: PathEnd) -> int:
    """Read the type and permissions of what is there; 0 if nothing is."""
    try:
        return os.lstat(target.name, dir_fd=target.folder).st_mode
    except FileNotFoundError:
        return 0


@contextmanager
def _make_file(folder: int, name: str) -> Generator[int]:
    """Open a new file in *folder*; once it is on the disk, rename it to *name*."""
    temporary = f".{name}.{os.urandom(8).hex()}"
    new = os.open(temporary, NEW_FILE_FLAGS, DOCUMENT_MODE, dir_fd=folder)
    try:
        yield new
        os.fsync(new)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(new)
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(temporary, dir_fd=folder)


def _write_all(content: bytes, descriptor: int) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def read(path: Path) -> Run:
    """
    Read the document *path*.

    Raises:
        StoreError: it is missing, not a regular file, incomplete, too large, or of a
            newer version.

    """
    return parse(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """
    Read a file that anybody may have put there: it may be a pipe that never ends.

    Raises:
        StoreError: it is missing, not a regular file, or too large.

    """
    try:
        text = _read_content(path)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise StoreError(f"{path} is not a regular file: move it away") from exc
        raise StoreError(f"{path} cannot be read: {exc}") from exc
    if len(text) > MAX_DOCUMENT_BYTES:
        raise StoreError(f"{path} is larger than any run: move it away")
    return text


def _read_content(path: Path) -> bytes:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise StoreError(f"{path} is not a regular file: move it away")
        with os.fdopen(opened, "rb", closefd=False) as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    finally:
        os.close(opened)


def parse(text: bytes, subject: str) -> Run:
    """
    Parse the *text* of a document; *subject* names the file.

    Raises:
        StoreError: it is incomplete, or of a newer version.

    """
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"{subject} has schema {version}, but this hpcverify knows {SCHEMA_VERSION}: "
                "upgrade hpcverify"
            )
        run = msgspec.json.decode(text, type=Run)
    # For text that is not UTF-8, msgspec raises no error of its own.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise StoreError(f"{subject} is not a complete run document ({exc}): move it away") from exc
    limits = ((LimitIndex(result.limits), result.measurements) for result in run.results)
    if sum(index.count_comparisons(items) for index, items in limits) > MAX_COMPARISONS:
        raise StoreError(f"{subject} has more limits for its values than any run: move it away")
    return run


class _Version(msgspec.Struct):
    schema: int


def _sync_folder(folder: int) -> None:
    """Make a rename in *folder* survive a power cut."""
    descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
