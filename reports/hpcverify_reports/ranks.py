"""
The picture of the ranks of a collective: who came late, and who was slow once all were there.

A row is a rank or, if there are many, a node. A column is a collective of one size; by node,
there is first a square for each of its ranks. A share is the part of a step that was lost, or
by how much a transfer took longer. Differences below the clock error are shown as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median

from hpcverify.insight.node_names import make_natural_key
from hpcverify.records.collectives import STEP, CollectiveRun, RankDelay, RankPlace
from hpcverify.summary.figures import format_scaled
from hpcverify_reports.labels import format_number
from hpcverify_reports.squares import Block, MapRow, Panel, Square, draw_map

MAX_RANK_ROWS = 64
"""More ranks are shown by node."""
MAX_NODE_ROWS = 128
"""The most rows; of more nodes, those with the most delay are shown."""

Column = tuple[str, int]
"""Operation and size in bytes; 0 if that does not matter."""
TO, FROM = ("to others", 0), ("from others", 0)
Squares = tuple[Square | None, ...]


@dataclass(frozen=True, slots=True)
class RankPicture:
    """All ranks of a run: what a row is, the rows, and what is left out."""

    unit: str
    blocks: tuple[Block, ...]
    more: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """One way to be slow: what each rank loses by it, by collective."""

    title: str
    columns: tuple[Column, ...]
    lags: Mapping[tuple[int, Column], Square]

    def find_worst(self, places: Iterable[RankPlace], columns: Iterable[Column]) -> Square | None:
        return _choose_worst(self.lags.get((p.rank, c)) for c in columns for p in places)


def draw_ranks(run: CollectiveRun, flagged: Iterable[int]) -> RankPicture | None:
    """Draw the delays of all ranks; those *flagged* stand out. None without any."""
    kinds = [kind for kind in _measure_kinds(run) if kind.columns]
    if not kinds or not run.ranks:
        return None
    marked = set(flagged)
    places = sorted(run.ranks, key=lambda place: (make_natural_key(place.node), place.rank))
    nodes = [(node, list(ranks)) for node, ranks in groupby(places, key=lambda p: p.node)]
    panels = [Panel(kind.title, tuple(map(_name_column, kind.columns))) for kind in kinds]
    if len(places) <= MAX_RANK_ROWS:
        groups = [
            [
                MapRow(f"{node} rank {p.rank}", _list_panels([p], kinds), p.rank in marked)
                for p in ranks
            ]
            for node, ranks in nodes
        ]
        return RankPicture("rank", draw_map(panels, groups), "")
    most = max(len(ranks) for _, ranks in nodes)
    rows = [
        MapRow(
            node,
            (_list_ranks(ranks, kinds, most), *_list_panels(ranks, kinds)),
            any(p.rank in marked for p in ranks),
        )
        for node, ranks in nodes
    ]
    by_delay = sorted(rows, key=lambda row: (row.is_flagged, _find_share(row)), reverse=True)
    kept = {id(row) for row in by_delay[:MAX_NODE_ROWS]}
    by_rank = Panel("by rank", tuple(map(str, range(most))))
    blocks = draw_map((by_rank, *panels), [[row] for row in rows if id(row) in kept])
    return RankPicture("node", blocks, _describe_rest(by_delay[MAX_NODE_ROWS:]))


def _find_share(row: MapRow) -> float:
    """Find the largest share of a step that is lost."""
    squares = (square for panel in row.panels for square in panel)
    return max((square.share for square in squares if square), default=0.0)


def _describe_rest(rows: Sequence[MapRow]) -> str:
    if not rows:
        return ""
    most = format_number(max(map(_find_share, rows)) * 100)
    return f"Not shown: {len(rows)} nodes that lose at most {most} % of a step."


def _name_column(column: Column) -> str:
    operation, size = column
    return f"{operation} {format_scaled(size, 'B')}" if size else operation


def _list_panels(places: Sequence[RankPlace], kinds: Iterable[_Kind]) -> tuple[Squares, ...]:
    """List the worst delay among *places*, by kind and collective."""
    return tuple(tuple(kind.find_worst(places, (c,)) for c in kind.columns) for kind in kinds)


def _list_ranks(places: Sequence[RankPlace], kinds: Sequence[_Kind], most: int) -> Squares:
    """List the worst delay of each of *places*, in *most* columns."""
    worst = [_choose_worst(kind.find_worst([p], kind.columns) for kind in kinds) for p in places]
    return (*worst, *[None] * (most - len(worst)))


def _measure_kinds(run: CollectiveRun) -> Iterator[_Kind]:
    """Compare all ranks with the median rank, in each way to be slow."""
    steps = {(timing.operation, timing.size): timing.p50 for timing in run.timings}
    ends = [max(step) for step in zip(*(rank.ends for rank in run.steps), strict=False)]
    if len(ends) > 1:
        steps[STEP, 0] = median(after - before for before, after in pairwise(ends))
    by_column: dict[Column, list[RankDelay]] = {}
    for delay in run.delays:
        by_column.setdefault((delay.operation, delay.size), []).append(delay)
    late: dict[tuple[int, Column], Square] = {}
    slow: dict[tuple[int, Column], Square] = {}
    for column, delays in by_column.items():
        step = steps.get(column, 0.0)
        arrival = median(delay.arrival for delay in delays)
        inside = median(delay.inside for delay in delays)
        for delay in delays:
            key = delay.rank, column
            late[key] = _compare(delay.arrival - arrival, delay, step)
            slow[key] = _compare(delay.inside - inside, delay, step)
    columns = tuple(by_column)
    yield _Kind("arrives late", columns, late)
    yield _Kind("takes long", columns, slow)
    yield from _measure_transfers(run)


def _measure_transfers(run: CollectiveRun) -> Iterator[_Kind]:
    """Compare how long each rank sends and receives with transfers over the same distance."""
    nodes = {place.rank: place.node for place in run.ranks}
    times = {
        (transfer.sender, transfer.receiver): median(transfer.times)
        for transfer in run.transfers
        if transfer.times and {transfer.sender, transfer.receiver} <= nodes.keys()
    }
    by_distance: dict[bool, list[float]] = {}
    for (sender, receiver), seconds in times.items():
        by_distance.setdefault(nodes[sender] == nodes[receiver], []).append(seconds)
    usual = {is_local: median(distances) for is_local, distances in by_distance.items()}
    for side, (title, column) in enumerate((("sends slowly", TO), ("receives slowly", FROM))):
        ratios: dict[int, list[float]] = {}
        for pair, seconds in times.items():
            expected = usual[nodes[pair[0]] == nodes[pair[1]]]
            ratios.setdefault(pair[side], []).append(seconds / expected if expected else 1.0)
        lags = {(rank, column): _compare_transfers(rank, own) for rank, own in ratios.items()}
        yield _Kind(title, (column,) if lags else (), lags)


def _compare_transfers(rank: int, ratios: Sequence[float]) -> Square:
    more = median(ratios) - 1
    text = f"rank {rank}: {format_number(more * 100)} % longer than others"
    return Square(text, share=max(0.0, more))


def _choose_worst(squares: Iterable[Square | None]) -> Square | None:
    return max((s for s in squares if s), key=lambda square: square.share, default=None)


def _compare(seconds: float, delay: RankDelay, step: float) -> Square:
    if seconds <= delay.clock_error or step <= 0:
        return Square("no delay")
    share = f"{format_number(seconds / step * 100)} % of a step"
    return Square(
        f"rank {delay.rank}: {format_scaled(seconds, 's')}, {share}", share=seconds / step
    )
