"""The parts of a node's page that are about one check, or about what the node is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcverify.actions import complaints
from hpcverify.model import (
    Cause,
    Finding,
    Inventory,
    Limit,
    Maturity,
    Part,
    Remedy,
    Result,
    Series,
    Verdict,
    standing,
)
from hpcverify_reports.grid import Grid, axis_of, grids
from hpcverify_reports.judged import (
    Held,
    Labels,
    accused,
    bound,
    held,
    unmet,
    verdict_of_finding,
)
from hpcverify_reports.parts import name_parts
from hpcverify_reports.svg import Bound, Chart, Strip, Trace, chart
from hpcverify_reports.words import (
    BECAUSE,
    INFO,
    MARKS,
    NEXT,
    Mark,
    anchor,
    duration,
    fact_name,
    measured,
)

MOST = 16
"""Complaints of one check that the top of the page shows; the rest is below."""

EXCERPT = 4096
"""Characters of one piece of evidence; the run's document holds the rest."""

NATURAL = frozenset({"", "max", "min", "mean", "peak"})
"""What a measurement may add to a series' name so that its limit can be drawn."""

Fact = tuple[str, str]
"""A name and what it is, both ready to print."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """A measurement outside its limit, or a limit that was never met."""

    mark: Mark
    href: str
    part: str
    name: str
    value: str
    strips: tuple[Strip, ...]
    bound: str
    source: str
    remedy: tuple[str, ...]
    """What to do, where that is not what the whole check calls for."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A finding: where, what, and the evidence."""

    marks: tuple[Mark, ...]
    part: str
    code: str
    text: str
    evidence: tuple[Fact, ...]
    remedy: tuple[str, ...] = ()
    """What to do, where that is not what the whole check calls for."""


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part that a check looked at, and what came of it."""

    id: str
    label: str
    marks: tuple[Mark, ...]
    word: str


@dataclass(frozen=True, slots=True)
class Section:
    """Everything about one check; *open* is the attribute of an unfolded section."""

    id: str
    check: str
    mark: Mark
    open: str
    badges: tuple[str, ...]
    took: str
    why: tuple[str, ...]
    """The reason, where neither complaints nor findings tell it in full."""
    reason: tuple[str, ...]
    cause: tuple[str, ...]
    next: tuple[str, ...]
    """What to do, where all that the check complains of calls for the same."""
    complaints: tuple[Complaint, ...]
    more: tuple[str, ...]
    proofs: tuple[Proof, ...]
    parts: tuple[PartRow, ...]
    covered: tuple[Fact, ...]
    wide: tuple[Grid, ...]
    tall: tuple[Grid, ...]
    charts: tuple[Chart, ...]
    unmet: tuple[str, ...]
    params: tuple[Fact, ...]
    round: int
    alike: tuple[Fact, ...] = ()
    """Where other checks are that complain of the very same, and their names."""
    shown: tuple[str, ...] = ()
    """Which of several rounds this is."""
    rounds: tuple[Section, ...] = ()
    """The others."""
    unshown: tuple[str, ...] = ()
    """How many there are no room for, and where they are."""


def section(
    result: Result, inventory: Inventory, label: Labels, *, main: bool = True
) -> Section:
    """
    Lay out all that is known of one check.

    A round that is not the *main* one has a place of its own in the page, and charts
    only if it did not pass: those of a day would be most of the page.
    """
    everything = held(result)
    verdict = standing(result)
    # No name has a slash in it once it is quoted.
    place = anchor(result.check) + ("" if main else f"/{result.round}")
    mixed = calls_for_several(result, inventory)
    findings = sorted(
        result.findings,
        key=lambda finding: verdict_of_finding(finding, result),
        reverse=True,
    )
    broken = tuple(_complaints(result, everything, label, place, mixed=mixed))
    charted = main or verdict > Verdict.SKIP
    tables = grids(everything, inventory)
    reason = tuple(filter(None, [result.reason]))
    return Section(
        id=place,
        check=result.check,
        mark=MARKS[result.verdict],
        open="" if verdict in (Verdict.PASS, Verdict.SKIP) else "open",
        badges=tuple(_badges(result)),
        took=duration(result.seconds),
        why=() if broken or result.findings else reason,
        reason=reason,
        cause=tuple(filter(None, [BECAUSE[result.cause]])),
        next=() if mixed else (NEXT[result.remedy],),
        complaints=broken[:MOST],
        more=_more(len(broken) - MOST),
        proofs=tuple(_proof(f, result, label, mixed=mixed) for f in findings),
        parts=tuple(_parts(result, everything, label, place)),
        covered=tuple(_covered(result, inventory)),
        wide=tuple(table for table in tables if not table.tall),
        tall=tuple(table for table in tables if table.tall),
        charts=tuple(_charts(result, everything, label)) if charted else (),
        unmet=tuple(f"{lim.name} {bound(lim)} ({lim.source})" for lim in unmet(result)),
        params=tuple((name, value_of(v)) for name, v in result.params.items()),
        round=result.round,
    )


def value_of(value: object) -> str:
    """Print a parameter as JSON, but text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _more(count: int) -> tuple[str, ...]:
    return (f"and {count} more below",) if count > 0 else ()


