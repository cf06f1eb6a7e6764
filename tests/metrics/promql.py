"""What an expression of PromQL asks for: metrics, and labels of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcverify.metrics.table import METRICS, MetricType, PrometheusMetric

MONITORING = Path(__file__).parents[2] / "monitoring"
SUFFIXES = ("_bucket", "_sum", "_count")
"""The endings of the series of a histogram."""
OF_THE_SCRAPE = frozenset({"instance", "job"})
"""The labels that Prometheus itself adds."""
NAME = re.compile(r"(?<![\w:])((?:hpcverify|node)[_:][\w:]+)(\{[^}]*\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
TEXT = re.compile(r"\"[^\"]*\"")


def read_metrics() -> Mapping[str, PrometheusMetric]:
    """Give the metric of each series of the table."""
    names: dict[str, PrometheusMetric] = {}
    for metric in METRICS:
        suffixes = SUFFIXES if metric.type is MetricType.HISTOGRAM else ("",)
        names |= {f"{metric.name}{suffix}": metric for suffix in suffixes}
    return names


def list_selectors(expression: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each name that *expression* selects, and the labels that it matches."""
    hidden = {found[0] for found in TEXT.finditer(expression) if "hpcverify" in found[0]}
    for text in hidden:
        expression = expression.replace(text, '""')
    for name, matchers in NAME.findall(expression):
        yield name, frozenset(MATCHER.findall(matchers))


def list_grouping_labels(expression: str) -> frozenset[str]:
    """List the labels by which *expression* groups or joins."""
    return frozenset(
        label.strip() for group in GROUPING.findall(expression) for label in group.split(",")
    ) - {""}


def list_labels(metric: PrometheusMetric) -> frozenset[str]:
    """List the labels that series of *metric* have in Prometheus."""
    bucket = {"le"} if metric.type is MetricType.HISTOGRAM else set[str]()
    return frozenset({*(label.name for label in metric.labels), *bucket, *OF_THE_SCRAPE})
