"""What to do about which part, ready to print: the table for the vendor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcverify.model import Fault, Verdict
from hpcverify.summary.actions import Action, AffectedPart, list_part_names
from hpcverify.summary.diagnosis import Diagnosis, name_checks
from hpcverify.summary.exclusions import Exclusions, Repetition
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.verdict import write_sentence
from hpcverify_reports.labels import ICONS, Icon, format_time, label_fact
from hpcverify_reports.sections import LabeledText

Repetitions = Mapping[str, Repetition]
"""How often each part has failed, by its id."""

MAX_SHOWN_FAULTS = 6
"""Faults listed with a part; all of them follow further below."""
MAX_OPEN_PARTS = 4
"""Parts of an action that a page shows unfolded."""
MODEL_FACTS = ("name", "model", "product")
TICKET_FACTS = ("pci_address", "serial", "board", "part_number", "vbios", "firmware", "driver")
"""Facts of a part, in the order of a ticket."""


@dataclass(frozen=True, slots=True)
class AffectedRow:
    """One part, how to identify it, and the evidence against it."""

    label: str
    model: str
    id: str
    facts: tuple[LabeledText, ...]
    diagnoses: tuple[str, ...]
    """What is wrong with it."""
    evidence: tuple[str, ...]
    """The faults behind that, unless one says the same."""
    past: tuple[str, ...]
    ruled_out: tuple[str, ...]
    not_ruled_out: str


@dataclass(frozen=True, slots=True)
class ActionGroup:
    """One action with its parts."""

    icon: Icon
    action: str
    names: str
    rows: tuple[AffectedRow, ...]

    @property
    def shown(self) -> tuple[AffectedRow, ...]:
        """The first parts, which a page shows unfolded."""
        return self.rows[:MAX_OPEN_PARTS]

    @property
    def folded(self) -> tuple[AffectedRow, ...]:
        """The others, which it folds."""
        return self.rows[MAX_OPEN_PARTS:]


def lay_out_actions(
    summary: RunSummary, past: Repetitions
) -> tuple[tuple[ActionGroup, ...], tuple[ActionGroup, ...]]:
    """
    Lay out the actions that the verdict of a run calls for, the gravest first.

    The second list has what the run observed on other parts, none of which failed.
    """
    exclusions = Exclusions(summary.run, (part for a in summary.actions for part in a.parts))
    diagnoses: dict[str, list[Diagnosis]] = {}
    for diagnosis in summary.diagnoses:
        for part_id in diagnosis.part_ids:
            diagnoses.setdefault(part_id, []).append(diagnosis)
    groups = [
        (
            action.verdict,
            ActionGroup(
                icon=ICONS[action.verdict],
                action=write_sentence(action),
                names=", ".join(
                    list_part_names([part.part_id for part in action.parts], summary.inventory)
                ),
                rows=tuple(_list_rows(action, diagnoses, exclusions, past)),
            ),
        )
        for action in summary.actions
    ]
    worst = summary.run.verdict
    return (
        tuple(group for verdict, group in groups if verdict is worst),
        tuple(group for verdict, group in groups if verdict < worst),
    )


def _list_rows(
    action: Action,
    diagnoses: Mapping[str, Sequence[Diagnosis]],
    exclusions: Exclusions,
    past: Repetitions,
) -> Iterator[AffectedRow]:
    """Yield a row for each part; parts with the same ERROR share one, as none of them is bad."""
    folded: set[str] = set()
    for part in action.parts:
        if part.part_id in folded:
            continue
        known = diagnoses.get(part.part_id, ())
        row = _build_row(part, known, exclusions, past.get(part.part_id))
        if known and known[0].verdict is Verdict.ERROR and len(known[0].part_ids) > 1:
            folded.update(known[0].part_ids)
            row = replace(row, label=known[0].names, id="", facts=())
        yield row


def _build_row(
    part: AffectedPart,
    diagnoses: Sequence[Diagnosis],
    exclusions: Exclusions,
    past: Repetition | None,
) -> AffectedRow:
    failed = part.verdict is Verdict.FAIL
    first = format_time(past.first) if past and past.failed > 1 else "in this run"
    known = (past.facts if past else {}) | part.facts
    lines = [
        ": ".join(filter(None, (name_checks(d.checks), d.text, _format_fix(d)))) for d in diagnoses
    ]
    return AffectedRow(
        label=part.label,
        model=next((known[f] for f in MODEL_FACTS if f in known), ""),
        id=part.part_id if part.part_id != part.label else "",
        facts=(
            *((label_fact(fact), known[fact]) for fact in TICKET_FACTS if fact in known),
            *([("first failed", first)] if failed else []),
        ),
        diagnoses=tuple(lines),
        evidence=tuple(line for line in _list_evidence(part) if line not in lines),
        past=(f"failed in {past.failed} of {past.runs} runs since {format_time(past.since)}",)
        if past and past.runs > 1
        else (),
        ruled_out=tuple(exclusions.list_ruled_out(part, past)) if failed else (),
        not_ruled_out=", ".join(exclusions.list_open_causes(part, past)) if failed else "",
    )


def _format_fix(diagnosis: Diagnosis) -> str:
    """Name the exact step of *diagnosis*, unless its text ends in it."""
    return "" if diagnosis.fix in diagnosis.text else f"fix: {diagnosis.fix}"


def _list_evidence(part: AffectedPart) -> tuple[str, ...]:
    shown = [_format_fault(c, part.verdict) for c in part.faults[:MAX_SHOWN_FAULTS]]
    left = len(part.faults) - len(shown)
    return (*shown, f"and {left} more") if left else tuple(shown)


def _format_fault(fault: Fault, worst: Verdict) -> str:
    """Print a fault, with its verdict if that is milder than the *worst*."""
    checks = name_checks(fault.checks)
    what = f"{checks}: {fault.text}" if checks else fault.text
    milder = fault.verdict < worst
    return f"{what} ({ICONS[fault.verdict].word})" if milder else what
