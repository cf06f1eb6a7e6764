"""
Which causes other than the part itself are ruled out or not, and how often it failed before.

A vendor takes a part back once the usual causes have been ruled out: heat, power, the slot,
the software, the rest of the machine. Only measurements count: where nothing was measured,
nothing is ruled out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from hpcverify.check import format_quantity
from hpcverify.model import PLURAL_NAMES, Inventory, Part, Run, Verdict
from hpcverify.summary.faults import (
    PartFaults,
    choose_deciding,
    group_by_part,
    list_checks,
    list_run_faults,
    pair_with_limits,
    recall_gone_parts,
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
        self._run, self._inventory = run, recall_gone_parts(run)
        self._parts = group_by_part(list_run_faults(run), self._inventory)

    def find_verdict(self, part_id: str, checks: Sequence[str]) -> PastVerdict | None:
        """Find how the part *part_id* did by *checks*; None if the run did not have it."""
        deciding, started = choose_deciding(self._parts.get(part_id, ())), self._run.started
        failed = bool(deciding) and deciding[0].verdict is Verdict.FAIL
        if failed and not set(checks).isdisjoint(list_checks(deciding)):
            address = get_facts(part_id, self._inventory).get("pci_address", "")
            return PastVerdict(started=started, failed=True, address=address)
        known = self._run.inventory.find_part(part_id)
        return PastVerdict(started=started, failed=False) if known else None


def get_facts(part_id: str, inventory: Inventory | None) -> Mapping[str, str]:
    """Return what *inventory* knows of the part *part_id*."""
    part = inventory.find_part(part_id) if inventory else None
    return part.facts if part else {}


def count_repetition(
    run: Run, before: Sequence[PastVerdict], facts: Mapping[str, str], earlier: Mapping[str, str]
) -> Repetition:
    """
    Count the failures of a part in *run*, which fails it, and *before* it.

    *facts* are those that the part reports now, *earlier* what it reported before.
    """
    failures = [past for past in before if past.failed]
    slots = dict.fromkeys(past.address for past in failures if past.address)
    here = facts.get("pci_address")
    return Repetition(
        failed=len(failures) + 1,
        runs=len(before) + 1,
        since=min([run.started, *(past.started for past in before)]),
        first=min([run.started, *(past.started for past in failures)]),
        slots=tuple(slot for slot in slots if here and slot != here),
        facts={n: earlier[n] for n in LASTING_FACTS if n in earlier and n not in facts},
    )


class Exclusions:
    """
    The causes other than its parts themselves that a run rules out.

    It is built once for all *parts* with faults, in time linear in the size of the document.
    """

    def __init__(self, run: Run, parts: Mapping[str, PartFaults]) -> None:
        self._inventory = run.inventory
        self._alike: dict[tuple[str, ...], dict[str, Part]] = {}
        for part in run.inventory.parts:
            self._alike.setdefault(_identify_model(part), {})[part.id] = part
        self._passed: dict[str, set[str]] = {}
        for result in run.results:
            passed = self._passed.setdefault(result.check, set())
            passed.update(item.part_id for item in result.measurements)
            passed.update(covered.part_id for covered in result.coverage)
        for part_id, faults in parts.items():
            for check in list_checks(faults):
                self._passed.get(check, set()).discard(part_id)
        self._good: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Part]] = {}
        causes = {name: cause for cause, names in EXTERNAL_CAUSES.items() for name in names}
        # The values within their limits, by part and cause, unless a fault is about that cause.
        self._signs: dict[tuple[str, str], dict[str, None]] = {}
        seen = {(f.part_id, causes.get(f.code)) for r in run.results for f in r.faults}
        for result in run.results:
            for item, _ in pair_with_limits(result):
                key = item.part_id, causes.get(item.name)
                if key[1] and key not in seen:
                    value = f"{item.name} {format_quantity(item.value, item.unit)}"
                    self._signs.setdefault((item.part_id, key[1]), {})[value] = None

    def weigh(
        self, part: PartFaults, past: Repetition | None = None
    ) -> tuple[list[str], list[str]]:
        """
        List the causes other than *part* that the run and the *past* rule out, and those left.

        The node itself has none: it has no slot, and is not sent back alone.
        """
        part_id, checks = part[0].part_id, list_checks(choose_deciding(part))
        facts, ruled_out = get_facts(part_id, self._inventory), dict[str, str]()
        like, good = self._compare_with_like(part_id, checks)
        others = PLURAL_NAMES.get(part[0].part_kind, "parts")
        if 0 < like == len(good):  # where another one fails too, it may be shared
            who = f"all {like} other {others}" if like > 1 else "the other one"
            ruled_out[REST] = f"{who} of this model passed {' and '.join(checks)}"
            same = [
                f"{word} {facts[fact]}"
                for fact, word in SOFTWARE_FACTS.items()
                if fact in facts and all(p.facts.get(fact) == facts[fact] for p in good)
            ]
            if same:
                ruled_out[SOFTWARE] = f"they have the same {' and '.join(same)}"
        for cause in EXTERNAL_CAUSES:
            if values := self._signs.get((part_id, cause)):
                ruled_out[cause] = f"{', '.join(values)}, within limits under load"
        if past and past.slots:
            ruled_out[SLOT] = f"it also failed at {', '.join(past.slots)}"
        rest = f"{REST} ({len(good)} of {like} other {others} passed)" if like else REST
        causes = {REST: rest, SOFTWARE: SOFTWARE, **{c: c for c in EXTERNAL_CAUSES}, SLOT: SLOT}
        left = [text for cause, text in causes.items() if cause not in ruled_out]
        return [": ".join(pair) for pair in ruled_out.items()], [] if part_id == "node" else left

    def _compare_with_like(self, part_id: str, checks: tuple[str, ...]) -> tuple[int, list[Part]]:
        """Return how many other parts are of the model of *part_id*, and which passed *checks*."""
        mine = self._inventory.find_part(part_id)
        if mine is None:
            return 0, []
        model = _identify_model(mine)
        alike, key = self._alike[model], (model, checks)
        if key not in self._good:
            passed = set(alike).intersection(*(self._passed.get(c, ()) for c in checks))
            self._good[key] = [alike[part_id] for part_id in passed]
        return len(alike) - 1, self._good[key]


def _identify_model(part: Part) -> tuple[str, ...]:
    return part.kind, *(part.facts.get(name, "") for name in ("name", "model", "board"))
