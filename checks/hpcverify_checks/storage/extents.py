"""
Where data lies in a file, and which of several writes put it there.

Each 4 KiB that fio writes carries a header with its own offset and a CRC-32C. An
overwrite that is lost leaves an older block, whose header and CRC are right. So each
write of the same place is a *generation*, and has its header at another place within the
4 KiB: fio looks for it where the expected generation has it, and finds random data there
in a block of any other.
"""

from __future__ import annotations

import random
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcverify.units import MIB

BLOCK_BYTES = MIB
"""Block size of sequential streams."""
SECTOR_BYTES = 4096
"""Size of random accesses, and of what has a header of its own."""

HEADER_BYTES = 128
"""Room for a header with its checksum: 44 bytes in fio 3.33, 52 in 3.42. fio moves it no less
than its own size, so the first 128 bytes of a sector are left to data."""
GENERATIONS = SECTOR_BYTES // HEADER_BYTES - 1
"""The most that can be distinguished; the next one looks the same as the first."""

REACHES_BYTES = (2**40, 2**34)
"""How far into a sparse file a stream may lie. ext4 holds files of 16 TiB; ext3 with blocks of
1 KiB those of 16 GiB; FAT has no sparse files at all."""


@dataclass(frozen=True, slots=True)
class FileExtent:
    """The part of one file that one stream writes or reads, in bytes."""

    path: Path
    offset: int
    size: int
    generation: int = 0
    """How often it was written before."""

    @property
    def header_offset(self) -> int:
        """Where in each sector the header of this generation is."""
        return HEADER_BYTES * (1 + self.generation % GENERATIONS)

    def contains(self, other: FileExtent) -> bool:
        """Whether all of *other* lies in it."""
        end = self.offset + self.size
        return self.path == other.path and self.offset <= other.offset <= end - other.size

    def write_again(self) -> FileExtent:
        """Make it that of the next write of the same place."""
        return replace(self, generation=self.generation + 1)


def lay_out(folder: Path, size: int, streams: int, rng: random.Random) -> tuple[FileExtent, ...]:
    """Divide *size* bytes among *streams*, each of its own file in *folder*."""
    share = max(1, size // streams // BLOCK_BYTES) * BLOCK_BYTES
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    reach = find_reach(folder)
    reach = reach if limit == resource.RLIM_INFINITY else min(reach, limit)
    places = max(1, (reach - share) // BLOCK_BYTES)
    return tuple(
        FileExtent(folder / f"stream{i}", rng.randrange(places) * BLOCK_BYTES, share)
        for i in range(streams)
    )


def find_reach(folder: Path) -> int:
    """Find how large a sparse file in *folder* may be, as far as it matters; 0 if none may."""
    probe = folder / "reach"
    with probe.open("wb") as file:
        for reach in REACHES_BYTES:
            with suppress(OSError):  # it is too large, or would take that much space
                file.truncate(reach)
                break
        else:
            reach = 0
    probe.unlink()
    return reach


def cut_to(extents: Sequence[FileExtent], sizes: Sequence[int]) -> tuple[FileExtent, ...]:
    """Cut *extents* down to the *sizes* that were written: only that can be read back."""
    return tuple(
        replace(extent, size=size) for extent, size in zip(extents, sizes, strict=True) if size
    )


Run = tuple[int, int]
"""Offset and size of sectors that lie in a row, in bytes."""


@dataclass(frozen=True, slots=True)
class PartialOverwrite:
    """An extent, and which of its sectors were then written once more."""

    extent: FileExtent
    again: bytes
    """One byte for each sector: 1 if it was written again."""

    @property
    def count(self) -> int:
        """Number of sectors that were written again."""
        return self.again.count(1)

    def list_groups(self) -> Iterator[tuple[FileExtent, Sequence[Run]]]:
        """Yield the extent as each generation that is in it, with what lies in a row of it."""
        most = BLOCK_BYTES // SECTOR_BYTES
        for group, pattern in enumerate((b"\0{1,%d}", b"\1{1,%d}")):
            extent = replace(self.extent, generation=self.extent.generation + group)
            spans = (run.span() for run in re.finditer(pattern % most, self.again))
            runs = [
                (extent.offset + first * SECTOR_BYTES, (end - first) * SECTOR_BYTES)
                for first, end in spans
            ]
            if runs:
                yield extent, runs


def parse_writes(extent: FileExtent, trace: str) -> PartialOverwrite:
    """
    Read from fio's *trace* of a job which sectors of *extent* it wrote, one at a time.

    All versions of the format end a write with its offset and length.
    """
    again = bytearray(extent.size // SECTOR_BYTES)
    for offset in re.findall(rf" write (\d+) {SECTOR_BYTES}$", trace, re.MULTILINE):
        again[(int(offset) - extent.offset) // SECTOR_BYTES] = 1
    return PartialOverwrite(extent, bytes(again))


def mark_beginning(extent: FileExtent, size: int) -> PartialOverwrite:
    """Say that the first *size* bytes of *extent* were written again."""
    again = b"\1" * (size // SECTOR_BYTES)
    return PartialOverwrite(extent, again.ljust(extent.size // SECTOR_BYTES, b"\0"))


def format_reads(extent: FileExtent, runs: Sequence[Run], depth: int) -> str:
    """
    Write a trace, with which fio reads *runs* of the file of *extent*.

    fio neither verifies nor counts what is in flight when a trace ends, up to its queue's
    *depth* (seen in 3.28 to 3.42): so the last run is read that often again.
    """
    name = extent.path.name
    reads = [f"{name} read {offset} {size}\n" for offset, size in (*runs, *[runs[-1]] * depth)]
    return "".join(("fio version 2 iolog\n", f"{name} add\n", f"{name} open\n", *reads))
