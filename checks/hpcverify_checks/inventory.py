"""
Compare what the node is made of with what it was made of in an earlier run.

Absence means loss only if we can see: while the driver is not loaded or a cgroup
hides GPUs, nothing is said to be missing and the run could not tell (ERROR). Parts
go by serial number or UUID, so that one which was swapped for a like one is told
from one that is gone, and one that only moved to another index is the same.

Software and firmware that changed are listed and pass: an upgrade says nothing of
health, but whoever reads the next slow GEMM wants to know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from msgspec.structs import replace

from hpcverify.check import LISTED, NOT_SET_UP, Check, Context, Metric, Params, Placement
from hpcverify.limits.specs import explain_unknown, find_spec
from hpcverify.model import (
    FORMER_LABEL,
    CheckItem,
    Coverage,
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Part,
    Remedy,
    Verdict,
)
from hpcverify.telemetry import problems
from hpcverify_checks.common.mounts import MOUNT_KIND, compare_mounts

COUNTED_KINDS = {"gpus": "gpu", "disks": "disk", "nics": "nic", "dimms": "dimm"}

SOFTWARE_FACTS = frozenset({"bios", "driver", "firmware", "kernel", "microcode", "os", "vbios"})
"""Facts that change when somebody installs something."""

MAX_MEMORY_LOSS = 0.02
"""Of the memory, below which a difference is the kernel's and no module's: the
smallest module of a node with 32 alike is 3 % of it."""

FIXED_KINDS = frozenset({"gpu", "disk", "nic", "dimm"})
"""Kinds of parts that nobody takes out of a running node by the way."""


def measure(ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Count the parts, and yield what is amiss and what changed."""
    now = ctx.inventory
    yield from _count_parts(now)
    yield from (_identify_problem(p, ctx.previous) for p in now.problems)
    # A probe that failed saw nothing: what it did not see is not gone.
    if ctx.previous and not any(p.code == "probe_failed" for p in now.problems):
        yield from compare(now, ctx.previous)
    yield Coverage("node", describe_coverage(ctx))
    yield from _list_unknown_gpus(now)


def describe_coverage(ctx: Context) -> str:
    """Say how much was compared with what."""
    found = f"{len(ctx.inventory.parts)} parts"
    if ctx.previous is None:
        return f"{found} listed; no earlier run to compare with"
    return f"{found} compared with {len(ctx.previous.parts)} of the earlier run"


def _list_unknown_gpus(inventory: Inventory) -> Iterator[Coverage]:
    """Say which GPUs are of a part that no data sheet here describes."""
    for gpu in inventory.of_kind("gpu"):
        if "name" in gpu.facts and find_spec(gpu) is None:
            yield Coverage(
                gpu.id, f"{explain_unknown(gpu)}: judged against its siblings and its own past"
            )


def _count_parts(inventory: Inventory) -> Iterator[Measurement]:
    """Count the parts by kind; a GPU that only the PCI bus knows is none."""
    for name, kind in COUNTED_KINDS.items():
        usable = [p for p in inventory.of_kind(kind) if not _is_unidentified(p)]
        yield Measurement(name, len(usable))
    for cpu in inventory.of_kind("cpu"):
        if "threads" in cpu.facts:
            yield Measurement("cpus", float(cpu.facts["threads"]), "", cpu.id)
    for memory in inventory.of_kind("memory"):
        if "total" in memory.facts:
            yield Measurement("memory", _read_gibibytes(memory), "GiB", memory.id)


def _read_gibibytes(memory: Part) -> float:
    return float(memory.facts["total"].partition(" ")[0])


def _is_unidentified(part: Part) -> bool:
    """Whether *part* is a GPU that goes by its address, as nothing else is known."""
    return part.kind == "gpu" and part.id == part.facts.get("pci_address")


def _identify_problem(problem: Finding, previous: Inventory | None) -> Finding:
    """Add which part the earlier run had at the address that *problem* names."""
    for part in previous.of_kind("gpu") if previous else ():
        if part.facts.get("pci_address") == problem.where != part.id:
            evidence = problem.evidence | {FORMER_LABEL: part.label, "uuid": part.id}
            if "serial" in part.facts:
                evidence["serial"] = part.facts["serial"]
            return replace(problem, evidence=evidence)
    return problem


def compare(now: Inventory, before: Inventory) -> list[Finding]:
    """List the differences between two inventories, worst first."""
    return [
        *compare_mounts(now, before),
        *_compare_parts(_drop_mounts(now), _drop_mounts(before)),
        *_compare_memory(now, before),
        *_compare_facts(_drop_mounts(now), before),
    ]


def _drop_mounts(inventory: Inventory) -> Inventory:
    """Leave out what is no hardware, and goes by rules of its own."""
    return replace(inventory, parts=tuple(p for p in inventory.parts if p.kind != MOUNT_KIND))


def _compare_parts(now: Inventory, before: Inventory) -> Iterator[Finding]:
    kinds = dict.fromkeys(p.kind for p in (*before.parts, *now.parts))
    for kind in kinds:
        have, had = now.of_kind(kind), before.of_kind(kind)
        if kind == "gpu":
            have, had = drop_unidentified(have, had), drop_unidentified(had, have)
        gone = _list_absent(had, have)
        new = _list_absent(have, had)
        for old, fresh in zip_longest(gone, new):
            yield from _report_difference(kind, old, fresh, now)


