"""
Compare the parts of the node with those of an earlier run.

A part that is absent is lost only if we can see it at all: while the driver is not
loaded or a cgroup hides GPUs, nothing counts as missing and the result is ERROR. What
software took away is not lost either: a port in the network namespace of a container, a
device that was handed to a virtual machine or a program (vfio-pci, SPDK), a disk of another
machine, and what a hypervisor detached or resized. That is a WARN, once. Parts
are matched by serial number or UUID: a swapped part is not a missing one, and one that
only moved to another index is the same.

Changed software, firmware and settings are listed and pass: an upgrade or a power limit
says nothing about health, but it may explain the next slow GEMM.

The versions and settings of the node as a whole are reported as facts: a fleet compares them
between its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.limits.floors import SPEED_SETTINGS
from hpcverify.limits.specs import count_missing_from_board, explain_unknown, find_spec
from hpcverify.telemetry import cpu, pci, problems, settings, sysfs
from hpcverify.telemetry.nics import VIRTUAL_DRIVERS
from hpcverify.units import format_count
from hpcverify_checks.node.mounts import MOUNT_KIND, compare_mounts

COUNTED_KINDS = {"gpus": "gpu", "disks": "disk", "nics": "nic", "dimms": "dimm"}

SOFTWARE_FACTS = frozenset({"bios", "driver", "firmware", "kernel", "microcode", "os", "vbios"})
"""Facts that an installation changes."""
CPU_SETTINGS = ("numa_nodes", "max_mhz", "dtypes", "vector_bits")
"""Facts of the CPU that the BIOS or the kernel decides, such as NUMA nodes per socket."""
CHANGE_CODES = {
    **dict.fromkeys(SOFTWARE_FACTS, "software_changed"),
    **dict.fromkeys((*SPEED_SETTINGS, *CPU_SETTINGS, "compute_mode", "ecc"), "setting_changed"),
}
"""What a change is called that is not one of the part itself, by fact."""
NO_REFERENCE_CODE = "no_reference"
"""The code of the finding that no data sheet describes GPUs of the node."""
MAX_MEMORY_LOSS = 0.02
"""A smaller loss is the kernel's, not a module's: one of 32 equal modules is 3 %."""
MAX_ROUNDING_GIB = 1
"""By which a total in whole GiB may be less where hardly anything is."""
MIN_HIDDEN_NICS = 2
"""Adapters of a kind from which the loss of all, still on the bus, is one of their driver."""
MAX_DRIVER_GIB = 1
"""By which another driver may count the memory of a GPU differently."""
INTERFACE_CLASSES = ("net", "infiniband")
"""Folders that a device has as long as one of its interfaces is in any network namespace."""
ACCEPT = "if it was taken out on purpose, run once with --accept-parts"
FIXED_KINDS = frozenset({"gpu", "disk", "nic", "dimm"})
"""Kinds of parts that nobody removes from a running node in passing."""


def measure(ctx: hv.Context, params: hv.Params, root: Path = Path("/")) -> Iterator[hv.CheckItem]:
    """Count the parts, and report problems and changes; *root* is this node's."""
    now = ctx.inventory
    yield from _count_parts(now)
    missing = count_missing_from_board(now.of_kind("gpu"), pci.count_handed_on_gpus(root))
    if missing is not None:
        yield hv.Measurement("gpus.missing_from_board", missing)
    yield from (_identify_problem(p, ctx.previous) for p in now.problems)
    # A probe that failed saw nothing: what it did not see need not be gone.
    if ctx.previous and not any(p.code == "probe_failed" for p in now.problems):
        yield from compare(now, ctx.previous, root)
    for name, value in settings.read_settings(root).items():
        yield hv.Fact(name, value)
    yield hv.Coverage("node", describe_coverage(ctx))
    named = [gpu for gpu in now.of_kind("gpu") if "name" in gpu.facts and find_spec(gpu) is None]
    for why in dict.fromkeys(map(explain_unknown, named)):
        text = f"no reference for this GPU, compared with siblings and its own past only: {why}"
        yield hv.Finding(NO_REFERENCE_CODE, "node", text)


def describe_coverage(ctx: hv.Context) -> str:
    """Say how many parts were compared with how many."""
    parts = format_count(len(ctx.inventory.parts), "part")
    if ctx.previous is None:
        return f"{parts} listed; no earlier run to compare with"
    return f"{parts} compared with {len(ctx.previous.parts)} of the last run"


def _count_parts(inventory: hv.Inventory) -> Iterator[hv.Measurement]:
    # A GPU that only the PCI bus knows is not usable, and does not count.
    for name, kind in COUNTED_KINDS.items():
        yield hv.Measurement(name, sum(not _is_unidentified(p) for p in inventory.of_kind(kind)))
    for part in inventory.of_kind("cpu"):
        if "threads" in part.facts:
            yield hv.Measurement("cpus", float(part.facts["threads"]), "", part.id)
    for memory in inventory.of_kind("memory"):
        if "total" in memory.facts:
            yield hv.Measurement("memory", _read_gibibytes(memory), "GiB", memory.id)


