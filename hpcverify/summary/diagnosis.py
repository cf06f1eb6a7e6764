"""
What is wrong with which part: one diagnosis for all faults about it.

Terminal, log, pages, drain reasons, events and the index print it. It names the faults that
decide, the worst first, and counts the rest. Speeds that are low together are one fault. Parts
with the same faults share a diagnosis, as when all GPUs of a node became slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from hpcverify.check import make_severity_key
from hpcverify.explain import find_explanation
from hpcverify.model import (
    MIN_PARTS_FOR_ALL,
    PLURAL_NAMES,
    Fault,
    FaultKind,
    Inventory,
    Remedy,
    Result,
    Run,
    Verdict,
)
from hpcverify.summary.faults import (
    PartFaults,
    choose_deciding,
    group_by_part,
    list_checks,
    list_run_faults,
    recall_gone_parts,
)
from hpcverify.summary.figures import format_bounds, format_scaled
from hpcverify.summary.speeds import (
    SLOW,
    SpeedTable,
    describe_low_speeds,
    is_low_speed,
    list_low_speeds,
    read_speeds,
)

MAX_NAMED = 3
"""Faults, parts, metrics or checks that a line names; of more it gives the count."""
MAX_TITLE = 80
"""Characters of a finding's own text in a title; of a longer text the title of its code is used."""


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What is wrong with a part, or alike with several."""

    verdict: Verdict
    remedy: Remedy
    """What the gravest fault calls for."""
    fix: str = ""
    """The exact steps for that, where they are known."""
    part_ids: tuple[str, ...]
    """The worst part first."""
    part_kind: str = ""
    """As `Fault.part_kind`."""
    names: str = ""
    """What a person calls the parts, with the serial numbers of those that failed; empty: the
    node itself."""
    checks: tuple[str, ...]
    """The checks with the faults that decide."""
    other_checks: tuple[str, ...] = ()
    """The checks with milder faults of these parts."""
    faults: tuple[str, ...]
    """What decides: metrics and codes with their checks, or `SLOW`. The same for equal faults of
    other parts and nodes."""
    codes: tuple[str, ...] = ()
    """The codes of the findings that decide, and the metrics outside their limits."""
    metric: str = ""
    """The metric, if all of it is about one limit."""
    text: str
    """What is wrong, without the names."""
    title: str = ""
    """The gravest fault in words, and the codes of all that decide: for one line."""

    @property
    def sentence(self) -> str:
        """What is wrong with which part."""
        return ": ".join(filter(None, (self.names, self.text)))

    @property
    def note(self) -> str:
        """The sentence, and the other checks with these faults."""
        others = ", ".join((*self.checks[1:], *self.other_checks))
        return f"{self.sentence}; also: {others}" if others else self.sentence

    @property
    def reason(self) -> str:
        """The sentence after all its checks: the reason of a drain, which `nodes adopt` reads."""
        return f"{', '.join(self.checks)}: {self.sentence}"

    @property
    def line(self) -> str:
        """The checks and the sentence."""
        return ": ".join(filter(None, (name_checks(self.checks), self.sentence)))


def diagnose_run(run: Run) -> tuple[Diagnosis, ...]:
    """Diagnose every part with faults in *run*: the worst diagnosis first."""
    return diagnose(list_run_faults(run), recall_gone_parts(run), run.results)


def diagnose(
    faults: Iterable[Fault], inventory: Inventory, results: Sequence[Result] = ()
) -> tuple[Diagnosis, ...]:
    """
    Diagnose *faults*, one for each cause, of parts of *inventory*: the worst first.

    *results* have what the siblings of slow parts reached.
    """
    alike: dict[tuple[object, ...], list[PartFaults]] = {}
    for part_id, found in group_by_part(faults, inventory).items():
        # The node is not one part: it has a diagnosis for each cause.
        for place, part in enumerate([[f] for f in found] if part_id == "node" else [found]):
            kind = place if part_id == "node" else part[0].part_kind
            key = (part[0].verdict, part[0].remedy, part_id == "node", kind, _name_faults(part))
            alike.setdefault(key, []).append(part)
    groups = [group for some in alike.values() for group in _split(some)]
    groups.sort(key=lambda group: make_severity_key(group[0][0]), reverse=True)
    is_slow = any(SLOW in _name_faults(group[0]) for group in groups)
    table = read_speeds(results, inventory) if is_slow else None
    return tuple(_build(group, table, inventory) for group in groups)


def _split(parts: Sequence[PartFaults]) -> Iterator[list[PartFaults]]:
    """Yield the worst first, together if they are many or have the same faults."""
    ordered = sorted(parts, key=lambda part: make_severity_key(part[0]), reverse=True)
    texts = {tuple(fault.text for fault in choose_deciding(part)) for part in parts}
    if len(texts) == 1 or len(parts) >= MIN_PARTS_FOR_ALL:
        yield ordered
    else:
        yield from ([part] for part in ordered)


def _identify_fault(fault: Fault) -> str:
    """Identify the fault across nodes: by its text only if it has no code."""
    if fault.shared:
        return fault.code
    if fault.kind is FaultKind.SHORTFALL:
        return fault.text
    return f"{fault.check} {fault.code}"


def _name_faults(part: PartFaults) -> tuple[str, ...]:
    """Name the faults that decide on *part*, the worst first; low speeds are one fault."""
    low, deciding = list_low_speeds(part), choose_deciding(part)
    faults = (SLOW if low and is_low_speed(f) else _identify_fault(f) for f in deciding)
    return tuple(dict.fromkeys(faults))


def _build(
    parts: Sequence[PartFaults], table: SpeedTable | None, inventory: Inventory
) -> Diagnosis:
    gravest, faults = parts[0][0], _name_faults(parts[0])
    deciding = [fault for part in parts for fault in choose_deciding(part)]
    checks = list_checks(deciding)
    others = list_checks(fault for part in parts for fault in part)
    fixes = dict.fromkeys(f.fix for f in deciding if f.fix and f.remedy is gravest.remedy)
    return Diagnosis(
        verdict=gravest.verdict,
        remedy=gravest.remedy,
        fix=", ".join([*fixes][:MAX_NAMED]),
        part_ids=tuple(part[0].part_id for part in parts),
        part_kind=gravest.part_kind,
        names=_name_parts([part[0] for part in parts], inventory),
        checks=checks,
        other_checks=tuple(name for name in others if name not in checks),
        faults=faults,
        codes=tuple(dict.fromkeys(fault.code for fault in deciding)),
        metric=gravest.code if gravest.limit and faults == (_identify_fault(gravest),) else "",
        text=_describe(parts, table if SLOW in faults else None, inventory),
        title=_entitle(parts, table if SLOW in faults else None, inventory),
    )


def _entitle(parts: Sequence[PartFaults], table: SpeedTable | None, inventory: Inventory) -> str:
    """Write the gravest fault of *parts* in words, and the codes of all that decide."""
    first, codes = parts[0][0], dict[str, None]()
    for fault in (fault for part in parts for fault in choose_deciding(part)):
        where = fault.check if fault.kind is FaultKind.SHORTFALL else ""
        own = SLOW if table and is_low_speed(fault) else fault.code
        codes[": ".join(filter(None, (where, own)))] = None
    known = find_explanation(first.check, first.code)
    is_common = len({part[0].text for part in parts}) == 1 and len(first.text) <= MAX_TITLE
    if table and is_low_speed(first):
        text = describe_low_speeds(parts, table)
    elif known and first.kind is FaultKind.FINDING and not is_common:
        # A GPU that never answered has only an index.
        index = first.evidence.get("nvml_index") if first.part_id == "node" else ""
        text = f"GPU {index} {known.title}" if index else known.title
    else:
        text = _word_fault(first)
    if first.value is not None and len({part[0].value for part in parts}) > 1:
        text += f", worst {inventory.find_label(first.part_id)}"
    named = [code for code in codes if not text.startswith(f"{code} ")]
    more = [f"+{len(named) - MAX_NAMED} more"] if len(named) > MAX_NAMED else []
    return f"{text} ({', '.join(named[:MAX_NAMED] + more)})" if named else text


def _word_fault(fault: Fault) -> str:
    """Write a value past its limit in the words of its metric, and another fault in its own."""
    known = find_explanation(fault.check, fault.code)
    if fault.kind is not FaultKind.OUTSIDE or not fault.limit or not known:
        return fault.text
    if not fault.unit:  # a count is in the title
        return known.title
    format_value = partial(format_scaled, unit=fault.unit)
    bounds = format_bounds(fault.limit, format_value)
    return f"{known.title}: {format_value(fault.value)}, limit {bounds}"


def describe_fault(fault: Fault) -> str:
    """Write *fault* in words, with its code if it has other words."""
    words = _word_fault(fault)
    return words if words == fault.text else f"{words} ({fault.code})"


def _describe(parts: Sequence[PartFaults], table: SpeedTable | None, inventory: Inventory) -> str:
    """
    Name the gravest faults about the worst of *parts*, and count the others.

    *table* has the speeds, if low speeds are one fault of theirs.
    """
    worst, clauses, deciding = parts[0], dict[str, str](), set[str]()
    for fault in worst:
        if table and is_low_speed(fault):
            key, text = SLOW, clauses.get(SLOW) or describe_low_speeds(parts, table)
        else:  # a metric is named once, whatever its limits
            text = describe_fault(fault)
            key = _identify_fault(fault) if fault.limit else text
        clauses.setdefault(key, text)
        if fault.verdict is worst[0].verdict:
            deciding.add(key)
    shown = [*clauses.items()][: min(MAX_NAMED, len(deciding))]
    texts = [{describe_fault(fault) for fault in choose_deciding(part)} for part in parts]
    said = [
        text
        if key == SLOW or all(text in own for own in texts)
        else f"at worst {text} on {inventory.find_label(worst[0].part_id)}"
        for key, text in shown
    ]
    left = len(clauses) - len(shown)
    return "; ".join(said) + (f" (+{left} more)" if left else "")


def _name_parts(gravest: Sequence[Fault], inventory: Inventory) -> str:
    """Name the parts with these *gravest* faults; a part that failed with its serial number."""
    kind, names = gravest[0].part_kind, [inventory.find_label(f.part_id) for f in gravest]
    if gravest[0].part_id == "node":
        return ""
    if kind in PLURAL_NAMES and len(names) == len(inventory.of_kind(kind)) >= MIN_PARTS_FOR_ALL:
        return f"all {len(names)} {PLURAL_NAMES[kind]}"
    if len(names) > MAX_NAMED:
        return f"{', '.join(names[:MAX_NAMED])} (+{len(names) - MAX_NAMED} more)"
    for place, fault in enumerate(gravest):
        part = inventory.find_part(fault.part_id)
        if part and fault.verdict is Verdict.FAIL and "serial" in part.facts:
            names[place] += f", serial {part.facts['serial']}"
    return " and ".join(names)


def name_checks(checks: Sequence[str]) -> str:
    """Name a few *checks*; of many the first, with their number."""
    if len(checks) > MAX_NAMED:
        return f"{checks[0]} and {len(checks) - 1} more checks"
    return ", ".join(checks)
