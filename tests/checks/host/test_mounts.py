"""Mounts, real ones: what is missing, wrong, read-only, full, gone or hung is named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from hpcverify.check import Verdict
from hpcverify.model import CarryOver, Cause, CheckItem, Coverage, Inventory, Measurement
from hpcverify.processes import KernelWait, process_exists
from hpcverify.telemetry.blockdev import list_mounts
from hpcverify.testing import find_value, judge_items, list_codes, list_findings
from hpcverify_checks.host import CHECK, apart
from hpcverify_checks.host.apart import MAX_CHILDREN, MAX_HUNG, Question, ask_apart, read_start
from hpcverify_checks.host.mounts import ERRORS, LEFT_BEHIND, READ_ONLY, WRITABLE, measure_mounts
from hpcverify_checks.host.needs import Bound, Expectation, MountNeed, SpaceNeed
from tests.checks.host.nodes import a_node, list_unmet, look
from tests.checks.storage.disks import mounted
from tests.fuse import silent_file_system
from tests.telemetry.trees import grow, link

pytestmark = pytest.mark.needs("root")


def ask(
    tmp_path: Path,
    *needs: MountNeed,
    space: tuple[SpaceNeed, ...] = (),
    recalled: str | None = None,
    writable: str | None = None,
    errors: str | None = None,
    read_only: str | None = None,
    root: Path = Path("/"),
) -> list[CheckItem]:
    """Ask this machine, or one with the mount table of *root*, in half a second each."""
    table = list_mounts(root)
    scratch = tmp_path / "scratch"
    return list(
        measure_mounts(
            table,
            needs,
            space,
            recalled,
            writable=writable,
            errors=errors,
            read_only=read_only,
            seconds=0.5,
            root=root,
            scratch=scratch,
        )
    )


def find_mark(items: list[CheckItem], name: str = LEFT_BEHIND) -> str:
    (mark,) = (i.value for i in items if isinstance(i, CarryOver) and i.name == name)
    return mark


def about(items: list[CheckItem], part_id: object) -> list[str]:
    return [f.code for f in list_findings(items) if f.part_id == str(part_id)]


def test_this_machine_as_it_is_is_silent(tmp_path: Path) -> None:
    assert list_codes(ask(tmp_path)) == []


def test_what_is_mounted_as_needed_is_silent(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=8M,nosuid", "scratch1", tmp_path / "m") as point:
        need = MountNeed(
            path=str(point),
            type="/^(tmpfs|xfs)$/",
            source="scratch*",
            options=("nosuid", "!noexec", "/(^|,)rw(,|$)/"),
            writable=True,
        )
        found = ask(tmp_path, need)

    assert list_codes(found) == []
    assert list(point.iterdir()) == []


def test_a_slash_at_the_end_of_a_mount_point_means_the_same(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=1M", "m", tmp_path / "m") as point:
        assert list_codes(ask(tmp_path, MountNeed(path=f"{point}/", writable=True))) == []


def test_what_is_not_mounted_is_named_with_its_fix(tmp_path: Path) -> None:
    found = ask(tmp_path, MountNeed(path=str(tmp_path / "none")))
    judged = judge_items(CHECK, found)

    assert (judged.verdict, judged.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)
    assert f"not mounted: mount {tmp_path}/none" in judged.reason


@pytest.mark.parametrize(
    ("need", "says"),
    [
        ({"type": "nfs*"}, "type is tmpfs, not nfs*"),
        ({"source": "server:/home"}, "source is scratch1, not server:/home"),
        ({"options": ("noexec",)}, "lack noexec"),
        ({"options": ("!nosuid",)}, "lack !nosuid"),
        ({"writable": False}, "is writable"),
    ],
)
def test_what_is_mounted_otherwise_is_named(
    tmp_path: Path, need: dict[str, object], says: str
) -> None:
    with mounted("-t", "tmpfs", "-o", "size=8M,nosuid", "scratch1", tmp_path / "m") as point:
        found = ask(tmp_path, MountNeed(path=str(point), **need))  # type: ignore[arg-type]

    assert about(found, point) == ["mount_wrong"]
    assert says in list_findings(found)[0].text


def test_a_read_only_bind_of_what_must_be_writable_is_named(tmp_path: Path) -> None:
    with (
        mounted("-t", "tmpfs", "-o", "size=8M", "m", tmp_path / "m") as below,
        mounted("--bind", below, tmp_path / "b") as point,
    ):
        subprocess.run(["mount", "-o", "remount,bind,ro", point], check=True)
        found = ask(tmp_path, MountNeed(path=str(point), writable=True))
        silent = ask(tmp_path, MountNeed(path=str(point), writable=False))

    assert about(found, point) == ["mount_read_only"]
    assert list_codes(silent) == []


def test_a_file_system_that_is_full_cannot_be_written(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "-o", "size=1M", "m", tmp_path / "m") as point:
        (point / "much").write_bytes(bytes(2**20))
        found = ask(tmp_path, MountNeed(path=str(point), writable=True))
        want = SpaceNeed(path=str(point), free=Bound(low=0.0001))
        short = ask(tmp_path, space=(want,))

    assert about(found, point) == ["full"]
    assert about(short, point) == []
    assert list_unmet(short, Expectation(space=(want,))) == [("space.free", str(point))]


def test_a_local_file_system_without_space_or_inodes_is_full_by_default(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * 2**20))
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "32", image], check=True)
    with mounted("-o", "loop", image, tmp_path / "disk") as point:
        before = ask(tmp_path)
        for i in range(32):
            try:
                (point / str(i)).touch()
            except OSError:
                break
        after = ask(tmp_path)

    assert about(before, point) == []
    assert about(after, point) == ["full"]
    assert judge_items(CHECK, after).cause is Cause.NO_SPACE
    assert find_value(after, "inodes.free_share", str(point)) == 0


def on_disk(folder: Path, flags: str, options: str, *more: str) -> Path:
    line = f"20 1 8:1 / / {flags},relatime - ext4 /dev/sda1 {options},errors=remount-ro"
    return grow(folder, {"proc/self/mountinfo": "\n".join([line, *more])})


@pytest.mark.parametrize(
    ("flags", "options", "codes"),
    [
        ("rw", "ro", ["turned_read_only"]),  # as the kernel leaves it after an error
        ("rw", "rw,emergency_ro", ["turned_read_only"]),  # the same, since Linux 6.15
        ("rw", "rw,shutdown", ["turned_read_only"]),
        ("ro", "ro", []),  # as mount -o ro does
        ("ro", "rw", []),  # a container, or a read-only bind
        ("rw", "rw", []),
    ],
)
def test_a_disk_that_the_kernel_turned_read_only_fails_until_it_is_writable(
    tmp_path: Path, flags: str, options: str, codes: list[str]
) -> None:
    first = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "rw"))
    root = on_disk(tmp_path / "r", flags, options)
    found = ask(tmp_path, root=root, writable=find_mark(first, WRITABLE))
    again = ask(tmp_path, root=root, writable=find_mark(found, WRITABLE))

    assert list_codes(found) == list_codes(again) == codes
    assert judge_items(CHECK, again).verdict is (Verdict.FAIL if codes else Verdict.PASS)


def test_a_disk_that_nobody_saw_writable_is_not_accused(tmp_path: Path) -> None:
    """A container's bind mount of a read-only image looks the same."""
    found = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "ro"))

    assert list_codes(found) == ["maybe_read_only"]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_a_disk_that_is_mounted_read_only_elsewhere_may_have_been_turned_by_hand(
    tmp_path: Path,
) -> None:
    """``mount -o remount,ro /mnt`` does so, where / is a bind mount of a folder in it."""
    first = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "rw"))
    other = "21 20 8:1 / /mnt ro,relatime - ext4 /dev/sda1 ro,errors=remount-ro"
    root = on_disk(tmp_path / "r", "rw", "ro", other)

    assert list_codes(ask(tmp_path, root=root)) == []
    found = ask(tmp_path, root=root, writable=find_mark(first, WRITABLE))
    assert list_codes(found) == ["maybe_read_only"]
    assert list_codes(ask_again(tmp_path, root, found)) == []  # reported once


