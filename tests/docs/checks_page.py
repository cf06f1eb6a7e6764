"""The checks and the suites of docs/reference, from declarations, texts and examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

import hpcverify_checks
from hpcverify.check import Check, FindingRule
from hpcverify.commands.checks import PLACES, format_rule
from hpcverify.explain import (
    Explanation,
    Texts,
    find_explanation,
    find_text_file,
    list_explanations,
    read_texts,
)
from hpcverify.model import Maturity, Remedy
from hpcverify.plan.catalog import load_checks
from hpcverify.plan.config import read_toml
from hpcverify.plan.suite import Suite
from hpcverify.summary.wording import format_duration
from hpcverify.telemetry.problems import PROBLEM_RULES
from tests.docs.examples import EXAMPLES, FOLDER, SITUATIONS
from tests.docs.markdown import format_code, format_text, write_block, write_table

PACKAGES = (hpcverify_checks.__name__,)
SUITES = Path(*hpcverify_checks.__path__) / "suites"
PAGES_FOLDER = Path(__file__).parents[2] / "docs/reference/checks"
GROUPS = {"GPU": "GPUs", "node": "The node", "fabric": "The fabric"}
GPU_PROBLEMS = "../faults.md#gpus-that-do-not-answer"
COMMANDS = (
    "nvidia-smi",
    "modprobe",
    "systemctl",
    "sysctl",
    "ipmi-sel",
    "cpupower",
    "fusermount",
    "umount",
)
"""How a fix begins that is a command, whose first letter stays."""
MORE = {
    "chassis": "[Chassis](../chassis.md)",
    "collectives": "[Collectives](../collectives.md)",
    "host": "[Host](../host.md)",
    "sdc": "[Silent data corruption](../../explanation/sdc.md)",
}
"""The page that has more on a check."""
DEFAULT_SOURCE = "hpcverify default"


def list_checks() -> dict[str, tuple[Check[Any], Texts]]:
    """List the checks that ship with their texts."""
    checks, mistakes = load_checks(PACKAGES)
    assert not mistakes
    return {name: (check, _read_own_texts(name)) for name, check in checks.items()}


def _read_own_texts(name: str) -> Texts:
    path = find_text_file(name)
    assert path is not None, f"{name} has no texts"
    return read_texts(path)


def write_checks() -> Iterator[str]:
    """Yield the tables of the checks, by group."""
    checks = list_checks()
    for group, title in GROUPS.items():
        yield f"### {title}"
        yield ""
        yield from write_table(
            ("check", "purpose", "load", "ends after"),
            [
                (
                    f"[{name}](checks/{name}.md)",
                    format_text(check.summary),
                    format_text(PLACES[check.placement]),
                    format_duration(check.timeout),
                )
                for name, (check, texts) in checks.items()
                if texts.group == group
            ],
        )


def write_check_pages() -> dict[Path, str]:
    """Write the page of each check; what an earlier page explains is named with a link to it."""
    owners: dict[tuple[str, object], str] = {}
    pages: dict[Path, str] = {}
    for name, (check, texts) in list_checks().items():
        shared: dict[str, str] = {}
        for code, rule in (*check.rules.items(), *check.finding_rules.items()):
            owner = owners.setdefault((code, (rule, find_explanation(name, code))), name)
            if owner != name:
                shared[code] = owner
        pages[PAGES_FOLDER / f"{name}.md"] = "\n".join(_write_check(name, check, texts, shared))
    return pages


def _write_check(
    name: str, check: Check[Any], texts: Texts, shared: Mapping[str, str]
) -> Iterator[str]:
    """Yield the page of *check*; *shared* has the codes that another check explains."""
    facts = [f"ends after {format_duration(check.timeout)} at most"]
    facts += ["in beta: its FAIL counts as a WARN"] if check.maturity is Maturity.BETA else []
    yield f"# {name}"
    yield ""
    yield format_text(texts.does) + (f" More: {MORE[name]}." if name in MORE else "")
    yield ""
    yield f"**Why.** {format_text(texts.why)}"
    yield ""
    yield f"**Load.** {format_text(texts.load)} It {'; '.join(facts)}."
    yield ""
    yield from _write_section("Limits", _list_limits(check, shared))
    yield from _write_section("Findings", _list_findings(name, check, texts, shared))
    params = msgspec.to_builtins(check.params()).items()
    yield from _write_section(
        "Parameters",
        (f"`{key}` = `{_format_value(v)}`: {format_text(texts.params[key])}" for key, v in params),
    )
    yield from _write_example(name)


def _write_section(title: str, lines: Iterable[str]) -> Iterator[str]:
    items = [f"- {line}" for line in lines]
    if items:
        yield from (f"## {title}", "", *items, "")


def _list_limits(check: Check[Any], shared: Mapping[str, str]) -> Iterator[str]:
    """List the limits; metrics with the same one share a line."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for name, rule in check.rules.items():
        if name not in shared:
            unit = getattr(check.find_metric(name), "unit", "")
            source = rule.source.removeprefix(DEFAULT_SOURCE).removeprefix(":").strip()
            key = format_text(format_rule(rule, unit)), rule.verdict.name, format_text(source)
            names.setdefault(key, []).append(name)
    for (healthy, verdict, source), alike in names.items():
        why = f" ({source})" if source else ""
        yield f"{_list_codes(alike)}: {healthy}, else {verdict}{why}"
    yield from _point_to_owners({code: shared[code] for code in check.rules if code in shared})


