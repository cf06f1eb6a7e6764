"""
The past of the parts that may have moved, found by a cheap look at all of them.

The slope is that of least squares over all runs, the step how far the median of the last
few runs is from the mean of all. Both come out of one pass over a metric, which keeps only the
last few runs of each part, so that memory grows with the parts of one metric and not with the
nights. Runs are read only of parts that moved farther than chance takes them; and of some of those
with a new driver or firmware, moved or not, so that `hpcverify.trends` can tell a rollout from a
fault by what it did to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date
from math import ceil, sqrt
from statistics import NormalDist

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.history.duck import quote
from hpcverify.history.screen import PeerMetric, Screen
from hpcverify.history.values import name_part
from hpcverify.peers.rule import FALSE_SHARE
from hpcverify.stats import MEDIAN_ERROR
from hpcverify.trends.marks import (
    LASTING_RUNS,
    HistoryPopulation,
    MarkChange,
    PartHistory,
    find_mark_effects,
)

MIN_TREND_RUNS = LASTING_RUNS + 1
"""With fewer in the nights that are looked at, nothing is seen of a part."""
MAX_RUNS, LAST_NIGHTS = 20, 10
"""If parts ran much more often, the first look takes the last nights, and every n-th before."""
MAX_HISTORIES = 200
"""If more parts of a metric moved, these are chosen by the hash of their names."""
MAX_CARRIERS = 60
"""Parts that are read to say what a mark does to all who have it, chosen like this too."""
MARKS = ("driver", "firmware")
SLOPE_ERROR = sqrt(12)
"""What a line of least squares gains from end to end has an error of sqrt(12 / n) sigma."""
HALF = 0.5
"""The mean of all runs is half-way to a step that half of them have."""
FEW_RUNS_BIAS = 0.916
"""The median of the standard deviations of five normal values is 0.916 sigma."""


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
    counts = screen.count_by_night()
    series = max(counts.values(), default=0)
    nights = ", ".join(map(quote, choose_nights(counts)))
    looked_at = f"night in ({nights})" if nights else "false"
    for metric in screen.list_metrics(looked_at):
        if (least := find_least(metric)) is not None:
            past = _read_past(screen, metric, least, series, looked_at)
            if past.moved:
                yield past


def choose_nights(counts: Mapping[date, int]) -> list[date]:
    """
    Choose the nights of the first look, by how many values each has: the last, and some before.

    All, if most nodes do not run every night.
    """
    nights = sorted(counts)
    runs = sum(counts.values()) / max(counts.values(), default=1)
    apart = ceil(runs / MAX_RUNS) or 1  # of a history without values, all nights
    return sorted({*nights[-LAST_NIGHTS:], *nights[::apart]})


def _read_past(
    screen: Screen, metric: PeerMetric, least: float, series: int, looked_at: str
) -> MetricPast:
    """Read of *metric* who may have moved; *looked_at* is the condition of the first look."""
    rows = screen.select(metric)
    looked_at_rows = f"(select * from {rows} where {looked_at})"
    screen.run(f"create or replace temp table part_trend as {write_trend_query(looked_at_rows)}")
    ((parts, spread),) = screen.fetch(
        f"select count(*), coalesce(median(noise / abs(centre)) / {FEW_RUNS_BIAS}, 0)"
        " from part_trend"
    )
    screen.run(
        "create or replace temp table moved as select node, part, label from part_trend"
        f" where {write_move_condition(least, spread, series)}"
    )
    ((moved,),) = screen.fetch("select count(*) from moved")
    population = HistoryPopulation(parts=parts, effects={}, spread=spread, series=series)
    if not moved:
        return MetricPast(metric, 0, (), population)
    histories = tuple(_read_histories(screen, rows, MOVED))
    carriers = _count_carriers(screen, rows)
    effects = (
        find_mark_effects(_read_histories(screen, rows, CARRIERS), carriers) if carriers else {}
    )
    population = replace(population, effects=effects, weight=moved / len(histories))
    return MetricPast(metric, moved, histories, population)


def write_trend_query(rows: str) -> str:
    """Write the query of SQL that says how each part of *rows*, all of one metric, has moved."""
    day = "epoch(started) / 86400"
    return (
        "select * exclude (lately), list_aggregate(lately, 'median') as recent,"
        " list_aggregate(lately, 'stddev_samp') as noise from (select node, part,"
        " max(label) as label, count(*) as runs, avg(value) as centre,"
        f" arg_max(value, started, {LASTING_RUNS}) as lately,"
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


MOVED = f"select * from moved order by hash(node || part) limit {MAX_HISTORIES}"
CARRIERS = (
    "select distinct node, part, label from (select *, row_number() over (partition by field,"
    " before, after order by hash(node || part)) as place from changed) join part_trend"
    f" using (node, part) where place <= {MAX_CARRIERS}"
)


def _read_histories(screen: Screen, rows: str, chosen: str) -> Iterator[PartHistory]:
    nodes = screen.fetch(f"select distinct node from ({chosen})")
    screen.run(  # by itself: a join would have to look at the parts of all nodes
        "create or replace temp table runs as select node, part, started, value, driver, firmware"
        f" from {rows} where node in ({', '.join(quote(node) for (node,) in nodes)})"
    )
    query = (
        "select node, part, max(label), list(epoch(started) order by started),"
        " list(value order by started), list(driver order by started),"
        f" list(firmware order by started) from runs join ({chosen}) using (node, part)"
        " group by node, part order by node, part"
    )
    for node, part, label, times, values, *marks in screen.fetch(query):
        yield PartHistory(
            node=node,
            part=name_part(part, label),
            times=tuple(times),
            values=tuple(values),
            marks={
                field: tuple(mark or "" for mark in seen)
                for field, seen in zip(MARKS, marks, strict=True)
            },
        )


def _count_carriers(screen: Screen, rows: str) -> dict[MarkChange, int]:
    fields = _list_changed_marks(screen, rows)
    if not fields:
        return {}
    seen = f"node, part, {', '.join(fields)}"
    screen.run(
        f"create or replace temp table marks as select {seen}, min(started) as first,"
        f" max(started) as last from {rows} semi join part_trend using (node, part) group by {seen}"
    )
    changed = " union all ".join(_write_changes(screen, rows, field) for field in fields)
    screen.run(f"create or replace temp table changed as {changed}")
    counts = screen.fetch(
        "select field, before, after, count(*) from changed group by field, before, after"
    )
    return {MarkChange(field, before, after): count for field, before, after, count in counts}


def _write_changes(screen: Screen, rows: str, field: str) -> str:
    """
    Write the query for the parts that went from one value of *field* to another, and for both.

    The first and the last run with each value tell it, but of a part that went back to one it had
    before: of those parts, which are few or have a rollback in common, all runs are looked at.
    """
    spans, returned = f"{field}_spans", f"{field}_returned"
    screen.run(
        f"create or replace temp table {spans} as select *, lag(after) over own as before,"
        " lag(last) over own > first as is_again from (select node, part,"
        f" {field} as after, min(first) as first, max(last) as last from marks where {field} <> ''"
        " group by node, part, after) window own as (partition by node, part order by first)"
    )
    screen.run(
        f"create or replace temp table {returned} as select distinct node, part from {spans}"
        " where is_again"
    )
    return (
        f"select '{field}' as field, node, part, before, after from (select node, part, before,"
        f" after from {spans} anti join {returned} using (node, part) union all select distinct"
        f" node, part, before, after from (select node, part, {field} as after, lag({field}) over"
        f" (partition by node, part order by started) as before from {rows} semi join {returned}"
        f" using (node, part) where {field} <> '')) where before <> after"
    )


def _list_changed_marks(screen: Screen, rows: str) -> list[str]:
    """List the marks of which *rows* have several: in most quarters and metrics, none."""
    counts = ", ".join(f"count(distinct nullif({field}, ''))" for field in MARKS)
    ((*several,),) = screen.fetch(f"select {counts} from {rows}")
    return [field for field, count in zip(MARKS, several, strict=True) if count > 1]
