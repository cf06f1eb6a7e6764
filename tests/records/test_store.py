"""What is stored: each run once, nothing lost, and every mishap named."""

from __future__ import annotations

import math
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcverify.errors import ConfigError, NoRunsError, ReplacedError, StoreError, UnknownNameError
from hpcverify.model import CarryOver, Fact, Inventory, Part, Run, Verdict
from hpcverify.records import documents
from hpcverify.records.sqlite import transaction
from hpcverify.records.store import RunEntry, Store
from hpcverify.records.tables import MAX_CARRY_OVER_RUNS, MAX_FACT_ROWS
from hpcverify.testing import INVENTORY
from tests.doubles import a_result, a_run, add_missing_faults


def keep(state: Path, run: Run) -> Store:
    store = Store(state)
    documents.write(run, store.get_document_path(run.id))
    store.index_new()
    return store


def run_of_day(day: int, value: float = 150.0, **changes: object) -> Run:
    result = a_result()
    measured = msgspec.structs.replace(result.measurements[0], value=value)
    return a_run(
        id=f"202601{day:02}-000000-abcdef",
        started=datetime(2026, 1, day, tzinfo=UTC),
        results=(msgspec.structs.replace(result, measurements=(measured,)),),
        **changes,
    )


def test_a_run_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    assert keep(tmp_path, a_run()).load(a_run().id) == a_run()


@pytest.mark.parametrize("name", ["last", "20260101", "20260101-000000-abcdef"])
def test_a_run_is_found_by_its_id_or_the_start_of_it(tmp_path: Path, name: str) -> None:
    assert keep(tmp_path, a_run()).load(name).id == a_run().id


def test_a_run_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError):
        Store(tmp_path).load("2025")


def test_of_runs_that_begin_alike_the_newest_are_named(tmp_path: Path) -> None:
    runs = [run_of_day(day) for day in (1, 2, 3, 4)]
    for run in runs:
        keep(tmp_path, run)

    newest = ", ".join(run.id for run in reversed(runs[1:]))
    with pytest.raises(ConfigError, match=f"^4 runs begin with '2026': .* newest: {newest}$"):
        Store(tmp_path).load("2026")


class StoreThatListsNothing(Store):
    """A store whose runs are too many to list."""

    def list_runs(self, *_: object, **__: object) -> list[RunEntry]:
        """Fail: a controller has millions."""
        raise AssertionError("a run is found by its id, and not among all runs")


def test_a_run_is_found_without_listing_all(tmp_path: Path) -> None:
    store = StoreThatListsNothing(tmp_path)
    ids = [f"2026010{day}-000000-abcdef" for day in range(1, 8)]
    for name in ids:
        store.save(a_run(id=name))

    assert (store.load("last").id, store.load("20260103").id) == (ids[-1], ids[2])
    assert store.load(ids[4]).id == ids[4]
    with pytest.raises(ConfigError, match=f"^7 runs begin with '2026': .* {ids[-1]}, {ids[-2]}"):
        store.load("2026")
    for stranger in ("2027", "20260108-000000-abcdef0", "%", "*", "\udcff"):
        with pytest.raises(UnknownNameError, match="no run is called"):
            store.load(stranger)
    assert (store.count_all_runs(), store.list_run_nodes()) == (len(ids), {"n1"})


def test_the_last_of_no_runs_is_an_error_that_says_how_to_have_one(tmp_path: Path) -> None:
    with pytest.raises(NoRunsError, match="no runs of this node yet: hpcverify run"):
        Store(tmp_path).load("last")


def test_a_document_is_taken_in_once_however_often(tmp_path: Path) -> None:
    store = keep(tmp_path, a_run())
    store.index_new()
    assert len(Store(tmp_path).list_runs()) == 1


def test_runs_are_listed_newest_first_with_their_reason(tmp_path: Path) -> None:
    bad = a_result(verdict=Verdict.FAIL, reason="too slow")
    keep(tmp_path, run_of_day(1))
    failed = a_run(
        id="x", started=datetime(2026, 1, 2, tzinfo=UTC), verdict=Verdict.FAIL, results=(bad,)
    )
    entries = keep(tmp_path, failed).list_runs("n1")

    assert [e.id for e in entries] == ["x", run_of_day(1).id]
    assert entries[0].reason == "gemm: too slow"


