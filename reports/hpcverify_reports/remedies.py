"""What to do about which part, ready to print: the table that a vendor is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpcverify.actions import Action, Affected, Complaint, actions
from hpcverify.exclusions import Repetition, ruled_out
from hpcverify.model import Run, Verdict
from hpcverify_reports.sections import Fact
from hpcverify_reports.words import MARKS, NEXT, Mark, moment

Repetitions = Mapping[str, Repetition]
"""How often each part has failed, by its id."""

SHOWN = 6
"""Complaints of one part that stand beside it; all are told further below."""

OPEN = 4
"""Parts of an action that a page does not fold."""

MODEL = ("name", "model", "product")
FACTS = {
    "pci_address": "PCI address",
    "serial": "serial number",
    "board": "part number",
    "part_number": "part number",
    "vbios": "VBIOS",
    "firmware": "firmware",
    "driver": "driver",
}
"""What the facts of a part are called, in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class Row:
    """One part, how to find it, and what speaks against it."""

    label: str
    model: str
    id: str
    facts: tuple[Fact, ...]
    evidence: tuple[str, ...]
    past: tuple[str, ...]
    ruled_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """One action with its parts."""

    mark: Mark
    action: str
    names: str
    rows: tuple[Row, ...]

    @property
    def shown(self) -> tuple[Row, ...]:
        """The first parts, which a page shows at once."""
        return self.rows[:OPEN]

    @property
    def folded(self) -> tuple[Row, ...]:
        """The others, which it folds."""
        return self.rows[OPEN:]


def groups(run: Run, past: Repetitions) -> tuple[Group, ...]:
    """Lay out what made the verdict of *run*, the gravest first."""
    return tuple(_group(a, run, past) for a in actions(run) if a.verdict is run.verdict)


def milder(run: Run) -> tuple[Group, ...]:
    """Lay out what *run* holds against other parts, which accuses none of them."""
    return tuple(_group(a, run, {}) for a in actions(run) if a.verdict < run.verdict)


def machine(run: Run) -> str:
    """Name the machine as its maker knows it; empty where DMI cannot be read."""
    for system in run.inventory.of_kind("system"):
        names = (system.facts.get("vendor"), system.facts.get("product"))
        serial = system.facts.get("serial")
        told = " ".join(filter(None, names))
        numbered = f"serial number {serial}" if serial else ""
        return ", ".join(filter(None, (told, numbered)))
    return ""


def _group(action: Action, run: Run, past: Repetitions) -> Group:
    return Group(
        mark=MARKS[action.verdict],
        action=NEXT[action.remedy],
        names=_names(action, run),
        rows=tuple(_row(part, run, past.get(part.where)) for part in action.parts),
    )


def _names(action: Action, run: Run) -> str:
    known = {part.id for part in run.inventory.parts}
    there = [part.where for part in action.parts if part.where in known]
    gone = [part.label for part in action.parts if part.where not in known]
    return ", ".join(filter(None, (run.inventory.names(there), *gone)))


def _row(part: Affected, run: Run, past: Repetition | None) -> Row:
    accused = part.verdict is Verdict.FAIL
    known = (past.facts if past else {}) | part.facts
    return Row(
        label=part.label,
        model=next((known[f] for f in MODEL if f in known), ""),
        id=part.where if part.where != part.label else "",
        facts=(*_facts(known), *([("first failed", _first(past))] if accused else [])),
        evidence=_evidence(part),
        past=(_counted(past),) if past and past.runs > 1 else (),
        ruled_out=tuple(ruled_out(part, run, past)) if accused else (),
    )


def _facts(known: Mapping[str, str]) -> Iterator[Fact]:
    for fact, name in FACTS.items():
        if fact in known:
            yield name, known[fact]


def _first(past: Repetition | None) -> str:
    return moment(past.first) if past and past.failed > 1 else "in this run"


def _counted(past: Repetition) -> str:
    return f"failed in {past.failed} of {past.runs} runs since {moment(past.since)}"


def _evidence(part: Affected) -> tuple[str, ...]:
    told = tuple(_told(c, part.verdict) for c in part.complaints[:SHOWN])
    left = len(part.complaints) - SHOWN
    return (*told, f"and {left} more") if left > 0 else told


def _told(complaint: Complaint, worst: Verdict) -> str:
    """Tell a complaint; what is milder than the *worst* of its part says so."""
    checks = ", ".join(complaint.checks)
    what = f"{checks}: {complaint.text}" if checks else complaint.text
    milder = complaint.verdict < worst
    return f"{what} ({MARKS[complaint.verdict].word})" if milder else what
