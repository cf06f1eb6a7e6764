"""What is written in the text format is what its readers get."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcverify.metrics.table import METRICS, STATES
from hpcverify.metrics.text import (
    BucketCounts,
    MetricFamily,
    format_value,
    make_gauge,
    make_state_set,
    render,
)
from tests.metrics.reading import read_families, read_samples, read_value

VERSION = "hpcverify_build_info"
DURATION = "hpcverify_time_to_hold_seconds"


@pytest.mark.parametrize(
    "value",
    ["plain", 'a "quoted" one', "C:\\new\\table", "two\nlines", "\\n", '\\"', "", "Zürich 日"],
)
def test_any_label_value_comes_back(value: str) -> None:
    text = render([MetricFamily(VERSION, {(value,): 1})]).decode()
    assert read_value(text, VERSION, version=value) == 1
    assert len(text.splitlines()) == 3 or value == "two\nlines"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"])))
def test_a_label_value_ends_no_line_and_no_series(value: str) -> None:
    text = render(
        [MetricFamily(VERSION, {(value,): 1}), make_gauge("hpcverify_nodes_missing", 2)]
    ).decode()
    assert read_value(text, VERSION, version=value) == 1
    assert read_value(text, "hpcverify_nodes_missing") == 2


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 0.1, 1e-9, 1.8e9, 2.0**60, math.inf, -math.inf])
def test_a_number_keeps_its_value(value: float) -> None:
    assert float(format_value(value)) == value


def test_a_value_that_is_not_a_number_is_nan() -> None:
    assert format_value(math.nan) == "NaN"


def test_the_text_ends_with_a_newline_and_has_no_time_stamps() -> None:
    text = render([make_gauge("hpcverify_nodes_missing", 2)]).decode()
    assert text.endswith("hpcverify_nodes_missing 2\n")


def test_a_metric_without_series_is_not_written() -> None:
    assert render([MetricFamily("hpcverify_node_hold_info", {})]) == b""


def test_type_and_help_are_those_of_the_table() -> None:
    families = [
        MetricFamily(
            metric.name,
            {("x",) * len(metric.labels): BucketCounts({}, 0.0) if metric.buckets else 0.0},
        )
        for metric in METRICS
    ]
    text = render(families).decode()

    assert read_families(text) == {m.name: (m.type.value, m.help) for m in METRICS}


def test_a_state_set_has_one_1() -> None:
    text = render([make_state_set("hpcverify_node_state", STATES, {("n1",): "held"})]).decode()
    values = read_samples(text)["hpcverify_node_state"]
    assert len(values) == len(STATES)
    assert [dict(labels)["state"] for labels, value in values.items() if value] == ["held"]


def test_the_buckets_of_a_histogram_are_cumulated_up_to_its_count() -> None:
    histogram = BucketCounts({60.0: 2, 3600.0: 1, math.inf: 4}, 1e6)
    text = render([MetricFamily(DURATION, {("others",): histogram})]).decode()
    buckets = [
        (float(dict(labels)["le"]), value)
        for labels, value in read_samples(text)[f"{DURATION}_bucket"].items()
    ]

    assert (dict(buckets)[0.0], dict(buckets)[60.0], dict(buckets)[3600.0]) == (0, 2, 3)
    assert (sorted(buckets), buckets[-1]) == (buckets, (math.inf, 7))
    assert read_value(text, f"{DURATION}_count", cause="others") == 7
    assert read_value(text, f"{DURATION}_sum", cause="others") == 1e6


def test_a_bucket_of_an_earlier_version_counts_in_the_next_larger_one() -> None:
    text = render([MetricFamily(DURATION, {("others",): BucketCounts({61.0: 5}, 300.0)})]).decode()
    assert read_value(text, f"{DURATION}_bucket", cause="others", le="60") == 0
    assert read_value(text, f"{DURATION}_bucket", cause="others", le="600") == 5


def test_a_metric_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(KeyError):
        render([make_gauge("hpcverify_invented", 1)])


def test_a_series_without_the_labels_of_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        render([make_gauge(VERSION, 1)])
