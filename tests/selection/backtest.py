"""
What a ranking would have been worth: its picks of each week, held against that week.

Walk-forward: each week a share of the nodes in service is picked by what was known then.
What counts is the share of the week's outages, of nodes that were in service at its start,
that fell on picked nodes; by chance it is the share that was picked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from hpcverify.selection.outages import FleetHistory

WEEK_DAYS = 7.0
Policy = Callable[[float, Sequence[str]], Mapping[str, float]]
"""Takes the day and the nodes in service; returns their scores, of which the highest go first."""


class WeekOutcome(Struct, frozen=True, kw_only=True):
    """What came of the picks of a week."""

    day: float
    outages: int
    by_chance: float
    """Outages that picks by chance hit, on average."""
    hit: float
    """Outages that the picks hit; on average, where equal scores are picked by chance."""


class BacktestSummary(Struct, frozen=True, kw_only=True):
    """The outcomes of some weeks together."""

    outages: int
    share: float
    """Of the outages, that fell on picked nodes."""
    lift: float
    """Times what chance would have hit."""


def backtest(
    history: FleetHistory, policy: Policy, end: float, *, share: float = 0.1, first_day: float = 0.0
) -> list[WeekOutcome]:
    """Pick a *share* of the nodes for each whole week from *first_day* to *end*."""
    found: list[WeekOutcome] = []
    began = [outage.began for outage in history.outages]
    day = first_day
    while day + WEEK_DAYS <= end:
        first, last = (bisect_left(began, at) for at in (day, day + WEEK_DAYS))
        names = _list_in_service(history, first, day)
        struck = Counter(outage.node for outage in history.outages[first:last])
        for name in struck.keys() - set(names):
            del struck[name]
        count = round(share * len(names))
        outages = struck.total()
        found.append(
            WeekOutcome(
                day=day,
                outages=outages,
                by_chance=outages * count / max(1, len(names)),
                hit=_expect_hits(policy(day, names), names, struck, count),
            )
        )
        day += WEEK_DAYS
    return found


def _list_in_service(history: FleetHistory, until: int, day: float) -> list[str]:
    """Name the nodes in service on *day*, before which the first *until* outages began."""
    out = {each.node for each in history.outages[:until] if each.ended > day}
    return [
        node.name for node in history.nodes.values() if node.since <= day and node.name not in out
    ]


def _expect_hits(
    scores: Mapping[str, float], names: Sequence[str], struck: Mapping[str, int], count: int
) -> float:
    """Return how many of the *struck* are among the *count* with the highest scores."""
    if not count or not struck:
        return 0.0
    given = sorted((scores.get(name, 0.0) for name in names), reverse=True)
    bound = given[min(count, len(given)) - 1]
    above = bisect_left(given, -bound, key=lambda score: -score)
    tied = given.count(bound)
    odds = (count - above) / tied
    return sum(
        times * (1.0 if scores.get(name, 0.0) > bound else odds)
        for name, times in struck.items()
        if scores.get(name, 0.0) >= bound
    )


def summarize(outcomes: Iterable[WeekOutcome]) -> BacktestSummary:
    """Add up *outcomes*."""
    weeks = list(outcomes)
    outages = sum(week.outages for week in weeks)
    hit = sum(week.hit for week in weeks)
    chance = sum(week.by_chance for week in weeks)
    return BacktestSummary(
        outages=outages,
        share=hit / outages if outages else 0.0,
        lift=hit / chance if chance else 1.0,
    )


def split_quarters(outcomes: Sequence[WeekOutcome], end: float) -> list[BacktestSummary]:
    """Add up *outcomes* by the quarter of the time until *end* in which a week began."""
    return [
        summarize(week for week in outcomes if quarter <= 4 * week.day / end < quarter + 1)
        for quarter in range(4)
    ]
