"""
Compare the parts of the node with those of an earlier run.

A part that is absent is lost only if we can see it at all: while the driver is not
loaded or a cgroup hides GPUs, nothing counts as missing and the result is ERROR. Parts
are matched by serial number or UUID: a swapped part is not a missing one, and one that
only moved to another index is the same.

Changed software, firmware and settings are listed and pass: an upgrade or a power limit
says nothing about health, but it may explain the next slow GEMM.

The versions and settings of the node as a whole are told as facts: a fleet compares them
between its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from msgspec.structs import replace

from hpcverify.check import (
    LISTED,
    NOT_SET_UP,
    Check,
    CheckItem,
    Context,
    Coverage,
    Fact,
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Metric,
    Params,
    Part,
    Placement,
    Remedy,
    Verdict,
)
from hpcverify.limits.floors import SPEED_SETTINGS
from hpcverify.limits.specs import explain_unknown, find_spec
from hpcverify.model import FORMER_LABEL
from hpcverify.telemetry import pci, problems, settings
from hpcverify.units import format_count
from hpcverify_checks.common.mounts import MOUNT_KIND, compare_mounts

COUNTED_KINDS = {"gpus": "gpu", "disks": "disk", "nics": "nic", "dimms": "dimm"}

SOFTWARE_FACTS = frozenset({"bios", "driver", "firmware", "kernel", "microcode", "os", "vbios"})
"""Facts that an installation changes."""
CPU_SETTINGS = ("numa_nodes", "max_mhz", "dtypes", "vector_bits")
"""Facts of the CPU that the BIOS or the kernel decides, such as NUMA nodes per socket."""
CHANGE_CODES = {
    **dict.fromkeys(SOFTWARE_FACTS, "software_changed"),
    **dict.fromkeys((*SPEED_SETTINGS, *CPU_SETTINGS), "setting_changed"),
}
"""What a change is called that is not one of the part itself, by fact."""
MAX_MEMORY_LOSS = 0.02
"""A smaller loss is the kernel's, not a module's: one of 32 equal modules is 3 %."""
MIN_HIDDEN_NICS = 2
"""Adapters of a kind from which the loss of all, still on the bus, is one of their driver."""
MAX_DRIVER_GIB = 1
"""By which another driver may count the memory of a GPU differently."""
FIXED_KINDS = frozenset({"gpu", "disk", "nic", "dimm"})
"""Kinds of parts that nobody removes from a running node in passing."""


def measure(ctx: Context, params: Params) -> Iterator[CheckItem]:
    """Count the parts, and report problems and changes."""
    now = ctx.inventory
    yield from _count_parts(now)
    yield from (_identify_problem(p, ctx.previous) for p in now.problems)
    # A probe that failed saw nothing: what it did not see need not be gone.
    if ctx.previous and not any(p.code == "probe_failed" for p in now.problems):
        yield from compare(now, ctx.previous, Path("/"))
    for name, value in settings.read_settings(Path("/")).items():
        yield Fact(name, value)
    yield Coverage("node", describe_coverage(ctx))
    for gpu in now.of_kind("gpu"):
        if "name" in gpu.facts and find_spec(gpu) is None:
            yield Coverage(
                gpu.id, f"{explain_unknown(gpu)}: judged against its siblings and its own past"
            )


def describe_coverage(ctx: Context) -> str:
    """Say how many parts were compared with how many."""
    parts = format_count(len(ctx.inventory.parts), "part")
    if ctx.previous is None:
        return f"{parts} listed; no earlier run to compare with"
    return f"{parts} compared with {len(ctx.previous.parts)} of the last run"


def _count_parts(inventory: Inventory) -> Iterator[Measurement]:
    # A GPU that only the PCI bus knows is not usable, and does not count.
    for name, kind in COUNTED_KINDS.items():
        yield Measurement(name, sum(not _is_unidentified(p) for p in inventory.of_kind(kind)))
    for cpu in inventory.of_kind("cpu"):
        if "threads" in cpu.facts:
            yield Measurement("cpus", float(cpu.facts["threads"]), "", cpu.id)
    for memory in inventory.of_kind("memory"):
        if "total" in memory.facts:
            yield Measurement("memory", _read_gibibytes(memory), "GiB", memory.id)


def _read_gibibytes(memory: Part) -> float:
    return float(memory.facts["total"].partition(" ")[0])


def _is_unidentified(part: Part) -> bool:
    # Nothing else is known of it, so its address is its id.
    return part.kind == "gpu" and part.id == part.facts.get("pci_address")


def _identify_problem(problem: Finding, previous: Inventory | None) -> Finding:
    # Name the part that the earlier run had at that address.
    for part in previous.of_kind("gpu") if previous else ():
        if part.facts.get("pci_address") == problem.where != part.id:
            evidence = problem.evidence | {FORMER_LABEL: part.label, "uuid": part.id}
            if "serial" in part.facts:
                evidence["serial"] = part.facts["serial"]
            return replace(problem, evidence=evidence)
    return problem


def compare(now: Inventory, before: Inventory, root: Path) -> list[Finding]:
    """List the differences between two inventories, worst first; *root* is this node's."""
    return [
        *compare_mounts(now, before),
        *_compare_parts(_drop_mounts(now), _drop_mounts(before), root),
        *_compare_memory(now, before),
        *_compare_facts(_drop_mounts(now), before),
    ]


