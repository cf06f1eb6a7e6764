"""
Tables of measurements: a row for each metric and a column for each part, or, if there
are many parts, the other way round.

The eight GPUs of a node can be compared at a glance, in numbers and on a small axis with
the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from hpcverify.check import LimitIndex
from hpcverify.insight.node_names import make_natural_key
from hpcverify.model import Inventory, Limit, Measurement, Result, Verdict
from hpcverify.summary.faults import get_subject, index_faults
from hpcverify.summary.figures import format_bounds
from hpcverify.summary.part_names import name_parts
from hpcverify_reports.labels import ICONS, Icon, choose_shown_unit, format_number, format_unit
from hpcverify_reports.svg import Strip, draw_strip, is_drawable

MAX_PART_COLUMNS = 10
"""Parts that still fit in one row of a page."""
MAX_PARTS_WITH_UNIT = 4
"""Parts that leave room for the unit beside the metric."""
MIN_FOLDED_ZEROS = 3
"""From this many all-zero rows on, they are folded into one list."""
MAX_CELLS_PER_VALUE = 32
"""Cells of a table for each value in it: with more, the table is split. Of 16 GPUs that have each a
metric of its own, such as one per peer, all fit into one."""

Cell = tuple[tuple[str, Icon | None], ...]
"""The values of one metric on one part; those outside a limit have an icon."""


LimitRange = tuple[str, str, str, str]
"""A range, its parts unless all, the verdict outside it, and its source."""
Scale = tuple[str, float]
"""A unit, and what to multiply by."""


@dataclass(frozen=True, slots=True)
class TableValue:
    """A measurement, its limits and its verdict, in the unit of all values of its metric."""

    item: Measurement
    limits: tuple[Limit, ...]
    verdict: Verdict | None
    """The worst; None without a limit."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: a cell for each part, all values on one axis, and the limits."""

    name: str
    unit: str
    cells: tuple[Cell, ...]
    strip: Strip | None
    limits: tuple[LimitRange, ...]
    all_zero: bool
    """Whether every value is 0 and within its limits."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What was measured on one kind of part."""

    parts: tuple[str, ...]
    all_parts: str
    """The same in few words."""
    rows: tuple[MetricRow, ...]
    zero_rows: tuple[MetricRow, ...]
    """The metrics that are 0 on all parts, if they are many."""
    style: str
    """The CSS class of its table: many parts are rows, few leave room for a unit."""


def choose_units(result: Result) -> dict[tuple[str, str], Scale]:
    """
    Choose one unit for all values of a metric, by its name and unit.

    A check stores GFLOP/s where people read TFLOP/s.
    """
    values: dict[tuple[str, str], list[float | None]] = {}
    for item in result.measurements:
        values.setdefault((item.name, item.unit), []).append(item.value)
    return {key: choose_shown_unit(some, key[1]) for key, some in values.items()}


def list_values(result: Result, units: Mapping[tuple[str, str], Scale]) -> list[TableValue]:
    """List the measurements of *result* with their limits, in *units*."""
    index, faults, values = LimitIndex(result.limits), index_faults(result), list[TableValue]()
    for item in result.measurements:
        unit, factor = units.get((item.name, item.unit), (item.unit, 1.0))
        limits = tuple(scale_limit(limit, factor) for limit in index.find(item))
        fault = faults.get(get_subject(item))
        passed = Verdict.PASS if limits else None
        scaled = replace(item, value=scale(item.value, factor), unit=unit)
        values.append(TableValue(scaled, limits, fault.verdict if fault else passed))
    return values


def scale_limit(limit: Limit, factor: float) -> Limit:
    """Multiply the bounds of *limit* by *factor*."""
    return replace(limit, low=scale(limit.low, factor), high=scale(limit.high, factor))


def scale(value: float | None, factor: float) -> float | None:
    """Multiply *value* by *factor*."""
    return value if value is None or factor == 1 else value * factor


def format_range(limit: Limit) -> str:
    """Print the range that *limit* admits."""
    return format_bounds(limit, format_number) or "any number"


def build_grids(everything: Sequence[TableValue], inventory: Inventory) -> tuple[Grid, ...]:
    """Make a table for each kind of part, in the order in which they were measured."""
    kinds = {part.id: part.kind for part in inventory.parts}
    by_kind: dict[str, list[TableValue]] = {}
    for one in everything:
        part_id = one.item.part_id
        # A core such as "cpu3" is in no inventory; its number is not its kind.
        by_kind.setdefault(kinds.get(part_id, part_id.rstrip("0123456789")), []).append(one)
    split = chain(*map(_split_sparse, by_kind.values()))
    return tuple(_build_grid(some, inventory) for some in split)


