"""SQLite, by hand: transactions, and errors that name the file and the fix."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from hpcverify.errors import DamagedError, OutdatedError, ReplacedError, StoreError

BUSY_SECONDS = 5.0
TRANSIENT_ERRORS = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes that say nothing about the content of the file."""


@contextmanager
def transaction(
    path: Path, *, if_damaged: str, write: bool = False
) -> Generator[sqlite3.Connection]:
    """Open the database *path*, and a transaction on it; raises what `transact` does."""
    with connect(path) as db, transact(db, path, if_damaged=if_damaged, write=write):
        yield db


@contextmanager
def connect(path: Path) -> Generator[sqlite3.Connection]:
    """
    Open the database *path*.

    Raises:
        StoreError: it cannot be opened.

    """
    try:
        db = sqlite3.connect(path, timeout=BUSY_SECONDS)
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be opened: {exc}") from exc
    with closing(db):
        yield db


@contextmanager
def transact(
    db: sqlite3.Connection, path: Path, *, if_damaged: str, write: bool = False
) -> Generator[None]:
    """
    Open a transaction on *db*, which is the database *path*.

    Raises:
        StoreError: it cannot be used.
        DamagedError: it is damaged; *if_damaged* is the fix.
        ReplacedError: it is another file now.

    """
    try:
        with db:  # commits, but does not close
            # Lock now, or what we read could change before we act on it.
            db.execute("begin immediate" if write else "begin")
            yield
    except sqlite3.OperationalError as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_READONLY_DBMOVED:
            raise ReplacedError(f"{path} was replaced by another process: try again") from exc
        if "readonly" in str(exc):
            raise StoreError(
                f"{path} cannot be written: run as its owner, and see that the disk is writable"
            ) from exc
        if "full" in str(exc):
            raise StoreError(f"{path} cannot be written: the disk is full, see df {path}") from exc
        # Python's own errors have no code. These are about the disk, the memory or others.
        if getattr(exc, "sqlite_errorcode", -1) & 0xFF in TRANSIENT_ERRORS:
            raise StoreError(
                f"{path}: {exc}; if another hpcverify is running, wait for it; "
                f"else see who holds it with: fuser {path}"
            ) from exc
        raise DamagedError(f"{path} is damaged ({exc}): {if_damaged}") from exc
    except sqlite3.ProgrammingError:  # a bug of ours
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError, msgspec.DecodeError) as exc:
        raise DamagedError(f"{path} is damaged ({exc}): {if_damaged}") from exc


def create_tables(db: sqlite3.Connection, path: Path, script: str, version: int) -> None:
    """
    Create the tables of *script*, which have *version*, unless they exist.

    Raises:
        StoreError: they have a later version.
        OutdatedError: they have an earlier one.

    """
    at = read_version(db)
    if at > version:
        raise StoreError(
            f"{path} has version {at}, but this hpcverify knows {version}: "
            "upgrade hpcverify, or set HPCVERIFY_STATE"
        )
    if 0 < at < version:
        raise OutdatedError(f"{path} has version {at}, which this hpcverify does not read")
    if at == 0:
        # One by one: `executescript` would commit the open transaction.
        for statement in filter(str.strip, script.split(";\n")):
            db.execute(statement)
        db.execute(f"pragma user_version = {version}")


def read_version(db: sqlite3.Connection) -> int:
    """Read the version of the tables."""
    version: int = db.execute("pragma user_version").fetchone()[0]
    return version


def count_free_bytes(db: sqlite3.Connection) -> int:
    """Count the unused bytes of the file, if they are most of it; else 0."""
    pages, free, size = (
        int(db.execute(f"pragma {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return free * size if 2 * free > pages else 0


def vacuum(path: Path) -> None:
    """Shrink the database *path* to the room it needs, if that is possible now."""
    with (
        # It is in use, or the disk has no room for a copy: then another time.
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as db,
    ):
        db.execute("vacuum")
