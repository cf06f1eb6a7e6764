"""The fio jobs of the storage check; each can be called on its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hpcverify_checks.storage.fio_runner import (
    BLOCK_BYTES,
    CORRUPTION_ERRNOS,
    SECTOR_BYTES,
    FaultError,
    FileExtent,
    Fio,
    FioReport,
)

SEQUENTIAL_DEPTH = 16
RANDOM_DEPTH = 32
"""Accesses in flight, over all streams."""


def write(
    fio: Fio, extents: Sequence[FileExtent], rng: random.Random, seconds: float = 0.0
) -> FioReport:
    """Fill *extents* with fresh data, or as much as fits in *seconds*, and flush it."""
    return fio.run(
        extents,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="write",
        bs=BLOCK_BYTES,
        iodepth=_divide_depth(SEQUENTIAL_DEPTH, extents),
        refill_buffers=1,
        verify="crc32c",
        verify_interval=SECTOR_BYTES,
        do_verify=0,
        end_fsync=1,
    )


def cut_to_written(extents: Sequence[FileExtent], report: FioReport) -> tuple[FileExtent, ...]:
    """Cut *extents* down to what was written: only that can be read back."""
    moved = report.list_moved_bytes("write")
    return tuple(
        replace(extent, size=size) for extent, size in zip(extents, moved, strict=True) if size
    )


def read_back(fio: Fio, filled: Sequence[FileExtent]) -> FioReport:
    """
    Read all of *filled* and verify each block.

    Raises:
        FaultError: a block is wrong; the evidence says whether a second read finds the
            same, so that it is wrong on the disk and not only in transit.

    """
    try:
        return _read_once(fio, filled)
    except FaultError as fault:
        if fault.number in CORRUPTION_ERRNOS:
            try:
                _read_once(fio, filled)
                fault.evidence["read again"] = "clean"
            except FaultError as again:
                fault.evidence["read again"] = str(again)
        raise


def _read_once(fio: Fio, filled: Sequence[FileExtent]) -> FioReport:
    return fio.run(
        filled,
        rw="read",
        bs=BLOCK_BYTES,
        iodepth=_divide_depth(SEQUENTIAL_DEPTH, filled),
        verify="crc32c",
        verify_interval=SECTOR_BYTES,
        verify_fatal=1,
    )


def read_random(
    fio: Fio, filled: Sequence[FileExtent], rng: random.Random, seconds: float
) -> FioReport:
    """Read and verify 4 KiB blocks of *filled* at random, each once at most."""
    return fio.run(
        filled,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="randread",
        bs=SECTOR_BYTES,
        iodepth=_divide_depth(RANDOM_DEPTH, filled),
        verify="crc32c",
        verify_fatal=1,
    )


def write_random(
    fio: Fio, filled: Sequence[FileExtent], rng: random.Random, seconds: float
) -> FioReport:
    """
    Write 4 KiB blocks of *filled* at random, each once at most, for at most *seconds*.

    fio's random map sees to that: two writes of one block in flight could mix and look
    like a fault.
    """
    return fio.run(
        filled,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="randwrite",
        bs=SECTOR_BYTES,
        iodepth=_divide_depth(RANDOM_DEPTH, filled),
        refill_buffers=1,
        verify="crc32c",
        do_verify=0,
        end_fsync=1,
    )


def flush(fio: Fio, journal: FileExtent, seconds: float) -> FioReport:
    """Write 4 KiB and call fsync, repeatedly for *seconds*, as a database does."""
    return fio.run(
        [journal],
        seconds=seconds,
        time_based=1,
        rw="write",
        bs=SECTOR_BYTES,
        ioengine="psync",
        direct=0,
        fsync=1,
    )


def _divide_depth(depth: int, extents: Sequence[FileExtent]) -> int:
    return max(1, depth // len(extents))
