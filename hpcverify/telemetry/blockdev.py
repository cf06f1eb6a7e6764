"""Which mount, and which whole disk, a path lies on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from hpcverify.model import Inventory, Part
from hpcverify.telemetry import sysfs

NETWORK_MARKS = {
    "/session": "iSCSI",
    "/rport-": "Fibre Channel",
    "/devices/rbd/": "RBD",
    "/virtual/block/nbd": "NBD",
}
"""What the path of a disk of another machine has in it, and how that is reached."""
NETWORK_MODELS = {
    "Amazon Elastic Block Store": "EBS",
    "nvme_card-pd": "Persistent Disk",
    "MSFT NVMe Accelerator v1.0": "Azure",
}
"""
What volumes of clouds call themselves, which look like drives of the machine.

Sources: "Identify the EBS device" (Amazon), "Persistent Disk device symlinks" (Google), "NVMe
disk identification" (Azure), each in the documentation of its virtual machines.
"""


class Mount(Struct, frozen=True):
    """A mounted file system, as /proc/self/mountinfo has it."""

    point: Path
    kind: str
    source: str
    options: tuple[str, ...] = ()
    """Those of the file system, as ``upperdir=...`` of an overlay."""
    flags: tuple[str, ...] = ()
    """Those of the mount itself, as ``ro`` of a bind mount."""
    device: str = ""
    """The number of its file system, as ``8:2``; bind mounts share it."""
    number: int = 0
    """What names this mount while it lasts."""
    parent: int = 0
    """The number of the mount that its point lies on."""


def list_mounts(root: Path = Path("/")) -> list[Mount]:
    """List what is mounted, in order; the later of two on one point hides the earlier."""
    # Not splitlines: the kernel escapes only some of the characters that it splits at, and
    # a user may choose the name of a mount point.
    text = sysfs.read_text(root / "proc/self/mountinfo")
    return [_parse_mount(line) for line in text.split("\n")] if text else []


def list_hidden(asked: Iterable[Mount], table: Sequence[Mount]) -> frozenset[int]:
    """
    List the numbers of those *asked* for that no path leads to, since another covers them.

    That is one on the same point, or on a folder above it, of the same parent. What lies
    on a hidden mount is hidden too. The order of the table does not tell: that of a
    machine which moved its mounts when it started is not that of mounting.
    """
    numbered = {mount.number: mount for mount in table}
    children: dict[int, set[Path]] = {}
    for mount in table:
        if mount.number != mount.parent:  # as the root of a mount namespace has it
            children.setdefault(mount.parent, set()).add(mount.point)
    covered: dict[int, bool] = {}  # not counting what is mounted on its own point
    asked = list(asked)
    for mount in asked:
        chain = [mount]
        while chain[-1].number not in covered and len(chain) <= len(table):
            parent = numbered.get(chain[-1].parent)
            if parent is None or parent is chain[-1]:
                break
            chain.append(parent)
        for upper in reversed(chain):
            if upper.number in covered:
                continue
            siblings, above = children.get(upper.parent, set()), numbered.get(upper.parent)
            covered[upper.number] = any(point in siblings for point in upper.point.parents) or (
                above is not None
                and above is not upper
                and (
                    covered.get(above.number, False)
                    or (above.point != upper.point and above.point in children[above.number])
                )
            )
    return frozenset(
        mount.number
        for mount in asked
        if covered[mount.number] or mount.point in children.get(mount.number, ())
    )


def find_mount(path: Path, root: Path = Path("/")) -> Mount | None:
    """Find the mount of *path*; its device number does not lead there for btrfs and overlay."""
    real = path.resolve()
    holding = [m for m in list_mounts(root) if real.is_relative_to(m.point)]
    return max(reversed(holding), key=lambda m: len(m.point.parts), default=None)


def describe_mount(folder: Path, inventory: Inventory, root: Path = Path("/")) -> Iterator[Part]:
    """Describe the mount of *folder*, where checks write, by its disk in *inventory* and volume."""
    there = next(p for p in (folder, *folder.parents) if p.exists())
    mount = find_mount(there, root)
    if mount is None:
        return
    number = _find_device(there, root)
    name = find_whole_disk(number, root) if number else None
    disk = next((p.id for p in inventory.of_kind("disk") if p.label == name), None)
    files = ("dm/name", "loop/backing_file", "partition") if number else ()
    names = (sysfs.read_text(root / f"sys/dev/block/{number}/{file}") for file in files)
    volume = next(filter(None, names), None)
    facts = sysfs.drop_unknown(
        mount=str(mount.point),
        type=mount.kind,
        disk=disk,
        volume=volume,
        source=None if disk or volume else mount.source,
    )
    yield Part("mount", f"mount-{folder}", str(folder), facts)


def find_disk(path: Path, root: Path = Path("/")) -> str | None:
    """Find the one disk that holds *path*, as ``nvme0n1``; None for a network or several disks."""
    number = _find_device(path, root)
    return None if number is None else find_whole_disk(number, root)


def _find_device(path: Path, root: Path) -> str | None:
    number = path.stat().st_dev
    if os.major(number):
        return f"{os.major(number)}:{os.minor(number)}"
    mount = find_mount(path, root)
    # The number of the file system is not that of a device: a btrfs names the
    # device that it was mounted from, an overlay the directory that it writes to.
    # In a container that name is the host's, and may lead back to the overlay.
    for option in mount.options if mount else ():
        name, _, value = option.partition("=")
        upper = Path(value)
        if name == "upperdir" and upper.is_dir() and upper.stat().st_dev != number:
            return _find_device(upper, root)
    return _find_source(mount, root) if mount else None


def list_disks_below(mount: Mount, root: Path = Path("/")) -> frozenset[str]:
    """Name the disks behind *mount*, as far as the kernel tells; its files are not asked."""
    is_own = mount.device.startswith("0:")  # the number of a btrfs is not that of a device
    number = _find_source(mount, root) if is_own else mount.device
    return list_whole_disks(number, root) if number else frozenset()


def _find_source(mount: Mount, root: Path) -> str | None:
    blocks, name = root / "sys/class/block", Path(mount.source).name
    if not mount.source.startswith("/dev/"):
        return None
    if mount.source.startswith("/dev/mapper/"):
        mapped = (
            e for e in sysfs.list_entries(blocks, "dm-*") if sysfs.read_text(e / "dm/name") == name
        )
        return next((sysfs.read_text(entry / "dev") for entry in mapped), None)
    return sysfs.read_text(blocks / name / "dev")


def find_whole_disk(number: str, root: Path = Path("/")) -> str | None:
    """Name the disk behind the block device *number*, as "8:2", if it is just one."""
    disks = list_whole_disks(number, root)
    return next(iter(disks)) if len(disks) == 1 else None


def list_whole_disks(number: str, root: Path = Path("/")) -> frozenset[str]:
    """Name the disks behind the block device *number*, as "8:2"."""
    folder = sysfs.resolve_link(root / "sys/dev/block" / number)
    if folder is None:
        return frozenset()
    if (folder / "partition").exists():
        folder = folder.parent
    # Of an LVM, LUKS, RAID or multipath device.
    below = [sysfs.read_text(e / "dev") for e in sysfs.list_entries(folder / "slaves")]
    if not below:
        return frozenset({folder.name})
    return frozenset().union(*(list_whole_disks(slave, root) for slave in below if slave))


def find_network_below(path: Path, root: Path = Path("/")) -> str | None:
    """Name the way over the network to a disk that holds *path*; None if all are local."""
    number = _find_device(path, root)
    disks = sorted(list_whole_disks(number, root)) if number else ()
    networks = (find_network(root / "sys/block" / disk) for disk in disks)
    return next(filter(None, networks), None)


def find_image_mount(disk: str, root: Path = Path("/")) -> Mount | None:
    """Find what the image behind the loop device *disk* lies on, by its name alone."""
    image = sysfs.read_text(root / "sys/block" / disk / "loop/backing_file")
    holding = [m for m in list_mounts(root) if image and Path(image).is_relative_to(m.point)]
    return max(reversed(holding), key=lambda m: len(m.point.parts), default=None)


def is_local(disk: Path) -> bool:
    """Whether the disk with the folder *disk* is a part of this node."""
    return sysfs.is_hardware(disk) and find_network(disk) is None


def find_network(disk: Path) -> str | None:
    """Name the way over the network to the disk with the folder *disk*; None for a local one."""
    place = str(sysfs.resolve_link(disk) or "")
    by_place = (name for mark, name in NETWORK_MARKS.items() if mark in place)
    by_controller = map(find_network_of_controller, list_controllers(disk))
    return next(filter(None, (*by_place, *by_controller)), None)


def find_network_of_controller(controller: Path) -> str | None:
    """Name the way over the network to the NVMe *controller*; None for a local one."""
    transport = sysfs.read_text(controller / "transport")
    if transport not in (None, "pcie"):
        return transport
    return NETWORK_MODELS.get(sysfs.read_text(controller / "model") or "")


def list_controllers(disk: Path) -> list[Path]:
    """List the folders of the devices that lead to *disk*: one for each NVMe controller."""
    device = disk / "device"
    paths = [c for c in sysfs.list_entries(device, "nvme[0-9]*") if (c / "transport").exists()]
    return paths if paths and not (device / "transport").exists() else [device]


def _parse_mount(line: str) -> Mount:
    # proc(5): the mount point is the fifth field; a dash ends the optional ones, and
    # behind it are type, source and the options of the file system.
    before, _, after = line.partition(" - ")
    kind, source, options = after.split(" ")[:3]
    number, parent, device, _, point, flags, *_ = before.split(" ")
    return Mount(
        Path(_unescape(point)),
        kind,
        _unescape(source),
        tuple(_unescape(option) for option in options.split(",")),
        tuple(flags.split(",")),
        device,
        int(number),
        int(parent),
    )


def _unescape(field: str) -> str:
    if "\\" not in field:  # as nearly all: there may be thousands of mounts
        return field
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)
