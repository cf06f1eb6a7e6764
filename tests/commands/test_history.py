"""``hpcverify history`` exports the measurements, and makes them again from the documents."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from hpcverify.commands.history import command
from hpcverify.errors import ConfigError, StoreError
from hpcverify.history import read_measurements
from hpcverify.model import Result, Verdict
from hpcverify.records.store import Store
from tests.history.nights import make_run, write_runs


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("HPCVERIFY_STATE", str(folder))
    return folder


def call(*words: str) -> str:
    return CliRunner().invoke(command, words, catch_exceptions=False).output


def test_measurements_are_written_as_csv(state: Path, tmp_path: Path) -> None:
    write_runs(state, make_run("n1"), make_run("n2"))
    path = tmp_path / "out.csv"

    said = call("n1", "--format", "csv", "-o", str(path))

    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert said == f"wrote {path}: 3 measurements\n"
    assert ({row["node"] for row in rows}, rows[0]["night"]) == ({"n1"}, "2026-11-02")


FORMS = ("csv", "parquet")


@pytest.mark.parametrize("form", FORMS)
def test_an_export_replaces_what_was_there_and_leaves_nothing_beside_it(
    state: Path, tmp_path: Path, form: str
) -> None:
    write_runs(state, make_run("n1"))
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "m"
    path.write_text("old")
    kept = folder / "kept"
    kept.hardlink_to(path)
    call("--format", form, "-o", str(path))
    assert path.stat().st_size > 3
    assert kept.read_text() == "old"
    assert sorted(each.name for each in folder.iterdir()) == ["kept", "m"]
    call("--format", form, "-o", "/dev/null")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("form", FORMS)
def test_an_export_to_a_full_disk_accuses_no_history(state: Path, form: str) -> None:
    write_runs(state, make_run("n1"))
    with pytest.raises(StoreError, match=r"^/dev/full cannot be written"):
        call("--format", form, "-o", "/dev/full")


@pytest.mark.parametrize("form", FORMS)
def test_an_export_to_standard_output_is_that_and_nothing_else(
    state: Path, tmp_path: Path, form: str
) -> None:
    write_runs(state, make_run("n1"))
    program = Path(sys.executable).with_name("hpcverify")
    command = [str(program), "history", "--format", form, "-o"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, stdout=subprocess.DEVNULL)
    whole = (tmp_path / "whole").read_bytes()
    with (tmp_path / "sent").open("wb") as file:
        file.write(b"before")
        file.flush()
        sent = subprocess.run(
            [*command, "/dev/stdout"], check=True, stdout=file, stderr=subprocess.PIPE
        )
    piped = subprocess.run([*command, "/dev/stdout"], check=True, capture_output=True)
    assert b"wrote /dev/stdout" in sent.stderr
    assert len(piped.stdout) == len(whole)
    assert (tmp_path / "sent").read_bytes() == b"before" + piped.stdout
    assert Path("/dev/stdout").is_symlink()


@pytest.mark.needs("root")
@pytest.mark.parametrize("form", FORMS)
def test_no_link_of_another_user_leads_an_export_to_a_file_of_ours(
    state: Path, tmp_path: Path, form: str
) -> None:
    write_runs(state, make_run("n1"))
    secret, folder = tmp_path / "secret", tmp_path / "shared"
    secret.write_text("ours")
    folder.mkdir()
    folder.chmod(0o1777)
    # Under every name that was once predictable, and under that of the file itself.
    for name in (".m.writing", "tmp_m", "m.new", ".m.new"):
        (folder / name).symlink_to(secret)
        os.lchown(folder / name, 4242, 4242)
    call("--format", form, "-o", str(folder / "m"))
    assert not (folder / "m").is_symlink()
    (folder / "m").unlink()
    (folder / "m").symlink_to(secret)
    os.lchown(folder / "m", 4242, 4242)
    with pytest.raises(ConfigError, match="is a link that user 4242"):
        call("--format", form, "-o", str(folder / "m"))
    assert secret.read_text() == "ours"


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_no_name_is_a_formula_of_a_spreadsheet_and_numbers_stay_numbers(
    state: Path, tmp_path: Path, name: str
) -> None:
    write_runs(state, make_run(name, value=-7.5), make_run("n-1=2"))
    call("--format", "csv", "-o", str(tmp_path / "m"))
    with (tmp_path / "m").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["node"] for row in rows} == {f"'{name}", "n-1=2"}
    assert "-7.5" in {row["value"] for row in rows}
    assert read_measurements(state, nodes=[name])["node"].iloc[0] == name


def test_a_document_that_cannot_be_read_is_told_and_not_counted(state: Path) -> None:
    store = Store(state)
    for run in (make_run("n1"), make_run("n2")):
        store.save(run)
    store.get_document_path(make_run("n2").id).write_text("{")

    said = call("--rebuild")

    assert "is not a complete run document" in said
    assert "documents read: 1;" in said


def test_measurements_are_made_again_from_the_documents(state: Path) -> None:
    write_runs(state, make_run("n1", value=1.0), make_run("gone"))
    store = Store(state)
    for run in (make_run("n1", value=480.0), make_run("n2"), make_run("n1", night=1)):
        store.save(run)

    for _ in range(2):
        assert call("--rebuild").startswith("documents read: 3;")

    table = read_measurements(state, metrics=["bf16.sustained"])
    assert len(table) == 8
    first = table[(table["node"] == "n1") & (table["night"] == "2026-11-02")]
    assert list(first["value"]) == [480.0, 501.0]
    assert "gone" in set(table["node"])


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_reason_of_a_run_is_read_to_its_end(
    state: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    reason = "/dev/kmsg: 2893 messages were overwritten before they were read: keep a journal"
    lost = Result(check="kernel_log", verdict=Verdict.WARN, reason=reason)
    run = replace(make_run("n1"), verdict=Verdict.WARN, results=(lost,))
    Store(state).save(run)

    assert reason in " ".join(call("n1").split())


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("words", [("--format", "csv"), ("--since", "2026-11-01")])
def test_the_form_or_the_first_night_without_a_file_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        call(*words)


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("words", [("n1",), ("--format", "csv", "-o", "x.csv"), ("--json",)])
def test_a_rebuild_is_of_everything(words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="--rebuild reads all documents: leave out"):
        call("--rebuild", *words)


@pytest.mark.usefixtures("state")
def test_without_measurements_one_line_says_who_writes_them(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="hpcverify fleet collect writes them"):
        call("--format", "csv", "-o", str(tmp_path / "out.csv"))


def test_without_duckdb_one_line_says_how_to_install_it(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_runs(state, make_run("n1"))
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"needs duckdb: \S+ -m pip install"):
        call("--format", "csv", "-o", str(tmp_path / "out.csv"))
