"""Versions and settings of the node as a whole, from files of machines that are not this one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.telemetry.settings import read_settings
from tests.telemetry.trees import CPU, grow

COMMAND_LINE = (
    "BOOT_IMAGE=/vmlinuz-6.8.0-40 root=UUID=1c9a8c0e-1234-4a6b-9f53-6a6f1c7cbb11 ro quiet "
    "iommu=pt BOOTIF=01-aa-bb-cc-dd-ee-ff ds=nocloud;s=http://10.1.1.1/n17 pci=realloc=off "
    "wwinit.token=abc mitigations=auto,nosmt ip=10.1.2.17::10.1.1.1 -- --init"
)
OPEN_DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    "GCC version:  gcc version 13.3.0"
)
CLOSED_DRIVER = OPEN_DRIVER.replace("Open Kernel Module for x86_64", "x86_64 Kernel Module")


def a_server(root: Path) -> Path:
    """Make the files of a server with two sockets and NVIDIA's open driver."""
    folders = {"usr/lib/x86_64-linux-gnu", "usr/local", "etc/alternatives"}
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/x86_64-linux-gnu/libnccl.so.2").symlink_to("libnccl.so.2.26.2")
    (root / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (root / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-12.8")
    return grow(
        root,
        {
            "sys/class/dmi/id/bios_date": "03/14/2026",
            "proc/driver/nvidia/version": OPEN_DRIVER,
            "proc/cmdline": COMMAND_LINE,
            f"{CPU}/smt/control": "off",
            f"{CPU}/cpufreq/policy0/scaling_driver": "intel_pstate",
            f"{CPU}/cpufreq/policy0/scaling_governor": "performance",
            f"{CPU}/intel_pstate/no_turbo": "1",
            f"{CPU}/cpuidle/current_driver": "intel_idle",
            f"{CPU}/cpu0/cpuidle/state0/name": "POLL",
            f"{CPU}/cpu0/cpuidle/state0/disable": "0",
            f"{CPU}/cpu0/cpuidle/state1/name": "C1",
            f"{CPU}/cpu0/cpuidle/state1/disable": "0",
            f"{CPU}/cpu0/cpuidle/state2/name": "C6",
            f"{CPU}/cpu0/cpuidle/state2/disable": "1",
            "sys/kernel/iommu_groups/0/type": "identity",
            "sys/module/pcie_aspm/parameters/policy": "default [performance] powersave",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
            "proc/sys/kernel/numa_balancing": "1",
            f"{CPU}/vulnerabilities/meltdown": "Not affected",
            f"{CPU}/vulnerabilities/retbleed": "Vulnerable",
            f"{CPU}/vulnerabilities/spectre_v2": "Mitigation: Enhanced IBRS",
        },
    )


def test_a_server_tells_its_settings(tmp_path: Path) -> None:
    assert read_settings(a_server(tmp_path)) == {
        "BIOS date": "03/14/2026",
        "GPU kernel modules": "open",
        "CUDA toolkit": "12.8",
        "NCCL library": "2.26.2",
        "kernel command line": "iommu=pt mitigations=auto,nosmt pci=realloc=off quiet ro",
        "SMT": "off",
        "CPU frequency driver": "intel_pstate",
        "CPU governor": "performance",
        "CPU boost": "off",
        "CPU idle driver": "intel_idle",
        "CPU idle states": "POLL C1",
        "IOMMU": "identity",
        "PCIe ASPM policy": "performance",
        "transparent huge pages": "madvise",
        "NUMA balancing": "1",
        "CPU vulnerable to": "retbleed",
    }


def test_a_machine_that_tells_nothing_lacks_what_could_be_installed(tmp_path: Path) -> None:
    assert read_settings(tmp_path) == dict.fromkeys(
        ("CUDA toolkit", "NCCL library", "CPU frequency driver", "CPU idle driver"), "none"
    )


def test_nothing_that_is_a_nodes_own_or_secret_is_kept_of_the_command_line(tmp_path: Path) -> None:
    told = read_settings(a_server(tmp_path))["kernel command line"]

    assert not any(word in told for word in ("UUID", "10.1", "aa-bb", "token", "http", "--init"))


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("isolcpus=1-13,29-41", True),
        ("pcie_aspm.policy=performance", True),
        ("nvme_core.io_timeout=4294967295", True),
        ("crashkernel=1G-4G:192M,4G-64G:256M", True),
        ("deadbeef", True),
        ("rd.luks.uuid=1", False),
        ("lease=1c9a8c0e-1234-4a6b-9f53-6a6f1c7cbb11", False),
        ("port=AA:bb:cc:dd:ee:0f", False),
        ("nfsroot=10.1.2.3:/image", False),
        ("inst.repo=http://mirror/", False),
        ("join_token=x", False),
        ("long=" + 80 * "x", False),
    ],
)
def test_of_the_command_line_only_what_any_node_may_have_is_kept(
    tmp_path: Path, word: str, *, kept: bool
) -> None:
    grow(tmp_path, {"proc/cmdline": f"ro {word}"})

    told = read_settings(tmp_path)["kernel command line"]

    assert told == (" ".join(sorted(("ro", word))) if kept else "ro")


@pytest.mark.parametrize(
    ("name", "content", "fact", "expected"),
    [
        ("proc/driver/nvidia/version", CLOSED_DRIVER, "GPU kernel modules", "proprietary"),
        (f"{CPU}/intel_pstate/no_turbo", "0", "CPU boost", "on"),
        (f"{CPU}/vulnerabilities/retbleed", "Not affected", "CPU vulnerable to", "nothing"),
        ("sys/kernel/iommu_groups/0/type", "DMA-FQ", "IOMMU", "DMA-FQ"),
    ],
)
def test_another_setting_is_told(
    tmp_path: Path, name: str, content: str, fact: str, expected: str
) -> None:
    grow(a_server(tmp_path), {name: content})

    assert read_settings(tmp_path)[fact] == expected


def test_an_amd_server_tells_boost_and_an_iommu_that_is_off(tmp_path: Path) -> None:
    grow(tmp_path, {f"{CPU}/cpufreq/boost": "0"})
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    told = read_settings(tmp_path)

    assert (told["CPU boost"], told["IOMMU"]) == ("off", "off")


def test_a_folder_of_the_network_is_not_looked_at(tmp_path: Path) -> None:
    grow(a_server(tmp_path), {"proc/self/mounts": "nas:/local /usr/local nfs4 rw 0 0"})

    assert "CUDA toolkit" not in read_settings(tmp_path)
