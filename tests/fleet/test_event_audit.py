"""What is changed, left out or put in is found: in the ledger by itself, in files by the ledger."""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from hpcverify.errors import DamagedError
from hpcverify.events.chain import compute_digest
from hpcverify.events.event import EventKind
from hpcverify.fleet import event_audit
from hpcverify.fleet.event_audit import list_event_files, verify_files, verify_ledger
from hpcverify.fleet.event_log import KeptEvent, NewEvent
from hpcverify.fleet.event_stream import EVENTS_FILE_NAME, EventStream
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, NodeChange
from hpcverify.plan.config import Events

DELETE_LAST = "delete from events where number > 40"
DELETE_FIRST = (
    "insert or replace into facts select 'events_anchor', '10 ' || digest from events"
    " where number = 10; delete from events where number <= 10"
)
NO_EVENTS = {
    b"": "it is not an event: Input data was truncated",
    b'{"number":0,"previous":""}': "it is not an event: Expected `int` >= 1 - at `$.number`",
    b'{"number":9223372036854775808,"previous":""}': (
        "it is not an event: Expected `int` <= 9223372036854775807 - at `$.number`"
    ),
    b'{"number":1,"x":' + b"[" * 9999: (
        "it is not an event: maximum recursion depth exceeded while deserializing an object"
    ),
}
SMALL = Events(max_mib=0.003)

Lines = list[bytes]


@pytest.fixture
def log(ledger: Ledger) -> Ledger:
    """Make a ledger of 50 events, the first of them a heartbeat, and their file."""
    ledger.record_heartbeat("", days=90)
    nodes = (Node(name=f"n{number}") for number in range(2, 51))
    ledger.put_all(
        NodeChange(node=node, what="drain", detail=f"fan of {node.name}") for node in nodes
    )
    EventStream(ledger.path.parent, Events(), ledger).drain()
    return ledger


def change_ledger(ledger: Ledger, statements: str) -> None:
    """Change the ledger as root could."""
    with closing(sqlite3.connect(ledger.path)) as db:
        for trigger in ("events_stay", "events_remain", "events_grow"):
            db.execute(f"drop trigger {trigger}")
        db.executescript(statements)


def find_in_files(ledger: Ledger) -> tuple[int, str, str]:
    report, place = verify_files(list_event_files(ledger.path.parent), ledger)
    return report.wrong, report.why, place.rpartition("/")[2]


def test_a_log_is_whole_while_it_grows_and_the_file_lags_behind(log: Ledger) -> None:
    for _ in range(3):
        log.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED, what="x", detail="\x9b", text="y"))
        report = verify_ledger(log)
        assert (report.first, report.last, report.wrong) == (1, log.read_chain_end(), 0)
        assert find_in_files(log)[0] == 0


@pytest.mark.parametrize(
    ("statements", "wrong", "why"),
    [
        (
            "update events set actor = 'eve' where number = 7",
            7,
            "its actor in the audit log is",
        ),
        ("update events set what = 'x' where number = 7", 7, "its action in the audit log is x"),
        ("update events set node = 'n1' where number = 7", 7, "its node in the audit log is n1"),
        ("update events set kind = 'x' where number = 7", 7, "its kind in the audit log is x"),
        ("update events set at = at - 60 where number = 7", 7, "its time in the audit log"),
        ("update events set at = 9e99 where number = 7", 7, "its time in the audit log is 9e+99"),
        ("update events set detail = 'no' where number = 7", 7, "its detail in the audit log"),
        ("update events set detail = '' where number = 7", 7, "its detail in the audit log"),
        ("update events set detail = 'no' where number = 1", 1, "its detail in the audit log"),
        ("update events set line = replace(line, 'drain', 'x') where number = 7", 7, "its line"),
        ("delete from events where number = 7", 7, "the next line has the number 8"),
        (DELETE_FIRST, 1, "by the last heartbeat it is the oldest, but 11 is"),
        (DELETE_LAST, 41, "events up to 50 were read, but 40 is the last"),
        ("delete from events", 1, "events up to 50 were read, but 0 is the last"),
    ],
)
def test_what_was_done_to_the_ledger_is_named(
    log: Ledger, statements: str, wrong: int, why: str
) -> None:
    change_ledger(log, statements)
    report = verify_ledger(log)
    assert report.wrong == wrong
    assert why in report.why


