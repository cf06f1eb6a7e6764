"""Mounts: there, of the right kind, writable, with room, and answering in time."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

import hpcverify.check as hv
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.blockdev import Mount, is_local, list_disks_below, list_hidden, list_mounts
from hpcverify.units import GIB
from hpcverify_checks.host.apart import MAX_HUNG, Hung, Question, ask_apart, read_start
from hpcverify_checks.host.needs import MountNeed, SpaceNeed, fits
from hpcverify_checks.node.mounts import MOUNT_MISSING, is_remote

LEFT_BEHIND = "left_behind"
"""The name of the `CarryOver` with the processes of ours which still wait for a mount."""
WRITABLE = "writable"
"""The name of the `CarryOver` with the file systems that were writable."""
READ_ONLY = "read_only"
"""The name of the `CarryOver` with the file systems reported as perhaps made read-only on
purpose."""
ERRORS = "file_system_errors"
"""The name of the `CarryOver` with the errors that each ext4 has counted."""
DISK_FILE_SYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})
"""Those that the kernel turns read-only, or shuts down, after an error."""
MEASURED = ("/", "/tmp", "/dev/shm", "/scratch")  # noqa: S108 - they are only looked at
"""Where jobs write on most nodes; measured where it is a file system of its own."""
NOT_PERMITTED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NOT_FOR_US = frozenset({errno.EACCES, errno.EPERM})
"""What a server or a user's FUSE answers to root; it does answer."""
UNMOUNTED = frozenset({errno.ENOENT, errno.ENOTDIR})
"""What is answered where a mount has just gone."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
AFTER_ERROR = frozenset({"ro", "emergency_ro", "shutdown"})
"""
Options of a file system that takes no writes. ext4 has had the latter two since Linux 6.15
(``ext4_show_options``), and calls itself writable beside them.
"""
ERROR_COUNT = "sys/fs/ext4/{}/errors_count"
"""Errors that ext4 found since it was checked last; Linux 6.11 to 6.14 tell no more."""
SPACE_METRICS = {
    "size": ("space.size", "GiB"),
    "free": ("space.free", "GiB"),
    "used": ("space.used", "GiB"),
    "free_share": ("space.free_share", "ratio"),
    "free_inodes_share": ("inodes.free_share", "ratio"),
    "inodes": ("inodes.total", ""),
    "free_inodes": ("inodes.free", ""),
    "used_inodes": ("inodes.used", ""),
}
"""The measurement, and its unit, of each field of `SpaceNeed`."""
USUAL_SPACE = ("size", "free", "used", "free_share", "free_inodes_share")
"""What is measured of each local file system, whatever a site needs."""


def measure_mounts(
    table: Sequence[Mount],
    needs: Sequence[MountNeed],
    space: Sequence[SpaceNeed],
    recalled: str | None,
    *,
    writable: str | None,
    read_only: str | None = None,
    errors: str | None = None,
    seconds: float,
    root: Path,
    scratch: Path,
) -> Iterator[hv.CheckItem]:
    """Report what is mounted against *needs*, and ask each file system for its *space*."""
    missing = [need.path for need in needs if not _find(table, need.path)]
    if missing:  # an automounter may mount it when it is asked for
        # With a dot, which Path would drop, and which makes the automounter act.
        ask_apart({path: partial(os.stat, f"{path}/.") for path in missing}, seconds)
        table = list_mounts(root)
    watched = _choose(table, needs, space, scratch)
    left_behind = msgspec.json.decode(recalled or "{}", type=dict[str, tuple[int, int, str]])
    waiting = {
        point: Hung(0, pid, started)
        for point, (pid, started, device) in left_behind.items()
        if point in watched
        and watched[point].device == device  # another one may be mounted there now
        and read_start(pid) == started
    }
    replies = ask_apart(_list_questions(watched, waiting, needs, space, table), seconds)
    hung = waiting | {point: stuck for point, stuck in replies.hung.items() if point in watched}
    left = {path: [h.pid, h.started, watched[path].device] for path, h in hung.items() if h.pid}
    yield hv.CarryOver(LEFT_BEHIND, msgspec.json.encode(left).decode())
    needed = {need.path for need in needs} | {need.path for need in space}
    for point, stuck in hung.items():
        yield _report_hung(watched[point], point, stuck, is_needed=point in needed)
    for point, error in replies.errors.items():
        if point in watched:
            yield from _report_error(watched[point], point, error, root, is_needed=point in needed)
    for need in needs:
        yield from _compare(need, table, replies.answers)
    before, reported = (msgspec.json.decode(m) if m else [] for m in (writable, read_only))
    yield from _report_read_only(watched, table, before, reported, root)
    yield from _report_new_errors(watched, errors, root)
    local = [
        point
        for point, answer in replies.answers.items()
        if point in watched and _is_filled_here(watched[point], point, answer)
    ]
    for point in local:
        answer, mount = replies.answers[point], watched[point]
        for what, whole, rest in (("space", "size", "free"), ("inodes", "inodes", "free_inodes")):
            if answer[whole] and not answer[rest]:
                text = f"no {what} is left on {mount.kind} of {mount.source}: free some"
                yield hv.Finding("full", point, text)
    yield from _measure_space(local, space, table, replies.answers)
    answered = sum(point in watched for point in replies.answers)
    text = f"{answered} of {len(watched)} file systems answered"
    if unasked := len(watched.keys() - {*replies.answers, *replies.errors, *hung}):
        text += f"; {unasked} were not asked, since so many others do not answer"
    yield hv.Coverage("node", text)


def _list_questions(
    watched: Mapping[str, Mount],
    waiting: Mapping[str, Hung],
    needs: Sequence[MountNeed],
    space: Sequence[SpaceNeed],
    table: Sequence[Mount],
) -> dict[str, Question]:
    writes = {need.path for need in needs if need.writable}
    questions: dict[str, Question] = {
        point: partial(_probe, point, write=point in writes)
        for point in watched
        if point not in waiting
    }
    for want in space:  # which a symbolic link may lead elsewhere
        holding = _find_mount(table, want.path)
        if holding and str(holding.point) not in {want.path, *waiting}:
            questions.setdefault(want.path, partial(_probe, want.path, write=False))
    # Disks first, for dozens of one server may hang with it. What a user may mount last, for
    # hundreds may never answer; and none more if many do not.
    needed = {*(need.path for need in needs), *(want.path for want in space)}
    users = [p for p in questions if p in watched and _may_be_users(watched[p], p in needed)]
    own = {point: questions.pop(point) for point in users}
    ordered = sorted(questions, key=lambda p: p not in watched or is_remote(watched[p].kind))
    return {p: questions[p] for p in ordered} | (own if len(waiting) < MAX_HUNG else {})


def _find(table: Iterable[Mount], path: str) -> Mount | None:
    there = [m for m in table if str(m.point) == path and m.kind != "autofs"]
    return there[-1] if there else None


def _find_mount(table: Iterable[Mount], path: str) -> Mount | None:
    # By its name only: to resolve a path on a hung mount would hang us.
    above = Path(path)
    points = {above, *above.parents}
    holding = [m for m in table if m.point in points and m.kind != "autofs"]
    return max(reversed(holding), key=lambda m: len(m.point.parts), default=None)


def _choose(
    table: Sequence[Mount], needs: Sequence[MountNeed], space: Sequence[SpaceNeed], scratch: Path
) -> dict[str, Mount]:
    """Choose what to ask: what is needed, what a server answers for, what jobs write to."""
    chosen = {n.path: m for n in needs if (m := _find(table, n.path))}
    for path in (*MEASURED, str(scratch), *(need.path for need in space)):
        if mount := _find_mount(table, path):
            chosen[str(mount.point)] = mount
    seen = {mount.device for mount in chosen.values()}
    others = [m for m in table if is_remote(m.kind) or m.kind in DISK_FILE_SYSTEMS]
    hidden = list_hidden(others, table)
    for mount in sorted(others, key=lambda m: len(m.point.parts)):
        if mount.device not in seen and mount.number not in hidden:
            seen.add(mount.device)
            chosen[str(mount.point)] = mount
    return chosen


def _probe(point: str, *, write: bool) -> dict[str, int | str]:
    os.stat(point)  # noqa: PTH116 - XFS that was shut down answers this with EIO, and not statvfs
    answer = os.statvfs(point)
    fields: dict[str, int | str] = {
        "size": answer.f_blocks * answer.f_frsize,
        "free": answer.f_bavail * answer.f_frsize,
        "used": (answer.f_blocks - answer.f_bfree) * answer.f_frsize,
        "inodes": answer.f_files,
        "free_inodes": answer.f_favail,
        "read_only": answer.f_flag & os.ST_RDONLY,
    }
    if write:
        try:
            _write_block(point)
        except OSError as exc:
            fields |= {"write_errno": exc.errno or 0, "write_error": exc.strerror or str(exc)}
    return fields


def _write_block(point: str) -> None:
    path = f"{point}/.hpcverify-{os.getpid()}-{time.time_ns()}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        os.write(file, bytes(4096))
        os.fsync(file)
    finally:
        os.close(file)
        os.unlink(path)  # noqa: PTH108 - in a child that was forked


def _report_hung(mount: Mount, point: str, stuck: Hung, *, is_needed: bool) -> hv.Finding:
    since = f"in {stuck.seconds:g} s" if stuck.seconds else "since an earlier run"
    kept = f"; process {stuck.pid} of ours still waits for it" if stuck.pid else ""
    text = (
        f"{mount.kind} of {mount.source} has not answered {since}{kept}: see that its server "
        f"and the network to it are up; if they are, umount -f -l {point} and mount it again, "
        "or reboot the node"
    )
    code = _choose_code("hung", mount, is_needed)
    return hv.Finding(code, point, text, {"waits in": stuck.waits_in} if stuck.waits_in else {})


def _report_error(
    mount: Mount, point: str, error: OSError, root: Path, *, is_needed: bool
) -> Iterator[hv.Finding]:
    if error.errno in NOT_FOR_US or (error.errno in UNMOUNTED and not is_needed):
        return
    name = f"{mount.kind} of {mount.source}"
    if error.errno == errno.EIO and mount.kind in DISK_FILE_SYSTEMS and _is_here(mount, root):
        text = f"{name} answers {error.strerror}: see the kernel log, and check its disk"
        yield hv.Finding("turned_read_only", point, text)
    else:
        text = (
            f"{name} answers {error.strerror}: see the kernel log and its server; then "
            f"umount -l {point}, and mount it again"
        )
        yield hv.Finding(_choose_code("stale", mount, is_needed), point, text)


def _choose_code(what: str, mount: Mount, is_needed: bool) -> str:  # noqa: FBT001 - private
    """Choose the code: a FUSE mount that the site does not list may be a user's own."""
    return f"fuse_{what}" if _may_be_users(mount, is_needed) else f"mount_{what}"


