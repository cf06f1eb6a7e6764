"""What DuckDB writes to the disk goes with it, or with the next one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from hpcverify.errors import StoreError
from hpcverify.history.duck import SPILL_FOLDER, open_duckdb

MORTAL = multiprocessing.get_context("fork")
"""A controller that is killed is a process of its own."""
MEMORY_MIB = 16
TOO_MUCH = "create table t as select hash(i)::varchar as h from range(1000000) n(i)"
"""For this memory: some of it is written to the disk."""


def list_spilled(state: Path) -> set[Path]:
    return set((state / SPILL_FOLDER).rglob("*"))


def spill_and_die(state: Path) -> None:
    with open_duckdb(state, memory_mib=MEMORY_MIB) as db:
        db.execute(TOO_MUCH)
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_one_left_goes_with_the_next(tmp_path: Path) -> None:
    killed = MORTAL.Process(target=spill_and_die, args=(tmp_path,))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert any(path.suffix == ".tmp" for path in list_spilled(tmp_path))

    with open_duckdb(tmp_path):
        pass

    assert not list_spilled(tmp_path)


def test_what_another_one_writes_stays(tmp_path: Path) -> None:
    with open_duckdb(tmp_path, memory_mib=MEMORY_MIB) as db:
        db.execute(TOO_MUCH)
        spilled = list_spilled(tmp_path)
        assert any(path.suffix == ".tmp" for path in spilled)

        with open_duckdb(tmp_path):
            assert list_spilled(tmp_path) > spilled

        assert list_spilled(tmp_path) == spilled
        assert db.execute("select count(h) from t").fetchall() == [(1000000,)]
    assert not list_spilled(tmp_path)


def test_where_nothing_can_be_written_it_has_its_memory(tmp_path: Path) -> None:
    with open_duckdb(tmp_path / "missing", memory_mib=MEMORY_MIB) as db:
        assert db.execute("select 1").fetchall() == [(1,)]

    with (
        pytest.raises(StoreError, match="choose fewer nights"),
        open_duckdb(tmp_path / "missing", memory_mib=MEMORY_MIB) as db,
    ):
        db.execute(TOO_MUCH)


def test_a_spill_folder_that_is_a_link_keeps_what_is_not_ours(tmp_path: Path) -> None:
    other = tmp_path / "scratch" / "of-others"
    other.mkdir(parents=True)
    (tmp_path / SPILL_FOLDER).symlink_to(other.parent)

    with open_duckdb(tmp_path, memory_mib=MEMORY_MIB) as db:
        db.execute(TOO_MUCH)

    assert list_spilled(tmp_path) == {tmp_path / SPILL_FOLDER / "of-others"}
