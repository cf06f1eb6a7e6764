"""Values of parts as horizontal bars, or as ranges with a stroke at each percentile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcverify_reports.labels import Icon, format_names
from hpcverify_reports.svg import MAX_LABELED_LINES, Scale, Tick

ROWS_WIDTH, ROW_PITCH = 440, 22
LABEL_CHARACTERS = 22
"""Characters of the label of a row."""

_CHARACTER_PIXELS = 7.6


@dataclass(frozen=True, slots=True)
class RowValues:
    """One value is a bar from zero; several values, in ascending order, are a range."""

    label: str
    values: tuple[float, ...]
    text: str
    icon: Icon | None = None


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """A row whose bar or range is *path*, at the height *y*."""

    label: str
    text: str
    icon: Icon | None
    y: int
    path: str


@dataclass(frozen=True, slots=True)
class RowPicture:
    """The rows below each other, and vertical lines at limits and other references."""

    name: str
    unit: str
    description: str
    height: int
    left: float
    right: float
    """Where the axis ends and the texts begin."""
    rows: tuple[DrawnRow, ...]
    bounds: tuple[Tick, ...]


def draw_rows(
    name: str, unit: str, rows: Sequence[RowValues], bounds: Sequence[Tick] = ()
) -> RowPicture:
    """Draw *rows* on one axis from zero, and a line with a text at each of *bounds*."""
    left = _CHARACTER_PIXELS * min(LABEL_CHARACTERS, max(len(row.label) for row in rows)) + 8
    right = ROWS_WIDTH - _CHARACTER_PIXELS * max(len(row.text) for row in rows) - 24
    most = max(*(row.values[-1] for row in rows), *(bound.at for bound in bounds), 0.0)
    x, top = Scale(0.0, most or 1.0, left, right), 16 * len(bounds) + 4
    drawn = []
    for place, row in enumerate(rows):
        y = top + place * ROW_PITCH
        low, high = x(row.values[0]), x(row.values[-1])
        path = f"M{left:g} {y + 4}H{high:g}v14H{left:g}z"
        if len(row.values) > 1:
            strokes = "".join(f"M{x(value):g} {y + 5}v12" for value in row.values)
            path = f"M{low:g} {y + 11}H{high:g}{strokes}"
        label = row.label[:LABEL_CHARACTERS]
        drawn.append(DrawnRow(label, row.text, row.icon, y, path))
    return RowPicture(
        name=name,
        unit=unit,
        description=format_names(
            [f"{row.label}: {row.text}" for row in rows], MAX_LABELED_LINES, "; "
        ),
        height=top + len(rows) * ROW_PITCH + 4,
        left=left,
        right=right,
        rows=tuple(drawn),
        bounds=tuple(
            Tick(x(bound.at), bound.text) for bound in sorted(bounds, key=lambda bound: -bound.at)
        ),
    )