def _read_gibibytes(memory: hv.Part) -> float:
    return float(memory.facts["total"].partition(" ")[0])


def _is_unidentified(part: hv.Part) -> bool:
    # Nothing else is known of it, so its address is its id.
    return part.kind == "gpu" and part.id == part.facts.get("pci_address")


def _identify_problem(problem: hv.Finding, previous: hv.Inventory | None) -> hv.Finding:
    # Name the part that the earlier run had at that address.
    for part in previous.of_kind("gpu") if previous else ():
        if part.facts.get("pci_address") == problem.part_id != part.id:
            evidence = problem.evidence | {hv.FORMER_LABEL: part.label, "uuid": part.id}
            if "serial" in part.facts:
                evidence["serial"] = part.facts["serial"]
            return replace(problem, evidence=evidence)
    return problem


def compare(now: hv.Inventory, before: hv.Inventory, root: Path) -> list[hv.Finding]:
    """List the differences between two inventories, worst first; *root* is this node's."""
    return [
        *compare_mounts(now, before),
        *_compare_parts(_drop_mounts(now), _drop_mounts(before), root),
        *_compare_memory(now, before, root),
        *_compare_facts(_drop_mounts(now), before),
    ]


def _drop_mounts(inventory: hv.Inventory) -> hv.Inventory:
    return replace(inventory, parts=tuple(p for p in inventory.parts if p.kind != MOUNT_KIND))


def _compare_parts(now: hv.Inventory, before: hv.Inventory, root: Path) -> Iterator[hv.Finding]:
    kinds = dict.fromkeys(p.kind for p in (*before.parts, *now.parts))
    for kind in kinds:
        have, had = now.of_kind(kind), before.of_kind(kind)
        if kind == "gpu":
            have, had = drop_unidentified(have, had), drop_unidentified(had, have)
        gone, added = _list_absent(had, have), _list_absent(have, had)
        for family in dict.fromkeys(map(_find_family, (*gone, *added))):
            pairs = ([p for p in parts if _find_family(p) == family] for parts in (gone, added))
            for old, fresh in zip_longest(*pairs):
                if old and fresh:
                    text = f"{kind} {describe(old)} was replaced by {describe(fresh)}"
                    yield hv.Finding("part_replaced", fresh.id, text, fresh.facts)
                elif fresh:
                    text = f"{kind} {describe(fresh)} is new"
                    yield hv.Finding("part_added", fresh.id, text, fresh.facts)
                elif old:
                    yield from _report_lost(old, have, had, now, root)


def _find_family(part: hv.Part) -> tuple[bool, bool]:
    """Say what a part in place of *part* has in common with it: no bridge replaces an adapter."""
    return "network" in part.facts, part.kind == "nic" and "pci_address" in part.facts


def _list_absent(parts: Iterable[hv.Part], among: Iterable[hv.Part]) -> list[hv.Part]:
    among = list(among)
    ids = {p.id for p in among}
    return [p for p in parts if p.id not in ids and not any(_is_same_port(p, q) for q in among)]


def _is_same_port(one: hv.Part, other: hv.Part) -> bool:
    """Whether one of them goes by its place on the bus, as a port does without a MAC of its own."""
    place = one.facts.get("pci_address")
    return (
        one.kind == "nic"
        and place in (one.id, other.id)
        and (place, one.label) == (other.facts.get("pci_address"), other.label)
    )


def drop_unidentified(parts: Iterable[hv.Part], others: Iterable[hv.Part]) -> tuple[hv.Part, ...]:
    """
    Drop GPUs known only by address, and those that *others* knows only by address.

    The problems of the inventory report these.
    """
    nameless = {p.id for p in others if _is_unidentified(p)}
    return tuple(
        p for p in parts if not _is_unidentified(p) and p.facts.get("pci_address") not in nameless
    )


