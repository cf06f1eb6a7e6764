"""The dashboards in monitoring/ ask for metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from tests.metrics.promql import (
    MONITORING,
    list_grouping_labels,
    list_labels,
    list_selectors,
    read_metrics,
)
from tests.metrics.rules import expand_records
from tests.prometheus_lab.tools import run_promtool

BOARDS = sorted(path.name for path in MONITORING.glob("*.json"))
VARIABLES_OF_GRAFANA = {"__value", "__field"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_ALERTS = {"alertname", "alertstate", "node"}
QUERY_FUNCTION = re.compile(r"^(?:label_values|query_result)\((.*)\)$")
LABEL_ASKED = re.compile(r", *\w+$")
"""The label of `label_values`, which is Grafana's own function."""


@cache
def read_board(name: str) -> Mapping[str, Any]:
    board: dict[str, Any] = json.loads((MONITORING / name).read_text())
    return board


def walk(value: object) -> Iterator[Mapping[str, Any]]:
    """Yield every object within *value*."""
    if isinstance(value, dict):
        yield value
        for part in value.values():
            yield from walk(part)
    if isinstance(value, list):
        for part in value:
            yield from walk(part)


class Query(Struct, frozen=True):
    """An expression, and the labels that its panel shows."""

    expression: str
    shown: frozenset[str] = frozenset()


def list_queries(name: str) -> Iterator[Query]:
    board = read_board(name)
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            shown = {*re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))}
            for step in panel.get("transformations", ()):
                shown |= {*step["options"]["includeByName"]} - {"Value"}
            yield Query(target["expr"], frozenset(shown))
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = QUERY_FUNCTION.match(variable["query"])
            assert found, variable
            yield Query(found[1])
    for event in board["annotations"]["list"]:
        shown = {*re.findall(r"{{(\w+)}}", event["titleFormat"])}
        yield Query(event["target"]["expr"], frozenset(shown))


@pytest.mark.parametrize("name", BOARDS)
def test_a_panel_asks_only_for_metrics_and_labels_of_the_table(name: str) -> None:
    metrics = read_metrics()
    for query in list_queries(name):
        known = set[str]()
        expression = expand_records(query.expression)
        for selected, matched in list_selectors(expression):
            labels = list_labels(metrics[selected])
            assert matched <= labels, selected
            known |= labels
        if "ALERTS" in expression:
            known |= OF_ALERTS
        known |= {*re.findall(r'label_replace\(.*?"(\w+)"', expression)}
        assert known, query
        assert list_grouping_labels(expression) <= known, query
        assert query.shown <= known, query


@pytest.mark.needs("promtool")
def test_prometheus_can_read_the_query_of_every_panel(tmp_path: Path) -> None:
    rules = [
        {"record": f"site:query_{number}", "expr": LABEL_ASKED.sub("", query.expression)}
        for number, query in enumerate(query for name in BOARDS for query in list_queries(name))
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "q", "rules": rules}]}))

    done = run_promtool("check", "rules", tmp_path / "rules.yml")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_has_panels_with_numbers_and_words_of_their_own(name: str) -> None:
    panels = read_board(name)["panels"]
    drawn = [panel for panel in panels if panel["type"] != "row"]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    assert [panel["title"] for panel in drawn if not panel["description"]] == []
    for panel in drawn:
        letters = [target["refId"] for target in panel["targets"]]
        assert len({*letters}) == len(letters)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_names_no_datasource_and_no_variable_that_it_does_not_have(name: str) -> None:
    board = read_board(name)
    sources = [part["datasource"] for part in walk(board) if "datasource" in part]
    variables = {variable["name"] for variable in board["templating"]["list"]}
    used = {
        *re.findall(r"\$\{(\w+)", json.dumps(board)),
        *re.findall(r"\$(\w+)", " ".join(query.expression for query in list_queries(name))),
    } - VARIABLES_OF_GRAFANA

    assert sources
    assert [source for source in sources if source != DATASOURCE] == []
    assert {word for word in used if not word.isdigit()} <= variables
    assert "datasource" in variables
