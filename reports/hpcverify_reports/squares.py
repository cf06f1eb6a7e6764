"""
The square map: nodes by checks, ranks by collectives, senders by receivers.

A square has the sign of a verdict, or it is the larger and darker the greater its share, so
that it reads in grey too. What passed, and what is too little to matter, is one path for each
block: so the page of thousands of nodes stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from hpcverify.model import Verdict
from hpcverify.summary.verdict import shorten
from hpcverify_reports.labels import ICONS, Icon

PITCH_PIXELS = 24
"""From one square to the next, both ways: room for a finger."""
BLOCK_ROWS = 32
"""Rows of a block, or a few more where a group would be cut; each block has the column heads."""
NAME_CHARACTERS = 32
"""Characters of a name; the title has the full name."""
LEVELS = ((0.05, 6, "a"), (0.1, 10, "b"), (0.25, 14, "c"), (0.5, 18, "d"), (1.0, 22, "e"))
"""The least share of each level, and the side of its square in pixels and its shade."""

_CHARACTER_PIXELS = 7.9
"""The width of a bold character of a label in a wide font."""
_SLANT_COS_SIN = (0.62, 0.79)
"""Cosine and sine of the slant of the column heads: 52 degrees."""
_GAP_PIXELS = 12
"""Between two panels, or their titles."""


@dataclass(frozen=True, slots=True)
class Square:
    """A verdict, or a share, and what to say of it after the names of its row and column."""

    text: str
    verdict: Verdict | None = None
    share: float = 0.0
    href: str = ""

    @property
    def icon(self) -> Icon | None:
        """The sign of a verdict that is not good."""
        return ICONS[self.verdict] if self.verdict and self.verdict >= Verdict.WARN else None

    @property
    def level(self) -> tuple[int, str] | None:
        """The side and the shade of the highest of `LEVELS` that its share reaches."""
        reached = ((side, shade) for least, side, shade in LEVELS[::-1] if self.share >= least)
        return next(reached, None)


@dataclass(frozen=True, slots=True)
class Panel:
    """Columns that belong together, and their title."""

    title: str
    heads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MapRow:
    """A row, with the squares of each panel; None where nothing was measured."""

    name: str
    panels: tuple[tuple[Square | None, ...], ...]
    is_flagged: bool = False
    href: str = ""


@dataclass(frozen=True, slots=True)
class PlacedLabel:
    """A label, and its place in pixels."""

    x: float
    y: float
    text: str
    weight: int = 400
    title: str = ""
    """The full name, if *text* is cut."""
    href: str = ""


@dataclass(frozen=True, slots=True)
class PlacedSquare:
    """A square with its title, and the corner of its cell in pixels."""

    x: int
    y: int
    title: str
    square: Square


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows in an SVG of their own. *left* and *top* are the corner of the squares."""

    title: str
    width: int
    height: int
    left: int
    top: int
    panels: tuple[PlacedLabel, ...]
    heads: tuple[PlacedLabel, ...]
    names: tuple[PlacedLabel, ...]
    rules_path: str
    """A line above each group of rows."""
    passed_path: str
    skipped_path: str
    dots_path: str
    """A dot for each share below all levels."""
    squares: tuple[PlacedSquare, ...]

    @property
    def has_links(self) -> bool:
        """Whether a name or a square leads to another page."""
        return any(n.href for n in self.names) or any(s.square.href for s in self.squares)


def draw_map(panels: Sequence[Panel], groups: Iterable[Sequence[MapRow]]) -> tuple[Block, ...]:
    """Draw the rows of *groups* in blocks; no group is cut."""
    blocks: list[list[Sequence[MapRow]]] = []
    for group in groups:
        if not blocks or sum(map(len, blocks[-1])) + len(group) > BLOCK_ROWS:
            blocks.append([])
        blocks[-1].append(group)
    names = (row.name for block in blocks for group in block for row in group)
    left = round(_measure(names)) + 10
    return tuple(_draw_block(panels, block, left) for block in blocks)


