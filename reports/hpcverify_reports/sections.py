"""The parts of a node's page that are about one check, or about what the node is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from hpcverify.check import LimitIndex, make_severity_key
from hpcverify.insight.node_names import make_natural_key
from hpcverify.model import (
    PLURAL_NAMES,
    Fault,
    FaultKind,
    Finding,
    Inventory,
    Part,
    Remedy,
    Result,
    Series,
    Verdict,
    effective_verdict,
)
from hpcverify.summary.actions import (
    FaultIndex,
    find_common_remedy,
    list_faults,
)
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify.units import choose_unit, convert_unit, have_one_dimension
from hpcverify_reports.grid import Grid, build_grids, draw_metric_axis
from hpcverify_reports.judged import JudgedMeasurement, format_range, pair_measurements
from hpcverify_reports.labels import (
    CAUSE_SENTENCES,
    ICONS,
    INFO_ICON,
    Icon,
    format_unit,
    format_with_unit,
    label_fact,
    make_anchor,
)
from hpcverify_reports.svg import Chart, Strip, Tick, Trace, draw_chart
from hpcverify_reports.tables import PageSection, TableColumn, build_table

MAX_FAULTS = 16
"""Faults of one check in its card; the tables below have them all."""
EXCERPT_CHARACTERS = 4096
"""Characters of one piece of evidence; the run document has the rest."""
MAX_FACTS = 60
"""Facts of a kind of part that its table has: a GPU has about 30. A document whose every part has
facts of its own would have a table of their product."""
LIMIT_SUFFIXES = frozenset({"", "max", "min", "mean", "peak"})
"""Suffixes of measurements whose limit can be drawn into the series' chart."""

LabeledText = tuple[str, str]
"""A name and its value, ready to print."""
Link = tuple[str, str]
"""An anchor and its text."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A measurement outside its limit, or a limit without a measurement."""

    icon: Icon
    href: str
    part: str
    name: str
    value: str
    strip: Strip | None
    bound: str
    source: str
    remedy: str


@dataclass(frozen=True, slots=True)
class FindingItem:
    """A finding: where, what, the evidence, and what to do about it."""

    icon: Icon | None
    part: str
    code: str
    text: str
    evidence: tuple[LabeledText, ...]
    remedy: str


@dataclass(frozen=True, slots=True)
class Section:
    """Everything about one check in one round; empty fields are not shown."""

    id: str
    check: str
    round: int
    icon: Icon
    is_open: bool
    badges: tuple[str, ...]
    seconds: float
    reason: str
    cause: str
    next: str
    """What to do; empty if the faults call for different things."""
    faults: tuple[FaultRow, ...]
    more_faults: int
    """How many more there are, which only the tables below show."""
    findings: tuple[FindingItem, ...]
    parts: tuple[tuple[str, str, Icon | None], ...]
    """The anchor, name and icon of each part that the check covered."""
    coverage: tuple[LabeledText, ...]
    grids: tuple[Grid, ...]
    charts: tuple[Chart, ...]
    unmet_limits: tuple[str, ...]
    params: tuple[LabeledText, ...]
    other_rounds: tuple[Section, ...] = ()
    shown_note: str = ""
    """Which of several rounds this is."""
    unshown_note: str = ""
    """How many rounds are left out, and where they are."""