def _may_be_users(mount: Mount, is_needed: bool) -> bool:  # noqa: FBT001 - private
    return mount.kind.partition(".")[0] == "fuse" and not is_needed


def _compare(
    need: MountNeed, table: Sequence[Mount], answers: Mapping[str, Any]
) -> Iterator[hv.Finding]:
    mount = _find(table, need.path)
    if mount is None:
        yield hv.Finding(MOUNT_MISSING, need.path, f"not mounted: mount {need.path}")
        return
    # As /proc/mounts has it: writable only where mount and file system both are.
    options = dict.fromkeys((*mount.flags, *mount.options))
    every = ",".join(option for option in options if option != "rw" or "ro" not in options)
    wrong = [
        f"its {what} is {shown}, not {wanted}"
        for what, shown, wanted in (
            ("type", mount.kind, need.type),
            ("source", mount.source, need.source),
        )
        if not fits(shown, wanted)
    ] + [
        f"its options {every} lack {wanted}"
        for wanted in need.options
        if not _has_option(every, wanted)
    ]
    for text in wrong:
        fix = "correct /etc/fstab or the automounter, and mount it again"
        yield hv.Finding("mount_wrong", need.path, f"{text}: {fix}")
    answer = answers.get(need.path)
    if answer is None or need.writable is None:
        return
    if need.writable is False and not answer["read_only"]:
        yield hv.Finding("mount_wrong", need.path, f"is writable: mount -o remount,ro {need.path}")
    elif need.writable and answer["read_only"]:
        fix = f"see the kernel log for why; then mount -o remount,rw {need.path}"
        yield hv.Finding("mount_read_only", need.path, f"is read-only: {fix}")
    elif need.writable and answer.get("write_errno", errno.EACCES) not in NOT_PERMITTED:
        no_room = answer["write_errno"] in NO_ROOM
        fix = "free some space, or see quota -u root" if no_room else "see the kernel log"
        text = f"cannot be written ({answer['write_error']}): {fix}"
        yield hv.Finding("full" if no_room else "mount_read_only", need.path, text)


