"""
How each part has moved over many nights: a first look, which names the parts worth another.

The slope is that of least squares over all runs, the step how far the median of the last
few runs is from the median of all. Both come out of one pass over a metric, so that 90
nights of 10,000 nodes need no more memory than one metric has parts.
"""

from __future__ import annotations

from msgspec import Struct

RECENT_RUNS = 5
"""Runs whose median says where a part is now: a step is seen once most of them have it."""
MIN_TREND_RUNS = 8
"""With fewer, a slope is chance."""


class PartTrend(Struct, frozen=True):
    """How one part has moved in one metric."""

    node: str
    part: str
    label: str
    runs: int
    centre: float
    """The median of all runs."""
    mad: float
    """Their median absolute deviation from it, unscaled."""
    recent: float
    """The median of the last `RECENT_RUNS`."""
    slope: float
    """What it gains a day, by least squares."""
    days: float
    """From the first run to the last."""

    @property
    def step(self) -> float:
        """How far it is now from where it used to be, as a share of that."""
        return (self.recent - self.centre) / abs(self.centre)

    @property
    def drift(self) -> float:
        """What the slope makes over all these days, as a share of the median."""
        return self.slope * self.days / abs(self.centre)


def write_trend_query(rows: str, least: float) -> str:
    """
    Write the query of SQL for the parts of *rows*, all of one metric, that have moved.

    That is by a step or a drift of at least the share *least* of their median. The columns
    are the fields of `PartTrend`.
    """
    day = "epoch(started) / 86400"
    return (
        "select * from (select node, part, max(label) as label, count(*) as runs,"
        " median(value) as centre, mad(value) as mad,"
        f" list_aggregate(arg_max(value, started, {RECENT_RUNS}), 'median') as recent,"
        f" coalesce(regr_slope(value, {day}), 0) as slope, max({day}) - min({day}) as days"
        f" from {rows} group by node, part having count(*) >= {MIN_TREND_RUNS})"
        " where centre <> 0 and greatest(abs(recent - centre), abs(slope * days))"
        f" >= {least} * abs(centre) order by node, part"
    )
