"""How much memory is free, on which NUMA node, and how much of it a cgroup leaves us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from hpcverify.telemetry.memory import (
    NumaNode,
    list_cgroup_rooms,
    list_numa_nodes,
    read_cache_bytes,
    read_free_bytes,
)
from hpcverify.units import GIB, MIB


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def meminfo(number: int, free_mib: int, file_mib: int) -> str:
    return "".join(
        f"Node {number} {name}: {mib * 1024} kB\n"
        for name, mib in (
            ("MemTotal", 9000),
            ("MemFree", free_mib),
            ("Active(file)", file_mib),
            ("Inactive(file)", 0),
            ("AnonPages", 5000),
        )
    )


TWO_NODES = {
    "proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {3000 * 1024} kB\nHugePages_Total: 0\n",
    "proc/self/status": "Name:\tpython\nMems_allowed_list:\t0-1\n",
    "sys/devices/system/node/node0/meminfo": meminfo(0, 2000, 1000),
    "sys/devices/system/node/node0/cpulist": "0-3\n",
    "sys/devices/system/node/node1/meminfo": meminfo(1, 1000, 0),
    "sys/devices/system/node/node1/cpulist": "\n",
    "sys/devices/system/node/node2/meminfo": "Node 2 MemTotal: 0 kB\n",
    "sys/devices/system/node/node2/cpulist": "4-7\n",
}


def test_what_is_available_is_shared_among_the_nodes_by_what_each_can_give(tmp_path: Path) -> None:
    assert list_numa_nodes(plant(tmp_path, TWO_NODES)) == (
        NumaNode(0, (0, 1, 2, 3), 2250 * MIB),
        NumaNode(1, (), 750 * MIB),
    )


def test_a_node_that_a_cpuset_forbids_is_left_out(tmp_path: Path) -> None:
    only = {"proc/self/status": "Mems_allowed_list:\t1\n"}
    assert [n.number for n in list_numa_nodes(plant(tmp_path, {**TWO_NODES, **only}))] == [1]


def test_memory_of_a_gpu_is_not_the_hosts(tmp_path: Path) -> None:
    folder = "proc/driver/nvidia/gpus/0009:01:00.0"
    gpu = {f"{folder}/numa_status": "Node:              1\nStatus:            online\n"}
    assert [n.number for n in list_numa_nodes(plant(tmp_path, {**TWO_NODES, **gpu}))] == [0]


@pytest.mark.parametrize("node", ["-1", ""])
def test_a_gpu_whose_memory_is_no_node_changes_nothing(tmp_path: Path, node: str) -> None:
    gpu = {"proc/driver/nvidia/gpus/0000:18:00.0/numa_status": f"Node: {node}\nStatus: disabled\n"}
    assert len(list_numa_nodes(plant(tmp_path, {**TWO_NODES, **gpu}))) == len((0, 1))


def test_a_kernel_without_numa_has_one_node(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemAvailable: 2048 kB\n"}
    assert list_numa_nodes(plant(tmp_path, files)) == (NumaNode(0, (), 2 * MIB),)


UNIFIED = {
    "proc/meminfo": f"MemAvailable: {64 * 1024**2} kB\n",
    "proc/self/cgroup": "0::/slurm/job_7/step_0\n",
    "sys/fs/cgroup/slurm/job_7/step_0/memory.max": "max\n",
    "sys/fs/cgroup/slurm/job_7/step_0/memory.current": "5\n",
    "sys/fs/cgroup/slurm/job_7/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/slurm/job_7/memory.high": f"{7 * GIB}\n",
    "sys/fs/cgroup/slurm/job_7/memory.current": f"{3 * GIB}\n",
    "sys/fs/cgroup/slurm/job_7/memory.stat": f"anon 5\ninactive_file {GIB}\n",
}
LEGACY = {
    "proc/meminfo": f"MemAvailable: {64 * 1024**2} kB\n",
    "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/job_7\n0::/\n",
    "sys/fs/cgroup/memory/job_7/memory.limit_in_bytes": f"{8 * GIB}\n",
    "sys/fs/cgroup/memory/job_7/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/job_7/memory.stat": "total_inactive_file 0\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "7\n",
}


@pytest.mark.parametrize(
    ("files", "free"), [(UNIFIED, 5 * GIB), (LEGACY, 5 * GIB)], ids=["v2", "v1"]
)
def test_the_tightest_cgroup_above_us_limits_what_is_free(
    tmp_path: Path, files: Mapping[str, str], free: int
) -> None:
    assert read_free_bytes(plant(tmp_path, files)) == free


def test_without_a_limit_all_that_is_available_is_free(tmp_path: Path) -> None:
    root = plant(tmp_path, {**UNIFIED, "proc/self/cgroup": "0::/elsewhere\n"})
    assert list_cgroup_rooms(root) == []
    assert read_free_bytes(root) == 64 * GIB


def test_a_cgroup_that_is_full_leaves_nothing(tmp_path: Path) -> None:
    full = {"sys/fs/cgroup/slurm/job_7/memory.current": f"{9 * GIB}\n"}
    assert read_free_bytes(plant(tmp_path, {**UNIFIED, **full})) == 0


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache/index"
    files = {f"{folder}0/size": "48K\n", f"{folder}3/size": "32768K\n"}
    assert read_cache_bytes(plant(tmp_path, files)) == 32 * MIB
    assert read_cache_bytes(tmp_path / "none") == 0