def ask_again(tmp_path: Path, root: Path, found: list[CheckItem]) -> list[CheckItem]:
    writable, read_only = find_mark(found, WRITABLE), find_mark(found, READ_ONLY)
    return ask(tmp_path, root=root, writable=writable, read_only=read_only)


def test_a_read_only_file_system_of_a_container_is_reported_once(tmp_path: Path) -> None:
    root = on_disk(tmp_path / "r", "rw", "ro")
    found = ask(tmp_path, root=root)
    assert list_codes(found) == ["maybe_read_only"]
    for _ in range(3):
        found = ask_again(tmp_path, root, found)
        assert list_codes(found) == []


def test_one_that_was_writable_meanwhile_fails_when_it_turns(tmp_path: Path) -> None:
    found = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "ro"))
    found = ask_again(tmp_path, on_disk(tmp_path / "r", "rw", "rw"), found)
    found = ask_again(tmp_path, on_disk(tmp_path / "r", "rw", "ro"), found)
    assert list_codes(found) == ["turned_read_only"]


@pytest.mark.parametrize("options", ["rw,emergency_ro", "rw,shutdown"])
def test_what_only_an_error_does_is_reported_until_it_is_mended(
    tmp_path: Path, options: str
) -> None:
    root = on_disk(tmp_path / "r", "rw", options)
    found = ask(tmp_path, root=root)
    assert list_codes(found) == list_codes(ask_again(tmp_path, root, found)) == ["maybe_read_only"]


