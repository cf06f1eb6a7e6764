"""
The versions and settings of a run that identical nodes have in common.

One place for all of them, wherever they come from: the parts in the inventory, the
software that ran, and what each check yields as a `Fact`. They stay apart by source,
because not every run has every source.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from hpcverify.model import Fault, Inventory, Part, Run, Verdict
from hpcverify.summary.part_names import fold_labels

PARTS_SOURCE, SOFTWARE_SOURCE = "parts", "software"
"""The sources that are no check. The name of a check is the source of its facts."""
SYSTEM_FACT, CPU_FACT, GPU_FACT = "system", "CPU", "GPU"
KIND_FACTS = (SYSTEM_FACT, CPU_FACT, GPU_FACT)
"""What like nodes have in common by their make; nodes that differ in it are not compared."""
PLACE_FACTS = ("NVLink domain",)
"""What differs from rack to rack: it is recorded and not compared between nodes."""

MAX_SOURCES, MAX_FACTS = 64, 2000
MAX_NAME_CHARACTERS, MAX_VALUE_CHARACTERS = 200, 2000
"""What is kept of a run. A BIOS has some 500 attributes, and a command line ends at 2048."""
FACT_NAMES = {
    ("system", "board"): "mainboard",
    ("system", "bios"): "BIOS",
    ("system", "kernel"): "kernel",
    ("system", "os"): "OS",
    ("cpu", "microcode"): "CPU microcode",
    ("cpu", "cores"): "CPU cores",
    ("cpu", "threads"): "CPU threads",
    ("cpu", "numa_nodes"): "NUMA nodes",
    ("cpu", "max_mhz"): "CPU maximum MHz",
    ("memory", "total"): "memory",
    ("gpu", "name"): GPU_FACT,
    ("gpu", "driver"): "GPU driver",
    ("gpu", "vbios"): "GPU VBIOS",
    ("gpu", "memory"): "GPU memory",
    ("gpu", "power_limit"): "GPU power limit",
}
"""What a fact of a part is called in a fleet. The others are a part's own, or of no use."""
COUNT_NAMES = {"gpu": "GPUs", "dimm": "DIMMs", "disk": "disks", "nic": "network ports"}
MADE_OF_FACTS = frozenset(
    {
        *KIND_FACTS,
        *PLACE_FACTS,
        *COUNT_NAMES.values(),
        *("CPU cores", "CPU threads", "memory", "GPU memory", "NVLinks up", "NVLink clique"),
    }
)
"""What a node is made of, and what a fault can take from it: no version, and no setting."""


def describe_gpus(inventory: Inventory, faults: Collection[Fault] = ()) -> str:
    """
    Count the GPUs by model, as in "8 x NVIDIA H100 80GB HBM3"; empty for no part at all.

    If *faults* report that GPUs are lost or missing: the expected number, and what became of them.
    """
    if not inventory.parts:
        return ""
    gpus = inventory.of_kind("gpu")
    models = Counter(gpu.facts.get("name", "unknown GPU") for gpu in gpus)
    listed = {gpu.id for gpu in gpus}
    # A GPU that never answered has no id, only its index.
    names: dict[str, dict[str, str]] = {"gpu_lost": {}, "gpu_missing": {}}
    absent = 0.0
    for fault in faults:
        if fault.code in names:
            index = fault.evidence.get("nvml_index", "") if fault.part_id == "node" else ""
            label = f"GPU {index}" if index else inventory.list_aliases(fault.part_id)[-1]
            names[fault.code][index or fault.part_id] = label
        elif fault.code == "gpus.missing_from_board":
            absent = max(absent, fault.value or 0.0)
        elif fault.code == "gpus" and fault.limit:
            absent = max(absent, (fault.limit.low or 0.0) - len(gpus))
    lost = names["gpu_lost"]
    missing = {i: name for i, name in names["gpu_missing"].items() if name not in lost.values()}
    gone = lost.keys() | missing.keys()
    unlisted = len(gone - listed)
    expected = len(gpus) + max(int(absent), unlisted)
    present = ", ".join(f"{count} x {model}" for model, count in models.items()) or "no GPU"
    if not gone and expected == len(gpus):
        return present
    bad = {fault.part_id for fault in faults if fault.verdict >= Verdict.ERROR} & listed - gone
    counts = {
        f"{len(listed - gone - bad)} healthy": True,
        f"{len(bad)} faulty": bad,
        f"{fold_labels(lost.values())} lost": lost,
        f"{fold_labels(missing.values())} missing": missing,
        f"{expected - len(gpus) - unlisted} missing": expected > len(gpus) + unlisted,
    }
    became = ", ".join(text for text, applies in counts.items() if applies)
    model = f" x {next(iter(models))}" if len(models) == 1 else f" GPUs ({present})"
    return f"{expected}{model} expected: {became}"


