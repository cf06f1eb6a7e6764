"""The jobs of fio in the storage check: each can be called on its own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hpcverify_checks._fio import (
    BLOCK,
    CORRUPT,
    SECTOR,
    Extent,
    FaultError,
    Fio,
    Report,
)

SEQUENTIAL_DEPTH = 16
RANDOM_DEPTH = 32
"""Accesses in flight over all streams."""


def write(
    fio: Fio, room: Sequence[Extent], rng: random.Random, seconds: float = 0.0
) -> Report:
    """Fill *room* with fresh data, or as much as *seconds* allow, and flush it."""
    return fio.run(
        room,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="write",
        bs=BLOCK,
        iodepth=_each(SEQUENTIAL_DEPTH, room),
        refill_buffers=1,
        verify="crc32c",
        verify_interval=SECTOR,
        do_verify=0,
        end_fsync=1,
    )


def written(room: Sequence[Extent], report: Report) -> tuple[Extent, ...]:
    """Cut *room* down to what was written: no more than that can be read back."""
    moved = report.moved("write")
    return tuple(
        replace(extent, size=size)
        for extent, size in zip(room, moved, strict=True)
        if size
    )


def read_back(fio: Fio, filled: Sequence[Extent]) -> Report:
    """
    Read all of *filled* and verify each block.

    Raises:
        FaultError: a block is wrong; the evidence says whether it is so each time it
            is read, and so on the disk, or only became so on the way.

    """
    try:
        return _read_once(fio, filled)
    except FaultError as fault:
        if fault.number in CORRUPT:
            fault.evidence["read again"] = _second_reading(fio, filled)
        raise


def _read_once(fio: Fio, filled: Sequence[Extent]) -> Report:
    return fio.run(
        filled,
        rw="read",
        bs=BLOCK,
        iodepth=_each(SEQUENTIAL_DEPTH, filled),
        verify="crc32c",
        verify_interval=SECTOR,
        verify_fatal=1,
    )


def _second_reading(fio: Fio, filled: Sequence[Extent]) -> str:
    try:
        _read_once(fio, filled)
    except FaultError as fault:
        return str(fault)
    return "clean"


def random_read(
    fio: Fio, filled: Sequence[Extent], rng: random.Random, seconds: float
) -> Report:
    """Read and verify 4 KiB blocks of *filled* at random, each once at most."""
    return fio.run(
        filled,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="randread",
        bs=SECTOR,
        iodepth=_each(RANDOM_DEPTH, filled),
        verify="crc32c",
        verify_fatal=1,
    )


def random_write(
    fio: Fio, filled: Sequence[Extent], rng: random.Random, seconds: float
) -> Report:
    """
    Write 4 KiB blocks of *filled* at random, each once, for *seconds* at most.

    Each once, by fio's random map: two writes of one block in flight at the same
    time might mix, and would look like a fault.
    """
    return fio.run(
        filled,
        seed=rng.getrandbits(31),
        seconds=seconds,
        rw="randwrite",
        bs=SECTOR,
        iodepth=_each(RANDOM_DEPTH, filled),
        refill_buffers=1,
        verify="crc32c",
        do_verify=0,
        end_fsync=1,
    )


def flush(fio: Fio, journal: Extent, seconds: float) -> Report:
    """Write 4 KiB and call fsync, again and again for *seconds*, as a database does."""
    return fio.run(
        [journal],
        seconds=seconds,
        time_based=1,
        rw="write",
        bs=SECTOR,
        ioengine="psync",
        direct=0,
        fsync=1,
    )


def _each(depth: int, room: Sequence[Extent]) -> int:
    return max(1, depth // len(room))
