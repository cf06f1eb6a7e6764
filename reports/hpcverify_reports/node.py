"""
The health report of one node: one page that opens anywhere.

The verdict and the next step are on top, for the operator. Every number is below, with its
limit, the limit's source and the command that measures it again, for the vendor's
technician. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from zlib import crc32

from hpcverify.model import Inventory, Remedy, Run, Verdict
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.diagnosis import Diagnosis
from hpcverify.summary.figures import Figure
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.rounds import count_rounds
from hpcverify.summary.run_summary import RunSummary, summarize
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify.summary.wording import format_duration
from hpcverify_reports.history import build_history
from hpcverify_reports.labels import ICONS, INFO_ICON, Icon, format_time, make_anchor
from hpcverify_reports.pages import render_page
from hpcverify_reports.remedies import Repetitions, lay_out_actions
from hpcverify_reports.sections import (
    LabeledText,
    Section,
    build_finding,
    build_kind_tables,
    build_section,
)

MAX_REASONS = 4
"""Reasons at the top of the page."""
MAX_OTHER_ROUNDS = 50
"""Rounds of a check besides the worst one; those that did not pass come first."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A diagnosis that made the verdict of the run."""

    icon: Icon
    href: str
    check: str
    text: str


@dataclass(frozen=True, slots=True)
class Speed:
    """A key figure of a check, and the slowest part."""

    href: str
    name: str
    value: str
    notes: tuple[str, ...]


def render(
    run: Run,
    *,
    history: Sequence[Run] = (),
    repetitions: Repetitions = MappingProxyType({}),
    standing: str = "",
) -> str:
    """
    Render *run* as one HTML page.

    *history* has earlier runs of the same node; *repetitions* say how often the failing
    parts have failed before; *standing* says how the node is worse than its fleet, if it is.
    """
    summary = summarize(run)
    sections = {check.result.check: _build_section(check, summary) for check in summary.checks}
    deciding = [d for d in summary.diagnoses if d.verdict is run.verdict and d.checks]
    demanded, milder = lay_out_actions(summary, repetitions)
    cards = [sections[check.result.check] for check in summary.checks if check.adds_evidence]
    evident = {card.check for card in cards}
    page = SimpleNamespace(
        icons=(*ICONS.values(), INFO_ICON),
        node=run.node,
        verdict=run.verdict.name,
        icon=ICONS[run.verdict],
        lede=". ".join(filter(None, (summary.gpus, summary.sentence))),
        reasons=[_build_reason(diagnosis) for diagnosis in deciding[:MAX_REASONS]],
        more_reasons=max(0, len(deciding) - MAX_REASONS),
        standing=standing,
        no_action_note=REMEDY_SENTENCES[Remedy.NONE]
        if run.verdict is Verdict.PASS and not standing
        else "",
        groups=demanded,
        milder=milder,
        speeds=list(_list_speeds(summary)) if run.verdict < Verdict.ERROR else (),
        facts=list(_list_facts(summary)),
        cards=cards,
        skipped=[sections[c.result.check] for c in summary.checks if c.verdict is Verdict.SKIP],
        checks=[
            replace(sections[name], is_open=sections[name].is_open and name in evident)
            for name in dict.fromkeys(result.check for result in run.results)
        ],
        history=build_history(run, history),
        kinds=build_kind_tables(run.inventory),
        problems=[build_finding(f, summary.inventory) for f in run.inventory.problems],
        sensors=list(_group_sensors(run.inventory)),
        command=summary.command,
        rerun_command=summary.rerun_command if cards else "",
        versions=run.versions.items(),
        id=run.id,
        mark=make_mark(run.id, standing),
    )
    return render_page("node.html.j2", page)


def _build_reason(diagnosis: Diagnosis) -> Reason:
    return Reason(
        icon=ICONS[diagnosis.verdict],
        href=make_anchor(diagnosis.checks[0]),
        check=diagnosis.checks[0],
        text=diagnosis.note,
    )


def make_mark(run_id: str, standing: str) -> str:
    """Make the mark by which a page is recognized that shows a run and its *standing*."""
    return f"{run_id} {crc32(standing.encode()):08x}" if standing else run_id


def _build_section(check: CheckSummary, summary: RunSummary) -> Section:
    """Lay out the worst round of *check* in full, with the others folded below it."""
    section = build_section(check, check.result, summary)
    if len(check.rounds) == 1:
        return section
    others = check.other_rounds
    shown = sorted(others[:MAX_OTHER_ROUNDS], key=lambda r: r.round)
    left = len(others) - len(shown)
    return replace(
        section,
        badges=(f"{len(check.rounds)} rounds: {check.tally}", *section.badges),
        shown_note=f"This is round {check.result.round}, the first of the worst.",
        other_rounds=tuple(build_section(check, r, summary) for r in shown),
        unshown_note=f"and {left} more: hpcverify show {summary.run.id} --round N" if left else "",
    )


def _list_speeds(summary: RunSummary) -> Iterator[Speed]:
    for check in summary.checks:
        for figure in check.figures:
            yield Speed(
                href=make_anchor(figure.check),
                name=f"{figure.check} {figure.name}",
                value=figure.format_value(figure.typical),
                notes=tuple(_write_notes(figure, summary.inventory)),
            )


def _write_notes(figure: Figure, inventory: Inventory) -> Iterator[str]:
    if figure.share:
        yield figure.share
    if figure.parts > 1:
        value = figure.format_value(figure.slowest.value or 0.0)
        part = inventory.find_label(figure.slowest.part_id)
        yield f"median of {figure.parts}; worst: {part} {value}"


def _list_facts(summary: RunSummary) -> Iterator[LabeledText]:
    run = summary.run
    if summary.machine:
        yield "Machine", summary.machine
    yield "Suite", run.suite
    if run.rounds > 1:
        yield "Rounds", f"{count_rounds(run)} of {run.rounds}"
    yield "Started", format_time(run.started)
    yield "Took", format_duration(run.seconds)
    yield "Run", "complete" if run.complete else "interrupted"


def _group_sensors(inventory: Inventory) -> Iterator[LabeledText]:
    """Yield the parts with the same sensors, and these sensors."""
    by_part: dict[str, list[str]] = {}
    for sensor in inventory.sensors:
        part_id, _, name = sensor.rpartition("/")
        by_part.setdefault(part_id, []).append(name)
    alike: dict[tuple[str, ...], list[str]] = {}
    for part_id, names in by_part.items():
        alike.setdefault(tuple(sorted(names)), []).append(part_id)
    for some, places in alike.items():
        yield name_parts(filter(None, places), inventory), ", ".join(some)
