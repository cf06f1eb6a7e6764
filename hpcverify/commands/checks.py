"""``hpcverify checks``: all checks or suites, and what one check does."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

import click
import msgspec
from rich.text import Text

from hpcverify.check import ANY_PART, Check, Params, Placement, Rule, RuleKey, format_quantity
from hpcverify.commands._options import CHECK, json_option
from hpcverify.console import print_json, report_mistakes
from hpcverify.explain import find_text_file, read_texts
from hpcverify.model import FABRIC_SUITE, FindingRule, Maturity, Remedy, Verdict
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import load_site
from hpcverify.plan.suite import FABRIC_HOW, Step, list_suites, load_suite, make_plan
from hpcverify.summary.terminal import Console, print_table, render_badge
from hpcverify.summary.wording import format_duration

DEFAULT_SUITE = "quick"
PLACES = {
    Placement.PASSIVE: "only reads and loads nothing",
    Placement.NODE: "loads the node, but none of its devices",
    Placement.DEVICES_TOGETHER: "loads all devices from one process",
    Placement.DEVICES: "loads all devices of one kind at once",
    Placement.ALL_DEVICES: "loads all devices at once",
    Placement.DEVICES_ALONE: "loads one device after the other",
}
REFERENCES = {
    "of_spec": "what good parts typically reach of their data sheet",
    "of_siblings": "the median of like parts in the node",
    "of_baseline": "the median of the node's earlier runs",
}
"""What each fraction in a `Rule` refers to."""
FILE_FIELDS = {"metric", "part", "nodes", "unit"}
"""The fields of a `Rule` that say where a file's limit applies: its name here does."""


@click.command("checks")
@click.argument("check", type=CHECK, metavar="[CHECK]", required=False)
@click.option(
    "--suites", "are_suites", is_flag=True, help="List suites: when to use each, time and checks."
)
@json_option
def command(check: str | None, *, are_suites: bool, as_json: bool) -> None:
    """
    List checks or suites, or describe CHECK: metrics, limits and their sources.

    Parameters and limits are those of `hpcverify run --check CHECK` on this node. Exit
    status 2 if a check of the site has a mistake; the other checks are still listed.

    \b
    Examples:
      hpcverify checks
      hpcverify checks gemm
      hpcverify checks --suites
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if are_suites:
        if check is not None:
            raise click.UsageError("--suites lists suites: leave out CHECK")
        list_all_suites(as_json=as_json)
        return
    site = load_site()
    if check is not None:
        (step,) = make_plan(load_suite(DEFAULT_SUITE), site, (check,)).steps
        if as_json:
            rules = {name_rule(key): rule for key, rule in step.rules.items()}
            print_json(describe_check(check, step.check, step.params, rules))
        else:
            explain_check(step, site.packages, Console(highlight=False))
        return
    checks, mistakes = load_checks(site.packages)
    if as_json:
        print_json([describe_check(n, c, c.params(), c.rules) for n, c in checks.items()])
    else:
        print_table(
            Console(highlight=False),
            ("check", "purpose"),
            [(name, check.summary) for name, check in checks.items()],
        )
    report_mistakes(mistakes)


def list_all_suites(*, as_json: bool) -> None:
    """Print when to use each suite, its time budget and its checks."""
    suites = [load_suite(name) for name in list_suites()]
    if as_json:
        print_json(suites)
        return
    rows = [
        (s.name, format_duration(s.budget), str(s.rounds), s.summary, checks)
        for s in suites
        for checks in [" ".join(e.name for e in s.check)]
    ]
    console = Console(highlight=False)
    print_table(console, ("suite", "budget", "rounds", "when", "checks"), rows)
    console.print(f"{FABRIC_SUITE} is the suite between nodes: {FABRIC_HOW}")


def describe_check(
    name: str, check: Check[Any], params: Params, rules: Mapping[str, Rule]
) -> dict[str, Any]:
    """Build the JSON object for a check with its *params* and *rules*."""
    return {
        "name": name,
        "summary": check.summary,
        "description": read_description(check),
        "placement": check.placement.value,
        "maturity": check.maturity.value,
        "timeout": check.timeout,
        "params": msgspec.to_builtins(params),
        "metrics": {n: m.unit for n, m in check.metrics.items()},
        "worse": {n: m.worse for n, m in check.metrics.items()},
        "meanings": {n: m.meaning for n, m in check.metrics.items()},
        "rules": {
            n: {k: v for k, v in msgspec.to_builtins(rule).items() if k not in FILE_FIELDS}
            for n, rule in rules.items()
        },
        "finding_rules": msgspec.to_builtins(dict(check.finding_rules)),
    }


def read_description(check: Check[Any]) -> str:
    """Return the first paragraph of the docstring of the check's module."""
    module = sys.modules[check.measure.__module__]
    return (inspect.getdoc(module) or "").partition("\n\n")[0]