def _report_lost(
    part: hv.Part, have: Sequence[hv.Part], had: Sequence[hv.Part], now: hv.Inventory, root: Path
) -> Iterator[hv.Finding]:
    """Report that *part* is gone, and as lost only if no software can have taken it away."""
    address = part.facts.get("pci_address")
    place = root / pci.PCI_DEVICES_FOLDER / address if address else None
    device = place if place and place.exists() else None
    text, facts = f"{part.kind} {_describe_gone(part)}", _list_former_facts(part)
    if device and (driver := pci.find_passthrough(device)):
        text += f": {driver} has it, so it was handed to a virtual machine or a program"
        yield hv.Finding(f"{part.kind}_hidden", part.id, text, facts)
    elif part.kind == "gpu":
        yield from _report_lost_gpu(part, now)
    elif network := part.facts.get("network"):
        text += f": it was reached by {network}: if this was not a logout, see the server"
        yield hv.Finding("part_detached", part.id, text, facts)
    elif part.kind == "nic" and device:
        yield _report_port_on_bus(part, have, had, device)
    elif part.facts.get("driver") in VIRTUAL_DRIVERS:
        text += ": a hypervisor made it up; if it was not detached on purpose, see the cloud"
        yield hv.Finding("part_detached", part.id, text, facts)
    elif (
        part.kind in ("nic", "disk")
        and cpu.is_virtual(root)
        # It has the function on the bus to itself, which goes too if a hypervisor takes it away.
        and not (device and part.label.startswith("nvme"))
    ):
        text += ": this is a virtual machine; if it was not detached on purpose, see the hypervisor"
        yield hv.Finding("part_detached", part.id, text, facts)
    else:
        code = f"{part.kind}_missing" if part.kind in FIXED_KINDS else "part_missing"
        yield hv.Finding(code, part.id, f"{text}: {ACCEPT}", facts)


def _report_lost_gpu(gpu: hv.Part, now: hv.Inventory) -> Iterator[hv.Finding]:
    # Something may only hide it.
    if problems.list_view_problems(now):
        return
    text = f"gpu {_describe_gone(gpu)}"
    if any("driver" in other.facts for other in now.of_kind("gpu")):
        yield hv.Finding("gpu_missing", gpu.id, text, _list_former_facts(gpu))
    else:
        fix = "neither the PCI bus nor the driver shows any: see the kernel log"
        yield hv.Finding("driver_not_loaded", gpu.id, f"{text}; {fix}", _list_former_facts(gpu))


def _report_port_on_bus(
    nic: hv.Part, have: Sequence[hv.Part], had: Sequence[hv.Part], device: Path
) -> hv.Finding:
    """Say why *nic* is gone while its adapter, which has the folder *device*, is on the bus."""
    text, facts = f"nic {_describe_gone(nic)}", _list_former_facts(nic)
    here = f"its adapter at {device.name}"
    if rest := [part.label for part in have if part.facts.get("pci_address") == device.name]:
        text += (
            f", but {here} is here as {', '.join(rest)}: is it part of a bond "
            "now, or in the network namespace of a container?"
        )
        return hv.Finding("nic_hidden", nic.id, text, facts)
    # Those of virtio are one folder further down.
    places = (device, *sysfs.list_entries(device, "virtio[0-9]*"))
    classes = [p / name for p in places for name in INTERFACE_CLASSES if (p / name).is_dir()]
    if any(sysfs.list_entries(folder) == [] for folder in classes):
        text += f": it is in another network namespace, as a container's, on {here}"
        return hv.Finding("nic_hidden", nic.id, text, facts)
    like = {part.id for part in had if _name_make(part) == _name_make(nic)}
    # Several adapters do not break at once and stay on the bus.
    if len(like) >= MIN_HIDDEN_NICS and not like & {part.id for part in have}:
        text += (
            f" like all {len(like)} of its kind, but {here} is on the PCI bus: "
            "load the driver, and see dmesg"
        )
        return hv.Finding("nic_without_driver", nic.id, text, facts)
    if pci.read_driver(device) is None:
        text += (
            f", but {here} is on the PCI bus without a driver: bind it again; if it was not "
            f"unbound on purpose, dmesg says why the driver could not start it; {ACCEPT}"
        )
        return hv.Finding("nic_without_driver", nic.id, text, facts)
    return hv.Finding(
        "nic_missing", nic.id, f"{text}: its driver does not start it, see dmesg", facts
    )


def _name_make(nic: hv.Part) -> tuple[str | None, str | None]:
    return nic.facts.get("model"), nic.facts.get("driver")


def _list_former_facts(part: hv.Part) -> dict[str, str]:
    return {hv.FORMER_LABEL: part.label} | part.facts


def _describe_gone(part: hv.Part) -> str:
    # Without the label: the finding's part carries it.
    serial = part.facts.get("serial")
    words = (
        part.facts.get("name") or part.facts.get("model"),
        f"(serial {serial})" if serial and serial != part.id else None,
    )
    return " ".join([*filter(None, words), "is missing since the last run"])


def describe(part: hv.Part) -> str:
    """Name *part* as its sticker does."""
    words = (part.facts.get("name") or part.facts.get("model"), part.label, part.id)
    return " ".join(dict.fromkeys(word for word in words if word))


