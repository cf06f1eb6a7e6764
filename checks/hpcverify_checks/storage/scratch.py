"""The scratch directory: whether it can be loaded, and what disk it is on."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import hpcverify.check as hv
from hpcverify.telemetry.blockdev import (
    Mount,
    find_disk,
    find_image_mount,
    find_mount,
    find_network_below,
)
from hpcverify.units import MIB
from hpcverify_checks.node.mounts import is_remote

PROBE_BYTES = 4096
"""Size of the trial write: a multiple of every disk's sector size."""

RESERVE_SHARE = 0.05
MIN_RESERVE_BYTES = 2**30
MAX_RESERVE_BYTES = 32 * 2**30
"""Left free on the file system: other jobs may be writing to it."""

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
"""These accept O_DIRECT since Linux 6.6, but are not disks."""

UNWRITABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchSite:
    """Where the scratch directory is, and whose fault its errors are."""

    folder: Path
    mount: Mount
    disk: str | None
    part: str
    direct: bool
    network: str | None = None
    """The way over the network to its disk, as iSCSI."""

    @property
    def remote(self) -> bool:
        """Whether another machine, or a process, stores the data."""
        return self.network is not None or is_remote(self.mount.kind)

    @property
    def own_disk(self) -> str | None:
        """The disk, if it is a part of this node: the health of another machine's is not asked."""
        return None if self.remote else self.disk

    def name_metric(self, metric: str) -> str:
        """Mark a metric taken through the page cache as not to be judged."""
        return metric if self.direct else f"cached.{metric}"

    def describe_reads(self, cached: int) -> str:
        """Say where what was read came from, if the page cache still had *cached* bytes of it."""
        if self.direct:
            return "read past the page cache"
        if self.mount.kind in MEMORY_FILE_SYSTEMS:
            return f"read from memory: {self.mount.kind} has no disk"
        if cached:
            return f"not all read from the disk: the page cache kept {cached / MIB:.1f} MiB"
        return "read after the page cache had given it up"

    def name_stall(self, phase: str) -> str:
        """Mark a stall of a network file system as not this node's."""
        name = self.name_metric(f"{phase}.longest")
        return f"remote.{name}" if self.remote else name


def query_space(folder: Path) -> tuple[int, int]:
    """Query the size of a file system and what is free; blocks reserved for root are not."""
    answer = os.statvfs(folder)
    return answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize


def require_space(folder: Path, needed: int, total: int, free: int) -> None:
    """Refuse to fill a file system."""
    reserve = min(max(total * RESERVE_SHARE, MIN_RESERVE_BYTES), MAX_RESERVE_BYTES)
    if free - reserve < needed:
        raise hv.Unable(
            f"{folder} has {free / MIB:.0f} MiB free; the test needs {needed / MIB:.0f} MiB "
            f"and leaves {reserve / MIB:.0f} MiB free: free some space, or choose another scratch "
            "directory",
            hv.Cause.NO_SPACE,
        )


def require_writable(folder: Path) -> bool:
    """
    Write one block, and return whether O_DIRECT works here.

    Other errors are left to the phases, which report them properly.
    """
    probe = folder / "probe"
    try:
        with mmap.mmap(-1, PROBE_BYTES) as block:  # page-aligned, as O_DIRECT requires
            file = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
            try:
                os.write(file, block)
            finally:
                os.close(file)
    except OSError as exc:
        if exc.errno in UNWRITABLE_ERRNOS:
            raise hv.Unable(
                f"{folder} cannot be written ({exc.strerror}): mount it writable, or choose "
                "another scratch directory",
                hv.Cause.DENIED,
            ) from exc
        return exc.errno != errno.EINVAL
    probe.unlink()
    return True


def find_site(folder: Path, inventory: hv.Inventory, *, direct: bool) -> ScratchSite:
    """Find the mount, the disk and the part that *folder* is on."""
    mount = find_mount(folder) or Mount(Path("/"), "an unknown file system", "")
    disk = find_disk(folder)
    parts = (part.id for part in inventory.of_kind("disk") if part.label == disk)
    return ScratchSite(
        folder=folder,
        mount=mount,
        disk=disk,
        part=next(parts, "node"),
        direct=direct and mount.kind not in MEMORY_FILE_SYSTEMS,
        network=find_network_below(folder) or find_network_of_image(disk),
    )


def find_network_of_image(disk: str | None, root: Path = Path("/")) -> str | None:
    """Name the network file system with the image behind *disk*; None if there is none."""
    mount = find_image_mount(disk, root) if disk else None
    return mount.kind if mount and is_remote(mount.kind) else None


def describe_site(site: ScratchSite) -> hv.Coverage:
    """Say where the directory is, and whether the page cache is bypassed."""
    mount, disk = site.mount, site.disk or "no single disk"
    if site.direct:
        way = "past the page cache"
    elif mount.kind in MEMORY_FILE_SYSTEMS:
        way = f"not direct: {mount.kind} is memory, so no speed is judged"
    else:
        way = "not direct: the file system refuses O_DIRECT, so no speed is judged"
    reached = f" over {site.network}" if site.network else ""
    text = f"{mount.point} ({mount.kind} on {mount.source}, {disk}{reached}), {way}"
    return hv.Coverage(site.part, text)
