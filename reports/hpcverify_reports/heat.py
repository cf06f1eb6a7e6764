"""
The heat map: what every check said of every node, or of every rack of many.

What passed is a ground, one path a block; what did not is a sign of its own shape and
colour with a link. So a page of thousands of nodes stays small where all is well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from hpcverify.model import Verdict
from hpcverify_reports.words import ICONS, Icon

PITCH_PIXELS = 24
"""Pixels from one square to the next, in both directions: room for a finger."""
BLOCK_ROWS = 32
"""Of a block: more are a block of their own, with the names of the checks above."""
NAME_CHARACTERS = 24
"""Characters of a name that are shown; the title has all of it."""

_CHARACTER_PIXELS = 7.9
"""The width of a bold character of a label in a wide font, in pixels."""
_SLANT_COS_SIN = (0.62, 0.79)
"""Cosine and sine of the angle at which the checks' names stand: 52 degrees."""


@dataclass(frozen=True, slots=True)
class Square:
    """What came of one check on one node, and where there is more about it."""

    verdict: Verdict
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of squares; None where the check did not run."""

    name: str
    href: str
    weight: int
    """Of its letters: 700 for a node that needs attention."""
    squares: tuple[Square | None, ...]


@dataclass(frozen=True, slots=True)
class ColumnLabel:
    """A label and its place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class RowLabel:
    """The name of a row."""

    y: int
    text: str
    title: str
    href: str
    weight: int


@dataclass(frozen=True, slots=True)
class HeatIcon:
    """A square that did not pass."""

    x: int
    y: int
    icon: Icon
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows on a paper of their own."""

    id: str
    title: str
    width: int
    height: int
    left: int
    """Where the squares begin; the names end before it."""
    top: int
    heads: tuple[ColumnLabel, ...]
    names: tuple[RowLabel, ...]
    passed_path: str
    """One path over all squares that passed."""
    skipped_path: str
    """One path with a stroke for each check that was skipped."""
    icons: tuple[HeatIcon, ...]


def draw_blocks(
    columns: Sequence[str], lines: Sequence[HeatRow], *, prefix: str = "heat"
) -> tuple[Block, ...]:
    """Draw *lines*, whose squares are those of *columns*; ids begin with *prefix*."""
    longest = max((len(_shorten(line.name)) for line in lines), default=0)
    left = round(longest * _CHARACTER_PIXELS) + 10
    return tuple(
        _draw_block(
            f"{prefix}-{start // BLOCK_ROWS + 1}", columns, lines[start : start + BLOCK_ROWS], left
        )
        for start in range(0, len(lines), BLOCK_ROWS)
    )


def _draw_block(place: str, columns: Sequence[str], lines: Sequence[HeatRow], left: int) -> Block:
    reach = max((len(_shorten(c)) for c in columns), default=0) * _CHARACTER_PIXELS
    top = round(reach * _SLANT_COS_SIN[1]) + 14
    return Block(
        id=place,
        title=f"{lines[0].name} to {lines[-1].name}",
        width=left + len(columns) * PITCH_PIXELS + round(reach * _SLANT_COS_SIN[0]),
        height=top + len(lines) * PITCH_PIXELS + 2,
        left=left,
        top=top,
        heads=tuple(
            ColumnLabel(left + x * PITCH_PIXELS + 15, top - 5, _shorten(c))
            for x, c in enumerate(columns)
        ),
        names=tuple(_place_name(y, line) for y, line in enumerate(lines)),
        passed_path="".join(
            _draw_ground(x, y, width)
            for y, line in enumerate(lines)
            for x, width in _find_stretches(line.squares, Verdict.PASS)
        ),
        skipped_path="".join(
            f"M{x * PITCH_PIXELS + 8} {y * PITCH_PIXELS + 12}h8"
            for y, line in enumerate(lines)
            for x, square in enumerate(line.squares)
            if square is not None and square.verdict is Verdict.SKIP
        ),
        icons=tuple(_place_icons(lines)),
    )


def _place_name(y: int, line: HeatRow) -> RowLabel:
    text = _shorten(line.name)
    return RowLabel(y * PITCH_PIXELS + 16, text, line.name, line.href, line.weight)


def _shorten(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


def _draw_ground(x: int, y: int, width: int) -> str:
    left, top, right = (n * PITCH_PIXELS for n in (x, y, width))
    return f"M{left} {top}h{right}v{PITCH_PIXELS}h-{right}z"


def _find_stretches(
    squares: Sequence[Square | None], verdict: Verdict
) -> Iterator[tuple[int, int]]:
    """Yield place and length of every stretch of squares of *verdict*."""
    verdicts = [square and square.verdict for square in squares]
    for value, pairs in groupby(enumerate(verdicts), key=itemgetter(1)):
        places = [place for place, _ in pairs]
        if value is verdict:
            yield places[0], len(places)


def _place_icons(lines: Sequence[HeatRow]) -> Iterator[HeatIcon]:
    for y, line in enumerate(lines):
        for x, square in enumerate(line.squares):
            if square is not None and square.verdict >= Verdict.WARN:
                yield HeatIcon(
                    x=x * PITCH_PIXELS,
                    y=y * PITCH_PIXELS,
                    icon=ICONS[square.verdict],
                    href=square.href,
                    title=square.title,
                )
