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

from hpcverify.actions import FORMER_LABEL, clauses
from hpcverify.model import Inventory, Remedy, Result, Run, Verdict, standing
from hpcverify.rounds import (
    by_check,
    rounds_of,
    tally,
    worst_first,
    worst_round,
    worst_rounds,
)
from hpcverify_reports.headline import decisive, lede
from hpcverify_reports.history import History, before
from hpcverify_reports.judged import Labels
from hpcverify_reports.pages import page
from hpcverify_reports.parts import name_parts
from hpcverify_reports.remedies import Group, Repetitions, groups, machine, milder
from hpcverify_reports.sections import (
    Fact,
    Kind,
    Proof,
    Section,
    kinds,
    proof,
    section,
)
from hpcverify_reports.speeds import Speed, speeds
from hpcverify_reports.words import (
    BECAUSE,
    INFO,
    MARKS,
    NEXT,
    Mark,
    anchor,
    duration,
    moment,
)

TOLD = 4
"""Reasons at the top of the page."""

ROUNDS = 50
"""Of each check, beside the worst one; those that did not pass come first."""


@dataclass(frozen=True, slots=True)
class Chip:
    """A check in the overview, with a link to its section."""

    href: str
    name: str
    mark: Mark
    took: str


@dataclass(frozen=True, slots=True)
class Reason:
    """The first complaint of a check, or of several alike, and how many more."""

    checks: tuple[tuple[str, str], ...]
    """Where each is told in full, and its name."""
    text: str
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unseen:
    """A check that did not look, and why."""

    href: str
    check: str
    reason: str
    cause: str


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template prints, in its order."""

    signs: tuple[Mark, ...]
    node: str
    verdict: str
    mark: Mark
    lede: str
    reasons: tuple[Reason, ...]
    groups: tuple[Group, ...]
    milder: tuple[Group, ...]
    idle: tuple[str, ...]
    """What to do where there is nothing to do."""
    speeds: tuple[Speed, ...]
    facts: tuple[Fact, ...]
    chips: tuple[Chip, ...]
    why: tuple[Section, ...]
    unseen: tuple[Unseen, ...]
    checks: tuple[Section, ...]
    history: tuple[History, ...]
    kinds: tuple[Kind, ...]
    problems: tuple[Proof, ...]
    sensors: tuple[Fact, ...]
    """Parts, and what can be sampled on them."""
    command: str
    again: tuple[str, ...]
    versions: tuple[Fact, ...]
    id: str


def render(
    run: Run,
    *,
    history: Sequence[Run] = (),
    repetitions: Repetitions = MappingProxyType({}),
) -> str:
    """
    Print *run* as one HTML page.

    *history* are earlier runs of the same node; *repetitions* say how often the parts
    that fail have failed before.
    """
    return page("node.html.j2", page=lay_out(run, history, repetitions))


def lay_out(run: Run, others: Sequence[Run], repetitions: Repetitions) -> Page:
    """Decide all that the page says."""
    label = _labels(run)
    ordered = worst_first(worst_rounds(run.results))
    sections = {
        check: _section(rounds, run, label)
        for check, rounds in by_check(run.results).items()
    }
    blamed = [r for r in ordered if standing(r) >= Verdict.WARN]
    demanded = groups(run, repetitions)
    return Page(
        signs=(*MARKS.values(), INFO),
        node=run.node,
        verdict=run.verdict.name,
        mark=MARKS[run.verdict],
        lede=lede(run),
        reasons=tuple(_reasons(run))[:TOLD],
        groups=demanded,
        milder=milder(run),
        idle=(NEXT[Remedy.NONE],) if run.verdict is Verdict.PASS else (),
        speeds=tuple(speeds(run, label)) if run.verdict < Verdict.ERROR else (),
        facts=tuple(_facts(run)),
        chips=tuple(_chip(r) for r in worst_rounds(run.results)),
        why=_told_once([sections[r.check] for r in blamed]),
        unseen=tuple(_unseen(r) for r in ordered if standing(r) is Verdict.SKIP),
        checks=tuple(sections.values()),
        history=before(run, others, label),
        kinds=kinds(run.inventory),
        problems=tuple(proof(f, None, label) for f in run.inventory.problems),
        sensors=tuple(_sensors(run.inventory)),
        command=command(run.suite),
        again=tuple([command(run.suite, [r.check for r in blamed])] if blamed else []),
        versions=tuple(run.versions.items()),
        id=run.id,
    )


def _labels(run: Run) -> Labels:
    """Name every part as people do; one that is gone as it was called before."""
    gone = {
        finding.where: finding.evidence[FORMER_LABEL]
        for result in run.results
        for finding in result.findings
        if FORMER_LABEL in finding.evidence
    }
    labels = gone | {part.id: part.label for part in run.inventory.parts}
    return lambda where: labels.get(where, where)


def _section(rounds: Sequence[Result], run: Run, label: Labels) -> Section:
    """Lay out the worst of *rounds* in full, and fold the others under it."""
    worst = worst_round(rounds)
    made = section(worst, run.inventory, label)
    if len(rounds) == 1:
        return made
    others = worst_first(r for r in rounds if r is not worst)
    shown = sorted(others[:ROUNDS], key=lambda r: r.round)
    left = len(others) - len(shown)
    more = f"and {left} more: hpcverify show {run.id} --round N"
    return replace(
        made,
        badges=(f"{len(rounds)} rounds: {tally(rounds)}", *made.badges),
        shown=(f"Round {worst.round} is shown here, the first of the worst.",),
        rounds=tuple(section(r, run.inventory, label, main=False) for r in shown),
        unshown=(more,) if left else (),
    )


def _told_once(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Bring checks together that complain of the very same, as of one lost GPU."""
    told: dict[object, list[Section]] = {}
    for one in sections:
        says = (one.mark, one.badges, one.why, one.cause, one.next, one.proofs)
        key = one.id if one.complaints else says
        told.setdefault(key, []).append(one)
    return tuple(
        replace(first, alike=tuple((other.id, other.check) for other in others))
        for first, *others in told.values()
    )


