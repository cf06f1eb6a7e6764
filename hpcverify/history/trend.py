"""
The past of the parts that may have changed, found by a cheap look at all of them.

DuckDB takes the median of each night, divides each run by it, and compares medians of the last
runs of a part with those before, metric by metric. Runs are read only of parts that may have
changed, and of some of those with several drivers, which say what a driver did to all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from math import ceil, sqrt

from msgspec.structs import replace

from hpcverify.history.duck import quote
from hpcverify.history.screen import PeerMetric, Screen, shorten_key
from hpcverify.history.values import name_part
from hpcverify.peers.rule import SCREEN_SCORE
from hpcverify.stats import MAD_SCALE, MEDIAN_ERROR
from hpcverify.trends.fleet import (
    FIRST_RUNS,
    LAST_RUNS,
    MIN_RUNS,
    RUNS_BEFORE,
    FleetPast,
    RunPeaks,
    find_peaks,
)
from hpcverify.trends.levels import FleetLevels, NightLevel, PartHistory, collect_levels

MAX_RUNS, LAST_NIGHTS = 25, 15
"""If parts ran much more often, the last nights are looked at, and every n-th before."""
MAX_HISTORIES = 1000
"""Parts of a metric that are read."""
MAX_CARRIERS = 400
"""Parts that say what a new driver did, chosen by the hash of their names."""
MAX_SEEN = 200
"""Parts that say how often a single run is far, chosen like this too."""
MARKS = ("driver", "firmware")
WHOLE_MARKS = ", ".join(f"coalesce({mark}, '') as {mark}" for mark in MARKS)
REACHED = "median(value), count(*), min(node) <> max(node)"
EPOCH = date(1970, 1, 1)
SAFE_SHARE = 0.5
"""The first look has the medians of slightly other runs: it asks for half of the least change."""


def read_pasts(
    screen: Screen, find_least: Callable[[PeerMetric], float | None]
) -> Iterator[tuple[PeerMetric, FleetPast]]:
    """
    Read the runs of the parts that may have changed, metric by metric.

    *find_least* gives the least relative change that is worth a word; None: not judged.
    """
    counts = screen.count_by_night()
    nights = ", ".join(map(quote, choose_nights(counts)))
    looked_at = f"night in ({nights})" if nights else "false"
    by_check: defaultdict[str, list[PeerMetric]] = defaultdict(list)
    for metric in screen.list_metrics(looked_at):
        if find_least(metric) is not None:
            by_check[metric.check].append(metric)
    for check, metrics in by_check.items():
        names = ", ".join(quote(metric.metric) for metric in metrics)
        rows = (
            f"(select * replace ({WHOLE_MARKS}) from {screen.rows} where {looked_at}"
            f" and check_name = {quote(check)} and metric in ({names}))"
        )
        key, by_key = shorten_key(metrics)
        for values, levels in _divide_runs(screen, rows, key).items():
            metric = by_key[values]
            least, series = find_least(metric) or 0.0, max(counts.values())
            is_metric = " and ".join(
                f"{name} = {quote(value)}"
                for name, value in zip(key.split(", "), values, strict=True)
            )
            yield metric, _read_past(screen, is_metric, levels, least, series)


def choose_nights(counts: Mapping[date, int]) -> list[date]:
    """
    Choose the nights that are looked at, by how many values each has: the last, and some before.

    All, if most nodes do not run every night.
    """
    nights = sorted(counts)
    runs = sum(counts.values()) / max(counts.values(), default=1)
    apart = max(1, ceil((runs - LAST_NIGHTS) / (MAX_RUNS - LAST_NIGHTS)))
    return sorted({*nights[-LAST_NIGHTS:], *nights[::apart]})


def _divide_runs(screen: Screen, rows: str, key: str) -> dict[tuple[str, ...], FleetLevels]:
    """
    Make the tables of a check: its runs, each with its level, and what that makes of each part.

    One look at all metrics of a check, which *key* tells apart, costs little more than at one.
    """
    size = len(key.split(", "))
    found: defaultdict[tuple[str, ...], list[NightLevel]] = defaultdict(list)
    columns = f"{key}, night, {', '.join(MARKS)}"
    for row in screen.fetch(f"select {columns}, {REACHED} from {rows} group by all order by all"):
        night, driver, firmware, *reached = row[size:]
        found[row[:size]].append(NightLevel((night - EPOCH).days, (driver, firmware), *reached))
    several = any(len({level.mark for level in of}) > 1 for of in found.values())
    if several:
        columns = f"{key}, night"
        for row in screen.fetch(f"select {columns}, {REACHED} from {rows} group by all"):
            night, *reached = row[size:]
            found[row[:size]].append(NightLevel((night - EPOCH).days, None, *reached))
    else:
        for of in found.values():
            of += [replace(level, mark=None) for level in of]
    levels = {values: collect_levels(of) for values, of in found.items()}
    listed = ", ".join(
        f"({', '.join(map(quote, (*values, EPOCH + timedelta(night), *mark)))}, {divisor!r})"
        for values, of in levels.items()
        for mark, nights in of.by_mark.items()
        if mark is not None
        for night in nights
        if (divisor := of.find(night, mark))
    )
    if not listed:  # most values are 0: there are no relative changes
        return {}
    screen.run(
        f"create or replace temp table levels as select * replace (night::date as night,"
        f" level::double as level) from (values {listed})"
        f" levels({key}, night, {', '.join(MARKS)}, level)"
    )
    screen.run(
        f"create or replace temp view divided as select * from {rows} join levels using ("
        f"{key}, night{', ' + ', '.join(MARKS) if several else ''})"
    )
    screen.run(
        f"create or replace temp table past as select {key}, node, part, max(label) as label,"
        " list(value / abs(level) order by started) as ratios from divided"
        f" group by {key}, node, part having count(*) >= {MIN_RUNS}"
    )
    return levels


def _read_past(
    screen: Screen, is_metric: str, levels: FleetLevels, least: float, series: int
) -> FleetPast:
    parts_of_metric = f"(select * from past where {is_metric})"
    ((parts, spread),) = screen.fetch(
        f"select count(*), coalesce({MAD_SCALE} * median(list_aggregate(ratios, 'mad')), 0)"
        f" from {parts_of_metric}"
    )
    histories = _read_histories(
        screen,
        is_metric,
        f"select node, part, label from {parts_of_metric}"
        f" where {write_move_condition(least, spread)} limit {MAX_HISTORIES}",
    )
    carriers, count = _read_carriers(screen, is_metric) if len(levels.by_mark) > 2 else ([], 0)  # noqa: PLR2004 - that of all, and of one driver
    some = f"select ratios from {parts_of_metric} order by hash(node || part) limit {MAX_SEEN}"
    return FleetPast(
        histories=histories,
        carriers=carriers,
        weight=max(1.0, count / MAX_CARRIERS),
        levels=levels,
        parts=parts,
        spread=spread,
        peaks=find_peaks(ratios for (ratios,) in screen.fetch(some)) if histories else RunPeaks(),
        series=series,
    )


def write_move_condition(least: float, spread: float) -> str:
    """
    Write the condition of SQL for a part that may have changed by the share *least*.

    It is on the safe side; *spread* is the relative one between the runs of a part.
    """
    just_before = f"ratios[-{LAST_RUNS[0] + RUNS_BEFORE}:-{LAST_RUNS[0] + 1}]"
    befores = ((just_before, RUNS_BEFORE), (f"ratios[:{FIRST_RUNS}]", FIRST_RUNS))
    terms = []
    for count in LAST_RUNS:
        for before, runs in befores:
            error = MEDIAN_ERROR * sqrt(1 / count + 1 / runs) * spread
            far = max(SAFE_SHARE * least, SCREEN_SCORE * error)
            now, then = (f"list_median({some})" for some in (f"ratios[-{count}:]", before))
            terms.append(f"abs({now} - {then}) >= abs({then}) * {far!r}")
    return " or ".join(terms)


def _read_carriers(screen: Screen, is_metric: str) -> tuple[list[PartHistory], int]:
    screen.run(
        "create or replace temp table carriers as select node, part, max(label) as label"
        f" from divided where {is_metric} group by node, part"
        " having min(driver) <> max(driver) or min(firmware) <> max(firmware)"
    )
    ((count,),) = screen.fetch("select count(*) from carriers")
    some = f"select * from carriers order by hash(node || part) limit {MAX_CARRIERS}"
    return _read_histories(screen, is_metric, some), count


def _read_histories(screen: Screen, is_metric: str, chosen: str) -> list[PartHistory]:
    screen.run(f"create or replace temp table chosen as {chosen}")
    nodes = [node for (node,) in screen.fetch("select distinct node from chosen")]
    if not nodes:
        return []
    lists = ", ".join(
        f"list({column} order by started)"
        for column in ("epoch(started)", "value", "level", *MARKS)
    )
    query = (  # the nodes by themselves: the join alone would have to look at all parts
        f"select node, part, max(chosen.label), {lists} from (select * from divided where"
        f" {is_metric} and node in ({', '.join(map(quote, nodes))})) runs"
        " join chosen using (node, part) group by node, part order by node, part"
    )
    return [
        PartHistory(
            node=node,
            part=name_part(part, label),
            times=tuple(times),
            values=tuple(values),
            levels=tuple(levels),
            marks=dict(zip(MARKS, map(tuple, marks), strict=True)),
        )
        for node, part, label, times, values, levels, *marks in screen.fetch(query)
    ]
