"""The checks and the suites of docs/reference/checks.md, from what each check declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import hpcverify_checks
from hpcverify.check import Check, Rule, RuleKey, list_rule_keys
from hpcverify.commands.checks import (
    PLACES,
    format_remedy,
    format_rule,
    name_rule,
    read_description,
)
from hpcverify.model import Maturity
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import read_toml
from hpcverify.plan.suite import Suite
from hpcverify.summary.wording import format_duration
from tests.docs.markdown import format_code, format_text, write_table

PACKAGES = (hpcverify_checks.__name__,)
SUITES = Path(*hpcverify_checks.__path__) / "suites"


def write_checks() -> Iterator[str]:
    """Yield every check that ships."""
    checks, mistakes = load_checks(PACKAGES)
    assert not mistakes
    for name, check in checks.items():
        yield from _write_check(name, check)


def _write_check(name: str, check: Check[Any]) -> Iterator[str]:
    yield f"### {name}"
    yield ""
    yield format_text(f"{check.summary[0].upper()}{check.summary[1:]}.")
    yield format_text(read_description(check))
    facts = [PLACES[check.placement], f"ends after {format_duration(check.timeout)} at most"]
    facts += ["in beta: its FAIL counts as a WARN"] if check.maturity is Maturity.BETA else []
    facts += ["only where a suite or `--check` names it"] if check.only_named else []
    line = "; ".join(facts)
    yield f"It {line}."
    yield ""
    params = msgspec.to_builtins(check.params())
    if params:
        yield format_text(inspect.cleandoc(check.params.__doc__ or ""))
        yield ""
    rows = [(format_code(key), format_code(_format_value(value))) for key, value in params.items()]
    yield from write_table(("parameter", "default"), rows)
    yield from write_table(
        ("measurement", "unit", "worse", "meaning"),
        [
            (format_code(n), m.unit, m.worse, format_text(m.meaning))
            for n, m in check.metrics.items()
        ],
    )
    yield from write_table(
        ("limit on", "healthy", "else", "source"),
        [
            (
                format_code(name_rule(key)),
                format_text(format_rule(rule, getattr(check.find_metric(key[0]), "unit", ""))),
                rule.verdict.name,
                format_text(rule.source),
            )
            for key, rule in _list_rules(check)
        ],
    )
    yield from write_table(
        ("finding", "verdict", "what to do"),
        [
            (format_code(code), rule.verdict.name, format_remedy(rule))
            for code, rule in check.finding_rules.items()
        ],
    )


def _list_rules(check: Check[Any]) -> Iterator[tuple[RuleKey, Rule]]:
    """List the rules by the keys that a plan gives them; a site has set none here."""
    for key in list_rule_keys(check.rules, ()):
        yield key, check.rules[key[0]]


def _format_value(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode()


def write_suites() -> Iterator[str]:
    """Yield the suites that ship."""
    suites = {path.stem: read_toml(path, Suite) for path in sorted(SUITES.glob("*.toml"))}
    yield from write_table(
        ("suite", "when", "budget", "rounds"),
        [
            (
                format_code(name),
                format_text(suite.summary),
                format_duration(suite.budget),
                str(suite.rounds),
            )
            for name, suite in suites.items()
        ],
    )
    for name, suite in suites.items():
        checks = ", ".join(format_code(entry.name) for entry in suite.check)
        yield f"- {format_code(name)} runs {checks}."
    yield ""
