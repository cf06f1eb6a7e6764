"""The parts of a node's page that are about one check, or about what the node is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from hpcverify.model import (
    PLURAL_NAMES,
    Coverage,
    Fault,
    Finding,
    Inventory,
    Measurement,
    Part,
    Result,
    Verdict,
    effective_verdict,
)
from hpcverify.summary.checks import CheckSummary
from hpcverify.summary.faults import (
    find_common_remedy,
    get_subject,
    index_faults,
    list_faults,
)
from hpcverify.summary.part_names import name_parts
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.verdict import REMEDY_SENTENCES
from hpcverify_reports.grid import (
    Grid,
    TableValue,
    build_grids,
    choose_units,
    list_values,
    scale,
    scale_limit,
)
from hpcverify_reports.labels import (
    ICONS,
    Icon,
    LabeledText,
    label_fact,
    make_anchor,
)
from hpcverify_reports.pictures import SOAK_SERIES, draw_series
from hpcverify_reports.tables import PageSection, Picture, TableColumn, build_table

MAX_FAULTS = 16
"""Faults of one check in its card; the tables below have them all."""
MAX_OTHER_ROUNDS = 50
"""Rounds of a check besides the worst one; those that did not pass come first."""
MAX_FACTS = 60
"""Facts of a kind of part that its table has: a GPU has about 30. A document whose every part has
facts of its own would have a table of their product."""


@dataclass(frozen=True, slots=True)
class Section:
    """Everything about one check in one round; empty fields are not shown."""

    id: str
    result: Result
    icon: Icon
    badges: tuple[str, ...]
    next: str
    """What to do; empty if the faults call for different things."""
    faults: tuple[Fault, ...]
    """Those about metrics, the gravest first, in the units of the tables."""
    findings: tuple[tuple[Finding, Fault | None], ...]
    """The findings that are faults, the gravest first."""
    remarks: tuple[tuple[Finding, Fault | None], ...]
    """The findings that are for information."""
    parts: tuple[tuple[Icon | None, str], ...]
    """The parts that the check covered, by their verdicts."""
    coverage: tuple[LabeledText, ...]
    grids: tuple[Grid, ...]
    pictures: tuple[Picture, ...]
    params: tuple[LabeledText, ...]
    other_rounds: tuple[Section, ...]
    left_rounds: int
    """How many rounds are left out."""


def build_section(check: CheckSummary, result: Result, summary: RunSummary) -> Section:
    """
    Lay out the round *result* of *check*: the worst one with the others folded below it.

    A round that is not the worst one has an anchor of its own, and charts only if it did
    not pass: the charts of a day would be most of the page.
    """
    inventory, main = summary.inventory, result is check.result
    units, faults, index = choose_units(result), list_faults(result), index_faults(result)
    values = list_values(result, units)
    verdict = effective_verdict(result)
    # A quoted name has no slash.
    place = make_anchor(result.check) + ("" if main else f"/{result.round}")
    # The tables have all limits of a metric; the gravest fault is enough.
    gravest = {(f.part_id, f.code): f for f in reversed(faults) if f.limit}
    broken = tuple(
        _scale_fault(f, *units.get((f.code, f.unit), (f.unit, 1.0)))
        for f in faults
        if f is gravest.get((f.part_id, f.code))
    )
    places = {subject: place for place, subject in enumerate(index)}
    findings = sorted(
        result.findings, key=lambda found: places.get(get_subject(found), len(places))
    )
    remedy = find_common_remedy(result, summary.parts)
    shown_above = SOAK_SERIES if main and result.check == "thermal" else ()
    rounds = f"{len(check.rounds)} rounds: {check.tally}" if main and check.tally else ""
    others = check.other_rounds[:MAX_OTHER_ROUNDS] if main else ()
    return Section(
        id=place,
        result=result,
        icon=ICONS[verdict],
        badges=tuple(filter(None, (rounds, check.weight))),
        next=REMEDY_SENTENCES[remedy] if remedy and verdict >= Verdict.WARN else "",
        faults=broken,
        findings=tuple((f, fault) for f in findings if (fault := index.get(get_subject(f)))),
        remarks=tuple((f, None) for f in findings if get_subject(f) not in index),
        parts=tuple(_group_parts(result, values, faults, inventory)),
        coverage=tuple(_group_coverage(result, inventory)),
        grids=build_grids(values, inventory),
        pictures=tuple(draw_series(result, inventory, lambda name: name not in shown_above))
        if main or verdict >= Verdict.WARN
        else (),
        params=tuple(
            (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
            for name, value in result.params.items()
        ),
        other_rounds=tuple(
            build_section(check, other, summary) for other in sorted(others, key=lambda r: r.round)
        ),
        left_rounds=len(check.other_rounds) - len(others) if main else 0,
    )


def _scale_fault(fault: Fault, unit: str, factor: float) -> Fault:
    limit = fault.limit and scale_limit(fault.limit, factor)
    return replace(fault, value=scale(fault.value, factor), unit=unit, limit=limit)


def _group_parts(
    result: Result,
    values: Sequence[TableValue],
    faults: Sequence[Fault],
    inventory: Inventory,
) -> Iterator[tuple[Icon | None, str]]:
    """Yield the parts that the check covered, by their verdicts, the worst first."""
    judged = {one.item.part_id: Verdict.PASS for one in values if one.limits}
    worst = judged | {fault.part_id: fault.verdict for fault in reversed(faults)}
    seen: Iterable[Coverage | Finding | Measurement]
    seen = chain(result.coverage, result.measurements, result.findings)
    groups: dict[Verdict | None, dict[str, None]] = {}
    for item in seen:
        groups.setdefault(worst.get(item.part_id), {})[item.part_id] = None
    for verdict in (*reversed(Verdict), None):
        if verdict in groups:
            yield ICONS[verdict] if verdict else None, name_parts(groups[verdict], inventory)


def _group_coverage(result: Result, inventory: Inventory) -> Iterator[LabeledText]:
    """Yield the parts with the same coverage, and that coverage."""
    alike: dict[str, list[str]] = {}
    for covered in result.coverage:
        alike.setdefault(covered.text, []).append(covered.part_id)
    for text, part_id in alike.items():
        yield name_parts(part_id, inventory), text


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
