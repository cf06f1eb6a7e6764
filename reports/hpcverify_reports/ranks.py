"""
The picture of the ranks of a collective: who came late, and who was slow once all were there.

A row is a rank or, of many, a node. A column is a collective of one size; by node, there
is first a square for each of its ranks. The more of a step was lost, or of the time of a
transfer, the larger and darker the square, so it reads in grey too. What is less than the
clocks can tell, or than a twentieth, is a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from statistics import median

from hpcverify.insight.node_names import make_natural_key
from hpcverify.isolation.scaling import STEP, time_step
from hpcverify.records.collectives import CollectiveRun, RankDelay, RankPlace
from hpcverify.summary.figures import format_scaled
from hpcverify_reports.labels import format_number

MAX_RANK_ROWS = 64
"""More ranks are shown by node."""
MAX_NODE_ROWS = 128
"""Of more nodes, those with the most delay are shown."""
BLOCK_ROWS = 32
"""Rows of a block, or a few more where a node would be cut; blocks stand side by side."""
PITCH_PIXELS = 20
"""From one square to the next, both ways: room for a label."""
LEVELS = ((0.05, 6, "a"), (0.1, 9, "b"), (0.25, 12, "c"), (0.5, 15, "d"), (1.0, 18, "e"))
"""From which share of a step on, the side of the square in pixels, and its shade."""
TITLED_SHARE = 0.1
"""From this share on, a square says its numbers: a title for each would make a large page."""
NAME_CHARACTERS = 32

_CHARACTER_PIXELS = 7.9
_SLANT_COS_SIN = (0.62, 0.79)
"""As in the map of the fleet: 52 degrees."""
_GAP = 1
"""Columns between two panels, or their titles."""

Column = tuple[str, int]
"""Operation and size in bytes; 0 if that does not matter."""
TO, FROM = ("to others", 0), ("from others", 0)


@dataclass(frozen=True, slots=True)
class Lag:
    """What a rank takes more than the median rank, as a share of a step, and in words."""

    share: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class LagRow:
    """A row of the picture, with the cells of each panel; None where nothing was measured."""

    name: str
    is_flagged: bool
    panels: tuple[tuple[Lag | None, ...], ...]

    @property
    def worst(self) -> float:
        """The largest share of a step that is lost; what is flagged comes before all."""
        shares = [lag.share for panel in self.panels for lag in panel if lag]
        return max(shares, default=0.0) + (1e9 if self.is_flagged else 0.0)


@dataclass(frozen=True, slots=True)
class LagPanel:
    """The title of a panel, and the names of its columns."""

    title: str
    heads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlacedText:
    """A label and its place in pixels."""

    x: float
    y: float
    text: str
    weight: int = 400


@dataclass(frozen=True, slots=True)
class PlacedSquare:
    """A square with a title, and its corner and side in pixels."""

    x: float
    y: float
    side: int
    shade: str
    title: str


@dataclass(frozen=True, slots=True)
class LagBlock:
    """Some rows in an SVG of their own."""

    title: str
    width: int
    height: int
    left: int
    """Where the squares begin, right of the names."""
    top: int
    panels: tuple[PlacedText, ...]
    heads: tuple[PlacedText, ...]
    names: tuple[PlacedText, ...]
    rules: str
    """One path with a line above each group of rows."""
    dots: str
    """One path with a dot for each delay that is none."""
    plain: tuple[tuple[str, str], ...]
    """Shade and path of the squares without a title."""
    squares: tuple[PlacedSquare, ...]


@dataclass(frozen=True, slots=True)
class RankPicture:
    """All ranks of a run."""

    unit: str
    """What a row is."""
    blocks: tuple[LagBlock, ...]
    more: str
    """What is left out."""


def format_size(size: int) -> str:
    """Print a *size* in bytes."""
    return format_scaled(size, "B")


def draw_ranks(run: CollectiveRun, flagged: Iterable[int]) -> RankPicture | None:
    """Draw the delays of all ranks; those *flagged* stand out. None without any."""
    kinds = [kind for kind in _measure_kinds(run) if kind.columns]
    if not kinds or not run.ranks:
        return None
    marked = set(flagged)
    places = sorted(run.ranks, key=lambda place: (make_natural_key(place.node), place.rank))
    nodes = [(node, list(some)) for node, some in groupby(places, key=lambda p: p.node)]
    by_kind = [LagPanel(kind.title, tuple(map(_name_column, kind.columns))) for kind in kinds]
    if len(places) <= MAX_RANK_ROWS:
        groups = [
            [
                LagRow(f"{node} rank {p.rank}", p.rank in marked, _list_panels([p], kinds))
                for p in some
            ]
            for node, some in nodes
        ]
        return RankPicture("rank", tuple(draw_blocks(by_kind, groups)), "")
    most = max(len(some) for _, some in nodes)
    rows = [
        LagRow(
            node,
            any(p.rank in marked for p in some),
            (_list_ranks(some, kinds, most), *_list_panels(some, kinds)),
        )
        for node, some in nodes
    ]
    kept = {id(row) for row in sorted(rows, key=lambda row: -row.worst)[:MAX_NODE_ROWS]}
    shown = [[row] for row in rows if id(row) in kept]
    panels = (LagPanel("by rank", tuple(map(str, range(most)))), *by_kind)
    left = [row.worst for row in rows if id(row) not in kept]
    return RankPicture("node", tuple(draw_blocks(panels, shown)), _describe_left(left))


def _describe_left(left: Sequence[float]) -> str:
    if not left:
        return ""
    most = format_number(max(left) * 100)
    return f"Not shown: {len(left)} nodes that lose at most {most} % of a step."


@dataclass(frozen=True, slots=True)
class _Kind:
    """One way to be slow: what each rank loses by it, by collective."""

    title: str
    columns: tuple[Column, ...]
    lags: Mapping[tuple[int, Column], Lag]

    def find_worst(self, places: Iterable[RankPlace], columns: Iterable[Column]) -> Lag | None:
        return _choose_worst(self.lags.get((p.rank, c)) for c in columns for p in places)


def _name_column(column: Column) -> str:
    operation, size = column
    return f"{operation} {format_size(size)}" if size else operation


def _list_panels(
    places: Sequence[RankPlace], kinds: Iterable[_Kind]
) -> tuple[tuple[Lag | None, ...], ...]:
    """List the worst lag among *places*, by kind and collective."""
    return tuple(tuple(kind.find_worst(places, (c,)) for c in kind.columns) for kind in kinds)


def _list_ranks(
    places: Sequence[RankPlace], kinds: Sequence[_Kind], most: int
) -> tuple[Lag | None, ...]:
    """List the worst lag of each of *places*, in *most* columns."""
    worst = [_choose_worst(kind.find_worst([p], kind.columns) for kind in kinds) for p in places]
    return (*worst, *[None] * (most - len(worst)))


def _measure_kinds(run: CollectiveRun) -> Iterator[_Kind]:
    """Compare all ranks with the median rank, in each way to be slow."""
    steps = {(timing.operation, timing.size): timing.p50 for timing in run.timings}
    steps[STEP, 0] = time_step(run)
    by_column: dict[Column, list[RankDelay]] = {}
    for delay in run.delays:
        by_column.setdefault((delay.operation, delay.size), []).append(delay)
    late: dict[tuple[int, Column], Lag] = {}
    slow: dict[tuple[int, Column], Lag] = {}
    for column, some in by_column.items():
        step = steps.get(column, 0.0)
        arrival = median(delay.arrival for delay in some)
        inside = median(delay.inside for delay in some)
        for delay in some:
            key = delay.rank, column
            late[key] = _compare(delay.arrival - arrival, delay, step)
            slow[key] = _compare(delay.inside - inside, delay, step)
    columns = tuple(by_column)
    yield _Kind("arrives late", columns, late)
    yield _Kind("takes long", columns, slow)
    yield from _measure_transfers(run)


def _measure_transfers(run: CollectiveRun) -> Iterator[_Kind]:
    """Compare how long each rank takes to send and to receive, with transfers as far as its."""
    nodes = {place.rank: place.node for place in run.ranks}
    times = {
        (one.sender, one.receiver): median(one.times)
        for one in run.transfers
        if one.times and {one.sender, one.receiver} <= nodes.keys()
    }
    alike: dict[bool, list[float]] = {}
    for (sender, receiver), seconds in times.items():
        alike.setdefault(nodes[sender] == nodes[receiver], []).append(seconds)
    usual = {is_local: median(some) for is_local, some in alike.items()}
    for side, (title, column) in enumerate((("sends slowly", TO), ("receives slowly", FROM))):
        ratios: dict[int, list[float]] = {}
        for pair, seconds in times.items():
            expected = usual[nodes[pair[0]] == nodes[pair[1]]]
            ratios.setdefault(pair[side], []).append(seconds / expected if expected else 1.0)
        lags = {(rank, column): _compare_transfers(rank, some) for rank, some in ratios.items()}
        yield _Kind(title, (column,) if lags else (), lags)


def _compare_transfers(rank: int, ratios: Sequence[float]) -> Lag:
    more = median(ratios) - 1
    return Lag(max(0.0, more), f"rank {rank}: {format_number(more * 100)} % longer than others")


def _choose_worst(some: Iterable[Lag | None]) -> Lag | None:
    return max((lag for lag in some if lag), key=lambda lag: lag.share, default=None)


def _compare(seconds: float, delay: RankDelay, step: float) -> Lag:
    if seconds <= delay.clock_error or step <= 0:
        return Lag(0.0)
    share = f"{format_number(seconds / step * 100)} % of a step"
    return Lag(seconds / step, f"rank {delay.rank}: {format_scaled(seconds, 's')}, {share}")


def draw_blocks(
    panels: Sequence[LagPanel], groups: Sequence[Sequence[LagRow]]
) -> Iterator[LagBlock]:
    """Draw the rows of *groups* in blocks; a group is not cut."""
    left = max(len(_shorten(row.name)) for group in groups for row in group) * _CHARACTER_PIXELS
    block: list[Sequence[LagRow]] = []
    for group in groups:
        if block and sum(map(len, block)) + len(group) > BLOCK_ROWS:
            yield _draw_block(panels, block, round(left) + 10)
            block = []
        block.append(group)
    if block:
        yield _draw_block(panels, block, round(left) + 10)


def _draw_block(
    panels: Sequence[LagPanel], groups: Sequence[Sequence[LagRow]], left: int
) -> LagBlock:
    rows = [row for group in groups for row in group]
    reach = max(len(head) for panel in panels for head in panel.heads) * _CHARACTER_PIXELS
    top = round(reach * _SLANT_COS_SIN[1]) + 34
    starts: list[int] = []
    x = 0
    for panel in panels:
        starts.append(x)
        title = ceil(len(panel.title) * _CHARACTER_PIXELS / PITCH_PIXELS)
        x += (max(len(panel.heads), title) + _GAP) * PITCH_PIXELS
    right = x - _GAP * PITCH_PIXELS
    cells = list(_list_cells(panels, starts, rows))
    return LagBlock(
        title=f"{rows[0].name} to {rows[-1].name}",
        width=left + right + max(round(reach * _SLANT_COS_SIN[0]), 60),
        height=top + len(rows) * PITCH_PIXELS + 2,
        left=left,
        top=top,
        panels=tuple(
            PlacedText(left + start, 12, panel.title, 640)
            for panel, start in zip(panels, starts, strict=True)
        ),
        heads=tuple(
            PlacedText(left + start + column * PITCH_PIXELS + 13, top - 5, head)
            for panel, start in zip(panels, starts, strict=True)
            for column, head in enumerate(panel.heads)
        ),
        names=tuple(
            PlacedText(
                left - 7,
                top + y * PITCH_PIXELS + 14,
                _shorten(row.name),
                700 if row.is_flagged else 400,
            )
            for y, row in enumerate(rows)
        ),
        rules=_draw_rules(groups, left + right) if len(rows) > len(groups) else "",
        dots="".join(
            f"M{x + 10} {y + 10}h0" for x, y, lag, _ in cells if _choose_level(lag) is None
        ),
        plain=tuple(_list_plain(cells)),
        squares=tuple(_list_squares(cells)),
    )


def _shorten(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


PlacedLag = tuple[int, int, Lag, str]
"""The corner of its cell, and whose it is."""


def _list_cells(
    panels: Sequence[LagPanel], starts: Sequence[int], rows: Sequence[LagRow]
) -> Iterator[PlacedLag]:
    for y, row in enumerate(rows):
        for panel, start, lags in zip(panels, starts, row.panels, strict=True):
            for x, (head, lag) in enumerate(zip(panel.heads, lags, strict=True)):
                if lag:
                    subject = f"{row.name}, {panel.title}, {head}"
                    yield start + x * PITCH_PIXELS, y * PITCH_PIXELS, lag, subject


def _choose_level(lag: Lag) -> tuple[float, int, str] | None:
    return next((level for level in reversed(LEVELS) if lag.share >= level[0]), None)


def _list_squares(cells: Sequence[PlacedLag]) -> Iterator[PlacedSquare]:
    for x, y, lag, subject in cells:
        level = _choose_level(lag)
        if level and level[0] >= TITLED_SHARE:
            _, side, shade = level
            inset = (PITCH_PIXELS - side) / 2
            yield PlacedSquare(x + inset, y + inset, side, shade, f"{subject}: {lag.text}")


def _list_plain(cells: Sequence[PlacedLag]) -> Iterator[tuple[str, str]]:
    for level in LEVELS:
        share, side, shade = level
        inset = (PITCH_PIXELS - side) // 2
        mine = [(x, y) for x, y, lag, _ in cells if _choose_level(lag) == level]
        if share < TITLED_SHARE and mine:
            path = (f"M{x + inset} {y + inset}h{side}v{side}h-{side}z" for x, y in mine)
            yield shade, "".join(path)


def _draw_rules(groups: Sequence[Sequence[LagRow]], width: int) -> str:
    """Draw a line above each group."""
    y, path = 0, ""
    for group in groups:
        path += f"M0 {y}h{width}"
        y += len(group) * PITCH_PIXELS
    return path