def test_a_read_only_file_system_can_be_accepted(tmp_path: Path) -> None:
    node = a_node(tmp_path / "r")
    first = look(tmp_path, node, previous=Inventory())
    on_disk(node.root, "rw", "ro")
    turned = look(tmp_path, node, before=first, previous=Inventory())
    assert "turned_read_only" in list_codes(turned)
    accepted = look(tmp_path, node, before=turned)  # --accept-parts knows no earlier parts
    assert "turned_read_only" not in list_codes(accepted)
    later = look(tmp_path, node, before=accepted, previous=Inventory())
    assert not {"turned_read_only", "maybe_read_only"} & set(list_codes(later))


@pytest.mark.parametrize(
    ("disk", "place", "code"),
    [
        ("sda", "pci0/host0/target0:0:0/0:0:0:0/block/sda", "turned_read_only"),
        ("sda", "platform/host3/session1/target3:0:0/3:0:0:1/block/sda", "maybe_read_only"),
        ("rbd0", "", "maybe_read_only"),
        ("loop0", "", "maybe_read_only"),
    ],
)
def test_a_disk_that_is_not_of_this_node_does_not_make_it_fail(
    tmp_path: Path, disk: str, place: str, code: str
) -> None:
    first = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "rw"))
    root = on_disk(tmp_path / "r", "rw", "ro")
    folder = root / "sys/devices" / (place or f"virtual/block/{disk}")
    folder.mkdir(parents=True)
    if place:
        (folder / "device").symlink_to(folder.parent.parent)
    link(root, "sys/dev/block/8:1", str(folder.relative_to(root)))
    link(root, f"sys/block/{disk}", str(folder.relative_to(root)))

    found = ask(tmp_path, root=root, writable=find_mark(first, WRITABLE))

    assert list_codes(found) == [code]


@pytest.mark.parametrize(
    ("place", "code"), [("platform/session1", "maybe_read_only"), ("pci0", "turned_read_only")]
)
def test_a_btrfs_is_of_this_node_if_the_disk_that_it_was_mounted_from_is(
    tmp_path: Path, place: str, code: str
) -> None:
    """Its own number is that of no device."""
    root, line = tmp_path / "r", "20 1 0:45 /@ / rw,relatime - btrfs /dev/sdb {},space_cache=v2"
    disk = f"sys/devices/{place}/block/sdb"
    grow(root, {"proc/self/mountinfo": line.format("rw"), f"{disk}/dev": "8:16"})
    link(root, f"{disk}/device", f"sys/devices/{place}")
    for name in ("sys/class/block/sdb", "sys/block/sdb", "sys/dev/block/8:16"):
        link(root, name, disk)
    first = ask(tmp_path, root=root)
    grow(root, {"proc/self/mountinfo": line.format("ro")})

    assert list_codes(ask_again(tmp_path, root, first)) == [code]


@pytest.mark.parametrize(
    ("place", "code"), [("platform/session", "maybe_read_only"), ("pci0", "turned_read_only")]
)
def test_a_volume_over_several_disks_is_of_this_node_if_all_are(
    tmp_path: Path, place: str, code: str
) -> None:
    """As with multipath over iSCSI, and with RAID over drives of the node."""
    first = ask(tmp_path, root=on_disk(tmp_path / "r", "rw", "rw"))
    root = on_disk(tmp_path / "r", "rw", "ro")
    volume = root / "sys/devices/virtual/block/dm-0"
    for index, name in enumerate(("sda", "sdb")):
        disk = f"sys/devices/{place}{index}/block/{name}"
        link(root, f"{disk}/device", f"sys/devices/{place}{index}")
        link(root, f"sys/block/{name}", disk)
        link(root, f"sys/dev/block/8:{16 * index + 16}", disk)
        grow(volume, {f"slaves/{name}/dev": f"8:{16 * index + 16}"})
    link(root, "sys/dev/block/8:1", "sys/devices/virtual/block/dm-0")

    found = ask(tmp_path, root=root, writable=find_mark(first, WRITABLE))

    assert list_codes(found) == [code]


