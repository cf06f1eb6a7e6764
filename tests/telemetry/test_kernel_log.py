"""The kernel log: what is new, in every form it is kept in, and what was not seen."""

from __future__ import annotations

import json
import os
import tty
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify.processes import CompletedTool, ToolRunner
from hpcverify.telemetry import kernel_log
from hpcverify.telemetry.kernel_log import KernelLog
from tests.telemetry import trees

NOW = datetime(2026, 11, 21, 7, 0, 0).astimezone().timestamp()
BOOTED = int(NOW) - 7200
WORDS = (b"Xid (",)


def xid(number: int) -> str:
    return f"NVRM: Xid (PCI:0000:b3:00): {number}, pid=1, name=python3, text"


def record(seq: int, text: str, priority: int = 3) -> str:
    return f"{priority},{seq},{seq * 1_000_000},-;{text}"


def booted(root: Path, boot: str = "b1") -> Path:
    """Make the files that tell one boot from another."""
    return trees.grow(
        root, {"proc/sys/kernel/random/boot_id": boot, "proc/stat": f"cpu  1 2 3\nbtime {BOOTED}"}
    )


def ring(root: Path, *records: str, boot: str = "b1") -> Path:
    """Let a plain file stand for the ring buffer."""
    return trees.grow(booted(root, boot), {"dev/kmsg": "\n".join(records)})


class Journalctl:
    """A recording of journalctl."""

    def __init__(self, *entries: dict[str, str], rc: int = 0, stderr: str = "") -> None:
        """Answer with *entries*, and remember how it was asked."""
        self.entries, self.rc, self.stderr = entries, rc, stderr
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str], *, timeout: float) -> CompletedTool:
        """Run, as `run_tool` would."""
        assert timeout < 60
        self.commands.append(command)
        found = self.chosen({o.partition("=")[0]: o.partition("=")[2] for o in command})
        out = "".join(f"{json.dumps(entry)}\n" for entry in found)
        return CompletedTool(self.rc, out.encode(), self.stderr.encode())

    def chosen(self, options: dict[str, str]) -> list[dict[str, str]]:
        """Choose what journalctl would; if a cursor's entry is gone, what is left."""
        since, until = (
            float(options.get(name, f"@{default}")[1:])
            for name, default in (("--since", 0), ("--until", 1e12))
        )
        found = [e for e in self.entries if since <= seconds(e) <= until]
        cursors = [e["__CURSOR"] for e in found]
        if options.get("--cursor") in cursors:
            found = found[cursors.index(options["--cursor"]) :]
        return found[-1:] if "--lines" in options else found


def seconds(entry: dict[str, str]) -> float:
    return int(entry["__REALTIME_TIMESTAMP"]) / 1e6


def entry(number: int, text: str, facility: str = "0", ago: float = 60) -> dict[str, str]:
    us = int((NOW - ago) * 1e6)
    return {
        "__CURSOR": f"s=1;i={number};b=b1;m={number};t={us:x};x={number}",
        "__REALTIME_TIMESTAMP": str(us),
        "SYSLOG_FACILITY": facility,
        "MESSAGE": text,
        "_BOOT_ID": "b1",
    }


def read(
    root: Path, cursor: str | None = None, tool: ToolRunner | None = None, ago: float = 0
) -> KernelLog:
    if tool:
        (root / "var/log/journal").mkdir(parents=True, exist_ok=True)
    now = NOW - ago
    return kernel_log.read(cursor, WORDS, root, tool or Journalctl(), lambda: now)


def texts(log: KernelLog) -> list[str]:
    return [message.text for message in log.messages]


def test_the_first_run_sees_all_of_this_boot(tmp_path: Path) -> None:
    root = ring(tmp_path, record(0, "Linux version 6.8"), record(1, xid(79)))
    log = read(root)
    assert (texts(log), log.message_count, log.gap) == ([xid(79)], 2, "")
    assert log.messages[0].time == BOOTED + 1


