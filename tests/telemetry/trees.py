"""Writes the files of a machine that is not this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = "sys/devices/system/cpu"
EDAC = "sys/devices/system/edac/mc"


def grow(root: Path, files: Mapping[str, object]) -> Path:
    """Write *files* below *root*, each with the newline that the kernel adds."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def link(root: Path, name: str, to: str) -> None:
    """Make *name* a link to the folder *to*, which it creates."""
    path, end = root / name, root / to
    end.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(end)


def edac(root: Path, corrected: int = 0, uncorrected: int = 0) -> Path:
    """Give a machine one memory controller with two DIMMs; the second counts."""
    dimms = f"{EDAC}/mc0"
    return grow(
        root,
        {
            f"{dimms}/ce_count": corrected,
            f"{dimms}/ue_count": uncorrected,
            f"{dimms}/ce_noinfo_count": 0,
            f"{dimms}/ue_noinfo_count": 0,
            f"{dimms}/dimm0/dimm_ce_count": 0,
            f"{dimms}/dimm0/dimm_ue_count": 0,
            f"{dimms}/dimm0/dimm_label": "CPU0_DIMM_A1",
            f"{dimms}/dimm1/dimm_ce_count": corrected,
            f"{dimms}/dimm1/dimm_ue_count": uncorrected,
            f"{dimms}/dimm1/dimm_label": "CPU0_DIMM_B1",
            f"{dimms}/dimm1/size": 32768,
        },
    )


KFD = "sys/class/kfd/kfd"


def amd_gpu(root: Path, number: int, driver: str = "amdgpu", **files: object) -> str:
    """
    Plug in an MI300X that amdgpu runs, and return its address; a file of None is absent.

    The ids and the memory have the form of published listings (ROCm/aiter issue 3807,
    AMDResearch/hpcfund issue 86), and the files the names that the kernel's document gives
    them (docs.kernel.org/gpu/amdgpu/driver-misc.html); serial and part number are invented.
    """
    address = f"0000:{0x0C + 0x10 * number:02x}:00.0"
    folder = f"sys/bus/pci/devices/{address}"
    shown = {
        "vendor": "0x1002",
        "device": "0x74a1",
        "class": "0x120000",
        "unique_id": f"1ff168be1f0fb7d{number}",
        "product_name": "AMD Instinct MI300X OAM",
        "serial_number": f"69243400{number}",
        "product_number": "102-G30211-00",
        "vbios_version": "113-M3000100-102",
        "mem_info_vram_total": 196592 * 2**20,
        "current_compute_partition": "SPX",
    } | files
    grow(root, {f"{folder}/{name}": text for name, text in shown.items() if text is not None})
    if driver:
        link(root, f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
    node = f"{KFD}/topology/nodes/{number + 2}"
    place = (0x0C + 0x10 * number) << 8
    grow(
        root,
        {
            f"{node}/gpu_id": 1000 + number,
            f"{node}/properties": f"simd_count 1216\nlocation_id {place}\ndomain 0",
        },
    )
    return address


def amd_process(root: Path, pid: int, memory: Mapping[int, int]) -> None:
    """Let the process *pid* hold *memory* bytes of GPUs, by number."""
    held = {f"{KFD}/proc/{pid}/vram_{1000 + gpu}": held for gpu, held in memory.items()}
    grow(root, {f"{KFD}/proc/{pid}/pasid": 32771, **held})