def _split_sparse(some: Sequence[TableValue]) -> Iterable[Sequence[TableValue]]:
    """Split what would be a table of mostly empty cells by the parts that have a metric."""
    parts: dict[str, set[str]] = {}
    for one in some:
        parts.setdefault(one.item.name, set()).add(one.item.part_id)
    if len(parts) * len(set().union(*parts.values())) <= MAX_CELLS_PER_VALUE * len(some):
        return [some]
    shared = {name: frozenset(ids) for name, ids in parts.items()}
    tables: dict[frozenset[str], list[TableValue]] = {}
    for one in some:
        tables.setdefault(shared[one.item.name], []).append(one)
    return tables.values()


def _build_grid(some: Sequence[TableValue], inventory: Inventory) -> Grid:
    labels = {one.item.part_id: inventory.find_label(one.item.part_id) for one in some}
    parts = sorted(labels, key=lambda part_id: make_natural_key(labels[part_id]))
    metrics: dict[tuple[str, str], list[TableValue]] = {}
    for one in some:
        metrics.setdefault((one.item.name, one.item.unit), []).append(one)
    # Metrics outside a limit come first; the rest keep the check's own order.
    ordered = sorted(
        metrics.values(),
        key=lambda metric: max(one.verdict or Verdict.PASS for one in metric),
        reverse=True,
    )
    rows = [_build_row(metric, parts, inventory) for metric in ordered]
    is_tall = len(parts) > MAX_PART_COLUMNS
    zeros = [row for row in rows if row.all_zero]
    folded = zeros if len(zeros) >= MIN_FOLDED_ZEROS and not is_tall else []
    return Grid(
        parts=tuple(labels[part_id] for part_id in parts),
        all_parts=name_parts(parts, inventory),
        rows=tuple(row for row in rows if not (folded and row.all_zero)),
        zero_rows=tuple(folded),
        style="tall" if is_tall else "few" if len(parts) <= MAX_PARTS_WITH_UNIT else "",
    )


def _choose_icon(one: TableValue) -> Icon | None:
    return ICONS[one.verdict] if one.verdict and one.verdict > Verdict.PASS else None


def _build_row(
    metric: Sequence[TableValue], parts: Sequence[str], inventory: Inventory
) -> MetricRow:
    cells: dict[str, Cell] = dict.fromkeys(parts, ())
    for one in metric:
        cells[one.item.part_id] += ((format_number(one.item.value), _choose_icon(one)),)
    return MetricRow(
        name=metric[0].item.name,
        unit=format_unit(metric[0].item.unit),
        cells=tuple(cells.values()),
        strip=draw_metric_axis(metric),
        limits=tuple(_group_limits(metric, inventory)),
        all_zero=all(one.item.value == 0 and not _choose_icon(one) for one in metric),
    )


def draw_metric_axis(metric: Sequence[TableValue]) -> Strip | None:
    """
    Put the values of one *metric* on one axis, with its limits.

    Flags have none: an axis of 0 and 1 shows no more than the numbers do.
    """
    if {one.item.value for one in metric} <= {0, 1}:
        return None
    limits = {limit for one in metric for limit in one.limits}
    values = [
        (one.item.value, _choose_icon(one))
        for one in metric
        if one.item.value is not None and is_drawable(one.item.value)
    ]
    return draw_strip(
        metric[0].item.unit,
        values,
        sorted({limit.low for limit in limits if limit.low is not None}),
        sorted({limit.high for limit in limits if limit.high is not None}),
    )


def _group_limits(metric: Sequence[TableValue], inventory: Inventory) -> Iterator[LimitRange]:
    everyone = dict.fromkeys(one.item.part_id for one in metric)
    by_range: dict[tuple[str, str, str], dict[str, None]] = {}
    for one in metric:
        for limit in one.limits:
            noisy = f"too noisy to judge: {limit.noisy}" if limit.noisy else ""
            source = "; ".join(filter(None, (limit.source, noisy)))
            key = (format_range(limit), ICONS[limit.otherwise].word, source)
            by_range.setdefault(key, {})[one.item.part_id] = None
    for (text, word, source), parts in by_range.items():
        named = "" if parts == everyone else name_parts(parts, inventory)
        yield text, named, f"else {word}", source
