"""
Create, write, read, stat and remove many small files, and time every call.

The content of each file says which file it is of, and which write of it. Every second
file is written once more after all were flushed, so that its first content is on the
disk. `compare` says what is wrong with what the disk then returns.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import shake_128
from itertools import pairwise
from pathlib import Path
from time import perf_counter

from hpcverify_checks.storage.extents import FileExtent
from hpcverify_checks.storage.page_cache import evict, flush_file_system

FILE_BYTES = 4096

Answers = Mapping[int, bytes | None]
"""What each file held; None: there was no such file."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Times of the calls of one kind, in s."""

    seconds: Sequence[float]

    @property
    def rate(self) -> float:
        """Calls per second, over the time of the calls only."""
        return len(self.seconds) / sum(self.seconds)

    @property
    def p99(self) -> float:
        """The time that 99 of 100 calls stay within, in ms."""
        return sorted(self.seconds)[-1 - len(self.seconds) // 100] * 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """Files in one *folder*, with contents that follow from the *seed*."""

    folder: Path
    count: int
    seed: int
    direct: bool

    def locate(self, number: int) -> Path:
        """Name the file with this *number*."""
        return self.folder / str(number)

    def make_content(self, number: int, generation: int) -> bytes:
        """Make what one write puts into one file: no two are the same."""
        return shake_128(f"{self.seed} {number} {generation}".encode()).digest(FILE_BYTES)

    def find_generation(self, number: int) -> int:
        """Tell which write of a file is its last: 0 is the first."""
        return 1 - number % 2

    @property
    def rewritten(self) -> Sequence[int]:
        """Numbers of the files that are written twice."""
        return range(0, self.count, 2)


def write_files(files: SmallFiles) -> dict[str, CallTimes]:
    """
    Create and write all *files*, flush them, and write every second one again.

    The flushes are not timed: they also write what others have left in the page cache of
    the file system, which can take minutes on a good disk.

    Raises:
        OSError: a call failed.

    """
    files.folder.mkdir()
    everyone = range(files.count)
    created = _time(
        lambda path: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)),
        [(files.locate(n),) for n in everyone],
    )
    written = _time(_write, _list_writes(files, everyone, 0))
    flush_file_system(files.folder)
    overwritten = _time(_write, _list_writes(files, files.rewritten, 1))
    flush_file_system(files.folder)
    return {"create": created, "write": written, "overwrite": overwritten}


def read_files(files: SmallFiles) -> tuple[Answers, CallTimes, int]:
    """
    Read all *files* from the disk; give the bytes that the page cache still had, too.

    Raises:
        OSError: a call failed.

    """
    paths = [files.locate(n) for n in range(files.count)]
    cached = evict(FileExtent(path, 0, FILE_BYTES) for path in paths if path.exists())
    flags = os.O_RDONLY | (os.O_DIRECT if files.direct else 0)
    answers: dict[int, bytes | None] = {}
    with mmap.mmap(-1, 2 * FILE_BYTES) as buffer:  # page-aligned, as O_DIRECT requires

        def read(number: int) -> None:
            answers[number] = _read(paths[number], flags, buffer)

        times = _time(read, [(n,) for n in range(files.count)])
    return answers, times, cached


def remove_files(files: SmallFiles) -> dict[str, CallTimes]:
    """
    Stat all *files*, and remove them.

    Raises:
        OSError: a call failed.

    """
    paths = [(files.locate(n),) for n in range(files.count)]
    times = {"stat": _time(os.stat, paths), "unlink": _time(os.unlink, paths)}
    files.folder.rmdir()
    return times


def _list_writes(
    files: SmallFiles, numbers: Iterable[int], generation: int
) -> Sequence[tuple[Path, bytes]]:
    return [(files.locate(n), files.make_content(n, generation)) for n in numbers]


def _time(step: Callable[..., object], calls: Iterable[tuple[object, ...]]) -> CallTimes:
    clock = [perf_counter()]
    for call in calls:
        step(*call)
        clock.append(perf_counter())
    return CallTimes([after - before for before, after in pairwise(clock)])


def _write(path: Path, content: bytes) -> None:
    try:
        file = os.open(path, os.O_WRONLY)
    except FileNotFoundError:
        return  # reading will tell that it is lost
    # The close counts: NFS sends the data then.
    try:
        while content:  # a full disk may take a part of it before it says so
            content = content[os.write(file, content) :]
    finally:
        os.close(file)


def _read(path: Path, flags: int, buffer: mmap.mmap) -> bytes | None:
    try:
        file = os.open(path, flags)
    except FileNotFoundError:
        return None
    done = 0
    try:
        with memoryview(buffer) as room:
            while done < FILE_BYTES:  # a read may give a part before the rest or an error
                got = os.preadv(file, [room[done:]], done)
                if not got:
                    break
                done += got
        return buffer[:done]
    finally:
        os.close(file)
