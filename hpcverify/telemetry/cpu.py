"""
The host's processor: what it is, what it can compute with, and how it runs.

Sources: /proc/cpuinfo (x86 lists ``flags``, arm64 ``Features``), the topology and
cpufreq folders of sysfs, ``thermal_throttle`` (Intel: milliseconds below the
requested clock because of heat, kernel 5.6 and later), /proc/stat and
/proc/loadavg (proc(5)).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from hpcverify.model import Part
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.reading import Reading

CPU_FOLDER = "sys/devices/system/cpu"

DTYPE_FLAGS = {
    "bf16": ({"avx512_bf16"}, {"amx_bf16"}, {"bf16"}),
    "fp16": ({"avx512_fp16"}, {"amx_fp16"}, {"fphp", "asimdhp"}),
    "int8": ({"avx512_vnni"}, {"avx_vnni"}, {"amx_int8"}, {"i8mm"}, {"asimddp"}),
}
"""The flags of which any one set means that a type is computed in hardware."""

VECTOR_BITS = ((512, {"avx512f"}), (256, {"avx2", "avx"}), (128, {"sse2", "asimd", "sve"}))

LIMITS = ("nr_cpus=", "possible_cpus=", "maxcpus=", "nosmp", "mem=", "numa=off")
"""Arguments of the kernel by which it leaves out cores and memory that are there."""
MEMORY_LIMITS = ("mem=", "memmap=")
"""Those by which it leaves out memory; the second also makes persistent memory of some."""
HYPERVISORS = (
    *("QEMU", "KVM", "VMware", "Xen", "Bochs", "Google Compute Engine", "OpenStack"),
    *("KubeVirt", "BHYVE", "Apple Virtualization", "Virtual Machine"),
)
"""What the firmware of virtual machines calls itself; arm64 has no flag of the CPU for it."""
POWER_PARTITION = "proc/ppc64/lparcfg"
"""A file that only the partitions of a POWER machine have (LPAR)."""


class Cores(Struct, frozen=True):
    """The logical CPUs by number: those this process may use, and all online."""

    allowed: tuple[int, ...]
    online: tuple[int, ...]


def read_cores(root: Path = Path("/")) -> Cores:
    """Say which logical CPUs there are; a cgroup may allow fewer."""
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    listed = sysfs.read_text(root / CPU_FOLDER / "online") or ""
    return Cores(allowed, sysfs.parse_cpu_list(listed) or allowed)


def read_cpuinfo(root: Path = Path("/")) -> dict[str, str]:
    """Read the first processor of /proc/cpuinfo, by field."""
    first = (sysfs.read_text(root / "proc/cpuinfo") or "").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in fields}


def list_flags(info: Mapping[str, str]) -> frozenset[str]:
    """List the instruction set extensions that *info* names."""
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def is_virtual(root: Path) -> bool:
    """Whether this is a virtual machine."""
    if "hypervisor" in list_flags(read_cpuinfo(root)) or (root / POWER_PARTITION).exists():
        return True
    names = [sysfs.read_text(root / "sys/class/dmi/id" / n) for n in ("sys_vendor", "product_name")]
    called = " ".join(filter(None, names))
    # Amazon's machines without a hypervisor are called so too, and their type ends in .metal.
    is_amazons = called.startswith("Amazon EC2") and ".metal" not in called
    return is_amazons or any(name in called for name in HYPERVISORS)


def list_limits(root: Path, prefixes: tuple[str, ...] = LIMITS) -> list[str]:
    """List the arguments of the kernel by which it leaves out cores or memory."""
    arguments = (sysfs.read_text(root / "proc/cmdline") or "").split()
    return [argument for argument in arguments if argument.startswith(prefixes)]


def list_native_dtypes(flags: frozenset[str]) -> frozenset[str]:
    """Say which types the CPU computes in hardware rather than by emulation."""
    extended = {
        dtype for dtype, ways in DTYPE_FLAGS.items() if any(needed <= flags for needed in ways)
    }
    return frozenset({"fp64", "fp32"} | extended)


def describe_cpu(root: Path = Path("/")) -> Part:
    """Describe the processors of the node as one part, called ``cpu``."""
    info = read_cpuinfo(root)
    arm_model = f"implementer {info.get('CPU implementer')} part {info.get('CPU part')}"
    seen = list_cores(root)
    sockets, physical = len({socket for socket, _ in seen}), len(seen)
    has = list_flags(info)
    numa = [
        {*sysfs.parse_cpu_list(sysfs.read_text(root / f"sys/devices/system/node/has_{what}") or "")}
        for what in ("cpu", "memory")
    ]
    policies = sysfs.list_entries(root / CPU_FOLDER / "cpufreq", "policy*")
    khz = [sysfs.read_number(policy / "cpuinfo_max_freq") for policy in policies]
    highest = max((k for k in khz if k is not None), default=None)
    facts = sysfs.drop_unknown(
        model=info.get("model name") or (arm_model if "CPU part" in info else None),
        sockets=str(sockets) if sockets else None,
        cores=str(physical) if physical else None,
        threads=str(len(read_cores(root).online)),
        numa_nodes=str(len(set.intersection(*numa)) or ""),
        microcode=info.get("microcode"),
        max_mhz=None if highest is None else f"{highest / 1e3:.0f}",
        vector_bits=str(next((n for n, any_of in VECTOR_BITS if any_of & has), 64)),
        dtypes=" ".join(sorted(list_native_dtypes(has))),
    )
    return Part("cpu", "cpu", "CPU", facts)


def list_cores(root: Path) -> frozenset[tuple[str, str]]:
    """List the physical cores that are online: socket and number, as the kernel has them."""
    return frozenset(map_cores(root).values())


def map_cores(root: Path = Path("/")) -> dict[int, tuple[str, str]]:
    """Map each logical CPU that is online to its physical core, where the kernel tells it."""
    cores: dict[int, tuple[str, str]] = {}
    for folder in sysfs.list_entries(root / CPU_FOLDER, "cpu[0-9]*"):
        socket = sysfs.read_text(folder / "topology/physical_package_id")
        core = sysfs.read_text(folder / "topology/core_id")
        if socket and core:
            cores[int(folder.name.removeprefix("cpu"))] = (socket, core)
    return cores


class CpuReader:
    """Reads clocks, throttling, utilization and steal of the host's CPU."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Find the files once: a large node has thousands."""
        cpus = root / CPU_FOLDER
        self._root = root
        self._clocks = [
            policy / "scaling_cur_freq"
            for policy in sysfs.list_entries(cpus / "cpufreq", "policy*")
        ]
        self._throttles = {
            "throttled.hw_thermal": _find_throttle_files(
                cpus, "physical_package_id", "package_throttle_total_time_ms"
            ),
            "throttled.cores": _find_throttle_files(cpus, "core_id", "core_throttle_total_time_ms"),
        }
        self._ticks: list[int] = []  # shares are those since the last reading

    def read(self) -> Iterator[Reading]:
        """Yield what the kernel tells of the CPU as a whole."""
        read = (value for value in map(sysfs.read_number, self._clocks) if value is not None)
        if khz := sorted(read):
            # The median for the trend, and the slowest core, which would vanish in a mean.
            middle = (khz[(len(khz) - 1) // 2] + khz[len(khz) // 2]) / 2
            yield Reading("clock", middle / 1e3, "MHz", "cpu")
            yield Reading("clock.slowest", khz[0] / 1e3, "MHz", "cpu")
        for name, files in self._throttles.items():
            ms = [value for value in map(sysfs.read_number, files) if value is not None]
            if ms:
                yield Reading(name, sum(ms) / 1e3, "s", "cpu")
        line = (sysfs.read_text(self._root / "proc/stat") or "").partition("\n")[0]
        ticks = [int(field) for field in line.split()[1:9]]  # from user to steal
        complete = 8
        before, self._ticks = self._ticks, ticks if len(ticks) == complete else []
        spent = [now - then for now, then in zip(self._ticks, before, strict=False)]
        total = sum(spent)
        if total > 0:
            _, _, _, idle, iowait, _, _, steal = spent
            busy = total - idle - iowait
            yield Reading("utilization", busy / total, "ratio", "cpu")
            yield Reading("steal", steal / total, "ratio", "cpu")
        load = (sysfs.read_text(self._root / "proc/loadavg") or "").split()
        if load:
            yield Reading("load", float(load[0]), "", "cpu")

    def close(self) -> None:
        """Hold nothing."""


def _find_throttle_files(cpus: Path, scope: str, name: str) -> list[Path]:
    """Find one counter for each package or core: its threads share the same."""
    files: dict[tuple[str | None, str | None], Path] = {}
    for folder in sysfs.list_entries(cpus, "cpu[0-9]*"):
        counter = folder / "thermal_throttle" / name
        if counter.exists():
            package = sysfs.read_text(folder / "topology/physical_package_id")
            files.setdefault((package, sysfs.read_text(folder / "topology" / scope)), counter)
    return list(files.values())
