"""
The health report of one node: one page that opens anywhere.

For the operator who decides, the verdict and the next step stand on top in words;
for the vendor's technician, every number stands below with its limit, the limit's
source, and how to measure it again. The same run gives the same bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, effective_verdict
from hpcverify.summary.actions import FORMER_LABEL, list_clauses
from hpcverify.summary.figures import Figure, choose_figures
from hpcverify.summary.rounds import (
    choose_worst_round,
    choose_worst_rounds,
    count_rounds,
    format_tally,
    group_by_check,
    sort_results,
)
from hpcverify_reports.headline import list_decisive_results, write_lede
from hpcverify_reports.history import History, build_history
from hpcverify_reports.judged import Labeler
from hpcverify_reports.labels import (
    CAUSE_SENTENCES,
    ICONS,
    INFO_ICON,
    REMEDY_SENTENCES,
    Icon,
    format_duration,
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
    label = _make_labeler(run)
    sections = {
        check: _build_section(rounds, run, label)
        for check, rounds in group_by_check(run.results).items()
    }
    ordered = sort_results(choose_worst_rounds(run.results))
    blamed = [r.check for r in ordered if effective_verdict(r) >= Verdict.WARN]
    skipped = [r.check for r in ordered if effective_verdict(r) is Verdict.SKIP]
    page = NodePage(
        icons=(*ICONS.values(), INFO_ICON),
        node=run.node,
        verdict=run.verdict.name,
        icon=ICONS[run.verdict],
        lede=write_lede(run),
        reasons=tuple(_list_reasons(run))[:MAX_REASONS],
        groups=group_demanded(run, repetitions),
        milder=group_milder(run),
        no_action_note=REMEDY_SENTENCES[Remedy.NONE] if run.verdict is Verdict.PASS else "",
        speeds=tuple(_list_speeds(run, label)) if run.verdict < Verdict.ERROR else (),
        facts=tuple(_list_facts(run)),
        why=_merge_alike([sections[check] for check in blamed]),
        skipped=tuple(sections[check] for check in skipped),
        checks=tuple(sections.values()),
        history=build_history(run, history, label),
        kinds=build_kind_tables(run.inventory),
        problems=tuple(build_finding(f, label) for f in run.inventory.problems),
        sensors=tuple(_group_sensors(run.inventory)),
        command=write_command(run.suite),
        rerun_command=write_command(run.suite, blamed) if blamed else "",
        versions=tuple(run.versions.items()),
        id=run.id,
    )
    return render_page("node.html.j2", page=page)


def _make_labeler(run: Run) -> Labeler:
    """Name every part as people do; one that is gone as it was called before."""
    gone = {
        finding.where: finding.evidence[FORMER_LABEL]
        for result in run.results
        for finding in result.findings
        if FORMER_LABEL in finding.evidence
    }
    labels = gone | {part.id: part.label for part in run.inventory.parts}
    return lambda where: labels.get(where, where)


def _build_section(rounds: Sequence[Result], run: Run, label: Labeler) -> Section:
    """Lay out the worst of *rounds* in full, and fold the others under it."""
    worst = choose_worst_round(rounds)
    made = build_section(worst, run.inventory, label)
    if len(rounds) == 1:
        return made
    others = sort_results(r for r in rounds if r is not worst)
    shown = sorted(others[:MAX_OTHER_ROUNDS], key=lambda r: r.round)
    left = len(others) - len(shown)
    return replace(
        made,
        badges=(f"{len(rounds)} rounds: {format_tally(rounds)}", *made.badges),
        shown_note=f"Round {worst.round} is shown here, the first of the worst.",
        other_rounds=tuple(build_section(r, run.inventory, label, main=False) for r in shown),
        unshown_note=f"and {left} more: hpcverify show {run.id} --round N" if left else "",
    )


def _merge_alike(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Bring checks together that complain of the very same, as of one lost GPU."""
    alike: dict[object, list[Section]] = {}
    for one in sections:
        reason = one.findings or one.reason
        said = (one.icon, one.badges, reason, one.cause, one.next)
        alike.setdefault(one.id if one.complaints else said, []).append(one)
    return tuple(
        replace(first, same_checks=tuple((other.id, other.check) for other in others))
        for first, *others in alike.values()
    )


def _list_reasons(run: Run) -> Iterator[ReasonLine]:
    """Yield what decided the verdict; what several checks say alike comes once."""
    alike: dict[str, list[Result]] = {}
    more: dict[str, set[str]] = {}
    for result in list_decisive_results(run):
        # A skip, which counts where the check is required, has a reason and no
        # complaint.
        first, *others = list_clauses(result, run.inventory) or [result.reason]
        text = first.removeprefix("node: ") or CAUSE_SENTENCES[result.cause]
        alike.setdefault(text, []).append(result)
        more.setdefault(text, set()).update(others)
    for text, results in alike.items():
        checks = tuple((make_anchor(r.check), r.check) for r in results)
        yield ReasonLine(checks, text, len(more[text]))


def _list_speeds(run: Run, label: Labeler) -> Iterator[Speed]:
    for result in choose_worst_rounds(run.results):
        for figure in choose_figures(result):
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
        least = figure.format_value(figure.slowest.value or 0.0)
        yield f"median of {figure.parts}; least: {label(figure.slowest.where)} {least}"


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


def write_command(suite: str, checks: Sequence[str] = ()) -> str:
    """Write the command line that runs *suite*, or of it only *checks*, again."""
    chosen = [word for check in checks for word in ("--check", check)]
    return shlex.join(["hpcverify", "run", "--suite", suite, *chosen])