def _list_absent(parts: Iterable[Part], among: Iterable[Part]) -> list[Part]:
    ids = {p.id for p in among}
    return [p for p in parts if p.id not in ids]


def drop_unidentified(parts: Iterable[Part], others: Iterable[Part]) -> tuple[Part, ...]:
    """
    Drop GPUs without a name, and those that the others have without one.

    What became of these is in the problems of the inventory.
    """
    nameless = {p.id for p in others if _is_unidentified(p)}
    return tuple(
        p for p in parts if not _is_unidentified(p) and p.facts.get("pci_address") not in nameless
    )


def _report_difference(
    kind: str, old: Part | None, new: Part | None, now: Inventory
) -> Iterator[Finding]:
    if old and new:
        text = f"{kind} {describe(old)} was replaced by {describe(new)}"
        yield Finding("part_replaced", new.id, text, new.facts)
    elif new:
        yield Finding("part_added", new.id, f"{kind} {describe(new)} is new", new.facts)
    elif old and kind == "gpu":
        yield from _report_lost_gpu(old, now)
    elif old:
        code = f"{kind}_missing" if kind in FIXED_KINDS else "part_missing"
        yield Finding(code, old.id, f"{kind} {_describe_gone(old)}", _list_former_facts(old))


def _report_lost_gpu(gpu: Part, now: Inventory) -> Iterator[Finding]:
    """Say that *gpu* is missing, if all that could hide it can be ruled out."""
    if problems.list_view_problems(now):
        return
    text = f"gpu {_describe_gone(gpu)}"
    if any("driver" in other.facts for other in now.of_kind("gpu")):
        yield Finding("gpu_missing", gpu.id, text, _list_former_facts(gpu))
    else:
        fix = "neither the PCI bus nor NVML shows any: see the kernel log"
        yield Finding("driver_not_loaded", gpu.id, f"{text}; {fix}", _list_former_facts(gpu))


def _list_former_facts(part: Part) -> dict[str, str]:
    return {FORMER_LABEL: part.label} | part.facts


def _describe_gone(part: Part) -> str:
    """Say that *part* is gone. Whoever names the part of the finding adds the label."""
    serial = part.facts.get("serial")
    words = (
        part.facts.get("name") or part.facts.get("model"),
        f"(serial {serial})" if serial and serial != part.id else None,
    )
    return " ".join([*filter(None, words), "is missing since the last run"])


def describe(part: Part) -> str:
    """Name *part* by what stands on its sticker."""
    words = (part.facts.get("name") or part.facts.get("model"), part.label, part.id)
    return " ".join(dict.fromkeys(word for word in words if word))


def _compare_memory(now: Inventory, before: Inventory) -> Iterator[Finding]:
    for have, had in zip(now.of_kind("memory"), before.of_kind("memory"), strict=False):
        if "total" not in have.facts or "total" not in had.facts:
            continue
        is_less = _read_gibibytes(have) < _read_gibibytes(had) * (1 - MAX_MEMORY_LOSS)
        if is_less:
            text = f"{have.facts['total']} of memory, {had.facts['total']} before"
            yield Finding("memory_shrunk", have.id, text)


def _compare_facts(now: Inventory, before: Inventory) -> Iterator[Finding]:
    """Compare the facts that both inventories have; like changes are told once."""
    earlier = {p.id: p for p in before.parts}
    changes: dict[tuple[str, str, str, str], list[Part]] = {}
    for part in now.parts:
        had = earlier[part.id].facts if part.id in earlier else {}
        for fact in part.facts.keys() & had.keys() - {"total"}:
            if part.facts[fact] != had[fact]:
                change = (part.kind, fact, had[fact], part.facts[fact])
                changes.setdefault(change, []).append(part)
    for (kind, fact, old, new), parts in sorted(changes.items(), key=lambda c: c[0]):
        code = "software_changed" if fact in SOFTWARE_FACTS else "part_changed"
        names = ", ".join(p.label for p in parts)
        text = f"{kind} {fact} changed from {old} to {new} ({names})"
        where = parts[0].id if len(parts) == 1 else "node"
        yield Finding(code, where, text, {"from": old, "to": new})


FINDING_RULES = {
    **problems.PROBLEM_RULES,
    "disk_missing": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "nic_missing": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    # Only root may read which modules there are; lost memory shows in the total.
    "dimm_missing": FindingRule(Verdict.WARN, Remedy.INSPECT),
    # Whoever unmounted it may have meant it; but the disk below is not what was asked.
    "mount_missing": NOT_SET_UP,
    "mount_changed": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "memory_shrunk": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "part_missing": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "part_replaced": FindingRule(Verdict.WARN, Remedy.NONE),
    "part_changed": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "part_added": LISTED,
    "software_changed": LISTED,
}

CHECK = Check(
    summary="nothing is missing, hidden or changed since the last run",
    measure=measure,
    metrics={
        "gpus": Metric(unit="", meaning="GPUs that NVML lists"),
        "disks": Metric(unit="", meaning="drives"),
        "nics": Metric(unit="", meaning="network ports and adapters"),
        "dimms": Metric(unit="", meaning="memory modules, where the firmware reports them"),
        "cpus": Metric(unit="", meaning="logical CPUs that are online"),
        "memory": Metric(unit="GiB", meaning="memory in all"),
    },
    finding_rules=FINDING_RULES,
    placement=Placement.PASSIVE,
    timeout=60,
)
