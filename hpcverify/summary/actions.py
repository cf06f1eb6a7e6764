"""
What to do about which part: each part is listed under what its own faults call for.

The strongest remedy of a run applies only to the parts that call for it. A GPU that only
needs a reset is not sent to the vendor because another one of the node is, and a part with
only a warning has not failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpcverify import check
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
"""Facts by which a vendor or a technician identifies a part, in the order of a ticket."""
INTERRUPTED_REASON = "the run was interrupted before every check had run"
NOTHING_RAN_REASON = "no check was run"
ALL_SKIPPED_REASON = "every check was skipped"


class AffectedPart(Struct, frozen=True, kw_only=True):
    """A part with faults, the worst first."""

    part_id: str
    label: str
    facts: dict[str, str]
    """The known `IDENTITY_FACTS`, if necessary from an earlier run."""
    faults: tuple[Fault, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the worst fault."""
        return self.faults[0].verdict

    @property
    def remedy(self) -> Remedy:
        """The strongest remedy that faults of that verdict call for."""
        return self.faults[0].remedy

    @property
    def fix(self) -> str:
        """The exact step for that remedy; empty if none is known."""
        return self.faults[0].fix

    @property
    def deciding(self) -> tuple[Fault, ...]:
        """The faults of the worst verdict."""
        return tuple(c for c in self.faults if c.verdict is self.verdict)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks of the deciding faults."""
        return tuple(dict.fromkeys(name for c in self.deciding for name in c.checks))


class Action(Struct, frozen=True, kw_only=True):
    """One thing to do, and the parts to do it to."""

    verdict: Verdict
    remedy: Remedy
    parts: tuple[AffectedPart, ...]


def list_actions(run: Run) -> tuple[Action, ...]:
    """List what *run* calls for, the gravest first."""
    return group_actions(list_affected_parts(run))


def group_actions(parts: Iterable[AffectedPart]) -> tuple[Action, ...]:
    """Group *parts* by what they call for, the gravest first."""
    groups: dict[tuple[Verdict, Remedy], list[AffectedPart]] = {}
    for part in parts:
        groups.setdefault((part.verdict, part.remedy), []).append(part)
    ordered = sorted(groups, key=lambda key: check.severity_sort_key(*key), reverse=True)
    return tuple(
        Action(
            verdict=verdict,
            remedy=remedy,
            parts=tuple(
                sorted(
                    groups[verdict, remedy],
                    key=lambda part: max(map(check.make_severity_key, part.deciding)),
                    reverse=True,
                )
            ),
        )
        for verdict, remedy in ordered
    )


def list_affected_parts(run: Run) -> Iterator[AffectedPart]:
    """Yield every part with faults in *run*, in the order of the inventory."""
    inventory = recall_gone_parts(run)
    by_part: dict[str, list[Fault]] = {}
    found = [c for result in run.results for c in list_faults(result)]
    merged = _merge_faults([*_list_run_faults(run), *found])
    for fault in _blame_parts(merged):
        by_part.setdefault(fault.part_id, []).append(fault)
    # The first of several with one id, as `Inventory.find_part`.
    parts = {part.id: part for part in reversed(inventory.parts)}
    places = {part.id: place for place, part in enumerate(inventory.parts)}
    for part_id in sorted(by_part, key=lambda part_id: places.get(part_id, len(places))):
        part = parts.get(part_id)
        facts = part.facts if part else {}
        yield AffectedPart(
            part_id=part_id,
            label=part.label if part else part_id,
            facts={name: facts[name] for name in IDENTITY_FACTS if name in facts},
            faults=tuple(sorted(by_part[part_id], key=check.make_severity_key, reverse=True)),
        )


def list_part_names(ids: Collection[str], inventory: Inventory) -> list[str]:
    """List what a person calls the parts *ids*; the node itself comes last."""
    names = inventory.list_names([part_id for part_id in ids if part_id != "node"])
    return [*names, "the node"] if "node" in ids else names


def recall_gone_parts(run: Run) -> Inventory:
    """Return the inventory of *run*, with missing parts as they were before."""
    return run.inventory.recall(f for result in run.results for f in result.findings)


def list_faults(result: Result) -> list[Fault]:
    """List the faults of *result* as they count for the node, the gravest first."""
    if effective_verdict(result) < Verdict.WARN:
        return []
    faults = (_weigh(c, result) for c in result.faults if c.verdict > Verdict.SKIP)
    return sorted(faults, key=check.make_severity_key, reverse=True)


def _weigh(fault: Fault, result: Result) -> Fault:
    """
    Cap *fault* if the check is in beta; what has no remedy is to be inspected.

    It is one of the check of *result*, whatever names a document from a node gives it.
    """
    verdict = cap_beta_verdict(fault.verdict, result.maturity)
    keeps = verdict is fault.verdict and fault.remedy is not Remedy.NONE
    remedy = fault.remedy if keeps else Remedy.INSPECT
    return replace(fault, checks=(result.check,), verdict=verdict, remedy=remedy)


def list_deciding(result: Result) -> list[Fault]:
    """List the faults that decide what *result* counts as, the gravest first."""
    verdict = effective_verdict(result)
    return [c for c in list_faults(result) if c.verdict is verdict]


class FaultIndex:
    """The faults of a result, by what they are about."""

    def __init__(self, result: Result) -> None:
        self._rulings = result.rulings
        self._faults: dict[tuple[object, ...], dict[Limit | None, Fault]] = {}
        for c in result.faults:
            subject = c.text if c.kind is FaultKind.FINDING else (c.value,)
            alike = self._faults.setdefault((c.name, c.part_id, subject), {})
            verdict = cap_beta_verdict(c.verdict, result.maturity)
            alike.setdefault(c.limit, replace(c, verdict=verdict))

    def find(self, item: Measurement | Finding) -> list[Fault]:
        """Find the faults about *item*, the gravest first; one for each limit."""
        if isinstance(item, Measurement):
            alike = self._faults.get((item.name, item.part_id, (item.value,)), {})
            return [c for limit, c in alike.items() if limit]
        text = check.write_finding_text(item, self._rulings)
        return [*self._faults.get((item.code, item.part_id, text), {}).values()]

    def rank(self, item: Measurement | Finding) -> tuple[Verdict, int, float]:
        """Rank *item* by the gravest fault about it; without one it passed."""
        keys = map(check.make_severity_key, self.find(item))
        return max(keys, default=check.severity_sort_key(Verdict.PASS, Remedy.NONE))


def make_cause_key(fault: Fault) -> tuple[str, ...]:
    """
    Make a key that is the same for faults of one cause.

    It is the part, and the code if all checks share it (on the node itself also the evidence),
    else the metric of the check or what was found.
    """
    if fault.shared:
        evidence = fault.evidence if fault.part_id == "node" else {}
        marks = (f"{name}={value}" for name, value in evidence.items())
        return (fault.part_id, fault.name, *marks)
    if fault.kind is FaultKind.OUTSIDE and fault.distance is not None:
        return (fault.part_id, *fault.checks, fault.name)
    return (fault.part_id, fault.text)


def pair_with_limits(result: Result) -> list[tuple[Measurement, Limit]]:
    """Pair each measurement of *result* with each limit that judges it."""
    limits = check.LimitIndex(limit for limit in result.limits if not limit.noisy)
    return [(item, limit) for item in result.measurements for limit in limits.find(item)]


def find_common_remedy(result: Result, remedies: Mapping[str, Remedy]) -> Remedy | None:
    """Return the one of *remedies* that all parts of *result* share; None if they differ."""
    shared = {remedies[fault.part_id] for fault in list_faults(result)}
    return None if len(shared) > 1 else next(iter(shared), Remedy.NONE)


def is_all_skipped(run: Run) -> bool:
    """Whether *run* came to its end and nothing in it applied to the node."""
    skips = [effective_verdict(result) is Verdict.SKIP for result in run.results]
    return run.complete and bool(skips) and all(skips)


def _list_run_faults(run: Run) -> Iterator[Fault]:
    """Yield what makes the run itself an ERROR, whatever its checks say."""
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
        checks=(),
        name="incomplete",
        text=text,
        verdict=Verdict.ERROR,
        remedy=remedy,
        distance=0.0,
    )


def _blame_parts(faults: Sequence[Fault]) -> Iterator[Fault]:
    """
    Yield the *faults*, without those about the node that its parts have too.

    A check of all GPUs at once says of the node what the others say of each GPU.
    """
    checks: dict[tuple[object, ...], tuple[str, ...]] = {}
    on_parts = {_make_twin_key(c) for c in faults if c.shared and c.part_id != "node"}
    for fault in faults:
        if fault.part_id == "node" and _make_twin_key(fault) in on_parts:
            checks[_make_twin_key(fault)] = fault.checks
    for fault in faults:
        more = checks.get(_make_twin_key(fault), ()) if fault.shared else ()
        if not more:
            yield fault
        elif fault.part_id != "node":
            yield replace(fault, checks=tuple(dict.fromkeys((*fault.checks, *more))))


def _make_twin_key(fault: Fault) -> tuple[object, ...]:
    return fault.name, fault.text, fault.verdict, fault.shared


def _merge_faults(faults: Sequence[Fault]) -> list[Fault]:
    """Merge the faults of one cause into the worst; its check comes first."""
    groups: dict[tuple[str, ...], list[Fault]] = {}
    for fault in faults:
        groups.setdefault(make_cause_key(fault), []).append(fault)
    ordered = (
        sorted(alike, key=check.make_severity_key, reverse=True) for alike in groups.values()
    )
    return [
        replace(
            alike[0],
            checks=tuple(dict.fromkeys(name for c in alike for name in c.checks)),
            evidence={name: text for c in alike for name, text in c.evidence.items()},
        )
        for alike in ordered
    ]
