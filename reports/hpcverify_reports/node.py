"""
The health report of one node: one page that opens anywhere.

The verdict and the next step are on top, for the operator. Every number is below, with its
limit, the limit's source and the command that measures it again, for the vendor's
technician. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from zlib import crc32

from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import map_remedies, recall_gone_parts
from hpcverify.summary.facts import describe_gpus
from hpcverify.summary.figures import Figure, choose_figures
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.rounds import (
    choose_worst_round,
    choose_worst_rounds,
    count_rounds,
    format_tally,
    group_by_check,
)
from hpcverify.summary.verdict import (
    REMEDY_SENTENCES,
    CauseGroup,
    count_others,
    group_by_cause,
    list_clauses,
    rank_results,
    summarize_run,
    write_command,
    write_rerun_command,
)
from hpcverify.summary.wording import format_duration
from hpcverify_reports.history import build_history
from hpcverify_reports.labels import CAUSE_SENTENCES, ICONS, INFO_ICON, format_time, make_anchor
from hpcverify_reports.pages import render_page
from hpcverify_reports.remedies import Repetitions, describe_machine, group_demanded, group_milder
from hpcverify_reports.sections import (
    LabeledText,
    Link,
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
class Card:
    """A check that did not pass, and others that did not for the same cause."""

    section: Section
    decisive: bool
    """Whether it made the verdict of the run."""
    text: str
    """Its first complaint."""
    more: str
    """How many more it has."""
    also: tuple[Link, ...]


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
    inventory, remedies = recall_gone_parts(run), map_remedies(run)
    sections = {
        check: _build_section(rounds, run, inventory, remedies)
        for check, rounds in group_by_check(run.results).items()
    }
    worst = choose_worst_rounds(run.results)
    groups = [g for g in group_by_cause(run) if effective_verdict(g.result) >= Verdict.WARN]
    cards = [_build_card(group, sections[group.result.check], run, inventory) for group in groups]
    consequences = {result.check for group in groups for result in group.also}
    page = SimpleNamespace(
        icons=(*ICONS.values(), INFO_ICON),
        node=run.node,
        verdict=run.verdict.name,
        icon=ICONS[run.verdict],
        lede=". ".join(filter(None, (describe_gpus(run.inventory), summarize_run(run)))),
        reasons=[card for card in cards if card.decisive][:MAX_REASONS],
        standing=standing,
        no_action_note=REMEDY_SENTENCES[Remedy.NONE]
        if run.verdict is Verdict.PASS and not standing
        else "",
        groups=group_demanded(run, repetitions),
        milder=group_milder(run),
        speeds=list(_list_speeds(worst, inventory)) if run.verdict < Verdict.ERROR else (),
        facts=list(_list_facts(run)),
        cards=cards,
        skipped=[sections[r.check] for r in worst if effective_verdict(r) is Verdict.SKIP],
        checks=[
            replace(section, is_open=section.is_open and check not in consequences)
            for check, section in sections.items()
        ],
        history=build_history(run, history),
        kinds=build_kind_tables(run.inventory),
        problems=[build_finding(f, inventory) for f in run.inventory.problems],
        sensors=list(_group_sensors(run.inventory)),
        command=write_command(run.suite, run.chosen),
        rerun_command=write_rerun_command(run) if cards else "",
        versions=run.versions.items(),
        id=run.id,
        mark=make_mark(run.id, standing),
    )
    return render_page("node.html.j2", page)


def make_mark(run_id: str, standing: str) -> str:
    """Make the mark by which a page is recognized that shows a run and its *standing*."""
    return f"{run_id} {crc32(standing.encode()):08x}" if standing else run_id


def _build_section(
    rounds: Sequence[Result], run: Run, inventory: Inventory, remedies: Mapping[str, Remedy]
) -> Section:
    """Lay out the worst of *rounds* in full, with the others folded below it."""
    worst = choose_worst_round(rounds)
    section = build_section(worst, inventory, remedies)
    if len(rounds) == 1:
        return section
    others = rank_results(r for r in rounds if r is not worst)
    shown = sorted(others[:MAX_OTHER_ROUNDS], key=lambda r: r.round)
    left = len(others) - len(shown)
    return replace(
        section,
        badges=(f"{len(rounds)} rounds: {format_tally(rounds)}", *section.badges),
        shown_note=f"This is round {worst.round}, the first of the worst.",
        other_rounds=tuple(build_section(r, inventory, remedies, main=False) for r in shown),
        unshown_note=f"and {left} more: hpcverify show {run.id} --round N" if left else "",
    )


def _build_card(group: CauseGroup, section: Section, run: Run, inventory: Inventory) -> Card:
    verdict = effective_verdict(group.result)
    first = next(iter(list_clauses(group.result, inventory)), "")
    return Card(
        section=section,
        decisive=verdict is run.verdict,
        text=first or CAUSE_SENTENCES[group.result.cause],
        more=count_others(group.result, inventory),
        also=tuple(_link_check(result, verdict) for result in group.also),
    )


def _link_check(result: Result, expected: Verdict) -> Link:
    """Link to a check, with what it counts as if that is not *expected*."""
    verdict = effective_verdict(result)
    note = "" if verdict is expected else f" ({ICONS[verdict].word})"
    return make_anchor(result.check), result.check + note


def _list_speeds(results: Sequence[Result], inventory: Inventory) -> Iterator[Speed]:
    for result in results:
        for figure in choose_figures(result, inventory):
            yield Speed(
                href=make_anchor(result.check),
                name=f"{figure.check} {figure.name}",
                value=figure.format_value(figure.typical),
                notes=tuple(_write_notes(figure, inventory)),
            )


def _write_notes(figure: Figure, inventory: Inventory) -> Iterator[str]:
    if figure.share:
        yield figure.share
    if figure.parts > 1:
        value = figure.format_value(figure.slowest.value or 0.0)
        part = inventory.find_label(figure.slowest.part_id)
        yield f"median of {figure.parts}; worst: {part} {value}"


def _list_facts(run: Run) -> Iterator[LabeledText]:
    if machine := describe_machine(run):
        yield "Machine", machine
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
