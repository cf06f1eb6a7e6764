"""The parts of a node's page that are about one check, or about what the node is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcverify.actions import list_complaints
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
    effective_verdict,
)
from hpcverify_reports.grid import Grid, build_grids, draw_metric_axis
from hpcverify_reports.judged import (
    JudgedMeasurement,
    Labeler,
    find_unmet_limits,
    format_range,
    judge_finding,
    judge_measurements,
    list_accused,
)
from hpcverify_reports.parts import name_parts
from hpcverify_reports.svg import Chart, LimitLine, Strip, Trace, draw_chart
from hpcverify_reports.words import (
    CAUSE_SENTENCES,
    ICONS,
    INFO_ICON,
    REMEDY_SENTENCES,
    Icon,
    format_duration,
    format_with_unit,
    label_fact,
    make_anchor,
)

MAX_COMPLAINTS = 16
"""Complaints of one check that the top of the page shows; the rest is below."""

EXCERPT_CHARACTERS = 4096
"""Characters of one piece of evidence; the run's document holds the rest."""

LIMIT_SUFFIXES = frozenset({"", "max", "min", "mean", "peak"})
"""What a measurement may add to a series' name so that its limit can be drawn."""

Fact = tuple[str, str]
"""A name and what it is, both ready to print."""


@dataclass(frozen=True, slots=True)
class ComplaintRow:
    """A measurement outside its limit, or a limit that was never met."""

    icon: Icon
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
class FindingItem:
    """A finding: where, what, and the evidence."""

    icons: tuple[Icon, ...]
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
    icons: tuple[Icon, ...]
    word: str


@dataclass(frozen=True, slots=True)
class Section:
    """Everything about one check; *open* is the attribute of an unfolded section."""

    id: str
    check: str
    icon: Icon
    open: str
    badges: tuple[str, ...]
    took: str
    why: tuple[str, ...]
    """The reason, where neither complaints nor findings tell it in full."""
    reason: tuple[str, ...]
    cause: tuple[str, ...]
    next: tuple[str, ...]
    """What to do, where all that the check complains of calls for the same."""
    complaints: tuple[ComplaintRow, ...]
    more: tuple[str, ...]
    findings: tuple[FindingItem, ...]
    parts: tuple[PartRow, ...]
    coverage: tuple[Fact, ...]
    wide_grids: tuple[Grid, ...]
    tall_grids: tuple[Grid, ...]
    charts: tuple[Chart, ...]
    unmet_limits: tuple[str, ...]
    params: tuple[Fact, ...]
    round: int
    same_checks: tuple[Fact, ...] = ()
    """Where other checks are that complain of the very same, and their names."""
    shown_note: tuple[str, ...] = ()
    """Which of several rounds this is."""
    rounds: tuple[Section, ...] = ()
    """The others."""
    unshown_note: tuple[str, ...] = ()
    """How many there are no room for, and where they are."""


def build_section(
    result: Result, inventory: Inventory, label: Labeler, *, main: bool = True
) -> Section:
    """
    Lay out all that is known of one check.

    A round that is not the *main* one has a place of its own in the page, and charts
    only if it did not pass: those of a day would be most of the page.
    """
    everything = judge_measurements(result)
    verdict = effective_verdict(result)
    # No name has a slash in it once it is quoted.
    place = make_anchor(result.check) + ("" if main else f"/{result.round}")
    mixed = has_mixed_remedies(result, inventory)
    findings = sorted(
        result.findings, key=lambda finding: judge_finding(finding, result), reverse=True
    )
    broken = tuple(_list_complaints(result, everything, label, place, mixed=mixed))
    charted = main or verdict > Verdict.SKIP
    tables = build_grids(everything, inventory)
    reason = tuple(filter(None, [result.reason]))
    return Section(
        id=place,
        check=result.check,
        icon=ICONS[result.verdict],
        open="" if verdict in (Verdict.PASS, Verdict.SKIP) else "open",
        badges=tuple(_list_badges(result)),
        took=format_duration(result.seconds),
        why=() if broken or result.findings else reason,
        reason=reason,
        cause=tuple(filter(None, [CAUSE_SENTENCES[result.cause]])),
        next=() if mixed else (REMEDY_SENTENCES[result.remedy],),
        complaints=broken[:MAX_COMPLAINTS],
        more=_format_more(len(broken) - MAX_COMPLAINTS),
        findings=tuple(_build_judged_finding(f, result, label, mixed=mixed) for f in findings),
        parts=tuple(_list_parts(result, everything, label, place)),
        coverage=tuple(_group_coverage(result, inventory)),
        wide_grids=tuple(table for table in tables if not table.is_tall),
        tall_grids=tuple(table for table in tables if table.is_tall),
        charts=tuple(_draw_charts(result, everything, label)) if charted else (),
        unmet_limits=tuple(
            f"{lim.name} {format_range(lim)} ({lim.source})" for lim in find_unmet_limits(result)
        ),
        params=tuple((name, format_param(v)) for name, v in result.params.items()),
        round=result.round,
    )


