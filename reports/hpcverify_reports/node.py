"""
The health report of one node: one page that opens anywhere.

For the operator who decides, the verdict and the next step stand on top in words;
for the vendor's technician, every number stands below with its limit, the limit's
source, and how to measure it again. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import recall_gone_parts
from hpcverify.summary.figures import Figure, choose_figures
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
    group_by_cause,
    list_clauses,
    rank_results,
    summarize_run,
    write_command,
    write_rerun_command,
)
from hpcverify.summary.wording import format_duration
from hpcverify_reports.history import History, build_history
from hpcverify_reports.judged import Labeler
from hpcverify_reports.labels import (
    CAUSE_SENTENCES,
    ICONS,
    INFO_ICON,
    Icon,
    format_time,
    make_anchor,
)
from hpcverify_reports.pages import render_page
from hpcverify_reports.parts import name_parts
from hpcverify_reports.remedies import (
    ActionGroup,
    Repetitions,
    describe_machine,
    group_demanded,
    group_milder,
)
from hpcverify_reports.sections import (
    Fact,
    FindingItem,
    KindTable,
    Link,
    Section,
    build_finding,
    build_kind_tables,
    build_section,
)

MAX_REASONS = 4
"""Reasons at the top of the page."""
MAX_OTHER_ROUNDS = 50
"""Of each check, beside the worst one; those that did not pass come first."""


@dataclass(frozen=True, slots=True)
class ReasonLine:
    """The first complaint of a check, or of several alike, and how many more."""

    checks: tuple[Link, ...]
    text: str
    more: int


@dataclass(frozen=True, slots=True)
class Speed:
    """A figure that one asks for first, and beside it which part had the least."""

    href: str
    name: str
    value: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodePage:
    """All that the template prints, in its order; what is empty is not shown."""

    icons: tuple[Icon, ...]
    node: str
    verdict: str
    icon: Icon
    lede: str
    reasons: tuple[ReasonLine, ...]
    groups: tuple[ActionGroup, ...]
    milder: tuple[ActionGroup, ...]
    no_action_note: str
    """What to do where there is nothing to do."""
    speeds: tuple[Speed, ...]
    facts: tuple[Fact, ...]
    why: tuple[Section, ...]
    skipped: tuple[Section, ...]
    checks: tuple[Section, ...]
    history: History | None
    kinds: tuple[KindTable, ...]
    problems: tuple[FindingItem, ...]
    sensors: tuple[Fact, ...]
    """Parts, and what can be sampled on them."""
    command: str
    rerun_command: str
    versions: tuple[Fact, ...]
    id: str


def render(
    run: Run, *, history: Sequence[Run] = (), repetitions: Repetitions = MappingProxyType({})
) -> str:
    """
    Print *run* as one HTML page.

    *history* are earlier runs of the same node; *repetitions* say how often the parts
    that fail have failed before.
    """
    label = recall_gone_parts(run).find_label
    sections = {
        check: _build_section(rounds, run, label)
        for check, rounds in group_by_check(run.results).items()
    }
    bad = [g for g in group_by_cause(run) if effective_verdict(g.result) >= Verdict.WARN]
    decisive = [g for g in bad if effective_verdict(g.result) is run.verdict]
    skipped = [
        r.check for r in choose_worst_rounds(run.results) if effective_verdict(r) is Verdict.SKIP
    ]
    page = NodePage(
        icons=(*ICONS.values(), INFO_ICON),
        node=run.node,
        verdict=run.verdict.name,
        icon=ICONS[run.verdict],
        lede=summarize_run(run),
        reasons=tuple(_build_reason(g, run) for g in decisive[:MAX_REASONS]),
        groups=group_demanded(run, repetitions),
        milder=group_milder(run),
        no_action_note=REMEDY_SENTENCES[Remedy.NONE] if run.verdict is Verdict.PASS else "",
        speeds=tuple(_list_speeds(run, label)) if run.verdict < Verdict.ERROR else (),
        facts=tuple(_list_facts(run)),
        why=tuple(_build_card(g, sections) for g in bad),
        skipped=tuple(sections[check] for check in skipped),
        checks=tuple(sections.values()),
        history=build_history(run, history, label),
        kinds=build_kind_tables(run.inventory),
        problems=tuple(build_finding(f, label) for f in run.inventory.problems),
        sensors=tuple(_group_sensors(run.inventory)),
        command=write_command(run.suite),
        rerun_command=write_rerun_command(run) if bad else "",
        versions=tuple(run.versions.items()),
        id=run.id,
    )
    return render_page("node.html.j2", page=page)


def _build_section(rounds: Sequence[Result], run: Run, label: Labeler) -> Section:
    """Lay out the worst of *rounds* in full, and fold the others under it."""
    worst = choose_worst_round(rounds)
    made = build_section(worst, run.inventory, label)
    if len(rounds) == 1:
        return made
    others = rank_results(r for r in rounds if r is not worst)
    shown = sorted(others[:MAX_OTHER_ROUNDS], key=lambda r: r.round)
    left = len(others) - len(shown)
    return replace(
        made,
        badges=(f"{len(rounds)} rounds: {format_tally(rounds)}", *made.badges),
        shown_note=f"Round {worst.round} is shown here, the first of the worst.",
        other_rounds=tuple(build_section(r, run.inventory, label, main=False) for r in shown),
        unshown_note=f"and {left} more: hpcverify show {run.id} --round N" if left else "",
    )


def _build_card(group: CauseGroup, sections: Mapping[str, Section]) -> Section:
    """Show a check that did not pass, and name those that the same cause took with it."""
    links = tuple((make_anchor(r.check), r.check) for r in group.also)
    return replace(sections[group.result.check], same_checks=links)


def _build_reason(group: CauseGroup, run: Run) -> ReasonLine:
    """Tell what decided a verdict, of several checks that owe it to one cause once."""
    first, *others = list_clauses(group.result, recall_gone_parts(run)) or [group.result.reason]
    return ReasonLine(
        checks=tuple((make_anchor(r.check), r.check) for r in group.results),
        text=first.removeprefix("node: ") or CAUSE_SENTENCES[group.result.cause],
        more=len(others),
    )


def _list_speeds(run: Run, label: Labeler) -> Iterator[Speed]:
    for result in choose_worst_rounds(run.results):
        for figure in choose_figures(result, run.inventory):
            yield Speed(
                href=make_anchor(result.check),
                name=f"{figure.check} {figure.name}",
                value=figure.format_value(figure.typical),
                notes=tuple(_write_notes(figure, label)),
            )


def _write_notes(figure: Figure, label: Labeler) -> Iterator[str]:
    if figure.share:
        yield figure.share
    if figure.parts > 1:
        slowest = figure.format_value(figure.slowest.value or 0.0)
        yield f"median of {figure.parts}; slowest: {label(figure.slowest.where)} {slowest}"


def _list_facts(run: Run) -> Iterator[Fact]:
    if known := describe_machine(run):
        yield "Machine", known
    yield "Suite", run.suite
    if run.rounds > 1:
        yield "Rounds", f"{count_rounds(run)} of {run.rounds}"
    yield "Started", format_time(run.started)
    yield "Took", format_duration(run.seconds)
    yield "Run", "complete" if run.complete else "interrupted"


def _group_sensors(inventory: Inventory) -> Iterator[Fact]:
    """Tell once what several parts have alike."""
    by_part: dict[str, list[str]] = {}
    for sensor in inventory.sensors:
        where, _, name = sensor.rpartition("/")
        by_part.setdefault(where, []).append(name)
    alike: dict[tuple[str, ...], list[str]] = {}
    for where, names in by_part.items():
        alike.setdefault(tuple(sorted(names)), []).append(where)
    for some, places in alike.items():
        yield name_parts(filter(None, places), inventory), ", ".join(some)