def test_what_was_seen_is_not_seen_again(tmp_path: Path) -> None:
    log = read(ring(tmp_path, record(0, xid(79))))
    again = read(tmp_path, log.cursor)
    assert (texts(again), again.message_count) == ([], 0)
    ring(tmp_path, record(0, xid(79)), record(1, xid(31)))
    assert texts(read(tmp_path, again.cursor)) == [xid(31)]


def before_the_reboot(root: Path) -> str:
    """Give the cursor of a run half an hour before the machine was started."""
    return read(ring(root, record(0, "x"), boot="b0"), ago=9000).cursor


def test_after_a_reboot_everything_is_new(tmp_path: Path) -> None:
    cursor = before_the_reboot(tmp_path)
    root = ring(tmp_path, record(0, "Linux"), record(1, xid(79)))
    log = read(root, cursor)
    assert (texts(log), log.gap) == ([xid(79)], "")


def test_the_end_of_the_earlier_boot_is_in_the_journal(tmp_path: Path) -> None:
    cursor = before_the_reboot(tmp_path)
    tool = Journalctl(
        entry(1, xid(31), ago=9900), entry(2, xid(79), ago=8000), entry(3, xid(95), ago=7000)
    )
    log = read(ring(tmp_path, record(0, "Linux"), record(200, xid(95))), cursor, tool)
    assert (texts(log), log.gap, log.unseen) == ([xid(79), xid(95)], "", "")
    assert not any("--boot" in command for command in tool.commands)
    assert read(tmp_path, log.cursor).message_count == 0  # goes on in the ring


def test_a_journal_goes_on_over_a_reboot(tmp_path: Path) -> None:
    first = entry(1, "x", ago=9500)
    cursor = read(booted(tmp_path, "b0"), None, Journalctl(first), ago=9000).cursor
    tool = Journalctl(first, entry(2, xid(79), ago=8000), entry(3, "Linux"))
    log = read(booted(tmp_path), cursor, tool)
    assert (texts(log), log.gap, log.unseen) == ([xid(79)], "", "")


UNSEEN = "messages of the kernel between {} and the boot at {} are lost".format(
    *map(kernel_log.format_moment, (NOW - 9000, BOOTED))
)


@pytest.mark.parametrize("kept", [(), ("journal",)])
def test_where_nothing_outlives_a_reboot_what_went_unseen_is_said_but_no_gap(
    tmp_path: Path, kept: tuple[str, ...]
) -> None:
    cursor = before_the_reboot(tmp_path)
    ring(tmp_path, record(0, "Linux"))
    tool = Journalctl(entry(1, "x")) if "journal" in kept else None
    log = read(tmp_path, cursor, tool)
    assert (log.unseen, log.gap, texts(log)) == (UNSEEN, "", [])


def test_a_log_that_outlived_the_reboot_but_lost_the_time_before_is_a_gap(tmp_path: Path) -> None:
    cursor = before_the_reboot(tmp_path)
    ring(tmp_path, record(0, "Linux"))
    tool = Journalctl(entry(1, xid(79), ago=8000), entry(2, "x"))
    log = read(tmp_path, cursor, tool)
    assert (log.gap, log.unseen, texts(log)) == (UNSEEN, "", [xid(79)])


def test_a_first_look_takes_the_last_day_and_lists_what_is_older(tmp_path: Path) -> None:
    root = ring(tmp_path, record(0, xid(79)), record(90_000, xid(31)))
    trees.grow(root, {"proc/stat": f"btime {int(NOW) - 100_000}"})
    log = read(root)
    assert texts(log) == [xid(31)]
    assert [message.text for message in log.older] == [xid(79)]
    assert read(root, log.cursor).older == ()


def test_a_first_look_into_a_journal_takes_the_last_day(tmp_path: Path) -> None:
    tool = Journalctl(entry(1, xid(79), ago=90_000))
    log = read(booted(tmp_path), None, tool)  # one that said nothing for a day is whole
    assert (texts(log), log.gap) == ([], "")
    assert f"--since=@{NOW - 86400:.0f}" in tool.commands[0]


