"""The last 30 days of a fleet: how many nodes failed, were held and passed, and which failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from hpcverify.insight.month import COUNTS, WEEK_DAYS, FleetMonth
from hpcverify.insight.node_names import make_natural_key
from hpcverify.model import Verdict
from hpcverify.units import format_count
from hpcverify_reports.labels import ICONS
from hpcverify_reports.svg import Axis, Tick, Trace, draw_chart
from hpcverify_reports.tables import (
    PageSection,
    Picture,
    TableCell,
    TableColumn,
    build_table,
    make_heads,
)

MAX_SHOWN_NODES = 8
"""Nodes whose nights are shown unfolded."""


def build_month_section(month: FleetMonth, pages: Mapping[str, str]) -> PageSection | None:
    """Draw the days, and list the nodes with a night that they did not pass, the worst first."""
    bad = {
        node: nights
        for node, nights in month.nodes.items()
        if any(verdict and verdict >= Verdict.WARN for verdict in nights)
    }
    if not month.nodes:
        return None

    def rank(node: str) -> tuple[int, list[tuple[int, str]]]:
        return -bad[node].count(Verdict.FAIL), make_natural_key(node)

    rows = [
        (
            TableCell(node, pages.get(node, "")),
            TableCell("", nights=tuple(v and ICONS[v] for v in bad[node])),
            str(bad[node].count(Verdict.FAIL)),
            str(sum(verdict is not None for verdict in bad[node])),
        )
        for node in sorted(bad, key=rank)
    ]
    first, last = month.days[0].day, month.days[-1].day
    nights = f"Nights from {first:%-d %b} to {last:%-d %b}"
    heads = TableColumn("Node"), *make_heads(nights, "Failed", "Nights")
    well = len(month.nodes) - len(bad)
    return PageSection(
        "month",
        "The last 30 days",
        (f"{format_count(well, 'node')} passed each run. A taller bar is a worse night.",),
        tables=(build_table("The last 30 days", heads, rows, shown=MAX_SHOWN_NODES),),
        pictures=tuple(_draw_days(month)),
    )


def _draw_days(month: FleetMonth) -> Iterator[Picture]:
    times = [datetime.combine(d.day, datetime.min.time(), UTC).timestamp() for d in month.days]
    ticks = [Tick(t, f"{d.day:%-d %b}") for t, d in zip(times, month.days, strict=True)]
    axis = Axis("UTC", tuple(ticks[::WEEK_DAYS]))
    for name, title in COUNTS.items():
        counts = [getattr(day, name) for day in month.days]
        chart = draw_chart(title, "", [Trace(name, times, counts)], axis=axis, least=0.0)
        cells = [(f"{d.day}", str(n)) for d, n in zip(month.days, counts, strict=True)]
        numbers = build_table(title, make_heads("Day", "Nodes"), cells)
        yield Picture(title, numbers, chart)
