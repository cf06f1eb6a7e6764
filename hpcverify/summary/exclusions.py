"""
What speaks against other causes than the part itself, and how often it failed before.

A vendor takes a part back when the usual causes have been ruled out: heat, power, the
slot, the software, the rest of the machine. Only what was measured is told, so that
where nothing was measured nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from hpcverify.check import format_quantity
from hpcverify.model import PLURAL_NAMES, Inventory, Part, Run, Verdict
from hpcverify.summary.actions import AffectedPart, list_affected_parts, pair_with_limits

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
"""What the soak (`thermal`) measures of causes that lie outside a part."""
SOFTWARE_FACTS = {"driver": "driver", "vbios": "VBIOS", "firmware": "firmware"}
"""Facts that a fault may come from, and that like parts share."""


LASTING_FACTS = ("name", "model", "serial", "board", "part_number")
"""Facts of a part that do not change, and that a vendor asks for first."""


class PastVerdict(Struct, frozen=True, kw_only=True):
    """What one run of the past says of a part by the checks that fail it now."""

    started: datetime
    failed: bool
    address: str = ""
    """Where the part sat, if it failed and the run knows."""


class Repetition(Struct, frozen=True, kw_only=True):
    """How often a part failed the same checks, this run included."""

    failed: int
    runs: int
    """Those that had the part and came to a verdict on it."""
    since: datetime
    """When the oldest of them began."""
    first: datetime
    """When the first began that failed it."""
    slots: tuple[str, ...] = ()
    """Other PCI addresses at which it failed."""
    facts: dict[str, str] = {}
    """What it told of itself before, as a GPU that answers no more: `LASTING_FACTS`."""


def find_past_verdict(where: str, checks: Sequence[str], run: Run) -> PastVerdict | None:
    """Say how the part *where* did by *checks* in *run*; None if it was not there."""
    failing = {
        part.where: part for part in list_affected_parts(run) if part.verdict is Verdict.FAIL
    }
    part = failing.get(where)
    if part is not None and not set(checks).isdisjoint(part.checks):
        address = part.facts.get("pci_address", "")
        return PastVerdict(started=run.started, failed=True, address=address)
    if any(p.id == where for p in run.inventory.parts):
        return PastVerdict(started=run.started, failed=False)
    return None


def count_repetition(part: AffectedPart, run: Run, before: Sequence[PastVerdict]) -> Repetition:
    """Count over *run*, which fails *part*, and the looks *before* it."""
    failures = [look for look in before if look.failed]
    here = part.facts.get("pci_address", "")
    slots = dict.fromkeys(look.address for look in failures if look.address)
    return Repetition(
        failed=len(failures) + 1,
        runs=len(before) + 1,
        since=min([run.started, *(look.started for look in before)]),
        first=min([run.started, *(look.started for look in failures)]),
        slots=tuple(slot for slot in slots if here and slot != here),
    )


def recall_facts(part: AffectedPart, before: Inventory | None) -> dict[str, str]:
    """Take from the inventory *before* what *part* does not tell of itself any more."""
    known = [p.facts for p in before.parts if p.id == part.where] if before else []
    return {
        name: facts[name]
        for facts in known
        for name in LASTING_FACTS
        if name in facts and name not in part.facts
    }


def list_ruled_out(part: AffectedPart, run: Run, past: Repetition | None = None) -> list[str]:
    """List what *run* and the *past* show that speaks against other causes."""
    told = [*_compare_like_parts(part, run), *_rule_out_causes(part, run)]
    if past and past.slots:
        told.append(f"slot: it failed at {', '.join(past.slots)} too")
    return told


def _compare_like_parts(part: AffectedPart, run: Run) -> Iterator[str]:
    """Say which parts of the same make did well by the same checks."""
    mine = next((p for p in run.inventory.parts if p.id == part.where), None)
    if mine is None:
        return
    like = [p for p in run.inventory.of_kind(mine.kind) if _is_alike(p, mine)]
    bad = {
        other.where
        for other in list_affected_parts(run)
        for complaint in other.complaints
        if not set(complaint.checks).isdisjoint(part.checks)
    }
    good = [p for p in like if p.id not in bad and _is_covered_by(p, part.checks, run)]
    if not good:
        return
    others = PLURAL_NAMES.get(mine.kind, "parts")
    share = "all" if len(good) == len(like) else f"{len(good)} of the"
    who = f"{share} {len(like)} other {others}" if len(like) > 1 else "the other one"
    yield f"the rest of the node: {who} of this make passed {' and '.join(part.checks)}"
    same = [
        f"{word} {mine.facts[fact]}"
        for fact, word in SOFTWARE_FACTS.items()
        if fact in mine.facts and all(p.facts.get(fact) == mine.facts[fact] for p in good)
    ]
    if same:
        yield f"software: those have the same {' and '.join(same)}"


def _is_alike(one: Part, other: Part) -> bool:
    make = ("name", "model", "board")
    return one.id != other.id and all(one.facts.get(fact) == other.facts.get(fact) for fact in make)


def _is_covered_by(part: Part, checks: Sequence[str], run: Run) -> bool:
    """Whether each of *checks* found out something about *part*."""
    seen = {
        result.check
        for result in run.results
        if part.id in {m.where for m in result.measurements}
        or part.id in {covered.where for covered in result.coverage}
    }
    return set(checks) <= seen


def _rule_out_causes(part: AffectedPart, run: Run) -> Iterator[str]:
    """Say what the soak measured of causes outside the part, if it was all in order."""
    for cause, names in EXTERNAL_CAUSES.items():
        pairs = [
            pair
            for result in run.results
            for pair in pair_with_limits(result)
            if pair[0].where == part.where and pair[0].name in names
        ]
        if pairs and all(limit.admits(item.value) for item, limit in pairs):
            values = dict.fromkeys(
                f"{item.name} {format_quantity(item.value, item.unit)}" for item, _ in pairs
            )
            yield f"{cause}: {', '.join(values)}, within limits under load"