@pytest.mark.parametrize("cause", [Cause.TIMEOUT, Cause.HUNG])
def test_a_tool_that_hangs_is_no_lack_of_permission(tmp_path: Path, cause: Cause) -> None:
    def tool(command: Sequence[str], *, timeout: float) -> CompletedTool:
        raise Unable(f"{command[0]} did not end in {timeout} s", cause, Remedy.REBOOT)

    with pytest.raises(Unable, match="did not end") as unable:
        read(booted(tmp_path), None, tool)
    assert (unable.value.cause, unable.value.remedy) == (cause, Remedy.REBOOT)


def test_a_journal_that_lost_the_place_is_a_gap(tmp_path: Path) -> None:
    first, second = entry(1, "x", ago=90), entry(2, xid(79))
    cursor = read(booted(tmp_path), None, Journalctl(first), ago=80).cursor
    seen = read(tmp_path, cursor, Journalctl(first, second))
    lost = read(tmp_path, cursor, Journalctl(second))
    assert (texts(seen), seen.gap) == ([xid(79)], "")
    assert texts(lost) == [xid(79)]
    assert "does not reach back" in lost.gap
    assert read(tmp_path, lost.cursor, Journalctl(second)).gap == ""


def test_a_journal_that_moved_an_entry_to_another_file_has_it(tmp_path: Path) -> None:
    first, second = entry(1, "x", ago=90), entry(2, xid(79))
    cursor = read(booted(tmp_path), None, Journalctl(first), ago=80).cursor
    moved = first | {"__CURSOR": first["__CURSOR"].replace("s=1;i=1", "s=2;i=8")}
    log = read(tmp_path, cursor, Journalctl(moved, second))
    assert (log.message_count, log.gap) == (1, "")


def test_a_journal_too_young_to_fill_a_gap_of_the_ring_does_not_hide_it(tmp_path: Path) -> None:
    cursor = read(ring(tmp_path, record(0, "x")), ago=90).cursor
    log = read(ring(tmp_path, record(10, "x")), cursor, Journalctl(entry(1, "x")))
    assert "9 messages" in log.gap


def test_what_the_ring_lost_is_counted(tmp_path: Path) -> None:
    old = read(ring(tmp_path, record(0, "x"), record(1, "x")))
    root = ring(tmp_path, record(12, "x"), record(13, xid(79)), record(16, "x"))
    log = read(root, old.cursor)
    assert texts(log) == [xid(79)]
    assert log.gap == "12 messages were overwritten before they were read"
    assert read(root, log.cursor).gap == ""


def test_a_reboot_whose_first_messages_are_gone_is_a_gap(tmp_path: Path) -> None:
    old = read(ring(tmp_path, record(0, "x")))
    assert "5 messages" in read(ring(tmp_path, record(5, "x"), boot="b2"), old.cursor).gap


def test_an_unknown_past_is_no_gap(tmp_path: Path) -> None:
    assert read(ring(tmp_path, record(500, "x"))).gap == ""


def test_a_machine_set_back_to_a_snapshot_starts_anew(tmp_path: Path) -> None:
    old = read(ring(tmp_path, record(900, "x")))
    log = read(ring(tmp_path, record(0, "x"), record(1, xid(79))), old.cursor)
    assert (texts(log), log.gap) == ([xid(79)], "")


def test_a_gap_is_filled_from_the_journal(tmp_path: Path) -> None:
    old = read(ring(tmp_path, record(0, "x")), ago=80)
    root = ring(tmp_path, record(10, "x"))
    tool = Journalctl(entry(1, "x", ago=90), entry(2, xid(79)))
    log = read(root, old.cursor, tool)
    assert (texts(log), log.gap, log.source) == ([xid(79)], "", "journald")
    assert f"--since=@{int(NOW - 80)}" in tool.commands[0]
    assert read(root, log.cursor).message_count == 0  # goes on in the ring


