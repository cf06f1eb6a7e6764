"""``events.jsonl`` has each event of the ledger once and in order, whatever happens to it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.errors import StoreError
from hpcverify.events.chain import verify_chain
from hpcverify.events.event import EventKind
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.event_stream import EVENTS_FILE_NAME, FILE_READER, EventStream
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import Events
from tests.fleet.builders import a_room

KILLS = 100
FORK = get_context("fork")


def make_stream(ledger: Ledger, **changes: Any) -> EventStream:
    return EventStream(ledger.path.parent, Events(), ledger, **changes)


def add_events(ledger: Ledger, count: int) -> None:
    for number in range(count):
        ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT, text=f"beat {number} äöü"))


def read_file(ledger: Ledger) -> bytes:
    return (ledger.path.parent / EVENTS_FILE_NAME).read_bytes()


def list_lines(ledger: Ledger) -> list[bytes]:
    return [bytes(line) for _, line in ledger.read_lines(0, 10_000)]


def is_whole(ledger: Ledger) -> bool:
    """Whether the file has each event of the ledger once and in order."""
    return read_file(ledger) == b"".join(line + b"\n" for line in list_lines(ledger))


def test_the_file_has_each_event_of_the_ledger_once_and_others_cannot_read_it(
    ledger: Ledger,
) -> None:
    for _ in range(3):
        add_events(ledger, 3)
        make_stream(ledger).drain()
        make_stream(ledger).drain()

    assert is_whole(ledger)
    assert len(read_file(ledger).splitlines()) == 9
    assert (ledger.path.parent / EVENTS_FILE_NAME).stat().st_mode & 0o777 == 0o640
    assert verify_chain(read_file(ledger).splitlines()).wrong == 0


def test_an_event_is_one_printable_line_whatever_its_text(ledger: Ledger) -> None:
    text = "\x1b[2J\x9b31m\x7f\x85\u2028\u2029\u202e\u2066 Zoë"
    ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT, text=text))
    make_stream(ledger).drain()

    (line,) = read_file(ledger).decode().splitlines()
    assert line.isprintable()
    assert json.loads(line)["text"] == text


def test_a_ledger_from_a_backup_gives_no_id_again(ledger: Ledger, tmp_path: Path) -> None:
    add_events(ledger, 2)
    backup = tmp_path / "backup.sqlite"
    shutil.copyfile(ledger.path, backup)
    add_events(ledger, 2)
    make_stream(ledger).drain()
    shutil.copyfile(backup, ledger.path)
    add_events(ledger, 3)
    make_stream(ledger).drain()

    events = [json.loads(line) for line in read_file(ledger).splitlines()]
    content = {event["id"]: event for event in events}
    assert all(content[event["id"]] == event for event in events)
    assert {event["number"] for event in events} == {1, 2, 3, 4, 5}
    assert len(content) == 7
    assert verify_chain(read_file(ledger).splitlines()).wrong


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingLedger(Ledger):
    """Is killed before or after it records where the file ends."""

    dies_before = False

    def move_cursor(self, reader: str, number: int) -> None:
        if self.dies_before:
            kill_self()
        super().move_cursor(reader, number)
        kill_self()


def die_writing(share: int) -> Callable[[int, memoryview], int]:
    """Make a write that is killed after *share* percent of it."""

    def write(file: int, content: memoryview) -> int:
        os.write(file, content[: len(content) * share // 100])
        kill_self()
        return 0

    return write


def run_and_die(state: Path, kill: int) -> None:
    """Write events into the ledger and the file, and be killed at a place that *kill* chooses."""
    add_events(Ledger(state), 1 + kill % 3)
    if kill % 10 < 8:
        make_stream(Ledger(state), write=die_writing(kill * 7 % 101)).drain()
    dying = DyingLedger(state)
    dying.dies_before = kill % 2 == 0
    make_stream(dying).drain()


@pytest.mark.system
def test_a_hundred_kills_lose_no_event_and_write_none_twice(ledger: Ledger) -> None:
    for kill in range(KILLS):
        child = FORK.Process(target=run_and_die, args=(ledger.path.parent, kill))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL

    make_stream(ledger).drain()

    assert is_whole(ledger)
    assert len(list_lines(ledger)) == sum(1 + kill % 3 for kill in range(KILLS))
    ids = [msgspec.json.decode(line)["id"] for line in read_file(ledger).splitlines()]
    assert len(set(ids)) == len(ids)


def test_a_full_disk_is_an_error_and_its_torn_line_is_completed_later(ledger: Ledger) -> None:
    def fill(file: int, content: memoryview) -> int:
        os.write(file, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    add_events(ledger, 3)

    with pytest.raises(StoreError, match="No space left"):
        make_stream(ledger, write=fill).drain()
    assert len(read_file(ledger)) == 100
    make_stream(ledger).drain()

    assert is_whole(ledger)


@contextmanager
def mounted(*arguments: object) -> Generator[None]:
    """Mount as ``mount ARGUMENTS`` does; the last of them is the mount point."""
    subprocess.run(["mount", *map(str, arguments)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(arguments[-1])], check=True)


@pytest.mark.needs("root")
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_takes_nothing_ends_no_cycle_and_is_reported_until_it_does(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "disk").mkdir()
    room = a_room(tmp_path)
    add_events(room.ledger, 100)
    path = room.folder / "state" / EVENTS_FILE_NAME
    path.touch()
    with mounted("-t", "tmpfs", "-o", "size=8k", "none", tmp_path / "disk"):
        disk = tmp_path / "disk" / EVENTS_FILE_NAME
        disk.touch()
        with mounted("--bind", disk, path):
            if kind == "read-only":
                subprocess.run(["mount", "-o", "remount,ro,bind", str(path)], check=True)
            with (controller := room.controller).hold_lock():
                controller.reconcile()
            written = path.read_bytes()
    path.write_bytes(written)

    assert set(room.ledger.list_nodes()) == set(room.slurm.nodes)
    (malfunction,) = room.ledger.list_malfunctions()
    assert malfunction.name == "events.jsonl"
    assert "cannot be written" in malfunction.why
    assert controller.choose_exit_status() == 4
    with room.controller.hold_lock():
        pass
    assert room.ledger.list_malfunctions() == []
    with room.controller.hold_lock():
        pass
    assert is_whole(room.ledger)


def test_a_disk_that_says_it_wrote_and_did_not_is_an_error_and_nothing_is_given_up(
    ledger: Ledger,
) -> None:
    add_events(ledger, 3)

    with pytest.raises(StoreError, match="check the disk"):
        make_stream(ledger, write=lambda _, content: len(content)).drain()
    assert ledger.read_cursors() == {FILE_READER: 0}
    make_stream(ledger).drain()

    assert is_whole(ledger)


def test_after_logrotate_the_new_file_goes_on_where_the_old_one_ended(ledger: Ledger) -> None:
    path = ledger.path.parent / EVENTS_FILE_NAME
    add_events(ledger, 2)
    make_stream(ledger).drain()
    path.rename(path.with_suffix(".1"))  # create
    add_events(ledger, 2)
    make_stream(ledger).drain()
    moved = path.read_bytes()
    os.truncate(path, 0)  # copytruncate
    add_events(ledger, 1)
    make_stream(ledger).drain()

    parts = path.with_suffix(".1").read_bytes() + moved + read_file(ledger)
    assert parts.splitlines() == list_lines(ledger)


def test_a_file_that_has_its_size_is_rotated_and_the_oldest_goes(ledger: Ledger) -> None:
    path = ledger.path.parent / EVENTS_FILE_NAME
    small = Events(max_mib=0.0001, keep_files=2)
    for _ in range(5):
        add_events(ledger, 1)
        EventStream(path.parent, small, ledger).drain()

    names = [path.with_name(f"{EVENTS_FILE_NAME}.{number}") for number in (2, 1)]
    assert [line for name in [*names, path] for line in name.read_bytes().splitlines()] == (
        list_lines(ledger)[2:]
    )
    assert not path.with_name(f"{EVENTS_FILE_NAME}.3").exists()


@pytest.mark.parametrize(
    "junk",
    [
        b"not ours",
        b"not ours\n",
        b'{"number": 1}\n',
        b'{"number": %d}\n' % (2**63 + 1),
        b"\xff\xfe",
    ],
)
def test_what_others_wrote_at_the_end_stays_and_no_event_is_lost_behind_it(
    ledger: Ledger, junk: bytes
) -> None:
    path = ledger.path.parent / EVENTS_FILE_NAME
    add_events(ledger, 2)
    make_stream(ledger).drain()
    with path.open("ab") as file:
        file.write(junk)
    add_events(ledger, 2)

    make_stream(ledger).drain()

    lines = read_file(ledger).splitlines()
    assert lines == [*list_lines(ledger)[:2], junk.strip(), *list_lines(ledger)[2:]]


@pytest.mark.parametrize("copied", [slice(1, 2), slice(1, 4), slice(None)])
def test_copies_of_old_lines_at_the_end_have_nothing_written_again(
    ledger: Ledger, copied: slice
) -> None:
    path = ledger.path.parent / EVENTS_FILE_NAME
    add_events(ledger, 5)
    make_stream(ledger).drain()
    copies = path.read_bytes().splitlines(keepends=True)[copied]
    with path.open("ab") as file:
        file.writelines(copies)
    add_events(ledger, 2)

    make_stream(ledger).drain()

    new = list_lines(ledger)
    assert read_file(ledger).splitlines() == new[:5] + new[:5][copied] + new[5:]


def test_a_file_that_lost_its_end_gets_it_again(ledger: Ledger) -> None:
    path = ledger.path.parent / EVENTS_FILE_NAME
    add_events(ledger, 5)
    make_stream(ledger).drain()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    add_events(ledger, 1)
    make_stream(ledger).drain()

    assert is_whole(ledger)


def make_open_file(path: Path, _: Path) -> None:
    path.touch()
    path.chmod(0o666)


@pytest.mark.parametrize(
    "spoil", [Path.symlink_to, Path.hardlink_to, lambda path, _: os.mkfifo(path), make_open_file]
)
def test_neither_a_link_nor_what_others_can_write_is_written(
    ledger: Ledger, spoil: Callable[[Path, Path], None]
) -> None:
    target = ledger.path.parent / "target"
    target.touch()
    add_events(ledger, 1)
    spoil(ledger.path.parent / EVENTS_FILE_NAME, target)

    with pytest.raises(StoreError, match="is not written"):
        make_stream(ledger).drain()

    assert target.read_bytes() == b""


def test_without_the_file_nothing_is_written_and_nothing_kept_for_it(ledger: Ledger) -> None:
    add_events(ledger, 1)
    make_stream(ledger).drain()
    before = read_file(ledger)
    add_events(ledger, 1)

    EventStream(ledger.path.parent, Events(file=False), ledger).drain()

    assert (read_file(ledger), ledger.read_cursors()) == (before, {})
