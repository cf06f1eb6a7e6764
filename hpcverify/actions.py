"""
What to do about which part: each part stands under what its own complaints call for.

The strongest remedy of a run says nothing of the parts that did not call for it. A GPU
that only waits for a reset is not sent to the vendor because another one of the same
node is, and a part that only warns is accused of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpcverify import check
from hpcverify.model import (
    Finding,
    Inventory,
    Maturity,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Verdict,
    effective_verdict,
)

IDENTITY_FACTS = (
    "name",
    "model",
    "serial",
    "uuid",
    "pci_address",
    "board",
    "part_number",
    "vbios",
    "firmware",
    "driver",
    "vendor",
    "product",
)
"""Facts by which a vendor or a technician knows a part, in the order of a ticket."""
FORMER_LABEL = "was"
"""The evidence that says what a part that is gone was called. The facts that were
known of it stand beside."""
UNFINISHED_REASON = "the run ended early: not every check had its turn"
NOTHING_RAN_REASON = "no check had its turn"


class Complaint(Struct, frozen=True, kw_only=True):
    """What one check, or several in the same words, have against one part."""

    where: str
    checks: tuple[str, ...]
    name: str
    """The metric, or the code of the finding."""
    text: str
    """What was found, without the name of the part."""
    verdict: Verdict
    remedy: Remedy
    distance: float = 0.0
    """How far past its limit, as a share of it; infinite for a finding."""
    evidence: dict[str, str] = {}


class AffectedPart(Struct, frozen=True, kw_only=True):
    """A part that something is held against, the worst first."""

    where: str
    label: str
    facts: dict[str, str]
    """Those of `IDENTITY_FACTS` that are known, from an earlier run if need be."""
    complaints: tuple[Complaint, ...]

    @property
    def verdict(self) -> Verdict:
        """What the worst complaint says."""
        return self.complaints[0].verdict

    @property
    def remedy(self) -> Remedy:
        """What the complaints of that verdict call for most."""
        return self.complaints[0].remedy

    @property
    def deciding(self) -> tuple[Complaint, ...]:
        """The complaints of the worst verdict."""
        return tuple(c for c in self.complaints if c.verdict is self.verdict)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that decided."""
        return tuple(dict.fromkeys(name for c in self.deciding for name in c.checks))


class Action(Struct, frozen=True, kw_only=True):
    """One thing to do, and the parts to do it to."""

    verdict: Verdict
    remedy: Remedy
    parts: tuple[AffectedPart, ...]


def list_actions(run: Run) -> tuple[Action, ...]:
    """List what *run* calls for, the gravest first."""
    groups: dict[tuple[Verdict, Remedy], list[AffectedPart]] = {}
    for part in list_affected_parts(run):
        groups.setdefault((part.verdict, part.remedy), []).append(part)
    ordered = sorted(groups, key=lambda key: _severity_sort_key(*key), reverse=True)
    return tuple(
        Action(
            verdict=verdict,
            remedy=remedy,
            parts=tuple(
                sorted(
                    groups[verdict, remedy],
                    key=lambda part: max(c.distance for c in part.deciding),
                    reverse=True,
                )
            ),
        )
        for verdict, remedy in ordered
    )


def list_affected_parts(run: Run) -> Iterator[AffectedPart]:
    """Yield every part that *run* complains of, in the order of the inventory."""
    by_part: dict[str, list[Complaint]] = {}
    for complaint in _merge_complaints([*_list_run_complaints(run), *_list_result_complaints(run)]):
        by_part.setdefault(complaint.where, []).append(complaint)
    places = {part.id: place for place, part in enumerate(run.inventory.parts)}
    for where in sorted(by_part, key=lambda where: places.get(where, len(places))):
        yield _build_affected_part(where, by_part[where], run.inventory)


def list_clauses(result: Result, inventory: Inventory) -> list[str]:
    """
    List what speaks for the verdict of *result*, in the order of its reason.

    Each is told as the engine told it. The reason holds them all, and cannot be taken
    apart again: the text of one may have in it whatever comes between two.
    """
    if result.verdict is Verdict.PASS:
        return []
    items: list[Measurement | Finding] = [*result.measurements, *result.findings]
    limits = [
        limit
        for limit in result.limits
        if not result.shortfalls or any(check.applies(limit, i) for i in result.measurements)
    ]
    told = check.list_judgements(items, limits, result.rulings, inventory.format_names)
    mine = check.sort_judgements(c for c in told if c.verdict is result.verdict)
    short = [s.reason for s in result.shortfalls if result.verdict is Verdict.ERROR]
    return [*(c.reason for c in mine), *short]


def summarize_reason(result: Result, inventory: Inventory) -> str:
    """Give the reason of *result* in one clause, and how many more there are."""
    first, *others = list_clauses(result, inventory) or [result.reason]
    return f"{first} (+{len(others)} more)" if others else first