def _draw_block(panels: Sequence[Panel], groups: Sequence[Sequence[MapRow]], left: int) -> Block:
    rows = [row for group in groups for row in group]
    reach = _measure(head for panel in panels for head in panel.heads)
    top = round(reach * _SLANT_COS_SIN[1]) + (34 if any(p.title for p in panels) else 14)
    starts, right = _place_panels(panels)
    cells = list(_list_cells(panels, starts, rows))
    return Block(
        title=f"{rows[0].name} to {rows[-1].name}",
        width=left + right + round(reach * _SLANT_COS_SIN[0]),
        height=top + len(rows) * PITCH_PIXELS + 2,
        left=left,
        top=top,
        panels=tuple(
            PlacedLabel(left + start, 12, panel.title, 640)
            for panel, start in zip(panels, starts, strict=True)
        ),
        heads=tuple(
            _place_label(left + start + x * PITCH_PIXELS + 15, top - 5, head)
            for panel, start in zip(panels, starts, strict=True)
            for x, head in enumerate(panel.heads)
        ),
        names=tuple(
            _place_label(left - 7, y * PITCH_PIXELS + 16, row.name, row)
            for y, row in enumerate(rows)
        ),
        rules_path=_draw_rules(groups, left + right) if len(rows) > len(groups) else "",
        passed_path=_draw_ground(c for c in cells if c.square.verdict is Verdict.PASS),
        skipped_path="".join(
            f"M{c.x + 8} {c.y + 12}h8" for c in cells if c.square.verdict is Verdict.SKIP
        ),
        dots_path="".join(
            f"M{c.x + 12} {c.y + 12}h0"
            for c in cells
            if c.square.verdict is None and c.square.level is None
        ),
        squares=tuple(c for c in cells if c.square.icon or c.square.level),
    )


def _measure(names: Iterable[str]) -> float:
    longest = max((len(shorten(name, NAME_CHARACTERS)) for name in names), default=0)
    return longest * _CHARACTER_PIXELS


def _place_panels(panels: Sequence[Panel]) -> tuple[list[int], int]:
    """Find where each panel begins, and where the last one ends."""
    starts, x = [], 0
    for panel in panels:
        starts.append(x)
        title = ceil(len(panel.title) * _CHARACTER_PIXELS)
        x += max(len(panel.heads) * PITCH_PIXELS, title) + _GAP_PIXELS
    return starts, x - _GAP_PIXELS


def _place_label(x: float, y: float, name: str, row: MapRow | None = None) -> PlacedLabel:
    text = shorten(name, NAME_CHARACTERS)
    weight = 700 if row and row.is_flagged else 400
    title = name if name != text else ""
    return PlacedLabel(x, y, text, weight, title, row.href if row else "")


def _list_cells(
    panels: Sequence[Panel], starts: Sequence[int], rows: Sequence[MapRow]
) -> Iterator[PlacedSquare]:
    for y, row in enumerate(rows):
        for panel, start, squares in zip(panels, starts, row.panels, strict=True):
            for x, (head, square) in enumerate(zip(panel.heads, squares, strict=True)):
                if square:
                    subject = ", ".join(filter(None, (row.name, panel.title, head)))
                    left, top = start + x * PITCH_PIXELS, y * PITCH_PIXELS
                    yield PlacedSquare(left, top, f"{subject}: {square.text}", square)


def _draw_ground(squares: Iterable[PlacedSquare]) -> str:
    """Draw *squares*; those that touch in a row are one."""
    stretches: list[tuple[int, int, int]] = []
    for square in squares:
        start, top, width = stretches[-1] if stretches else (0, -1, 0)
        if (top, start + width) == (square.y, square.x):
            stretches[-1] = start, top, width + PITCH_PIXELS
        else:
            stretches.append((square.x, square.y, PITCH_PIXELS))
    return "".join(f"M{x} {y}h{width}v{PITCH_PIXELS}h-{width}z" for x, y, width in stretches)


def _draw_rules(groups: Sequence[Sequence[MapRow]], width: int) -> str:
    y, path = 0, ""
    for group in groups:
        path += f"M0 {y}h{width}"
        y += len(group) * PITCH_PIXELS
    return path
