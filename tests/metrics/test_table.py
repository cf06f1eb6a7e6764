"""The table of metrics follows Prometheus' rules, and the code that it stands for."""

from __future__ import annotations

import re
from zlib import crc32

from hpcverify.fleet.event_log import FORGOTTEN_STATE
from hpcverify.fleet.outages import OutageCause
from hpcverify.fleet.part_counts import COUNTED_KINDS
from hpcverify.fleet.states import OTHERS_STATE, Hold, State
from hpcverify.insight.fleet_metrics import HOLD_NAMES, OTHERS
from hpcverify.metrics import table
from hpcverify.metrics.table import METRICS, NODE_METRICS, PREFIX, MetricType

RESERVED_LABELS = {"instance", "job", "le", "quantile"}
"""Set by Prometheus, or of types that node_exporter builds itself."""
UNBOUNDED_LABELS = {"reason", "part", "run", "user", "by", "text", "ticket"}
NODE_LINES = {
    "hpcverify_run_info": 2313941065,
    "hpcverify_run_timestamp_seconds": 374724785,
    "hpcverify_run_duration_seconds": 2870188194,
    "hpcverify_run_verdict": 1534528433,
    "hpcverify_check_verdict_info": 3632296134,
    "hpcverify_finding_info": 1750881720,
}
"""The CRC of type and help of each: files of several versions lie side by side on a node."""


def test_each_name_stands_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len({*names})


def test_a_name_obeys_the_rules_of_prometheus() -> None:
    for metric in METRICS:
        assert re.fullmatch(rf"{PREFIX}[a-z][a-z_]*[a-z]", metric.name)
        assert metric.name.endswith("_total") == (metric.type is MetricType.COUNTER)
        assert metric.name.removesuffix("_total").endswith(metric.unit)
        assert not metric.name.endswith(("_count", "_sum", "_bucket"))
        assert bool(metric.buckets) == (metric.type is MetricType.HISTOGRAM), metric.name
        assert [*metric.buckets] == sorted({*metric.buckets}), metric.name
        assert re.fullmatch(r"[A-Z1].*\.", metric.help)


def test_type_and_help_of_a_metric_of_nodes_never_change() -> None:
    lines = {metric.name: f"{metric.type.value} {metric.help}" for metric in NODE_METRICS}
    assert {name: crc32(line.encode()) for name, line in lines.items()} == NODE_LINES


def test_no_label_is_reserved_or_without_end() -> None:
    for metric in METRICS:
        names = [label.name for label in metric.labels]
        assert len(names) == len({*names}), metric.name
        assert not {*names} & (RESERVED_LABELS | UNBOUNDED_LABELS), metric.name


def test_the_closed_lists_are_those_of_the_code() -> None:
    assert (*State, OTHERS_STATE) == table.STATES
    assert table.FORGOTTEN == FORGOTTEN_STATE
    assert (*OutageCause,) == table.CAUSES
    assert {*table.HOLDS} == {HOLD_NAMES[hold] for hold in Hold} | {OTHERS}
    assert {*table.KIND.values} == {*COUNTED_KINDS.values()}
