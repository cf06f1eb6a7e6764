"""Measurements to compare: a table that some tool wrote."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hpcverify.errors import ConfigError
from hpcverify.processes import write_install_command

PARQUET = ".parquet"
ROWS_AT_ONCE = 10_000
OTHER_DELIMITERS = frozenset(";\t|")


class Table:
    """A table that is read once: its *header*, and then its *rows*."""

    def __init__(self, header: Sequence[str], rows: Iterator[Sequence[object]]) -> None:
        """Keep both."""
        self.header, self.rows = list(header), rows


@contextmanager
def open_table(path: Path) -> Generator[Table]:
    """
    Open the table *path*; its name says what it is.

    Raises:
        ConfigError: it cannot be read, or is no table.

    """
    try:
        if path.suffix == PARQUET:
            with closing(_read_parquet(path)) as rows:
                yield Table([str(name) for name in next(rows)], rows)
            return
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(lines, None)
            if not header:
                raise ConfigError(f"{path} is empty: its first line must name the columns")
            if len(header) == 1 and OTHER_DELIMITERS.intersection(header[0]):
                raise ConfigError(f"{path} has no commas between its columns: {header[0][:40]!r}")
            yield Table([name.strip() for name in header], (line for line in lines if line))
    except gzip.BadGzipFile as exc:
        raise ConfigError(f"{path} is not compressed by gzip: {exc}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(
            f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}"
        ) from exc
    except (csv.Error, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is no CSV file in UTF-8: {exc}") from exc


def _read_parquet(path: Path) -> Generator[Sequence[object]]:
    """Yield the names of the columns of *path*, then its rows; times are seconds since 1970."""
    try:
        import duckdb

        from hpcverify.history.duck import NO_EXTENSIONS
    except ModuleNotFoundError as exc:
        raise ConfigError(f"Parquet needs duckdb: {write_install_command('duckdb')}") from exc
    if not path.is_file():
        raise ConfigError(f"{path} cannot be read: no such file")
    try:
        with duckdb.connect(config=NO_EXTENSIONS) as db:
            kinds = db.execute("describe from read_parquet(?)", [str(path)]).fetchall()
            quoted = [(name.replace('"', '""'), kind) for name, kind, *_ in kinds]
            wanted = ", ".join(
                f'epoch("{name}")' if kind.startswith("TIMESTAMP") else f'"{name}"'
                for name, kind in quoted
            )
            yield [name for name, *_ in kinds]
            answer = db.execute(f"select {wanted} from read_parquet(?)", [str(path)])  # noqa: S608 - names of its columns
            while rows := answer.fetchmany(ROWS_AT_ONCE):
                yield from rows
    except duckdb.Error as exc:
        raise ConfigError(f"{path} is no Parquet file: {' '.join(str(exc).split())}") from exc
