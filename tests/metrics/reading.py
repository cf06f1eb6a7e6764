"""Text files as Prometheus' own parser reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families

from hpcverify.metrics.table import PrometheusMetric
from hpcverify.metrics.text import format_value

Labels = frozenset[tuple[str, str]]
Samples = dict[str, dict[Labels, float]]
"""By the name of the sample and its labels."""
LE = "le"
"""The label of a bucket."""


def read_samples(text: str) -> Samples:
    """Read *text*; no series may be in it twice."""
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = samples.setdefault(sample.name, {})
            labels = frozenset(map(_normalize, sample.labels.items()))
            assert labels not in values, (sample.name, labels)
            values[labels] = sample.value
    return samples


def _normalize(label: tuple[str, str]) -> tuple[str, str]:
    """Write the bound of a bucket as we do: node_exporter prints large ones with an exponent."""
    name, value = label
    return (name, format_value(float(value))) if name == LE else label


def read_value(text: str, name: str, **labels: str) -> float:
    """Read the value of the series *name* with these *labels*."""
    return read_samples(text)[name][frozenset(labels.items())]


def read_families(text: str) -> Mapping[str, tuple[str, str]]:
    """Read the type and the help of each metric, by its name in the table."""
    return {
        f"{family.name}{'_total' if family.type == 'counter' else ''}": (
            family.type,
            family.documentation,
        )
        for family in text_string_to_metric_families(text)
    }


def list_strays(text: str, metrics: Iterable[PrometheusMetric]) -> list[str]:
    """List the series in *text* that are not as the table of *metrics* has them."""
    allowed = {
        f"{metric.name}{suffix}": {label.name: label.values for label in metric.labels}
        | ({LE: ()} if suffix == "_bucket" else {})
        for metric in metrics
        for suffix in (("_bucket", "_sum", "_count") if metric.buckets else ("",))
    }
    return [
        f"{name}{dict(labels)}"
        for name, values in read_samples(text).items()
        for labels in values
        if {label for label, _ in labels} != {*allowed.get(name, {"?": ()})}
        or any(value not in (allowed[name][label] or (value,)) for label, value in labels)
    ]
