"""What a number of events in a number of tries excludes."""

from __future__ import annotations

from math import exp

CONFIDENCE = 0.95
BISECTIONS = 60


def bound_rate(events: int, tries: int) -> float:
    """
    Bound the rate per try above which so few *events* would be a surprise at 95 %.

    The exact bound for a Poisson process: the mean for which *events* or fewer have a
    chance of 5 %. With no event that is 3.0 (the rule of three); never more than 1.
    """
    if tries <= 0:
        return 1.0
    low, high = float(events), 2.0 * events + 10.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        few = compute_poisson_share(events, middle) < 1 - CONFIDENCE
        low, high = (low, middle) if few else (middle, high)
    return min(1.0, high / tries)


def compute_poisson_share(events: int, mean: float) -> float:
    """Compute the chance of *events* or fewer, where *mean* are expected."""
    term = total = exp(-mean)
    for count in range(1, events + 1):
        term *= mean / count
        total += term
    return total
