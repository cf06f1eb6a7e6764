"""The files of a night: each run is in them once, whatever happened to a writer."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import duckdb
import pytest

from hpcverify.errors import StoreError
from hpcverify.history import read_measurements
from hpcverify.history.duck import open_duckdb
from hpcverify.history.files import list_files, list_folders
from hpcverify.history.writer import MAX_BATCHES, QUEUE_NAME, MeasurementWriter
from tests.history.nights import FIRST, make_run, write_runs


def list_runs(state: Path) -> list[tuple[str, str]]:
    """List node and part of each row of the clock of products."""
    table = read_measurements(state, metrics=["bf16.sustained"])
    return sorted(zip(table["run"], table["part"], strict=True))


def count_files(state: Path, night: int = 0) -> int:
    return len(list_files(list(list_folders(state / "measurements").values())[night]))


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


def test_each_batch_is_a_file_and_a_night_that_is_over_is_one(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    write_runs(tmp_path, make_run("n2"))
    assert count_files(tmp_path) == 2
    before = list_runs(tmp_path)

    write_runs(tmp_path, make_run("n1", night=1), night=1)

    assert (count_files(tmp_path), list_runs(tmp_path)[: len(before)]) == (1, before)


def test_many_batches_of_a_night_are_merged_before_it_is_over(tmp_path: Path) -> None:
    for i in range(MAX_BATCHES + 1):
        write_runs(tmp_path, make_run(f"n{i:03}"))
    assert (count_files(tmp_path), len(list_runs(tmp_path))) == (1, 2 * (MAX_BATCHES + 1))


def test_files_that_were_merged_do_not_count_if_the_writer_died_before_removing_them(
    tmp_path: Path,
) -> None:
    write_runs(tmp_path, make_run("n1"))
    write_runs(tmp_path, make_run("n2"))
    (folder,) = list_folders(tmp_path / "measurements").values()
    small = [(file.path, file.path.read_bytes()) for file in list_files(folder)]
    MeasurementWriter(tmp_path, print).merge(folder)
    before = list_runs(tmp_path)

    for path, content in small:
        path.write_bytes(content)

    assert list_runs(tmp_path) == before
    write_runs(tmp_path, make_run("n3"))
    assert count_files(tmp_path) == 2
    assert not any(path.exists() for path, _ in small)


def test_a_half_written_file_does_not_count_and_is_removed(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    (folder,) = list_folders(tmp_path / "measurements").values()
    (folder / "_writing.parquet").write_bytes(b"PAR1 half")

    assert len(list_runs(tmp_path)) == 2
    write_runs(tmp_path, make_run("n2"))
    assert [path.suffix for path in folder.iterdir()] == [".parquet", ".parquet"]
    assert not list(folder.glob("_*"))


@pytest.mark.parametrize("written", [False, True])
def test_the_queue_of_a_killed_writer_is_written_once(tmp_path: Path, *, written: bool) -> None:
    one, other = make_run("n1"), make_run("n2")
    killed = MeasurementWriter(tmp_path, print)
    for run in (one, other):
        killed.add(run)
    killed.flush()
    queue = tmp_path / "measurements" / QUEUE_NAME
    left = queue.read_bytes()
    if written:  # it was killed after the file had got its name
        killed.write(100)
    queue.write_bytes(left + b'{"night":"2026-11-02","star')

    MeasurementWriter(tmp_path, print).recover({one.id, other.id}.__contains__)

    assert len(list_runs(tmp_path)) == 4
    assert not queue.exists()


@pytest.mark.parametrize(("was", "now"), [(b"T22:", b"t22:"), (b'"node":', b'"node":"n7","node":')])
def test_a_line_that_only_duckdb_refuses_does_not_keep_the_others_in_the_queue(
    tmp_path: Path, was: bytes, now: bytes
) -> None:
    one, other = make_run("n1"), make_run("n2")
    killed = MeasurementWriter(tmp_path, print)
    for run in (one, other):
        killed.add(run)
    killed.flush()
    queue = tmp_path / "measurements" / QUEUE_NAME
    left = queue.read_bytes()
    assert was in left
    queue.write_bytes(left.replace(was, now, 1))

    MeasurementWriter(tmp_path, print).recover({one.id, other.id}.__contains__)

    assert len(list_runs(tmp_path)) == 4
    assert not queue.exists()


def test_of_a_killed_writers_queue_only_judged_runs_are_written(tmp_path: Path) -> None:
    one, other = make_run("n1"), make_run("n2")
    killed = MeasurementWriter(tmp_path, print)
    for run in (one, other):
        killed.add(run)
    killed.flush()

    MeasurementWriter(tmp_path, print).recover(one.id.__eq__)

    assert set(read_measurements(tmp_path)["run"]) == {one.id}


def test_runs_that_are_written_again_replace_their_rows(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"), make_run("n2"))

    for _ in range(2):
        MeasurementWriter(tmp_path, print).replace([make_run("n1", value=470.0)], {})

    table = read_measurements(tmp_path, nodes=["n1"], metrics=["bf16.sustained"])
    assert list(table["value"]) == [470.0, 501.0]
    assert (len(list_runs(tmp_path)), count_files(tmp_path)) == (4, 1)


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


def test_a_damaged_file_is_named_in_one_line(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    (folder,) = list_folders(tmp_path / "measurements").values()
    (file,) = list_files(folder)
    file.path.write_bytes(b"no parquet at all")

    with pytest.raises(StoreError, match=r"000001-000001\.parquet.*history --rebuild") as raised:
        read_measurements(tmp_path)

    assert "\n" not in str(raised.value)


def test_a_question_that_needs_too_much_memory_accuses_no_file(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreError, match="need more than 16 MiB: choose fewer nights"),
        open_duckdb(tmp_path, memory_mib=16) as db,
    ):
        db.execute("select list(range) from range(10_000_000)").fetchall()


def test_a_folder_of_a_day_that_never_was_does_not_count(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    (tmp_path / "measurements" / "night=2026-02-30").mkdir()
    assert list(list_folders(tmp_path / "measurements")) == [FIRST.date()]


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1"))
    (folder,) = list_folders(tmp_path / "measurements").values()
    duckdb.sql(
        f"copy (select 'n9' node) to '{folder}/000002-000002.parquet'"
        " (format parquet, kv_metadata {hpcverify_schema: '99'})"
    )

    with pytest.raises(StoreError, match=r"schema 99.*upgrade hpcverify"):
        read_measurements(tmp_path)
