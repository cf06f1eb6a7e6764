"""A run as text for other programs: JUnit XML for CI, Markdown for a ticket."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC
from types import MappingProxyType
from xml.etree import ElementTree as ET

from hpcverify.actions import brief
from hpcverify.model import (
    Cause,
    Inventory,
    Remedy,
    Result,
    Ruling,
    Run,
    Verdict,
    standing,
)
from hpcverify.rounds import (
    by_check,
    extent,
    tally,
    worst_first,
    worst_round,
    worst_rounds,
)
from hpcverify_reports.headline import lede
from hpcverify_reports.judged import bound, held
from hpcverify_reports.remedies import (
    Group,
    Repetitions,
    Row,
    groups,
    machine,
    milder,
)
from hpcverify_reports.sections import calls_for_several
from hpcverify_reports.words import (
    BECAUSE,
    MARKS,
    NEXT,
    duration,
    measured,
    moment,
    printable,
)

_ELEMENT = {
    Verdict.FAIL: "failure",
    Verdict.ERROR: "error",
    Verdict.SKIP: "skipped",
}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@$]|:(?=//))")
UNRULED = Ruling(Verdict.ERROR, Remedy.FIX_CHECKER)
"""What a finding means whose code no ruling names."""
_SIGNS = {
    Verdict.PASS: "✓",
    Verdict.SKIP: "\N{EN DASH}",
    Verdict.WARN: "▲",
    Verdict.ERROR: "◆",
    Verdict.FAIL: "✗",
}


def junit(run: Run, past: Repetitions = MappingProxyType({})) -> str:
    """
    Write *run* as JUnit XML, a test case for each check: its worst round.

    A warning passes and says so in its output. What makes the run itself FAIL or
    ERROR though no check does, as an interruption, is a test case of its own:
    a CI server that counts must not count such a run as good. The properties name the
    machine, and for each part what to do, how to find it, and why; *past* says how
    often it has failed.
    """
    cases = [
        *(_case(some, run.inventory) for some in by_check(run.results).values()),
        *_unexplained(run),
    ]
    suite = ET.Element(
        "testsuite",
        name=printable(f"hpcverify {run.suite}"),
        hostname=printable(run.node),
        timestamp=_iso(run),
        time=f"{run.seconds:.3f}",
        tests=str(len(cases)),
        failures=_count(cases, "failure"),
        errors=_count(cases, "error"),
        skipped=_count(cases, "skipped"),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (*_properties(run), *_actions(run, past)):
        ET.SubElement(
            properties, "property", name=printable(name), value=printable(value)
        )
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _iso(run: Run) -> str:
    aware = run.started if run.started.tzinfo else run.started.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="seconds")


def _properties(run: Run) -> Iterator[tuple[str, str]]:
    yield "run", run.id
    yield "verdict", run.verdict.value
    yield "complete", str(run.complete).lower()
    if run.rounds > 1:
        yield "rounds", extent(run)
        yield "left_out", run.left_out
    for name, version in run.versions.items():
        yield f"version.{name}", version


def _actions(run: Run, past: Repetitions) -> Iterator[tuple[str, str]]:
    if named := machine(run):
        yield "machine", named
    for group in (*groups(run, past), *milder(run)):
        for row in group.rows:
            told = [
                _identity(row),
                *row.evidence,
                *_behind(row),
            ]
            yield f"{group.mark.word}: {group.action}", "; ".join(told)


def _identity(row: Row) -> str:
    """Tell the facts by which a technician or a vendor knows a part."""
    facts = (f"{name} {value}" for name, value in row.facts)
    named = f"id {row.id}" if row.id else ""
    return ", ".join(filter(None, (row.label, row.model, named, *facts)))


def _behind(row: Row) -> Iterator[str]:
    """Yield how often the part has failed, and what speaks against other causes."""
    yield from row.past
    for text in row.ruled_out:
        yield f"speaks against another cause: {text}"


def _count(cases: list[ET.Element], kind: str) -> str:
    return str(sum(case.find(kind) is not None for case in cases))


def _case(rounds: Sequence[Result], inventory: Inventory) -> ET.Element:
    result = worst_round(rounds)
    case = ET.Element(
        "testcase",
        classname="hpcverify",
        name=printable(result.check),
        time=f"{sum(r.seconds for r in rounds):.3f}",
    )
    several = [f"{len(rounds)} rounds: {tally(rounds)}"] if len(rounds) > 1 else []
    details = printable("\n".join([*several, *_details(result, inventory)]))
    kind = _ELEMENT.get(standing(result))
    if kind is not None:
        ET.SubElement(
            case,
            kind,
            type=result.cause.value or result.remedy.value,
            message=printable(result.reason),
        ).text = details
    elif result.verdict is Verdict.WARN:
        ET.SubElement(case, "system-out").text = details
    return case


def _unexplained(run: Run) -> Iterator[ET.Element]:
    if run.verdict < Verdict.ERROR or any(
        standing(r) is run.verdict for r in run.results
    ):
        return
    case = ET.Element("testcase", classname="hpcverify", name="the run", time="0.000")
    ET.SubElement(
        case,
        _ELEMENT[run.verdict],
        type=Cause.INTERRUPTED.value if not run.complete else run.verdict.value,
        message=printable(lede(run)),
    )
    yield case


def _details(result: Result, inventory: Inventory) -> Iterator[str]:
    """Tell all that was found, and what to do where it is the same for all of it."""
    yield f"{MARKS[result.verdict].word}: {result.reason}"
    if result.cause is not Cause.NONE:
        yield BECAUSE[result.cause]
    mixed = calls_for_several(result, inventory)
    if result.remedy is not Remedy.NONE and not mixed:
        yield f"Next: {NEXT[result.remedy]}"
    for one in held(result):
        for limit, judgement in one.broken:
            value = measured(one.item.value, one.item.unit)
            yield (
                f"{one.item.where}: {one.item.name} {value}, "
                f"limit {bound(limit)} ({limit.source})"
                f"{_apart(judgement.verdict, judgement.remedy, result, mixed=mixed)}"
            )
    for finding in result.findings:
        ruling = result.rulings.get(finding.code, UNRULED)
        apart = _apart(ruling.verdict, ruling.remedy, result, mixed=mixed)
        yield f"{finding.where}: {finding.code}: {finding.text}{apart}"
        yield from (f"  {name}: {text}" for name, text in finding.evidence.items())


def _apart(verdict: Verdict, remedy: Remedy, result: Result, *, mixed: bool) -> str:
    """Say what a complaint counts for, and calls for, where others differ in that."""
    if verdict is Verdict.PASS:
        return ""
    milder = f" ({MARKS[verdict].word})" if verdict < result.verdict else ""
    own = mixed and remedy is not Remedy.NONE
    return f"{milder}: {NEXT[remedy]}" if own else milder


def markdown(run: Run, past: Repetitions = MappingProxyType({})) -> str:
    """
    Write *run* as a summary in GitHub's Markdown, worst first.

    Each part stands under what is to be done about it; *past* says how often it has
    failed.
    """
    rounds = by_check(run.results)
    worst = worst_first(worst_rounds(run.results))
    rows = "".join(_row(r, rounds[r.check], run.inventory) for r in worst)
    table = f"| | check | why |\n|---|---|---|\n{rows}\n" if rows else ""
    state = "complete" if run.complete else "interrupted"
    suite = ", ".join(filter(None, (run.suite, extent(run))))
    demanded = groups(run, past)
    passed = run.verdict is Verdict.PASS
    idle = f"**Next: {NEXT[Remedy.NONE]}**\n\n" if passed else ""
    seen = milder(run)
    more = "Also seen. No part below has failed.\n\n" if seen else ""
    named = machine(run)
    heads = "".join(f"**Next: {_heading(g)}**{_parts(g)}" for g in demanded)
    tails = "".join(f"{_heading(g)}{_parts(g)}" for g in seen)
    return (
        f"## {_SIGNS[run.verdict]} {escape(run.node)}: {run.verdict.name}\n\n"
        f"{escape(lede(run))}\n\n"
        f"{idle}"
        f"{heads}{more}{tails}{table}"
        f"{f'Machine: {escape(named)}. ' if named else ''}"
        f"Suite {escape(suite)}, {escape(moment(run.started))}, "
        f"{duration(run.seconds)}, {state}, run {escape(run.id)}.\n"
    )


def _heading(group: Group) -> str:
    return f"{group.action} {escape(group.names)}"


def _parts(group: Group) -> str:
    """List the parts of *group*, each with its identity, and below it the evidence."""
    lines = ["", ""]
    for row in group.rows:
        lines.append(f"- {escape(_identity(row))}")
        lines += [f"  - {escape(text)}" for text in (*row.evidence, *_behind(row))]
    return "\n".join([*lines, "", ""])


def _row(result: Result, rounds: Sequence[Result], inventory: Inventory) -> str:
    reason = brief(result, inventory)
    verdict = standing(result)
    several = f"{len(rounds)} rounds: {tally(rounds)}" if len(rounds) > 1 else ""
    why = ". ".join(filter(None, (several, reason or BECAUSE[result.cause])))
    word = f"{_SIGNS[verdict]} {MARKS[verdict].word}"
    return f"| {word} | {escape(result.check)} | {escape(why)} |\n"


def escape(text: str) -> str:
    """Let *text* come out as it is, on one line, whatever Markdown would make of it."""
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))
