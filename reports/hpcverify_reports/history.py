"""
The history of a node: its earlier runs, and what has changed since.

A value is compared with earlier ones of the same part and suite: another suite puts
another load on the part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median
from typing import NamedTuple

from hpcverify.check import LimitIndex
from hpcverify.model import Inventory, Measurement, Run, Verdict, effective_verdict
from hpcverify.stats import MAD_SCALE, find_mad
from hpcverify.summary.rounds import choose_worst_rounds, compute_medians, group_by_check
from hpcverify.summary.wording import format_duration
from hpcverify.units import DAY_SECONDS, choose_unit
from hpcverify_reports.labels import (
    ICONS,
    choose_shown_unit,
    format_number,
    format_time,
    format_unit,
    format_with_unit,
)
from hpcverify_reports.svg import Axis, Tick, Trace, draw_chart, draw_sparkline, is_drawable
from hpcverify_reports.tables import (
    Cells,
    PageSection,
    Picture,
    TableCell,
    TableColumn,
    build_table,
)

MIN_EARLIER_VALUES = 3
"""Fewer earlier values have no meaningful median and spread."""
MAX_PICTURES, MAX_DATES = 2, 5
"""Metrics that have a picture, and about as many dates below each."""
MAX_SHOWN_RUNS = 30
"""Runs in the table, and points of a sparkline."""
MAX_METRICS = 20
"""Metrics in the table: those that deviate most from their own history."""

TRENDS_NOTE = (
    "For each metric with a limit: the part that deviates most from its own median in earlier runs "
    "of suite"
)
TREND_COLUMNS: tuple[TableColumn | str, ...] = (
    *("Metric", "Part", "Trend"),
    *(TableColumn(head, "n") for head in ("Earlier runs", "Earlier median", "Spread")),
    *(TableColumn(head, "n") for head in ("This run", "Change")),
)
RUN_COLUMNS: tuple[TableColumn | str, ...] = (
    *("Started", "Verdict", "Decisive checks", "Suite"),
    *(TableColumn("Took", "n"), TableColumn("Run", "code")),
)
LEAST_SPREAD = 1e-3
"""Relative: without it, a value that never varied would be infinitely far off at any change."""
LEAST_DISTANCE = 1e-12
"""In the unit, for values around 0."""


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
    times: Sequence[float]
    """When the earlier values were measured, in seconds since 1970."""
    earlier: Sequence[float]
    median: float
    spread: float
    distance: float


def build_history(run: Run, others: Sequence[Run]) -> PageSection | None:
    """
    Lay out the runs among *others* that are earlier than *run*; None if there are none.

    The first table has the metrics that moved most, the second one the runs, newest first.
    """
    past = sorted(
        (o for o in others if o.id != run.id and o.started <= run.started),
        key=lambda earlier: (earlier.started, earlier.id),
    )
    if not past:
        return None
    comparisons = list(_compare(run, past))
    trends = [_build_trend(comparison, run.inventory) for comparison in comparisons]
    pictures = [_draw_nights(comparison, run, past) for comparison in comparisons[:MAX_PICTURES]]
    runs = [_build_run(earlier) for earlier in past[: -MAX_SHOWN_RUNS - 1 : -1]]
    older = f" (plus {len(past) - len(runs)} older runs)" if len(past) > len(runs) else ""
    return PageSection(
        "history-heading",
        "History",
        (f"{TRENDS_NOTE} {run.suite}, largest deviation first.",) if trends else (),
        tables=(
            build_table(
                "Changes since earlier runs",
                TREND_COLUMNS,
                trends,
                caption="Changes since earlier runs",
            ),
            build_table(
                "Earlier runs",
                RUN_COLUMNS,
                runs,
                caption=f"Earlier runs, newest first{older}",
            ),
        ),
        pictures=tuple(picture for picture in pictures if picture),
    )


def choose_dates(times: Sequence[float]) -> list[float]:
    """Choose at most `MAX_DATES` of the ascending *times*, so that their dates do not overlap."""
    gap, shown = max(DAY_SECONDS, (times[-1] - times[0]) / MAX_DATES), [times[0]]
    for time in times:
        if time - shown[-1] >= gap:
            shown.append(time)
    return shown


def _draw_nights(comparison: PastComparison, run: Run, past: Sequence[Run]) -> Picture | None:
    """Draw a metric over the nights, with its limits and the changes of software."""
    key, result = comparison.key, next(r for r in run.results if r.check == comparison.key.check)
    item = Measurement(key.name, comparison.value, key.unit, key.part_id)
    values = [*comparison.earlier, comparison.value]
    times = [*comparison.times, run.started.timestamp()]
    unit, factor = choose_shown_unit(values, key.unit)
    label = run.inventory.find_label(key.part_id)
    trace = Trace(label, times, [value * factor for value in values])
    limits = {b for x in LimitIndex(result.limits).find(item) for b in (x.low, x.high) if b}
    bounds = [Tick(b * factor, f"limit {format_with_unit(b * factor, unit)}") for b in limits]
    marks = [
        Tick(after.started.timestamp(), f"{name} {after.versions[name]}")
        for before, after in pairwise((*past, run))
        for name in sorted(before.versions.keys() & after.versions.keys())
        if before.versions[name] != after.versions[name]
    ]
    axis = Axis("UTC", tuple(Tick(t, format_time(t)[5:10]) for t in choose_dates(times)))
    title = f"{key.check} {key.name}"
    chart = draw_chart(title, format_unit(unit), [trace], bounds, axis=axis, marks=marks)
    heads = ("Night", TableColumn(unit, "n"))
    cells = [(format_time(t), format_number(v)) for t, v in zip(times, trace.values, strict=True)]
    return Picture(title, build_table(title, heads, cells), chart) if chart else None


def _build_run(run: Run) -> Cells:
    return (
        format_time(run.started),
        TableCell("", icon=ICONS[run.verdict]),
        _name_decisive(run),
        run.suite,
        format_duration(run.seconds),
        run.id,
    )


def _name_decisive(run: Run) -> str:
    worst = choose_worst_rounds(run.results) if run.verdict is not Verdict.PASS else ()
    named = "; ".join(r.check for r in worst if effective_verdict(r) is run.verdict)
    return named if run.complete else f"{named} (interrupted)".lstrip()


def _compare(run: Run, past: Sequence[Run]) -> Iterator[PastComparison]:
    """Yield of each metric the part that deviates most from its own history."""
    judged = {
        MetricKey(result.check, item.name, item.part_id, item.unit)
        for result in run.results
        for limits in [LimitIndex(result.limits)]
        for item in result.measurements
        if limits.find(item)
    }
    earlier: defaultdict[MetricKey, list[tuple[float, float]]] = defaultdict(list)
    for before in past:
        if before.suite == run.suite:
            for key, value in _list_values(before):
                earlier[key].append((before.started.timestamp(), value))
    comparisons = (
        _measure(key, value, earlier[key])
        for key, value in _list_values(run)
        if key in judged and len(earlier[key]) >= MIN_EARLIER_VALUES
    )
    farthest: dict[tuple[str, str], PastComparison] = {}
    for comparison in sorted(comparisons, key=lambda c: (-c.distance, c.key)):
        if comparison.distance or comparison.spread:  # else it has never moved
            farthest.setdefault((comparison.key.check, comparison.key.name), comparison)
    yield from islice(farthest.values(), MAX_METRICS)


def _list_values(run: Run) -> Iterator[tuple[MetricKey, float]]:
    for check, rounds in group_by_check(run.results).items():
        for item in compute_medians(rounds):
            if item.value is not None and is_drawable(item.value):
                yield MetricKey(check, item.name, item.part_id, item.unit), item.value


def _measure(key: MetricKey, value: float, past: Sequence[tuple[float, float]]) -> PastComparison:
    """Measure how far *value* is off; one outlier among the *past* ones cannot spoil it."""
    times, earlier = zip(*past, strict=True)
    middle = median(earlier)
    spread = MAD_SCALE * find_mad(earlier, middle)
    floor = abs(middle) * LEAST_SPREAD + LEAST_DISTANCE
    distance = abs(value - middle) / max(spread, floor)
    return PastComparison(key, value, times, earlier, middle, spread, distance)


def _build_trend(comparison: PastComparison, inventory: Inventory) -> Cells:
    key = comparison.key
    unit, factor = choose_unit((comparison.median, comparison.value), key.unit)
    middle, last = comparison.median * factor, comparison.value * factor
    values = [*(value * factor for value in comparison.earlier[-MAX_SHOWN_RUNS:]), last]
    change = f"{last / middle - 1:+.1%}" if middle else f"{last - middle:+.4g}"
    title = f"{len(values)} runs, latest {format_with_unit(last, unit)}"
    return (
        f"{key.check} {key.name}",
        inventory.find_label(key.part_id),
        TableCell("", spark=draw_sparkline(title, values, middle)),
        str(len(comparison.earlier)),
        format_with_unit(middle, unit),
        f"± {format_with_unit(comparison.spread * factor, unit)}",
        format_with_unit(last, unit),
        change.replace("-", "\N{MINUS SIGN}"),
    )