def _has_option(every: str, wanted: str) -> bool:
    if wanted.startswith("!"):
        return not _has_option(every, wanted[1:])
    return fits(every, wanted) or any(fits(option, wanted) for option in every.split(","))


def _report_read_only(
    watched: Mapping[str, Mount],
    table: Sequence[Mount],
    before: Sequence[str],
    reported: Sequence[str],
    root: Path,
) -> Iterator[hv.CheckItem]:
    # Who mounts or remounts read-only sets both; after an error the kernel sets only that
    # of the file system. So does a container's bind mount of a read-only image, which was
    # never writable. Where another of its mounts is read-only too, it may have been asked for.
    asked_for = {m.device for m in table if "ro" in m.flags and "ro" in m.options}
    writable: list[str] = []
    read_only: list[str] = []
    for point, mount in watched.items():
        if mount.kind not in DISK_FILE_SYSTEMS:
            continue
        name = f"{point} {mount.source}"
        failed = AFTER_ERROR.intersection(mount.options)
        was = name in before
        if not failed:
            writable.append(name)
        elif "rw" not in mount.flags:
            continue
        elif failed - {"ro"} or (was and mount.device not in asked_for):
            is_failed = was and _is_here(mount, root)
            code = "turned_read_only" if is_failed else "maybe_read_only"
            since = "was writable in an earlier run" if was else "was mounted as writable"
            text = (
                f"{mount.kind} of {mount.source} {since} and takes no writes now, as after an "
                "error: see the kernel log, and check the file system and its disk"
            )
            yield hv.Finding(code, point, text, {"options": ",".join(mount.options)})
            writable += [name] * was  # until it is writable again, or gone
        elif name in reported:
            read_only.append(name)
        elif was or mount.device not in asked_for:
            how = (
                "was writable in an earlier run and is mounted read-only elsewhere now: somebody "
                "may have remounted it"
                if was
                else "takes no writes: that is so after an error, and where a container is given "
                "a read-only file system"
            )
            text = f"{mount.kind} of {mount.source} {how}; see the kernel log (reported once)"
            yield hv.Finding("maybe_read_only", point, text, {"options": ",".join(mount.options)})
            read_only.append(name)
    yield hv.CarryOver(WRITABLE, msgspec.json.encode(writable).decode())
    yield hv.CarryOver(READ_ONLY, msgspec.json.encode(read_only).decode())