def format_param(value: object) -> str:
    """Print a parameter as JSON, but text without its quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _format_more(count: int) -> tuple[str, ...]:
    return (f"and {count} more below",) if count > 0 else ()


def _list_badges(result: Result) -> Iterator[str]:
    if result.maturity is Maturity.BETA:
        yield "beta: never quarantines"
    if result.required and result.verdict is Verdict.SKIP:
        yield "required: counts as an error"


def _list_complaints(
    result: Result,
    everything: Sequence[JudgedMeasurement],
    label: Labeler,
    place: str,
    *,
    mixed: bool,
) -> Iterator[ComplaintRow]:
    broken = [
        (judgement, limit, one) for one in everything for limit, judgement in one.broken_limits
    ]
    broken.sort(key=lambda found: found[0].verdict, reverse=True)
    for judgement, limit, one in broken:
        item = one.item
        alike = [h for h in everything if h.item.name == item.name]
        axis = draw_metric_axis(alike)
        yield ComplaintRow(
            icon=ICONS[judgement.verdict],
            href=f"{place}.{make_anchor(item.where)}",
            part=label(item.where),
            name=item.name,
            value=format_with_unit(item.value, item.unit),
            strips=() if axis is None else (axis,),
            bound=format_range(limit),
            source=f"too noisy: {limit.noisy}" if limit.noisy else limit.source,
            remedy=_format_own_remedy(judgement.remedy, mixed=mixed),
        )
    if result.cause is Cause.UNMEASURED:
        missing = (
            _build_unmeasured(lim, label, place, mixed=mixed) for lim in find_unmet_limits(result)
        )
        yield from missing


def has_mixed_remedies(result: Result, inventory: Inventory) -> bool:
    """Whether the complaints of *result* call for different things."""
    return len({c.remedy for c in list_complaints(result, inventory)}) > 1


def _format_own_remedy(remedy: Remedy, *, mixed: bool) -> tuple[str, ...]:
    """Say what to do about one complaint, where the check calls for several things."""
    return (REMEDY_SENTENCES[remedy],) if mixed and remedy is not Remedy.NONE else ()


def _build_unmeasured(limit: Limit, label: Labeler, place: str, *, mixed: bool) -> ComplaintRow:
    return ComplaintRow(
        icon=ICONS[Verdict.ERROR],
        href=place,
        part=label(limit.where) if limit.where else "every part",
        name=limit.name,
        value="not measured",
        strips=(),
        bound=format_range(limit),
        source=limit.source,
        remedy=_format_own_remedy(Remedy.FIX_CHECKER, mixed=mixed),
    )


def _build_judged_finding(
    finding: Finding, result: Result, label: Labeler, *, mixed: bool
) -> FindingItem:
    made = build_finding(finding, judge_finding(finding, result), label)
    ruling = result.rulings.get(finding.code)
    if ruling is None or ruling.verdict is Verdict.PASS:
        return made
    return replace(made, remedy=_format_own_remedy(ruling.remedy, mixed=mixed))


def build_finding(finding: Finding, verdict: Verdict | None, label: Labeler) -> FindingItem:
    """Lay out one finding; None is a verdict that the run does not tell."""
    return FindingItem(
        icons=() if verdict is None else (_choose_icon(verdict),),
        part=label(finding.where),
        code=finding.code,
        text=finding.text,
        evidence=tuple((label_fact(n), cut_excerpt(v)) for n, v in finding.evidence.items()),
    )


def _choose_icon(verdict: Verdict) -> Icon:
    """Choose the sign of a finding; one with no verdict of its own passed nothing."""
    return INFO_ICON if verdict is Verdict.PASS else ICONS[verdict]


def cut_excerpt(text: str) -> str:
    """Cut *text* to what a page can hold, and say how much is left out."""
    left = len(text) - EXCERPT_CHARACTERS
    if left <= 0:
        return text
    return f"{text[:EXCERPT_CHARACTERS]} … ({left} more characters in the run's JSON document)"


def _list_parts(
    result: Result, everything: Sequence[JudgedMeasurement], label: Labeler, place: str
) -> Iterator[PartRow]:
    places = [
        *(covered.where for covered in result.coverage),
        *(one.item.where for one in everything),
        *(finding.where for finding in result.findings),
    ]
    for where in dict.fromkeys(places):
        verdict = _judge_part(where, result, everything)
        yield PartRow(
            id=f"{place}.{make_anchor(where)}",
            label=label(where),
            icons=() if verdict is None else (ICONS[verdict],),
            word="no limit" if verdict is None else ICONS[verdict].word,
        )


def _group_coverage(result: Result, inventory: Inventory) -> Iterator[Fact]:
    """Tell once what several parts went through alike."""
    alike: dict[str, list[str]] = {}
    for covered in result.coverage:
        alike.setdefault(covered.text, []).append(covered.where)
    for text, where in alike.items():
        yield text, name_parts(where, inventory)


def _judge_part(
    where: str, result: Result, everything: Sequence[JudgedMeasurement]
) -> Verdict | None:
    verdicts = [h.verdict for h in everything if h.item.where == where]
    ruled = [
        judge_finding(finding, result) for finding in result.findings if finding.where == where
    ]
    verdicts += [verdict for verdict in ruled if verdict > Verdict.PASS]
    return max((v for v in verdicts if v is not None), default=None)


def _draw_charts(
    result: Result, everything: Sequence[JudgedMeasurement], label: Labeler
) -> Iterator[Chart]:
    blamed = list_accused(result)
    alike: dict[tuple[str, str], list[Series]] = {}
    for series in result.series:
        alike.setdefault((series.name, series.unit), []).append(series)
    for (name, unit), some in alike.items():
        traces = [Trace(label(s.where), s.t, s.values, flagged=s.where in blamed) for s in some]
        drawn = draw_chart(name, unit, traces, _choose_limit_lines(name, unit, everything))
        if drawn is not None:
            yield drawn


def _choose_limit_lines(
    name: str, unit: str, everything: Sequence[JudgedMeasurement]
) -> list[LimitLine]:
    limits = {
        limit
        for h in everything
        if h.item.unit == unit and _is_limit_drawable(name, h.item.name)
        for limit in h.limits
    }
    lows = {limit.low for limit in limits if limit.low is not None}
    highs = {limit.high for limit in limits if limit.high is not None}
    # Limits that differ from part to part would be a fence, not a line.
    few = [*([*lows] if len(lows) == 1 else []), *([*highs] if len(highs) == 1 else [])]
    return [LimitLine(value, f"limit {format_with_unit(value, unit)}") for value in few]


def _is_limit_drawable(series: str, measurement: str) -> bool:
    base, _, rest = measurement.partition(".")
    return measurement == series or (base == series and rest in LIMIT_SUFFIXES)


@dataclass(frozen=True, slots=True)
class KindTable:
    """The parts of one kind: what all have in common, and a row for each."""

    name: str
    common: tuple[Fact, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...]], ...]


def build_kind_tables(inventory: Inventory) -> tuple[KindTable, ...]:
    """Lay out the parts of a node by kind; what they share is told once."""
    names = dict.fromkeys(part.kind for part in inventory.parts)
    return tuple(_build_kind_table(name, inventory.of_kind(name)) for name in names)


def _build_kind_table(name: str, parts: Sequence[Part]) -> KindTable:
    facts = dict.fromkeys(fact for part in parts for fact in part.facts)
    values = {fact: {part.facts.get(fact) for part in parts} for fact in facts}
    common = [fact for fact in facts if len(parts) > 1 and len(values[fact]) == 1]
    columns = tuple(fact for fact in facts if fact not in common)
    return KindTable(
        name=name,
        common=tuple((label_fact(fact), parts[0].facts[fact]) for fact in common),
        columns=tuple(map(label_fact, columns)),
        rows=tuple(
            (part.label, part.id, tuple(part.facts.get(c, "") for c in columns)) for part in parts
        ),
    )
