"""
A table of any tool, screened by the same queries as the history.

DuckDB reads the file once, names its columns as the history does, and keeps that in a folder that
goes again. Only metrics in which something is far, or that a few numbers cannot judge, are read
row by row.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpcverify.errors import ConfigError, StoreError
from hpcverify.history.columns import NODE, NODE_KIND
from hpcverify.history.duck import open_duckdb, quote
from hpcverify.history.screen import PEER_KEY, PeerMetric, Screen, ScreenedList
from hpcverify.history.table_files import explain_failure, name_column, open_file, say_what_fails
from hpcverify.history.values import MIN_NODES_BEYOND
from hpcverify.peers.floors import FindFloor
from hpcverify.peers.rule import MIN_COMPARED
from hpcverify.peers.screen import ListSummary
from hpcverify.peers.table import (
    EMPTY,
    NOT_A_NUMBER,
    CollectedRuns,
    Columns,
    choose_columns,
    collect_runs,
    find_unit,
    split_unit,
)
from hpcverify.peers.values import PLACES, SENSORS, MetricName
from hpcverify.units import (
    DECIMAL_COMMA_PATTERN,
    EITHER_PATTERN,
    GROUPED_PATTERN,
    UNIT_FACTORS,
    parse_decimal,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

TABLE_MIB = 256
"""What DuckDB may take for a table; beyond it, it sorts on the disk."""
LARGEST = 1e30
"""What is larger is no measurement, and sums of such values overflow."""
PAST_RUNS = 8
"""A part with fewer runs has no past to judge."""
PART_KIND = "part"
RAW = ("time", "limit", *SENSORS)
"""What is kept as it is written, for the metrics that are read row by row."""
METRIC, VALUE, UNIT = "metric of a column", "value of a column", "unit of a column"
"""What is made of the columns of a wide table."""
DOTTED_PATTERN = r"[+-]?[1-9]\d{0,2}\.\d{3}"
"""A thousand and more, where other cells have decimal commas."""
ROW = "number of a row"
"""Which row it is, by a name that no table has: "row" may be a place."""


class TableMetric(Struct, frozen=True):
    """A metric of a table: what was screened of it, and whether that is enough to judge it."""

    keys: tuple[PeerMetric, ...]
    summary: ListSummary
    """The summary over its parts."""
    nodes: int
    is_plain: bool
    """Whether nobody in it can be named."""


class TableScreen:
    """A table that is open, to be asked for its metrics and their runs."""

    def __init__(
        self, db: DuckDBPyConnection, path: Path, columns: Columns, kinds: Mapping[str, str]
    ) -> None:
        """Screen the rows in *path*, as `_write_rows` wrote them; *kinds* as in `Screen`."""
        self._screen, self._columns = (
            Screen(db, f"read_parquet({quote(path)})", kinds=kinds),
            columns,
        )
        rows = self._screen.rows
        every = f"count(*), count(distinct hash(node, part, {PEER_KEY}))"
        ((count, different),) = self._screen.fetch(f"select {every} from {rows}")
        began = "0" if count == different else "row"  # each row is a run
        self._screen.rows = f"(select *, {began} as started from {rows})"

    def screen(self, find_floor: FindFloor) -> dict[MetricName, TableMetric]:
        """Screen each metric."""
        in_full = self._has_lost_nodes()
        with_past = self._find_metrics_with_past()
        screened: defaultdict[MetricName, list[ScreenedList]] = defaultdict(list)
        for entry in self._screen.screen(lambda m: find_floor(m.check, m.metric).floor):
            screened[entry.of.name].append(entry)
        metrics = {}
        for name, lists in sorted(screened.items()):
            parts = [entry for entry in lists if not entry.whole_nodes]
            keys = tuple(entry.of for entry in parts)
            plain = len(parts) == 1 and not with_past & {*keys} and all(map(self._is_plain, lists))
            metrics[name] = TableMetric(
                keys=keys,
                summary=parts[0].summary,
                nodes=max(map(self._count_nodes, lists)),
                is_plain=plain and not in_full,
            )
        return metrics

    def _is_plain(self, entry: ScreenedList) -> bool:
        """Whether nobody in a list can be named, nor a place or a version that several share."""
        beyond = max(map(len, entry.beyond_floor.values()), default=0)
        may_be_group = bool(self._columns.groups) and beyond >= MIN_NODES_BEYOND
        few = entry.summary.peers < MIN_COMPARED and not entry.whole_nodes
        return not (entry.needs_judgement or may_be_group or few or entry.summary.centre == 0)

    def _count_nodes(self, entry: ScreenedList) -> int:
        of_nodes = entry.whole_nodes or entry.of.kind == NODE_KIND
        return entry.summary.peers if of_nodes and "node" in self._columns.roles else 0

    def _has_lost_nodes(self) -> bool:
        if "node" not in self._columns.roles:
            return False
        lost = f"{self._screen.rows} where node = '' and kind = '{PART_KIND}'"
        return any(True for _ in self._screen.fetch(f"select 1 from {lost} limit 1"))

    def _find_metrics_with_past(self) -> set[PeerMetric]:
        if "time" not in self._columns.roles:
            return set()
        counts = (
            f"select {PEER_KEY}, node, part, count(*) as runs from {self._screen.rows} group by all"
        )
        query = f"select distinct {PEER_KEY} from ({counts}) where runs >= {PAST_RUNS}"
        return {PeerMetric(*row) for row in self._screen.fetch(query)}

    def read_runs(self, metric: TableMetric) -> CollectedRuns:
        """Read the runs of each part in *metric*."""
        groups = self._columns.groups
        columns = {
            **{name: name for name in ("node", "part", "metric", "model", "unit", "value")},
            **{role: name_column(role) for role in RAW},
            "check": "check_name",
            "mode": "suite",
        }
        listed = [*columns.values(), *(_name_group(i) for i in range(len(groups)))]
        names = [*columns, *groups]
        rows = (
            dict(zip(names, row, strict=True))
            for key in metric.keys
            for row in self._screen.fetch(
                f"select {', '.join(listed)} from {self._screen.select(key)} order by row"
            )
        )
        return collect_runs(rows, Columns({role: role for role in columns}, groups))


@contextmanager
def open_table(
    path: Path, named: Mapping[str, str], groups: Sequence[str], kinds: Mapping[str, str]
) -> Generator[TableScreen]:
    """
    Open the table *path*, whose columns are those *named*, or have names that we know.

    *kinds* gives nodes that differ by design.

    Raises:
        ConfigError: DuckDB is not installed, or the file cannot be read or is no table.

    """
    with TemporaryDirectory(prefix="hpcverify-peers-") as folder:
        try:
            with open_duckdb(Path(folder), memory_mib=TABLE_MIB) as db:
                file = open_file(db, path, Path(folder))
                with say_what_fails(path):
                    columns = choose_columns(file.header, named, groups)
                    columns, source = _find_values(db, file.sql, columns)
                    rows = _write_rows(db, source, columns, Path(folder) / "rows.parquet")
                yield TableScreen(db, rows, columns, kinds)
        except StoreError as exc:
            explain_failure(path)
            why = " ".join(str(exc.__cause__ or exc).split())
            raise ConfigError(f"{path} cannot be read: {why}") from exc


def _find_values(db: DuckDBPyConnection, sql: str, columns: Columns) -> tuple[Columns, str]:
    rows = f"(select row_number() over () as {name_column(ROW)}, * from {sql})"
    if not columns.others:
        return columns, rows
    counts = ", ".join(
        f"2 * count({_look_for_number(name_column(c))}) > count({_read_text(name_column(c))})"
        for c in columns.others
    )
    flags = db.execute(f"select {counts} from {sql}").fetchone() or ()
    metrics = [c for c, is_metric in zip(columns.others, flags, strict=True) if is_metric]
    if not metrics:
        raise ConfigError("no column has the values; name it, as in --columns value=milliseconds")
    kept = dict.fromkeys([ROW, *columns.roles.values(), *columns.groups])
    plain = Counter([split_unit(c)[0].lower() for c in metrics] + [c.lower() for c in kept])
    names = {c: p if plain[(p := split_unit(c)[0]).lower()] == 1 else c for c in metrics}
    cases = " ".join(
        f"when {quote(names[c])} then {quote(unit)}" for c in metrics if (unit := find_unit(c))
    )
    unit = f"case {name_column(METRIC)} {cases} end" if cases else "null"
    renamed = [f"{name_column(c)} as {name_column(names[c])}" for c in metrics]
    listed = ", ".join([*map(name_column, kept), *renamed])
    source = (
        f"(select *, {unit} as {name_column(UNIT)} from (select {listed} from {rows})"
        f" unpivot include nulls ({name_column(VALUE)} for {name_column(METRIC)}"
        f" in ({', '.join(map(name_column, names.values()))})))"
    )
    roles = {**columns.roles, "metric": METRIC, "value": VALUE, "unit": UNIT}
    return Columns(roles, columns.groups), source


def _write_rows(db: DuckDBPyConnection, source: str, columns: Columns, path: Path) -> Path:
    """
    Write the rows of *source* to *path*, with the columns of the history and the raw ones.

    Raises:
        ConfigError: a value is not a number.

    """
    column = name_column(columns.roles["value"])
    text, number = f"trim({column})", _read_number(column)
    is_wrong = f"{number} is null and lower({text}) not in ({_list_words(NOT_A_NUMBER)})"
    plain = f"coalesce(nullif({_cut_unit(column)}, ''), {text})"
    named = columns.roles["value"]
    name = name_column(METRIC) if named == VALUE else quote(named)
    commas = f"select {name} from {source} where {_matches(plain, DECIMAL_COMMA_PATTERN)}"
    is_wrong += f" or ({_matches(plain, DOTTED_PATTERN)} and {name} in ({commas}))"
    wrong: tuple[Any, ...] | None = db.execute(
        f"select {name_column(ROW)}, {name}, {plain} from {source} where {is_wrong} "
        "order by 1 limit 1"
    ).fetchone()
    if wrong:
        raise ConfigError(f"row {wrong[0]}, column {wrong[1]}: {_explain_wrong(wrong[2])}")
    cells = _write_cells(columns)
    listed = ", ".join(f"{cell} as {name_column(name)}" for name, cell in cells.items())
    db.execute(f"copy (select {listed} from {source}) to {quote(path)} (format parquet)")
    return path


def _explain_wrong(text: str) -> str:
    try:
        parse_decimal(text)
    except ValueError as exc:
        return str(exc)
    why = "since other cells have decimal commas"
    return f"{text!r} may be a thousand and more, {why}: write all with a decimal point"


def _write_cells(columns: Columns) -> dict[str, str]:

    def read(role: str) -> str:
        return _read_text(name_column(columns.roles[role])) if role in columns.roles else "null"

    value = columns.roles["value"]
    number, node = _read_number(name_column(value)), read("node")
    places = [_read_text(name_column(c)) for c in columns.groups if c.lower() in PLACES]
    full_name = f"concat_ws('-', {', '.join([*places, node])})"
    unit = f"{read('unit')}, {_read_unit(name_column(value))}, {quote(find_unit(value))}"
    return {
        "row": name_column(ROW),
        "node": f"coalesce(if({node} similar to '[0-9]+', {full_name}, {node}), '')",
        "part": f"coalesce({read('part')}, '{NODE}')",
        "label": "''",
        "kind": f"if({read('part')} is null, '{NODE_KIND}', '{PART_KIND}')",
        "model": f"coalesce({read('model')}, '')",
        "suite": f"coalesce({read('mode')}, '')",
        "check_name": f"coalesce({read('check')}, '')",
        "metric": f"coalesce({read('metric')}, {quote(value)})",
        "unit": f"coalesce({unit})",
        "value": f"if(abs({number}) < {LARGEST}, {number}, null)",
        **{
            role: name_column(columns.roles[role]) if role in columns.roles else "null"
            for role in RAW
        },
        **{_name_group(i): name_column(column) for i, column in enumerate(columns.groups)},
    }


def _name_group(index: int) -> str:
    return f"group_{index}"


def _list_words(words: Collection[str]) -> str:
    return ", ".join(map(quote, sorted(words)))


def _read_text(column: str) -> str:
    return f"if(lower(trim({column})) in ({_list_words(EMPTY)}), null, trim({column}))"


def _read_number(column: str) -> str:
    """
    Write the number of a cell in SQL, which may have its unit behind it; null if it has none.

    As `parse_decimal`, it reads decimal commas and separators of thousands.
    """
    with_unit = _cut_unit(column)
    text = f"coalesce(nullif({with_unit}, ''), trim({column}))"
    plain = (
        f"case when {_matches(text, EITHER_PATTERN)} then null "
        f"when {_matches(text, DECIMAL_COMMA_PATTERN)} "
        f"then replace(replace({text}, '.', ''), ',', '.') "
        f"when {_matches(text, GROUPED_PATTERN)} "
        f"then if(contains({text}, ','), replace({text}, ',', ''), replace({text}, '.', '')) end"
    )
    texts = (f"trim({column})", with_unit, plain)
    return f"coalesce({', '.join(f'try_cast({text} as double)' for text in texts)})"


def _look_for_number(column: str) -> str:
    """Write in SQL what is not null if a cell is a number, or may be either of two."""
    text = f"coalesce(nullif({_cut_unit(column)}, ''), trim({column}))"
    return f"coalesce({_read_number(column)}, if({_matches(text, EITHER_PATTERN)}, 0, null))"


def _cut_unit(column: str) -> str:
    """Write in SQL what stands before the unit of a cell; empty if it has none."""
    units = "|".join(map(re.escape, sorted(filter(None, UNIT_FACTORS))))
    return f"regexp_extract(trim({column}), {quote(f'^([^ ]+) +({units})$')}, 1)"


def _matches(text: str, pattern: str) -> str:
    return f"regexp_full_match({text}, {quote(pattern)})"


def _read_unit(column: str) -> str:
    """Write the unit behind the number of a cell in SQL; null if there is none."""
    return f"nullif(regexp_extract(trim({column}), '^[^ ]+ +([^ ]+)$', 1), '')"
