"""
``events.jsonl`` beside the ledger: the events as lines, for the collectors of a site.

The ledger is the truth, and the file follows it. Where the file ends, its own last lines
say; where it was emptied or replaced, the cursor in the ledger. A line that a kill or a
full disk has cut is completed from the ledger. So none is lost, and none is written twice.

Only the controller that holds the lock writes. What is in the file is never changed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.events.chain import NO_EVENT_ERRORS, EventNumber
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import Events

EVENTS_FILE_NAME = "events.jsonl"
FILE_READER = "file"
"""The name of the cursor."""
FILE_MODE = 0o640
FILE_FLAGS = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_LINE_BYTES = 2**20
"""No event is as long: one has some 500 bytes."""
BATCH_EVENTS = 2000
"""Events that are written together, and flushed to the disk."""
MIB = 2**20


class LineNumber(Struct, frozen=True):
    """What is read of the last lines of the file."""

    number: EventNumber


class FileEnd(Struct, frozen=True):
    """How the file ends."""

    number: int
    """That of the last event in it."""
    torn: bytes
    """What of the next line there is."""


@dataclass(frozen=True)
class EventStream:
    """Brings the file in the state directory *state* up to date with the *ledger*."""

    state: Path
    settings: Events
    ledger: Ledger
    write: Callable[[int, memoryview], int] = os.write

    @property
    def path(self) -> Path:
        """The file."""
        return self.state / EVENTS_FILE_NAME

    def drain(self) -> None:
        """
        Append the events that the file lacks.

        Raises:
            StoreError: that was not possible; the next time goes on from there.

        """
        if not self.settings.file:
            self.ledger.remove_cursor(FILE_READER)
            return
        cursor = self.ledger.add_reader(FILE_READER)
        if cursor == self.ledger.read_chain_end().number and self.path.exists():
            return
        try:
            self._append_batches(cursor)
        except OSError as exc:
            raise StoreError(f"{self.path} cannot be written: {exc.strerror}") from exc

    def _append_batches(self, cursor: int) -> None:
        with self._open() as file:
            end = self._read_end(file, cursor)
        if end.number != cursor:
            self.ledger.move_cursor(FILE_READER, end.number)
        while lines := self.ledger.read_lines(end.number, BATCH_EVENTS):
            self._rotate(end)
            with self._open() as file:
                self._append(file, end, lines)
            end = FileEnd(lines[-1][0], b"")
            self.ledger.move_cursor(FILE_READER, end.number)

    @contextmanager
    def _open(self) -> Generator[int]:
        try:
            try:
                file = os.open(self.path, FILE_FLAGS | os.O_CREAT | os.O_EXCL, FILE_MODE)
                os.fchmod(file, FILE_MODE)  # whatever the umask
            except FileExistsError:
                file = os.open(self.path, FILE_FLAGS)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENXIO):
                raise self._refuse("it is not a regular file: remove it") from exc
            raise
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise self._refuse("it is not a regular file with one name: remove it")
            if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                fix = f"chown {os.geteuid()} {self.path} && chmod {FILE_MODE:04o} {self.path}"
                raise self._refuse(f"user {found.st_uid} or others can write to it: {fix}")
            yield file
        finally:
            os.close(file)

    def _refuse(self, why: str) -> StoreError:
        return StoreError(f"{self.path} is not written: {why}")

    def _read_end(self, file: int, cursor: int) -> FileEnd:
        """
        Read how the file ends: with the latest event of the ledger among its last lines.

        Others may have written lines of their own there, or copies of ours.
        """
        size = os.fstat(file).st_size
        tail = os.pread(file, 2 * MAX_LINE_BYTES, max(0, size - 2 * MAX_LINE_BYTES))
        *whole, torn = tail.split(b"\n")
        for number, line in sorted(((read_number(line), line) for line in whole), reverse=True):
            if number and self.ledger.read_lines(number - 1, 1) == [(number, line)]:
                return FileEnd(number, torn)
        return FileEnd(cursor, torn)

    def _append(self, file: int, end: FileEnd, lines: list[tuple[int, bytes]]) -> None:
        """Append *lines*, of which the first may be there in part, and see that they are."""
        content = b"".join(bytes(line) + b"\n" for _, line in lines)
        if end.torn:
            # What is not the beginning of our line, somebody else wrote: end it.
            fits = content.startswith(end.torn)
            content = content[len(end.torn) :] if fits else b"\n" + content
        begin, left = os.fstat(file).st_size, memoryview(content)
        if not begin:
            self.ledger.record_file(lines[0][0])
        while left:
            left = left[self.write(file, left) :]
        os.fsync(file)
        if os.pread(file, len(content), begin) != content:
            raise self._refuse("the lines read back differ from those written: check the disk")

    def _rotate(self, end: FileEnd) -> None:
        limit = self.settings.max_mib * MIB
        if not limit or end.torn or self.path.stat().st_size < limit:
            return
        numbers = range(1, self.settings.keep_files + 1)
        names = [self.path, *(self.path.with_name(f"{EVENTS_FILE_NAME}.{n}") for n in numbers)]
        for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
            if newer.exists():
                newer.replace(older)


def read_number(line: bytes) -> int:
    """Read the number of the event in *line*; 0: there is no event in it."""
    try:
        return msgspec.json.decode(line, type=LineNumber).number
    except NO_EVENT_ERRORS:
        return 0
