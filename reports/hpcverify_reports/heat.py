"""
The heat map: the result of every check on every node, or on every rack of a large fleet.

What passed is background, one path for each block; what did not is a symbol with a shape,
a colour and a link. So the page of thousands of nodes stays small.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from hpcverify.model import Verdict
from hpcverify_reports.labels import ICONS, Icon

PITCH_PIXELS = 24
"""Pixels from one square to the next, both ways: room for a finger."""
BLOCK_ROWS = 32
"""Rows of a block; the names of the checks are above each block."""
NAME_CHARACTERS = 24
"""Characters of a name; the title has the full name."""

_CHARACTER_PIXELS = 7.9
"""The width of a bold character of a label in a wide font, in pixels."""
_SLANT_COS_SIN = (0.62, 0.79)
"""Cosine and sine of the slant of the checks' names: 52 degrees."""


@dataclass(frozen=True, slots=True)
class Square:
    """The result of one check on one node, and the link to its details."""

    verdict: Verdict
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of squares; None where the check did not run."""

    name: str
    href: str
    weight: int
    """Font weight: 700 for a node that needs attention."""
    squares: tuple[Square | None, ...]


@dataclass(frozen=True, slots=True)
class PlacedLabel:
    """The name of a column or a row, and its place in pixels."""

    x: float
    y: float
    text: str
    title: str = ""
    """The full name, if *text* is cut."""
    href: str = ""
    weight: int = 400


@dataclass(frozen=True, slots=True)
class PlacedIcon:
    """A square that did not pass, and its place in pixels."""

    x: int
    y: int
    icon: Icon
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows in an SVG of their own."""

    id: str
    title: str
    width: int
    height: int
    left: int
    """Where the squares begin, right of the names."""
    top: int
    heads: tuple[PlacedLabel, ...]
    names: tuple[PlacedLabel, ...]
    passed_path: str
    """One path over all squares that passed."""
    skipped_path: str
    """One path with a stroke for each check that was skipped."""
    icons: tuple[PlacedIcon, ...]


def draw_blocks(
    columns: Sequence[str], rows: Sequence[HeatRow], *, prefix: str = "heat"
) -> tuple[Block, ...]:
    """Draw *rows*, whose squares are those of *columns*; ids begin with *prefix*."""
    left = round(_measure([row.name for row in rows])) + 10
    return tuple(
        _draw_block(
            f"{prefix}-{start // BLOCK_ROWS + 1}", columns, rows[start : start + BLOCK_ROWS], left
        )
        for start in range(0, len(rows), BLOCK_ROWS)
    )


def _draw_block(place: str, columns: Sequence[str], rows: Sequence[HeatRow], left: int) -> Block:
    reach = _measure(columns)
    top = round(reach * _SLANT_COS_SIN[1]) + 14
    squares = [
        (x * PITCH_PIXELS, y * PITCH_PIXELS, square)
        for y, row in enumerate(rows)
        for x, square in enumerate(row.squares)
        if square is not None
    ]
    return Block(
        id=place,
        title=f"{rows[0].name} to {rows[-1].name}",
        width=left + len(columns) * PITCH_PIXELS + round(reach * _SLANT_COS_SIN[0]),
        height=top + len(rows) * PITCH_PIXELS + 2,
        left=left,
        top=top,
        heads=tuple(
            PlacedLabel(left + x * PITCH_PIXELS + 15, top - 5, _shorten(name))
            for x, name in enumerate(columns)
        ),
        names=tuple(_place_name(y * PITCH_PIXELS + 16, left, row) for y, row in enumerate(rows)),
        passed_path="".join(
            f"M{x * PITCH_PIXELS} {y * PITCH_PIXELS}"
            f"h{width * PITCH_PIXELS}v{PITCH_PIXELS}h-{width * PITCH_PIXELS}z"
            for y, row in enumerate(rows)
            for x, width in _find_passed(row.squares)
        ),
        skipped_path="".join(
            f"M{x + 8} {y + 12}h8" for x, y, square in squares if square.verdict is Verdict.SKIP
        ),
        icons=tuple(
            PlacedIcon(x, y, ICONS[square.verdict], square.href, square.title)
            for x, y, square in squares
            if square.verdict >= Verdict.WARN
        ),
    )


def _measure(names: Sequence[str]) -> float:
    return max((len(_shorten(name)) for name in names), default=0) * _CHARACTER_PIXELS


def _shorten(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


def _place_name(y: int, left: int, row: HeatRow) -> PlacedLabel:
    text = _shorten(row.name)
    title = row.name if row.name != text else ""
    return PlacedLabel(left - 7, y, text, title, row.href, row.weight)


def _find_passed(squares: Sequence[Square | None]) -> Iterator[tuple[int, int]]:
    """Yield start and length of every stretch of squares that passed."""
    passed = [square is not None and square.verdict is Verdict.PASS for square in squares]
    for value, pairs in groupby(enumerate(passed), key=itemgetter(1)):
        places = [place for place, _ in pairs]
        if value:
            yield places[0], len(places)
