"""What to do about which part, ready to print: the table for the vendor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcverify.model import Verdict
from hpcverify.summary.diagnosis import Diagnosis, describe_fault, name_checks
from hpcverify.summary.exclusions import Exclusions, Repetition, get_facts
from hpcverify.summary.faults import PartFaults, list_part_names
from hpcverify.summary.run_summary import RunSummary
from hpcverify.summary.verdict import write_step
from hpcverify_reports.labels import ICONS, Icon, LabeledText, format_time, label_fact

Repetitions = Mapping[str, Repetition]
"""How often each part has failed, by its id."""

MAX_SHOWN_FAULTS = 6
"""Faults listed with a part; all of them follow further below."""
MODEL_FACTS = ("name", "model", "product")
TICKET_FACTS = ("pci_address", "serial", "board", "part_number", "vbios", "firmware", "driver")
"""Facts of a part, in the order of a ticket."""


@dataclass(frozen=True, slots=True)
class TicketPart:
    """One part as in a ticket: how to identify it, and what is known of its faults."""

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
class TicketStep:
    """One thing to do, and the parts to do it to."""

    icon: Icon
    action: str
    names: str
    rows: tuple[TicketPart, ...]


def lay_out_steps(
    summary: RunSummary, past: Repetitions
) -> tuple[list[TicketStep], list[TicketStep]]:
    """
    Lay out the steps that the verdict of a run calls for, the gravest first.

    The second list has what the run observed on other parts, none of which failed.
    """
    exclusions = Exclusions(summary.run, summary.parts)
    diagnoses: dict[str, list[Diagnosis]] = {}
    for diagnosis in summary.diagnoses:
        for part_id in diagnosis.part_ids:
            diagnoses.setdefault(part_id, []).append(diagnosis)
    demanded, milder = list[TicketStep](), list[TicketStep]()
    for step, parts in summary.steps.items():
        ids, rows, folded = [part[0].part_id for part in parts], list[TicketPart](), set[str]()
        for part_id, part in zip(ids, parts, strict=True):
            known = diagnoses.get(part_id, ())
            if part_id not in folded:
                row = _build_row(part, known, summary, exclusions, past.get(part_id))
                # Parts with the same ERROR share a row, as none of them is bad.
                if known and known[0].verdict is Verdict.ERROR and len(known[0].part_ids) > 1:
                    folded.update(known[0].part_ids)
                    row = replace(row, label=known[0].names, id="", facts=())
                rows.append(row)
        if step[0] <= summary.run.verdict:
            names = ", ".join(list_part_names(ids, summary.inventory))
            ticket = TicketStep(ICONS[step[0]], write_step(step), names, tuple(rows))
            (demanded if step[0] is summary.run.verdict else milder).append(ticket)
    return demanded, milder


def _build_row(
    part: PartFaults,
    diagnoses: Sequence[Diagnosis],
    summary: RunSummary,
    exclusions: Exclusions,
    past: Repetition | None,
) -> TicketPart:
    part_id, failed = part[0].part_id, part[0].verdict is Verdict.FAIL
    label = summary.inventory.find_label(part_id)
    ruled_out, left = exclusions.weigh(part, past) if failed else ([], [])
    first = format_time(past.first) if past and past.failed > 1 else "in this run"
    known = {**(past.facts if past else {}), **get_facts(part_id, summary.inventory)}
    lines = list[str]()
    for diagnosis in diagnoses:
        # The exact step, unless the text ends in it.
        fix = "" if diagnosis.fix in diagnosis.text else f"fix: {diagnosis.fix}"
        texts = name_checks(diagnosis.checks), diagnosis.text, fix
        lines.append(": ".join(filter(None, texts)))
    return TicketPart(
        label=label,
        model=next((known[f] for f in MODEL_FACTS if f in known), ""),
        id=part_id if part_id != label else "",
        facts=(
            *((label_fact(fact), known[fact]) for fact in TICKET_FACTS if fact in known),
            *([("first failed", first)] if failed else []),
        ),
        diagnoses=tuple(lines),
        evidence=tuple(line for line in _list_evidence(part) if line not in lines),
        past=(f"failed in {past.failed} of {past.runs} runs since {format_time(past.since)}",)
        if past and past.runs > 1
        else (),
        ruled_out=tuple(ruled_out),
        not_ruled_out=", ".join(left),
    )


def _list_evidence(part: PartFaults) -> Iterator[str]:
    """Yield the gravest faults of *part*, each with its verdict if that is not the worst."""
    for fault in part[:MAX_SHOWN_FAULTS]:
        what = ": ".join(filter(None, (name_checks(fault.checks), describe_fault(fault))))
        if fault.limit and fault.limit.source not in what:
            what += f"; limit: {fault.limit.source}"
        milder = fault.verdict < part[0].verdict
        yield f"{what} ({ICONS[fault.verdict].word})" if milder else what
    if len(part) > MAX_SHOWN_FAULTS:
        yield f"and {len(part) - MAX_SHOWN_FAULTS} more"