def build_section(check: CheckSummary, result: Result, summary: RunSummary) -> Section:
    """
    Lay out the round *result* of *check*, and for each part what the run calls for.

    A round that is not the worst one has an anchor of its own, and charts only if it did
    not pass: the charts of a day would be most of the page.
    """
    inventory, remedies, main = summary.inventory, summary.remedies, result is check.result
    everything = pair_measurements(result)
    verdict = effective_verdict(result)
    # A quoted name has no slash.
    place = make_anchor(result.check) + ("" if main else f"/{result.round}")
    is_open = verdict >= Verdict.WARN
    broken = _list_faults(result, everything, inventory, remedies, place)
    faults = FaultIndex(result)
    ranked = [(faults.rank(finding), finding) for finding in result.findings]
    ranked.sort(key=itemgetter(0), reverse=True)
    remedy = find_common_remedy(result, remedies)
    return Section(
        id=place,
        check=result.check,
        round=result.round,
        icon=ICONS[verdict],
        is_open=is_open,
        badges=(check.weight,) if check.weight else (),
        seconds=result.seconds,
        reason=result.reason,
        cause=CAUSE_SENTENCES[result.cause],
        next=REMEDY_SENTENCES[remedy] if remedy else "",
        faults=tuple(broken[:MAX_FAULTS]),
        more_faults=max(0, len(broken) - MAX_FAULTS),
        findings=tuple(
            _build_judged_finding(f, rank[0], inventory, remedies) for rank, f in ranked
        ),
        parts=tuple(_list_parts(result, everything, inventory, place)),
        coverage=tuple(_group_coverage(result, inventory)),
        grids=build_grids(everything, inventory),
        charts=_draw_charts(result, everything, inventory) if main or is_open else (),
        unmet_limits=tuple(
            f"{limit.name} {format_range(limit)} ({limit.source})"
            for limit in LimitIndex(result.limits).list_unmet(result.measurements)
        ),
        params=tuple(
            (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in result.params.items()
        ),
    )


def _list_faults(
    result: Result,
    everything: Sequence[JudgedMeasurement],
    inventory: Inventory,
    remedies: Mapping[str, Remedy],
    place: str,
) -> list[FaultRow]:
    faults = sorted(
        (fault for one in everything for fault in one.faults),
        key=make_severity_key,
        reverse=True,
    )
    metrics: dict[str, list[JudgedMeasurement]] = {c.name: [] for c in faults}
    for one in everything:
        if one.item.name in metrics:
            metrics[one.item.name].append(one)
    axes = {name: draw_metric_axis(metric) for name, metric in metrics.items()}
    unmet = [c for c in result.faults if c.kind is FaultKind.UNMEASURED]
    return [
        FaultRow(
            icon=ICONS[fault.verdict],
            href=f"{place}.{make_anchor(fault.part_id)}" if fault.name in axes else place,
            part=_name_place(fault, inventory),
            name=fault.name,
            value=_format_value(fault),
            strip=axes.get(fault.name),
            bound=f"{format_range(limit)} {format_unit(fault.unit)}".rstrip(),
            source=f"too noisy: {limit.noisy}" if limit.noisy else limit.source,
            remedy=_write_remedy(fault.part_id, remedies),
        )
        for fault in (*faults, *unmet)
        if (limit := fault.limit)
    ]


def _name_place(fault: Fault, inventory: Inventory) -> str:
    for_all = fault.kind is FaultKind.UNMEASURED and fault.part_id == "node"
    return "all parts" if for_all else inventory.find_label(fault.part_id)


def _format_value(fault: Fault) -> str:
    if fault.kind is FaultKind.UNMEASURED:
        return "not measured"
    return format_with_unit(fault.value, fault.unit)


def _build_judged_finding(
    finding: Finding, verdict: Verdict, inventory: Inventory, remedies: Mapping[str, Remedy]
) -> FindingItem:
    """Lay out a finding; one that passed has no remedy."""
    if verdict is Verdict.PASS:
        return build_finding(finding, inventory, INFO_ICON)
    remedy = _write_remedy(finding.part_id, remedies)
    return build_finding(finding, inventory, ICONS[verdict], remedy)


def _write_remedy(part_id: str, remedies: Mapping[str, Remedy]) -> str:
    """Say what to do about a part; empty if the run calls for nothing there."""
    return REMEDY_SENTENCES[remedies[part_id]] if part_id in remedies else ""


def build_finding(
    finding: Finding, inventory: Inventory, icon: Icon | None = None, remedy: str = ""
) -> FindingItem:
    """Lay out one finding."""
    return FindingItem(
        icon=icon,
        part=inventory.find_label(finding.part_id),
        code=finding.code,
        text=finding.text,
        evidence=tuple((label_fact(n), _cut_excerpt(v)) for n, v in finding.evidence.items()),
        remedy=remedy,
    )


def _cut_excerpt(text: str) -> str:
    left = len(text) - EXCERPT_CHARACTERS
    if left <= 0:
        return text
    return f"{text[:EXCERPT_CHARACTERS]} … ({left} more characters in the run's JSON document)"


def _list_parts(
    result: Result, everything: Sequence[JudgedMeasurement], inventory: Inventory, place: str
) -> Iterator[tuple[str, str, Icon | None]]:
    faults = FaultIndex(result)
    ranked = ((finding.part_id, faults.rank(finding)[0]) for finding in result.findings)
    by_part: dict[str, list[Verdict]] = {}
    for part_id, verdict in (
        *((covered.part_id, None) for covered in result.coverage),
        *((one.item.part_id, one.verdict) for one in everything),
        *((part_id, None if verdict is Verdict.PASS else verdict) for part_id, verdict in ranked),
    ):
        by_part.setdefault(part_id, []).extend([] if verdict is None else [verdict])
    labels = {part_id: inventory.find_label(part_id) for part_id in by_part}
    for part_id in sorted(labels, key=lambda part_id: make_natural_key(labels[part_id])):
        icon = ICONS[max(by_part[part_id])] if by_part[part_id] else None
        yield f"{place}.{make_anchor(part_id)}", labels[part_id], icon


def _group_coverage(result: Result, inventory: Inventory) -> Iterator[LabeledText]:
    """Yield the parts with the same coverage, and that coverage."""
    alike: dict[str, list[str]] = {}
    for covered in result.coverage:
        alike.setdefault(covered.text, []).append(covered.part_id)
    for text, part_id in alike.items():
        yield name_parts(part_id, inventory), text


def _draw_charts(
    result: Result, everything: Sequence[JudgedMeasurement], inventory: Inventory
) -> tuple[Chart, ...]:
    complained = {fault.part_id for fault in list_faults(result)}
    alike: dict[tuple[str, str], list[Series]] = {}
    for series in result.series:
        alike.setdefault((series.name, series.unit), []).append(series)
    judged = _group_by_series(everything)
    drawn: list[Chart | None] = []
    for (name, stored), some in alike.items():
        unit, factor = choose_unit((v for s in some for v in s.values), stored)
        traces = [
            Trace(
                inventory.find_label(s.part_id),
                s.t,
                tuple(value * factor for value in s.values),
                flagged=s.part_id in complained,
            )
            for s in some
        ]
        lines = _choose_limit_lines(unit, judged.get(name, ()))
        drawn.append(draw_chart(name, unit, traces, lines))
    return tuple(chart for chart in drawn if chart)


def _choose_limit_lines(unit: str, some: Sequence[JudgedMeasurement]) -> list[Tick]:
    """Choose the limits of the measurements *some* that a chart in *unit* shows as lines."""
    lows, highs = set[float](), set[float]()
    for one in some:
        shown = one.item.unit
        if have_one_dimension(shown, unit):
            for bounds, bound in [
                *((lows, limit.low) for limit in one.limits),
                *((highs, limit.high) for limit in one.limits),
            ]:
                if bound is not None:
                    bounds.add(bound if shown == unit else convert_unit(bound, shown, unit))
    # Limits that differ from part to part cannot be one line.
    alone = [value for values in (lows, highs) if len(values) == 1 for value in values]
    return [Tick(value, f"limit {format_with_unit(value, unit)}") for value in alone]


def _group_by_series(
    everything: Sequence[JudgedMeasurement],
) -> dict[str, list[JudgedMeasurement]]:
    """Group the measurements by the series whose chart shows their limits."""
    by_series: dict[str, list[JudgedMeasurement]] = {}
    for one in everything:
        base, _, rest = one.item.name.partition(".")
        for name in {one.item.name, *([base] if rest in LIMIT_SUFFIXES else [])}:
            by_series.setdefault(name, []).append(one)
    return by_series


def build_kind_tables(inventory: Inventory) -> tuple[PageSection, ...]:
    """Lay out the parts of a node by kind; facts they share are listed once."""
    kinds = dict.fromkeys(part.kind for part in inventory.parts)
    return tuple(_build_kind_table(kind, inventory.of_kind(kind)) for kind in kinds)


def _build_kind_table(kind: str, parts: Sequence[Part]) -> PageSection:
    name = PLURAL_NAMES.get(kind, kind)
    facts = [*dict.fromkeys(fact for part in parts for fact in part.facts)][:MAX_FACTS]
    values = {fact: {part.facts.get(fact) for part in parts} for fact in facts}
    common = [fact for fact in facts if len(parts) > 1 and len(values[fact]) == 1]
    others = [fact for fact in facts if fact not in common]
    columns = [
        TableColumn("Part"),
        TableColumn("Id", "code"),
        *(TableColumn(label_fact(f)) for f in others),
    ]
    rows = [(part.label, part.id, *(part.facts.get(f, "") for f in others)) for part in parts]
    table = build_table(
        f"Hardware: {name}", columns, rows, source="see the run's JSON document", shown=len(rows)
    )
    pairs = tuple((label_fact(fact), parts[0].facts[fact]) for fact in common)
    return PageSection(make_anchor("parts", kind), name, facts=pairs, tables=(table,))
