"""
Read measurements in long form: one row for each run of each part, whatever tool wrote them.

Columns are found by their names, ours or those that other tools use (`ALIASES`), or are named by
whoever asks. A cell that says nothing (`EMPTY`) is no value; anything else that is not a number,
where a number is due, is an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from msgspec import Struct

from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.peers.foreign import find_foreign
from hpcverify.peers.values import NODE_PART, PLACES, SENSORS, MetricName, PartRuns
from hpcverify.units import parse_decimal

ALIASES: dict[str, tuple[str, ...]] = {
    "node": ("node", "host", "hostname"),
    "part": ("part", "gpu", "gpu_uuid", "uuid", "device"),
    "check": ("check", "check_name", "benchmark"),
    "metric": ("metric",),
    "mode": ("mode", "suite"),
    "model": ("model", "gpu_model", "gpu_name", "product"),
    "unit": ("unit",),
    "value": ("value", "seconds", "milliseconds", "ms", "microseconds"),
    "time": ("time", "started", "unix_time", "timestamp"),
    "limit": ("limit",),
    "clock": ("clock", "mhz", "clocks.sm", "clocks.current.sm"),
    "temperature": ("temperature", "celsius", "temperature.gpu"),
    "power": ("power", "watts", "power.draw"),
}
"""What we look for, and the names of its column in lower case, without a unit in brackets."""
UNIT_IN_HEADER = re.compile(r"\s*[\[(]([^\])]*)[\])]$")
"""As in nvidia-smi's "power.draw [W]"."""
OTHER_UNIT_SPELLINGS = {"temperature": ("C",)}
"""A cell may have the unit of a sensor behind its number."""
VERSIONS = ("driver", "firmware", "batch")
"""Columns that say what a part is or runs."""
NOT_SAID = frozenset({"", "nan", "none", "null", "unknown", "n/a", "[n/a]", "[not supported]"})
"""In lower case: what tools, as nvidia-smi, write for what they do not have."""
EMPTY = NOT_SAID | {"-1"}
NOT_A_NUMBER = NOT_SAID | {"inf", "-inf"}

Row = Mapping[str, object]
CollectedRuns = dict[MetricName, dict[tuple[str, str], PartRuns]]
"""The runs of each part, by its node and its name, in each metric."""


class Columns(Struct, frozen=True):
    """Which column holds what."""

    roles: dict[str, str]
    """The column of each of `ALIASES` that there is."""
    groups: tuple[str, ...]
    """Columns whose values are compared as groups."""
    others: tuple[str, ...] = ()
    """Columns of a table without values of its own: those with numbers are a metric each."""


def choose_columns(
    header: Sequence[str], named: Mapping[str, str], groups: Sequence[str]
) -> Columns:
    """Choose the columns of a table; those that are *named* come first."""
    for role in named:
        if role not in ALIASES:
            raise UnknownNameError("role of a column", role, ALIASES)
    for column in (*named.values(), *groups):
        if column not in header:
            raise UnknownNameError("column", column, header)
    plain = {split_unit(column)[0].lower(): column for column in reversed(header)}
    taken = {*named.values(), *groups}
    roles = {
        role: next((plain[a] for a in aliases if plain.get(a, "") not in {"", *taken}), "")
        for role, aliases in ALIASES.items()
    }
    roles = {role: column for role, column in {**roles, **named}.items() if column}
    if not {"node", "part"} & roles.keys():
        raise ConfigError("no column has the node or the part. Fix: --columns node=COLUMN")
    usual = tuple(plain[name] for name in (*PLACES, *VERSIONS) if name in plain)
    chosen = tuple(groups) or usual
    others = tuple(c for c in header if c not in {*roles.values(), *chosen, *usual})
    if "value" not in roles and ("metric" in roles or not others):
        raise ConfigError("no column has the values. Fix: --columns value=COLUMN")
    return Columns(roles, chosen, () if "value" in roles else others)


def split_unit(column: str) -> tuple[str, str]:
    """Split the name of a column and the unit that it has in brackets."""
    match = UNIT_IN_HEADER.search(column)
    return (column[: match.start()], match[1]) if match else (column, "")