def test_lines_about_the_device_are_no_messages(tmp_path: Path) -> None:
    lines = (record(0, "x"), " SUBSYSTEM=pci", f" DEVICE={xid(79)}", record(1, "x"))
    log = read(ring(tmp_path, *lines))
    assert (texts(log), log.message_count) == ([], 2)


@pytest.mark.parametrize("priority", [8 + 3, 24 + 2, 128 + 4])
def test_what_a_process_writes_to_the_ring_is_not_the_kernels(
    tmp_path: Path, priority: int
) -> None:
    assert texts(read(ring(tmp_path, record(0, xid(79), priority)))) == []


def test_the_ring_is_read_to_its_end_and_not_waited_for(tmp_path: Path) -> None:
    (booted(tmp_path) / "dev").mkdir()
    os.mkfifo(tmp_path / "dev/kmsg")
    keeper = os.open(tmp_path / "dev/kmsg", os.O_RDWR)  # as long as it is open: EAGAIN
    os.write(keeper, f"{record(0, xid(79))}\n".encode())
    log = read(tmp_path)
    os.close(keeper)
    assert texts(log) == [xid(79)]


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "rubbish", "b1 x /dev/kmsg ", "b1 1 journald", "b1 nan /dev/kmsg 0"),
        *("b2 1e999 /dev/kmsg 0", "b1 -1e999 journald s=1", "b2 1e15 journald 1:2"),
    ],
)
def test_a_cursor_that_is_none_starts_at_the_boot(tmp_path: Path, cursor: str) -> None:
    log = read(ring(tmp_path, record(0, "x"), record(1, xid(79))), cursor)
    assert texts(log) == [xid(79)]


def test_where_the_ring_is_denied_the_journal_is_asked(tmp_path: Path) -> None:
    tool = Journalctl(entry(1, "x"), entry(2, xid(79)), entry(3, xid(31), facility="1"))
    log = read(booted(tmp_path), None, tool)
    assert (texts(log), log.message_count) == ([xid(79)], 3)
    assert log.messages[0].time == pytest.approx(NOW - 60)
    read(tmp_path, log.cursor, tool)
    cursor = entry(3, "")["__CURSOR"]
    assert f"--cursor={cursor}" in tool.commands[-1]


def test_a_journal_with_nothing_new_keeps_its_place(tmp_path: Path) -> None:
    first = read(booted(tmp_path), None, Journalctl(entry(1, "x")))
    second = read(tmp_path, first.cursor, Journalctl(entry(1, "x")))
    assert second.message_count == 0
    assert second.cursor == first.cursor


def test_the_checks_of_one_look_share_what_journalctl_said(tmp_path: Path) -> None:
    tool = Journalctl(
        entry(1, xid(79)), entry(2, "EXT4-fs (sda1): Remounting filesystem read-only")
    )
    first = read(booted(tmp_path), None, tool)
    asked = len(tool.commands)
    second = kernel_log.read(None, (b"EXT4-fs",), tmp_path, tool, lambda: NOW)
    assert len(tool.commands) == asked
    assert (texts(first), len(texts(second))) == ([xid(79)], 1)

    tool.entries = (*tool.entries, entry(3, xid(48), ago=0))
    later = kernel_log.read(first.cursor, WORDS, tmp_path, tool, lambda: NOW + 60)
    assert texts(later) == [xid(48)]


@pytest.mark.parametrize(
    "tool",
    [
        Journalctl(stderr="Hint: You are currently not seeing messages from others"),
        Journalctl(rc=1, stderr="No journal files were opened: permission denied"),
        Journalctl(),
    ],
)
def test_a_journal_that_shows_nothing_is_no_clean_log(tmp_path: Path, tool: Journalctl) -> None:
    with pytest.raises(Unable) as unable:
        read(booted(tmp_path), None, tool)
    assert unable.value.cause is Cause.DENIED


