"""
What a night says of each metric in five numbers, and the values of those worth a look.

The medians are taken in DuckDB, so that a night of 10,000 nodes is judged in little memory;
`hpcverify.peers` decides by these numbers which metrics have to be judged in full, and only
their values are read. One part has one value: the median of its runs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpcverify.history.duck import open_duckdb, quote, read_parquet, refuse_newer
from hpcverify.history.files import MEASUREMENTS_FOLDER
from hpcverify.history.reader import Choice
from hpcverify.history.trend import PartTrend, write_trend_query

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCREEN_MIB = 64
"""What DuckDB may take: the medians of two million values need a third of it."""
FETCHED_ROWS = 10_000
PEER_KEY = "suite, check_name, metric, unit, kind, model"
"""What like values have in common: the suite sets the sizes, and the model what is usual."""


class PeerMetric(Struct, frozen=True):
    """What one metric is measured on: like parts, by the same suite."""

    suite: str
    check: str
    metric: str
    unit: str
    kind: str
    model: str


class MetricSummary(Struct, frozen=True):
    """How one metric lies over its like parts."""

    of: PeerMetric
    parts: int
    centre: float
    """The median."""
    mad: float
    """The median absolute deviation from it, unscaled."""
    low: float
    high: float


class PartValue(Struct, frozen=True):
    """What one part reached: the median of its *runs*."""

    node: str
    part: str
    label: str
    value: float
    runs: int


class Screen:
    """The measurements of some nights, open to be asked."""

    def __init__(self, db: DuckDBPyConnection, paths: Sequence[Path]) -> None:
        """Of the files *paths*."""
        self._db = db
        self._rows = f"(select * from {read_parquet(paths)} where value is not null)"
        self._values = self._rows if self._is_single() else _reduce_to_medians(self._rows)

    def _is_single(self) -> bool:
        """Whether each node ran each suite once, as in most nights: its values are medians."""
        again = (
            f"select 1 from {self._rows} group by node, suite"
            " having min(started) <> max(started) limit 1"
        )
        return self._db.execute(again).fetchone() is None

    def summarize(self) -> list[MetricSummary]:
        """Summarize each metric, by the check that measured it."""
        rows = self._db.execute(
            f"select {PEER_KEY}, count(*), median(value), mad(value), min(value), max(value)"
            f" from {self._values} group by {PEER_KEY} order by {PEER_KEY}"
        ).fetchall()
        return [MetricSummary(PeerMetric(*row[:6]), *row[6:]) for row in rows]

    def read_values(self, metric: PeerMetric) -> list[PartValue]:
        """Read the value of each part, by node and part."""
        query = f"{_reduce_runs(self._select(metric))} order by node, part"
        return [PartValue(**row) for row in self._fetch(query)]

    def read_trends(self, metric: PeerMetric, least: float) -> list[PartTrend]:
        """Read how the parts have moved that did so by at least the share *least*."""
        query = write_trend_query(self._select(metric), least)
        return [PartTrend(**row) for row in self._fetch(query)]

    def _select(self, metric: PeerMetric) -> str:
        wanted = (metric.suite, metric.check, metric.metric, metric.unit, metric.kind, metric.model)
        keys = " and ".join(
            f"{name} = {quote(value)}"
            for name, value in zip(PEER_KEY.split(", "), wanted, strict=True)
        )
        return f"(select * from {self._rows} where {keys})"

    def _fetch(self, query: str) -> Iterator[dict[str, Any]]:
        """Fetch the rows of *query*, each by the names of its columns."""
        found = self._db.execute(query)
        names = [column[0] for column in found.description or ()]
        while some := found.fetchmany(FETCHED_ROWS):
            yield from (dict(zip(names, row, strict=True)) for row in some)


@contextmanager
def open_screen(state: Path, choice: Choice) -> Generator[Screen]:
    """
    Open the measurements of *choice* in the state directory *state*.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there are none, or a file is damaged.

    """
    paths = choice.require_paths(state)
    with open_duckdb(state / MEASUREMENTS_FOLDER, memory_mib=SCREEN_MIB) as db:
        refuse_newer(db, paths)
        yield Screen(db, paths)


def _reduce_runs(rows: str) -> str:
    """Write the query of SQL for one value of each part: the median of its runs."""
    return (
        "select node, part, max(label) as label, median(value) as value, count(*) as runs"
        f" from {rows} group by node, part"
    )


def _reduce_to_medians(rows: str) -> str:
    """Do so for all metrics."""
    return (
        f"(select {PEER_KEY}, median(value) as value from {rows} group by {PEER_KEY}, node, part)"
    )
