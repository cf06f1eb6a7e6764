"""
The past of a node: its earlier runs, and what has moved since.

A value is compared with the earlier ones of the same part under the same suite,
for another suite loads the part otherwise. pandas is imported only here, and only
when there is a past to speak of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcverify.check import applies
from hpcverify.model import Run, Verdict, standing
from hpcverify.rounds import by_check, typical, worst_rounds
from hpcverify_reports.judged import Labels
from hpcverify_reports.svg import Spark, drawable, spark
from hpcverify_reports.words import (
    MARKS,
    Mark,
    duration,
    measured,
    moment,
)

if TYPE_CHECKING:
    import pandas as pd

ENOUGH = 3
"""Earlier values from which a median and a spread mean something."""

SHOWN = 30
"""Runs in the table and points of a sparkline."""

FARTHEST = 20
"""Metrics in the table: those that lie farthest from their own past."""

_KEY = ["check", "name", "where", "unit"]
_PER_MAD = 1.4826
"""What makes a standard deviation of the median absolute deviation (normal law)."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """One run, in a line."""

    when: str
    suite: str
    mark: Mark
    took: str
    what: str
    id: str


@dataclass(frozen=True, slots=True)
class Moved:
    """One metric of one part: its past, and where it lies today."""

    check: str
    name: str
    part: str
    spark: Spark
    median: str
    spread: str
    last: str
    change: str
    count: int


@dataclass(frozen=True, slots=True)
class History:
    """The section: runs, newest first, and what has moved, the farthest first."""

    runs: tuple[Earlier, ...]
    older: tuple[str, ...]
    moved: tuple[Moved, ...]
    suite: str


def before(run: Run, others: Sequence[Run], label: Labels) -> tuple[History, ...]:
    """Lay out the past of *run*'s node; nothing if *others* hold none."""
    past = sorted(
        (o for o in others if o.id != run.id and o.started <= run.started),
        key=lambda earlier: (earlier.started, earlier.id),
    )
    if not past:
        return ()
    older = len(past) - SHOWN
    return (
        History(
            runs=tuple(_earlier(one) for one in reversed(past[-SHOWN:])),
            older=(f"and {older} before these",) if older > 0 else (),
            moved=tuple(_moved(run, past, label)),
            suite=run.suite,
        ),
    )


def _earlier(run: Run) -> Earlier:
    worst = [r for r in worst_rounds(run.results) if standing(r) is run.verdict]
    told = "; ".join(r.check for r in worst if run.verdict is not Verdict.PASS)
    return Earlier(
        when=moment(run.started),
        suite=run.suite,
        mark=MARKS[run.verdict],
        took=duration(run.seconds),
        what=told if run.complete else f"{told} (interrupted)".lstrip(),
        id=run.id,
    )


def _moved(run: Run, past: Sequence[Run], label: Labels) -> Iterator[Moved]:
    import pandas as pd  # noqa: PLC0415 - 300 ms, for nothing without a past

    judged = set(_judged(run))
    same = [row for one in past if one.suite == run.suite for row in _values(one)]
    earlier_rows = [row for row in same if row[:4] in judged]
    rows = [row for row in _values(run) if row[:4] in judged]
    if not earlier_rows or not rows:
        return
    columns = [*_KEY, "value"]
    earlier = pd.DataFrame(earlier_rows, columns=columns).groupby(_KEY)["value"]
    today = pd.DataFrame(rows, columns=columns)
    stats = earlier.agg(["count", "median", spread])
    frame = today.set_index(_KEY).join(stats, how="inner")
    enough = frame["count"] >= ENOUGH
    moved = (frame["spread"] > 0) | (frame["value"] != frame["median"])
    farthest = _farthest(frame.loc[enough & moved])
    for key, row in farthest.to_dict("index").items():
        values = [*earlier.get_group(key).tail(SHOWN).tolist(), row["value"]]
        yield _told(key, row, values, label)


def _judged(run: Run) -> Iterator[tuple[str, str, str, str]]:
    for result in run.results:
        for item in result.measurements:
            if any(applies(limit, item) for limit in result.limits):
                yield result.check, item.name, item.where, item.unit


def _values(run: Run) -> Iterator[tuple[str, str, str, str, float]]:
    for check, rounds in by_check(run.results).items():
        for item in typical(rounds):
            if item.value is not None and drawable(item.value):
                yield check, item.name, item.where, item.unit, item.value


def spread(values: pd.Series) -> float:
    """Estimate the standard deviation in a way that one odd run cannot spoil."""
    return _PER_MAD * float((values - values.median()).abs().median())


def _farthest(frame: pd.DataFrame) -> pd.DataFrame:
    """Keep of each metric the part that lies farthest from its own past."""
    off = (frame["value"] - frame["median"]).abs()
    # What never varied would be infinitely far at the least change.
    floor = frame["median"].abs() * 1e-3 + 1e-12
    ordered = (
        frame.assign(distance=off / frame["spread"].clip(lower=floor))
        .reset_index()
        .sort_values(["distance", *_KEY], ascending=[False, *(True for _ in _KEY)])
        .drop_duplicates(["check", "name"])
    )
    return ordered.head(FARTHEST).set_index(_KEY)


def _told(key: Any, row: Any, values: Sequence[float], label: Labels) -> Moved:
    check, name, where, unit = key
    median, last = float(row["median"]), float(row["value"])
    change = f"{last / median - 1:+.1%}" if median else f"{last - median:+.4g}"
    return Moved(
        check=check,
        name=name,
        part=label(where),
        spark=spark(
            f"{len(values)} runs, the last one {measured(last, unit)}", values, median
        ),
        median=measured(median, unit),
        spread=measured(float(row["spread"]), unit),
        last=measured(last, unit),
        change=change.replace("-", "\N{MINUS SIGN}"),
        count=int(row["count"]),
    )