def _badges(result: Result) -> Iterator[str]:
    if result.maturity is Maturity.BETA:
        yield "beta: never quarantines"
    if result.required and result.verdict is Verdict.SKIP:
        yield "required: counts as an error"


def _complaints(
    result: Result,
    everything: Sequence[Held],
    label: Labels,
    place: str,
    *,
    mixed: bool,
) -> Iterator[Complaint]:
    broken = [
        (judgement, limit, one) for one in everything for limit, judgement in one.broken
    ]
    broken.sort(key=lambda found: found[0].verdict, reverse=True)
    for judgement, limit, one in broken:
        item = one.item
        alike = [h for h in everything if h.item.name == item.name]
        axis = axis_of(alike)
        yield Complaint(
            mark=MARKS[judgement.verdict],
            href=f"{place}.{anchor(item.where)}",
            part=label(item.where),
            name=item.name,
            value=measured(item.value, item.unit),
            strips=() if axis is None else (axis,),
            bound=bound(limit),
            source=f"too noisy: {limit.noisy}" if limit.noisy else limit.source,
            remedy=_own(judgement.remedy, mixed=mixed),
        )
    if result.cause is Cause.UNMEASURED:
        missing = (_unmeasured(lim, label, place, mixed=mixed) for lim in unmet(result))
        yield from missing


def calls_for_several(result: Result, inventory: Inventory) -> bool:
    """Whether the complaints of *result* call for different things."""
    return len({c.remedy for c in complaints(result, inventory)}) > 1


def _own(remedy: Remedy, *, mixed: bool) -> tuple[str, ...]:
    """Say what to do about one complaint, where the check calls for several things."""
    return (NEXT[remedy],) if mixed and remedy is not Remedy.NONE else ()


def _unmeasured(limit: Limit, label: Labels, place: str, *, mixed: bool) -> Complaint:
    return Complaint(
        mark=MARKS[Verdict.ERROR],
        href=place,
        part=label(limit.where) if limit.where else "every part",
        name=limit.name,
        value="not measured",
        strips=(),
        bound=bound(limit),
        source=limit.source,
        remedy=_own(Remedy.FIX_CHECKER, mixed=mixed),
    )


def _proof(finding: Finding, result: Result, label: Labels, *, mixed: bool) -> Proof:
    made = proof(finding, verdict_of_finding(finding, result), label)
    ruling = result.rulings.get(finding.code)
    if ruling is None or ruling.verdict is Verdict.PASS:
        return made
    return replace(made, remedy=_own(ruling.remedy, mixed=mixed))


def proof(finding: Finding, verdict: Verdict | None, label: Labels) -> Proof:
    """Lay out one finding; None is a verdict that the run does not tell."""
    return Proof(
        marks=() if verdict is None else (_sign(verdict),),
        part=label(finding.where),
        code=finding.code,
        text=finding.text,
        evidence=tuple((fact_name(n), excerpt(v)) for n, v in finding.evidence.items()),
    )


def _sign(verdict: Verdict) -> Mark:
    """Choose the sign of a finding; one with no verdict of its own passed nothing."""
    return INFO if verdict is Verdict.PASS else MARKS[verdict]