def test_what_the_ledger_does_not_show_by_itself_its_file_does(log: Ledger) -> None:
    moved = "update cursors set number = 40; delete from deliveries"
    change_ledger(log, f"{DELETE_LAST}; {moved}")
    assert verify_ledger(log).wrong == 0
    assert find_in_files(log) == (41, "the ledger ends with event 40", "events.jsonl, line 41")


def forge(lines: Lines, start: int) -> Lines:
    """Write the chain anew from the line *start* on, with other content."""
    forged = lines[:start]
    for line in lines[start:]:
        event = msgspec.json.decode(line)
        event |= {"previous": compute_digest(forged[-1]), "what": "resume"}
        forged.append(msgspec.json.encode(event))
    return forged


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda lines: lines[:-10],
            (41, "the file ends with event 40, and was written up to 50", "events.jsonl"),
        ),
        (
            lambda lines: lines[10:],
            (10, "the file begins with event 11, and lines before it are gone", "events.jsonl"),
        ),
        (lambda _: [], (50, "no file has a line: give the rotated files too", "files")),
        (
            lambda lines: forge(lines, 19),
            (20, "the ledger has another line", "events.jsonl, line 20"),
        ),
        (
            lambda lines: [*lines[:6], lines[6].replace(b"n7", b"n8"), *lines[7:]],
            (7, "the ledger has another line", "events.jsonl, line 7"),
        ),
        (
            lambda lines: [*lines, lines[3]],
            (51, "the next line has the number 4", "events.jsonl, line 51"),
        ),
        *(
            (
                lambda lines, forged=forged: [forged, *lines],
                (1, why, "events.jsonl, line 1"),
            )
            for forged, why in NO_EVENTS.items()
        ),
        (
            lambda lines: forge([*lines, lines[-1].replace(b'"number":50', b'"number":51')], 50),
            (51, "the ledger ends with event 50", "events.jsonl, line 51"),
        ),
    ],
)
def test_what_was_done_to_the_file_is_named_with_its_place(
    log: Ledger, change: Callable[[Lines], Lines], expected: tuple[int, str, str]
) -> None:
    path = log.path.parent / EVENTS_FILE_NAME
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))
    assert find_in_files(log) == expected


@pytest.mark.parametrize("ending", [".1", "-20261128", ".2.gz", "-20261128.gz"])
def test_a_file_that_logrotate_has_just_moved_is_no_gap(log: Ledger, ending: str) -> None:
    path = log.path.parent / EVENTS_FILE_NAME
    content = path.read_bytes()
    path.write_bytes(b"")
    packed = gzip.compress(content) if ending.endswith(".gz") else content
    path.with_name(f"{EVENTS_FILE_NAME}{ending}").write_bytes(packed)
    path.with_name(f"{EVENTS_FILE_NAME}.swp").write_bytes(b"not ours\n")
    assert find_in_files(log)[0] == 0
    log.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED))
    EventStream(log.path.parent, Events(), log).drain()
    assert find_in_files(log)[0] == 0


@pytest.mark.parametrize("ending", [".1", ".1.gz", "-20261128"])
def test_a_copy_of_a_file_is_no_line_too_many(log: Ledger, ending: str) -> None:
    """As while logrotate packs one, and if the controller renames one that was just read."""
    path = log.path.parent / EVENTS_FILE_NAME
    content = path.read_bytes()
    packed = gzip.compress(content) if ending.endswith(".gz") else content
    path.with_name(f"{EVENTS_FILE_NAME}{ending}").write_bytes(packed)
    assert find_in_files(log)[0] == 0
    log.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED))
    EventStream(log.path.parent, Events(), log).drain()
    assert find_in_files(log)[0] == 0

    path.write_bytes(content + content)  # in one file, they were put in
    assert find_in_files(log)[:2] == (51, "the next line has the number 1")


