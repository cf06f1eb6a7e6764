"""
The text format 0.0.4 of Prometheus, as node_exporter reads it from a file.

One writer of its own serves the controller and the nodes. prometheus_client would need 0.07 s
to be imported, which a prolog waits for, seven times the CPU for 120,000 series, and state in
memory, which a program that ends after each cycle does not have. Tests read what is written
here with its parser, and with node_exporter itself.

node_exporter drops a whole file for one line that it does not know: so there is no other type
than those of `MetricType`, no time stamp behind a value, and a newline at the end.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from hpcverify.metrics.table import METRICS, PrometheusMetric

METRICS_BY_NAME = {metric.name: metric for metric in METRICS}
VALUE_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
"""A quote stands for itself there."""

LabelValues = tuple[str, ...]
"""In the order of the labels in the table."""


class BucketCounts(Struct, frozen=True):
    """How many values were observed in each bucket, not cumulated, and their sum."""

    counts: Mapping[float, float]
    """By the upper bound of the bucket; infinity for the last one."""
    sum: float


class MetricFamily(Struct, frozen=True):
    """A metric, and its value for each set of labels."""

    name: str
    values: Mapping[LabelValues, float | BucketCounts]


def make_gauge(name: str, value: float) -> MetricFamily:
    """Make the family of a metric without labels."""
    return MetricFamily(name, {(): value})


def make_state_set(
    name: str, all_states: Sequence[str], states: Mapping[LabelValues, str]
) -> MetricFamily:
    """Make a family that is 1 for the state of each set of labels, and 0 for the other states."""
    return MetricFamily(
        name,
        {
            (*labels, state): float(state == current)
            for labels, current in states.items()
            for state in all_states
        },
    )


def render(families: Iterable[MetricFamily]) -> bytes:
    """
    Write *families* as text.

    Raises:
        KeyError: a metric is not in the table.
        ValueError: a value has not the labels that the table gives its metric.

    """
    lines = [line for family in families for line in _render_family(family)]
    return "\n".join([*lines, ""]).encode(errors="replace")


def _render_family(family: MetricFamily) -> Iterator[str]:
    metric = METRICS_BY_NAME[family.name]
    if not family.values:
        return
    yield f"# HELP {metric.name} {metric.help.translate(HELP_ESCAPES)}"
    yield f"# TYPE {metric.name} {metric.type}"
    names = [label.name for label in metric.labels]
    for labels, value in family.values.items():
        pairs = [
            f'{name}="{text.translate(VALUE_ESCAPES)}"'
            for name, text in zip(names, labels, strict=True)
        ]
        if isinstance(value, BucketCounts):
            yield from _render_histogram(metric, pairs, value)
        else:
            yield f"{metric.name}{_join(pairs)} {format_value(value)}"


def _render_histogram(
    metric: PrometheusMetric, pairs: Sequence[str], value: BucketCounts
) -> Iterator[str]:
    # A bucket of an earlier version counts in the next larger one that there is today.
    for bound in (*metric.buckets, math.inf):
        total = sum(count for end, count in value.counts.items() if end <= bound)
        bucket = _join([*pairs, f'le="{format_value(bound)}"'])
        yield f"{metric.name}_bucket{bucket} {format_value(total)}"
    yield f"{metric.name}_sum{_join(pairs)} {format_value(value.sum)}"
    yield f"{metric.name}_count{_join(pairs)} {format_value(sum(value.counts.values()))}"


def _join(pairs: Sequence[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def format_value(value: float) -> str:
    """Write *value* as Go reads it, whole numbers without a point."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
