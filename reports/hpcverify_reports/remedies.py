"""What to do about which part, ready to print: the table that a vendor is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcverify.model import Run, Verdict
from hpcverify.summary.actions import (
    Action,
    AffectedPart,
    Complaint,
    list_actions,
    recall_gone_parts,
)
from hpcverify.summary.exclusions import Repetition, list_ruled_out
from hpcverify.summary.verdict import REMEDY_SENTENCES, list_deciding_actions
from hpcverify_reports.labels import ICONS, Icon, format_time, label_fact
from hpcverify_reports.sections import Fact

Repetitions = Mapping[str, Repetition]
"""How often each part has failed, by its id."""

MAX_SHOWN_COMPLAINTS = 6
"""Complaints of one part that stand beside it; all are told further below."""

MAX_OPEN_PARTS = 4
"""Parts of an action that a page does not fold."""

MODEL_FACTS = ("name", "model", "product")
TICKET_FACTS = ("pci_address", "serial", "board", "part_number", "vbios", "firmware", "driver")
"""Facts of a part in the order in which they are told."""


@dataclass(frozen=True, slots=True)
class AffectedRow:
    """One part, how to find it, and what speaks against it."""

    label: str
    model: str
    id: str
    facts: tuple[Fact, ...]
    evidence: tuple[str, ...]
    past: tuple[str, ...]
    ruled_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ActionGroup:
    """One action with its parts."""

    icon: Icon
    action: str
    names: str
    rows: tuple[AffectedRow, ...]

    @property
    def shown(self) -> tuple[AffectedRow, ...]:
        """The first parts, which a page shows at once."""
        return self.rows[:MAX_OPEN_PARTS]

    @property
    def folded(self) -> tuple[AffectedRow, ...]:
        """The others, which it folds."""
        return self.rows[MAX_OPEN_PARTS:]


def group_demanded(run: Run, past: Repetitions) -> tuple[ActionGroup, ...]:
    """Lay out what made the verdict of *run*, the gravest first."""
    return tuple(_build_group(action, run, past) for action in list_deciding_actions(run))


def group_milder(run: Run) -> tuple[ActionGroup, ...]:
    """Lay out what *run* holds against other parts, which accuses none of them."""
    return tuple(_build_group(a, run, {}) for a in list_actions(run) if a.verdict < run.verdict)


def describe_machine(run: Run) -> str:
    """Name the machine as its maker knows it; empty where DMI cannot be read."""
    for system in run.inventory.of_kind("system"):
        names = (system.facts.get("vendor"), system.facts.get("product"))
        serial = system.facts.get("serial")
        told = " ".join(filter(None, names))
        numbered = f"serial number {serial}" if serial else ""
        return ", ".join(filter(None, (told, numbered)))
    return ""


def _build_group(action: Action, run: Run, past: Repetitions) -> ActionGroup:
    return ActionGroup(
        icon=ICONS[action.verdict],
        action=REMEDY_SENTENCES[action.remedy],
        names=recall_gone_parts(run).format_names([part.where for part in action.parts]),
        rows=tuple(_build_row(part, run, past.get(part.where)) for part in action.parts),
    )


def _build_row(part: AffectedPart, run: Run, past: Repetition | None) -> AffectedRow:
    accused = part.verdict is Verdict.FAIL
    known = (past.facts if past else {}) | part.facts
    return AffectedRow(
        label=part.label,
        model=next((known[f] for f in MODEL_FACTS if f in known), ""),
        id=part.where if part.where != part.label else "",
        facts=(
            *((label_fact(fact), known[fact]) for fact in TICKET_FACTS if fact in known),
            *([("first failed", _format_first_failure(past))] if accused else []),
        ),
        evidence=_list_evidence(part),
        past=(_count_failures(past),) if past and past.runs > 1 else (),
        ruled_out=tuple(list_ruled_out(part, run, past)) if accused else (),
    )


def _format_first_failure(past: Repetition | None) -> str:
    return format_time(past.first) if past and past.failed > 1 else "in this run"


def _count_failures(past: Repetition) -> str:
    return f"failed in {past.failed} of {past.runs} runs since {format_time(past.since)}"


def _list_evidence(part: AffectedPart) -> tuple[str, ...]:
    told = tuple(_format_complaint(c, part.verdict) for c in part.complaints[:MAX_SHOWN_COMPLAINTS])
    left = len(part.complaints) - MAX_SHOWN_COMPLAINTS
    return (*told, f"and {left} more") if left > 0 else told


def _format_complaint(complaint: Complaint, worst: Verdict) -> str:
    """Tell a complaint; what is milder than the *worst* of its part says so."""
    checks = ", ".join(complaint.checks)
    what = f"{checks}: {complaint.text}" if checks else complaint.text
    milder = complaint.verdict < worst
    return f"{what} ({ICONS[complaint.verdict].word})" if milder else what