def excerpt(text: str) -> str:
    """Cut *text* to what a page can hold, and say how much is left out."""
    left = len(text) - EXCERPT
    if left <= 0:
        return text
    return f"{text[:EXCERPT]} … ({left} more characters in the run's JSON document)"


def _parts(
    result: Result, everything: Sequence[Held], label: Labels, place: str
) -> Iterator[PartRow]:
    places = [
        *(covered.where for covered in result.coverage),
        *(one.item.where for one in everything),
        *(finding.where for finding in result.findings),
    ]
    for where in dict.fromkeys(places):
        verdict = _verdict_at(where, result, everything)
        yield PartRow(
            id=f"{place}.{anchor(where)}",
            label=label(where),
            marks=() if verdict is None else (MARKS[verdict],),
            word="no limit" if verdict is None else MARKS[verdict].word,
        )


def _covered(result: Result, inventory: Inventory) -> Iterator[Fact]:
    """Tell once what several parts went through alike."""
    alike: dict[str, list[str]] = {}
    for covered in result.coverage:
        alike.setdefault(covered.text, []).append(covered.where)
    for text, where in alike.items():
        yield text, name_parts(where, inventory)


def _verdict_at(
    where: str, result: Result, everything: Sequence[Held]
) -> Verdict | None:
    verdicts = [h.verdict for h in everything if h.item.where == where]
    ruled = [
        verdict_of_finding(finding, result)
        for finding in result.findings
        if finding.where == where
    ]
    verdicts += [verdict for verdict in ruled if verdict > Verdict.PASS]
    return max((v for v in verdicts if v is not None), default=None)


def _charts(
    result: Result, everything: Sequence[Held], label: Labels
) -> Iterator[Chart]:
    blamed = accused(result)
    alike: dict[tuple[str, str], list[Series]] = {}
    for series in result.series:
        alike.setdefault((series.name, series.unit), []).append(series)
    for (name, unit), some in alike.items():
        traces = [
            Trace(label(s.where), s.t, s.values, flagged=s.where in blamed)
            for s in some
        ]
        drawn = chart(name, unit, traces, _drawn_limits(name, unit, everything))
        if drawn is not None:
            yield drawn


def _drawn_limits(name: str, unit: str, everything: Sequence[Held]) -> list[Bound]:
    limits = {
        limit
        for h in everything
        if h.item.unit == unit and _natural(name, h.item.name)
        for limit in h.limits
    }
    lows = {limit.low for limit in limits if limit.low is not None}
    highs = {limit.high for limit in limits if limit.high is not None}
    # Limits that differ from part to part would be a fence, not a line.
    few = [*([*lows] if len(lows) == 1 else []), *([*highs] if len(highs) == 1 else [])]
    return [Bound(value, f"limit {measured(value, unit)}") for value in few]


def _natural(series: str, measurement: str) -> bool:
    base, _, rest = measurement.partition(".")
    return measurement == series or (base == series and rest in NATURAL)


@dataclass(frozen=True, slots=True)
class Kind:
    """The parts of one kind: what all have in common, and a row for each."""

    name: str
    common: tuple[Fact, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]


def kinds(inventory: Inventory) -> tuple[Kind, ...]:
    """Lay out the parts of a node by kind; what they share is told once."""
    names = dict.fromkeys(part.kind for part in inventory.parts)
    return tuple(_kind(name, inventory.of_kind(name)) for name in names)


def _kind(name: str, parts: Sequence[Part]) -> Kind:
    facts = dict.fromkeys(fact for part in parts for fact in part.facts)
    values = {fact: {part.facts.get(fact) for part in parts} for fact in facts}
    common = [fact for fact in facts if len(parts) > 1 and len(values[fact]) == 1]
    columns = tuple(fact for fact in facts if fact not in common)
    return Kind(
        name=name,
        common=tuple((fact_name(fact), parts[0].facts[fact]) for fact in common),
        columns=tuple(map(fact_name, columns)),
        rows=tuple(
            (part.label, part.id, tuple(part.facts.get(c, "") for c in columns))
            for part in parts
        ),
    )
