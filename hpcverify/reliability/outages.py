"""
Outages of nodes, and how often and how long they were out of service.

Outages of one fleet are not independent: a few bad nodes have most of them, those of a rack or
switch begin together, and some weeks are worse than others. An interval is the widest of three,
each of which allows for one of these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from hpcverify.stats import expand_student_score, find_poisson_interval

MIN_OUTAGES = 3
"""With fewer, the report says *no history yet*: the interval spans a factor of thirty."""
MIN_NODE_DAYS = 30.0
TOGETHER_DAYS = 1 / 24
"""Outages of one place that begin within an hour of the one before are one event."""
EPSILON = 1e-6
WEEK_DAYS, MIN_WEEKS = 7.0, 4
"""What is wrong with a fleet as a whole lasts for days; so many weeks say how they differ."""


class Outage(Struct, frozen=True):
    """A time in which a node was out of service, in days from any common start."""

    node: str
    began: float
    ended: float = math.inf
    """Infinity: it is not over."""
    is_found: bool = False
    """Whether a verification found it; if not, a job, a hook or a person met it."""


class Estimate(Struct, frozen=True):
    """A number, and the interval that has it with a confidence of 95 %."""

    value: float
    low: float
    high: float

    def map(self, convert: Callable[[float], float]) -> Estimate:
        """Convert it by a monotonic function, rising or falling."""
        ends = sorted((convert(self.low), convert(self.high)))
        return Estimate(convert(self.value), ends[0], ends[1])


class FleetReliability(Struct, frozen=True):
    """What is known of the outages of a fleet in a span of time."""

    nodes: int
    node_days: float
    """In service, all nodes together."""
    outages: int
    found: int
    """Outages that a verification found."""
    failure_rate: Estimate | None
    """Outages per node and day in service; None: too little is known."""
    share_out: Estimate | None
    """The share of all node-days that were out of service."""
    weeks: int
    """By which the intervals allow for failures that come together; 0: there are too few."""


def measure_reliability(
    seen_since: Mapping[str, float],
    outages: Collection[Outage],
    began: float,
    now: float,
    places: Mapping[str, str] | None = None,
) -> FleetReliability:
    """Measure the outages of *seen_since* from *began* to *now* (days since 1970), by *places*."""
    spans = {node: _find_overlap(since, now, began, now) for node, since in seen_since.items()}
    within = [outage for outage in outages if outage.node in spans and outage.ended > began]
    new = [outage for outage in within if began <= outage.began <= now]
    counts = Counter(outage.node for outage in new)
    lost = dict.fromkeys(spans, 0.0)
    for outage in within:
        out = _find_overlap(outage.began, outage.ended, max(began, seen_since[outage.node]), now)
        lost[outage.node] = min(lost[outage.node] + out, spans[outage.node])
    served = [span - lost[node] for node, span in spans.items()]
    known = len(new) >= MIN_OUTAGES and sum(served) >= MIN_NODE_DAYS
    weeks = _cut_weeks([max(began, since) for since in seen_since.values()], within, now)
    events = list(_group_events(within, places or {}))
    new_sizes = [sum(began <= outage.began for outage in event) for event in events]
    lost_sizes = [
        sum(_find_overlap(outage.began, outage.ended, began, now) for outage in event)
        for event in events
    ]
    return FleetReliability(
        nodes=len(spans),
        node_days=sum(served),
        outages=len(new),
        found=sum(outage.is_found for outage in new),
        failure_rate=_find_widest(
            _estimate_ratio([counts[node] for node in spans], served),
            _estimate_ratio([w.began for w in weeks], [w.span - w.lost for w in weeks]),
            _estimate_sum(new_sizes, sum(served)),
        )
        if known
        else None,
        share_out=_find_widest(
            _estimate_ratio(list(lost.values()), list(spans.values())),
            _estimate_ratio([w.lost for w in weeks], [w.span for w in weeks]),
            _estimate_sum(lost_sizes, sum(spans.values())),
        )
        if known
        else None,
        weeks=len(weeks),
    )


class _Week(Struct, frozen=True):
    began: int
    """Outages that began."""
    lost: float
    span: float
    """Node-days."""


def _cut_weeks(since: Sequence[float], outages: Collection[Outage], now: float) -> list[_Week]:
    first = min(since, default=now)
    count = int((now - first) / WEEK_DAYS)
    if count < MIN_WEEKS:
        return []
    ends = [first + (now - first) * number / count for number in range(count + 1)]
    return [
        _Week(
            began=sum(low <= outage.began < high for outage in outages),
            lost=sum(_find_overlap(outage.began, outage.ended, low, high) for outage in outages),
            span=sum(_find_overlap(joined, now, low, high) for joined in since),
        )
        for low, high in pairwise(ends)
    ]


def _find_overlap(began: float, ended: float, low: float, high: float) -> float:
    return max(0.0, min(ended, high) - max(began, low))


def _group_events(outages: Iterable[Outage], places: Mapping[str, str]) -> Iterable[list[Outage]]:
    """Group the *outages* of one place that began together: they have a cause in common."""
    events: dict[str, list[Outage]] = {}
    for outage in sorted(outages, key=lambda item: item.began):
        place = places.get(outage.node, outage.node)
        event = events.setdefault(place, [])
        if event and outage.began - event[-1].began > TOGETHER_DAYS:
            yield event
            event = events[place] = []
        event.append(outage)
    yield from events.values()


def _find_widest(*estimates: Estimate | None) -> Estimate:
    """Join the intervals of estimates of one number; the first has its value."""
    known = [estimate for estimate in estimates if estimate]
    low, high = min(estimate.low for estimate in known), max(estimate.high for estimate in known)
    return Estimate(known[0].value, low, high)


def _estimate_sum(sizes: Iterable[float], whole: float) -> Estimate | None:
    """Estimate the sum of *sizes* of random events, by *whole* (Garwood 1936, by equal events)."""
    known = [size for size in sizes if size > 0]
    if not known:
        return None
    total = sum(known)
    alike = total**2 / sum(size**2 for size in known)
    low, high = find_poisson_interval(max(1, int(alike + EPSILON)))
    return Estimate(total / whole, low / alike * total / whole, high / alike * total / whole)


def _estimate_ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate | None:
    """Estimate the sum of *parts* by that of *wholes* (ratio estimator; Cochran 1977, ch. 6)."""
    total, n = sum(wholes), len(parts)
    if n < 2:  # noqa: PLR2004 - one has no spread
        return None
    ratio = sum(parts) / total
    spread = sum((part - ratio * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    error = math.sqrt(spread * n / (n - 1)) / total
    reach = expand_student_score(n - 1) * error
    return Estimate(ratio, max(0.0, ratio - reach), ratio + reach)
