"""The values of a metric over a fleet as bars, with a mark at each outlier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hpcverify.peers.distribution import Distribution
from hpcverify.peers.values import MetricName
from hpcverify.units import choose_unit
from hpcverify_reports.labels import (
    Icon,
    format_names,
    format_number,
    format_unit,
    format_with_unit,
)
from hpcverify_reports.svg import Scale, Tick, pad_range

WIDTH = 440.0
BARS_TOP, BARS_BOTTOM = 48.0, 108.0
HEIGHT = 128.0
"""In pixels, as all lengths here."""
MARK_SIZE, MARK_ROWS = 13.0, 3
"""The side of a mark, and how many rows of marks there are where they would overlap."""
LEAST_BAR = 1.5
"""A single value is still seen beside thousands."""
LABEL_PIXELS = 62.0
"""Room for a number below the axis."""
MAX_NAMED = 4
"""Outliers that are named below the picture; the table has all."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The icon of an outlier, its corner, and its title."""

    icon: Icon
    x: float
    y: float
    title: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Bars from *low* to *high*, `WIDTH` by `HEIGHT` pixels."""

    name: str
    unit: str
    description: str
    bars: str
    median: float
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    caption: str


@dataclass(frozen=True, slots=True)
class OutlierPoint:
    """An outlier at a value."""

    name: str
    value: float
    distance: str
    """As text: 4 % too low."""
    icon: Icon


def draw_histogram(
    name: MetricName,
    values: Distribution,
    median: float,
    outliers: Sequence[OutlierPoint],
    about: str,
) -> Histogram:
    """Draw the *values* of a metric, and mark the *outliers*; *about* says whose they are."""
    low, high, counts = values.low, values.high, values.counts
    x = Scale(*pad_range(low, high, 0.03), 0.0, WIDTH)
    edges = [low + (high - low) * i / len(counts) for i in range(len(counts) + 1)]
    named = format_names([f"{p.name}, {p.distance}" for p in outliers], MAX_NAMED, "; ")
    unit, factor = choose_unit((median,), name.unit)
    shown = f"{format_number(low * factor)} to {format_with_unit(high * factor, unit)}"
    return Histogram(
        name=str(name),
        unit=format_unit(unit),
        description="; ".join(filter(None, [f"{about}: {shown}", named])),
        bars=_draw_bars([x(edge) for edge in edges], counts),
        median=x(median),
        ticks=tuple(_place_ticks(x, (median, low, high), factor)),
        marks=tuple(_place_marks(x, outliers, low, high)),
        caption=named or about,
    )


def _draw_bars(edges: Sequence[float], counts: Sequence[int]) -> str:
    """Draw a bar for each bin that is not empty; a single bin is a bar of some width."""
    most = max(counts)
    if edges[0] == edges[-1]:
        return f"M{edges[0] - 4:g} {BARS_BOTTOM:g}h8V{BARS_TOP:g}h-8z"
    bars = []
    for count, (left, right) in zip(counts, pairwise(edges), strict=True):
        if count:
            tall = max(LEAST_BAR, (BARS_BOTTOM - BARS_TOP) * count / most)
            wide = max(1.0, right - left - 1)
            bars.append(f"M{left:g} {BARS_BOTTOM:g}h{wide:.1f}v{-tall:.1f}h{-wide:.1f}z")
    return "".join(bars)


def _place_ticks(x: Scale, values: Sequence[float], factor: float) -> list[Tick]:
    """Place a number, *factor* times the value, at each of *values* that has room beside others."""
    ticks: list[Tick] = []
    for value in values:
        at = min(max(x(value), LABEL_PIXELS / 2), WIDTH - LABEL_PIXELS / 2)
        if all(abs(at - other.at) >= LABEL_PIXELS for other in ticks):
            ticks.append(Tick(at, format_number(value * factor)))
    return ticks


def _place_marks(x: Scale, outliers: Sequence[OutlierPoint], low: float, high: float) -> list[Mark]:
    """Place a mark above each outlier, those that would lie over each other in rows."""
    marks: list[Mark] = []
    row_ends = [-WIDTH] * MARK_ROWS
    for point in sorted(outliers, key=lambda point: point.value):
        at = x(min(max(point.value, low), high))
        row = next((i for i, end in enumerate(row_ends) if at - end >= MARK_SIZE), MARK_ROWS - 1)
        row_ends[row] = at
        top = BARS_TOP - 4 - MARK_SIZE * (row + 1)
        title = f"{point.name}: {point.distance}"
        marks.append(Mark(point.icon, round(at - MARK_SIZE / 2, 1), top, title))
    return marks
