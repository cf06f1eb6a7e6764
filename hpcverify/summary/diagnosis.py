"""
What is wrong with which part: one diagnosis for all faults about it.

Terminal, log, pages, drain reasons, events and the index print it. It names the faults that
decide, the gravest first, and counts the rest. Speeds that are low together are one fault. Parts
with the same faults share a diagnosis, as when all GPUs of a node became slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import make_severity_key
from hpcverify.model import (
    MIN_PARTS_FOR_ALL,
    PLURAL_NAMES,
    Fault,
    FaultKind,
    Remedy,
    Run,
    Verdict,
)
from hpcverify.summary.actions import AffectedPart, list_affected_parts
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
    """Those with milder faults about these parts."""
    faults: tuple[str, ...]
    """What decides: metrics and codes with their checks, or `SLOW`. The same for equal faults of
    other parts and nodes."""
    codes: tuple[str, ...] = ()
    """The codes of the findings that decide, and the metrics outside their limits."""
    metric: str = ""
    """The metric, if all of it is about one limit."""
    text: str
    """What is wrong, without the names."""

    @property
    def sentence(self) -> str:
        """What is wrong with which part."""
        return ": ".join(filter(None, (self.names, self.text)))

    @property
    def note(self) -> str:
        """The sentence, and the checks beside the first."""
        others = ", ".join((*self.checks[1:], *self.other_checks))
        return f"{self.sentence}; also: {others}" if others else self.sentence

    @property
    def reason(self) -> str:
        """The sentence after all its checks: the reason of a drain, which `adopt` reads."""
        return f"{', '.join(self.checks)}: {self.sentence}"

    @property
    def line(self) -> str:
        """The checks and the sentence."""
        return ": ".join(filter(None, (name_checks(self.checks), self.sentence)))


def diagnose(run: Run) -> tuple[Diagnosis, ...]:
    """Diagnose every part with faults in *run*: the gravest diagnosis first."""
    return diagnose_parts(list_affected_parts(run), run)


def diagnose_parts(parts: Iterable[AffectedPart], run: Run) -> tuple[Diagnosis, ...]:
    """Diagnose the affected *parts* of *run*."""
    alike: dict[tuple[object, ...], list[AffectedPart]] = {}
    for number, part in enumerate(_list_subjects(parts)):
        kind = number if part.part_id == "node" else part.faults[0].part_kind
        key = (part.verdict, part.remedy, kind, _list_faults(part))
        alike.setdefault(key, []).append(part)
    groups = [group for some in alike.values() for group in _split(some)]
    ordered = sorted(groups, key=lambda group: _rank(group[0]), reverse=True)
    is_slow = any(SLOW in _list_faults(group[0]) for group in ordered)
    table = read_speeds(run) if is_slow else None
    counts = Counter(part.kind for part in run.inventory.parts)
    return tuple(_build(group, table, counts) for group in ordered)


def _list_subjects(parts: Iterable[AffectedPart]) -> Iterator[AffectedPart]:
    """Yield the parts, and the node once for each cause: it is not one part."""
    for part in parts:
        if part.part_id != "node":
            yield part
            continue
        # Those of one cause are one fault already.
        yield from (replace(part, faults=(fault,)) for fault in part.faults)


def _rank(part: AffectedPart) -> tuple[Verdict, int, float]:
    return max(map(make_severity_key, part.deciding))


def _split(parts: Sequence[AffectedPart]) -> Iterator[list[AffectedPart]]:
    """Yield the worst first, together if they are many, or if the same is said of all."""
    ordered = sorted(parts, key=_rank, reverse=True)
    texts = {tuple(c.text for c in part.deciding) for part in parts}
    if len(texts) == 1 or len(parts) >= MIN_PARTS_FOR_ALL:
        yield ordered
    else:
        yield from ([part] for part in ordered)


def _identify_fault(fault: Fault) -> str:
    """Identify the fault as other nodes have it: by words only where there is nothing else."""
    if fault.shared:
        return fault.name
    if fault.kind is FaultKind.SHORTFALL:
        return fault.text
    return f"{fault.checks[0]} {fault.name}"


def _list_faults(part: AffectedPart) -> tuple[str, ...]:
    """List the faults that decide on *part*, the gravest first; low speeds are one fault."""
    low = list_low_speeds(part)
    faults = (SLOW if low and is_low_speed(c) else _identify_fault(c) for c in part.deciding)
    return tuple(dict.fromkeys(faults))


def _build(
    parts: Sequence[AffectedPart], table: SpeedTable | None, counts: Mapping[str, int]
) -> Diagnosis:
    worst, faults = parts[0], _list_faults(parts[0])
    gravest = worst.faults[0]
    deciding = [fault for part in parts for fault in part.deciding]
    milder = [fault for part in parts for fault in part.faults[len(part.deciding) :]]
    checks = dict.fromkeys(name for fault in deciding for name in fault.checks)
    others = dict.fromkeys(name for fault in milder for name in fault.checks)
    fixes = dict.fromkeys(c.fix for c in deciding if c.fix and c.remedy is worst.remedy)
    return Diagnosis(
        verdict=worst.verdict,
        remedy=worst.remedy,
        fix=", ".join([*fixes][:MAX_NAMED]),
        part_ids=tuple(part.part_id for part in parts),
        part_kind=gravest.part_kind,
        names=_name_parts(parts, gravest.part_kind, counts),
        checks=tuple(checks),
        other_checks=tuple(name for name in others if name not in checks),
        faults=faults,
        codes=tuple(dict.fromkeys(fault.name for fault in deciding)),
        metric=gravest.name if gravest.limit and faults == (_identify_fault(gravest),) else "",
        text=_describe(parts, table if SLOW in faults else None),
    )


def _describe(parts: Sequence[AffectedPart], table: SpeedTable | None) -> str:
    """
    Name the gravest faults about the worst of *parts*, and count the others.

    *table* has the speeds, if low speeds are one fault of theirs.
    """
    is_slow = table is not None
    clauses: dict[str, str] = {}
    for fault in parts[0].faults:
        if table and is_low_speed(fault):
            clauses[SLOW] = clauses.get(SLOW) or describe_low_speeds(parts, table)
        else:
            clauses.setdefault(_make_clause_key(fault), fault.text)
    count = len(
        {_make_clause_key(c) for c in parts[0].deciding if not (is_slow and is_low_speed(c))}
    )
    shown = [*clauses.items()][: min(MAX_NAMED, count + is_slow)]
    texts = [{fault.text for fault in part.deciding} for part in parts]
    said = [
        text
        if key == SLOW or all(text in own for own in texts)
        else f"at worst {text} on {parts[0].label}"
        for key, text in shown
    ]
    left = len(clauses) - len(shown)
    return "; ".join(said) + (f" (+{left} more)" if left else "")


def _make_clause_key(fault: Fault) -> str:
    """Make a key by which a metric is named once, whatever its limits."""
    return _identify_fault(fault) if fault.limit else fault.text


def _name_parts(parts: Sequence[AffectedPart], kind: str, counts: Mapping[str, int]) -> str:
    """Name the *parts* of a *kind*; *counts* has how many parts of each kind there are."""
    if parts[0].part_id == "node":
        return ""
    if kind in PLURAL_NAMES and len(parts) == counts[kind] >= MIN_PARTS_FOR_ALL:
        return f"all {len(parts)} {PLURAL_NAMES[kind]}"
    if len(parts) > MAX_NAMED:
        labels = ", ".join(part.label for part in parts[:MAX_NAMED])
        return f"{labels} (+{len(parts) - MAX_NAMED} more)"
    return " and ".join(map(_name_part, parts))


def _name_part(part: AffectedPart) -> str:
    serial = part.facts.get("serial") if part.verdict is Verdict.FAIL else None
    return f"{part.label}, serial {serial}" if serial else part.label


def name_checks(checks: Sequence[str]) -> str:
    """Name a few *checks*; of many the first, with their number."""
    if len(checks) > MAX_NAMED:
        return f"{checks[0]} and {len(checks) - 1} more checks"
    return ", ".join(checks)
