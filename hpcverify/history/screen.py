"""
What a night says of each metric, and the parts worth a look.

DuckDB takes the medians, check by check, so that a night of 10,000 nodes needs no more memory
than the values of one check. `hpcverify.peers.screen` says by them which metrics have to
be judged in full, and only of those are all values read. One part has one value, the median of
its runs; one node has the median of its parts, so that a node that is slow as a whole is seen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpcverify.errors import StoreError
from hpcverify.history.columns import MAX_CLOCK_ERROR, NODE_KIND
from hpcverify.history.database import explain_absence, has_database, open_to_read
from hpcverify.history.duck import quote
from hpcverify.history.reader import Choice
from hpcverify.model import LARGEST_VALUE
from hpcverify.peers.floors import Worse
from hpcverify.peers.screen import ListSummary, may_have_outlier
from hpcverify.peers.values import MetricName

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCREEN_MIB = 80
"""What DuckDB may take; the rest of a process that screens is Python and DuckDB itself."""
FETCHED_ROWS = 10_000
END_VALUES = 100
"""Chance takes some values of a large fleet beyond the reach. As long as there are fewer on
either side, they come with the medians, and the list is not read again."""
MAX_NODE_METRICS = 5000
"""Metrics of a node over all its suites; one of eight GPUs has about 300 in each."""
SOUND_VALUE = f"(value = 0 or abs(value) between {1 / LARGEST_VALUE!r} and {LARGEST_VALUE!r})"
"""In SQL: a number whose share of another one is a number too, and its square."""
PEER_KEY = "suite, check_name, metric, unit, kind, model"
"""What comparable values have in common: the suite sets the sizes, and the model what is usual."""


class PeerMetric(Struct, frozen=True, order=True):
    """What one metric is measured on: parts of the same kind, by the same suite."""

    suite: str
    check: str
    metric: str
    unit: str
    kind: str
    model: str

    @property
    def name(self) -> MetricName:
        """Its name: values of one suite and of one kind of part are comparable."""
        return MetricName(
            self.metric, self.check, ", ".join(filter(None, [self.suite, self.model])), self.unit
        )


class PartMedian(Struct, frozen=True):
    """What one part reached: the median of its *runs*. A whole node has no part and no label."""

    node: str
    part: str
    label: str
    value: float
    runs: int


class ScreenedList(Struct, frozen=True):
    """A list of a metric, of parts or of whole nodes, and its values that are *far*."""

    of: PeerMetric
    whole_nodes: bool
    summary: ListSummary
    far: tuple[PartMedian, ...]
    """Beyond the reach of the rule, if chance alone does not explain them; else empty."""
    may_be_split: bool
    beyond_floor: Mapping[Worse, Sequence[str]]
    """The whole nodes beyond the floor on either side, up to `END_VALUES`: a slow place or
    version may have several of them, and none need be far by itself."""

    @property
    def needs_judgement(self) -> bool:
        """Whether the list has to be judged in full: no other one has a part or node to name."""
        return bool(self.far) or self.may_be_split


class ListEnds(Struct, frozen=True):
    """The lowest and the highest values of a list and their nodes, up to `END_VALUES` of each."""

    lowest: list[float]
    highest: list[float]
    lowest_nodes: list[str]
    highest_nodes: list[str]

    def are_chance(self, summary: ListSummary, floor: float) -> bool:
        """Whether they have all values beyond the reach, and chance alone explains those."""
        reach = summary.find_reach(floor)
        below = [value for value in self.lowest if summary.centre - value >= reach]
        above = [value for value in self.highest if value - summary.centre >= reach]
        cut = END_VALUES in (len(below), len(above))
        return not cut and not may_have_outlier(summary, [*below, *above])

    def list_beyond(self, summary: ListSummary, floor: float) -> dict[Worse, list[str]]:
        """List the nodes beyond the *floor*, by the side on which they are."""
        least, centre = floor * abs(summary.centre), summary.centre
        below = zip(self.lowest, self.lowest_nodes, strict=True)
        above = zip(self.highest, self.highest_nodes, strict=True)
        return {
            "low": [node for value, node in below if centre - value >= least],
            "high": [node for value, node in above if value - centre >= least],
        }


class Screen:
    """The measurements of some nights, open to be asked."""

    def __init__(
        self,
        db: DuckDBPyConnection,
        source: str,
        *,
        newest: bool = False,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        """
        Open the rows *source*; if *newest*, each suite of a node in its last night alone.

        *kinds* gives nodes that differ by design: parts are of another model in each kind.
        """
        self._db = db
        if newest:
            db.execute(
                "create temp table newest as select node, suite, max(night) as night"
                f" from {source} group by node, suite"
            )
            source = f"(from {source} semi join newest using (node, suite, night))"
        if kinds:
            db.execute(
                f"create temp table kinds as select unnest([{_join(kinds)}]) as node,"
                f" unnest([{_join(kinds.values())}]) as node_kind"
            )
            source = (
                "(select * exclude (node_kind) replace"
                " (concat_ws(', ', nullif(model, ''), node_kind) as model)"
                f" from {source} left join kinds using (node))"
            )
        self.left_out: dict[str, int] = {}
        """Nodes that claim to have measured more than `MAX_NODE_METRICS`, and how many."""
        self.rows = f"(select * from {source} where {SOUND_VALUE})"
        """The rows with a number, in SQL, of all nodes but those."""

    def read_last_nights(self) -> dict[tuple[str, str], date]:
        """Read the last night of each suite on each node, of a screen of the newest."""
        rows = self.fetch("select node, suite, night from newest")
        return {(node, suite): night for node, suite, night in rows}

    def list_nodes(self) -> dict[str, set[tuple[str, str, str]]]:
        """List the nodes, each with the suites, kinds and models that its parts have values of."""
        nodes: defaultdict[str, set[tuple[str, str, str]]] = defaultdict(set)
        for node, *like in self.fetch(f"select distinct node, suite, kind, model from {self.rows}"):
            nodes[node].add(tuple(like))
        return nodes

    @cached_property
    def _ran_once(self) -> bool:
        again = (
            f"select 1 from {self.rows} group by node, suite"
            " having min(started) <> max(started) limit 1"
        )
        return self._db.execute(again).fetchone() is None

    @cached_property
    def metrics(self) -> tuple[PeerMetric, ...]:
        """What was measured, suite by suite and check by check."""
        return self.list_metrics("true")

    def list_metrics(self, condition: str) -> tuple[PeerMetric, ...]:
        """
        List what was measured in the rows of a *condition* of SQL.

        If that is more than a node can have, those with more are left out from now on: they
        would cost all memory.
        """
        rows = f"(select * from {self.rows} where {condition})"
        names = list(self.fetch(f"select distinct {PEER_KEY} from {rows} order by all"))
        many = (
            f"select node, count(*) from (select distinct node, {PEER_KEY} from {rows})"
            f" group by node having count(*) > {MAX_NODE_METRICS} order by node"
        )
        if len(names) > MAX_NODE_METRICS and (claims := dict(self.fetch(many))):
            self.left_out |= claims
            self.rows = f"(select * from {self.rows} where node not in ({_join(claims)}))"
            return self.list_metrics(condition)
        return tuple(PeerMetric(*row) for row in names)

    def screen(self, find_floor: Callable[[PeerMetric], float]) -> Iterator[ScreenedList]:
        """
        Screen each metric twice: over its parts, and over whole nodes if those have several.

        *find_floor* gives the least relative distance that is worth a word.
        """
        by_check: defaultdict[str, list[PeerMetric]] = defaultdict(list)
        for metric in self.metrics:
            by_check[metric.check].append(metric)
        for check, metrics in by_check.items():
            rows = f"(select * from {self.rows} where check_name = {quote(check)})"
            of_parts = [metric for metric in metrics if metric.kind != NODE_KIND]
            for whole_nodes, screened in ((False, metrics), (True, of_parts)):
                for metric, summary, ends in self._summarize(
                    rows, screened, whole_nodes=whole_nodes
                ):
                    floor = find_floor(metric)
                    yield self._screen_one(metric, summary, ends, floor, whole_nodes=whole_nodes)

    def _summarize(
        self, rows: str, metrics: Sequence[PeerMetric], *, whole_nodes: bool
    ) -> Iterator[tuple[PeerMetric, ListSummary, ListEnds]]:
        if not metrics:
            return
        key, by_key = shorten_key(metrics)
        values = self._write_medians(rows, key, whole_nodes=whole_nodes)
        fetched = self._db.execute(
            f"select {key}, count(*), median(value), mad(value),"
            f" min(value, {END_VALUES}), max(value, {END_VALUES}),"
            f" arg_min(node, value, {END_VALUES}), arg_max(node, value, {END_VALUES})"
            f" from ({values}) group by {key} order by {key}"
        ).fetchall()
        for *name, peers, centre, mad, lowest, highest, low_nodes, high_nodes in fetched:
            summary = ListSummary(peers, centre, mad, lowest[0], highest[0])
            ends = ListEnds(lowest, highest, low_nodes, high_nodes)
            yield by_key[tuple(name)], summary, ends

    def _screen_one(
        self,
        metric: PeerMetric,
        summary: ListSummary,
        ends: ListEnds,
        floor: float,
        *,
        whole_nodes: bool,
    ) -> ScreenedList:
        far: list[PartMedian] = []
        if summary.has_far(floor) and not ends.are_chance(summary, floor):
            values = self._write_medians(self.select(metric), "metric", whole_nodes=whole_nodes)
            beyond = f"abs(value - {summary.centre!r}) >= {summary.find_reach(floor)!r}"
            far = self._fetch_medians(f"select * from ({values}) where {beyond}")
        if not may_have_outlier(summary, [part.value for part in far]):
            far = []
        of_nodes = whole_nodes or metric.kind == NODE_KIND
        return ScreenedList(
            of=metric,
            whole_nodes=whole_nodes,
            summary=summary,
            far=tuple(far),
            may_be_split=summary.may_be_split(floor),
            beyond_floor=ends.list_beyond(summary, floor) if of_nodes and summary.centre else {},
        )

    def read_values(self, metric: PeerMetric, *, whole_nodes: bool = False) -> list[PartMedian]:
        """Read the value of each part, or of each node, by name."""
        return self._fetch_medians(
            self._write_medians(self.select(metric), "metric", whole_nodes=whole_nodes)
        )

    def count_by_night(self) -> dict[date, int]:
        """Count the values of each night, the oldest first."""
        query = f"select night, count(*) from {self.rows} group by night order by night"
        return dict(self.fetch(query))

    def _write_medians(self, rows: str, key: str, *, whole_nodes: bool) -> str:
        if whole_nodes:
            rows = f"(select * from {rows} where kind <> '{NODE_KIND}')"
        parts = f"select {key}, node, part, label, value, 1 as runs from {rows}"
        if not self._ran_once:
            parts = (
                f"select {key}, node, part, max(label) as label, median(value) as value,"
                f" count(*) as runs from {rows} group by {key}, node, part"
            )
        if not whole_nodes:
            return parts
        return (
            f"select {key}, node, '' as part, '' as label, median(value) as value,"
            f" max(runs) as runs from ({parts}) group by {key}, node"
        )

    def select(self, metric: PeerMetric) -> str:
        """Write the rows of *metric* in SQL."""
        keys = " and ".join(
            f"{name} = {quote(value)}"
            for name, value in zip(
                PEER_KEY.split(", "), msgspec.structs.astuple(metric), strict=True
            )
        )
        return f"(select * from {self.rows} where {keys})"

    def _fetch_medians(self, values: str) -> list[PartMedian]:
        columns = "node, part, label, value, runs"
        query = f"select {columns} from ({values}) order by node, part"
        return [PartMedian(*row) for row in self.fetch(query)]

    def fetch(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of *query*."""
        result = self._db.execute(query)
        while batch := result.fetchmany(FETCHED_ROWS):
            yield from batch

    def run(self, statement: str) -> None:
        """Run a *statement* that makes a table of its own."""
        self._db.execute(statement)


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def shorten_key(
    metrics: Sequence[PeerMetric],
) -> tuple[str, dict[tuple[str, ...], PeerMetric]]:
    """
    Choose the columns that tell *metrics* apart, and map what is in them to each metric.

    A fleet has few models and suites, and DuckDB takes half as long to group by one column.
    """
    names, rows = PEER_KEY.split(", "), [msgspec.structs.astuple(metric) for metric in metrics]
    apart = [i for i, seen in enumerate(zip(*rows, strict=True)) if len({*seen}) > 1] or [0]
    by_key = {
        tuple(row[i] for i in apart): metric for row, metric in zip(rows, metrics, strict=True)
    }
    return ", ".join(names[i] for i in apart), by_key