def test_a_document_cut_in_half_is_named_and_the_others_are_taken_in(tmp_path: Path) -> None:
    store = keep(tmp_path, run_of_day(1))
    whole = store.get_document_path(run_of_day(1).id).read_bytes()
    store.get_document_path("half").write_bytes(whole[: len(whole) // 2])
    keep(tmp_path, run_of_day(2))

    store = Store(tmp_path)

    assert len(store.list_runs()) == 2
    assert "half.json is not a complete run document" in store.warnings[0]
    assert store.get_document_path("half").exists()


def test_a_lost_store_is_built_again_from_the_documents(tmp_path: Path) -> None:
    keep(tmp_path, a_run()).path.unlink()
    assert [e.id for e in Store(tmp_path).list_runs()] == [a_run().id]


def test_a_damaged_index_is_set_aside_and_built_anew(tmp_path: Path) -> None:
    rubbish = b"not a database, not at all" * 100
    keep(tmp_path, a_run()).path.write_bytes(rubbish)
    store = Store(tmp_path)

    assert [e.id for e in store.list_runs()] == [a_run().id]
    (told,) = store.warnings
    assert "store.sqlite is damaged" in told
    assert "it was moved to" in told
    assert ((tmp_path / "store.damaged").read_bytes(), Store(tmp_path).warnings) == (rubbish, [])


@pytest.mark.parametrize("seed", range(16))
def test_no_damage_to_the_index_keeps_a_node_from_being_verified(tmp_path: Path, seed: int) -> None:
    store = keep(tmp_path, inventory_run(1, Verdict.PASS, INVENTORY))
    store.save(marked(2, "seen"))
    content = bytearray(store.path.read_bytes())
    rng = random.Random(seed)  # noqa: S311 - bytes to spoil, no secret
    for _ in range(50):
        content[rng.randrange(len(content))] = rng.randrange(256)
    store.path.write_bytes(content)

    store = Store(tmp_path)
    store.load_previous_inventory("n1")
    store.load_carry_overs("n1")
    store.count_runs("n1")
    store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu")
    store.save(run_of_day(3))
    store.prune("n1", 1000)

    assert store.get_document_path(run_of_day(3).id).exists()
    assert len(list(store.documents.iterdir())) == 3


def test_damage_that_shows_under_way_costs_nothing(tmp_path: Path) -> None:
    store = keep(tmp_path, inventory_run(1, Verdict.PASS, INVENTORY))
    with sqlite3.connect(store.path) as db:
        db.execute("update runs set inventory = x'ff7b', verdict = 'fine'")
    db.close()

    assert store.load_previous_inventory("n1") == INVENTORY
    assert store.list_runs()[0].verdict is Verdict.PASS


def test_a_clock_that_is_centuries_ahead_keeps_no_run_from_being_kept(tmp_path: Path) -> None:
    store = keep(tmp_path, run_of_day(1))
    ahead = int(datetime(2330, 1, 1, tzinfo=UTC).timestamp())
    os.utime(store.documents, (ahead, ahead))
    assert store.documents.stat().st_mtime_ns > 2**63
    store = Store(tmp_path, clock=lambda: datetime(2330, 1, 1, tzinfo=UTC))
    store.save(run_of_day(2))
    os.utime(store.documents, (ahead, ahead))
    store.prune("n1", 1)
    assert [entry.id for entry in Store(tmp_path).list_runs()] == [run_of_day(2).id]


WRONG_VALUES = {
    "runs.started": ("'x'", "x'ff'"),
    "runs.seconds": ("'x'", "1e999"),
    "runs.verdict": ("'fine'",),
    "runs.complete": ("'x'", "7"),
    "runs.rounds": ("'x'", "-1e999"),
    "runs.bytes": ("'x'", "1 << 60", "1e999", "-1"),
    "runs.inventory": ("5", "x'ff7b'"),
    "results.verdict": ("'fine'",),
    "results.reason": ("x'ff'",),
    "results.cause": ("'x', remedy = 'x'",),
    "measurements.value": ("'x'", "1e999"),
    "marks.value": ("x'ff'",),
    "facts.facts": ("x'7b'", "7"),
    "facts.first": ("'0'",),
    "taken_in.changed": ("'x'",),
}
"""What SQLite does not notice."""
WRONG_FIELDS = [
    "update {} set {} = {}".format(*field.split("."), value)  # noqa: S608 - our own words
    for field, values in WRONG_VALUES.items()
    for value in values
]


QUESTIONS: dict[str, Callable[[Store], object]] = {
    "inventory": lambda store: store.load_previous_inventory("n1"),
    "marks": lambda store: store.load_carry_overs("n1"),
    "rounds": lambda store: store.count_runs("n1"),
    "past": lambda store: store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu"),
    "runs": lambda store: store.list_runs(),
    "newest": lambda store: store.list_newest(),
    "results": lambda store: store.list_last_results(),
    "facts": lambda store: sorted(store.list_facts(), key=repr),
    "failures": lambda store: store.list_failures(),
}


def keep_some(state: Path) -> Store:
    told = a_result("told", facts=(Fact("driver", "570"),))
    for run in (
        inventory_run(1, Verdict.PASS, INVENTORY),
        marked(2, "seen"),
        msgspec.structs.replace(run_of_day(3), results=(told,)),
    ):
        store = keep(state, run)
    return store


@pytest.mark.parametrize("wrong", WRONG_FIELDS)
def test_a_field_that_no_run_of_ours_has_is_damage_and_the_index_is_built_anew(
    tmp_path: Path, wrong: str
) -> None:
    store = keep_some(tmp_path)
    whole = {name: ask(store) for name, ask in QUESTIONS.items()}
    assert all(whole[name] for name in QUESTIONS if name != "failures")
    content = store.path.read_bytes()
    for ask_first in QUESTIONS.values():
        store.path.write_bytes(content)
        with closing(sqlite3.connect(store.path)) as db, db:
            assert db.execute(wrong).rowcount
        store = Store(tmp_path)
        ask_first(store)
        for ask in QUESTIONS.values():
            ask(store)
        assert {name: ask(store) for name, ask in QUESTIONS.items()} == whole
        store.prune("n1", 1000)
        assert len(list(store.documents.iterdir())) == 3


def test_an_index_that_another_process_has_begun_anew_is_not_set_aside(tmp_path: Path) -> None:
    store = keep(tmp_path, run_of_day(1))
    store.path.rename(store.damaged_path)
    store.path.touch()
    made = store.path.stat().st_ino
    store.damaged_path.unlink()

    store.save(run_of_day(2))

    assert store.path.stat().st_ino == made
    assert not store.damaged_path.exists()
    assert (len(store.list_runs()), store.warnings) == (2, [])


def test_a_database_that_is_replaced_while_it_is_written_to_is_another(tmp_path: Path) -> None:
    path = keep(tmp_path, run_of_day(1)).path

    def change() -> None:
        with transaction(path, if_damaged="", write=True) as db:
            path.rename(tmp_path / "aside")
            db.execute("delete from runs")

    with pytest.raises(ReplacedError, match="try again"):
        change()


def test_a_damaged_index_that_cannot_be_set_aside_is_named(tmp_path: Path) -> None:
    keep(tmp_path, a_run()).path.write_bytes(b"not a database, not at all" * 100)
    (tmp_path / "store.damaged/in the way").mkdir(parents=True)
    with pytest.raises(StoreError, match="move it away, and it is rebuilt"):
        Store(tmp_path)


def test_what_is_no_document_among_the_runs_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = keep(tmp_path, run_of_day(1)).documents
    os.mkfifo(runs / "pipe.json")
    (runs / "endless.json").symlink_to("/dev/zero")
    (runs / "folder.json").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(runs)  # its whole path may be too long for a socket
        listening.bind("socket.json")
    keep(tmp_path, run_of_day(2))
    store = Store(tmp_path)

    assert (len(store.list_runs()), len(store.warnings)) == (2, 4)
    assert all("move it away" in told for told in store.warnings)


def test_a_document_that_grows_while_it_is_read_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with path.open("wb") as file:
        file.truncate(documents.MAX_DOCUMENT_BYTES + 1)
    with pytest.raises(StoreError, match="larger than any run"):
        documents.read(path)


def test_a_store_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    path = keep(tmp_path, a_run()).path
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()
    before = path.read_bytes()

    with pytest.raises(StoreError, match=r"has version 99.*upgrade"):
        Store(tmp_path)
    assert path.read_bytes() == before


def test_a_locked_store_is_named_after_a_bounded_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify.records.sqlite.BUSY_SECONDS", 0.05)
    path = keep(tmp_path, a_run()).path
    holder = sqlite3.connect(path)
    holder.execute("begin exclusive")

    with pytest.raises(StoreError, match="locked; if another hpcverify"):
        Store(tmp_path)
    holder.close()


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="set HPCVERIFY_STATE"):
        Store(tmp_path / "file")


def test_a_document_of_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    documents.write(a_run(schema=99), path)
    with pytest.raises(StoreError, match=r"schema 99.*upgrade"):
        documents.read(path)


def test_writing_leaves_no_other_file_behind(tmp_path: Path) -> None:
    documents.write(a_run(), tmp_path / "r.json")
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        documents.write(a_run(), tmp_path / "none" / "r.json")


def test_the_past_is_newest_first_and_without_what_failed(tmp_path: Path) -> None:
    for day, value in ((1, 100.0), (2, 110.0)):
        keep(tmp_path, run_of_day(day, value))
    failed = run_of_day(3, 1.0)
    failed = msgspec.structs.replace(
        failed, results=(msgspec.structs.replace(failed.results[0], verdict=Verdict.FAIL),)
    )
    store = keep(tmp_path, failed)

    assert store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu") == [110.0, 100.0]
    assert store.make_past_lookup("n2", "quick", "gemm")("fp32.sustained", "cpu") == []
    assert store.make_past_lookup("n1", "idle", "gemm")("fp32.sustained", "cpu") == []


def test_processes_that_open_the_store_at_once_take_each_run_in_once(tmp_path: Path) -> None:
    documents_of = tmp_path / "runs"
    documents_of.mkdir()
    for day in range(1, 6):
        run = run_of_day(day)
        documents.write(run, documents_of / f"{run.id}.json")
    code = (
        "import sys, pathlib; from hpcverify.records.store import Store;"
        "print(len(Store(pathlib.Path(sys.argv[1])).warnings))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(6)]
    said = [other.communicate()[0] for other in others]

    assert said == [b"0\n"] * 6
    past = Store(tmp_path).make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu")
    assert len(past) == 5


def test_a_document_under_another_name_is_named_and_not_taken_in(tmp_path: Path) -> None:
    store = keep(tmp_path, run_of_day(1))
    store.get_document_path(run_of_day(1).id).rename(tmp_path / "runs" / "other.json")
    store.path.unlink()
    store = Store(tmp_path)

    assert "other.json holds run 20260101-000000-abcdef" in store.warnings[0]
    assert store.list_runs() == []


def inventory_run(day: int, verdict: Verdict, inventory: Inventory) -> Run:
    return msgspec.structs.replace(
        run_of_day(day), results=(a_result("inventory", verdict=verdict),), inventory=inventory
    )


def test_a_run_that_missed_a_part_is_no_reference_for_the_next(tmp_path: Path) -> None:
    keep(tmp_path, inventory_run(1, Verdict.PASS, INVENTORY))
    store = keep(tmp_path, inventory_run(2, Verdict.FAIL, Inventory()))
    assert store.load_previous_inventory("n1") == INVENTORY
    assert store.load_previous_inventory("n2") is None


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.touch()
    link = tmp_path / "link.json"
    link.symlink_to(target)
    documents.write(a_run(), link)
    documents.write(a_run(), Path("/dev/null"))

    assert link.is_symlink()
    assert documents.read(target) == a_run()
    assert Path("/dev/null").is_char_device()


def marked(day: int, value: str, *, complete: bool = True, node: str = "n1") -> Run:
    result = a_result(marks=(CarryOver("cursor", value), CarryOver("count", value, f"gpu-{day}")))
    return msgspec.structs.replace(run_of_day(day, node=node, complete=complete), results=(result,))


def test_the_newest_of_each_mark_is_recalled_for_its_node(tmp_path: Path) -> None:
    keep(tmp_path, marked(1, "1"))
    keep(tmp_path, marked(2, "2"))
    store = keep(tmp_path, marked(3, "3", node="n2"))

    assert set(store.load_carry_overs("n1")["gemm"]) == {
        CarryOver("cursor", "2"),
        CarryOver("count", "1", "gpu-1"),
        CarryOver("count", "2", "gpu-2"),
    }
    assert store.load_carry_overs("n3") == {}


def test_what_an_interrupted_run_looked_at_is_new_still(tmp_path: Path) -> None:
    keep(tmp_path, marked(1, "1"))
    store = keep(tmp_path, marked(2, "2", complete=False))
    assert CarryOver("cursor", "1") in store.load_carry_overs("n1")["gemm"]


def test_a_mark_that_came_last_counts_whatever_the_clock_said(tmp_path: Path) -> None:
    store = keep(tmp_path, marked(9, "ahead"))
    store.save(marked(2, "true"))
    assert CarryOver("cursor", "true") in store.load_carry_overs("n1")["gemm"]


def test_a_run_that_is_kept_is_written_and_indexed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(marked(1, "1"))
    assert Store(tmp_path).load("last") == marked(1, "1")


def test_a_document_that_others_put_there_is_found_after_one_of_ours(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(run_of_day(1))
    documents.write(run_of_day(2), store.get_document_path(run_of_day(2).id))
    store.save(run_of_day(3))
    assert len(Store(tmp_path).list_runs()) == 3


def test_a_past_that_cannot_be_read_costs_no_run_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify.records.sqlite.BUSY_SECONDS", 0.01)
    store = keep(tmp_path, run_of_day(1))
    with sqlite3.connect(store.path) as db:
        db.execute("begin exclusive")
        values = store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu")
    db.close()

    assert values == ()
    assert len(store.warnings) == 1


def test_reading_waits_for_nobody_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcverify.records.sqlite.BUSY_SECONDS", 0.01)
    store = keep(tmp_path, run_of_day(1))
    with sqlite3.connect(store.path) as db:
        db.execute("begin immediate")
        entries = Store(tmp_path).list_runs()
    db.close()

    assert len(entries) == 1


def burn_in(day: int, *values: float, worst: Verdict = Verdict.PASS) -> Run:
    """Make a run with a round for each of *values*, of which the last is the worst."""
    base = run_of_day(day, rounds=len(values))
    results = [
        a_result(
            round=number,
            measurements=(msgspec.structs.replace(MEASURED, value=value),),
            findings=(),
            marks=(CarryOver("cursor", str(value)),),
            verdict=worst if number == len(values) else Verdict.PASS,
            reason="worn" if number == len(values) else "",
        )
        for number, value in enumerate(values, start=1)
    ]
    made = msgspec.structs.replace(base, results=tuple(results), verdict=worst)
    return add_missing_faults(made)


MEASURED = a_result().measurements[0]


def test_a_burn_in_is_one_run_of_the_past_with_its_median(tmp_path: Path) -> None:
    keep(tmp_path, run_of_day(1, 50.0))
    store = keep(tmp_path, burn_in(2, 100.0, 130.0, 110.0))
    assert store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu") == [110.0, 50.0]


def test_a_burn_in_of_which_one_round_warned_is_no_measure(tmp_path: Path) -> None:
    store = keep(tmp_path, burn_in(2, 100.0, 130.0, worst=Verdict.WARN))
    assert store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu") == []
    assert [e.reason for e in store.list_runs()] == ["gemm: worn"]


def test_rounds_take_turns_like_runs_and_the_last_marks_count(tmp_path: Path) -> None:
    keep(tmp_path, burn_in(1, 1.0, 2.0, 3.0))
    store = keep(tmp_path, run_of_day(2))
    assert (store.count_runs("n1"), store.count_runs("n2")) == (4, 0)
    assert [e.rounds for e in store.list_runs()] == [1, 3]
    assert CarryOver("cursor", "3.0") in store.load_carry_overs("n1")["gemm"]


def test_an_inventory_that_one_round_refused_is_no_reference(tmp_path: Path) -> None:
    later = a_result("inventory", round=2, verdict=Verdict.FAIL)
    run = inventory_run(1, Verdict.PASS, INVENTORY)
    results = (*run.results, later)
    store = keep(tmp_path, msgspec.structs.replace(run, rounds=2, results=results))
    assert store.load_previous_inventory("n1") is None


def test_an_index_of_an_earlier_version_is_replaced_without_a_word(tmp_path: Path) -> None:
    path = keep(tmp_path, burn_in(2, 1.0, 2.0)).path
    with sqlite3.connect(path) as db:
        db.execute("drop table marks")
        db.execute("pragma user_version = 3")
    db.close()
    store = Store(tmp_path)

    assert [entry.rounds for entry in store.list_runs()] == [2]
    assert (store.warnings, store.damaged_path.exists()) == ([], False)


def days(state: Path, *numbers: int, suite: str = "quick") -> Store:
    """Keep a run of each of these days of a month."""
    store = Store(state)
    for day in numbers:
        run = run_of_day(day, suite=suite)
        store.save(msgspec.structs.replace(run, id=f"{suite}-{day}"))
    return store


def left(store: Store) -> list[str]:
    """Name the runs that are indexed, newest first; each has its document."""
    names = [entry.id for entry in store.list_runs(limit=-1)]
    assert {path.stem for path in store.documents.iterdir()} == {*names}
    return names


def test_the_oldest_runs_go_with_their_documents(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2, 3)
    assert (store.prune("n1", keep=2), left(store)) == (1, ["quick-3", "quick-2"])
    assert store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu") == [150.0] * 2


def test_nothing_goes_while_there_is_room_or_from_another_node(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2, 3)
    assert store.prune("n1", keep=3) == store.prune("n2", keep=0) == 0
    assert len(left(store)) == 3


def test_a_few_too_many_are_let_be_for_the_disks_sake(tmp_path: Path) -> None:
    days(tmp_path, *range(1, 26), suite="prolog")
    store = days(tmp_path, *range(1, 27), suite="epilog")
    assert store.prune("n1", keep=50) == 0
    store = days(tmp_path, 27, suite="epilog")
    assert store.prune("n1", keep=50) == 2


def test_the_prologs_runs_drive_out_none_of_the_nights(tmp_path: Path) -> None:
    days(tmp_path, 1, 2, suite="idle")
    store = days(tmp_path, *range(3, 20), suite="prolog")
    store.prune("n1", keep=5)
    assert left(store) == ["prolog-19", "prolog-18", "prolog-17", "idle-2", "idle-1"]


def test_a_suite_for_each_run_makes_room_for_no_more(tmp_path: Path) -> None:
    for day in range(1, 9):
        days(tmp_path, day, suite=f"made_up_{day}")
    store = Store(tmp_path)
    store.prune("n1", keep=2)
    assert left(store) == ["made_up_8-8", "made_up_7-7"]


def test_what_is_evidence_is_spared(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2, 3)
    store.prune("n1", keep=1, spare=["quick-1"])
    assert left(store) == ["quick-3", "quick-1"]


def test_what_the_next_run_compares_itself_with_is_spared(tmp_path: Path) -> None:
    keep(tmp_path, inventory_run(1, Verdict.PASS, INVENTORY))
    keep(tmp_path, marked(2, "2"))
    store = days(tmp_path, 3, 4, 5)
    store.prune("n1", keep=1)
    before = store.load_previous_inventory("n1"), store.load_carry_overs("n1")
    store.path.unlink()
    again = Store(tmp_path)

    assert (again.load_previous_inventory("n1"), again.load_carry_overs("n1")) == before
    assert before[0] == INVENTORY
    assert CarryOver("cursor", "2") in before[1]["gemm"]
    assert len(left(again)) == 3


def odd(day: int, count: int = 1) -> Run:
    """Make a run with marks of names that no other has."""
    marks = tuple(CarryOver(f"{day}.{number}", "x") for number in range(count))
    return msgspec.structs.replace(run_of_day(day), results=(a_result(marks=marks),))


def marks_in(store: Store) -> int:
    with sqlite3.connect(store.path) as db:
        (count,) = db.execute("select count(*) from marks").fetchone()
    db.close()
    return int(count)


def test_marks_of_ever_new_names_spare_no_more_runs_than_can_be(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 30):
        store.save(odd(day))
    store.prune("n1", keep=2)

    kept = [odd(day).id for day in range(29, 29 - MAX_CARRY_OVER_RUNS, -1)]
    assert (left(store), marks_in(store)) == (kept, MAX_CARRY_OVER_RUNS)


def test_a_mark_is_forgotten_with_its_run_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(odd(1))
    store.save(marked(2, "2"))
    store.prune("n1", keep=1, max_bytes=0, spare=[run_of_day(2).id])

    assert left(store) == [run_of_day(2).id]
    assert {mark.name for mark in store.load_carry_overs("n1")["gemm"]} == {"cursor", "count"}


def heavy(store: Store, day: int, size: int, suite: str = "idle") -> str:
    """Keep a run of about *size* bytes, and name it."""
    result = a_result(params={"text": "x" * size})
    run = msgspec.structs.replace(run_of_day(day, suite=suite), results=(result,))
    run = msgspec.structs.replace(run, id=f"{suite}-{day}")
    store.save(run)
    return run.id


def test_the_oldest_go_beyond_the_bytes_that_a_node_may_have(tmp_path: Path) -> None:
    store = Store(tmp_path)
    runs = [heavy(store, day, 100_000) for day in range(1, 7)]
    assert store.prune("n1", keep=100, max_bytes=800_000) == 0
    assert (store.prune("n1", keep=100, max_bytes=350_000), left(store)) == (3, runs[:2:-1])


def test_runs_of_marks_are_spared_from_no_limit_of_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 5):
        store.save(odd(day, count=500))
    size = store.get_document_path(odd(1).id).stat().st_size
    store.prune("n1", keep=100, max_bytes=2 * size)

    assert (left(store), marks_in(store)) == ([odd(4).id, odd(3).id], 1000)


def test_evidence_stays_whatever_it_weighs(tmp_path: Path) -> None:
    keep(tmp_path, inventory_run(1, Verdict.PASS, INVENTORY))
    store = Store(tmp_path)
    spare = heavy(store, 2, 100_000)
    heavy(store, 3, 100_000)
    store.prune("n1", keep=100, spare=[spare], max_bytes=0)

    assert left(store) == [spare, run_of_day(1).id]
    assert store.prune("n1", keep=100, spare=[spare], max_bytes=0) == 0


def test_a_few_heavy_runs_drive_out_none_of_many_light_ones(tmp_path: Path) -> None:
    store = Store(tmp_path)
    light = [heavy(store, day, 10_000) for day in range(1, 9)]
    burn_ins = [heavy(store, day, 100_000, "burn_in") for day in range(10, 14)]
    store.prune("n1", keep=100, max_bytes=320_000)
    assert left(store) == [*burn_ins[:1:-1], *light[::-1]]


def test_what_is_taken_in_weighs_as_what_was_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 4):
        heavy(store, day, 100_000)
    store.path.unlink()
    assert Store(tmp_path).prune("n1", keep=100, max_bytes=250_000) == 1


def test_the_directory_is_not_read_again_for_what_was_deleted(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2, 3)
    store.prune("n1", keep=1)
    store.get_document_path("unseen").write_text("{")
    os.utime(store.documents, ns=(0, _remembered(store)))
    assert Store(tmp_path).warnings == []


def _remembered(store: Store) -> int:
    with sqlite3.connect(store.path) as db:
        (changed,) = db.execute("select changed from taken_in").fetchone()
    db.close()
    return int(changed)


def test_a_document_that_is_gone_already_is_no_obstacle(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2)
    store.get_document_path("quick-1").unlink()
    assert (store.prune("n1", keep=1), left(store)) == (1, ["quick-2"])


def test_a_document_that_cannot_be_deleted_is_named_and_stays(tmp_path: Path) -> None:
    store = days(tmp_path, 1, 2)
    store.get_document_path("quick-1").unlink()
    store.get_document_path("quick-1").mkdir()

    with pytest.raises(StoreError, match=r"quick-1\.json cannot be deleted"):
        store.prune("n1", keep=1)
    assert len(left(store)) == 2


def test_runs_that_failed_are_listed_with_their_node_and_time(tmp_path: Path) -> None:
    for day, verdict in ((1, Verdict.FAIL), (2, Verdict.ERROR), (3, Verdict.FAIL)):
        keep(tmp_path, run_of_day(day, verdict=verdict))
    store = keep(tmp_path, run_of_day(4, node="n2", verdict=Verdict.PASS))
    third = datetime(2026, 1, 3, tzinfo=UTC)

    assert len(store.list_failures()) == 2
    assert store.list_failures(datetime(2026, 1, 2, tzinfo=UTC)) == [("n1", third.timestamp())]


def test_of_every_node_the_newest_whole_run_is_found(tmp_path: Path) -> None:
    keep(tmp_path, run_of_day(1))
    keep(tmp_path, run_of_day(2, node="n2"))
    keep(tmp_path, run_of_day(3))
    store = keep(tmp_path, run_of_day(4, complete=False))

    assert {e.node: e.id[:8] for e in store.list_newest()} == {"n1": "20260103", "n2": "20260102"}
    assert [e.node for e in store.list_newest(datetime(2026, 1, 3))] == ["n1"]  # noqa: DTZ001 - as click reads a day


def test_a_run_of_a_clock_that_was_ahead_is_not_the_newest(tmp_path: Path) -> None:
    ahead = datetime(2099, 1, 1, tzinfo=UTC)
    keep(tmp_path, a_run(id="x", started=ahead, results=(a_result(),)))
    store = keep(tmp_path, run_of_day(1))
    now = datetime(2026, 1, 2, tzinfo=UTC)

    assert [e.id[:8] for e in store.list_newest(until=now)] == ["20260101"]
    assert {s.run[:8] for s in store.list_last_results(until=now)} == {"20260101"}


def test_what_was_said_is_of_the_newest_whole_run_of_each_suite(tmp_path: Path) -> None:
    bad = a_result(verdict=Verdict.FAIL, reason="slow", findings=())
    failed = a_run(
        id="x",
        suite="idle",
        started=datetime(2026, 1, 1, tzinfo=UTC),
        verdict=Verdict.FAIL,
        results=(bad,),
    )
    keep(tmp_path, failed)
    keep(tmp_path, run_of_day(2))
    store = keep(tmp_path, run_of_day(3))

    assert sorted((s.suite, s.run[:8], s.overall, s.reason) for s in store.list_last_results()) == [
        ("idle", "x", Verdict.FAIL, "slow"),
        ("quick", "20260103", Verdict.PASS, ""),
    ]
    (failed_result, passed) = sorted(store.list_last_results(), key=lambda s: s.suite)
    assert [(d.text, d.verdict) for d in failed_result.diagnoses] == [("slow", Verdict.FAIL)]
    assert passed.diagnoses == ()
    assert {s.suite for s in store.list_last_results(datetime(2026, 1, 2))} == {"quick"}  # noqa: DTZ001 - as click reads a day


PAGE = 4096


def wide(day: int) -> Run:
    """Make a run in which three hundred things were measured."""
    result = a_result()
    measured = tuple(
        msgspec.structs.replace(result.measurements[0], name=f"m{number}") for number in range(300)
    )
    return msgspec.structs.replace(
        run_of_day(day), results=(msgspec.structs.replace(result, measurements=measured),)
    )


def test_what_a_run_adds_lies_on_few_pages(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 20):
        store.save(wide(day))
    before = store.path.read_bytes()
    store.save(wide(20))
    after = store.path.read_bytes()

    places = range(0, len(after), PAGE)
    changed = [at for at in places if before[at : at + PAGE] != after[at : at + PAGE]]
    assert len(changed) < 60  # by measurement first, it was more than a hundred


def dated(when: str, **changes: object) -> Run:
    started = datetime.fromisoformat(when).replace(tzinfo=UTC)
    return a_run(id=f"{started:%Y%m%d-%H%M%S}-abcdef", started=started, **changes)


BAD_PARTS = Inventory(parts=(Part("gpu", "GPU-1", "GPU 1"),))


def test_a_run_of_a_clock_that_was_ahead_is_no_reference_and_is_told(tmp_path: Path) -> None:
    listed = (a_result("inventory"),)
    store = Store(tmp_path)
    store.save(dated("2026-01-01", results=listed, inventory=INVENTORY))
    store.save(dated("2099-01-01", results=listed, inventory=BAD_PARTS))

    assert store.load_previous_inventory("n1") == INVENTORY
    assert [e.id[:4] for e in store.list_runs()] == ["2026", "2099"]
    assert store.load("last").id.startswith("2026")
    assert [e.id[:4] for e in store.list_future_runs("n1")] == ["2099"]


def test_many_runs_of_a_clock_that_was_ahead_are_told_in_one_sentence(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.explain_future_runs("n1") == ""
    for day in range(1, 4):
        store.save(dated(f"2099-01-0{day}"))

    told = store.explain_future_runs("n1")

    assert told.startswith("run 20990103-000000-abcdef (and 2 more) is dated after now")
    assert "\n" not in told


def test_a_document_that_another_process_deletes_meanwhile_is_no_fault(tmp_path: Path) -> None:
    first = Store(tmp_path)
    for day in range(1, 3):
        first.save(run_of_day(day))
    first.path.unlink()
    gone, *_ = sorted(first.documents.iterdir())
    asked: list[float] = []

    def timer() -> float:
        asked.append(0.0)
        if len(asked) > 1:  # the documents were listed before
            gone.unlink(missing_ok=True)
        return 0.0

    store = Store(tmp_path, timer=timer)

    assert (store.warnings, [e.id for e in store.list_runs()]) == ([], [run_of_day(2).id])


def test_parts_that_were_accepted_after_a_run_of_the_future_stay_accepted(tmp_path: Path) -> None:
    listed = (a_result("inventory"),)
    store = Store(tmp_path)
    store.save(dated("2099-01-01", results=listed, inventory=INVENTORY))
    store.save(dated("2026-01-01", results=listed, inventory=BAD_PARTS))
    store.path.unlink()

    assert Store(tmp_path).load_previous_inventory("n1") == BAD_PARTS


def test_a_node_whose_clock_fell_behind_keeps_its_reference(tmp_path: Path) -> None:
    listed = (a_result("inventory"),)
    first = Store(tmp_path)
    first.save(dated("2026-01-01", results=listed, inventory=BAD_PARTS))
    first.save(dated("2026-01-02", results=listed, inventory=INVENTORY))
    store = Store(tmp_path, clock=lambda: datetime(1970, 1, 1, tzinfo=UTC))

    assert store.load_previous_inventory("n1") == INVENTORY


def test_what_the_future_measured_is_no_past(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(run_of_day(1, 100.0))
    store.save(dated("2099-01-01"))
    assert store.make_past_lookup("n1", "quick", "gemm")("fp32.sustained", "cpu") == [100.0]


@pytest.mark.parametrize("seconds", [math.inf, 0.0])
def test_the_newest_marks_count_in_whatever_order_runs_are_taken_in(
    tmp_path: Path, seconds: float
) -> None:
    store = Store(tmp_path)
    for day in range(1, 10):
        store.save(marked(day, str(day)))
    ahead = msgspec.structs.replace(dated("2099-01-01"), results=marked(1, "x").results)
    documents.write(ahead, store.get_document_path(ahead.id))
    store.path.unlink()
    Store(tmp_path, seconds=seconds)
    store = Store(tmp_path)

    assert CarryOver("cursor", "9") in store.load_carry_overs("n1")["gemm"]


def test_a_passive_run_takes_in_the_newest_and_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    whole = Store(tmp_path)
    for number in range(120):
        run = run_of_day(1 + number % 28)
        renamed = msgspec.structs.replace(run, id=f"{run.id[:-6]}{number:06}")
        documents.write(renamed, whole.get_document_path(renamed.id))
    ended = iter(range(10_000))
    hurried = Store(tmp_path, seconds=1.5, timer=lambda: float(next(ended)))
    some = hurried.list_runs(limit=-1)

    assert len(some) == 50
    assert {e.started.day for e in some} >= {28, 27, 26}

    hurried.save(dated("2026-02-01"))
    assert len(Store(tmp_path).list_runs(limit=-1)) == 121


def test_the_index_gives_back_the_room_of_what_was_deleted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 29):
        store.save(wide(day))
    store.shrink(2**16)
    full = store.path.stat().st_size
    assert store.prune("n1", 4) == 24
    store.shrink(2**16)

    assert store.path.stat().st_size < full / 2
    assert len(store.list_runs()) == 4


def test_no_more_runs_are_deleted_at_once_than_a_prolog_has_time_for(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for day in range(1, 9):
        store.save(run_of_day(day))
    assert [store.prune("n1", 4, max_pruned=3) for _ in range(2)] == [3, 1]
    assert [e.started.day for e in store.list_runs()] == [8, 7, 6, 5]


def judged_run(day: int, verdict: Verdict, inventory: Inventory, **changes: Any) -> Run:
    return a_run(
        id=f"202601{day:02}-000000-abcdef",
        started=datetime(2026, 1, day, tzinfo=UTC),
        verdict=verdict,
        inventory=inventory,
        results=(a_result("ecc", verdict=verdict),),
        **changes,
    )


def test_runs_that_looked_at_a_part_are_found_without_their_documents(tmp_path: Path) -> None:
    empty, now = Inventory(), judged_run(9, Verdict.FAIL, INVENTORY)
    for run in (
        judged_run(1, Verdict.PASS, INVENTORY),
        judged_run(2, Verdict.PASS, empty),  # the part was not in yet
        judged_run(3, Verdict.FAIL, empty),  # or is it what was missed?
        judged_run(4, Verdict.ERROR, INVENTORY),  # nobody could tell
        judged_run(5, Verdict.WARN, INVENTORY),
        judged_run(6, Verdict.PASS, INVENTORY, node="n2"),
        now,
        judged_run(10, Verdict.PASS, INVENTORY),  # later than now
    ):
        keep(tmp_path, run)

    def days(*checks: str) -> list[int]:
        return [entry.started.day for entry in Store(tmp_path).list_runs_judging(checks, now)]

    assert days("ecc", "gemm") == [5, 3, 2, 1]
    assert days("gemm") == []


def test_the_parts_of_a_run_are_read_from_the_index(tmp_path: Path) -> None:
    run = judged_run(1, Verdict.PASS, INVENTORY)
    keep(tmp_path, run)
    assert Store(tmp_path).read_part_ids(run.id) == {part.id for part in INVENTORY.parts}


def run_with_driver(day: int, driver: str, hour: int = 0) -> Run:
    gpu = Part("gpu", "GPU-1", "GPU 1", {"name": "H100", "driver": driver})
    return msgspec.structs.replace(
        run_of_day(day, inventory=Inventory(parts=(gpu,))),
        id=f"202601{day:02}-{hour:02}0000-abcdef",
        started=datetime(2026, 1, day, hour, tzinfo=UTC),
    )


def list_drivers(store: Store) -> list[tuple[str, float, float]]:
    """List the drivers that were told, with the first and last day of each."""
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    return [
        (told.facts["GPU driver"], (told.first - began) / 86400, (told.last - began) / 86400)
        for told in store.list_facts()
        if told.source == "parts"
    ]


HISTORY = [run_with_driver(day, "570" if day < 5 else "575") for day in range(1, 8)]


@given(st.permutations(HISTORY))
@settings(max_examples=10)
def test_the_facts_of_a_node_are_the_same_in_whatever_order_its_runs_come(runs: list[Run]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            keep(Path(folder), run)
        told = list_drivers(Store(Path(folder)))
    assert told == [("570", 0, 3), ("575", 4, 6)]


def test_the_facts_of_an_index_that_was_deleted_come_back(tmp_path: Path) -> None:
    for run in HISTORY:
        keep(tmp_path, run)
    Store(tmp_path).path.unlink()
    assert list_drivers(Store(tmp_path)) == [("570", 0, 3), ("575", 4, 6)]


def test_what_a_node_with_a_clock_ahead_tells_is_no_version_of_today(tmp_path: Path) -> None:
    store = Store(tmp_path, clock=lambda: datetime(2026, 1, 10, tzinfo=UTC))
    for run in (HISTORY[0], run_with_driver(31, "580")):
        store.save(run)
    assert list_drivers(store) == [("570", 0, 0)]


def test_nodes_of_one_image_share_what_they_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(3):
        run = run_with_driver(1, "570", hour=number)
        store.save(msgspec.structs.replace(run, node=f"n{number}"))
    told = [one.facts for one in store.list_facts() if one.source == "parts"]

    assert (len(told), len(set(map(id, told)))) == (3, 1)


def test_a_fact_that_is_never_the_same_does_not_fill_the_index(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for minute in range(MAX_FACT_ROWS + 8):
        started = datetime(2026, 1, 1, 0, minute, tzinfo=UTC)
        run = run_with_driver(1, f"{minute}")
        name = f"20260101-00{minute:02}00-abcdef"
        store.save(msgspec.structs.replace(run, id=name, started=started))

    drivers = [driver for driver, *_ in list_drivers(store)]
    assert drivers == [str(minute) for minute in range(8, MAX_FACT_ROWS + 8)]
