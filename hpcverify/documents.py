"""
Run documents: one JSON file a run, whole or not there at all.

What is not on disk did not happen: a document is written under another name,
flushed to the disk, and renamed before anybody acts on it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hpcverify.errors import ConfigError, StoreError
from hpcverify.model import SCHEMA, Result, Run

STDOUT = "-"
"""As the name of a file: standard output."""
LARGEST = 64 * 2**20
"""Bytes past which a document is not read: a round of eight GPUs has 1 MB."""


def write(run: Run, path: Path) -> None:
    """
    Keep *run* as *path*, atomically and durably.

    Raises:
        StoreError: the directory cannot be written.

    """
    write_bytes(path, msgspec.json.format(msgspec.json.encode(run), indent=1) + b"\n")


def length(results: Sequence[Result]) -> int:
    """Say how many bytes *results* take in a document."""
    indented = msgspec.json.format(msgspec.json.encode([results]), indent=1)
    return len(indented)


def write_bytes(path: Path, content: bytes) -> None:
    """
    Put *content* into the file *path*: all of it, or nothing changes.

    What is no regular file, as a device or a pipe, is written to and never replaced.

    Raises:
        StoreError: the directory cannot be written.

    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_directory(path.parent)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise StoreError(f"{path} cannot be written: {exc.strerror}") from exc


def refuse_unwritable(file: str) -> None:
    """
    Find out now, and not after an hour, whether *file* can be written.

    Raises:
        ConfigError: it cannot, and why.

    """
    if file == STDOUT:
        return
    path = Path(file).absolute()
    if not path.parent.is_dir():
        raise ConfigError(
            f"{file} cannot be written: there is no directory {path.parent}"
        )
    if path.is_dir():
        raise ConfigError(f"{file!r} cannot be written: it is a directory")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written: permission denied")


def read(path: Path) -> Run:
    """
    Read the document *path*.

    Raises:
        StoreError: it is not there, no regular file, cut off, too large, or of a newer
            version.

    """
    try:
        text = _content(path)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise StoreError(f"{path} is no regular file: move it away") from exc
        raise StoreError(f"{path} cannot be read: {exc}") from exc
    return parse(text, str(path))


def _content(path: Path) -> bytes:
    """Read a file that anybody may have put there: a pipe has no end to wait for."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise StoreError(f"{path} is no regular file: move it away")
        with os.fdopen(opened, "rb", closefd=False) as file:
            text = file.read(LARGEST + 1)
    finally:
        os.close(opened)
    if len(text) > LARGEST:
        raise StoreError(f"{path} is larger than any run: move it away")
    return text


def parse(text: bytes, subject: str) -> Run:
    """
    Make a run of the *text* of a document; *subject* names the file.

    Raises:
        StoreError: it is cut off, or of a newer version.

    """
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version > SCHEMA:
            raise StoreError(
                f"{subject} is of schema {version}, this hpcverify knows {SCHEMA}: "
                "upgrade hpcverify"
            )
        return msgspec.json.decode(text, type=Run)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise StoreError(
            f"{subject} is no whole run document ({exc}): move it away"
        ) from exc


class _Version(msgspec.Struct):
    schema: int


def _sync_directory(path: Path) -> None:
    """Make a rename in *path* survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
