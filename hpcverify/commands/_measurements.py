"""Measurements to compare: a table that some tool wrote, or the history of the fleet."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from hpcverify.errors import ConfigError
from hpcverify.history.reader import Choice
from hpcverify.history.screen import PeerMetric, open_screen
from hpcverify.peers.floors import PeerFloor, find_floor, find_worse_side
from hpcverify.peers.values import NODE_PART, MetricName, PartValue
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
    except ModuleNotFoundError as exc:
        raise ConfigError(f"Parquet needs duckdb: {write_install_command('duckdb')}") from exc
    if not path.is_file():
        raise ConfigError(f"{path} cannot be read: no such file")
    try:
        with duckdb.connect() as db:
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


def read_history(
    state: Path, choice: Choice, of_site: Sequence[PeerFloor]
) -> tuple[dict[MetricName, list[PartValue]], int]:
    """
    Read from the history of the fleet the metrics that have to be judged in full.

    With them comes the number of those that need not be: in them, nothing is far.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there is no history, or a file is damaged.

    """

    def find_line(metric: PeerMetric) -> PeerFloor:
        return find_floor(metric.check, metric.metric, of_site)

    with open_screen(state, choice) as screen:
        metrics = [
            metric
            for metric in screen.list_metrics()
            if find_worse_side(find_line(metric), metric.unit) is not None
        ]
        far = {
            one.of
            for one in screen.screen(lambda metric: find_line(metric).floor)
            if one.needs_judgement
        }
        judged = [metric for metric in metrics if metric in far]
        fleet = {
            name_metric(metric): [
                PartValue(
                    node=one.node,
                    part=one.label if one.label and one.part != NODE_PART else NODE_PART,
                    value=one.value,
                    runs=one.runs,
                    spread=None,
                    groups={},
                    sensors={},
                )
                for one in screen.read_values(metric)
            ]
            for metric in judged
        }
    return fleet, len(metrics) - len(judged)


def name_metric(metric: PeerMetric) -> MetricName:
    """Name a metric of the history: values of one suite and of one kind of part are alike."""
    mode = ", ".join(filter(None, [metric.suite, metric.model]))
    return MetricName(metric.metric, metric.check, mode, metric.unit)