def test_what_is_no_file_has_no_events(log: Ledger) -> None:
    state = log.path.parent
    os.mkfifo(state / f"{EVENTS_FILE_NAME}.1")
    (state / f"{EVENTS_FILE_NAME}.2").mkdir()
    (state / f"{EVENTS_FILE_NAME}.3").symlink_to("gone")
    assert find_in_files(log)[0] == 0


def test_what_is_pruned_while_it_is_verified_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    log = Ledger(tmp_path, clock=lambda: now[0])
    read, to_keep = log.read_kept_events, [5]

    def live_a_day(keep_days: int) -> None:
        now[0] += 86400
        log.record_heartbeat("", keep_days)

    def prune_and_read(after: int, limit: int) -> list[KeptEvent]:
        if after and to_keep:
            live_a_day(to_keep.pop())
        return read(after, limit)

    for _ in range(60):
        live_a_day(keep_days=90)
    monkeypatch.setattr(event_audit, "BATCH_EVENTS", 10)
    monkeypatch.setattr(log, "read_kept_events", prune_and_read)
    report = verify_ledger(log)
    assert (report.wrong, report.why) == (0, "")
    assert report.first > 10


def write_small_files(ledger: Ledger) -> list[Path]:
    """Write four files, the oldest packed."""
    for _ in range(4):
        for _ in range(10):
            ledger.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED, text="x" * 100))
        EventStream(ledger.path.parent, SMALL, ledger).drain()
    files = list_event_files(ledger.path.parent)
    assert len(files) == 4
    packed = files[-1].with_suffix(".3.gz")
    packed.write_bytes(gzip.compress(files[-1].read_bytes()))
    files.pop().unlink()
    return [*files, packed]


def test_rotated_files_are_whole_also_without_the_older_or_newer_ones(ledger: Ledger) -> None:
    files = write_small_files(ledger)
    for chosen in (files, files[:-1], files[1:], files[1:2]):
        report, _ = verify_files(chosen, ledger)
        assert (report.wrong, report.why) == (0, "")


@pytest.mark.parametrize(("line", "wrong"), [(0, 21), (-1, 30)])
def test_a_rotated_file_that_lost_a_line_at_an_end_is_named(
    ledger: Ledger, line: int, wrong: int
) -> None:
    path = write_small_files(ledger)[1]
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[line]
    path.write_bytes(b"".join(lines))
    report, place = verify_files([path], ledger)
    assert (report.wrong, place) == (wrong, str(path))


def test_events_that_were_pruned_from_the_ledger_are_verified_by_their_chain(log: Ledger) -> None:
    change_ledger(log, DELETE_FIRST)
    path = log.path.parent / EVENTS_FILE_NAME
    assert find_in_files(log)[0] == 0
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in [*forge(lines[:10], 4), *lines[10:]]))
    assert find_in_files(log)[:2] == (10, "the ledger has another line")


@pytest.mark.parametrize(("number", "wrong"), [(1, 0), (49, 0), (50, 0), (51, 51)], ids=str)
def test_what_a_collector_has_must_be_there(log: Ledger, number: int, wrong: int) -> None:
    path = log.path.parent / EVENTS_FILE_NAME
    known = {number: log.read_digests(number - 1, 1).get(number, "0" * 64)}
    assert verify_ledger(log, known).wrong == wrong
    assert verify_files([path], expected=known)[0].wrong == wrong
    forged = forge(path.read_bytes().splitlines(), 1)
    path.write_bytes(b"".join(line + b"\n" for line in forged))
    assert verify_files([path])[0].wrong == 0
    assert verify_files([path], expected=known)[0].wrong == (number if number > 1 else 0)


def test_a_column_of_another_type_is_damage_in_one_line(log: Ledger) -> None:
    change_ledger(log, "update events set at = 'soon' where number = 7")
    with pytest.raises(DamagedError, match="sqlite is damaged"):
        verify_ledger(log)