def _drop_mounts(inventory: Inventory) -> Inventory:
    return replace(inventory, parts=tuple(p for p in inventory.parts if p.kind != MOUNT_KIND))


def _compare_parts(now: Inventory, before: Inventory, root: Path) -> Iterator[Finding]:
    kinds = dict.fromkeys(p.kind for p in (*before.parts, *now.parts))
    for kind in kinds:
        have, had = now.of_kind(kind), before.of_kind(kind)
        if kind == "gpu":
            have, had = drop_unidentified(have, had), drop_unidentified(had, have)
        for old, fresh in zip_longest(_list_absent(had, have), _list_absent(have, had)):
            if kind == "nic" and old and not fresh:
                yield _report_lost_nic(old, have, had, root)
            else:
                yield from _report_difference(kind, old, fresh, now)


def _list_absent(parts: Iterable[Part], among: Iterable[Part]) -> list[Part]:
    ids = {p.id for p in among}
    return [p for p in parts if p.id not in ids]


def drop_unidentified(parts: Iterable[Part], others: Iterable[Part]) -> tuple[Part, ...]:
    """
    Drop GPUs known only by address, and those that *others* knows only by address.

    The problems of the inventory report these.
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
    # Something may only hide it.
    if problems.list_view_problems(now):
        return
    text = f"gpu {_describe_gone(gpu)}"
    if any("driver" in other.facts for other in now.of_kind("gpu")):
        yield Finding("gpu_missing", gpu.id, text, _list_former_facts(gpu))
    else:
        fix = "neither the PCI bus nor the driver shows any: see the kernel log"
        yield Finding("driver_not_loaded", gpu.id, f"{text}; {fix}", _list_former_facts(gpu))


def _report_lost_nic(nic: Part, have: Sequence[Part], had: Sequence[Part], root: Path) -> Finding:
    """Say that *nic* is gone, or that its adapter is here and only software hides it."""
    text, facts = f"nic {_describe_gone(nic)}", _list_former_facts(nic)
    address = nic.facts.get("pci_address")
    if address is None:
        return Finding("nic_missing", nic.id, text, facts)
    if rest := [part.label for part in have if part.facts.get("pci_address") == address]:
        text += (
            f", but its adapter at {address} is here as {', '.join(rest)}: is it part of a bond "
            "now, or in the network namespace of a container?"
        )
        return Finding("nic_hidden", nic.id, text, facts)
    like = {part.id for part in had if _name_make(part) == _name_make(nic)}
    # Several adapters do not break at once and stay on the bus.
    if (
        len(like) >= MIN_HIDDEN_NICS
        and not like & {part.id for part in have}
        and (root / pci.PCI_DEVICES_FOLDER / address).exists()
    ):
        text += (
            f" like all {len(like)} of its kind, but its adapter at {address} is on the PCI bus: "
            "load the driver, and see dmesg"
        )
        return Finding("nic_without_driver", nic.id, text, facts)
    return Finding("nic_missing", nic.id, text, facts)


def _name_make(nic: Part) -> tuple[str | None, str | None]:
    return nic.facts.get("model"), nic.facts.get("driver")


def _list_former_facts(part: Part) -> dict[str, str]:
    return {FORMER_LABEL: part.label} | part.facts


def _describe_gone(part: Part) -> str:
    # Without the label: the finding's part carries it.
    serial = part.facts.get("serial")
    words = (
        part.facts.get("name") or part.facts.get("model"),
        f"(serial {serial})" if serial and serial != part.id else None,
    )
    return " ".join([*filter(None, words), "is missing since the last run"])


def describe(part: Part) -> str:
    """Name *part* as its sticker does."""
    words = (part.facts.get("name") or part.facts.get("model"), part.label, part.id)
    return " ".join(dict.fromkeys(word for word in words if word))


def _compare_memory(now: Inventory, before: Inventory) -> Iterator[Finding]:
    for have, had in zip(now.of_kind("memory"), before.of_kind("memory"), strict=False):
        if "total" not in have.facts or "total" not in had.facts:
            continue
        if _read_gibibytes(have) < _read_gibibytes(had) * (1 - MAX_MEMORY_LOSS):
            text = f"{have.facts['total']} of memory, {had.facts['total']} before"
            yield Finding("memory_shrunk", have.id, text)


def _compare_facts(now: Inventory, before: Inventory) -> Iterator[Finding]:
    # The same change on many parts is one finding.
    earlier = {p.id: p for p in before.parts}
    changes: dict[tuple[str, str, str, str], list[Part]] = {}
    for part in now.parts:
        had = earlier[part.id].facts if part.id in earlier else {}
        for fact in part.facts.keys() & had.keys() - {"total"}:
            if part.facts[fact] != had[fact]:
                change = (part.kind, fact, had[fact], part.facts[fact])
                changes.setdefault(change, []).append(part)
    for (kind, fact, old, new), parts in sorted(changes.items(), key=lambda c: c[0]):
        code = _choose_change_code(fact, parts[0].facts, earlier[parts[0].id].facts)
        names = ", ".join(p.label for p in parts)
        text = f"{kind} {fact} changed from {old} to {new} ({names})"
        where = parts[0].id if len(parts) == 1 else "node"
        yield Finding(code, where, text, {"from": old, "to": new})


def _choose_change_code(fact: str, now: Mapping[str, str], before: Mapping[str, str]) -> str:
    if fact == "threads" and _is_smt_change(now, before):
        return "setting_changed"
    # From R510 on, NVIDIA's driver counts what it keeps for itself: 81920 MiB, not 81251.
    if fact == "memory" and now.get("driver") != before.get("driver"):
        sizes = [float(facts[fact].partition(" ")[0]) for facts in (now, before)]
        if abs(sizes[0] - sizes[1]) <= MAX_DRIVER_GIB:
            return "software_changed"
    return CHANGE_CODES.get(fact, "part_changed")


def _is_smt_change(now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether each of as many cores as before has another number of threads."""
    if now.get("cores") != before.get("cores") or "cores" not in now:
        return False
    cores = int(now["cores"])
    return all(int(facts["threads"]) % cores == 0 for facts in (now, before))


