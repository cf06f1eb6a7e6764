"""A path is traced to the one whole disk that holds it, or to none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcverify.model import Inventory, Part
from hpcverify.telemetry.blockdev import (
    describe_mount,
    find_disk,
    find_mount,
    find_network_below,
    find_whole_disk,
    list_disks_below,
    list_hidden,
    list_mounts,
)
from tests.telemetry.trees import grow, link


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "sys/dev/block").mkdir(parents=True)
    (made / "proc/self").mkdir(parents=True)
    return made


def device(root: Path, place: str, number: str, *, partition: bool = False) -> Path:
    folder = root / "sys/devices" / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dev").write_text(number)
    if partition:
        (folder / "partition").write_text("1")
    (root / "sys/dev/block" / number).symlink_to(folder)
    return folder


def slave(of: Path, disk: Path) -> None:
    (of / "slaves").mkdir(exist_ok=True)
    (of / "slaves" / disk.name).symlink_to(disk)


def mounted(root: Path, *lines: str) -> None:
    (root / "proc/self/mountinfo").write_text("\n".join(lines) + "\n")


def test_a_disk_is_its_own_name(root: Path) -> None:
    device(root, "pci0/nvme/nvme0/nvme0n1", "9:0")

    assert find_whole_disk("9:0", root) == "nvme0n1"


def test_a_partition_leads_to_its_disk(root: Path) -> None:
    device(root, "pci0/sda/sda2", "9:0", partition=True)

    assert find_whole_disk("9:0", root) == "sda"


def test_a_logical_volume_leads_through_its_layers_to_its_disk(root: Path) -> None:
    volume = device(root, "virtual/dm-1", "9:0")
    crypt = device(root, "virtual/dm-0", "252:0")
    slave(volume, crypt)
    slave(crypt, device(root, "pci0/sda/sda2", "8:2", partition=True))

    assert find_whole_disk("9:0", root) == "sda"


def test_a_mirror_over_two_disks_is_no_one_disk(root: Path) -> None:
    mirror = device(root, "virtual/md0", "9:0")
    slave(mirror, device(root, "pci0/sda/sda1", "8:1", partition=True))
    slave(mirror, device(root, "pci0/sdb/sdb1", "8:17", partition=True))

    assert find_whole_disk("9:0", root) is None


def test_a_mirror_over_two_parts_of_one_disk_is_on_that_disk(root: Path) -> None:
    mirror = device(root, "virtual/md0", "9:0")
    slave(mirror, device(root, "pci0/sda/sda1", "8:1", partition=True))
    slave(mirror, device(root, "pci0/sda/sda2", "8:2", partition=True))

    assert find_whole_disk("9:0", root) == "sda"


def test_a_btrfs_leads_to_the_device_that_it_was_mounted_from(root: Path) -> None:
    # /dev/shm has a number that is no device's, as every btrfs has.
    disk = device(root, "pci0/sdc/sdc1", "8:33", partition=True)
    (root / "sys/class/block").mkdir(parents=True)
    (root / "sys/class/block/sdc1").symlink_to(disk)
    mounted(root, "30 1 0:27 /@ /dev/shm rw - btrfs /dev/sdc1 rw,subvol=/@")

    assert find_disk(Path("/dev/shm"), root) == "sdc"  # noqa: S108 - only looked at


@pytest.mark.parametrize(
    ("place", "network"), [("platform/session1/sdc", "iSCSI"), ("pci0/sdc", None)]
)
def test_a_path_on_a_disk_of_another_machine_tells_how_that_is_reached(
    root: Path, place: str, network: str | None
) -> None:
    volume, disk = device(root, "virtual/dm-0", "252:0"), device(root, place, "8:32")
    slave(volume, disk)
    slave(volume, device(root, "pci0/sdd", "8:48"))
    for folder, name in (("class/block", "dm-0"), ("block", "sdc")):
        (root / "sys" / folder).mkdir(parents=True)
        (root / "sys" / folder / name).symlink_to(volume if name == "dm-0" else disk)
    mounted(root, "30 1 0:27 /@ /dev/shm rw - btrfs /dev/dm-0 rw")

    assert find_network_below(Path("/dev/shm"), root) == network  # noqa: S108 - only looked at


@pytest.mark.parametrize(
    ("line", "disks"),
    [
        ("30 1 0:27 /@ /x rw - btrfs /dev/mapper/vg-data rw", {"sdc"}),
        ("30 1 0:27 /@ /x rw - btrfs /dev/sdc rw", {"sdc"}),
        ("30 1 8:32 / /x rw - ext4 /dev/renamed rw", {"sdc"}),
        ("30 1 0:27 / /x rw - nfs4 server:/dev/sdc rw", set()),
        ("30 1 0:27 / /x rw - btrfs /dev/mapper/other rw", set()),
    ],
)
def test_a_mount_tells_its_disks_without_being_asked(
    root: Path, line: str, disks: set[str]
) -> None:
    volume, disk = device(root, "virtual/dm-0", "252:0"), device(root, "pci0/sdc", "8:32")
    slave(volume, disk)
    grow(volume, {"dm/name": "vg-data"})
    for name, folder in (("dm-0", volume), ("sdc", disk)):
        link(root, f"sys/class/block/{name}", str(folder.relative_to(root)))
    mounted(root, line)

    assert list_disks_below(list_mounts(root)[0], root) == disks


def test_an_overlay_leads_to_the_disk_of_the_directory_that_it_writes_to(
    root: Path, tmp_path: Path
) -> None:
    status = tmp_path.stat().st_dev
    number = f"{os.major(status)}:{os.minor(status)}"
    disk = device(root, "pci0/sda", number)
    (root / "sys/class/block").mkdir(parents=True)
    (root / "sys/class/block/sda").symlink_to(disk)
    mounted(  # the first line is for where tmp_path has itself no device's number
        root,
        f"29 1 0:26 / {tmp_path} rw - btrfs /dev/sda rw",
        f"30 1 0:27 / /dev/shm rw - overlay overlay rw,lowerdir=/a,upperdir={tmp_path}",
    )

    assert find_disk(Path("/dev/shm"), root) == "sda"  # noqa: S108 - only looked at


def test_an_overlay_that_seems_to_write_to_itself_is_on_no_disk(root: Path) -> None:
    line = "30 1 0:27 / /dev/shm rw - overlay overlay rw,upperdir=/dev/shm"
    mounted(root, line)

    assert find_disk(Path("/dev/shm"), root) is None  # noqa: S108 - only looked at


def test_a_path_on_a_device_leads_to_its_disk(root: Path) -> None:
    status = Path(__file__).stat().st_dev
    number = f"{os.major(status)}:{os.minor(status)}"
    device(root, "pci0/nvme/nvme0/nvme0n1", number)

    expected = "nvme0n1" if os.major(status) else None
    assert find_disk(Path(__file__), root) == expected


@pytest.mark.parametrize("kind", ["nfs4 server:/export", "tmpfs tmpfs", "zfs tank/a"])
def test_what_is_mounted_from_no_device_is_on_no_disk(root: Path, kind: str) -> None:
    mounted(root, f"30 1 0:27 / /dev/shm rw - {kind} rw")

    assert find_disk(Path("/dev/shm"), root) is None  # noqa: S108 - only looked at


def test_the_innermost_and_latest_mount_holds_a_path(root: Path, tmp_path: Path) -> None:
    mounted(
        root,
        "1 0 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
        f"2 1 0:40 / {tmp_path} rw shared:1 master:2 - tmpfs hidden rw",
        f"3 2 0:41 / {tmp_path} rw,nosuid - nfs4 server:/a rw,vers=4.2",
        f"4 1 0:42 / {tmp_path}x rw - tmpfs beside rw",
    )

    mount = find_mount(tmp_path, root)

    assert mount is not None
    assert (mount.point, mount.kind, mount.source) == (tmp_path, "nfs4", "server:/a")
    assert mount.options == ("rw", "vers=4.2")


def test_a_space_in_a_mount_point_is_read_as_one(root: Path, tmp_path: Path) -> None:
    (spaced := tmp_path / "a b").mkdir()
    mounted(root, rf"2 1 0:40 / {tmp_path}/a\040b rw - xfs /dev/x rw")

    mount = find_mount(spaced, root)

    assert mount is not None
    assert mount.point == spaced


def test_without_proc_no_mount_is_known(root: Path, tmp_path: Path) -> None:
    assert find_mount(tmp_path, root) is None


DISKS = Inventory(parts=(Part("disk", "eui.1", "sda"),))


def facts_of(folder: Path, root: Path) -> dict[str, str]:
    (part,) = describe_mount(folder, DISKS, root)
    assert (part.kind, part.label) == ("mount", str(folder))
    return part.facts


def test_a_mount_goes_by_its_disk_and_its_volume_and_not_by_its_device(root: Path) -> None:
    device(root, "pci0/sda", "8:0")
    part = device(root, "pci0/sda/sda1", "8:1", partition=True)
    (root / "sys/class/block").mkdir(parents=True)
    (root / "sys/class/block/sda1").symlink_to(part)
    mounted(root, "30 1 0:27 /@ /dev/shm rw - btrfs /dev/sda1 rw,subvol=/@")

    assert facts_of(Path("/dev/shm"), root) == {  # noqa: S108 - only looked at
        "mount": "/dev/shm",  # noqa: S108
        "type": "btrfs",
        "disk": "eui.1",
        "volume": "1",
    }


def test_a_mount_of_no_device_goes_by_its_source(root: Path) -> None:
    mounted(root, "1 0 0:5 / / rw - proc proc rw")

    known = {"mount": "/", "type": "proc", "source": "proc"}
    assert facts_of(Path("/proc"), root) == known


def test_a_directory_that_is_missing_would_lie_on_the_mount_of_what_is_above(root: Path) -> None:
    mounted(root, "30 1 0:27 / /dev/shm rw - tmpfs none rw")

    facts = facts_of(Path("/dev/shm/no/such"), root)  # noqa: S108 - only looked at

    assert facts == {"mount": "/dev/shm", "type": "tmpfs", "source": "none"}  # noqa: S108


@pytest.mark.parametrize(
    ("lines", "hidden"),
    [
        (["20 20 8:1 / /", "21 20 8:2 / /a"], set()),  # the root of a container is its own parent
        (["22 27 0:1 / /proc", "27 1 8:1 / /"], set()),  # as a machine's first program moved them
        (["27 1 8:1 / /", "28 27 8:2 / /a/b", "29 27 0:3 / /a", "30 28 8:4 / /a/b/c"], {28, 30}),
        (["27 1 8:1 / /", "28 27 8:2 / /a", "29 28 0:3 / /a", "30 29 8:4 / /a/b"], {28}),
        (["27 1 8:1 / /", "28 27 8:2 / /a", "29 28 0:3 / /a/b", "30 28 8:4 / /a"], {28, 29}),
        (["1 1 0:1 / /", "27 1 8:1 / /", "28 27 8:2 / /a"], {1}),  # rootfs below the root
        ([f"{i} {i - 1} 0:{i} / /a" for i in range(30, 2000)], set(range(30, 1999))),
    ],
)
def test_a_mount_that_another_covers_is_hidden(
    root: Path, lines: list[str], hidden: set[int]
) -> None:
    mounted(root, *(f"{line} rw - tmpfs x rw" for line in lines))
    table = list_mounts(root)

    assert list_hidden(table, table) == hidden
