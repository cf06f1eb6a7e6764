"""A run as JUnit XML for CI, and as Markdown for a ticket."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from xml.etree import ElementTree as ET

from hpcverify.model import Cause, Remedy, Run, Verdict
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.faults import (
    PartFaults,
    find_common_remedy,
    get_subject,
    index_faults,
    list_faults,
)
from hpcverify.summary.printable import make_printable
from hpcverify.summary.rounds import format_round_count
from hpcverify.summary.run_summary import RunSummary, summarize, write_finding
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import CAUSE_SENTENCES, ICONS, convert_to_utc, format_time
from hpcverify_reports.remedies import (
    Repetitions,
    TicketPart,
    TicketStep,
    lay_out_steps,
)

_JUNIT_ELEMENTS = {Verdict.FAIL: "failure", Verdict.ERROR: "error", Verdict.SKIP: "skipped"}
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&@$]|:(?=//))")
_VERDICT_CHARACTERS = {
    Verdict.PASS: "✓",
    Verdict.SKIP: "\N{EN DASH}",
    Verdict.WARN: "▲",
    Verdict.ERROR: "◆",
    Verdict.FAIL: "✗",
}


def junit(run: Run, past: Repetitions = MappingProxyType({})) -> str:
    """
    Write *run* as JUnit XML, a test case for each check: its worst round.

    A warning passes, with the details in its output. If the run is FAIL or ERROR though no
    check is, as after an interruption, that is a test case of its own, so that no CI server
    counts the run as good. The properties name the machine and, for each part, what to do,
    its identity and the evidence; *past* says how often it has failed.
    """
    summary = summarize(run)
    sentences: dict[str, list[str]] = {}
    for diagnosis in summary.diagnoses:
        for name in dict.fromkeys((*diagnosis.checks, *diagnosis.other_checks)):
            sentences.setdefault(name, []).append(diagnosis.sentence)
    cases = [
        *(
            _build_case(summary.by_name[name], sentences.get(name, ()), summary.parts)
            for name in dict.fromkeys(result.check for result in run.results)
        ),
        *_build_run_case(summary),
    ]
    counts = Counter(element.tag for case in cases for element in case)
    suite = ET.Element(
        "testsuite",
        name=make_printable(f"hpcverify {run.suite}"),
        hostname=make_printable(run.node),
        timestamp=convert_to_utc(run.started).isoformat(timespec="seconds"),
        time=f"{run.seconds:.3f}",
        tests=str(len(cases)),
        failures=str(counts["failure"]),
        errors=str(counts["error"]),
        skipped=str(counts["skipped"]),
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in _list_properties(summary, past):
        ET.SubElement(
            properties, "property", name=make_printable(name), value=make_printable(value)
        )
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _list_properties(summary: RunSummary, past: Repetitions) -> Iterator[tuple[str, str]]:
    run = summary.run
    yield "run", run.id
    yield "verdict", run.verdict.value
    yield "complete", str(run.complete).lower()
    yield "summary", summary.sentence
    if summary.gpus:
        yield "gpus", summary.gpus
    yield "next", summary.next_steps or REMEDY_SENTENCES[Remedy.NONE]
    if run.rounds > 1:
        yield "rounds", format_round_count(run)
        yield "left_out", run.left_out
    for name, version in run.versions.items():
        yield f"version.{name}", version
    if summary.machine:
        yield "machine", summary.machine
    for group in chain(*lay_out_steps(summary, past)):
        for row in group.rows:
            yield f"{group.icon.word}: {group.action}", "; ".join(_list_lines(row))


def _list_lines(row: TicketPart) -> Iterator[str]:
    """Yield how to identify a part, what is wrong with it, and what supports that."""
    facts = (f"{name} {value}" for name, value in row.facts)
    part_id = f"id {row.id}" if row.id else ""
    yield ", ".join(filter(None, (row.label, row.model, part_id, *facts)))
    yield from (*row.diagnoses, *row.evidence, *row.past)
    yield from (f"other cause ruled out: {text}" for text in row.ruled_out)
    if row.not_ruled_out:
        yield f"not ruled out: {row.not_ruled_out}"


def _build_case(
    check: CheckSummary, sentences: Sequence[str], parts: Mapping[str, PartFaults]
) -> ET.Element:
    result = check.result
    case = ET.Element(
        "testcase",
        classname="hpcverify",
        name=make_printable(result.check),
        time=f"{sum(r.seconds for r in check.rounds):.3f}",
    )
    several = [f"{len(check.rounds)} rounds: {check.tally}"] if check.tally else []
    details = make_printable("\n".join([*several, *_list_details(check, parts)]))
    kind = _JUNIT_ELEMENTS.get(check.verdict)
    if kind is not None:
        weights = [f"[{check.weight}]"] if check.weight else []
        ET.SubElement(
            case,
            kind,
            type=result.cause.value or result.remedy.value,
            message=make_printable(" ".join(["; ".join(sentences) or result.reason, *weights])),
        ).text = details
    elif check.verdict is Verdict.WARN:
        ET.SubElement(case, "system-out").text = details
    return case


def _build_run_case(summary: RunSummary) -> Iterator[ET.Element]:
    run = summary.run
    if run.verdict < Verdict.ERROR or any(c.verdict is run.verdict for c in summary.checks):
        return
    case = ET.Element("testcase", classname="hpcverify", name="the run", time="0.000")
    ET.SubElement(
        case,
        _JUNIT_ELEMENTS[run.verdict],
        type=Cause.INTERRUPTED.value if not run.complete else run.verdict.value,
        message=make_printable(summary.sentence),
    )
    yield case


def _list_details(check: CheckSummary, parts: Mapping[str, PartFaults]) -> Iterator[str]:
    """Yield everything that was found, and what to do if that is the same for all."""
    result = check.result
    yield f"{ICONS[check.verdict].word}: {result.reason}"
    yield from filter(None, (check.weight, CAUSE_SENTENCES[result.cause]))
    common = find_common_remedy(result, parts)
    if common not in (None, Remedy.NONE):
        yield f"Next: {REMEDY_SENTENCES[common]}"
    for one in list_faults(result):
        milder = one.verdict < check.verdict
        weight = f" ({ICONS[one.verdict].word})" if milder else ""
        own = "" if common else f": {REMEDY_SENTENCES[parts[one.part_id][0].remedy]}"
        yield f"{one.part_id}: {one.code}: {one.text}{weight}{own}"
        yield from (f"  {name}: {text}" for name, text in one.evidence.items())
    faults = index_faults(result)
    for finding in result.findings:
        if get_subject(finding) not in faults:
            yield f"{finding.part_id}: {finding.code}: {finding.text}"
            yield from (f"  {name}: {text}" for name, text in finding.evidence.items())


def markdown(run: Run, past: Repetitions = MappingProxyType({})) -> str:
    """
    Write *run* as a summary in GitHub's Markdown, worst first.

    Parts are listed under what to do about them; *past* says how often they have failed.
    """
    summary = summarize(run)
    rows = "".join(_list_rows(summary))
    table = f"| | check | why |\n|---|---|---|\n{rows}\n" if rows else ""
    state = "complete" if run.complete else "interrupted"
    suite = ", ".join(filter(None, (run.suite, format_round_count(run))))
    demanded, milder = lay_out_steps(summary, past)
    passed = run.verdict is Verdict.PASS
    idle = f"**Next: {REMEDY_SENTENCES[Remedy.NONE]}**\n\n" if passed else ""
    again = f"Then: {escape(summary.rerun_command)}\n\n" if demanded else ""
    more = "Other observations (no part below failed).\n\n" if milder else ""
    machine = summary.machine
    heads = "".join(f"**Next: {g.action}** {escape(g.names)}{_format_parts(g)}" for g in demanded)
    tails = "".join(f"{g.action} {escape(g.names)}{_format_parts(g)}" for g in milder)
    return (
        f"## {_VERDICT_CHARACTERS[run.verdict]} {escape(run.node)}: {run.verdict.name}\n\n"
        f"{escape(summary.sentence)}\n\n"
        f"{idle}"
        f"{heads}{again}{more}{tails}{table}"
        f"{f'Machine: {escape(machine)}. ' if machine else ''}"
        f"Suite {escape(suite)}, {escape(format_time(run.started))}, "
        f"{format_duration(run.seconds)}, {state}, run {escape(run.id)}.\n"
    )


def _format_parts(step: TicketStep) -> str:
    """List the parts of *step*, each with its identity and below it the evidence."""
    lines = [
        f"{'  - ' if place else '- '}{escape(text)}"
        for row in step.rows
        for place, text in enumerate(_list_lines(row))
    ]
    return "\n".join(["", "", *lines, "", ""])


def _list_rows(summary: RunSummary) -> Iterator[str]:
    """Yield a row for each diagnosis, then for each check that passed or was skipped."""
    for diagnosis in summary.diagnoses:
        if diagnosis.checks:
            tally, finding = write_finding(diagnosis, summary)
            own = [summary.by_name[n] for n in diagnosis.checks if n in summary.by_name]
            rounds = sum(len(check.rounds) for check in own)
            why = f"{rounds} rounds: {tally}. {finding}" if tally else finding
            yield _format_row(diagnosis.verdict, diagnosis.checks[0], why)
    for check in summary.checks:
        if check.verdict in (Verdict.PASS, Verdict.SKIP):
            result = check.result
            several = f"{len(check.rounds)} rounds: {check.tally}" if check.tally else ""
            reason = result.reason or CAUSE_SENTENCES[result.cause]
            why = ". ".join(filter(None, (several, reason)))
            yield _format_row(check.verdict, result.check, why)


def _format_row(verdict: Verdict, checks: str, why: str) -> str:
    word = f"{_VERDICT_CHARACTERS[verdict]} {ICONS[verdict].word}"
    return f"| {word} | {escape(checks)} | {escape(why)} |\n"


def escape(text: str) -> str:
    """Escape *text* so that Markdown shows it as it is, on one line."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", make_printable(" ".join(text.split())))
