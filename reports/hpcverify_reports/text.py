"""A run as JUnit XML for CI, and as Markdown for a ticket."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from xml.etree import ElementTree as ET

from hpcverify.model import Cause, Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import (
    ComplaintIndex,
    find_common_remedy,
    list_complaints,
    map_remedies,
    recall_gone_parts,
)
from hpcverify.summary.facts import describe_gpus
from hpcverify.summary.printable import make_printable
from hpcverify.summary.rounds import (
    choose_worst_round,
    format_round_count,
    format_tally,
    group_by_check,
)
from hpcverify.summary.verdict import (
    REMEDY_SENTENCES,
    CauseGroup,
    explain_group,
    explain_weight,
    format_next_steps,
    group_by_cause,
    rank_checks,
    summarize_reason,
    summarize_run,
    write_rerun_command,
)
from hpcverify.summary.wording import format_duration
from hpcverify_reports.labels import CAUSE_SENTENCES, ICONS, convert_to_utc, format_time
from hpcverify_reports.remedies import (
    ActionGroup,
    AffectedRow,
    Repetitions,
    describe_machine,
    group_demanded,
    group_milder,
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
    inventory, remedies = recall_gone_parts(run), map_remedies(run)
    cases = [
        *(_build_case(some, inventory, remedies) for some in group_by_check(run.results).values()),
        *_build_run_case(run),
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
    for name, value in _list_properties(run, past):
        ET.SubElement(
            properties, "property", name=make_printable(name), value=make_printable(value)
        )
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _list_properties(run: Run, past: Repetitions) -> Iterator[tuple[str, str]]:
    yield "run", run.id
    yield "verdict", run.verdict.value
    yield "complete", str(run.complete).lower()
    yield "summary", summarize_run(run)
    if gpus := describe_gpus(run.inventory):
        yield "gpus", gpus
    yield "next", format_next_steps(run) or REMEDY_SENTENCES[Remedy.NONE]
    if run.rounds > 1:
        yield "rounds", format_round_count(run)
        yield "left_out", run.left_out
    for name, version in run.versions.items():
        yield f"version.{name}", version
    if machine := describe_machine(run):
        yield "machine", machine
    for group in (*group_demanded(run, past), *group_milder(run)):
        for row in group.rows:
            details = _format_identity(row), *row.evidence, *_list_support(row)
            yield f"{group.icon.word}: {group.action}", "; ".join(details)


def _format_identity(row: AffectedRow) -> str:
    """List the facts by which a technician or a vendor identifies a part."""
    facts = (f"{name} {value}" for name, value in row.facts)
    part_id = f"id {row.id}" if row.id else ""
    return ", ".join(filter(None, (row.label, row.model, part_id, *facts)))


def _list_support(row: AffectedRow) -> Iterator[str]:
    """Yield how often the part has failed, and which other causes are ruled out."""
    yield from row.past
    yield from (f"other cause ruled out: {text}" for text in row.ruled_out)
    if row.not_ruled_out:
        yield f"not ruled out: {row.not_ruled_out}"


def _build_case(
    rounds: Sequence[Result], inventory: Inventory, remedies: Mapping[str, Remedy]
) -> ET.Element:
    result = choose_worst_round(rounds)
    case = ET.Element(
        "testcase",
        classname="hpcverify",
        name=make_printable(result.check),
        time=f"{sum(r.seconds for r in rounds):.3f}",
    )
    several = [f"{len(rounds)} rounds: {format_tally(rounds)}"] if len(rounds) > 1 else []
    details = make_printable("\n".join([*several, *_list_details(result, remedies)]))
    kind = _JUNIT_ELEMENTS.get(effective_verdict(result))
    if kind is not None:
        ET.SubElement(
            case,
            kind,
            type=result.cause.value or result.remedy.value,
            message=make_printable(summarize_reason(result, inventory)),
        ).text = details
    elif effective_verdict(result) is Verdict.WARN:
        ET.SubElement(case, "system-out").text = details
    return case


def _build_run_case(run: Run) -> Iterator[ET.Element]:
    if run.verdict < Verdict.ERROR or any(effective_verdict(r) is run.verdict for r in run.results):
        return
    case = ET.Element("testcase", classname="hpcverify", name="the run", time="0.000")
    ET.SubElement(
        case,
        _JUNIT_ELEMENTS[run.verdict],
        type=Cause.INTERRUPTED.value if not run.complete else run.verdict.value,
        message=make_printable(summarize_run(run)),
    )
    yield case


def _list_details(result: Result, remedies: Mapping[str, Remedy]) -> Iterator[str]:
    """Yield everything that was found, and what to do if that is the same for all."""
    yield f"{ICONS[effective_verdict(result)].word}: {result.reason}"
    yield from filter(None, (explain_weight(result), CAUSE_SENTENCES[result.cause]))
    common = find_common_remedy(result, remedies)
    if common not in (None, Remedy.NONE):
        yield f"Next: {REMEDY_SENTENCES[common]}"
    for one in list_complaints(result):
        milder = one.verdict < effective_verdict(result)
        weight = f" ({ICONS[one.verdict].word})" if milder else ""
        own = "" if common else f": {REMEDY_SENTENCES[remedies[one.part_id]]}"
        yield f"{one.part_id}: {one.name}: {one.text}{weight}{own}"
        yield from (f"  {name}: {text}" for name, text in one.evidence.items())
    complaints = ComplaintIndex(result)
    for finding in result.findings:
        if complaints.rank(finding)[0] is Verdict.PASS:
            yield f"{finding.part_id}: {finding.code}: {finding.text}"
            yield from (f"  {name}: {text}" for name, text in finding.evidence.items())


def markdown(run: Run, past: Repetitions = MappingProxyType({})) -> str:
    """
    Write *run* as a summary in GitHub's Markdown, worst first.

    Parts are listed under what to do about them; *past* says how often they have failed.
    """
    rounds = group_by_check(run.results)
    inventory = recall_gone_parts(run)
    skipped = [r for r in rank_checks(run) if effective_verdict(r) is Verdict.SKIP]
    groups = [*group_by_cause(run), *(CauseGroup(result=r) for r in skipped)]
    rows = "".join(_format_row(g, rounds[g.result.check], inventory) for g in groups)
    table = f"| | check | why |\n|---|---|---|\n{rows}\n" if rows else ""
    state = "complete" if run.complete else "interrupted"
    suite = ", ".join(filter(None, (run.suite, format_round_count(run))))
    demanded = group_demanded(run, past)
    passed = run.verdict is Verdict.PASS
    idle = f"**Next: {REMEDY_SENTENCES[Remedy.NONE]}**\n\n" if passed else ""
    again = f"Then: {escape(write_rerun_command(run))}\n\n" if demanded else ""
    milder = group_milder(run)
    more = "Other observations (no part below failed).\n\n" if milder else ""
    machine = describe_machine(run)
    heads = "".join(f"**Next: {g.action}** {escape(g.names)}{_format_parts(g)}" for g in demanded)
    tails = "".join(f"{g.action} {escape(g.names)}{_format_parts(g)}" for g in milder)
    return (
        f"## {_VERDICT_CHARACTERS[run.verdict]} {escape(run.node)}: {run.verdict.name}\n\n"
        f"{escape(summarize_run(run))}\n\n"
        f"{idle}"
        f"{heads}{again}{more}{tails}{table}"
        f"{f'Machine: {escape(machine)}. ' if machine else ''}"
        f"Suite {escape(suite)}, {escape(format_time(run.started))}, "
        f"{format_duration(run.seconds)}, {state}, run {escape(run.id)}.\n"
    )


def _format_parts(group: ActionGroup) -> str:
    """List the parts of *group*, each with its identity and below it the evidence."""
    lines = ["", ""]
    for row in group.rows:
        lines.append(f"- {escape(_format_identity(row))}")
        lines += [f"  - {escape(text)}" for text in (*row.evidence, *_list_support(row))]
    return "\n".join([*lines, "", ""])


def _format_row(group: CauseGroup, rounds: Sequence[Result], inventory: Inventory) -> str:
    result, reason = group.result, explain_group(group, inventory)
    verdict = effective_verdict(result)
    several = f"{len(rounds)} rounds: {format_tally(rounds)}" if len(rounds) > 1 else ""
    why = ". ".join(filter(None, (several, reason or CAUSE_SENTENCES[result.cause])))
    word = f"{_VERDICT_CHARACTERS[verdict]} {ICONS[verdict].word}"
    return f"| {word} | {escape(result.check)} | {escape(why)} |\n"


def escape(text: str) -> str:
    """Escape *text* so that Markdown shows it as it is, on one line."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", make_printable(" ".join(text.split())))
