"""What a file with measurements is: CSV, Parquet, or what nccl-tests or SuperBench printed."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from msgspec import Struct

from hpcverify.errors import ConfigError
from hpcverify.history.duck import quote
from hpcverify.peers.foreign import HEADER, is_nccl_tests, read_nccl_tests, read_superbench

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

PARQUET = ".parquet"
OTHER_DELIMITERS = ";\t|"
SNIFFED_LINES = 200
"""The first lines of a text show which tool wrote it."""
MAX_LINE_CHARACTERS = 4 * 2**20
"""DuckDB takes 2 MiB of a line of CSV; a packed file may have gigabytes in one."""


class TableFile(Struct, frozen=True):
    """A file as DuckDB reads it: the names of its columns, and the table function of SQL."""

    header: tuple[str, ...]
    sql: str


def open_file(db: DuckDBPyConnection, path: Path, folder: Path) -> TableFile:
    """
    Find out what *path* is; what DuckDB cannot read is written to *folder* as CSV.

    Raises:
        ConfigError: it cannot be read, or is no table.

    """
    if path.suffix == PARQUET:
        return _open_parquet(db, path)
    with say_what_fails(path), open_text(path) as file:
        first = list(islice(read_lines(file), SNIFFED_LINES))
        file.seek(0)
        if is_nccl_tests(first):
            path = _write_csv(read_nccl_tests(read_lines(file)), folder)
        elif first and first[0].lstrip().startswith("{"):
            path = _write_csv(read_superbench(read_lines(file)), folder)
    return _open_csv(path)


def open_text(path: Path) -> IO[str]:
    """Open a text, which may be compressed."""
    opener = gzip.open if path.suffix == ".gz" else open
    return opener(path, "rt", encoding="utf-8-sig", newline="")


def read_lines(file: IO[str]) -> Iterator[str]:
    """
    Yield the lines of *file*.

    Raises:
        ConfigError: a line is longer than any of a table.

    """
    number = 1
    while line := file.readline(MAX_LINE_CHARACTERS + 1):
        if len(line) > MAX_LINE_CHARACTERS:
            raise ConfigError(
                f"line {number} has more than {MAX_LINE_CHARACTERS} characters: give a table with "
                "a row for each run of each part"
            )
        yield line
        number += 1


def _open_parquet(db: DuckDBPyConnection, path: Path) -> TableFile:
    """Read all as text; times are seconds since 1970."""
    if not path.is_file():
        raise ConfigError(f"{path} cannot be read: no such file")
    kinds = db.execute(f"describe from read_parquet({quote(path)})").fetchall()
    columns = ", ".join(
        f"epoch({name_column(name)})::varchar as {name_column(name)}"
        if kind.startswith("TIMESTAMP")
        else f"{name_column(name)}::varchar as {name_column(name)}"
        for name, kind, *_ in kinds
    )
    return TableFile(
        tuple(name for name, *_ in kinds), f"(select {columns} from read_parquet({quote(path)}))"
    )


def _open_csv(path: Path) -> TableFile:
    with say_what_fails(path), open_text(path) as file:
        line = next(read_lines(file), "")
        delimiter = _find_delimiter(line)
        header = next(csv.reader([line], delimiter=delimiter, strict=True), None)
    if not header:
        raise ConfigError(f"{path} is empty: its first line must name the columns")
    names = tuple(name.strip() for name in header)
    if len({name.lower() for name in names}) < len(names) or not all(names):
        raise ConfigError(
            f"{path}: each column needs a name of its own, in lower case too, but the header is "
            f"{line!r}"
        )
    columns = ", ".join(f"{quote(name)}: 'varchar'" for name in names)
    options = f"columns = {{{columns}}}, delim = {quote(delimiter)}, skip = 1, header = false"
    return TableFile(
        names,
        f"read_csv({quote(path)}, auto_detect = false, quote = '\"', escape = '\"', {options})",
    )


def _find_delimiter(header: str) -> str:
    return "," if "," in header else max(OTHER_DELIMITERS, key=header.count)


def explain_failure(path: Path) -> None:
    """
    Say what is wrong with a file that DuckDB refused, if it is a text.

    Raises:
        ConfigError: it is damaged, or a row has more or fewer cells than the header.

    """
    if path.suffix == PARQUET:
        return
    with say_what_fails(path), open_text(path) as file:
        line = next(read_lines(file), "")
        delimiter = _find_delimiter(line)
        file.seek(0)
        rows = csv.reader(read_lines(file), delimiter=delimiter, strict=True)
        header = next(rows, [])
        for number, row in enumerate(filter(None, rows), 1):
            if len(row) != len(header):
                raise ConfigError(
                    f"row {number} has {len(row)} cells, but the header {len(header)}"
                )


@contextmanager
def say_what_fails(path: Path) -> Generator[None]:
    """Name *path* in each error of the block that reads it, a `ConfigError`."""
    try:
        yield
    except ConfigError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    except gzip.BadGzipFile as exc:
        raise ConfigError(f"{path} is not compressed by gzip: {exc}") from exc
    except (csv.Error, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} is not a CSV file in UTF-8: {exc}") from exc
    except (OSError, EOFError, zlib.error) as exc:
        raise ConfigError(
            f"{path} cannot be read: {getattr(exc, 'strerror', None) or exc}"
        ) from exc


def _write_csv(rows: Iterator[tuple[object, ...]], folder: Path) -> Path:
    path = folder / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerows(rows)
    return path


def name_column(name: str) -> str:
    """Write the name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'
