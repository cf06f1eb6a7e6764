"""The alerts: what they ask for exists, each fires when it should, and not before."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcverify.metrics.table import METRICS
from tests.metrics.alert_cases import CASES, CYCLE, Case
from tests.metrics.promql import (
    OF_THE_SCRAPE,
    list_grouping_labels,
    list_labels,
    list_selectors,
    read_metrics,
)
from tests.metrics.rules import RULES, expand_records, read_alerts, read_rules
from tests.prometheus_lab.tools import run_promtool

pytestmark = pytest.mark.needs("promtool")

PAGE = Path(__file__).parents[2] / "docs/reference/alerts.md"
HOW_TO = Path(__file__).parents[2] / "docs/how-to/prometheus.md"
NODE_EXPORTER = {"node_textfile_scrape_error": (), "node_textfile_mtime_seconds": ("file",)}
"""What an alert asks of node_exporter itself, with its labels."""


@pytest.mark.parametrize(
    "rule", read_rules(), ids=lambda rule: rule.get("alert", rule.get("record"))
)
def test_a_rule_asks_only_for_metrics_and_labels_of_the_table(rule: Mapping[str, Any]) -> None:
    metrics = read_metrics()
    known = set[str]()
    for name, matched in list_selectors(expand_records(rule["expr"])):
        labels = (
            {*NODE_EXPORTER[name], *OF_THE_SCRAPE}
            if name in NODE_EXPORTER
            else list_labels(metrics[name])
        )
        assert matched <= labels, name
        known |= labels

    assert list_grouping_labels(rule["expr"]) <= known
    assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule.get("annotations", {})))) <= known


def test_the_table_names_the_alerts_that_ask_for_each_metric() -> None:
    asked: dict[str, set[str]] = {metric.name: set() for metric in METRICS}
    metrics = read_metrics()
    for name, rule in read_alerts().items():
        for selected, _ in list_selectors(expand_records(rule["expr"])):
            if selected in metrics:
                asked[metrics[selected].name].add(name)

    assert {metric.name: {*metric.alerts} for metric in METRICS} == asked


@pytest.mark.parametrize("name", read_alerts())
def test_an_alert_has_a_severity_and_words_for_whoever_it_wakes(name: str) -> None:
    rule = read_alerts()[name]
    assert re.fullmatch(r"Hpcverify([A-Z][a-z]+)+", name)
    assert rule["labels"] in ({"severity": "warning"}, {"severity": "critical"})
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/reference/alerts.html#{name.lower()}"


def test_every_alert_has_its_runbook() -> None:
    sections = PAGE.read_text().split("\n## ")[1:]
    headings = {
        section.partition("\n")[0]: re.findall(r"(?m)^\*\*(.+?)\*\*", section)
        for section in sections
        if section.startswith("Hpcverify")
    }

    parts = ["Meaning.", "Look at.", "Do.", "Resolves."]
    assert headings == dict.fromkeys(read_alerts(), parts)


def test_promtool_takes_the_rules() -> None:
    done = run_promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_rules_and_queries_of_the_how_to_can_be_used_as_they_are(tmp_path: Path) -> None:
    blocks = re.findall(r"(?ms)^```(yaml|text)\n(.*?)^```", HOW_TO.read_text())
    (rules,) = (text for kind, text in blocks if kind == "yaml")
    queries = [
        {"record": f"site:query_{number}", "expr": text}
        for number, (kind, text) in enumerate(blocks)
        if kind == "text"
    ]
    groups = [*yaml.safe_load(rules)["groups"], {"name": "queries", "rules": queries}]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": groups}))
    done = run_promtool("check", "rules", tmp_path / "rules.yml")

    assert queries
    assert done.returncode == 0, done.stdout + done.stderr
    asked = (name for _, text in blocks for name, _ in list_selectors(text))
    assert {*asked} <= read_metrics().keys()


# -- each alert, with the fault and without

ALERT_LABELS = sorted(
    {"alertname", *(label for case in CASES for fired in case.read_labels() for label in fired)}
)


def write_case(case: Case) -> str:
    """Write *case* as promtool reads it: JSON is YAML too."""
    step = f"{case.step}m"
    cycles = {CYCLE: f"0+{60 * case.step}x{case.minutes // case.step + 10}"}
    series = [
        {"series": name.replace("@", 'instance="ctl:9100",job="node"'), "values": values}
        for name, values in {**cycles, **case.read_series()}.items()
    ]
    firing = f'count by ({",".join(ALERT_LABELS)}) (ALERTS{{alertstate="firing"}})'
    expected = [
        ",".join(f'{name}="{value}"' for name, value in {"alertname": case.alert, **fired}.items())
        for fired in case.read_labels()
    ]
    look = {
        "expr": firing,
        "eval_time": f"{case.minutes}m",
        "exp_samples": [{"labels": f"{{{labels}}}", "value": 1} for labels in expected],
    }
    test = {"interval": step, "input_series": series, "promql_expr_test": [look]}
    # By itself, promtool evaluates groups in any order.
    order = {"group_eval_order": ["hpcverify-recorded", "hpcverify"]}
    files = {"rule_files": [str(RULES)], "evaluation_interval": step}
    return json.dumps({**files, **order, "tests": [test]})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}-{case.rule}")
def test_an_alert_fires_for_its_fault_alone(case: Case, tmp_path: Path) -> None:
    (tmp_path / "case.yml").write_text(write_case(case))
    done = run_promtool("test", "rules", tmp_path / "case.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_with_its_fault_and_without() -> None:
    assert {case.alert for case in CASES if case.fires} == {*read_alerts()}
    assert {case.alert for case in CASES if not case.fires} == {*read_alerts()}
