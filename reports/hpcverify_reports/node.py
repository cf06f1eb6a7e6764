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

from hpcverify.model import Inventory, Result, Run, Verdict, standing
from hpcverify.rounds import by_check, rounds_of, tally, worst_round, worst_rounds
from hpcverify_reports.headline import decisive, lede, next_step
from hpcverify_reports.history import History, before
from hpcverify_reports.judged import Labels, accused, complaints
from hpcverify_reports.pages import page
from hpcverify_reports.parts import name_parts
from hpcverify_reports.sections import (
    Fact,
    Kind,
    Proof,
    Section,
    kinds,
    proof,
    section,
)
from hpcverify_reports.words import (
    BECAUSE,
    MARKS,
    NEXT,
    Mark,
    anchor,
    duration,
    moment,
    worst_first,
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
    """The first complaint of a check, and how many more there are."""

    href: str
    check: str
    text: str
    more: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accused:
    """What a technician needs to pull the right part."""

    label: str
    facts: tuple[Fact, ...]


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
    next: str
    accused: tuple[Accused, ...]
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


def render(run: Run, *, history: Sequence[Run] = ()) -> str:
    """Print *run* as one HTML page; *history* are earlier runs of the same node."""
    return page("node.html.j2", page=lay_out(run, history))


def lay_out(run: Run, others: Sequence[Run]) -> Page:
    """Decide all that the page says."""
    label = _labels(run)
    ordered = worst_first(worst_rounds(run.results))
    sections = {
        check: _section(rounds, run, label)
        for check, rounds in by_check(run.results).items()
    }
    blamed = [r for r in ordered if standing(r) >= Verdict.WARN]
    return Page(
        signs=tuple(MARKS.values()),
        node=run.node,
        verdict=run.verdict.name,
        mark=MARKS[run.verdict],
        lede=lede(run),
        reasons=tuple(_reason(r, label) for r in decisive(run)[:TOLD]),
        next=NEXT[next_step(run)],
        accused=tuple(_accused(run))[:TOLD],
        facts=tuple(_facts(run)),
        chips=tuple(_chip(r) for r in worst_rounds(run.results)),
        why=tuple(sections[r.check] for r in blamed),
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
    labels = {part.id: part.label for part in run.inventory.parts}
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


def _reason(result: Result, label: Labels) -> Reason:
    # A skip, which counts where the check is required, has a reason and no complaint.
    first, *others = complaints(result, label) or [result.reason]
    return Reason(
        href=anchor(result.check),
        check=result.check,
        text=first or BECAUSE[result.cause],
        more=(f"and {len(others)} more",) if others else (),
    )


def _accused(run: Run) -> Iterator[Accused]:
    if run.verdict is not Verdict.FAIL:
        return
    blamed = {where for result in decisive(run) for where in accused(result)}
    for part in run.inventory.parts:
        if part.id in blamed:
            yield Accused(part.label, (("id", part.id), *part.facts.items()))


def _facts(run: Run) -> Iterator[Fact]:
    for system in run.inventory.of_kind("system"):
        names = (system.facts.get(fact) for fact in ("vendor", "product", "serial"))
        known = ", ".join(filter(None, names))
        if known:
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