def _is_here(mount: Mount, root: Path) -> bool:
    """Whether a failure of *mount* is that of a disk of this node, as far as is known."""
    # A file system may have none that the kernel tells.
    return all(is_local(root / "sys/block" / disk) for disk in list_disks_below(mount, root))


def _report_new_errors(
    watched: Mapping[str, Mount], recalled: str | None, root: Path
) -> Iterator[hv.CheckItem]:
    before: Mapping[str, float] = msgspec.json.decode(recalled) if recalled else {}
    now: dict[str, float] = {}
    for point, mount in watched.items():
        link = sysfs.resolve_link(root / "sys/dev/block" / mount.device)
        if mount.kind != "ext4" or link is None:
            continue
        count = sysfs.read_number(root / ERROR_COUNT.format(link.name))
        if count is None:
            continue
        name = f"{point} {mount.source}"
        now[name] = count
        if count > before.get(name, count) and not AFTER_ERROR.intersection(mount.options):
            text = (
                f"ext4 of {mount.source} has found {count - before[name]:.0f} errors since the "
                "last run: see the kernel log; then unmount it, and e2fsck -f "
            )
            yield hv.Finding("file_system_errors", point, f"{text}{mount.source}")
    yield hv.CarryOver(ERRORS, msgspec.json.encode(now).decode())


def _is_filled_here(mount: Mount, point: str, answer: Mapping[str, int]) -> bool:
    """Whether this node fills it: not others through a server, and no image, full by design."""
    is_own = mount.kind in DISK_FILE_SYSTEMS or point in MEASURED
    return is_own and not is_remote(mount.kind) and not answer["read_only"]


def _measure_space(
    local: Iterable[str],
    space: Iterable[SpaceNeed],
    table: Sequence[Mount],
    answers: Mapping[str, Any],
) -> Iterator[hv.Measurement]:
    names = {point: set(USUAL_SPACE) for point in local}
    for want in space:
        names.setdefault(want.path, set()).update(want.bounds)
    for path, asked in names.items():
        mount = _find_mount(table, path)
        answer = answers.get(path) or answers.get(str(mount and mount.point))
        for name, value in list_space(answer).items() if answer else ():
            if name in asked:
                metric, unit = SPACE_METRICS[name]
                yield hv.Measurement(metric, value, unit, path)


def list_space(answer: Mapping[str, int]) -> dict[str, float]:
    """List what a file system answered, by the names of `SpaceNeed`, in their units."""
    values = {name: answer[name] / GIB for name in ("size", "free", "used")}
    if usable := answer["used"] + answer["free"]:  # as df has it: without what root keeps
        values["free_share"] = answer["free"] / usable
    if answer["inodes"]:  # btrfs and others have no fixed number
        values["inodes"] = answer["inodes"]
        values["free_inodes"] = answer["free_inodes"]
        values["free_inodes_share"] = answer["free_inodes"] / answer["inodes"]
        values["used_inodes"] = answer["inodes"] - answer["free_inodes"]
    return values
