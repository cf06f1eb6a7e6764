"""DuckDB, embedded: opened with bounds, and its errors in one line."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcverify.errors import ConfigError, StoreError, write_install_command
from hpcverify.history.columns import COLUMNS, COLUMNS_VERSION, SCHEMA_KEY
from hpcverify.summary.printable import make_printable

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
READ_WAIT_S, WRITE_WAIT_S, RETRY_S = 60, 10, 0.1
"""How long a reader waits for a writer, and a writer for readers: its queue lasts anyway."""
NOTICE_AFTER_S = 2.0
"""After which a process prints that it waits."""
IN_USE_PATTERN = re.compile(r"Could not set lock on file.*PID (\d+)", re.DOTALL)
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
def open_duckdb(
    spill: Path, memory_mib: int = MEMORY_MIB, file: Path | None = None, *, read_only: bool = False
) -> Generator[DuckDBPyConnection]:
    """
    Open a DuckDB in memory, or in *file*, which may spill into the folder *spill*.

    It has a folder of its own there, which goes with it. In a folder that cannot be written,
    nothing spills.

    Raises:
        ConfigError: it is not installed.
        StoreError: a file cannot be read or written, is damaged, or another process writes it.

    """
    try:
        import duckdb
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"the history of measurements needs duckdb: {write_install_command('duckdb')}"
        ) from exc
    place = file or spill
    try:
        with _make_spill_folder(spill / SPILL_FOLDER) as folder:
            bounds: dict[str, str | bool | int | float | list[str]] = {
                "memory_limit": f"{memory_mib}MiB",
                "threads": THREADS,
                "temp_directory": str(folder or ""),
                **NO_EXTENSIONS,
                "preserve_insertion_order": False,
            }
            with _connect(file, bounds, read_only=read_only) as db:
                db.execute("set timezone = 'UTC'")
                yield db
    except duckdb.OutOfMemoryException as exc:
        raise StoreError(
            f"so many measurements of {spill} need more than {memory_mib} MiB: choose fewer nights"
        ) from exc
    except (duckdb.Error, OSError) as exc:
        why = " ".join(str(exc).partition("\n")[0].split())
        if "storage version number" in why:  # it is whole, and has weeks without documents
            raise StoreError(
                f"{place} is of another version of duckdb ({why}): upgrade it"
            ) from exc
        raise StoreError(
            f"the measurements in {place} cannot be used ({why}): if the file is damaged, "
            "move it away; hpcverify history --rebuild makes it again from the run documents"
        ) from exc


def _connect(
    file: Path | None, bounds: dict[str, str | bool | int | float | list[str]], *, read_only: bool
) -> DuckDBPyConnection:
    import duckdb

    began, longest = time.monotonic(), READ_WAIT_S if read_only else WRITE_WAIT_S
    is_reported = False
    while True:
        try:
            return duckdb.connect(file or ":memory:", read_only=read_only, config=bounds)
        except duckdb.IOException as exc:
            if not (other := IN_USE_PATTERN.search(str(exc))):
                raise
            waited = time.monotonic() - began
            if waited > longest:
                raise StoreError(
                    f"{file} is in use by process {other[1]}: try again once that has ended"
                ) from exc
            if waited > NOTICE_AFTER_S and not is_reported:
                line = f"hpcverify: process {other[1]} uses {file}: waiting for up to {longest} s"
                with suppress(OSError):  # standard error may be closed
                    sys.stderr.write(f"{make_printable(line)}\n")
                    sys.stderr.flush()
                is_reported = True
        time.sleep(RETRY_S)


@contextmanager
def _make_spill_folder(top: Path) -> Generator[Path | None]:
    """
    Make a locked folder in *top* for one DuckDB, and remove it; None if that cannot be done.

    DuckDB removes its files when it ends; if it is killed, they stay, and go with the next one.
    """
    folder = top / secrets.token_hex(8)
    try:
        top.mkdir(mode=0o700, exist_ok=True)
        with _hold_folder(top):  # else others would remove ours before it is locked
            for left in list(top.glob("[0-9a-f]" * 16)):  # *top* may be a link to a scratch disk
                with suppress(OSError), _hold_folder(left, fcntl.LOCK_NB):
                    shutil.rmtree(left)
            folder.mkdir()
            held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX)
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


@contextmanager
def _hold_folder(path: Path, wait: int = 0) -> Generator[None]:
    held = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | wait)
        yield
    finally:
        os.close(held)


def quote(text: object) -> str:
    """Write *text* as a string of SQL."""
    return "'" + str(text).replace("'", "''") + "'"


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
