"""
What to do about which part: each part is listed under what its own complaints call for.

The strongest remedy of a run applies only to the parts that call for it. A GPU that only
needs a reset is not sent to the vendor because another one of the node is, and a part with
only a warning has not failed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from hpcverify import check
from hpcverify.model import (
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


class Complaint(Struct, frozen=True, kw_only=True):
    """What one check, or several for one cause, report against one part."""

    part_id: str
    checks: tuple[str, ...]
    name: str
    """The metric, or the code of the finding."""
    text: str
    """What was found, without the name of the part."""
    verdict: Verdict
    remedy: Remedy
    key: tuple[str, ...]
    """The same for complaints of one cause: the part, and the code if all checks share it,
    else the metric of the check or what was found."""
    distance: float = 0.0
    """How far past its limit, as a share of it; infinite for what is no value."""
    evidence: dict[str, str] = {}


class AffectedPart(Struct, frozen=True, kw_only=True):
    """A part with complaints, the worst first."""

    part_id: str = field(name="where")
    label: str
    facts: dict[str, str]
    """The known `IDENTITY_FACTS`, if necessary from an earlier run."""
    complaints: tuple[Complaint, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict of the worst complaint."""
        return self.complaints[0].verdict

    @property
    def remedy(self) -> Remedy:
        """The strongest remedy that complaints of that verdict call for."""
        return self.complaints[0].remedy

    @property
    def deciding(self) -> tuple[Complaint, ...]:
        """The complaints of the worst verdict."""
        return tuple(c for c in self.complaints if c.verdict is self.verdict)

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks of the deciding complaints."""
        return tuple(dict.fromkeys(name for c in self.deciding for name in c.checks))


class Action(Struct, frozen=True, kw_only=True):
    """One thing to do, and the parts to do it to."""

    verdict: Verdict
    remedy: Remedy
    parts: tuple[AffectedPart, ...]


def list_actions(run: Run) -> tuple[Action, ...]:
    """List what *run* calls for, the gravest first."""
    groups: dict[tuple[Verdict, Remedy], list[AffectedPart]] = {}
    for part in list_affected_parts(run):
        groups.setdefault((part.verdict, part.remedy), []).append(part)
    ordered = sorted(groups, key=lambda key: check.severity_sort_key(*key), reverse=True)
    return tuple(
        Action(
            verdict=verdict,
            remedy=remedy,
            parts=tuple(
                sorted(
                    groups[verdict, remedy],
                    key=lambda part: max(c.distance for c in part.deciding),
                    reverse=True,
                )
            ),
        )
        for verdict, remedy in ordered
    )


def list_affected_parts(run: Run) -> Iterator[AffectedPart]:
    """Yield every part with complaints in *run*, in the order of the inventory."""
    inventory = recall_gone_parts(run)
    by_part: dict[str, list[Complaint]] = {}
    found = [c for result in run.results for c in list_complaints(result, inventory)]
    for complaint in _merge_complaints([*_list_run_complaints(run), *found]):
        by_part.setdefault(complaint.part_id, []).append(complaint)
    places = {part.id: place for place, part in enumerate(inventory.parts)}
    for part_id in sorted(by_part, key=lambda part_id: places.get(part_id, len(places))):
        facts = next((p.facts for p in inventory.parts if p.id == part_id), {})
        yield AffectedPart(
            part_id=part_id,
            label=inventory.find_label(part_id),
            facts={name: facts[name] for name in IDENTITY_FACTS if name in facts},
            complaints=tuple(sorted(by_part[part_id], key=_complaint_sort_key, reverse=True)),
        )


def list_part_names(ids: Collection[str], inventory: Inventory) -> list[str]:
    """List what a person calls the parts *ids*; the node itself comes last."""
    names = inventory.list_names([part_id for part_id in ids if part_id != "node"])
    return [*names, "the node"] if "node" in ids else names


def recall_gone_parts(run: Run) -> Inventory:
    """Return the inventory of *run*, with missing parts as they were before."""
    return run.inventory.recall(f for result in run.results for f in result.findings)


def list_complaints(result: Result, inventory: Inventory) -> list[Complaint]:
    """List the complaints of *result* as the engine judged them, the gravest first."""
    verdict = effective_verdict(result)
    if verdict < Verdict.WARN:
        return []
    skipped = result.verdict is Verdict.SKIP
    found = [] if skipped else list(_list_part_complaints(result, inventory))
    if all(complaint.verdict < verdict for complaint in found):
        remedy = Remedy.FIX_CONFIGURATION if skipped else result.remedy
        judgement = check.Judgement(verdict=verdict, reason=result.reason, remedy=remedy)
        found.append(_build_complaint(result, "node", result.cause.value, judgement, inventory))
    return sorted(found, key=_complaint_sort_key, reverse=True)


def list_deciding(result: Result, inventory: Inventory) -> list[Complaint]:
    """List the complaints that decide what *result* counts as, the gravest first."""
    verdict = effective_verdict(result)
    return [c for c in list_complaints(result, inventory) if c.verdict is verdict]


def _list_part_complaints(result: Result, inventory: Inventory) -> Iterator[Complaint]:
    names = inventory.format_names
    for finding in result.findings:
        rule = result.rulings.get(finding.code)
        for judgement in check.list_judgements([finding], (), result.rulings, names):
            made = _build_complaint(result, finding.part_id, finding.code, judgement, inventory)
            key = _make_shared_key(finding) if rule and rule.shared else made.key
            if judgement.verdict > Verdict.SKIP:
                yield replace(made, evidence=finding.evidence, key=key)
    for item in result.measurements:
        limits = [limit for limit in result.limits if check.applies(limit, item)]
        for judgement in check.list_judgements([item], limits, {}, names):
            made = _build_complaint(result, item.part_id, item.name, judgement, inventory)
            if judgement.verdict > Verdict.SKIP:
                beyond = 0 < judgement.distance < math.inf
                key = (item.part_id, result.check, item.name) if beyond else made.key
                yield replace(made, key=key)
    yield from _list_shortfall_complaints(result, inventory)
    for limit in () if result.shortfalls else find_unmet_limits(result):
        for judgement in check.list_judgements((), [limit], {}):
            yield _build_complaint(
                result, limit.part_id or "node", limit.name, judgement, inventory
            )


def _list_shortfall_complaints(result: Result, inventory: Inventory) -> Iterator[Complaint]:
    parts = {part.id for part in inventory.parts} - {"node"}  # it is one on real machines
    found = {finding.code for finding in result.findings}
    for short in result.shortfalls:
        if short.code in found and (short.part_id == "node" or short.part_id not in parts):
            continue  # the finding says which part it is
        judgement = check.Judgement(
            verdict=Verdict.ERROR, reason=short.reason, remedy=short.remedy, distance=math.inf
        )
        code = short.code or short.cause.value
        made = _build_complaint(result, short.part_id, code, judgement, inventory)
        # It may be that of a worker without a part, such as the telemetry.
        part_id = short.part_id if short.part_id in parts else "node"
        key = _make_shared_key(Finding(code, part_id, "")) if short.code else (part_id, made.text)
        yield replace(made, part_id=part_id, key=key)


def pair_with_limits(result: Result) -> list[tuple[Measurement, Limit]]:
    """Pair each measurement of *result* with each limit that judges it."""
    limits = [limit for limit in result.limits if not limit.noisy]
    return [(m, lim) for m in result.measurements for lim in limits if check.applies(lim, m)]


def find_unmet_limits(result: Result) -> Iterator[Limit]:
    """Yield the limits of *result* without a measurement."""
    for limit in result.limits:
        if not any(check.applies(limit, item) for item in result.measurements):
            yield limit


def _make_shared_key(finding: Finding) -> tuple[str, ...]:
    """Make the key of a finding that means the same in all checks; on the node, by evidence."""
    evidence = finding.evidence if finding.part_id == "node" else {}
    return (finding.part_id, finding.code, *(f"{name}={value}" for name, value in evidence.items()))


def _build_complaint(
    result: Result, part_id: str, name: str, judgement: check.Judgement, inventory: Inventory
) -> Complaint:
    text = judgement.reason.removeprefix(f"{inventory.find_label(part_id)}: ")
    return Complaint(
        part_id=part_id,
        checks=(result.check,),
        name=name,
        text=text,
        verdict=cap_beta_verdict(judgement.verdict, result.maturity),
        remedy=_find_effective_remedy(judgement, result),
        key=(part_id, text),
        distance=judgement.distance,
    )


def _find_effective_remedy(judgement: check.Judgement, result: Result) -> Remedy:
    """Return what a complaint of *result* calls for; a check in beta only asks to inspect."""
    capped = cap_beta_verdict(judgement.verdict, result.maturity) is not judgement.verdict
    return Remedy.INSPECT if capped or judgement.remedy is Remedy.NONE else judgement.remedy


def map_remedies(run: Run) -> dict[str, Remedy]:
    """Map each part with complaints in *run* to the remedy that it is listed under."""
    return {part.part_id: action.remedy for action in list_actions(run) for part in action.parts}


def find_common_remedy(
    result: Result, inventory: Inventory, remedies: Mapping[str, Remedy]
) -> Remedy | None:
    """Return the one of *remedies* that all parts of *result* share; None if they differ."""
    shared = {remedies[complaint.part_id] for complaint in list_complaints(result, inventory)}
    return None if len(shared) > 1 else next(iter(shared), Remedy.NONE)


def is_all_skipped(run: Run) -> bool:
    """Whether *run* came to its end and nothing in it applied to the node."""
    skips = [effective_verdict(result) is Verdict.SKIP for result in run.results]
    return run.complete and bool(skips) and all(skips)


def _list_run_complaints(run: Run) -> Iterator[Complaint]:
    """Yield what makes the run itself an ERROR, whatever its checks say."""
    if not run.results:
        text, remedy = NOTHING_RAN_REASON, Remedy.RERUN
    elif not run.complete:
        text, remedy = INTERRUPTED_REASON, Remedy.RERUN
    elif is_all_skipped(run):
        text, remedy = ALL_SKIPPED_REASON, Remedy.FIX_CONFIGURATION
    else:
        return
    yield Complaint(
        part_id="node",
        checks=(),
        name="incomplete",
        text=text,
        verdict=Verdict.ERROR,
        remedy=remedy,
        key=("node", text),
    )


def _merge_complaints(found: Sequence[Complaint]) -> list[Complaint]:
    """Merge the complaints of one cause; of several rounds keep the worst."""
    kept: dict[tuple[str, ...], Complaint] = {}
    for one in found:
        other = kept.setdefault(one.key, one)
        kept[one.key] = replace(
            max(other, one, key=_complaint_sort_key),
            checks=tuple(dict.fromkeys((*other.checks, *one.checks))),
            evidence=other.evidence | one.evidence,
        )
    return list(kept.values())


def _complaint_sort_key(complaint: Complaint) -> tuple[Verdict, int, float]:
    return check.severity_sort_key(complaint.verdict, complaint.remedy, complaint.distance)
