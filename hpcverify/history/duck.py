"""DuckDB, embedded: opened with bounds, and its errors in one line."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcverify.errors import ConfigError, StoreError, write_install_command
from hpcverify.history.columns import COLUMNS, COLUMNS_VERSION, SCHEMA_KEY

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_MIB = 256
"""What DuckDB may take; beyond it, it sorts on the disk."""
THREADS = 1
"""More take more CPU time and memory in all, and the controller has other work beside it."""
NO_EXTENSIONS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,  # it never asks the network
    "autoload_known_extensions": False,
}
SPILL_FOLDER = "_duckdb"
LOCK_ENDING = ".lock"
TEXT_TYPE = "varchar"
"""The type in SQL of the columns that hold text."""
FORMULA_PATTERN = r"^[=+@\t\r-]"
"""How a formula begins in a spreadsheet."""
UNPRINTABLE_PATTERN = r"[^\pL\pM\pN\pP\pS\p{Zs}\t\n\r]"
"""Anything but letters, marks, numbers, punctuation, symbols and spaces."""


def is_installed() -> bool:
    """Whether DuckDB can be imported, without doing so."""
    return find_spec("duckdb") is not None


@contextmanager
def open_duckdb(spill: Path, memory_mib: int = MEMORY_MIB) -> Generator[DuckDBPyConnection]:
    """
    Open a DuckDB in memory, which may write to the folder *spill* what does not fit.

    It has a folder of its own there, which goes with it; those that killed ones left go first. In
    a folder that cannot be written, nothing spills.

    Raises:
        ConfigError: it is not installed.
        StoreError: a file cannot be read or written, or is damaged.

    """
    try:
        import duckdb
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"the history of measurements needs duckdb: {write_install_command('duckdb')}"
        ) from exc
    try:
        with _make_spill_folder(spill / SPILL_FOLDER) as folder:
            bounds: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": f"{memory_mib}MiB",
                "threads": THREADS,
                "temp_directory": str(folder or ""),
                **NO_EXTENSIONS,
                "preserve_insertion_order": False,
            }
            with duckdb.connect(config=bounds) as db:
                db.execute("set timezone = 'UTC'")
                yield db
    except duckdb.OutOfMemoryException as exc:
        raise StoreError(
            f"so many measurements of {spill} need more than {memory_mib} MiB: choose fewer nights"
        ) from exc
    except (duckdb.Error, OSError) as exc:
        why = " ".join(str(exc).split())
        raise StoreError(
            f"the measurements in {spill} cannot be used ({why}): if a file is damaged, "
            "move it away; hpcverify history --rebuild makes it again"
        ) from exc


@contextmanager
def _make_spill_folder(top: Path) -> Generator[Path | None]:
    """
    Make a folder in *top* for one DuckDB, and remove it; None if that cannot be done.

    DuckDB removes its files when it ends; if it is killed, they stay. So each folder has a locked
    file beside it: what has none, or one that nobody holds, is left over and goes first.
    """
    folder = top / secrets.token_hex(8)
    lock = folder.with_suffix(LOCK_ENDING)
    try:
        top.mkdir(exist_ok=True)
        held = _hold_new_lock(lock)
    except OSError:
        yield None
        return
    try:
        _remove_left_over(top)
        folder.mkdir()
        yield folder
    finally:
        with suppress(OSError):
            _remove(folder)
            lock.unlink()
        os.close(held)


def _hold_new_lock(path: Path) -> int:
    """Make the file *path* and lock it; again if it was taken for left over in between."""
    while True:
        held = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            if path.exists():
                return held
        except OSError:
            os.close(held)
            raise
        os.close(held)


def _remove_left_over(top: Path) -> None:
    """Remove from *top* what nobody holds, each folder before its lock."""
    for path in sorted(top.iterdir()):
        with suppress(OSError), _hold_lock(path.with_suffix(LOCK_ENDING)):
            _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        for file in path.iterdir():
            file.unlink(missing_ok=True)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _hold_lock(path: Path) -> Generator[None]:
    """Hold the lock *path*, if there is one; an `OSError` says that another process does."""
    try:
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)


def quote(text: object) -> str:
    """Write *text* as a string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


def read_parquet(paths: Sequence[Path]) -> str:
    """Write the table function of SQL that reads *paths*, with the night as a column."""
    listed = ", ".join(map(quote, paths))
    return f"read_parquet([{listed}], hive_partitioning = true, union_by_name = true)"


def write_parquet(rows: str, order: str, path: Path) -> str:
    """Write the statement of SQL that puts *rows*, in their *order*, into the file *path*."""
    return (
        f"copy (from ({rows}) order by {order}) to {quote(path)}"
        " (format parquet, use_tmp_file false,"
        f" compression zstd, kv_metadata {{{SCHEMA_KEY}: '{COLUMNS_VERSION}'}})"
    )


def write_csv(rows: str, order: str, path: Path) -> str:
    """
    Write the statement of SQL that puts *rows*, in their *order*, into the file *path*, as CSV.

    A spreadsheet takes a text for a formula that begins as one, and the names of nodes and
    parts are not ours: such a text gets an apostrophe in front. Numbers stay numbers. What
    cannot be printed is replaced, as a file may be that of a terminal.
    """
    texts = ", ".join(
        f"case when regexp_matches({name}, {quote(FORMULA_PATTERN)}) then chr(39) else '' end"
        f" || regexp_replace({name}, {quote(UNPRINTABLE_PATTERN)}, '\ufffd', 'g') as {name}"
        for name in (column.name for column in COLUMNS if column.type == TEXT_TYPE)
    )
    return (
        f"copy (select * replace ({texts}) from ({rows}) order by {order})"
        f" to {quote(path)} (format csv, header, use_tmp_file false)"
    )


def refuse_newer(db: DuckDBPyConnection, paths: Sequence[Path]) -> None:
    """
    Refuse files that a later hpcverify has written.

    Raises:
        StoreError: one of *paths* is such a file.

    """
    listed = ", ".join(map(quote, paths))
    newest = db.execute(
        f"select file_name, value::varchar::integer from parquet_kv_metadata([{listed}])"
        f" where key::varchar = '{SCHEMA_KEY}' order by 2 desc limit 1"
    ).fetchone()
    if newest and newest[1] > COLUMNS_VERSION:
        raise StoreError(
            f"{newest[0]} has schema {newest[1]}, but this hpcverify knows {COLUMNS_VERSION}: "
            "upgrade hpcverify"
        )