def test_an_error_of_ext4_is_seen_as_this_kernel_tells_it(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * 2**20))
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted("-o", "loop,errors=remount-ro", image, tmp_path / "disk") as point:
        before = ask(tmp_path, MountNeed(path=str(point), options=("rw",)))
        device = next(m.source for m in list_mounts() if m.point == point).removeprefix("/dev/")
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
        after = ask(
            tmp_path,
            writable=find_mark(before, WRITABLE),
            errors=find_mark(before, ERRORS),
        )

    assert about(before, point) == []
    # Linux 6.11 to 6.14 shows no more than the count of errors.
    assert about(after, point) in (["maybe_read_only"], ["file_system_errors"])
    assert judge_items(CHECK, after).verdict is Verdict.WARN


def test_errors_that_ext4_counts_are_told_when_they_are_new(tmp_path: Path) -> None:
    root = on_disk(tmp_path / "r", "rw", "rw")
    device = root / "sys/devices/sda/sda1"
    count = "sys/fs/ext4/sda1/errors_count"
    grow(root, {"sys/devices/sda/sda1/partition": 1, count: 3})
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block/8:1").symlink_to(device)
    first = ask(tmp_path, root=root)
    same = ask(tmp_path, root=root, errors=find_mark(first, ERRORS))
    grow(root, {count: 5})
    more = ask(tmp_path, root=root, errors=find_mark(first, ERRORS))

    assert list_codes(first) == list_codes(same) == []
    assert list_codes(more) == ["file_system_errors"]
    assert "has found 2 errors since the last run" in list_findings(more)[0].text


def test_a_disk_that_takes_no_writes_lacks_the_option_rw(tmp_path: Path) -> None:
    """As /proc/mounts shows it, where mount and file system are one line."""
    root = on_disk(tmp_path / "r", "rw", "ro")
    need = MountNeed(path="/", options=("rw",))

    assert "mount_wrong" in list_codes(ask(tmp_path, need, root=root))
    assert "mount_wrong" not in list_codes(
        ask(tmp_path, need, root=on_disk(tmp_path / "r", "rw", "rw"))
    )


def test_an_image_that_is_full_and_read_only_has_no_room_to_judge(tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * 2**20))
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
    with mounted("-o", "loop,ro", image, tmp_path / "disk") as point:
        found = ask(tmp_path)

    assert "space.free_share" not in {
        m.name for m in found if isinstance(m, Measurement) and m.part_id == str(point)
    }


def test_the_share_that_is_free_is_that_of_df(tmp_path: Path) -> None:
    """An empty ext4 keeps 5 % for root, which no job could ever have."""
    image = tmp_path / "image"
    image.write_bytes(bytes(4 * 2**20))
    subprocess.run(["mkfs.ext4", "-q", "-m", "40", image], check=True)
    with mounted("-o", "loop", image, tmp_path / "disk") as point:
        found = ask(tmp_path)
        df = subprocess.run(["df", "--output=pcent", point], capture_output=True, check=True)

    used = float(df.stdout.split()[-1].rstrip(b"%")) / 100
    assert 0 <= used - (1 - (find_value(found, "space.free_share", str(point)) or 0)) < 0.011


def test_what_a_symbolic_link_leads_to_is_what_must_have_space(tmp_path: Path) -> None:
    want = SpaceNeed(path=str(tmp_path / "link"), size=Bound(high=0.01))
    with mounted("-t", "tmpfs", "-o", "size=1M", "m", tmp_path / "m") as point:
        (tmp_path / "link").symlink_to(point)
        assert list_unmet(ask(tmp_path, space=(want,)), Expectation(space=(want,))) == []

    large = SpaceNeed(path="/", size=Bound(high=0.01), used_inodes=Bound(high=1))
    unmet = list_unmet(ask(tmp_path, space=(large,)), Expectation(space=(large,)))
    assert sorted(unmet) == [("inodes.used", "/"), ("space.size", "/")]


