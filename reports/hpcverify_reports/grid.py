"""
Tables of measurements: a metric a row, a part a column, or turned if many parts.

Like stands beside like: the eight GPUs of a node are compared at a glance, in
numbers and on one small axis with the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcverify.model import Inventory, Limit, Verdict
from hpcverify_reports.judged import Held, Labels, bound
from hpcverify_reports.svg import Strip, drawable, strip
from hpcverify_reports.words import MARKS, Mark, number, unit_of

BROAD = 10
"""Parts that still fit in one row of a page."""

FEW_PARTS = 4
"""Parts that leave room for the unit beside the name of the metric."""

FEW = 2
"""Limits on one metric that are shown unasked."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One value, with the sign of its verdict if it is outside a limit."""

    text: str
    marks: tuple[Mark, ...]
    style: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """One range, whose it is unless everyone's, what follows, and its source."""

    text: str
    whose: tuple[str, ...]
    otherwise: str
    source: str


@dataclass(frozen=True, slots=True)
class Row:
    """One metric: a cell of figures for each part, its axis, its limits."""

    name: str
    unit: str
    cells: tuple[tuple[Figure, ...], ...]
    strips: tuple[Strip, ...]
    bounds: tuple[Bounds, ...]
    folded: tuple[Fold, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Limits too many to show at once, under a line that says how many."""

    summary: str
    bounds: tuple[Bounds, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """What was measured on one kind of part."""

    kind: str
    style: str
    parts: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def tall(self) -> bool:
        """Whether a row for each part reads better than a column for each."""
        return len(self.parts) > BROAD

    @property
    def turned(self) -> tuple[tuple[str, tuple[tuple[Figure, ...], ...]], ...]:
        """A part a row: its label, and a cell for each metric."""
        cells = zip(*(row.cells for row in self.rows), strict=True)
        return tuple(zip(self.parts, cells, strict=True))


def grids(
    everything: Sequence[Held], inventory: Inventory, label: Labels
) -> tuple[Grid, ...]:
    """Make a table for each kind of part, in the order in which they were measured."""
    kinds = {part.id: part.kind for part in inventory.parts}
    sorted_out: dict[str, list[Held]] = {}
    for held in everything:
        where = held.item.where
        # A core, "cpu3", is in no inventory; its number is not its kind.
        kind = kinds.get(where, where.rstrip("0123456789"))
        sorted_out.setdefault(kind, []).append(held)
    return tuple(_grid(kind, some, label) for kind, some in sorted_out.items())


def _grid(kind: str, some: Sequence[Held], label: Labels) -> Grid:
    parts = list(dict.fromkeys(held.item.where for held in some))
    metrics: dict[tuple[str, str], list[Held]] = {}
    for held in some:
        metrics.setdefault((held.item.name, held.item.unit), []).append(held)
    # What is outside a limit comes first; the rest keeps the check's own order.
    ordered = sorted(metrics.values(), key=_worst, reverse=True)
    rows = tuple(_row(metric, parts, label) for metric in ordered)
    style = "few" if len(parts) <= FEW_PARTS else ""
    return Grid(kind, style, tuple(map(label, parts)), rows)


def _worst(metric: Sequence[Held]) -> Verdict:
    return max(held.verdict or Verdict.PASS for held in metric)


def _row(metric: Sequence[Held], parts: Sequence[str], label: Labels) -> Row:
    by_part: dict[str, list[Figure]] = {part: [] for part in parts}
    for held in metric:
        by_part[held.item.where].append(_figure(held))
    axis = axis_of(metric)
    bounds = tuple(_bounds(metric, label))
    many = len(bounds) > FEW
    return Row(
        name=metric[0].item.name,
        unit=unit_of(metric[0].item.unit),
        cells=tuple(map(tuple, by_part.values())),
        strips=() if axis is None else (axis,),
        bounds=() if many else bounds,
        folded=(Fold(f"{len(bounds)} limits, by part", bounds),) if many else (),
    )


def _figure(held: Held) -> Figure:
    marks = _marks(held)
    style = " ".join(f"out v-{mark.key}" for mark in marks)
    return Figure(number(held.item.value), marks, style)


def _marks(held: Held) -> tuple[Mark, ...]:
    verdict = held.verdict or Verdict.PASS
    return () if verdict is Verdict.PASS else (MARKS[verdict],)


def axis_of(metric: Sequence[Held]) -> Strip | None:
    """Put the values of one *metric* on one axis, with the limits that hold."""
    limits = {limit for held in metric for limit in held.limits}
    values = [
        (held.item.value, next(iter(_marks(held)), None))
        for held in metric
        if held.item.value is not None and drawable(held.item.value)
    ]
    return strip(
        metric[0].item.unit,
        values,
        sorted({limit.low for limit in limits if limit.low is not None}),
        sorted({limit.high for limit in limits if limit.high is not None}),
    )


def _bounds(metric: Sequence[Held], label: Labels) -> Iterable[Bounds]:
    everyone = list(dict.fromkeys(held.item.where for held in metric))
    whose: dict[tuple[str, Verdict, str], dict[str, None]] = {}
    for held in metric:
        for limit in held.limits:
            key = (bound(limit), limit.otherwise, _source(limit))
            whose.setdefault(key, {})[held.item.where] = None
    for (text, otherwise, source), parts in whose.items():
        labels = () if list(parts) == everyone else (", ".join(map(label, parts)),)
        yield Bounds(text, labels, f"else {MARKS[otherwise].word}", source)


def _source(limit: Limit) -> str:
    noisy = f"too noisy to judge: {limit.noisy}" if limit.noisy else ""
    return "; ".join(filter(None, (limit.source, noisy)))