@contextmanager
def open_screen(
    state: Path,
    choice: Choice,
    *,
    newest: bool = False,
    kinds: Mapping[str, str] | None = None,
    memory_mib: int = SCREEN_MIB,
) -> Generator[Screen]:
    """
    Open the measurements of *choice* in the state directory *state*.

    If *newest*, only the last of these nights on which each node ran each suite counts for it.
    *kinds* gives nodes that differ by design. DuckDB may take *memory_mib*.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: there are none, or a file is damaged.

    """
    rows = choice.select_nights()
    with open_to_read(state, memory_mib) as db:
        if db.execute(f"select 1 from {rows} limit 1").fetchone() is None:
            raise StoreError(explain_absence(state))
        yield Screen(db, rows, newest=newest, kinds=kinds)


class MisdatedRun(Struct, frozen=True):
    """A run whose node has a wrong clock."""

    run: str
    node: str
    started: datetime
    """As the history has it: when it arrived."""
    error: float
    """How far the node's clock is ahead, in seconds."""


def read_misdated_runs(state: Path, choice: Choice) -> list[MisdatedRun]:
    """
    Read the runs of *choice* that a node with a wrong clock made: their ids have its own time.

    Raises:
        ConfigError: DuckDB is not installed.
        StoreError: a file is damaged.

    """
    if not has_database(state):
        return []
    runs = f"select distinct run, node, started from {choice.select_nights()}"
    error = "epoch(try_strptime(left(run, 15), '%Y%m%d-%H%M%S')) - epoch(started)"
    most = MAX_CLOCK_ERROR.total_seconds()
    with open_to_read(state) as db:
        rows = db.execute(
            f"select * from (select run, node, epoch(started), {error} as error from ({runs}))"
            f" where abs(error) > {most} order by all"
        ).fetchall()
    return [
        MisdatedRun(run, node, datetime.fromtimestamp(started, UTC), off)
        for run, node, started, off in rows
    ]
