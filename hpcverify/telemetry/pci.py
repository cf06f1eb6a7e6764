"""What sits on the PCI bus: the truth of "is there a GPU", driver or no driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hpcverify.model import Part
from hpcverify.telemetry import sysfs

PCI_DEVICES_FOLDER = "sys/bus/pci/devices"
ADDRESS_PATTERN = re.compile(r"[0-9a-fA-F]{4,8}(?::[0-9a-fA-F]{2}){2}\.[0-7]")
"""The domain has five digits behind Intel's VMD: ``10000:01:00.0``."""
NVIDIA_VENDOR, AMD_VENDOR = "0x10de", "0x1002"
VGA_CLASS = "0x0300"
DISPLAY_CLASSES = (VGA_CLASS, "0x0302")
"""VGA and 3D controllers; an NVSwitch (0x0680) or an audio function is neither."""
AMD_CLASSES = (*DISPLAY_CLASSES, "0x0380", "0x1200")
"""With "display controller" (MI200) and "processing accelerator" (MI300 and later)."""
PASSTHROUGH_DRIVERS = frozenset({"pci-stub", "pciback", "uio_pci_generic", "igb_uio"})
"""Drivers by which a virtual machine, or a program such as SPDK, has a device to itself. So
have all whose names contain "vfio", such as vfio-pci and nvgrace-gpu-vfio-pci."""


def list_nvidia_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """List the addresses of the NVIDIA GPUs that belong to this node."""
    return tuple(device.name.lower() for device in _list_gpus(root, NVIDIA_VENDOR, DISPLAY_CLASSES))


def count_handed_on_gpus(root: Path = Path("/")) -> int:
    """Count the NVIDIA GPUs that a virtual machine or a program has to itself."""
    return len(_list_gpus(root, NVIDIA_VENDOR, DISPLAY_CLASSES, handed_on=True))


def list_amd_gpus(root: Path = Path("/")) -> tuple[Path, ...]:
    """List the folders of AMD GPUs; a VGA device without unique id is a small GPU inside a CPU."""
    return tuple(
        device
        for device in _list_gpus(root, AMD_VENDOR, AMD_CLASSES)
        if (device / "unique_id").exists() or not _has_class(device, VGA_CLASS)
    )


def _list_gpus(
    root: Path, vendor: str, classes: str | tuple[str, ...], *, handed_on: bool = False
) -> list[Path]:
    devices = (
        device
        for device in sysfs.list_entries(root / PCI_DEVICES_FOLDER)
        if sysfs.read_text(device / "vendor") == vendor
        and _has_class(device, classes)
        and (find_passthrough(device) is not None) is handed_on
    )
    return sorted(devices, key=lambda device: device.name.lower())


def _has_class(device: Path, classes: str | tuple[str, ...]) -> bool:
    return (sysfs.read_text(device / "class") or "").startswith(classes)


def read_driver(device: Path) -> str | None:
    """Name the driver that is bound to the *device* with this folder."""
    bound = sysfs.resolve_link(device / "driver")
    return bound.name if bound else None


def find_passthrough(device: Path) -> str | None:
    """Name the driver by which the *device* with this folder was handed on; None if it was not."""
    # Between two drivers it has none, and only a name that the next one must have.
    driver = read_driver(device) or sysfs.read_text(device / "driver_override") or ""
    return driver if "vfio" in driver or driver in PASSTHROUGH_DRIVERS else None


def read_device_id(address: str, root: Path = Path("/")) -> str | None:
    """Say which device is at *address*, by its maker's number, as in ``2330``."""
    number = sysfs.read_text(root / PCI_DEVICES_FOLDER / address / "device")
    return number.removeprefix("0x") if number else None


def find_address(device: Path) -> str | None:
    """Find the PCI address that the *device* with this folder hangs on."""
    end = sysfs.resolve_link(device)
    if end is None:
        return None
    return next(filter(ADDRESS_PATTERN.fullmatch, reversed(end.parts)), None)


def map_addresses(parts: Iterable[Part]) -> dict[str, str]:
    """Map the addresses of *parts* to their ids; the last part at an address counts."""
    return {
        normalize_address(part.facts["pci_address"]): part.id
        for part in parts
        if part.facts.get("pci_address")
    }


def normalize_address(bus_id: str) -> str:
    """Write NVML's ``00000000:18:00.0`` as sysfs does: ``0000:18:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
