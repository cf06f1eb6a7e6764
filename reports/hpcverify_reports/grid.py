"""
Tables of measurements: a metric a row, a part a column, or turned if many parts.

Like stands beside like: the eight GPUs of a node are compared at a glance, in
numbers and on one small axis with the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcverify.model import Inventory, Limit, Verdict
from hpcverify_reports.judged import JudgedMeasurement, format_range
from hpcverify_reports.parts import name_parts
from hpcverify_reports.svg import Strip, draw_strip, is_drawable
from hpcverify_reports.words import ICONS, Icon, format_number, format_unit

MAX_PART_COLUMNS = 10
"""Parts that still fit in one row of a page."""

MAX_PARTS_WITH_UNIT = 4
"""Parts that leave room for the unit beside the name of the metric."""

MAX_OPEN_LIMITS = 2
"""Limits on one metric that are shown unasked."""

MIN_FOLDED_ZEROS = 3
"""From so many rows of nothing but zeros on, they are folded into one list."""


@dataclass(frozen=True, slots=True)
class CellValue:
    """One value, with the sign of its verdict if it is outside a limit."""

    text: str
    icons: tuple[Icon, ...]
    style: str


@dataclass(frozen=True, slots=True)
class LimitRange:
    """One range, whose it is unless everyone's, what follows, and its source."""

    text: str
    parts: tuple[str, ...]
    otherwise: str
    source: str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: a cell of figures for each part, its axis, its limits."""

    name: str
    unit: str
    cells: tuple[tuple[CellValue, ...], ...]
    strips: tuple[Strip, ...]
    bounds: tuple[LimitRange, ...]
    folded: tuple[FoldedLimits, ...]
    all_zero: bool
    """Whether every value is 0, and within its limits."""


@dataclass(frozen=True, slots=True)
class FoldedLimits:
    """Limits too many to show at once, under a line that says how many."""

    summary: str
    bounds: tuple[LimitRange, ...]


@dataclass(frozen=True, slots=True)
class PartHead:
    """A part at the head of a column: *tag* is the tail of its id, if it has one."""

    name: str
    tag: str


@dataclass(frozen=True, slots=True)
class Grid:
    """What was measured on one kind of part."""

    kind: str
    style: str
    parts: tuple[str, ...]
    all_parts: str
    """All its parts in few words."""
    rows: tuple[MetricRow, ...]

    @property
    def is_tall(self) -> bool:
        """Whether a row for each part reads better than a column for each."""
        return len(self.parts) > MAX_PART_COLUMNS

    @property
    def heads(self) -> tuple[PartHead, ...]:
        """The parts as heads of columns."""
        split = (label.partition(" (") for label in self.parts)
        return tuple(PartHead(name, f"({tag}" if tag else "") for name, _, tag in split)

    @property
    def zero_rows(self) -> tuple[MetricRow, ...]:
        """The rows of nothing but zeros, if they are too many to show each."""
        zeros = tuple(row for row in self.rows if row.all_zero)
        return zeros if len(zeros) >= MIN_FOLDED_ZEROS else ()

    @property
    def other_rows(self) -> tuple[MetricRow, ...]:
        """The other rows."""
        folded = self.zero_rows
        return tuple(row for row in self.rows if row not in folded)

    @property
    def rows_by_part(self) -> tuple[tuple[str, tuple[tuple[CellValue, ...], ...]], ...]:
        """A part a row: its label, and a cell for each metric."""
        cells = zip(*(row.cells for row in self.rows), strict=True)
        return tuple(zip(self.parts, cells, strict=True))


def build_grids(everything: Sequence[JudgedMeasurement], inventory: Inventory) -> tuple[Grid, ...]:
    """Make a table for each kind of part, in the order in which they were measured."""
    kinds = {part.id: part.kind for part in inventory.parts}
    sorted_out: dict[str, list[JudgedMeasurement]] = {}
    for held in everything:
        where = held.item.where
        # A core, "cpu3", is in no inventory; its number is not its kind.
        kind = kinds.get(where, where.rstrip("0123456789"))
        sorted_out.setdefault(kind, []).append(held)
    return tuple(_build_grid(kind, some, inventory) for kind, some in sorted_out.items())


def _build_grid(kind: str, some: Sequence[JudgedMeasurement], inventory: Inventory) -> Grid:
    parts = list(dict.fromkeys(held.item.where for held in some))
    metrics: dict[tuple[str, str], list[JudgedMeasurement]] = {}
    for held in some:
        metrics.setdefault((held.item.name, held.item.unit), []).append(held)
    # What is outside a limit comes first; the rest keeps the check's own order.
    ordered = sorted(metrics.values(), key=_find_worst, reverse=True)
    return Grid(
        kind=kind,
        style="few" if len(parts) <= MAX_PARTS_WITH_UNIT else "",
        parts=tuple(map(inventory.find_label, parts)),
        all_parts=name_parts(parts, inventory),
        rows=tuple(_build_row(metric, parts, inventory) for metric in ordered),
    )


def _find_worst(metric: Sequence[JudgedMeasurement]) -> Verdict:
    return max(held.verdict or Verdict.PASS for held in metric)


def _build_row(
    metric: Sequence[JudgedMeasurement], parts: Sequence[str], inventory: Inventory
) -> MetricRow:
    by_part: dict[str, list[CellValue]] = {part: [] for part in parts}
    for held in metric:
        by_part[held.item.where].append(_build_cell_value(held))
    axis = draw_metric_axis(metric)
    bounds = tuple(_group_limits(metric, inventory))
    many = len(bounds) > MAX_OPEN_LIMITS
    return MetricRow(
        name=metric[0].item.name,
        unit=format_unit(metric[0].item.unit),
        cells=tuple(map(tuple, by_part.values())),
        strips=() if axis is None else (axis,),
        bounds=() if many else bounds,
        folded=(FoldedLimits(f"{len(bounds)} limits, by part", bounds),) if many else (),
        all_zero=all(held.item.value == 0 and not held.broken_limits for held in metric),
    )


def _build_cell_value(held: JudgedMeasurement) -> CellValue:
    marks = _choose_icons(held)
    style = " ".join(f"out v-{mark.key}" for mark in marks)
    return CellValue(format_number(held.item.value), marks, style)


def _choose_icons(held: JudgedMeasurement) -> tuple[Icon, ...]:
    verdict = held.verdict or Verdict.PASS
    return () if verdict is Verdict.PASS else (ICONS[verdict],)


def draw_metric_axis(metric: Sequence[JudgedMeasurement]) -> Strip | None:
    """
    Put the values of one *metric* on one axis, with the limits that hold.

    There is none for flags: of 0 and 1 an axis shows no more than the numbers do.
    """
    limits = {limit for held in metric for limit in held.limits}
    if {held.item.value for held in metric} <= {0, 1}:
        return None
    values = [
        (held.item.value, next(iter(_choose_icons(held)), None))
        for held in metric
        if held.item.value is not None and is_drawable(held.item.value)
    ]
    return draw_strip(
        metric[0].item.unit,
        values,
        sorted({limit.low for limit in limits if limit.low is not None}),
        sorted({limit.high for limit in limits if limit.high is not None}),
    )


def _group_limits(
    metric: Sequence[JudgedMeasurement], inventory: Inventory
) -> Iterable[LimitRange]:
    everyone = list(dict.fromkeys(held.item.where for held in metric))
    whose: dict[tuple[str, Verdict, str], dict[str, None]] = {}
    for held in metric:
        for limit in held.limits:
            key = (format_range(limit), limit.otherwise, _format_source(limit))
            whose.setdefault(key, {})[held.item.where] = None
    for (text, otherwise, source), parts in whose.items():
        labels = () if list(parts) == everyone else (name_parts(parts, inventory),)
        yield LimitRange(text, labels, f"else {ICONS[otherwise].word}", source)


def _format_source(limit: Limit) -> str:
    noisy = f"too noisy to judge: {limit.noisy}" if limit.noisy else ""
    return "; ".join(filter(None, (limit.source, noisy)))