def _reasons(run: Run) -> Iterator[Reason]:
    """Tell what decided the verdict; what several checks say alike is told once."""
    alike: dict[str, list[Result]] = {}
    told: dict[str, list[str]] = {}
    for result in decisive(run):
        # A skip, which counts where the check is required, has a reason and no
        # complaint.
        first, *others = clauses(result, run.inventory) or [result.reason]
        text = first.removeprefix("node: ") or BECAUSE[result.cause]
        alike.setdefault(text, []).append(result)
        told.setdefault(text, []).extend(others)
    for text, results in alike.items():
        more = len(dict.fromkeys(told[text]))
        yield Reason(
            checks=tuple((anchor(r.check), r.check) for r in results),
            text=text,
            more=(f"and {more} more",) if more else (),
        )


def _facts(run: Run) -> Iterator[Fact]:
    if known := machine(run):
        yield "Machine", known
    yield "Suite", run.suite
    if run.rounds > 1:
        yield "Rounds", f"{rounds_of(run)} of {run.rounds}"
    yield "Started", moment(run.started)
    yield "Took", duration(run.seconds)
    yield "Run", "complete" if run.complete else "interrupted"


def _chip(result: Result) -> Chip:
    return Chip(
        href=anchor(result.check),
        name=result.check,
        mark=MARKS[result.verdict],
        took=duration(result.seconds),
    )


def _unseen(result: Result) -> Unseen:
    return Unseen(
        href=anchor(result.check),
        check=result.check,
        reason=result.reason,
        cause=BECAUSE[result.cause],
    )


def _sensors(inventory: Inventory) -> Iterator[Fact]:
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


def command(suite: str, checks: Sequence[str] = ()) -> str:
    """Write the command line that runs *suite*, or of it only *checks*, again."""
    chosen = [word for check in checks for word in ("--check", check)]
    return shlex.join(["hpcverify", "run", "--suite", suite, *chosen])