def test_a_mount_that_another_covers_is_not_asked(tmp_path: Path) -> None:
    below, above = tmp_path / "a/b", tmp_path / "a"
    below.mkdir(parents=True)
    with (
        silent_file_system(below),
        mounted("-t", "tmpfs", "-o", "size=1M", "m", above),
    ):
        found = ask(tmp_path)

    assert about(found, below) == []


def test_what_was_mounted_anew_is_asked_anew(tmp_path: Path) -> None:
    """A process of ours may wait for the file system that was there before until the reboot."""
    folder = tmp_path / "m"
    device = "0:99"  # of what was there before
    mark = json.dumps({str(folder): [os.getpid(), read_start(os.getpid()), device]})
    with mounted("-t", "tmpfs", "-o", "size=1M", "m", folder):
        mounted_now = next(m.device for m in list_mounts() if m.point == folder)
        found = ask(tmp_path, MountNeed(path=str(folder)), recalled=mark)
        mark = mark.replace(device, mounted_now)
        still = ask(tmp_path, MountNeed(path=str(folder)), recalled=mark)

    assert about(found, folder) == []
    assert about(still, folder) == ["mount_hung"]


@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (errno.ETIMEDOUT, ["mount_stale"]),  # NFS with softerr, Lustre
        (errno.EREMOTEIO, ["mount_stale"]),
        (errno.ENODEV, ["mount_stale"]),
        (errno.EACCES, []),  # a server that squashes root
    ],
)
def test_a_server_that_answers_by_an_error_is_named(
    tmp_path: Path, error: int, codes: list[str]
) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    with silent_file_system(folder, error):
        found = ask(tmp_path, MountNeed(path=str(folder)))

    assert about(found, folder) == codes


def test_no_name_that_a_user_chooses_breaks_the_table(tmp_path: Path) -> None:
    folder = tmp_path / "a\x0cb c\u2028\nd"
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=1M", "m", folder):
        assert list_codes(ask(tmp_path, MountNeed(path=str(folder)))) == []


def test_an_image_that_cannot_be_written_by_its_kind_is_healthy(tmp_path: Path) -> None:
    line = "20 1 7:1 / / rw,relatime - squashfs /dev/loop1 ro"
    found = ask(tmp_path, root=grow(tmp_path / "r", {"proc/self/mountinfo": line}))

    assert list_codes(found) == []


def test_mounts_that_hang_are_named_and_keep_nobody(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    with (
        silent_file_system(folders[0]),
        silent_file_system(folders[1]),
        silent_file_system(folders[2]),
    ):
        found = ask(tmp_path, *(MountNeed(path=str(f), writable=True) for f in folders))

    judged = judge_items(CHECK, found)
    assert all(about(found, folder) == ["mount_hung"] for folder in folders)
    assert (judged.verdict, judged.cause) == (Verdict.ERROR, Cause.HUNG)
    assert find_value(found, "space.size", "/")
    assert list(json.loads(find_mark(found))) == [str(folder) for folder in folders]


def test_a_mount_that_still_holds_a_process_of_ours_is_not_asked_again(tmp_path: Path) -> None:
    folder = tmp_path / "hung"
    folder.mkdir()
    need = MountNeed(path=str(folder))
    with silent_file_system(folder):
        first = ask(tmp_path, need)
        mark = find_mark(first)
        second = ask(tmp_path, need, recalled=mark)

    assert about(first, folder) == about(second, folder) == ["mount_hung"]
    assert "since an earlier run" in list_findings(second)[-1].text
    assert find_mark(second) == mark
    after = ask(tmp_path, recalled=mark)
    assert list_codes(after) == []


def test_a_fuse_mount_that_the_site_does_not_list_only_warns(tmp_path: Path) -> None:
    folder = tmp_path / "users"
    folder.mkdir()
    with silent_file_system(folder):
        found = ask(tmp_path)

    assert about(found, folder) == ["fuse_hung"]
    assert judge_items(CHECK, found).verdict is Verdict.WARN


def test_hundreds_of_mounts_of_a_user_cost_a_bounded_number_of_processes(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(MAX_CHILDREN + 8)]
    needed = tmp_path / "needed"
    with ExitStack() as mounted:
        for folder in folders:
            folder.mkdir()
            mounted.enter_context(silent_file_system(folder))
        needed.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "needed", needed], check=True)
        mounted.callback(subprocess.check_call, ["umount", needed])
        need = MountNeed(path=str(needed), writable=False)
        first = ask(tmp_path, need)
        mark = find_mark(first)
        second = ask(tmp_path, need, recalled=mark)

    assert about(first, needed) == about(second, needed) == ["mount_wrong"]  # it was asked
    assert MAX_HUNG <= len(json.loads(mark)) <= 1 + MAX_CHILDREN
    assert find_mark(second) == mark
    assert any("were not asked" in item.text for item in first if isinstance(item, Coverage))
    assert set(list_codes(first)) == {"fuse_hung", "mount_wrong"}


