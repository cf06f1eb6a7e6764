"""The fio jobs of the storage check; each can be called on its own."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcverify.memory_files import create_memory_file
from hpcverify_checks.storage.extents import (
    BLOCK_BYTES,
    SECTOR_BYTES,
    FileExtent,
    PartialOverwrite,
    format_reads,
    parse_writes,
)
from hpcverify_checks.storage.fio_runner import CORRUPTION_ERRNOS, FaultError, Fio, FioReport
from hpcverify_checks.storage.page_cache import evict

SEQUENTIAL_DEPTH = 16
RANDOM_DEPTH = 32
"""Accesses in flight, over all streams."""
FRESH: Mapping[str, Any] = {"refill_buffers": 1, "verify": "crc32c", "do_verify": 0}
VERIFIED: Mapping[str, Any] = {"verify": "crc32c", "verify_fatal": 1}
"""Options of what writes fresh data with checksums, and of what reads and verifies them."""
WRITE = {"rw": "write", "bs": BLOCK_BYTES, "verify_interval": SECTOR_BYTES, "end_fsync": 1, **FRESH}
WRITE_RANDOM = {"rw": "randwrite", "bs": SECTOR_BYTES, "end_fsync": 1, **FRESH}
PSYNC = {"ioengine": "psync", "direct": 0}
FLUSH = {"rw": "write", "bs": SECTOR_BYTES, "fsync": 1, **PSYNC, **FRESH}
READ_RANDOM = {"rw": "randread", "bs": SECTOR_BYTES, **VERIFIED}
READ_BACK = {"rw": "read", "bs": BLOCK_BYTES, "verify_interval": SECTOR_BYTES, **VERIFIED}
READ_TRACE = {"rw": "read", "replay_no_stall": 1, "verify_interval": SECTOR_BYTES, **VERIFIED}
"""The options of each job."""


def write(
    fio: Fio, extents: Sequence[FileExtent], rng: random.Random, seconds: float = 0.0
) -> FioReport:
    """Fill *extents* with fresh data, or as much as fits in *seconds*, and flush it."""
    depth, seed = _divide_depth(SEQUENTIAL_DEPTH, extents), rng.getrandbits(31)
    return fio.run(extents, seed=seed, seconds=seconds, iodepth=depth, **WRITE)


def write_random(
    fio: Fio, filled: Sequence[FileExtent], rng: random.Random, seconds: float
) -> tuple[FioReport, Sequence[PartialOverwrite]]:
    """
    Write 4 KiB blocks of *filled* at random, each once at most, for at most *seconds*.

    fio's random map sees to that: two writes of one block in flight could mix and look
    like a fault. Which blocks these were is read from fio's trace; it is kept in memory,
    not on the disk that is verified.
    """
    with ExitStack() as stack:
        traces = [stack.enter_context(_memory_file()) for _ in filled]
        report = fio.run(
            [extent.write_again() for extent in filled],
            seed=rng.getrandbits(31),
            seconds=seconds,
            own=[{"write_iolog": trace} for trace in traces],
            iodepth=_divide_depth(RANDOM_DEPTH, filled),
            **WRITE_RANDOM,
        )
        written = [parse_writes(e, t.read_text()) for e, t in zip(filled, traces, strict=True)]
    moved = report.list_moved_bytes("write")
    traced = tuple(overwrite.count * SECTOR_BYTES for overwrite in written)
    if traced != moved:
        raise RuntimeError(f"fio wrote {moved} bytes in its streams, and traced {traced}")
    return report, written


def flush(fio: Fio, journal: FileExtent, rng: random.Random, seconds: float) -> FioReport:
    """Write 4 KiB and call fsync, repeatedly for *seconds* or to its end, as a database does."""
    return fio.run([journal], seed=rng.getrandbits(31), seconds=seconds, **FLUSH)


def read_random(
    fio: Fio, filled: Sequence[FileExtent], rng: random.Random, seconds: float
) -> FioReport:
    """Read and verify 4 KiB blocks of *filled* at random, each once at most; see `read_back`."""
    depth, seed = _divide_depth(RANDOM_DEPTH, filled), rng.getrandbits(31)
    read = partial(fio.run, filled, seed=seed, seconds=seconds, iodepth=depth, **READ_RANDOM)
    return _verify(fio, filled, read)


def read_back(fio: Fio, filled: Sequence[FileExtent]) -> FioReport:
    """
    Read all of *filled* from the disk, and verify each block and its generation.

    Raises:
        FaultError: a block is wrong; the evidence says whether a second read finds the
            same, so that it is wrong on the disk and not only in transit, and whether the
            block holds what another write put there.

    """
    depth = _divide_depth(SEQUENTIAL_DEPTH, filled)
    read = partial(fio.run, filled, iodepth=depth, **READ_BACK)
    return _verify_whole(fio, filled, read, [extent.size for extent in filled])


def read_overwritten(fio: Fio, written: Sequence[PartialOverwrite]) -> FioReport:
    """Read back the blocks that were written again, as that, and all others; see `read_back`."""
    groups = [group for overwrite in written for group in overwrite.list_groups()]
    extents = [extent for extent, _ in groups]
    depth = _divide_depth(RANDOM_DEPTH, extents)
    with ExitStack() as stack:
        traces = [stack.enter_context(_memory_file(format_reads(*g, depth))) for g in groups]
        own = [{"read_iolog": trace} for trace in traces]
        read = partial(fio.run, extents, own=own, iodepth=depth, **READ_TRACE)
        parts = [
            replace(extent, offset=offset, size=size)
            for extent, runs in groups
            for offset, size in runs
        ]
        sizes = [sum(size for _, size in runs) for _, runs in groups]
        return _verify_whole(fio, extents, read, sizes, parts)


def _verify_whole(
    fio: Fio,
    filled: Sequence[FileExtent],
    read: Callable[..., FioReport],
    sizes: Sequence[int],
    parts: Sequence[FileExtent] = (),
) -> FioReport:
    """
    Read all of *sizes*; see `_verify`.

    With several accesses in flight, fio counts none that gives only a part, as POSIX allows,
    nor those of a trace that are in flight when it ends. One by one it reads each on, and
    reports EIO where nothing more comes.
    """
    report = _verify(fio, filled, read, parts)
    if _has_read(report, sizes):
        return report
    again = _verify(fio, filled, partial(read, ioengine="psync", iodepth=1), parts)
    if not _has_read(again, sizes):
        raise RuntimeError(f"fio verified {again.list_moved_bytes('read')} of {sizes} bytes")
    return report


def _verify(
    fio: Fio,
    filled: Sequence[FileExtent],
    read: Callable[[], FioReport],
    parts: Sequence[FileExtent] = (),
) -> FioReport:
    """Read *filled*; *parts* of it differ in generation, or all of it is as it says."""
    for extent in filled:
        size, needed = extent.path.stat().st_size, extent.offset + extent.size
        if size < needed:
            text = f"{extent.path} ends after {size} bytes, {needed - size} before what was written"
            raise FaultError(errno.EILSEQ, text)
    cached = evict(filled)
    try:
        return replace(read(), cached=cached)
    except FaultError as fault:
        if fault.number in CORRUPTION_ERRNOS:
            again = _repeat(read)
            fault.evidence["read again"] = again or "clean"
            if again and (content := _find_generation(fio, parts or filled, again)):
                fault.evidence["holds"] = content
        raise


def _has_read(report: FioReport, sizes: Sequence[int]) -> bool:
    moved = report.list_moved_bytes("read")
    return all(got >= size for got, size in zip(moved, sizes, strict=True))


def _repeat(read: Callable[[], FioReport]) -> str:
    try:
        read()
    except FaultError as again:
        return str(again)
    return ""


def _find_generation(fio: Fio, parts: Iterable[FileExtent], fault: str) -> str:
    """Look in the block that fio complains of for what another write of it left."""
    place = re.search(r"at file (\S+) offset (\d+), length (\d+)", fault)
    if not place:
        return ""
    block = FileExtent(fio.folder / place[1], int(place[2]), int(place[3]))
    expected = next((part.generation for part in parts if part.contains(block)), 0)
    for generation in range(expected):
        older = replace(block, generation=generation)
        if not _repeat(partial(fio.run, [older], rw="read", bs=older.size, verify="crc32c")):
            return f"what write {generation + 1} put there, and not what write {expected + 1} did"
    return ""


def _divide_depth(depth: int, extents: Sequence[FileExtent]) -> int:
    return max(1, depth // len(extents))


@contextmanager
def _memory_file(text: str = "") -> Generator[Path]:
    """Make a file that is on no disk, which a child process opens by its path."""
    with os.fdopen(create_memory_file("trace"), "w") as file:
        file.write(text)
        file.flush()
        yield Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