def _list_findings(
    name: str, check: Check[Any], texts: Texts, shared: Mapping[str, str]
) -> Iterator[str]:
    in_tables = list_explanations(name).keys() - texts.codes.keys()
    rules = {
        code: rule
        for code, rule in check.finding_rules.items()
        if code not in PROBLEM_RULES and code not in in_tables
    }
    yield from _list_rules(name, {code: rule for code, rule in rules.items() if code not in shared})
    yield from _point_to_owners({code: shared[code] for code in rules if code in shared})
    for table in texts.tables:
        path = f"checks/hpcverify_checks/{table}"
        yield f"each row of the table `{path}`; `hpcverify explain CODE` prints it"
    if PROBLEM_RULES.items() <= check.finding_rules.items():
        yield f"a GPU that does not answer: see [Faults]({GPU_PROBLEMS})"


def _list_rules(name: str, rules: Mapping[str, FindingRule]) -> Iterator[str]:
    """List the codes of *rules* with verdict, meaning and fix; those alike share a line."""
    codes: dict[tuple[Explanation | None, str], list[str]] = {}
    listed = [code for code, rule in rules.items() if rule.remedy is Remedy.NONE]
    for code, rule in rules.items():
        if code not in listed:
            verdict = rule.verdict.name + (" (conclusive)" if rule.conclusive else "")
            codes.setdefault((find_explanation(name, code), verdict), []).append(code)
    for (found, verdict), alike in codes.items():
        assert found is not None, alike
        yield f"{_list_codes(alike)}, {verdict}: {_write_sentences(found)}"
    if listed:
        yield f"only listed: {_list_codes(listed)}"


def _write_sentences(found: Explanation) -> str:
    """Write the meaning and the fix as two sentences; a fix that begins with a command as it is."""
    fix = f"{found.fix[0].upper()}{found.fix[1:]}" if found.fix else ""
    fix = found.fix if found.fix.startswith(COMMANDS) else fix
    return format_text(" ".join(filter(None, (found.meaning, fix and f"{fix}."))))


def _list_codes(codes: Iterable[str]) -> str:
    return ", ".join(map(format_code, codes))


def _point_to_owners(shared: Mapping[str, str]) -> Iterator[str]:
    """Yield where the codes are explained that an earlier page has."""
    for owner in dict.fromkeys(shared.values()):
        codes = [code for code, name in shared.items() if name == owner]
        yield f"{_list_codes(codes)}: as in [{owner}]({owner}.md)"


def _format_value(value: object) -> str:
    return "none" if value is None else msgspec.json.encode(value).decode()


def _write_example(name: str) -> Iterator[str]:
    example = EXAMPLES[name]
    fault = f" with `{example.fault}`" if example.fault else ""
    yield from ("## Example", "", f"On {SITUATIONS[example.how]}{fault}:", "")
    yield from write_block("text", (FOLDER / f"{name}.txt").read_text().rstrip("\n"))


def write_gpu_problems() -> Iterator[str]:
    """Yield what every check of GPUs reports of one that does not answer."""
    yield from (f"- {line}" for line in _list_rules("", PROBLEM_RULES))
    yield ""


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
