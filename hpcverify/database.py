"""SQLite, by hand: a transaction, and mishaps that name the file and the fix."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from hpcverify.errors import StoreError

BUSY_SECONDS = 5.0


@contextmanager
def transaction(
    path: Path, *, if_damaged: str, write: bool = False
) -> Generator[sqlite3.Connection]:
    """
    Open a transaction on the database *path*.

    Raises:
        StoreError: it cannot be used; *if_damaged* says what to do about a damaged one.

    """
    try:
        db = sqlite3.connect(path, timeout=BUSY_SECONDS)
    except sqlite3.Error as exc:
        raise StoreError(f"{path} cannot be opened: {exc}") from exc
    try:
        with db:  # commits, but does not close
            # At once, or what is read could change before it is acted on.
            db.execute("begin immediate" if write else "begin")
            yield db
    except sqlite3.OperationalError as exc:
        if "readonly" in str(exc):
            raise StoreError(
                f"{path} cannot be written: be its owner, if the disk can be written"
            ) from exc
        if "full" in str(exc):
            raise StoreError(
                f"{path} cannot be written: the disk is full, see df {path}"
            ) from exc
        raise StoreError(
            f"{path}: {exc}; if another hpcverify is at work wait for it, "
            f"else see who holds it with: fuser {path}"
        ) from exc
    except sqlite3.DatabaseError as exc:
        raise StoreError(f"{path} is damaged ({exc}): {if_damaged}") from exc
    finally:
        db.close()


def migrate(db: sqlite3.Connection, path: Path, migrations: tuple[str, ...]) -> None:
    """
    Bring the tables of *path* to the version that *migrations* lead to.

    Raises:
        StoreError: they are of a later one.

    """
    at = version(db)
    if at > len(migrations):
        raise StoreError(
            f"{path} is of version {at}, this hpcverify knows {len(migrations)}: "
            "upgrade hpcverify, or set HPCVERIFY_STATE"
        )
    for statement in migrations[at:]:
        # One by one: `executescript` would commit what was begun.
        for part in filter(str.strip, statement.split(";\n")):
            db.execute(part)
    db.execute(f"pragma user_version = {len(migrations)}")


def version(db: sqlite3.Connection) -> int:
    """Say which version the tables are of."""
    found: int = db.execute("pragma user_version").fetchone()[0]
    return found
