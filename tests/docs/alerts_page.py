"""The table of alerts in docs/reference/alerts.md, from the rules file."""

from __future__ import annotations

from collections.abc import Iterator

from tests.docs.markdown import format_code, write_table
from tests.metrics.promql import list_selectors
from tests.metrics.rules import expand_records, read_alerts


def write_alerts() -> Iterator[str]:
    """Yield a row for each alert."""
    rows: list[tuple[str, ...]] = []
    for name, rule in read_alerts().items():
        metrics = {metric for metric, _ in list_selectors(expand_records(rule["expr"]))}
        link = f"[{name}](#{name.lower()})"
        lasts = rule.get("for", "one cycle")
        asked = ", ".join(map(format_code, sorted(metrics)))
        rows.append((link, rule["labels"]["severity"], lasts, asked))
    yield from write_table(("alert", "severity", "lasts before it fires", "metrics"), rows)
