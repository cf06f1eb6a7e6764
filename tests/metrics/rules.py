"""The rules file, read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import yaml

from tests.metrics.promql import MONITORING

RULES = MONITORING / "hpcverify.rules.yml"


@cache
def read_rules() -> tuple[Mapping[str, Any], ...]:
    """List the rules of all groups."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


def read_alerts() -> Mapping[str, Mapping[str, Any]]:
    return {rule["alert"]: rule for rule in read_rules() if "alert" in rule}


RECORDS = {
    name: rule["expr"].replace(name, "itself")
    for rule in read_rules()
    if (name := rule.get("record"))
}
"""One that goes on from its own last value has only the rest of its expression here."""


def expand_records(expression: str) -> str:
    """Put the expression of each recorded series in its place."""
    for name in sorted(RECORDS, key=len, reverse=True):
        if name in expression:
            return expand_records(expression.replace(name, f"({RECORDS[name]})"))
    return expression
