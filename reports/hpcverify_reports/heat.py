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
from hpcverify_reports.words import MARKS, Mark

PITCH = 24
"""Pixels from one square to the next, in both directions: room for a finger."""
ROWS = 32
"""Of a block: more are a block of their own, with the names of the checks above."""
NAME = 24
"""Characters of a name that are shown; the title has all of it."""

_CHARACTER = 7.9
"""The width of a bold character of a label in a wide font, in pixels."""
_SLANT = (0.62, 0.79)
"""Cosine and sine of the angle at which the checks' names stand: 52 degrees."""


@dataclass(frozen=True, slots=True)
class Square:
    """What came of one check on one node, and where there is more about it."""

    verdict: Verdict
    href: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A row of squares; None where the check did not run."""

    name: str
    href: str
    weight: int
    """Of its letters: 700 for a node that needs attention."""
    squares: tuple[Square | None, ...]


@dataclass(frozen=True, slots=True)
class Text:
    """A label and its place."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a row."""

    y: int
    text: str
    title: str
    href: str
    weight: int


@dataclass(frozen=True, slots=True)
class Sign:
    """A square that did not pass."""

    x: int
    y: int
    mark: Mark
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
    heads: tuple[Text, ...]
    names: tuple[Name, ...]
    passed: str
    """One path over all squares that passed."""
    skipped: str
    """One path with a stroke for each check that was skipped."""
    signs: tuple[Sign, ...]


def blocks(
    columns: Sequence[str], lines: Sequence[Line], *, prefix: str = "heat"
) -> tuple[Block, ...]:
    """Draw *lines*, whose squares are those of *columns*; ids begin with *prefix*."""
    longest = max((len(_short(line.name)) for line in lines), default=0)
    left = round(longest * _CHARACTER) + 10
    return tuple(
        _block(
            f"{prefix}-{start // ROWS + 1}", columns, lines[start : start + ROWS], left
        )
        for start in range(0, len(lines), ROWS)
    )


def _block(
    place: str, columns: Sequence[str], lines: Sequence[Line], left: int
) -> Block:
    reach = max((len(_short(c)) for c in columns), default=0) * _CHARACTER
    top = round(reach * _SLANT[1]) + 14
    return Block(
        id=place,
        title=f"{lines[0].name} to {lines[-1].name}",
        width=left + len(columns) * PITCH + round(reach * _SLANT[0]),
        height=top + len(lines) * PITCH + 2,
        left=left,
        top=top,
        heads=tuple(
            Text(left + x * PITCH + 15, top - 5, _short(c))
            for x, c in enumerate(columns)
        ),
        names=tuple(_name(y, line) for y, line in enumerate(lines)),
        passed="".join(
            _ground(x, y, width)
            for y, line in enumerate(lines)
            for x, width in _stretches(line.squares, Verdict.PASS)
        ),
        skipped="".join(
            f"M{x * PITCH + 8} {y * PITCH + 12}h8"
            for y, line in enumerate(lines)
            for x, square in enumerate(line.squares)
            if square is not None and square.verdict is Verdict.SKIP
        ),
        signs=tuple(_signs(lines)),
    )


def _name(y: int, line: Line) -> Name:
    text = _short(line.name)
    return Name(y * PITCH + 16, text, line.name, line.href, line.weight)


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"


def _ground(x: int, y: int, width: int) -> str:
    return f"M{x * PITCH} {y * PITCH}h{width * PITCH}v{PITCH}h-{width * PITCH}z"


def _stretches(
    squares: Sequence[Square | None], verdict: Verdict
) -> Iterator[tuple[int, int]]:
    """Yield place and length of every stretch of squares of *verdict*."""
    verdicts = [square and square.verdict for square in squares]
    for value, pairs in groupby(enumerate(verdicts), key=itemgetter(1)):
        places = [place for place, _ in pairs]
        if value is verdict:
            yield places[0], len(places)


def _signs(lines: Sequence[Line]) -> Iterator[Sign]:
    for y, line in enumerate(lines):
        for x, square in enumerate(line.squares):
            if square is not None and square.verdict >= Verdict.WARN:
                yield Sign(
                    x=x * PITCH,
                    y=y * PITCH,
                    mark=MARKS[square.verdict],
                    href=square.href,
                    title=square.title,
                )