def collect_runs(rows: Iterable[Row], columns: Columns) -> CollectedRuns:
    """Collect the runs of each part by metric."""
    collected: CollectedRuns = {}
    for number, row in enumerate(rows, 1):
        cells = {role: row[column] for role, column in columns.roles.items()}
        groups = {g: text for g in columns.groups if (text := _read_text(row[g]))}
        node, part = _name_part(cells, groups)
        value_column = columns.roles["value"]
        name = MetricName(
            _read_text(cells.get("metric")) or value_column,
            _read_text(cells.get("check")),
            ", ".join(filter(None, (_read_text(cells.get(role)) for role in ("mode", "model")))),
            _read_text(cells.get("unit")) or find_unit(value_column),
        )
        parts = collected.setdefault(name, {})
        runs = parts.setdefault((node, part), PartRuns(node, part, {}))
        runs.groups |= groups
        for column in set(columns.groups) - set(PLACES):
            runs.marks.setdefault(column, []).append(groups.get(column, ""))
        runs.values.append(_read_number(cells["value"], number, "value"))
        runs.times.append(_read_time(cells.get("time"), number))
        for sensor in SENSORS:
            read = _read_number(cells.get(sensor), number, sensor)
            runs.sensors.setdefault(sensor, []).append(read)
        if math.isfinite(limit := _read_number(cells.get("limit"), number, "limit")):
            runs.limit = limit
    return {name: _find_lost_nodes(parts) for name, parts in collected.items()}


def find_unit(column: str) -> str:
    """Find the unit of a column that has it in brackets, or for a name."""
    name, unit = split_unit(column)
    known = find_foreign(name)
    return unit or (known.unit if known else "")


def _name_part(cells: Row, groups: Mapping[str, str]) -> tuple[str, str]:
    """Name the node and the part of a row; a node that is a number is one of its place."""
    node, part = _read_text(cells.get("node")), _read_text(cells.get("part"))
    if node.isdecimal():
        node = "-".join([*(groups[place] for place in PLACES if place in groups), node])
    return node, part or NODE_PART


def _find_lost_nodes(
    parts: dict[tuple[str, str], PartRuns],
) -> dict[tuple[str, str], PartRuns]:
    """Give runs without a node to the same part on the only node that it is known on."""
    known: dict[str, list[str]] = {}
    for node, part in parts:
        if node:
            known.setdefault(part, []).append(node)
    runs_by_part: dict[tuple[str, str], PartRuns] = {}
    for (node, part), runs in sorted(parts.items(), reverse=True):
        home = known[part][0] if not node and len(known.get(part, ())) == 1 else node
        if (merged := runs_by_part.get((home, part))) is None:
            runs_by_part[home, part] = runs
        else:
            merged.values += runs.values
            merged.times += runs.times
            merged.groups = runs.groups | merged.groups
            for sensor, read in runs.sensors.items():
                merged.sensors.setdefault(sensor, []).extend(read)
            for field, seen in runs.marks.items():
                merged.marks.setdefault(field, []).extend(seen)
    return runs_by_part


def _read_text(cell: object) -> str:
    text = "" if cell is None else str(cell).strip()
    return "" if text.lower() in EMPTY else text


def _read_number(cell: object, row: int, what: str) -> float:
    if isinstance(cell, (int, float)):
        return float(cell)
    text = "" if cell is None else str(cell).strip()
    if text.lower() in NOT_A_NUMBER:
        return math.nan
    for unit in (SENSORS.get(what, ""), *OTHER_UNIT_SPELLINGS.get(what, ())):
        text = text.removesuffix(f" {unit}")
    try:
        return parse_decimal(text)
    except ValueError as exc:
        raise ConfigError(f"row {row}: the {what} {exc}") from None


def _read_time(cell: object, row: int) -> float:
    """Read seconds since 1970, or an ISO date, which is of UTC if it names no zone."""
    text = "" if cell is None else str(cell).strip()
    if not text.isdecimal():  # 20261122 is a date to Python, and here seconds
        with suppress(ValueError):
            when = datetime.fromisoformat(text)
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    seconds = _read_number(cell, row, "time")
    return seconds if seconds > 0 else math.nan
