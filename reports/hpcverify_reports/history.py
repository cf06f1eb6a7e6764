"""
The history of a node: its earlier runs, and what has changed since.

A value is compared with earlier ones of the same part and suite: another suite puts
another load on the part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import NamedTuple

from hpcverify.check import applies
from hpcverify.model import Inventory, Run, Verdict, effective_verdict
from hpcverify.stats import MAD_SCALE, find_mad
from hpcverify.summary.rounds import choose_worst_rounds, compute_medians, group_by_check
from hpcverify.units import choose_unit
from hpcverify_reports.labels import ICONS, Icon, format_with_unit
from hpcverify_reports.svg import Sparkline, draw_sparkline, is_drawable

MIN_EARLIER_VALUES = 3
"""Fewer earlier values have no meaningful median and spread."""
MAX_SHOWN_RUNS = 30
"""Runs in the table and points of a sparkline."""
MAX_METRICS = 20
"""Metrics in the table: those that deviate most from their own history."""

LEAST_SPREAD = 1e-3
"""Relative: without it, a value that never varied would be infinitely far off at any change."""
LEAST_DISTANCE = 1e-12
"""In the unit, for values around 0."""


@dataclass(frozen=True, slots=True)
class MetricTrend:
    """One metric of one part: its history, and its value in this run."""

    check: str
    name: str
    part: str
    spark: Sparkline
    median: str
    spread: str
    last: str
    change: str
    count: int


class MetricKey(NamedTuple):
    """A metric of one part."""

    check: str
    name: str
    part_id: str
    unit: str


@dataclass(frozen=True, slots=True)
class PastComparison:
    """How far a value is from the earlier ones of its part, in their spreads."""

    key: MetricKey
    value: float
    earlier: Sequence[float]
    median: float
    spread: float
    distance: float


@dataclass(frozen=True, slots=True)
class History:
    """Earlier runs, newest first, and trends, largest deviation first."""

    runs: tuple[tuple[Run, Icon, str], ...]
    """Each with the icon of its verdict, and the decisive checks."""
    older: int
    """How many runs are older than these."""
    trends: tuple[MetricTrend, ...]
    suite: str


def build_history(run: Run, others: Sequence[Run]) -> History | None:
    """Lay out the runs among *others* that are earlier than *run*; None if there are none."""
    past = sorted(
        (o for o in others if o.id != run.id and o.started <= run.started),
        key=lambda earlier: (earlier.started, earlier.id),
    )
    if not past:
        return None
    return History(
        runs=tuple(
            (one, ICONS[one.verdict], _name_decisive(one))
            for one in past[: -MAX_SHOWN_RUNS - 1 : -1]
        ),
        older=max(0, len(past) - MAX_SHOWN_RUNS),
        trends=tuple(_compute_trends(run, past)),
        suite=run.suite,
    )


def _name_decisive(run: Run) -> str:
    worst = choose_worst_rounds(run.results) if run.verdict is not Verdict.PASS else ()
    named = "; ".join(r.check for r in worst if effective_verdict(r) is run.verdict)
    return named if run.complete else f"{named} (interrupted)".lstrip()


def _compute_trends(run: Run, past: Sequence[Run]) -> Iterator[MetricTrend]:
    """Yield of each metric the part that deviates most from its own history."""
    judged = {
        MetricKey(result.check, item.name, item.part_id, item.unit)
        for result in run.results
        for item in result.measurements
        if any(applies(limit, item) for limit in result.limits)
    }
    earlier: defaultdict[MetricKey, list[float]] = defaultdict(list)
    for before in past:
        if before.suite == run.suite:
            for key, value in _list_values(before):
                earlier[key].append(value)
    moved = (
        _measure(key, value, earlier[key])
        for key, value in _list_values(run)
        if key in judged and len(earlier[key]) >= MIN_EARLIER_VALUES
    )
    farthest: dict[tuple[str, str], PastComparison] = {}
    for one in sorted(moved, key=lambda one: (-one.distance, one.key)):
        if one.distance or one.spread:  # else it has never moved
            farthest.setdefault((one.key.check, one.key.name), one)
    for one in islice(farthest.values(), MAX_METRICS):
        yield _build_trend(one, run.inventory)


def _list_values(run: Run) -> Iterator[tuple[MetricKey, float]]:
    for check, rounds in group_by_check(run.results).items():
        for item in compute_medians(rounds):
            if item.value is not None and is_drawable(item.value):
                yield MetricKey(check, item.name, item.part_id, item.unit), item.value


def _measure(key: MetricKey, value: float, earlier: Sequence[float]) -> PastComparison:
    """Measure how far *value* is off; one outlier among the *earlier* ones cannot spoil it."""
    middle = median(earlier)
    spread = MAD_SCALE * find_mad(earlier, middle)
    floor = abs(middle) * LEAST_SPREAD + LEAST_DISTANCE
    distance = abs(value - middle) / max(spread, floor)
    return PastComparison(key, value, earlier, middle, spread, distance)


def _build_trend(one: PastComparison, inventory: Inventory) -> MetricTrend:
    unit, factor = choose_unit((one.median, one.value), one.key.unit)
    middle, last = one.median * factor, one.value * factor
    values = [*(value * factor for value in one.earlier[-MAX_SHOWN_RUNS:]), last]
    change = f"{last / middle - 1:+.1%}" if middle else f"{last - middle:+.4g}"
    return MetricTrend(
        check=one.key.check,
        name=one.key.name,
        part=inventory.find_label(one.key.part_id),
        spark=draw_sparkline(
            f"{len(values)} runs, latest {format_with_unit(last, unit)}", values, middle
        ),
        median=format_with_unit(middle, unit),
        spread=format_with_unit(one.spread * factor, unit),
        last=format_with_unit(last, unit),
        change=change.replace("-", "\N{MINUS SIGN}"),
        count=len(one.earlier),
    )
