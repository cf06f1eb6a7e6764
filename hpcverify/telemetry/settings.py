"""
What is installed and set on the node as a whole, as far as small files tell.

These are the versions and settings that an image, a boot loader or the BIOS decides, and
that like nodes have in common. Every prolog pays for them: a few dozen reads, no program,
and no file system of the network, which may hang.
"""

from __future__ import annotations

import os
from pathlib import Path

from hpcverify.telemetry import sysfs

NONE = "none"
CPUS = "sys/devices/system/cpu"
NVIDIA_VERSION = "proc/driver/nvidia/version"
LIBRARY_FOLDERS = (
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"),
    *("usr/lib64", "usr/lib"),
)
BOOT_ARGUMENTS = frozenset(
    {"BOOT_IMAGE", "BOOTIF", "initrd", "ip", "resume", "root", "rd.iscsi.initiator"}
)
"""What tells where this node boots from, or who it is, and sets nothing."""
MAX_ARGUMENT_CHARACTERS = 80
PRIVATE_WORDS = ("://", "token", "passw", "secret", "hostname", "uuid", "serial")
"""In what is nobody's business, or names this node or where it boots from."""
MIN_ADDRESS_DIGITS, MIN_ADDRESS_SEPARATORS = 12, 4
"""The least that a MAC address or a UUID has."""
DRIVER_WORDS = "NVRM version: NVIDIA UNIX "


def read_settings(root: Path = Path("/")) -> dict[str, str]:
    """Read the settings of the node by name; absent is "none", and unknown is left out."""
    cpus, base = root / CPUS, os.fspath(root)
    frequency = cpus / "cpufreq/policy0"
    _, separator, rest = (sysfs.read_text(root / NVIDIA_VERSION) or "").partition(DRIVER_WORDS)
    modules = "open" if rest.startswith("Open ") else "proprietary"
    # A server that does not answer may be mounted there.
    may_hang = " /usr/local " in (sysfs.read_text(root / "proc/self/mounts") or "")
    # By the name of the folder, without a look at where a link leads.
    links = (_read_link(f"{base}/{link}") for link in ("usr/local/cuda", "etc/alternatives/cuda"))
    folders = (link.rpartition("/")[2] for link in links)
    cuda = (name.removeprefix("cuda-") for name in folders if name.startswith("cuda-"))
    nccl = (_read_link(f"{base}/{folder}/libnccl.so.2") for folder in LIBRARY_FOLDERS)
    boost = {"0": "off", "1": "on"}.get(sysfs.read_text(cpus / "cpufreq/boost") or "")
    if no_turbo := sysfs.read_text(cpus / "intel_pstate/no_turbo"):
        boost = {"0": "on", "1": "off"}.get(no_turbo)
    states = sysfs.list_entries(cpus / "cpu0/cpuidle", "state*")
    allowed = [state for state in states if sysfs.read_text(state / "disable") != "1"]
    words = (sysfs.read_text(root / "proc/cmdline") or "").partition(" -- ")[0].split()
    kept = {
        word
        for word in words
        if word.partition("=")[0] not in BOOT_ARGUMENTS
        and len(word) <= MAX_ARGUMENT_CHARACTERS
        and not _is_nodes_own(word.lower())
    }
    settings = {
        "BIOS date": sysfs.read_text(root / "sys/class/dmi/id/bios_date"),
        "GPU kernel modules": modules if separator else None,
        "CUDA toolkit": None if may_hang else next(cuda, NONE),
        "NCCL library": next(filter(None, (link.rpartition(".so.")[2] for link in nccl)), NONE),
        "kernel command line": " ".join(sorted(kept)) or None,
        "SMT": sysfs.read_text(cpus / "smt/control"),
        "CPU frequency driver": sysfs.read_text(frequency / "scaling_driver") or NONE,
        "CPU governor": sysfs.read_text(frequency / "scaling_governor"),
        "CPU boost": boost,
        "CPU idle driver": sysfs.read_text(cpus / "cpuidle/current_driver") or NONE,
        "CPU idle states": " ".join(sysfs.read_text(s / "name") or "?" for s in allowed),
        "IOMMU": _read_iommu(root),
        "PCIe ASPM policy": _read_choice(root / "sys/module/pcie_aspm/parameters/policy"),
        "transparent huge pages": _read_choice(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "NUMA balancing": sysfs.read_text(root / "proc/sys/kernel/numa_balancing"),
        "CPU vulnerable to": _list_vulnerabilities(cpus),
    }
    return {name: value for name, value in settings.items() if value}


def _read_choice(path: Path) -> str | None:
    return (sysfs.read_text(path) or "").partition("[")[2].partition("]")[0] or None


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the end is not to be looked at
    except OSError:
        return ""


def _is_nodes_own(word: str) -> bool:
    if any(private in word for private in PRIVATE_WORDS):
        return True
    value = word.rpartition("=")[2]
    pieces = value.replace(":", " ").replace("/", " ").replace(",", " ").split()
    quads = (piece.split(".") for piece in pieces)
    if any(len(quad) == 4 and all(map(str.isdigit, quad)) for quad in quads):  # noqa: PLR2004 - IP
        return True
    digits = value.replace("-", "").replace(":", "")
    return (
        len(digits) >= MIN_ADDRESS_DIGITS
        and len(value) - len(digits) >= MIN_ADDRESS_SEPARATORS
        and all(digit in "0123456789abcdef" for digit in digits)
    )


def _read_iommu(root: Path) -> str | None:
    """Read how the IOMMU translates, as ``identity`` or ``DMA-FQ``; off if it has no group."""
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return None
    if not (groups / "0").exists():
        return "off"
    return sysfs.read_text(groups / "0/type") or "on"


def _list_vulnerabilities(cpus: Path) -> str | None:
    """List what the kernel does nothing against: ``mitigations=off`` or old microcode."""
    texts = {path.name: sysfs.read_text(path) for path in (cpus / "vulnerabilities").glob("*")}
    if not texts:
        return None
    open_to = sorted(name for name, text in texts.items() if (text or "").startswith("Vulnerable"))
    return " ".join(open_to) or "nothing"