def find_param_meanings(name: str, packages: tuple[str, ...]) -> Mapping[str, str]:
    """Find the meaning of each parameter of the check *name*; none if it ships no texts."""
    path = find_text_file(name, packages)
    return read_texts(path).params if path else {}


def explain_check(step: Step, packages: tuple[str, ...], console: Console) -> None:
    """Print what a check does, what it measures and how it is judged."""
    check = step.check
    console.print(Text.assemble((step.name, "bold"), f": {check.summary}"))
    console.print(Text(read_description(check)))
    facts = [PLACES[check.placement], f"at most {format_duration(step.timeout)}"]
    facts += ["in beta: never more than a warning"] if check.maturity is Maturity.BETA else []
    console.print(Text("; ".join(facts)))
    meanings = find_param_meanings(step.name, packages)
    values = msgspec.structs.asdict(step.params).items()
    params = [(n, str(v), meanings.get(n, "")) for n, v in values]
    metrics = [(n, m.unit, m.worse, m.meaning) for n, m in check.metrics.items()]
    rules = [
        (name_rule(key), format_rule(rule, unit), render_badge(rule.verdict), rule.source)
        for key, rule in step.rules.items()
        for unit in [getattr(check.find_metric(key[0]), "unit", "")]
    ]
    findings = [
        (code, render_badge(rule.verdict), format_remedy(rule))
        for code, rule in check.finding_rules.items()
    ]
    for head, rows in (
        (("parameter", "value", "meaning"), params),
        (("measurement", "unit", "worse", "meaning"), metrics),
        (("limit on", "healthy", "else", "source"), rules),
        (("finding", "verdict", "what to do"), findings),
    ):
        if rows:
            console.print()
            print_table(console, head, rows)


def name_rule(key: RuleKey) -> str:
    """Name the measurements that a rule in force is declared for, as in "level of GPU 3"."""
    metric, part = key
    return metric if part == ANY_PART else f"{metric} of {part}"


def format_rule(rule: Rule, unit: str) -> str:
    """Say which values are healthy by *rule*."""
    bounds = [
        f"{sign} {format_quantity(bound, unit)}"
        for sign, bound in ((">=", rule.low), ("<=", rule.high))
        if bound is not None
    ]
    least = {"of_spec": "the least that good parts reach of their data sheet"}
    references = REFERENCES | (least if rule.verdict is Verdict.FAIL else {})
    bounds += [
        f"{'>=' if fraction <= 1 else '<='} {fraction:g} x {reference}"
        for name, reference in references.items()
        if (fraction := getattr(rule, name)) is not None
    ]
    return " and ".join(bounds)


def format_remedy(rule: FindingRule) -> str:
    """Say what to do about a finding, and whether it is conclusive."""
    if rule.remedy is Remedy.NONE:
        return ""
    return rule.remedy.replace("_", " ") + (" (conclusive evidence)" if rule.conclusive else "")