def test_a_log_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unable, match="dmesg_restrict=0") as unable:
        read(booted(tmp_path))
    assert unable.value.cause is Cause.DENIED
    assert "/dev/kmsg" in str(unable.value)


def test_a_ring_without_a_message_is_not_the_kernels(tmp_path: Path) -> None:
    (booted(tmp_path) / "dev").mkdir()
    (tmp_path / "dev/kmsg").symlink_to("/dev/null")  # as containers have it
    with pytest.raises(Unable, match="empty"):
        read(tmp_path)


def test_another_source_than_last_time_goes_by_the_time(tmp_path: Path) -> None:
    log = read(ring(tmp_path, record(0, "x")))
    (tmp_path / "dev/kmsg").unlink()
    tool = Journalctl(entry(1, xid(79), ago=60), entry(2, xid(31), ago=0))
    assert texts(read(tmp_path, log.cursor, tool)) == [xid(31)]


@pytest.mark.parametrize(
    ("oldest", "gap"), [(0, ""), (7100, ""), (9000, "the 1800 s before are overwritten")]
)
def test_a_ring_that_does_not_reach_back_to_the_last_look_is_a_gap(
    tmp_path: Path, oldest: int, gap: str
) -> None:
    log = read(booted(tmp_path), None, Journalctl(entry(1, "x")))
    again = read(ring(tmp_path, record(oldest, "x"), record(9001, xid(79))), log.cursor)
    assert (again.gap, texts(again)) == (gap, [xid(79)])


def test_messages_that_both_sources_may_have_are_rather_told_twice(tmp_path: Path) -> None:
    log = read(booted(tmp_path), None, Journalctl(entry(1, "x")))
    before = record(7200 - 400, xid(79)), record(7200 - 200, xid(31))
    again = read(ring(tmp_path, record(0, "x"), *before), log.cursor)
    assert texts(again) == [xid(31)]  # its clock may have run away by 300 s


def asked(cursor: str | None, *words: bytes) -> KernelLog | Unable:
    """Read the log of the machine that runs the tests."""
    try:
        return kernel_log.read(cursor, words)
    except Unable as unable:
        return unable


def test_a_ring_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    root = ring(tmp_path, record(0, "Linux"), record(1, xid(79)))
    os.utime(root / "dev/kmsg", ns=(7, 7))
    assert texts(read(root)) == [xid(79)]
    size = (root / "dev/kmsg").stat().st_size
    (root / "dev/kmsg").write_text("?" * size)  # what tells a file from another is as it was
    os.utime(root / "dev/kmsg", ns=(7, 7))
    assert texts(read(root)) == [xid(79)]


def test_a_process_reads_the_ring_from_its_beginning_whatever_its_parent_read(
    tmp_path: Path,
) -> None:
    root = ring(tmp_path, record(0, "Linux"), record(1, xid(79)))
    assert texts(read(root)) == [xid(79)]
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(len(texts(read(root))))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_second_look_at_the_device_reads_only_what_came_since(tmp_path: Path) -> None:
    said, heard = os.openpty()  # a character device, as /dev/kmsg is
    tty.setraw(heard)
    root = booted(tmp_path)
    (root / "dev").mkdir()
    (root / "dev/kmsg").symlink_to(os.ttyname(heard))
    try:
        os.write(said, f"{record(0, 'Linux')}\n{record(1, xid(79))}\n".encode())
        first = read(root)
        os.write(said, f"{record(2, xid(31))}\n".encode())
        second, later = read(root), read(root, first.cursor)
    finally:
        os.close(said)
        os.close(heard)
    assert texts(first) == [xid(79)]
    assert texts(second) == [xid(79), xid(31)]
    assert texts(later) == [xid(31)]


def test_this_machine_has_a_log_or_says_why_not() -> None:
    match asked(None, b"Linux version"):
        case Unable() as unable:
            assert unable.cause is Cause.DENIED
        case log:
            again = asked(log.cursor, b"Linux version")
            assert isinstance(again, KernelLog)
            assert again.message_count < log.message_count