def _compare_memory(now: hv.Inventory, before: hv.Inventory, root: Path) -> Iterator[hv.Finding]:
    for have, had in zip(now.of_kind("memory"), before.of_kind("memory"), strict=False):
        if "total" not in have.facts or "total" not in had.facts:
            continue
        if not _is_less(_read_gibibytes(have), _read_gibibytes(had)):
            continue
        text = f"{have.facts['total']} of memory, {had.facts['total']} before"
        limits = cpu.list_limits(root, cpu.MEMORY_LIMITS)
        if cpu.is_virtual(root):
            why = "this is a virtual machine; if it was not resized on purpose, see the hypervisor"
        elif limits:
            why = f"the kernel was started with {' '.join(limits)}"
        elif not _is_less(_read_gibibytes_of_cores(have), _read_gibibytes_of_cores(had)):
            why = "what is gone was a GPU's, or CXL's: its driver or daxctl gives it to the kernel"
        else:
            yield hv.Finding("memory_shrunk", have.id, f"{text}: {ACCEPT}")
            continue
        yield hv.Finding("memory_resized", have.id, f"{text}: {why}")


def _is_less(now: float, before: float) -> bool:
    return now < min(before * (1 - MAX_MEMORY_LOSS), before - MAX_ROUNDING_GIB)


def _read_gibibytes_of_cores(memory: hv.Part) -> float:
    """Read how much there is on NUMA nodes with cores; a module is on one of those."""
    return float(memory.facts.get("beside_cores", memory.facts["total"]).partition(" ")[0])


def _compare_facts(now: hv.Inventory, before: hv.Inventory) -> Iterator[hv.Finding]:
    # The same change on many parts is one finding.
    earlier = {p.id: p for p in before.parts}
    changes: dict[tuple[str, str, str, str], list[hv.Part]] = {}
    for part in now.parts:
        had = earlier[part.id].facts if part.id in earlier else {}
        for fact in part.facts.keys() & had.keys() - {"total", "beside_cores", "handle", "bank"}:
            if part.facts[fact] != had[fact]:
                change = (part.kind, fact, had[fact], part.facts[fact])
                changes.setdefault(change, []).append(part)
    for (kind, fact, old, new), parts in sorted(changes.items(), key=lambda c: c[0]):
        code = _choose_change_code(fact, parts[0], earlier[parts[0].id].facts)
        names = ", ".join(p.label for p in parts)
        text = f"{kind} {fact} changed from {old} to {new} ({names})"
        part_id = parts[0].id if len(parts) == 1 else "node"
        yield hv.Finding(code, part_id, text, {"from": old, "to": new})


def _choose_change_code(fact: str, part: hv.Part, before: Mapping[str, str]) -> str:
    now = part.facts
    if part.kind == "disk" and fact == "pci_address":
        return "setting_changed"  # another bay
    if fact == "threads" and _is_smt_change(now, before):
        return "setting_changed"
    # GDDR has its check bits in the memory itself: an L40S has 48 GiB without ECC, 45 with it.
    if fact == "memory" and now.get("ecc") != before.get("ecc"):
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
    **hv.fail_on("disk_missing", "nic_missing", "memory_shrunk"),
    **hv.warn_on("gpu_hidden", "nic_hidden", "disk_hidden", remedy=hv.Remedy.FIX_CONFIGURATION),
    **hv.warn_on(
        "part_detached", "memory_resized", "mount_changed", "part_missing", "part_changed"
    ),
    **hv.not_set_up("nic_without_driver"),
    # Only root can list the modules; lost memory shows in the total anyway.
    **hv.warn_on("dimm_missing"),
    # It may have been unmounted on purpose, but the disk below is not the one meant.
    **hv.not_set_up("mount_missing"),
    **hv.warn_on("part_replaced", remedy=hv.Remedy.NONE),
    **hv.listed("part_added", "setting_changed", "software_changed"),
    # A PASS has it in its reason: nothing else shows that all GPUs of the node are slow.
    NO_REFERENCE_CODE: hv.FindingRule(hv.Verdict.PASS, hv.Remedy.INSPECT),
}

CHECK = hv.Check(
    summary="nothing is missing, hidden or changed since the last run",
    measure=measure,
    metrics={
        "gpus": hv.Metric("", "low", "GPUs that the driver lists"),
        "gpus.missing_from_board": hv.Metric(
            "", "high", "GPUs that a board of 4 or 8 lacks, where all are of a part that is sold so"
        ).warn(high=0, source="boards of this part have 4 or 8 GPUs"),
        "disks": hv.Metric("", "low", "drives"),
        "nics": hv.Metric("", "low", "network ports and adapters"),
        "dimms": hv.Metric("", "low", "memory modules, where the firmware reports them"),
        "cpus": hv.Metric("", "low", "logical CPUs that are online"),
        "memory": hv.Metric("GiB", "low", "total memory"),
    },
    finding_rules=FINDING_RULES,
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
