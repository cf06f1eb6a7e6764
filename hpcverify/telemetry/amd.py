"""
AMD GPUs, by the files of their driver: which there are, and who uses them.

Nothing else of them is read: no counter, no sensor. The files are those of amdgpu and of
its compute half, KFD (docs.kernel.org/gpu/amdgpu/driver-misc.html; the KFD topology in
ROCm's libhsakmt). A GPU goes by its unique id, in the form of ``rocminfo``:
``GPU-f887f319cf12ccc9``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcverify.model import VENDOR_FACT, Device, Finding, Part
from hpcverify.telemetry import pci, sysfs
from hpcverify.telemetry.gpus import GpuSurvey
from hpcverify.units import GIB

DRIVER = "amdgpu"
WHOLE_PARTITION = "SPX"
"""The compute partition that is the whole GPU; DPX, QPX, CPX and so on cut it up."""
KFD_FOLDER = "sys/class/kfd/kfd"


def survey_gpus(folders: Sequence[Path], root: Path) -> GpuSurvey:
    """Describe the GPUs with these *folders* of the PCI bus below *root*."""
    started = [folder for folder in folders if pci.read_driver(folder) == DRIVER]
    others = [folder for folder in folders if folder not in started]
    parts = [_build_part(index, folder, root) for index, folder in enumerate(started)]
    cut_up = {
        part.id: partition
        for part, folder in zip(parts, started, strict=True)
        if (partition := sysfs.read_text(folder / "current_compute_partition"))
        not in (None, WHOLE_PARTITION)
    }
    return GpuSurvey(
        parts=(*map(_build_bare_part, others), *parts),
        devices=tuple(Device("cuda", p.id, p.label) for p in parts if p.id not in cut_up),
        problems=(
            *_report_not_started(others, len(started)),
            *(
                Finding(
                    "gpu_partitioned",
                    part_id,
                    f"the GPU is divided into compute partitions ({name}). Fix: amd-smi set --gpu "
                    f"all --compute-partition {WHOLE_PARTITION}",
                )
                for part_id, name in cut_up.items()
            ),
        ),
        holders=tuple(_list_holders(parts, root)),
    )


def _build_part(index: int, folder: Path, root: Path) -> Part:
    address = folder.name.lower()
    unique_id = sysfs.read_text(folder / "unique_id")
    memory = sysfs.read_number(folder / "mem_info_vram_total")
    device_id = pci.read_device_id(address, root)
    facts = sysfs.drop_unknown(
        pci_address=address,
        driver=sysfs.read_text(root / f"sys/module/{DRIVER}/version") or DRIVER,
        name=sysfs.read_text(folder / "product_name") or f"AMD GPU {device_id}",
        serial=sysfs.read_text(folder / "serial_number"),
        board=sysfs.read_text(folder / "product_number"),
        pci_device_id=_write_device_id(device_id),
        vbios=sysfs.read_text(folder / "vbios_version"),
        memory=f"{memory / GIB:.0f} GiB" if memory else None,
        **{VENDOR_FACT: "AMD"},
    )
    # Some drivers show no unique id in a virtual machine.
    part_id = f"GPU-{unique_id.lower()}" if unique_id else f"gpu-{address}"
    return Part("gpu", part_id, f"GPU {index} (…{part_id[-4:]})", facts)


def _build_bare_part(folder: Path) -> Part:
    address, device_id = folder.name.lower(), sysfs.read_text(folder / "device") or ""
    facts = sysfs.drop_unknown(
        pci_address=address,
        pci_device_id=_write_device_id(device_id.removeprefix("0x")),
        **{VENDOR_FACT: "AMD"},
    )
    return Part("gpu", address, f"GPU at {address}", facts)


def _write_device_id(number: str | None) -> str | None:
    """Prefix the device id with AMD's vendor id, as in ``1002:74a1``: NVIDIA's have none."""
    return f"{pci.AMD_VENDOR.removeprefix('0x')}:{number}" if number else None


def _report_not_started(folders: Sequence[Path], started: int) -> Iterator[Finding]:
    if folders and not started:
        text = (
            f"the PCI bus lists {len(folders)} AMD GPUs, but the driver {DRIVER} is not loaded. "
            f"Fix: modprobe {DRIVER}; if that fails, see the kernel log"
        )
        yield Finding("driver_not_loaded", "node", text)
        return
    for folder in folders:
        text = f"{DRIVER} runs {started} other GPUs, but not this GPU: see the kernel log"
        yield Finding("gpu_unreadable", folder.name.lower(), text)


def _list_holders(parts: Sequence[Part], root: Path) -> Iterator[tuple[str, int]]:
    """List the processes with memory on a GPU, as (id of the part, process id)."""
    places = {part.facts["pci_address"]: part.id for part in parts}
    for node in sysfs.list_entries(root / KFD_FOLDER / "topology/nodes"):
        lines = (sysfs.read_text(node / "properties") or "").splitlines()
        numbers = dict(line.split(" ", 1) for line in lines if " " in line)
        place, domain = int(numbers.get("location_id", 0)), int(numbers.get("domain", 0))
        bus, slot, function = place >> 8 & 0xFF, place >> 3 & 0x1F, place & 0x7
        part_id = places.get(f"{domain:04x}:{bus:02x}:{slot:02x}.{function}")  # none of a CPU
        number = sysfs.read_text(node / "gpu_id")
        for process in sysfs.list_entries(root / KFD_FOLDER / "proc") if part_id else ():
            if sysfs.read_number(process / f"vram_{number}") and process.name.isdigit() and part_id:
                yield part_id, int(process.name)
