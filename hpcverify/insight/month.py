"""The last 30 days of a fleet: what failed, was held and passed on each day, and on which node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta

from msgspec import Struct

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.outages import NodeOutage
from hpcverify.model import Verdict
from hpcverify.records.store import Store

MONTH_DAYS = 30
COUNTS = {"failed": "nodes that failed", "held": "nodes held", "passed": "nodes that passed"}
"""What is counted on each day, in words."""
WEEK_DAYS = 7


class FleetDay(Struct, frozen=True, kw_only=True):
    """How many nodes of a fleet failed a run on a day (UTC), passed one, or were held."""

    day: date
    failed: int
    held: int
    passed: int


class FleetMonth(Struct, frozen=True, kw_only=True):
    """The days of a month, the oldest first."""

    days: tuple[FleetDay, ...]
    nodes: dict[str, tuple[Verdict | None, ...]]
    """By node, the worst verdict of each day; None on a day without a run."""


def read_month(ledger: Ledger, store: Store, now: float) -> FleetMonth:
    """Read the days up to *now*."""
    today = datetime.fromtimestamp(now, UTC)
    begin = datetime.combine(today - timedelta(days=MONTH_DAYS - 1), datetime.min.time(), UTC)
    forgotten = ledger.list_forgotten()
    verdicts = (
        (node, day, verdict)
        for node, day, verdict in store.list_day_verdicts(begin, today)
        if datetime.combine(day, datetime.max.time(), UTC).timestamp() > forgotten.get(node, 0.0)
    )
    return build_month(verdicts, ledger.list_outages(begin.timestamp()), today.date())


def build_month(
    verdicts: Iterable[tuple[str, date, Verdict]], outages: Iterable[NodeOutage], today: date
) -> FleetMonth:
    """Count by day the *verdicts* of the nodes' runs and the nodes that were held."""
    days = [today - timedelta(days=age) for age in reversed(range(MONTH_DAYS))]
    places = {day: place for place, day in enumerate(days)}
    nodes: dict[str, list[Verdict | None]] = {}
    passed: list[set[str]] = [set() for _ in days]
    for node, day, verdict in verdicts:
        if (place := places.get(day)) is not None:
            worst = nodes.setdefault(node, [None] * len(days))
            worst[place] = max(verdict, worst[place] or verdict)
            if verdict is Verdict.PASS:
                passed[place].add(node)
    held: list[set[str]] = [set() for _ in days]
    for outage in outages:
        first = datetime.fromtimestamp(outage.began, UTC).date()
        last = datetime.fromtimestamp(outage.ended, UTC).date() if outage.ended else today
        for place, day in enumerate(days):
            if outage.held and first <= day <= last:
                held[place].add(outage.node)
    return FleetMonth(
        days=tuple(
            FleetDay(
                day=day,
                failed=sum(worst[place] is Verdict.FAIL for worst in nodes.values()),
                held=len(held[place]),
                passed=len(passed[place]),
            )
            for place, day in enumerate(days)
        ),
        nodes={node: tuple(worst) for node, worst in nodes.items()},
    )


def list_changes(month: FleetMonth) -> Iterator[tuple[str, str]]:
    """Yield the counts of today with their difference to yesterday, and the trend of a week."""
    *_, yesterday, today = month.days
    for name, title in COUNTS.items():
        before, now = getattr(yesterday, name), getattr(today, name)
        change = f"{now - before:+d}" if now != before else "as"
        yield f"Today: {title}", f"{now} ({change}{' from' if now != before else ''} yesterday)"
    week, before = (
        sum(day.failed for day in month.days[-(end + WEEK_DAYS) : len(month.days) - end])
        for end in (0, WEEK_DAYS)
    )
    trend = "better" if week < before else "worse" if week > before else "as before"
    yield "Trend", f"{trend}: {week} failed nights in 7 days, {before} in the 7 days before"
