"""Debian's node_exporter serves every series that we write, and drops no file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from hpcverify.metrics.node import list_run_families, name_run_file
from hpcverify.metrics.table import (
    CONTROLLER_METRICS,
    FLEET_FILE_NAME,
    NODE_METRICS,
    PrometheusMetric,
)
from hpcverify.metrics.text import BucketCounts, MetricFamily, render
from hpcverify.model import Verdict
from hpcverify.records.text_files import write_text_file
from tests.doubles import a_result, a_run
from tests.metrics.reading import read_families, read_samples, read_value
from tests.prometheus_lab.lab import fetch, start_exporter
from tests.prometheus_lab.tools import run_promtool

pytestmark = pytest.mark.needs("prometheus-node-exporter", "promtool")

ODD_VALUES = ('a "quoted" one', "back\\slash", "two\nlines", "")


def make_family(metric: PrometheusMetric) -> MetricFamily:
    """Make a family with label values of every kind."""
    value = (
        BucketCounts({metric.buckets[0]: 1, metric.buckets[-1]: 2}, 7.5) if metric.buckets else 1.5
    )
    labels = [tuple(odd for _ in metric.labels) for odd in ODD_VALUES]
    return MetricFamily(metric.name, dict.fromkeys(labels, value))


def write_all(directory: Path) -> None:
    """Write a file of the controller with all its metrics, and those of two suites."""
    write_text_file(directory / FLEET_FILE_NAME, map(make_family, CONTROLLER_METRICS))
    for suite in ("idle", "prolog"):
        run = a_run(
            suite=suite,
            results=(a_result("ecc", verdict=Verdict.FAIL), a_result("gemm")),
            versions={"hpcverify": "1.2.3"},
        )
        write_text_file(directory / name_run_file(suite), list_run_families(run))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Give a directory of text files, and what node_exporter makes of them."""
    directory = tmp_path_factory.mktemp("textfiles")
    write_all(directory)
    with start_exporter(directory, tmp_path_factory.mktemp("exporter")) as address:
        yield directory, fetch(address, "/metrics")


def test_no_file_is_dropped(served: tuple[Path, str]) -> None:
    directory, text = served
    files = {dict(labels)["file"] for labels in read_samples(text)["node_textfile_mtime_seconds"]}
    assert read_value(text, "node_textfile_scrape_error") == 0
    assert {Path(file).name for file in files} == {path.name for path in directory.iterdir()}


def test_every_series_is_served_as_it_was_written(served: tuple[Path, str]) -> None:
    directory, text = served
    shown = read_samples(text)
    written = [read_samples(path.read_text()) for path in directory.iterdir()]
    for name, values in chain.from_iterable(samples.items() for samples in written):
        assert values.items() <= shown[name].items(), name


def test_type_and_help_are_those_of_the_table(served: tuple[Path, str]) -> None:
    _, text = served
    families = read_families(text)
    for metric in (*CONTROLLER_METRICS, *NODE_METRICS):
        assert families[metric.name] == (metric.type.value, metric.help)


def test_promtool_finds_nothing_to_say_of_the_names() -> None:
    text = render(map(make_family, (*CONTROLLER_METRICS, *NODE_METRICS))).decode()
    done = run_promtool("check", "metrics", text=text)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