FINDING_RULES = {
    **problems.PROBLEM_RULES,
    "disk_missing": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "nic_missing": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "nic_hidden": FindingRule(Verdict.WARN, Remedy.FIX_CONFIGURATION),
    "nic_without_driver": NOT_SET_UP,
    # Only root can list the modules; lost memory shows in the total anyway.
    "dimm_missing": FindingRule(Verdict.WARN, Remedy.INSPECT),
    # It may have been unmounted on purpose, but the disk below is not the one meant.
    "mount_missing": NOT_SET_UP,
    "mount_changed": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "memory_shrunk": FindingRule(Verdict.FAIL, Remedy.INSPECT),
    "part_missing": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "part_replaced": FindingRule(Verdict.WARN, Remedy.NONE),
    "part_changed": FindingRule(Verdict.WARN, Remedy.INSPECT),
    "part_added": LISTED,
    "setting_changed": LISTED,
    "software_changed": LISTED,
}

CHECK = Check(
    summary="nothing is missing, hidden or changed since the last run",
    measure=measure,
    metrics={
        "gpus": Metric(unit="", worse="low", meaning="GPUs that the driver lists"),
        "disks": Metric(unit="", worse="low", meaning="drives"),
        "nics": Metric(unit="", worse="low", meaning="network ports and adapters"),
        "dimms": Metric(
            unit="", worse="low", meaning="memory modules, where the firmware reports them"
        ),
        "cpus": Metric(unit="", worse="low", meaning="logical CPUs that are online"),
        "memory": Metric(unit="GiB", worse="low", meaning="total memory"),
    },
    finding_rules=FINDING_RULES,
    placement=Placement.PASSIVE,
    timeout=60,
)
