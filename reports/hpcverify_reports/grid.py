"""
Tables of measurements: a metric a row, a part a column, or turned if many parts.

Like stands beside like: the eight GPUs of a node are compared at a glance, in
numbers and on one small axis with the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcverify.model import Inventory, Limit, Verdict
from hpcverify_reports.judged import Held, bound
from hpcverify_reports.parts import name_parts
from hpcverify_reports.svg import Strip, drawable, strip
from hpcverify_reports.words import MARKS, Mark, number, unit_of

BROAD = 10
"""Parts that still fit in one row of a page."""

FEW_PARTS = 4
"""Parts that leave room for the unit beside the name of the metric."""

FEW = 2
"""Limits on one metric that are shown unasked."""

ZEROS = 3
"""From so many rows of nothing but zeros on, they are folded into one list."""


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
    zero: bool
    """Whether every value is 0, and within its limits."""


@dataclass(frozen=True, slots=True)
class Fold:
    """Limits too many to show at once, under a line that says how many."""

    summary: str
    bounds: tuple[Bounds, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """A part at the head of a column: *tag* is the tail of its id, if it has one."""

    name: str
    tag: str


@dataclass(frozen=True, slots=True)
class Grid:
    """What was measured on one kind of part."""

    kind: str
    style: str
    parts: tuple[str, ...]
    whole: str
    """All its parts in few words."""
    rows: tuple[Row, ...]

    @property
    def tall(self) -> bool:
        """Whether a row for each part reads better than a column for each."""
        return len(self.parts) > BROAD

    @property
    def heads(self) -> tuple[Head, ...]:
        """The parts as heads of columns."""
        split = (label.partition(" (") for label in self.parts)
        return tuple(Head(name, f"({tag}" if tag else "") for name, _, tag in split)

    @property
    def zeros(self) -> tuple[Row, ...]:
        """The rows of nothing but zeros, if they are too many to show each."""
        zeros = tuple(row for row in self.rows if row.zero)
        return zeros if len(zeros) >= ZEROS else ()

    @property
    def telling(self) -> tuple[Row, ...]:
        """The other rows."""
        folded = self.zeros
        return tuple(row for row in self.rows if row not in folded)

    @property
    def turned(self) -> tuple[tuple[str, tuple[tuple[Figure, ...], ...]], ...]:
        """A part a row: its label, and a cell for each metric."""
        cells = zip(*(row.cells for row in self.rows), strict=True)
        return tuple(zip(self.parts, cells, strict=True))


def grids(everything: Sequence[Held], inventory: Inventory) -> tuple[Grid, ...]:
    """Make a table for each kind of part, in the order in which they were measured."""
    kinds = {part.id: part.kind for part in inventory.parts}
    sorted_out: dict[str, list[Held]] = {}
    for held in everything:
        where = held.item.where
        # A core, "cpu3", is in no inventory; its number is not its kind.
        kind = kinds.get(where, where.rstrip("0123456789"))
        sorted_out.setdefault(kind, []).append(held)
    return tuple(_grid(kind, some, inventory) for kind, some in sorted_out.items())


def _grid(kind: str, some: Sequence[Held], inventory: Inventory) -> Grid:
    parts = list(dict.fromkeys(held.item.where for held in some))
    metrics: dict[tuple[str, str], list[Held]] = {}
    for held in some:
        metrics.setdefault((held.item.name, held.item.unit), []).append(held)
    # What is outside a limit comes first; the rest keeps the check's own order.
    ordered = sorted(metrics.values(), key=_worst, reverse=True)
    return Grid(
        kind=kind,
        style="few" if len(parts) <= FEW_PARTS else "",
        parts=tuple(map(inventory.label, parts)),
        whole=name_parts(parts, inventory),
        rows=tuple(_row(metric, parts, inventory) for metric in ordered),
    )


def _worst(metric: Sequence[Held]) -> Verdict:
    return max(held.verdict or Verdict.PASS for held in metric)


def _row(metric: Sequence[Held], parts: Sequence[str], inventory: Inventory) -> Row:
    by_part: dict[str, list[Figure]] = {part: [] for part in parts}
    for held in metric:
        by_part[held.item.where].append(_figure(held))
    axis = axis_of(metric)
    bounds = tuple(_bounds(metric, inventory))
    many = len(bounds) > FEW
    return Row(
        name=metric[0].item.name,
        unit=unit_of(metric[0].item.unit),
        cells=tuple(map(tuple, by_part.values())),
        strips=() if axis is None else (axis,),
        bounds=() if many else bounds,
        folded=(Fold(f"{len(bounds)} limits, by part", bounds),) if many else (),
        zero=all(held.item.value == 0 and not held.broken for held in metric),
    )


def _figure(held: Held) -> Figure:
    marks = _marks(held)
    style = " ".join(f"out v-{mark.key}" for mark in marks)
    return Figure(number(held.item.value), marks, style)


def _marks(held: Held) -> tuple[Mark, ...]:
    verdict = held.verdict or Verdict.PASS
    return () if verdict is Verdict.PASS else (MARKS[verdict],)


def axis_of(metric: Sequence[Held]) -> Strip | None:
    """
    Put the values of one *metric* on one axis, with the limits that hold.

    There is none for flags: of 0 and 1 an axis shows no more than the numbers do.
    """
    limits = {limit for held in metric for limit in held.limits}
    if {held.item.value for held in metric} <= {0, 1}:
        return None
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


def _bounds(metric: Sequence[Held], inventory: Inventory) -> Iterable[Bounds]:
    everyone = list(dict.fromkeys(held.item.where for held in metric))
    whose: dict[tuple[str, Verdict, str], dict[str, None]] = {}
    for held in metric:
        for limit in held.limits:
            key = (bound(limit), limit.otherwise, _source(limit))
            whose.setdefault(key, {})[held.item.where] = None
    for (text, otherwise, source), parts in whose.items():
        labels = () if list(parts) == everyone else (name_parts(parts, inventory),)
        yield Bounds(text, labels, f"else {MARKS[otherwise].word}", source)


def _source(limit: Limit) -> str:
    noisy = f"too noisy to judge: {limit.noisy}" if limit.noisy else ""
    return "; ".join(filter(None, (limit.source, noisy)))
