"""``hpcverify explain``: what a code means, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import click
from click.shell_completion import CompletionItem
from msgspec import Struct
from msgspec.structs import replace
from rich.text import Text

from hpcverify.check import ENGINE_FINDING_RULES, FindingRule, Rule, is_pattern, matches
from hpcverify.commands.checks import format_rule
from hpcverify.console import print_json, report_mistakes
from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.explain import Explanation, find_explanation, list_common_explanations
from hpcverify.model import Remedy, Verdict
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import load_site
from hpcverify.summary.terminal import Console, print_table
from hpcverify.telemetry import cuda_errors


class ExplainedCode(Struct, frozen=True, kw_only=True):
    """A code with its explanation and its declaration."""

    code: str
    checks: tuple[str, ...]
    """The checks that use it in this sense; none if any check, or another source, may."""
    title: str
    meaning: str
    fix: str
    verdict: Verdict | None = None
    """The verdict by declaration; for a limit, that on a value outside."""
    remedy: Remedy | None = None
    conclusive: bool = False
    limit: str = ""
    """Which values of a metric are healthy."""
    source: str = ""
    """Where the limit comes from."""


class CodeType(click.types.StringParamType):
    """A code, which a shell can complete."""

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002 - click's signature
        incomplete: str,
    ) -> list[CompletionItem]:
        """List the codes that begin with what the user has typed."""
        codes, _ = list_codes(load_site().packages)
        names = sorted({each.code for each in codes})
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("explain")
@click.argument("code", required=False, type=CodeType())
@click.option("--list", "as_list", is_flag=True, help="List all codes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(code: str | None, *, as_list: bool, as_json: bool) -> None:
    """
    Explain CODE: what it means, its verdict, its limit and its source, and the fix.

    CODE is that of a finding, the name of a measurement with a limit, or the cause of an ERROR or
    SKIP. Where several checks use it in different senses, name the check: ``sdc.corruption``.

    \b
    Examples:
      hpcverify explain remap.failed
      hpcverify explain sdc.corruption
      hpcverify explain --list
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    if (code is None) != as_list:
        raise click.UsageError("name one code, or use --list")
    codes, mistakes = list_codes(load_site().packages)
    found = codes if code is None else find_codes(code, codes)
    if as_json:
        print_json(found)
    elif code is None:
        rows = [
            (
                each.code,
                " ".join(each.checks),
                each.verdict.name if each.verdict else "",
                each.title,
            )
            for each in found
        ]
        print_table(Console(highlight=False), ("code", "checks", "verdict", "title"), rows)
    else:
        for each in found:
            print_code(each, Console(highlight=False))
    report_mistakes(mistakes)


def list_codes(packages: tuple[str, ...]) -> tuple[list[ExplainedCode], list[str]]:
    """List every code by name, and the mistakes in the checks of the site."""
    checks, mistakes = load_checks(packages)
    merged: dict[ExplainedCode, list[str]] = {}
    for name, check in checks.items():
        units = {n: getattr(check.find_metric(n), "unit", "") for n in check.rules}
        for each in _explain_rules(name, {**check.rules, **check.finding_rules}, units, packages):
            merged.setdefault(each, []).append(name)
    declared = {each.code for each in merged}
    common = {**cuda_errors.build_finding_rules(), **ENGINE_FINDING_RULES}
    rest = {code: common.get(code) for code in (*list_common_explanations(), *common)}
    for each in _explain_rules("", rest, {}, packages):
        if each.code not in declared and not any(s in each.code for s in ("*", "_often", "_over")):
            merged.setdefault(each, [])
    codes = [replace(each, checks=tuple(names)) for each, names in merged.items()]
    return sorted(codes, key=lambda each: (each.code, each.checks)), mistakes


def _explain_rules(
    check: str,
    rules: Mapping[str, Rule | FindingRule | None],
    units: Mapping[str, str],
    packages: tuple[str, ...],
) -> Iterator[ExplainedCode]:
    for code, rule in rules.items():
        text = find_explanation(check, code, packages) or Explanation("", "")
        limit = rule if isinstance(rule, Rule) else None
        yield ExplainedCode(
            code=code,
            checks=(),
            title=text.title,
            meaning=text.meaning,
            fix=text.fix,
            verdict=rule.verdict if rule else None,
            remedy=rule.remedy if rule else None,
            conclusive=bool(rule and rule.conclusive),
            limit=format_rule(limit, units.get(code, "")) if limit else "",
            source=limit.source if limit else "",
        )


def find_codes(wanted: str, codes: Sequence[ExplainedCode]) -> list[ExplainedCode]:
    """
    Find the limits and findings of the code *wanted*, which may begin with a check and a dot.

    Raises:
        UnknownNameError: there is none.
        ConfigError: checks use it in different senses.

    """
    check, _, rest = wanted.partition(".")
    own = [each for each in codes if check in each.checks]
    found = (
        [each for each in codes if each.code == wanted]
        or [each for each in own if each.code == rest]
        or [each for each in codes if matches(wanted, each.code)]
        or [each for each in own if matches(rest, each.code)]
    )
    if not found:
        known = {each.code for each in codes if not is_pattern(each.code)}
        alike = {code for code in known if wanted.lower() in re.split("[._]", code)}
        raise UnknownNameError("code", wanted, alike or known)
    if len({each.checks for each in found}) > 1:
        names = ", ".join(f"{each.checks[0]}.{wanted}" for each in _list_first(found))
        raise ConfigError(f"checks use {wanted} in different senses: hpcverify explain {names}")
    return found


def _list_first(found: Iterable[ExplainedCode]) -> list[ExplainedCode]:
    """List the first of those with the same checks."""
    return [*{each.checks: each for each in found if each.checks}.values()]


def print_code(each: ExplainedCode, console: Console) -> None:
    """Print one code, in the order in which a person asks."""
    console.print(Text.assemble((each.code, "bold"), f": {each.title}" if each.title else ""))
    if each.meaning:
        console.print(Text(f"\n{each.meaning}"))
    remedy = each.remedy.replace("_", " ") if each.remedy else ""
    verdict = each.verdict.name if each.verdict else ""
    lines = {
        "check": ", ".join(each.checks),
        "verdict": verdict + (" (conclusive evidence)" if each.conclusive else ""),
        "remedy": remedy if remedy != Remedy.NONE else "",
        "healthy": each.limit,
        "source": each.source,
        "fix": each.fix,
    }
    console.print()
    for name, text in lines.items():
        if text:
            console.print(Text.assemble((f"{name}: ", "bold"), text))
    console.print()
