"""The scratch directory: whether it can be loaded, and what it lies on."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

from hpcverify.check import Unable
from hpcverify.model import Cause, Coverage, Inventory
from hpcverify.telemetry.blockdev import Mount, find_disk, find_mount

PROBE_BYTES = 4096
"""What is written to try the directory: a multiple of every disk's sectors."""

RESERVE_SHARE = 0.05
MIN_RESERVE_BYTES = 2**30
MAX_RESERVE_BYTES = 32 * 2**30
"""What is left free of a file system: jobs of others may be writing to it."""

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
"""These take O_DIRECT since Linux 6.6, and are no disk for it."""

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "glusterfs",
        "gpfs",
        "lustre",
        "nfs",
        "nfs4",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "virtiofs",
        "wekafs",
    }
)
"""File systems whose disks are another machine's; so are those of FUSE, mostly."""

UNWRITABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchSite:
    """Where the scratch directory lies, and whose fault its troubles are."""

    folder: Path
    mount: Mount
    disk: str | None
    part: str
    direct: bool

    @property
    def remote(self) -> bool:
        """Whether it is another machine that stores."""
        return self.mount.kind in NETWORK_FILE_SYSTEMS or self.mount.kind.startswith("fuse.")

    def name_metric(self, metric: str) -> str:
        """Mark what was measured through the page cache as not to be judged."""
        return metric if self.direct else f"cached.{metric}"

    def name_stall(self, phase: str) -> str:
        """Mark the stall of a server as not this node's."""
        name = self.name_metric(f"{phase}.longest")
        return f"remote.{name}" if self.remote else name

    def make_covered(self, text: str) -> Coverage:
        """Say what was done here."""
        return Coverage(self.part, text)


@dataclass(frozen=True, slots=True)
class Space:
    """The bytes that a file system has, and that we may still take."""

    total: int
    free: int


def space_of(folder: Path) -> Space:
    """Ask the file system; what it keeps for root is not free."""
    answer = os.statvfs(folder)
    return Space(answer.f_blocks * answer.f_frsize, answer.f_bavail * answer.f_frsize)


def require_space(folder: Path, needed: int, space: Space) -> None:
    """
    Refuse to fill a file system.

    Raises:
        Unable: with NO_SPACE, naming what is needed and what is free.

    """
    reserve = min(max(space.total * RESERVE_SHARE, MIN_RESERVE_BYTES), MAX_RESERVE_BYTES)
    if space.free - reserve < needed:
        raise Unable(
            f"{folder} has {space.free} bytes free; {needed} are needed beside "
            f"{reserve:.0f} to be left: free some, or choose another scratch directory",
            Cause.NO_SPACE,
        )


def require_writable(folder: Path) -> bool:
    """
    Write one block, and say whether that can be done past the page cache.

    Any other error is left to the phases, which report it as what it is.

    Raises:
        Unable: with DENIED, if the directory is read-only or not ours.

    """
    probe = folder / "probe"
    try:
        _write_block(probe, os.O_DIRECT)
    except OSError as exc:
        if exc.errno in UNWRITABLE_ERRNOS:
            raise Unable(
                f"{folder} cannot be written ({exc.strerror}): mount it writable, or "
                "choose another scratch directory",
                Cause.DENIED,
            ) from exc
        return exc.errno != errno.EINVAL
    probe.unlink()
    return True


def _write_block(path: Path, flag: int) -> None:
    with mmap.mmap(-1, PROBE_BYTES) as block:  # aligned to a page, as O_DIRECT demands
        file = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o600)
        try:
            os.write(file, block)
        finally:
            os.close(file)


def find_site(folder: Path, inventory: Inventory, *, direct: bool) -> ScratchSite:
    """Find the mount and the disk that *folder* lies on, and the part that this is."""
    mount = find_mount(folder) or Mount(Path("/"), "an unknown file system", "")
    disk = find_disk(folder)
    parts = [part.id for part in inventory.of_kind("disk") if part.label == disk]
    return ScratchSite(
        folder=folder,
        mount=mount,
        disk=disk,
        part=parts[0] if parts else "node",
        direct=direct and mount.kind not in MEMORY_FILE_SYSTEMS,
    )


def describe_site(site: ScratchSite) -> Coverage:
    """Say where the directory lies, and how it is reached."""
    mount, disk = site.mount, site.disk or "no single disk"
    if site.direct:
        way = "past the page cache"
    elif mount.kind in MEMORY_FILE_SYSTEMS:
        way = f"not direct: {mount.kind} is memory, so no speed is judged"
    else:
        way = "not direct: the file system refuses O_DIRECT, so no speed is judged"
    return site.make_covered(f"{mount.point} ({mount.kind} on {mount.source}, {disk}), {way}")
