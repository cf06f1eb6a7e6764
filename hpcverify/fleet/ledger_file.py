"""The file of the ledger: its connections, and how it is read and written."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from sqlite3 import Connection
from typing import Any, TypeVar

import msgspec

from hpcverify.records.sqlite import connect, transact, transaction

T = TypeVar("T")

IF_DAMAGED = "restore it from a backup; without it nothing is released automatically"
SET_FACT = "insert or replace into facts values (?, ?)"


class LedgerFile:
    """The SQLite file *path*, in the time of *clock*."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self.path = path
        self.clock = clock
        self.host = gethostname()
        self._reader: Connection | None = None

    @contextmanager
    def keep_open(self) -> Generator[None]:
        """Read over one connection meanwhile: to open it takes longer than most questions."""
        with connect(self.path) as reader:
            self._reader = reader
            try:
                yield
            finally:
                self._reader = None

    def read_fact(self, name: str) -> str:
        """Read the fact *name*; empty if it was never set."""
        rows = self._select("select value from facts where name = ?", name)
        return str(rows[0][0]) if rows else ""

    def _select(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._open_database() as db:
            return db.execute(query, values).fetchall()

    def _select_records(self, kind: type[T], query: str, *values: Any) -> list[T]:
        """Decode the only column of *query*; what cannot be decoded is damage of the ledger."""
        with self._open_database() as db:
            rows = db.execute(query, values).fetchall()
            return [msgspec.json.decode(record, type=kind) for (record,) in rows]

    def _execute(self, statement: str, *values: Any) -> None:
        with self._open_database(write=True) as db:
            db.execute(statement, values)

    @contextmanager
    def _open_database(self, *, write: bool = False) -> Generator[Connection]:
        if self._reader is None or write:
            with transaction(self.path, if_damaged=IF_DAMAGED, write=write) as db:
                yield db
        else:
            with transact(self._reader, self.path, if_damaged=IF_DAMAGED):
                yield self._reader
