"""Percentiles of measured times, and the rate that a time without an event excludes."""

from __future__ import annotations

import math
from collections.abc import Sequence

RULE_OF_THREE = 3.0
"""No event in a time T excludes, at 95 %, a Poisson rate above 3 / T."""


def compute_excluded_rate(seconds: float) -> float:
    """Compute the lowest rate, in events per hour, that *seconds* without one exclude."""
    return RULE_OF_THREE / seconds * 3600


def percentile(values: Sequence[float], share: float) -> float:
    """
    Find the smallest of *values* that at least *share* of them do not exceed.

    This is the nearest rank, so that it is always a measured value.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
