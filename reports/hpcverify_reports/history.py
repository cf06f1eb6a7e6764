"""
The history of a node: its earlier runs, and what has changed since.

A value is compared with earlier ones of the same part and suite: another suite puts
another load on the part. pandas is imported only here, and only if there are earlier runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcverify.check import applies
from hpcverify.model import Inventory, Run, Verdict, effective_verdict
from hpcverify.summary.rounds import choose_worst_rounds, compute_medians, group_by_check
from hpcverify_reports.labels import ICONS, Icon, format_with_unit
from hpcverify_reports.svg import Sparkline, draw_sparkline, is_drawable

if TYPE_CHECKING:
    import pandas as pd

MIN_EARLIER_VALUES = 3
"""Fewer earlier values have no meaningful median and spread."""
MAX_SHOWN_RUNS = 30
"""Runs in the table and points of a sparkline."""
MAX_METRICS = 20
"""Metrics in the table: those that deviate most from their own history."""

_KEY_COLUMNS = ["check", "name", "where", "unit"]
_SIGMA_PER_MAD = 1.4826
"""Standard deviation by median absolute deviation, of a normal distribution."""


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
    import pandas as pd  # noqa: PLC0415 - 300 ms, wasted without a history

    judged = {
        (result.check, item.name, item.where, item.unit)
        for result in run.results
        for item in result.measurements
        if any(applies(limit, item) for limit in result.limits)
    }
    same = [row for one in past if one.suite == run.suite for row in _list_values(one)]
    earlier_rows = [row for row in same if row[:4] in judged]
    rows = [row for row in _list_values(run) if row[:4] in judged]
    if not earlier_rows or not rows:
        return
    columns = [*_KEY_COLUMNS, "value"]
    earlier = pd.DataFrame(earlier_rows, columns=columns).groupby(_KEY_COLUMNS)["value"]
    today = pd.DataFrame(rows, columns=columns)
    stats = earlier.agg(["count", "median", spread])
    frame = today.set_index(_KEY_COLUMNS).join(stats, how="inner")
    enough = frame["count"] >= MIN_EARLIER_VALUES
    moved = (frame["spread"] > 0) | (frame["value"] != frame["median"])
    farthest = _keep_farthest(frame.loc[enough & moved])
    for key, row in farthest.to_dict("index").items():
        values = [*earlier.get_group(key).tail(MAX_SHOWN_RUNS).tolist(), row["value"]]
        yield _build_trend(key, row, values, run.inventory)


def _list_values(run: Run) -> Iterator[tuple[str, str, str, str, float]]:
    for check, rounds in group_by_check(run.results).items():
        for item in compute_medians(rounds):
            if item.value is not None and is_drawable(item.value):
                yield check, item.name, item.where, item.unit, item.value


def spread(values: pd.Series) -> float:
    """Estimate the standard deviation so that one outlier cannot spoil it."""
    return _SIGMA_PER_MAD * float((values - values.median()).abs().median())


def _keep_farthest(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep of each metric the part that deviates most from its own history."""
    off = (frame["value"] - frame["median"]).abs()
    # Without a floor, a value that never varied would be infinitely far off at any change.
    floor = frame["median"].abs() * 1e-3 + 1e-12
    ordered = (
        frame.assign(distance=off / frame["spread"].clip(lower=floor))
        .reset_index()
        .sort_values(["distance", *_KEY_COLUMNS], ascending=[False, *(True for _ in _KEY_COLUMNS)])
        .drop_duplicates(["check", "name"])
    )
    return ordered.head(MAX_METRICS).set_index(_KEY_COLUMNS)


def _build_trend(key: Any, row: Any, values: Sequence[float], inventory: Inventory) -> MetricTrend:
    check, name, where, unit = key
    median, last = float(row["median"]), float(row["value"])
    change = f"{last / median - 1:+.1%}" if median else f"{last - median:+.4g}"
    return MetricTrend(
        check=check,
        name=name,
        part=inventory.find_label(where),
        spark=draw_sparkline(
            f"{len(values)} runs, latest {format_with_unit(last, unit)}", values, median
        ),
        median=format_with_unit(median, unit),
        spread=format_with_unit(float(row["spread"]), unit),
        last=format_with_unit(last, unit),
        change=change.replace("-", "\N{MINUS SIGN}"),
        count=int(row["count"]),
    )
