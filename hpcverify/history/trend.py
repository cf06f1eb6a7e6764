"""
The past of the parts that may have moved, found by a cheap look at all of them.

The slope is that of least squares over all runs, the step how far the median of the last
few runs is from the median of all. Both come out of one pass over a metric, so that 90
nights of 10,000 nodes need no more memory than one metric has parts. Only of parts that moved
farther than chance takes them are the runs read, and the rest of the fleet is counted, so that
`hpcverify.trends` can tell a rollout from a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import sqrt
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.history.screen import PeerMetric, Screen
from hpcverify.history.values import name_part
from hpcverify.peers.rule import FALSE_SHARE, MAD_SCALE
from hpcverify.peers.values import MEDIAN_ERROR
from hpcverify.trends.change import MIN_AFTER, MIN_PAST
from hpcverify.trends.judge import LASTING_RUNS, HistoryPopulation, MarkChange, PartHistory

MIN_TREND_RUNS = MIN_PAST + MIN_AFTER
"""With fewer, a part has no past."""
MAX_HISTORIES = 200
"""Of a metric in which more parts moved, so many are read, chosen by their names' hash."""
MARKS = ("driver", "firmware")
SLOPE_ERROR = sqrt(12)
"""What a line of least squares gains from end to end has an error of sqrt(12 / n) sigma."""
HALF = 0.5
"""The median of all runs is half-way to a step that half of them have."""


class MetricPast(Struct, frozen=True):
    """The parts that may have moved in a metric, and what they were chosen from."""

    of: PeerMetric
    moved: int
    histories: tuple[PartHistory, ...]
    population: HistoryPopulation


def read_pasts(
    screen: Screen, find_least: Callable[[PeerMetric], float | None]
) -> Iterator[MetricPast]:
    """
    Read the runs of the parts that may have moved, metric by metric.

    *find_least* gives the least relative change that is worth a word; None: not judged.
    """
    series = screen.count_series()
    for metric in screen.list_metrics():
        if (least := find_least(metric)) is not None:
            past = _read_past(screen, metric, least, series)
            if past.moved:
                yield past


def _read_past(screen: Screen, metric: PeerMetric, least: float, series: int) -> MetricPast:
    rows = screen.select(metric)
    screen.run(f"create or replace temp table part_trend as {write_trend_query(rows)}")
    ((parts, spread),) = screen.fetch(
        f"select count(*), coalesce(median({MAD_SCALE} * mad / abs(centre)), 0) from part_trend"
    )
    screen.run(
        "create or replace temp table moved as select node, part, label from part_trend"
        f" where {write_move_condition(least, spread, series)}"
    )
    ((moved,),) = screen.fetch("select count(*) from moved")
    population = HistoryPopulation(parts=parts, carriers={}, spread=spread, series=series)
    if not moved:
        return MetricPast(metric, 0, (), population)
    histories = tuple(_read_histories(screen, rows))
    population = replace(
        population, carriers=_count_carriers(screen, rows), weight=moved / len(histories)
    )
    return MetricPast(metric, moved, histories, population)


def write_trend_query(rows: str) -> str:
    """Write the query of SQL that says how each part of *rows*, all of one metric, has moved."""
    day = "epoch(started) / 86400"
    return (
        "select * from (select node, part, max(label) as label, count(*) as runs,"
        " median(value) as centre, mad(value) as mad,"
        f" list_aggregate(arg_max(value, started, {LASTING_RUNS}), 'median') as recent,"
        f" coalesce(regr_slope(value, {day}), 0) * (max({day}) - min({day})) as drift"
        f" from {rows} group by node, part having count(*) >= {MIN_TREND_RUNS}) where centre <> 0"
    )


def write_move_condition(least: float, spread: float, series: int) -> str:
    """
    Write the condition of SQL for a part that may have moved by the share *least*.

    It is on the safe side: *spread* is the relative one between the runs of a part, and of
    *series* in all, chance alone takes one in a hundred fleets twice as far.
    """
    far = HALF * NormalDist().inv_cdf(1 - FALSE_SHARE / max(1, series)) * spread
    step = f"greatest({HALF * least!r}, {far * MEDIAN_ERROR / sqrt(LASTING_RUNS)!r})"
    drift = f"greatest({HALF * least!r}, {far * SLOPE_ERROR!r} / sqrt(runs))"
    return f"abs(recent - centre) >= abs(centre) * {step} or abs(drift) >= abs(centre) * {drift}"


def _read_histories(screen: Screen, rows: str) -> Iterator[PartHistory]:
    """Read the runs of the parts in the table `moved`, in order."""
    query = (
        "select node, part, max(m.label), list(epoch(started) order by started),"
        " list(value order by started), list(driver order by started),"
        f" list(firmware order by started) from {rows} join (select * from moved"
        f" order by hash(node || part) limit {MAX_HISTORIES}) m using (node, part)"
        " group by node, part order by node, part"
    )
    for node, part, label, times, values, *marks in screen.fetch(query):
        yield PartHistory(
            node=node,
            part=name_part(part, label),
            times=tuple(times),
            values=tuple(values),
            marks={
                field: tuple(one or "" for one in seen)
                for field, seen in zip(MARKS, marks, strict=True)
            },
        )


def _count_carriers(screen: Screen, rows: str) -> dict[MarkChange, int]:
    """Count the parts with a long past that have made each change of a mark."""
    found: dict[MarkChange, int] = {}
    for field in MARKS:
        query = (
            f"select before, after, count(*) from (select lag({field}) over (partition by node,"
            f" part order by first) as before, {field} as after from (select node, part, {field},"
            f" min(started) as first from {rows} semi join part_trend using (node, part)"
            f" where {field} <> '' group by node, part, {field})) where before is not null"
            " group by before, after"
        )
        for before, after, count in screen.fetch(query):
            found[MarkChange(field, before, after)] = count
    return found
