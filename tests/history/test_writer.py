"""The history: each run is in them once, whatever happened to a writer."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.errors import StoreError
from hpcverify.history import read_measurements
from hpcverify.history.database import find_database, open_to_read, open_to_write
from hpcverify.history.duck import open_duckdb
from hpcverify.history.writer import QUEUE_NAME, MeasurementWriter
from tests.history.nights import FIRST, make_run, write_runs

OTHER_YEAR = (
    b'{"night":"0000-01-01","started":"2026-11-02","run":"r","node":"n",'
    b'"parts":[{"cells":[{"metric":"m"}]}]}'
)
"""What DuckDB can read, but Python cannot."""
Opener = Callable[[Path], AbstractContextManager[Any]]
FORK = multiprocessing.get_context("fork")
"""What is killed, or reads meanwhile, is a process of its own."""


def list_runs(state: Path) -> list[tuple[str, str]]:
    """List node and part of each row of the clock of products."""
    table = read_measurements(state, metrics=["bf16.sustained"])
    return sorted(zip(table["run"], table["part"], strict=True))


def test_what_was_written_is_read_with_the_marks_of_its_part(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1", value=480.5))

    row = read_measurements(tmp_path, metrics=["bf16.sustained"]).iloc[0]

    assert row["value"] == 480.5
    assert (row["node"], row["part"], row["label"]) == ("n1", "GPU-n1-0", "GPU 0")
    assert (row["kind"], row["model"], row["driver"]) == ("gpu", "H100", "565.57.01")
    assert (row["check_name"], row["unit"], row["verdict"]) == ("gemm", "TFLOP/s", "pass")
    assert (row["started"], row["night"].date()) == (FIRST, date(2026, 11, 2))


def test_a_measurement_of_the_node_has_the_driver_of_its_gpus(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    row = read_measurements(tmp_path, checks=["storage"]).iloc[0]
    assert (row["part"], row["driver"], row["verdict"]) == ("node", "565.57.01", "warn")


def test_no_number_is_null(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1", value=None))
    table = read_measurements(tmp_path, metrics=["bf16.sustained"])
    assert list(table["value"].isna()) == [True, False]


def test_runs_that_load_nothing_or_were_interrupted_are_left_out(tmp_path: Path) -> None:
    write_runs(
        tmp_path, make_run("n1"), make_run("n2", passive=True), make_run("n3", complete=False)
    )

    assert set(read_measurements(tmp_path)["node"]) == {"n1"}


def test_a_night_that_is_over_is_sorted(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n2"))
    write_runs(tmp_path, make_run("n1"))
    write_runs(tmp_path, make_run("n1", night=1), night=1)

    with open_to_read(tmp_path) as db:
        rows = db.execute("select node from nights where part <> 'node'").fetchall()
        recent = db.execute("select distinct night from recent").fetchall()
    assert rows == [("n1",), ("n1",), ("n2",), ("n2",)]
    assert recent == [(date(2026, 11, 3),)]


@pytest.mark.parametrize("written", [False, True])
def test_the_queue_of_a_killed_writer_is_written_once(tmp_path: Path, *, written: bool) -> None:
    one, other = make_run("n1"), make_run("n2")
    killed = MeasurementWriter(tmp_path, print)
    for run in (one, other):
        killed.add(run)
    killed.flush()
    queue = find_database(tmp_path).with_name(QUEUE_NAME)
    left = queue.read_bytes()
    if written:  # it was killed before it had removed the queue
        killed.write(100)
    queue.write_bytes(left + b'{"night":"2026-11-02","star')

    write_runs(tmp_path, one, make_run("n3"))

    assert len(list_runs(tmp_path)) == 6
    assert not queue.exists()


@pytest.mark.parametrize(
    "torn",
    [b"\0" * 4096, b"{}", b"null", b"\xff", b"[" * 100_000, b'{"night":"0","run":"r"}', OTHER_YEAR],
)
def test_a_line_of_the_queue_that_is_damaged_costs_no_other(tmp_path: Path, torn: bytes) -> None:
    said: list[str] = []
    writer = MeasurementWriter(tmp_path, said.append)
    for node in ("n1", "n2"):
        writer.add(make_run(node))
        writer.flush()
        if node == "n1":
            with find_database(tmp_path).with_name(QUEUE_NAME).open("ab") as queue:
                queue.write(torn)

    writer.write()

    assert len(list_runs(tmp_path)) == 4
    (line,) = said
    assert line.startswith("1 line of ")


def test_runs_that_are_written_again_replace_their_rows(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"), make_run("n2"))

    for _ in range(2):
        write_runs(tmp_path, make_run("n1", value=470.0))

    table = read_measurements(tmp_path, nodes=["n1"], metrics=["bf16.sustained"])
    assert list(table["value"]) == [470.0, 501.0]
    assert len(list_runs(tmp_path)) == 4


def test_a_run_that_claims_too_much_is_told_of_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify.history.writer.MAX_LINE_BYTES", 2000)
    big, said = make_run("big", gpus=40), list[str]()
    writer = MeasurementWriter(tmp_path, said.append)
    for run in (big, make_run("n1")):
        writer.add(run)
    writer.flush()
    writer.write(100)

    assert set(read_measurements(tmp_path)["node"]) == {"n1"}
    (line,) = said
    assert line.startswith(f"big: run {big.id} has ")


@pytest.mark.parametrize("keep", [0, 5000, -1])
def test_a_damaged_file_is_named_in_one_line_and_the_queue_is_kept(
    tmp_path: Path, keep: int
) -> None:
    write_runs(tmp_path, make_run("n1"))
    path = find_database(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:keep] + b"no database at all")
    named = r"history\.duckdb cannot be used .*move it away; hpcverify history --rebuild"

    with pytest.raises(StoreError, match=named) as raised:
        read_measurements(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(StoreError, match=named):
        write_runs(tmp_path, make_run("n2"))

    path.write_bytes(whole)
    write_runs(tmp_path)
    assert len(list_runs(tmp_path)) == 4


def hold_open(opener: Opener, state: Path, opened: Event, ended: Event) -> None:
    with opener(state):
        opened.set()
        ended.wait()


def test_a_writer_that_waits_in_vain_for_a_reader_leaves_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(tmp_path, make_run("n1"))
    monkeypatch.setattr("hpcverify.history.duck.WRITE_WAIT_S", 0)
    opened, ended = FORK.Event(), FORK.Event()
    reader = FORK.Process(target=hold_open, args=(open_to_read, tmp_path, opened, ended))
    reader.start()
    opened.wait()

    with pytest.raises(StoreError, match=f"is in use by process {reader.pid}"):
        write_runs(tmp_path, make_run("n2"))
    assert len(list_runs(tmp_path)) == 2  # two may read

    ended.set()
    reader.join()
    write_runs(tmp_path)
    assert len(list_runs(tmp_path)) == 4


def write_and_die(state: Path, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    writer = MeasurementWriter(state, print, lambda: FIRST + timedelta(days=40))
    for number in range(300):
        writer.add(make_run(f"n{number:03}", number % 30, gpus=8))
    writer.flush()
    writer.write(14)


@pytest.mark.parametrize("tenths", [2, 4, 5, 7])
def test_a_writer_that_is_killed_at_any_moment_leaves_each_run_once(
    tmp_path: Path, tenths: int
) -> None:
    killed = FORK.Process(target=write_and_die, args=(tmp_path, tenths / 10))
    killed.start()
    killed.join()

    write_and_die(tmp_path, 0)

    with open_to_read(tmp_path) as db:
        ((rows, runs),) = db.execute("select count(*), count(distinct run) from nights").fetchall()
        ((rolled,),) = db.execute("select sum(runs) from weeks where part <> 'node'").fetchall()
    assert (rows - runs) + rolled == 300 * 8


def write_within(state: Path, most: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    with suppress(StoreError):
        write_runs(state, *(make_run(f"n{number:03}", gpus=8) for number in range(100)))


@pytest.mark.parametrize("most", [40_000, 200_000, 550_000])
def test_a_full_disk_leaves_each_run_once(tmp_path: Path, most: int) -> None:
    write_runs(tmp_path, make_run("n1"))
    full = FORK.Process(target=write_within, args=(tmp_path, most))
    full.start()
    full.join()
    assert full.exitcode == 0
    assert len(list_runs(tmp_path)) in (2, 2 + 8 * 100)

    write_runs(tmp_path, *(make_run(f"n{number:03}", gpus=8) for number in range(100)))
    assert len(list_runs(tmp_path)) == 2 + 8 * 100


def test_a_question_that_needs_too_much_memory_accuses_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match="need more than 16 MiB: choose fewer nights"),
        open_duckdb(tmp_path, memory_mib=16) as db,
    ):
        db.execute("select list(range) from range(10_000_000)").fetchall()


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    with open_to_write(tmp_path) as db:
        db.execute("update hpcverify_schema set version = 99")
        db.execute("alter table nights add column later integer")

    with pytest.raises(StoreError, match=r"schema 99.*upgrade hpcverify"):
        read_measurements(tmp_path)
    with pytest.raises(StoreError, match=r"schema 99.*upgrade hpcverify"):
        write_runs(tmp_path, make_run("n2"))


def test_a_file_of_a_later_duckdb_is_not_called_damaged(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    head = bytearray(find_database(tmp_path).read_bytes())
    head[12:20] = (1999).to_bytes(8, "little")
    checksum = 5381
    for number in range(8, 4096, 8):
        checksum ^= int.from_bytes(head[number : number + 8], "little") * 0xBF58476D1CE4E5B9
    head[:8] = (checksum % 2**64).to_bytes(8, "little")
    find_database(tmp_path).write_bytes(head)

    with pytest.raises(StoreError, match=r"history\.duckdb is of another version .*upgrade it"):
        read_measurements(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        "delete from hpcverify_schema",
        "alter table hpcverify_schema alter version type varchar using 'x'",
    ],
)
def test_a_file_without_a_schema_version_is_named_in_one_line(tmp_path: Path, change: str) -> None:
    write_runs(tmp_path, make_run("n1"))
    with open_to_write(tmp_path) as db:
        db.execute(change)

    with pytest.raises(StoreError, match=r"history\.duckdb cannot be used"):
        read_measurements(tmp_path)
    with pytest.raises(StoreError, match=r"history\.duckdb cannot be used"):
        write_runs(tmp_path, make_run("n2"))


def test_a_queue_whose_line_has_no_end_is_named_itself(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    queue = find_database(tmp_path).with_name(QUEUE_NAME)
    with queue.open("wb") as file:
        file.truncate(50 * 2**20)

    with pytest.raises(StoreError, match=r"queue\.ndjson is damaged: move it away"):
        write_runs(tmp_path, make_run("n2"))
    assert queue.stat().st_size > 50 * 2**20


def test_a_run_of_a_day_before_the_calendar_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    writer = MeasurementWriter(tmp_path, said.append)
    run = replace(make_run("n1"), started=datetime.min.replace(tzinfo=UTC))
    writer.add(run)
    writer.add(make_run("n2"))
    writer.write()

    assert set(read_measurements(tmp_path)["node"]) == {"n2"}
    (line,) = said
    assert line.startswith(
        f"n1: run {run.id} began at 0001-01-01T00:00:00+00:00, which is not in any night"
    )


def test_a_path_that_cannot_be_seen_is_named_in_one_line(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    find_database(tmp_path).unlink()
    find_database(tmp_path).symlink_to(find_database(tmp_path))

    with pytest.raises(StoreError, match=r"history\.duckdb cannot be read: "):
        read_measurements(tmp_path)


@pytest.mark.parametrize("name", [QUEUE_NAME, "history.duckdb", "history.duckdb.wal"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_place_of_a_file_is_reported_and_nobody_waits_for_it(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    folder = find_database(tmp_path).parent
    folder.mkdir()
    make(folder / name)
    with pytest.raises(StoreError, match=f"{name} is not a regular file: move it away"):
        write_runs(tmp_path, make_run("n1"))
    if name != QUEUE_NAME:
        with pytest.raises(StoreError, match="is not a regular file"):
            read_measurements(tmp_path)


class Releasing(StringIO):
    """Standard error; what is written to it sets *event*."""

    def __init__(self, event: Event) -> None:
        super().__init__()
        self.event = event

    def write(self, text: str) -> int:
        """Keep *text*."""
        self.event.set()
        return super().write(text)


def test_a_reader_that_waits_for_a_writer_prints_one_line_and_then_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(tmp_path, make_run("n1"))
    opened, ended = FORK.Event(), FORK.Event()
    writer = FORK.Process(target=hold_open, args=(open_to_write, tmp_path, opened, ended))
    writer.start()
    opened.wait()
    monkeypatch.setattr("sys.stderr", stderr := Releasing(ended))
    assert len(list_runs(tmp_path)) == 2
    writer.join()
    (line,) = stderr.getvalue().splitlines()
    assert line.startswith(f"hpcverify: process {writer.pid} uses {find_database(tmp_path)}: wait")
