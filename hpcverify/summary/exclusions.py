"""
Which causes other than the part itself are ruled out or not, and how often it failed before.

A vendor takes a part back once the usual causes have been ruled out: heat, power, the slot,
the software, the rest of the machine. Only measurements count: where nothing was measured,
nothing is ruled out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct

from hpcverify.check import format_quantity
from hpcverify.model import PLURAL_NAMES, Inventory, Measurement, Part, Run, Verdict
from hpcverify.summary.actions import (
    AffectedPart,
    FaultIndex,
    list_affected_parts,
    pair_with_limits,
)
from hpcverify.summary.speeds import VITAL_SIGNS

EXTERNAL_CAUSES = {
    "heat": (
        *VITAL_SIGNS["temperature"],
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


class PastRun:
    """An earlier run, read once for all parts."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._affected = {part.part_id: part for part in list_affected_parts(run)}

    def find_verdict(self, part_id: str, checks: Sequence[str]) -> PastVerdict | None:
        """Find how the part *part_id* did by *checks*; None if the run did not have it."""
        part, started = self._affected.get(part_id), self._run.started
        if part and part.verdict is Verdict.FAIL and not set(checks).isdisjoint(part.checks):
            address = part.facts.get("pci_address", "")
            return PastVerdict(started=started, failed=True, address=address)
        known = self._run.inventory.find_part(part_id)
        return PastVerdict(started=started, failed=False) if known else None


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
    known = before.find_part(part.part_id) if before else None
    facts = known.facts if known else {}
    return {name: facts[name] for name in LASTING_FACTS if name in facts and name not in part.facts}


class Exclusions:
    """
    The causes other than its parts themselves that a run rules out.

    It is built once for all parts of a run, in time linear in the size of the document.
    """

    def __init__(self, run: Run, affected: Iterable[AffectedPart]) -> None:
        self._inventory = run.inventory
        self._alike: dict[tuple[str, ...], dict[str, Part]] = {}
        for part in run.inventory.parts:
            self._alike.setdefault(_identify_model(part), {})[part.id] = part
        self._passed: dict[str, set[str]] = {}
        for result in run.results:
            passed = self._passed.setdefault(result.check, set())
            passed.update(item.part_id for item in result.measurements)
            passed.update(covered.part_id for covered in result.coverage)
        for other in affected:
            for check in {name for fault in other.faults for name in fault.checks}:
                self._passed.get(check, set()).discard(other.part_id)
        self._good: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Part]] = {}
        causes = {name: cause for cause, names in EXTERNAL_CAUSES.items() for name in names}
        self._signs: dict[str, dict[str, list[tuple[Measurement, bool]]]] = {}
        for result in run.results:
            faults = FaultIndex(result)
            for item in dict.fromkeys(item for item, _ in pair_with_limits(result)):
                if cause := causes.get(item.name):
                    signs = self._signs.setdefault(item.part_id, {}).setdefault(cause, [])
                    signs.append((item, bool(faults.find(item))))

    def list_ruled_out(self, part: AffectedPart, past: Repetition | None = None) -> list[str]:
        """List the causes other than *part* that the run and the *past* rule out, and why."""
        return [f"{cause}: {why}" for cause, why in self._rule_out(part, past)]

    def list_open_causes(self, part: AffectedPart, past: Repetition | None = None) -> list[str]:
        """
        List the causes other than *part* itself that the run and the *past* do not rule out.

        The node itself has none: it has no slot, and is not sent back alone.
        """
        if part.part_id == "node":
            return []
        ruled_out = {cause for cause, _ in self._rule_out(part, past)}
        kind, like, good = self._compare_like_parts(part)
        others = PLURAL_NAMES.get(kind, "parts")
        rest = f"{REST} ({len(good)} of {like} other {others} passed)" if like else REST
        causes = {REST: rest, SOFTWARE: SOFTWARE, **{c: c for c in EXTERNAL_CAUSES}, SLOT: SLOT}
        return [text for cause, text in causes.items() if cause not in ruled_out]

    def _compare_like_parts(self, part: AffectedPart) -> tuple[str, int, list[Part]]:
        """Return the kind of *part*, how many others are of its model, and which passed."""
        mine = self._inventory.find_part(part.part_id)
        if mine is None:
            return "", 0, []
        alike, key = self._alike[_identify_model(mine)], (_identify_model(mine), part.checks)
        if key not in self._good:
            passed = set(alike).intersection(*(self._passed.get(c, ()) for c in part.checks))
            self._good[key] = [alike[part_id] for part_id in passed]
        return mine.kind, len(alike) - 1, self._good[key]

    def _rule_out(self, part: AffectedPart, past: Repetition | None) -> Iterator[tuple[str, str]]:
        """Yield each cause that is ruled out, and by what."""
        kind, like, good = self._compare_like_parts(part)
        if 0 < like == len(good):  # where another one fails too, it may be shared
            others = PLURAL_NAMES.get(kind, "parts")
            who = f"all {like} other {others}" if like > 1 else "the other one"
            yield REST, f"{who} of this model passed {' and '.join(part.checks)}"
            same = [
                f"{word} {part.facts[fact]}"
                for fact, word in SOFTWARE_FACTS.items()
                if fact in part.facts and all(p.facts.get(fact) == part.facts[fact] for p in good)
            ]
            if same:
                yield SOFTWARE, f"they have the same {' and '.join(same)}"
        found = self._signs.get(part.part_id, {})
        for cause in EXTERNAL_CAUSES:
            signs = found.get(cause, ())
            if signs and not any(complained for _, complained in signs):
                values = dict.fromkeys(
                    f"{item.name} {format_quantity(item.value, item.unit)}" for item, _ in signs
                )
                yield cause, f"{', '.join(values)}, within limits under load"
        if past and past.slots:
            yield SLOT, f"it also failed at {', '.join(past.slots)}"


def _identify_model(part: Part) -> tuple[str, ...]:
    return part.kind, *(part.facts.get(name, "") for name in ("name", "model", "board"))
