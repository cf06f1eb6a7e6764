"""
Outages of nodes, and how often and how long they were out of service.

Outages of one fleet are not independent: a few bad nodes have most of them. Intervals
therefore treat a node with all of its outages as one observation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import NormalDist

from msgspec import Struct

DAY_S = 86_400.0
CONFIDENCE = 0.95
MIN_OUTAGES = 3
"""With fewer, a rate is told as *no history yet*: its interval spans a factor of thirty."""
MIN_NODE_DAYS = 30.0


class Outage(Struct, frozen=True):
    """A node that failed, and was out of service until somebody brought it back."""

    node: str
    began: float
    """Seconds since 1970."""
    ended: float
    """Infinity: it is not over."""
    is_found: bool = False
    """Whether a verification found it; if not, a job, a hook or a person met it."""


class Estimate(Struct, frozen=True):
    """A number, and the interval that has it with a confidence of `CONFIDENCE`."""

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
    """Of all node-days, those out of service."""


def measure_reliability(
    seen_since: Mapping[str, float], outages: Collection[Outage], began: float, now: float
) -> FleetReliability:
    """
    Measure how the nodes of *seen_since* did from *began* to *now*, seconds since 1970.

    *seen_since* says since when each node has been known.
    """
    spans = {node: max(0.0, now - max(began, since)) / DAY_S for node, since in seen_since.items()}
    within = [one for one in outages if one.node in spans and one.ended > began]
    new = [one for one in within if began <= one.began <= now]
    counts = Counter(one.node for one in new)
    lost = dict.fromkeys(spans, 0.0)
    for one in within:
        since = max(began, seen_since[one.node])
        out = max(0.0, min(one.ended, now) - max(one.began, since)) / DAY_S
        lost[one.node] = min(lost[one.node] + out, spans[one.node])
    served = [span - lost[node] for node, span in spans.items()]
    known = len(new) >= MIN_OUTAGES and sum(served) >= MIN_NODE_DAYS
    return FleetReliability(
        nodes=len(spans),
        node_days=sum(served),
        outages=len(new),
        found=sum(one.is_found for one in new),
        failure_rate=_estimate_rate([counts[node] for node in spans], served) if known else None,
        share_out=_estimate_ratio(list(lost.values()), list(spans.values())) if known else None,
    )


def _estimate_rate(counts: Sequence[int], days: Sequence[float]) -> Estimate:
    """
    Estimate events per day, with the wider of two intervals.

    That of a Poisson count (Garwood 1936) is exact where outages are independent, and
    right where they are few. That of a ratio over nodes allows for nodes that differ.
    """
    total, span = sum(counts), sum(days)
    ratio = _estimate_ratio(counts, days)
    low, high = find_poisson_interval(total)
    return Estimate(total / span, min(ratio.low, low / span), max(ratio.high, high / span))


def _estimate_ratio(parts: Sequence[float], wholes: Sequence[float]) -> Estimate:
    """Estimate the sum of *parts* by that of *wholes* (ratio estimator; Cochran 1977, ch. 6)."""
    total = sum(wholes)
    ratio = sum(parts) / total
    spread = sum((part - ratio * whole) ** 2 for part, whole in zip(parts, wholes, strict=True))
    n = len(parts)
    error = math.sqrt(spread * n / max(1, n - 1)) / total
    reach = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * error
    return Estimate(ratio, max(0.0, ratio - reach), ratio + reach)


def find_poisson_interval(count: int) -> tuple[float, float]:
    """Find the means between which *count* events are no surprise (Garwood 1936)."""
    tail = (1 - CONFIDENCE) / 2
    ceiling = 10 + count + 10 * math.sqrt(count + 1)
    low = _bisect(lambda mean: 1 - _sum_poisson(count - 1, mean) - tail, 0.0, ceiling)
    high = _bisect(lambda mean: tail - _sum_poisson(count, mean), 0.0, ceiling)
    return low if count else 0.0, high


def _sum_poisson(most: int, mean: float) -> float:
    """Say how likely at most *most* events are."""
    if most < 0:
        return 0.0
    if mean <= 0:
        return 1.0
    return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(most + 1))


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
