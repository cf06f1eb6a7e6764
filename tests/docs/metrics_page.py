"""The metrics of docs/reference/metrics.md, from their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hpcverify.metrics.table import (
    CONTROLLER_METRICS,
    METRICS,
    NODE_METRICS,
    Label,
    PrometheusMetric,
)
from tests.docs.markdown import format_code, format_text, write_table

COLUMNS = ("metric", "type", "labels", "meaning", "alerts", "what to do")
LABEL_COLUMNS = ("label", "meaning", "values")


def write_metrics() -> Iterator[str]:
    """Yield the metrics of each file, and then their labels."""
    yield "## The controller's file"
    yield ""
    yield from write_table(COLUMNS, map(_list_cells, CONTROLLER_METRICS))
    yield "## The files of a node"
    yield ""
    yield from write_table(COLUMNS, map(_list_cells, NODE_METRICS))
    yield "## Labels"
    yield ""
    labels = dict.fromkeys(label for metric in METRICS for label in metric.labels)
    yield from write_table(LABEL_COLUMNS, map(_list_label_cells, labels))


def _list_cells(metric: PrometheusMetric) -> tuple[str, ...]:
    return (
        format_code(metric.name),
        metric.type.value,
        _join(label.name for label in metric.labels),
        format_text(metric.help),
        ", ".join(f"[{alert}](alerts.md#{alert.lower()})" for alert in metric.alerts),
        format_text(metric.runbook),
    )


def _list_label_cells(label: Label) -> tuple[str, ...]:
    return format_code(label.name), format_text(label.meaning), _join(label.values)


def _join(names: Iterable[str]) -> str:
    return ", ".join(map(format_code, names))
