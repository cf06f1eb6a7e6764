"""How much the storage check writes and reads, and the time that it should take."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.units import MIB
from hpcverify_checks.storage.extents import GENERATIONS
from hpcverify_checks.storage.small_files import FILE_BYTES

JOURNAL_BYTES = 64 * MIB
"""Size of the file that is written and flushed 4 KiB at a time."""

TIMED_PHASES = 7
"""Limited by `StorageParams.seconds`, or about as long: four that write or access at
random, two that read all of it back, and the accesses that read the random writes."""
FLASH_BYTES_PER_SECOND, SLOW_BYTES_PER_SECOND = 500e6, 30e6
"""Speeds of checkpoints: a slow disk on SATA; a disk that turns, or a network, that others use."""
SLOW_FILE_CALLS_PER_SECOND = 1000
CALLS_PER_FILE = 5.5
"""Create, write, read, stat and unlink; every second file is written again."""


class StorageParams(hv.Params, frozen=True):
    """Sizes, counts and times."""

    size_mib: Annotated[int, Meta(ge=1)] = 2048
    """Written sequentially, read back, and read and written at random."""
    checkpoint_mib: Annotated[int, Meta(ge=1)] = 512
    """Size of a checkpoint: written, flushed and read back."""
    repeats: Annotated[int, Meta(ge=2, le=GENERATIONS)] = 4
    """Number of checkpoints: each overwrites the one before."""
    seconds: Annotated[float, Meta(gt=0)] = 2.5
    """Limit for the sequential write and each random phase."""
    streams: Annotated[int, Meta(ge=1)] = 4
    """Files written at the same time; never more than there are cores."""
    files: Annotated[int, Meta(ge=1)] = 1000
    """Number of small files."""

    @property
    def most_bytes(self) -> int:
        """Give the space that the phase with the largest files needs."""
        largest = max(self.size_mib, self.checkpoint_mib) * MIB
        return max(largest, JOURNAL_BYTES, self.files * FILE_BYTES)


def estimate(ctx: hv.Context, params: StorageParams) -> float:
    """Add up the phases, at a speed that follows from where the scratch directory is."""
    mounts = [mount for mount in ctx.inventory.of_kind("mount") if "disk" in mount.facts]
    disks = [ctx.inventory.find_part(mount.facts["disk"]) for mount in mounts]
    # One local disk without moving parts, as far as is known.
    is_flash = bool(disks) and all(d and d.facts.get("rotational") == "no" for d in disks)
    speed = FLASH_BYTES_PER_SECOND if is_flash else SLOW_BYTES_PER_SECOND
    checkpoints = 2 * params.repeats * params.checkpoint_mib * MIB / speed
    files = CALLS_PER_FILE * params.files / SLOW_FILE_CALLS_PER_SECOND
    return TIMED_PHASES * params.seconds + checkpoints + files
