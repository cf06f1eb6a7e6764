"""
What a ranking would have been worth: its picks of each week, held against the next.

Walk-forward: each week a share of the nodes in service is picked by what was known then.
What counts is the share of the outages of that week, of nodes that were in service at its
start, that fell on picked nodes; by chance it is the share that was picked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

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
    """Outages that picks by chance would have hit."""
    hit: float
    """Outages that the picks hit: of equal scores, the mean over the seeds."""


class BacktestSummary(Struct, frozen=True, kw_only=True):
    """The outcomes of some weeks together."""

    outages: int
    share: float
    """Of the outages, that fell on picked nodes."""
    lift: float
    """Times what chance would have hit."""


def backtest(
    history: FleetHistory,
    policy: Policy,
    end: float,
    *,
    share: float = 0.1,
    first_day: float = 0.0,
    seeds: int = 5,
) -> list[WeekOutcome]:
    """
    Pick a *share* of the nodes for each whole week from *first_day* to *end*.

    Nodes of the same score are picked by chance, which the *seeds* decide.
    """
    found: list[WeekOutcome] = []
    service = _ServiceRecord(history)
    day = first_day
    while day + WEEK_DAYS <= end:
        names = service.list_in_service(day)
        there = frozenset(names)
        struck = [name for name in service.list_struck(day) if name in there]
        scores = policy(day, names)
        count = round(share * len(names))
        hit = 0
        for seed in range(seeds):
            order = Random(f"{seed}:{day}")  # noqa: S311 - breaks ties
            ranked = sorted(names, key=lambda name: (-scores.get(name, 0.0), order.random()))
            picked = frozenset(ranked[:count])
            hit += sum(name in picked for name in struck)
        chance = len(struck) * count / max(1, len(names))
        found.append(WeekOutcome(day=day, outages=len(struck), by_chance=chance, hit=hit / seeds))
        day += WEEK_DAYS
    return found


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
    """Add up *outcomes* by the quarter of the time until *end* that a week began in."""
    return [
        summarize(week for week in outcomes if quarter <= 4 * week.day / end < quarter + 1)
        for quarter in range(4)
    ]


class _ServiceRecord:
    """Which nodes were in service when, and which went out."""

    def __init__(self, history: FleetHistory) -> None:
        self._history = history
        self._began = [outage.began for outage in history.outages]

    def list_in_service(self, day: float) -> list[str]:
        until = bisect_left(self._began, day)
        out = {each.node for each in self._history.outages[:until] if each.ended > day}
        nodes = self._history.nodes.values()
        return [node.name for node in nodes if node.since <= day and node.name not in out]

    def list_struck(self, day: float) -> list[str]:
        first, last = (bisect_left(self._began, at) for at in (day, day + WEEK_DAYS))
        return [outage.node for outage in self._history.outages[first:last]]