def list_complaints(result: Result, inventory: Inventory) -> Iterator[Complaint]:
    """Yield what *result* has against each part, as the engine judged it."""
    if effective_verdict(result) < Verdict.WARN:
        return
    found = [
        *_list_item_complaints(result, inventory),
        *_list_shortfall_complaints(result, inventory),
    ]
    yield from found
    worst = max((c.verdict for c in found), default=Verdict.PASS)
    if worst < _cap_beta_verdict(effective_verdict(result), result):
        yield _build_complaint(
            result, "node", result.reason, effective_verdict(result), result.remedy
        )


def _list_item_complaints(result: Result, inventory: Inventory) -> Iterator[Complaint]:
    for finding in result.findings:
        for told in check.list_judgements([finding], (), result.rulings, inventory.format_names):
            made = _make_complaint(finding.where, finding.code, told, result, inventory)
            yield from (replace(c, evidence=finding.evidence) for c in made)
    for item in result.measurements:
        mine = [limit for limit in result.limits if check.applies(limit, item)]
        for told in check.list_judgements([item], mine, {}, inventory.format_names):
            yield from _make_complaint(item.where, item.name, told, result, inventory)


def _make_complaint(
    where: str, name: str, told: check.Judgement, result: Result, inventory: Inventory
) -> Iterator[Complaint]:
    """Take the name of the part out of what was *told*, unless it passed."""
    if told.verdict > Verdict.SKIP:
        yield Complaint(
            where=where,
            checks=(result.check,),
            name=name,
            text=told.reason.removeprefix(f"{inventory.find_label(where)}: "),
            verdict=_cap_beta_verdict(told.verdict, result),
            remedy=told.remedy,
            distance=told.distance,
        )


def _list_shortfall_complaints(result: Result, inventory: Inventory) -> Iterator[Complaint]:
    parts = {part.id for part in inventory.parts}
    for short in result.shortfalls:
        # It may be a worker's that stands for no part, as that of the telemetry.
        where = short.where if short.where in parts else "node"
        text = short.reason.removeprefix(f"{inventory.find_label(short.where)}: ")
        yield _build_complaint(result, where, text, Verdict.ERROR, short.remedy)


def _build_complaint(
    result: Result, where: str, text: str, verdict: Verdict, remedy: Remedy
) -> Complaint:
    return Complaint(
        where=where,
        checks=(result.check,),
        name=result.cause.value,
        text=text,
        verdict=_cap_beta_verdict(verdict, result),
        remedy=remedy,
    )


def _cap_beta_verdict(verdict: Verdict, result: Result) -> Verdict:
    """Say what a complaint counts for: a check in beta can do no more than warn."""
    beta = result.maturity is Maturity.BETA and verdict is Verdict.FAIL
    return Verdict.WARN if beta else verdict


def _list_result_complaints(run: Run) -> Iterator[Complaint]:
    for result in run.results:
        yield from list_complaints(result, run.inventory)


def _list_run_complaints(run: Run) -> Iterator[Complaint]:
    if run.complete and run.results:
        return
    yield Complaint(
        where="node",
        checks=(),
        name="interrupted",
        text=UNFINISHED_REASON if run.results else NOTHING_RAN_REASON,
        verdict=Verdict.ERROR,
        remedy=Remedy.RERUN,
    )


def _merge_complaints(found: Sequence[Complaint]) -> list[Complaint]:
    """Tell once what several checks say in the same words, and of rounds the worst."""
    kept: dict[tuple[str, ...], Complaint] = {}
    for one in found:
        event = one.distance == float("inf") or not one.distance
        key = (one.where, one.text) if event else (one.where, *one.checks, one.name)
        other = kept.get(key)
        if other is None:
            kept[key] = one
            continue
        worse = max(other, one, key=_complaint_sort_key)
        checks = tuple(dict.fromkeys((*other.checks, *one.checks)))
        evidence = other.evidence | one.evidence
        kept[key] = replace(worse, checks=checks, evidence=evidence)
    return list(kept.values())


def _build_affected_part(
    where: str, found: Sequence[Complaint], inventory: Inventory
) -> AffectedPart:
    part = next((p for p in inventory.parts if p.id == where), Part("", where, where))
    gone = (c.evidence for c in found if FORMER_LABEL in c.evidence)
    told = {name: value for evidence in gone for name, value in evidence.items()}
    known = told | part.facts
    return AffectedPart(
        where=where,
        label=told.get(FORMER_LABEL, part.label),
        facts={name: known[name] for name in IDENTITY_FACTS if name in known},
        complaints=tuple(sorted(found, key=_complaint_sort_key, reverse=True)),
    )


def _complaint_sort_key(complaint: Complaint) -> tuple[tuple[Verdict, int], float]:
    return _severity_sort_key(complaint.verdict, complaint.remedy), complaint.distance


def _severity_sort_key(verdict: Verdict, remedy: Remedy) -> tuple[Verdict, int]:
    return verdict, list(Remedy).index(remedy)
