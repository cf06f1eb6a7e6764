"""
The one DuckDB file of the measurements, and its tables.

``measurements/history.duckdb`` in the state directory has the table ``nights``, sorted, ``recent``,
to which each collect adds, and ``weeks``, which have been rolled up. The view ``measurements`` is
all nights. DuckDB lets one process write or several read: who comes second waits.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from hpcverify.errors import StoreError
from hpcverify.history.columns import COLUMNS, COLUMNS_VERSION, SCHEMA_KEY, WEEK_COLUMNS, Column
from hpcverify.history.duck import MEMORY_MIB, open_duckdb

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEASUREMENTS_FOLDER = "measurements"
DATABASE_NAME = "history.duckdb"
MIN_NEWEST_NIGHTS = 3
"""Nights with runs that show which day it is; the clock alone may have jumped."""


def _list_columns(columns: Collection[Column]) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)


SCHEMA_TABLE = f"create table if not exists {SCHEMA_KEY} as select {COLUMNS_VERSION} as version"
TABLES = f"""
    create table if not exists recent ({_list_columns(COLUMNS)}, night date);
    create table if not exists nights ({_list_columns(COLUMNS)}, night date);
    create table if not exists weeks ({_list_columns(WEEK_COLUMNS)}, week date);
    create or replace view measurements as from nights union all from recent;
"""


def find_database(state: Path) -> Path:
    """Find the file in the state directory *state*."""
    return state / MEASUREMENTS_FOLDER / DATABASE_NAME


def has_database(state: Path) -> bool:
    """
    Whether the file is in the state directory *state*.

    Raises:
        StoreError: as `has_file` does.

    """
    path = find_database(state)
    has_file(path.with_name(f"{path.name}.wal"))  # DuckDB reads its log first
    return has_file(path)


def has_file(path: Path) -> bool:
    """
    Whether there is a file *path*.

    Raises:
        StoreError: the folder is closed to this user, or *path* is no regular file: whoever
            opens a pipe waits for its other end.

    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as exc:
        raise StoreError(f"{path} cannot be read: {exc.strerror}") from exc
    if not S_ISREG(mode):
        raise StoreError(f"{path} is not a regular file: move it away")
    return True


@contextmanager
def open_to_read(state: Path, memory_mib: int = MEMORY_MIB) -> Generator[DuckDBPyConnection]:
    """
    Open the measurements in the state directory *state*.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there are none, or the file is damaged or of a later hpcverify.

    """
    path = find_database(state)
    if not has_database(state):
        raise StoreError(explain_absence(state))
    with open_duckdb(path.parent, memory_mib, path, read_only=True) as db:
        _refuse_newer(db, path)
        yield db


@contextmanager
def open_to_write(state: Path) -> Generator[DuckDBPyConnection]:
    """
    Open the measurements in the state directory *state*: all that is written, or nothing.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: the file cannot be written, is damaged, or is of a later hpcverify.

    """
    path = find_database(state)
    has_database(state)
    with open_duckdb(path.parent, file=path) as db:
        db.execute("begin")
        db.execute(SCHEMA_TABLE)
        _refuse_newer(db, path)
        db.execute(TABLES)
        yield db
        db.execute("commit")


def _refuse_newer(db: DuckDBPyConnection, path: Path) -> None:
    newest = "coalesce(max(version)::integer, error('it has no schema version'))"
    ((version,),) = db.execute(f"select {newest} from {SCHEMA_KEY}").fetchall()
    if version > COLUMNS_VERSION:
        raise StoreError(
            f"{path} has schema {version}, but this hpcverify knows {COLUMNS_VERSION}: "
            "upgrade hpcverify"
        )


def explain_absence(state: Path) -> str:
    """Say that there are no measurements, and what makes them."""
    return (
        f"no measurements of these nights in {find_database(state)}: hpcverify fleet collect "
        "writes them; hpcverify history --rebuild makes them from the documents"
    )


def list_nights(state: Path) -> list[date]:
    """List the nights in the state directory *state* that are no part of a week yet, in order."""
    if not has_database(state):
        return []
    with open_to_read(state) as db:
        rows = db.execute("select distinct night from measurements order by night").fetchall()
    return [night for (night,) in rows]


def find_newest_night(nights: Collection[date], tonight: date) -> date | None:
    """
    Find up to which night the history reaches, of *nights* with runs; None: there are too few.

    A clock that was ahead leaves a night or two that lie by themselves: it counts what
    `MIN_NEWEST_NIGHTS` reach, and none after *tonight*.
    """
    past = sorted(night for night in nights if night <= tonight)
    return past[-MIN_NEWEST_NIGHTS] if len(past) >= MIN_NEWEST_NIGHTS else None