def describe_machine(inventory: Inventory) -> str:
    """Name the machine as its vendor does; empty if DMI cannot be read."""
    for system in inventory.of_kind("system"):
        names = (system.facts.get("vendor"), system.facts.get("product"))
        serial = system.facts.get("serial")
        number = f"serial number {serial}" if serial else ""
        return ", ".join(filter(None, (" ".join(filter(None, names)), number)))
    return ""


def collect_facts(run: Run) -> dict[str, dict[str, str]]:
    """
    Collect the facts of *run* by source, each as name and value.

    A run without any part was not made on the node itself, but by asking its BMC, say: its
    software is not the node's. Its suite is part of the source and of each name, since the
    node may call a version differently.
    """
    is_of_node = bool(run.inventory.parts)
    prefix, suffix = ("", "") if is_of_node else (f"{run.suite} ", f" ({run.suite})")
    found = {
        f"{prefix}{result.check}": _join_values(
            (f"{fact.name}{suffix}", fact.value) for fact in result.facts
        )
        for result in run.results
    }
    if is_of_node:
        found[PARTS_SOURCE] = list_part_facts(run.inventory)
        found[SOFTWARE_SOURCE] = {
            name if name == "hpcverify" else f"hpcverify's {name}": version
            for name, version in run.versions.items()
            if name != "kernel"
        }
    kept = list(found.items())[-MAX_SOURCES:]  # the parts and the software come last
    return {source: _limit_facts(facts) for source, facts in kept if facts}


def _limit_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Keep no more than any node has: a document may come from one that lies."""
    return {
        name[:MAX_NAME_CHARACTERS]: value[:MAX_VALUE_CHARACTERS]
        for name, value in islice(facts.items(), MAX_FACTS)
    }


def list_part_facts(inventory: Inventory) -> dict[str, str]:
    """List what the parts of *inventory* tell: versions by kind or model, and their number."""
    pairs: list[tuple[str, str]] = []
    counts: Counter[str] = Counter()
    for part in inventory.parts:
        pairs += (
            (FACT_NAMES[part.kind, name], value)
            for name, value in part.facts.items()
            if (part.kind, name) in FACT_NAMES
        )
        if part.kind in ("nic", "disk") and {"model", "firmware"} <= part.facts.keys():
            pairs.append((f"firmware of {part.facts['model']}", part.facts["firmware"]))
        counts[part.kind] += _is_counted(part)
    if inventory.problems:  # what was not seen need not be gone
        del counts["gpu"]
    numbers = {name: str(counts[kind]) for kind, name in COUNT_NAMES.items() if counts[kind]}
    return _describe_kind(inventory) | _join_values(pairs) | numbers


def _describe_kind(inventory: Inventory) -> dict[str, str]:
    facts = {part.kind: part.facts for part in inventory.parts if part.kind in ("system", "cpu")}
    system, cpu = facts.get("system", {}), facts.get("cpu", {})
    named = filter(None, (system.get("vendor"), system.get("product")))
    sockets = f"{cpu['sockets']} x " if "sockets" in cpu else ""
    told = {SYSTEM_FACT: " ".join(named)}
    told[CPU_FACT] = f"{sockets}{cpu['model']}" if "model" in cpu else ""
    return {name: value for name, value in told.items() if value}


def _is_counted(part: Part) -> bool:
    """Whether *part* is plugged in for good, and is more than an address on the PCI bus."""
    if part.kind == "gpu":
        return "name" in part.facts
    return part.kind != "nic" or "pci_address" in part.facts


def _join_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Join what like parts tell; if they differ, say how many have which."""
    values: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, value in pairs:
        values[name][value] += 1
    return {name: _format_values(counts) for name, counts in values.items()}


def _format_values(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{value} ({counts[value]})" for value in sorted(counts))
