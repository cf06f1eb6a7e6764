"""
The host's memory: how much is free on each NUMA node, and how much a cgroup allows us.

Sources: /proc/meminfo (proc(5)), meminfo and cpulist of each node in sysfs
(admin-guide/mm/numaperf), Mems_allowed_list in /proc/self/status (cpuset(7)), and the
memory controllers of both versions of cgroups (admin-guide/cgroup-v1/memory, -v2).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec import Struct

from hpcverify.telemetry import sysfs
from hpcverify.units import KIB

NODE_FOLDER = "sys/devices/system/node"
GPU_FOLDER = "proc/driver/nvidia/gpus"
RECLAIMABLE = ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable")
"""What the kernel gives to a program that asks for memory, without swapping."""


class CgroupFiles(Struct, frozen=True):
    """The files of a version of cgroups: limits, use, and the page cache in memory.stat."""

    limits: tuple[str, ...]
    usage: str
    cache: str


UNIFIED = CgroupFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")
LEGACY = CgroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


class NumaNode(Struct, frozen=True):
    """A NUMA node with memory that this process may use."""

    number: int
    cores: tuple[int, ...]
    """Its logical CPUs; none, for memory without processors."""
    free: int
    """Bytes that a program can get there without swapping."""


def read_memory(root: Path = Path("/")) -> dict[str, float]:
    """Read /proc/meminfo, in bytes by name; counts of pages stay counts."""
    return parse_meminfo(sysfs.read_text(root / "proc/meminfo") or "")


def parse_meminfo(text: str) -> dict[str, float]:
    """Parse the lines of a meminfo, with or without the node before each name."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            factor = KIB if words[1:] == ["kB"] else 1
            values[name.rpartition(" ")[2]] = float(words[0]) * factor
    return values


def read_free_bytes(root: Path = Path("/")) -> int:
    """Read how much memory this process can get: of the host, and within its cgroups."""
    free = int(read_memory(root).get("MemAvailable", 0))
    return max(0, min([free, *list_cgroup_rooms(root)]))


def list_cgroup_rooms(root: Path = Path("/")) -> list[int]:
    """List how many bytes each limit of a cgroup of this process leaves."""
    rooms: list[int] = []
    for line in (sysfs.read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            rooms += _list_rooms(root / "sys/fs/cgroup", path, UNIFIED)
        elif "memory" in controllers.split(","):
            rooms += _list_rooms(root / "sys/fs/cgroup/memory", path, LEGACY)
    return rooms


def _list_rooms(mount: Path, path: str, files: CgroupFiles) -> Iterator[int]:
    """Look at each cgroup from *path* up: any may be unknown inside of a container."""
    below = PurePosixPath(path.lstrip("/"))
    for folder in (mount / below, *(mount / parent for parent in below.parents)):
        used = sysfs.read_number(folder / files.usage)
        if used is None:
            continue
        lines = (sysfs.read_text(folder / "memory.stat") or "").splitlines()
        stat = dict(line.split(maxsplit=1) for line in lines if " " in line)
        cache = int(stat.get(files.cache, "0"))
        for name in files.limits:
            limit = sysfs.read_number(folder / name)  # "max" is not a number
            if limit is not None:
                yield int(limit - used + cache)


def list_numa_nodes(root: Path = Path("/")) -> tuple[NumaNode, ...]:
    """
    List the NUMA nodes whose memory this process may use.

    The kernel says for the whole host only what can be had without swapping; each node gets
    its share, by what is free there and what could be reclaimed. A kernel without NUMA has
    one node, number 0. The memory of a GPU that the CPU can address (Grace Hopper) is a
    node as well, but is not the host's.
    """
    available = read_memory(root).get("MemAvailable", 0.0)
    nodes = {
        int(folder.name.removeprefix("node")): folder
        for folder in sysfs.list_entries(root / NODE_FOLDER, "node[0-9]*")
    }
    status = (sysfs.read_text(root / "proc/self/status") or "").splitlines()
    listed = [line for line in status if line.startswith("Mems_allowed_list:")]
    allowed = [sysfs.parse_cpu_list(line.partition(":")[2].strip()) for line in listed]
    of_gpus = _list_gpu_nodes(root)
    own = {n: parse_meminfo(sysfs.read_text(f / "meminfo") or "") for n, f in nodes.items()}
    reclaimable = {n: sum(v.get(name, 0.0) for name in RECLAIMABLE) for n, v in own.items()}
    total = sum(reclaimable.values())
    if not total:
        return (NumaNode(0, (), int(available)),)
    return tuple(
        NumaNode(
            number,
            sysfs.parse_cpu_list(sysfs.read_text(folder / "cpulist") or ""),
            int(available * reclaimable[number] / total),
        )
        for number, folder in nodes.items()
        if all(number in numbers for numbers in allowed)
        and number not in of_gpus
        and own[number].get("MemTotal", 0) > 0
    )


def _list_gpu_nodes(root: Path) -> frozenset[int]:
    """List the NUMA nodes that the driver of NVIDIA says are memory of a GPU."""
    files = (gpu / "numa_status" for gpu in sysfs.list_entries(root / GPU_FOLDER, "*"))
    lines = (line for file in files for line in (sysfs.read_text(file) or "").splitlines())
    fields = (line.partition(":") for line in lines)
    return frozenset(
        int(value) for name, _, value in fields if name == "Node" and value.strip().isdigit()
    )


def read_cache_bytes(root: Path = Path("/")) -> int:
    """Read the size of the largest cache that a core has; 0 if it is not known."""
    pattern = "cpu[0-9]*/cache/index[0-9]*"
    sizes = (
        sysfs.read_text(folder / "size") or ""
        for folder in sysfs.list_entries(root / "sys/devices/system/cpu", pattern)
    )
    return max((int(s.removesuffix("K")) * KIB for s in sizes if s.endswith("K")), default=0)
