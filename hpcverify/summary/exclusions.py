"""
Which causes other than the part itself are ruled out or not, and how often it failed before.

A vendor takes a part back once the usual causes have been ruled out: heat, power, the slot,
the software, the rest of the machine. Only measurements count: where nothing was measured,
nothing is ruled out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from hpcverify.check import format_quantity
from hpcverify.model import PLURAL_NAMES, Inventory, Part, Run, Verdict
from hpcverify.summary.actions import (
    AffectedPart,
    ComplaintIndex,
    list_affected_parts,
    pair_with_limits,
)

EXTERNAL_CAUSES = {
    "heat": (
        "temperature.headroom.min",
        "temperature.memory.max",
        "temperature.rise_per_kW",
        "throttled.hw_thermal",
        "throttled.sw_thermal.share",
    ),
    "power supply": ("throttled.hw_power_brake",),
}
"""What the check `thermal` measures of causes outside a part."""
REST, SOFTWARE, SLOT = "the rest of the node", "software", "slot"
SOFTWARE_FACTS = {"driver": "driver", "vbios": "VBIOS", "firmware": "firmware"}
"""Facts that may cause a fault, and that equal parts share."""
LASTING_FACTS = ("name", "model", "serial", "board", "part_number")
"""Facts of a part that do not change, and that a vendor asks for first."""


class PastVerdict(Struct, frozen=True, kw_only=True):
    """How a part did in an earlier run, by the checks that fail it now."""

    started: datetime
    failed: bool
    address: str = ""
    """The PCI address of the part, if it failed and the address is known."""


class Repetition(Struct, frozen=True, kw_only=True):
    """How often a part failed the same checks, this run included."""

    failed: int
    runs: int
    """Those that had the part and came to a verdict on it."""
    since: datetime
    """When the oldest of them started."""
    first: datetime
    """When the first run that failed it started."""
    slots: tuple[str, ...] = ()
    """Other PCI addresses at which it failed."""
    facts: dict[str, str] = {}
    """Its `LASTING_FACTS` from an earlier run, for a GPU that no longer answers."""


def find_past_verdict(part_id: str, checks: Sequence[str], run: Run) -> PastVerdict | None:
    """Find how the part *part_id* did by *checks* in *run*; None if it was not there."""
    for part in list_affected_parts(run):
        failed = part.part_id == part_id and part.verdict is Verdict.FAIL
        if failed and not set(checks).isdisjoint(part.checks):
            address = part.facts.get("pci_address", "")
            return PastVerdict(started=run.started, failed=True, address=address)
    known = any(part.id == part_id for part in run.inventory.parts)
    return PastVerdict(started=run.started, failed=False) if known else None


def count_repetition(part: AffectedPart, run: Run, before: Sequence[PastVerdict]) -> Repetition:
    """Count the failures of *part* in *run* and in the runs *before* it."""
    failures = [past for past in before if past.failed]
    here = part.facts.get("pci_address", "")
    slots = dict.fromkeys(past.address for past in failures if past.address)
    return Repetition(
        failed=len(failures) + 1,
        runs=len(before) + 1,
        since=min([run.started, *(past.started for past in before)]),
        first=min([run.started, *(past.started for past in failures)]),
        slots=tuple(slot for slot in slots if here and slot != here),
    )


def recall_facts(part: AffectedPart, before: Inventory | None) -> dict[str, str]:
    """Look up in the inventory *before* the facts that *part* no longer reports."""
    known = [p.facts for p in before.parts if p.id == part.part_id] if before else []
    return {
        name: facts[name]
        for facts in known
        for name in LASTING_FACTS
        if name in facts and name not in part.facts
    }


def list_ruled_out(part: AffectedPart, run: Run, past: Repetition | None = None) -> list[str]:
    """List the causes other than *part* itself that *run* and the *past* rule out, and why."""
    return [f"{cause}: {why}" for cause, why in _rule_out(part, run, past)]


def _rule_out(part: AffectedPart, run: Run, past: Repetition | None) -> Iterator[tuple[str, str]]:
    yield from _compare_like_parts(part, run)
    yield from _rule_out_causes(part, run)
    if past and past.slots:
        yield SLOT, f"it also failed at {', '.join(past.slots)}"


def list_open_causes(part: AffectedPart, run: Run, past: Repetition | None = None) -> list[str]:
    """
    List the causes other than *part* itself that *run* and the *past* do not rule out.

    Of the node itself none: it has no slot, and nobody sends it back alone.
    """
    if part.part_id == "node":
        return []
    ruled_out = {cause for cause, _ in _rule_out(part, run, past)}
    like, good = _find_like_parts(part, run)
    others = PLURAL_NAMES.get(like[0].kind, "parts") if like else ""
    rest = f"{REST} ({len(good)} of {len(like)} other {others} passed)" if like else REST
    causes = {REST: rest, SOFTWARE: SOFTWARE, **{c: c for c in EXTERNAL_CAUSES}, SLOT: SLOT}
    return [text for cause, text in causes.items() if cause not in ruled_out]


def _find_like_parts(part: AffectedPart, run: Run) -> tuple[list[Part], list[Part]]:
    """Find the other parts of the same model, and those of them that passed the same checks."""
    mine = next((p for p in run.inventory.parts if p.id == part.part_id), None)
    if mine is None:
        return [], []
    like = [p for p in run.inventory.of_kind(mine.kind) if _is_alike(p, mine)]
    bad = {
        other.part_id
        for other in list_affected_parts(run)
        for complaint in other.complaints
        if not set(complaint.checks).isdisjoint(part.checks)
    }
    covered = _list_covered_ids(part.checks, run)
    good = [p for p in like if p.id not in bad and all(p.id in ids for ids in covered)]
    return like, good


def _compare_like_parts(part: AffectedPart, run: Run) -> Iterator[tuple[str, str]]:
    """Say what it rules out that all parts of the same model passed the same checks."""
    like, good = _find_like_parts(part, run)
    if not like or len(good) < len(like):  # where another one fails too, it may be shared
        return
    others = PLURAL_NAMES.get(like[0].kind, "parts")
    who = f"all {len(like)} other {others}" if len(like) > 1 else "the other one"
    yield REST, f"{who} of this model passed {' and '.join(part.checks)}"
    same = [
        f"{word} {part.facts[fact]}"
        for fact, word in SOFTWARE_FACTS.items()
        if fact in part.facts and all(p.facts.get(fact) == part.facts[fact] for p in good)
    ]
    if same:
        yield SOFTWARE, f"they have the same {' and '.join(same)}"


def _is_alike(one: Part, other: Part) -> bool:
    facts = ("name", "model", "board")
    return one.id != other.id and all(one.facts.get(f) == other.facts.get(f) for f in facts)


def _list_covered_ids(checks: Sequence[str], run: Run) -> list[set[str]]:
    """List for each of *checks* the ids of the parts that it covered."""
    covered = {check: set[str]() for check in checks}
    for result in run.results:
        if result.check in covered:
            covered[result.check] |= {m.part_id for m in result.measurements}
            covered[result.check] |= {c.part_id for c in result.coverage}
    return [covered[check] for check in checks]


def _rule_out_causes(part: AffectedPart, run: Run) -> Iterator[tuple[str, str]]:
    """Yield the causes outside the part of which all measurements were within limits."""
    for cause, names in EXTERNAL_CAUSES.items():
        pairs = [
            (item, index.find(item))
            for result in run.results
            for index in [ComplaintIndex(result)]
            for item, _ in pair_with_limits(result)
            if item.part_id == part.part_id and item.name in names
        ]
        if pairs and not any(complaints for _, complaints in pairs):
            values = dict.fromkeys(
                f"{item.name} {format_quantity(item.value, item.unit)}" for item, _ in pairs
            )
            yield cause, f"{', '.join(values)}, within limits under load"
