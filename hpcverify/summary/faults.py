"""
The faults of a run as they count for its node: one for each cause, part by part.

A part is listed with its own faults only. A GPU that only needs a reset is not sent to the
vendor because another one of the node is, and a part with only a warning has not failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from hpcverify.check import LimitIndex, make_result_fault, make_severity_key
from hpcverify.model import (
    Fault,
    FaultKind,
    Finding,
    Inventory,
    Limit,
    Measurement,
    Remedy,
    Result,
    Run,
    Verdict,
    cap_beta_verdict,
    effective_verdict,
)

INTERRUPTED_REASON = "the run was interrupted before every check had run"
NOTHING_RAN_REASON = "no check was run"
ALL_SKIPPED_REASON = "every check was skipped"

PartFaults = Sequence[Fault]
"""The faults of one part, the worst first: it decides the next step."""
Step = tuple[Verdict, Remedy]
"""What parts call for, and how bad they are."""
Subject = tuple[str, str, float | None]
"""What a fault is about: a metric or a code, the part, and the value of the metric."""


def list_faults(result: Result) -> list[Fault]:
    """List the faults of *result* as they count for the node, the worst first."""
    verdict = effective_verdict(result)
    if verdict < Verdict.WARN:
        return []
    faults = [_weigh(fault, result) for fault in result.faults if fault.verdict > Verdict.SKIP]
    if all(fault.verdict < verdict for fault in faults):  # others wrote the document
        whole = make_result_fault(result, max(result.verdict, verdict), result.remedy)
        faults.append(_weigh(whole, result))
    return sorted(faults, key=make_severity_key, reverse=True)


def _weigh(fault: Fault, result: Result) -> Fault:
    """
    Cap *fault* if the check is in beta; what has no remedy is to be inspected.

    It is one of the check of *result*, whatever names a document from a node gives it.
    """
    verdict = cap_beta_verdict(fault.verdict, result.maturity)
    keeps = verdict is fault.verdict and fault.remedy is not Remedy.NONE
    remedy = fault.remedy if keeps else Remedy.INSPECT
    return replace(fault, check=result.check, also=(), verdict=verdict, remedy=remedy)


def list_deciding(result: Result) -> list[Fault]:
    """List the faults that decide what *result* counts as, the worst first."""
    return [f for f in list_faults(result) if f.verdict is effective_verdict(result)]


def index_faults(result: Result) -> dict[Subject, Fault]:
    """Index the gravest fault about each measurement and finding of *result*, in their order."""
    index: dict[Subject, Fault] = {}
    for fault in list_faults(result):
        index.setdefault((fault.code, fault.part_id, fault.value), fault)
    return index


def get_subject(item: Measurement | Finding) -> Subject:
    """Return the key of *item* in `index_faults`."""
    if isinstance(item, Finding):
        return item.code, item.part_id, None
    return item.name, item.part_id, item.value


def list_run_faults(run: Run) -> list[Fault]:
    """
    List the faults of *run* as they count for the node, one for each cause.

    Of one cause the worst stays, with all checks. A check of all GPUs at once reports on the
    node what the others report on each GPU: that is no fault of the node.
    """
    causes: dict[tuple[str, ...], list[Fault]] = {}
    found = (fault for result in run.results for fault in list_faults(result))
    for fault in (*_list_own_faults(run), *found):
        causes.setdefault(make_cause_key(fault), []).append(fault)
    merged: list[Fault] = []
    for alike in causes.values():
        alike.sort(key=make_severity_key, reverse=True)
        evidence = {name: text for fault in alike for name, text in fault.evidence.items()}
        merged.append(replace(alike[0], also=list_checks(alike)[1:], evidence=evidence))
    shared = [((f.code, f.text, f.verdict), f) for f in merged if f.shared]
    on_parts = {twin for twin, fault in shared if fault.part_id != "node"}
    checks = {t: f.checks for t, f in shared if f.part_id == "node" and t in on_parts}
    kept: list[Fault] = []
    for fault in merged:
        more = checks.get((fault.code, fault.text, fault.verdict), ()) if fault.shared else ()
        if not more:
            kept.append(fault)
        elif fault.part_id != "node":
            kept.append(replace(fault, also=tuple(dict.fromkeys((*fault.checks, *more)))[1:]))
    return kept


def _list_own_faults(run: Run) -> Iterator[Fault]:
    """Yield what makes the run itself an ERROR, whatever its checks found."""
    if not run.results:
        text, remedy = NOTHING_RAN_REASON, Remedy.RERUN
    elif not run.complete:
        text, remedy = INTERRUPTED_REASON, Remedy.RERUN
    elif is_all_skipped(run):
        text, remedy = ALL_SKIPPED_REASON, Remedy.FIX_CONFIGURATION
    else:
        return
    yield Fault(
        kind=FaultKind.SHORTFALL,
        part_id="node",
        check="",
        code="incomplete",
        text=text,
        verdict=Verdict.ERROR,
        remedy=remedy,
        distance=0.0,
    )


def is_all_skipped(run: Run) -> bool:
    """Whether *run* came to its end and nothing in it applied to the node."""
    skips = [effective_verdict(result) is Verdict.SKIP for result in run.results]
    return run.complete and bool(skips) and all(skips)


def make_cause_key(fault: Fault) -> tuple[str, ...]:
    """
    Make a key that is the same for faults of one cause.

    It is the part, and the code if all checks share it (on the node itself also the evidence),
    else the metric of the check or what was found.
    """
    if fault.shared:
        evidence = fault.evidence if fault.part_id == "node" else {}
        marks = (f"{name}={value}" for name, value in evidence.items())
        return (fault.part_id, fault.code, *marks)
    if fault.kind is FaultKind.OUTSIDE and fault.distance is not None:
        return (fault.part_id, fault.check, fault.code)
    return (fault.part_id, fault.text)


def group_by_part(faults: Iterable[Fault], inventory: Inventory) -> dict[str, PartFaults]:
    """Group *faults* by part, in the order of *inventory*; those of a part the worst first."""
    by_part: dict[str, list[Fault]] = {}
    for fault in sorted(faults, key=make_severity_key, reverse=True):
        by_part.setdefault(fault.part_id, []).append(fault)
    places = {part.id: place for place, part in enumerate(inventory.parts)}
    return {i: by_part[i] for i in sorted(by_part, key=lambda i: places.get(i, len(places)))}


def group_by_step(parts: Iterable[PartFaults]) -> dict[Step, list[PartFaults]]:
    """Group *parts* by what they call for: the gravest step first, and in it the worst part."""
    groups: dict[Step, list[PartFaults]] = {}
    for part in sorted(parts, key=lambda part: make_severity_key(part[0]), reverse=True):
        groups.setdefault((part[0].verdict, part[0].remedy), []).append(part)
    return groups


def choose_deciding(part: PartFaults) -> PartFaults:
    """Choose the faults of a *part* that have its worst verdict."""
    return [fault for fault in part if fault.verdict is part[0].verdict]


def list_checks(faults: Iterable[Fault]) -> tuple[str, ...]:
    """List the checks of *faults*, each once."""
    return tuple(dict.fromkeys(name for fault in faults for name in fault.checks))


def find_common_remedy(result: Result, parts: Mapping[str, PartFaults]) -> Remedy | None:
    """Return the remedy that all parts of *result* call for; None if they differ."""
    shared = {parts[fault.part_id][0].remedy for fault in list_faults(result)}
    return None if len(shared) > 1 else next(iter(shared), Remedy.NONE)


def list_part_names(ids: Collection[str], inventory: Inventory) -> list[str]:
    """List what a person calls the parts *ids*; the node itself comes last."""
    names = inventory.list_names([part_id for part_id in ids if part_id != "node"])
    return [*names, "the node"] if "node" in ids else names


def recall_gone_parts(run: Run) -> Inventory:
    """Return the inventory of *run*, with missing parts as they were before."""
    return run.inventory.recall(f for result in run.results for f in result.findings)


def pair_with_limits(result: Result) -> list[tuple[Measurement, Limit]]:
    """Pair each measurement of *result* with each limit that judges it."""
    limits = LimitIndex(limit for limit in result.limits if not limit.noisy)
    return [(item, limit) for item in result.measurements for limit in limits.find(item)]
