"""Real file systems on loop devices, which take a few MiB on the disk beneath."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

from hpcverify.telemetry.blockdev import Mount
from hpcverify_checks.storage.extents import FileExtent
from hpcverify_checks.storage.fio_runner import Fio, FioReport
from hpcverify_checks.storage.scratch import ScratchSite
from tests.own_node import require_root

ACCESSES = 16
"""The most accesses of a stream in a load of `CountedFio` that time would limit."""
FIBMAP = 1
"""Of linux/fs.h: on which block of its disk a block of a file is."""


class CountedFio(Fio):
    """Limits a load by a count of accesses and not by time, so that each machine makes the same."""

    def run(
        self,
        extents: Sequence[FileExtent],
        *,
        seed: int = 0,
        seconds: float = 0.0,
        own: Sequence[Mapping[str, object]] = (),
        **options: object,
    ) -> FioReport:
        if seconds:
            most = ACCESSES * int(str(options["bs"]))
            options["io_size"] = min(most, *(extent.size for extent in extents))
        return super().run(extents, seed=seed, seconds=0.0, own=own, **options)


@contextmanager
def mounted(*arguments: object) -> Generator[Path]:
    """Mount as ``mount ARGUMENTS`` does; the last of them is the mount point."""
    require_root()
    point = Path(str(arguments[-1]))
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", *map(str, arguments)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def formatted(folder: Path) -> Path:
    """Make a sparse 4 GiB ext4, which takes a few MiB on the disk beneath."""
    made = folder / "image"
    with made.open("wb") as file:
        file.truncate(4 * 2**30)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", made], check=True)
    return made


def site(folder: Path = Path("/scratch"), kind: str = "ext4", **changes: object) -> ScratchSite:
    made = ScratchSite(
        folder=folder, mount=Mount(folder, kind, "/dev/sda1"), disk="sda", part="S1", direct=True
    )
    return replace(made, **changes)  # type: ignore[arg-type] # as in a test's context


def flip_below(image: Path, path: Path, at: int) -> None:
    """Change one bit of *path* on its disk, an *image*, without the page cache's knowledge."""
    block_bytes = os.statvfs(path).f_bsize
    with path.open("rb") as file:
        asked = struct.pack("i", at // block_bytes)
        (block,) = struct.unpack("i", ioctl(file, FIBMAP, asked))
    with image.open("r+b") as disk:
        disk.seek(block * block_bytes + at % block_bytes)
        (byte,) = disk.read(1)
        disk.seek(-1, os.SEEK_CUR)
        disk.write(bytes([byte ^ 1]))
