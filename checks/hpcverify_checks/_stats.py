"""Percentiles of measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """
    Give the smallest of *values* that at least *share* of them do not exceed.

    The nearest rank, so that it is always a time that was measured.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