def test_a_disk_is_asked_before_dozens_of_mounts_of_a_server_that_hangs(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(MAX_CHILDREN + 8)]
    disk = tmp_path / "disk"
    with ExitStack() as mounted:
        for folder in folders:
            folder.mkdir()
            mounted.enter_context(silent_file_system(folder))
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "disk", disk], check=True)
        mounted.callback(subprocess.check_call, ["umount", disk])
        needs = [MountNeed(path=str(folder)) for folder in folders]
        found = ask(tmp_path, *needs, MountNeed(path=str(disk), writable=False))

    assert about(found, disk) == ["mount_wrong"]  # it was asked


def test_a_mount_whose_server_is_gone_is_stale(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
    subprocess.run(
        ["mount", "-i", "-t", "fuse", "-o", options, "gone", folder],
        check=True,
        pass_fds=[device],
    )
    os.close(device)
    try:
        found = ask(tmp_path, MountNeed(path=str(folder)))
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)

    assert about(found, folder) == ["mount_stale"]


def test_a_process_that_can_be_ended_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it waits for a core to die on."""
    monkeypatch.setattr(apart, "REAP_SECONDS", 1e-6)
    monkeypatch.setattr(KernelWait, "_list_waits", lambda _: ())
    replies = ask_apart({"a": lambda: 1, "b": lambda: time.sleep(60), "c": lambda: 3}, 2)

    assert replies.answers == {"a": 1, "c": 3}
    assert list(replies.hung) == ["b"]
    assert replies.hung["b"].pid == 0


@pytest.mark.system
def test_what_is_slow_together_is_asked_together_and_is_not_hung() -> None:
    def answer_slowly() -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(0.5)
        return began, time.monotonic()

    slow = {str(i): answer_slowly for i in range(40)}
    replies = ask_apart(slow | {"never": lambda: time.sleep(60)}, 10)
    spans = list(replies.answers.values())

    assert list(replies.hung) == ["never"]
    assert len(spans) == len(slow)
    assert max(sum(a <= began < b for a, b in spans) for began, _ in spans) > 1


@pytest.mark.system
def test_what_waits_behind_some_that_hang_gets_its_turn_and_not_behind_very_many() -> None:
    def never() -> None:
        time.sleep(60)

    asked: dict[str, Question] = {str(n): partial(abs, n) for n in range(3 * MAX_CHILDREN)}
    stuck: dict[str, Question] = dict.fromkeys(("0", "40", "41", "73"), never)
    some = ask_apart(asked | stuck, 2)
    all_stuck: dict[str, Question] = dict.fromkeys(asked, never)
    many = ask_apart({"first": partial(abs, 1)} | all_stuck, 1)

    assert some.hung.keys() == stuck.keys()
    assert len(some.answers) == len(asked) - len(stuck)
    assert some.unasked == ()
    assert many.answers == {"first": 1}
    assert MAX_HUNG <= len(many.hung) <= 1 + MAX_CHILDREN
    assert len(many.hung) + len(many.unasked) == len(asked)


def test_an_answer_is_an_error_of_its_own() -> None:
    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    replies = ask_apart({"a": refuse, "b": lambda: 2}, 5)

    assert replies.errors["a"].errno == 13
    assert replies.answers == {"b": 2}


def test_a_bug_in_a_question_is_told_as_one(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError, match="no answer to 'a'"):
        ask_apart({"a": lambda: 1 / 0}, 5)

    assert "ZeroDivisionError" in capfd.readouterr().err


def test_what_asks_dies_with_who_wants_to_know() -> None:
    pid = ask_apart({"pid": os.getpid}, 5).answers["pid"]

    assert not process_exists(pid)
