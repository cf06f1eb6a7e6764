"""What sits on the PCI bus: the truth of "is there a GPU", driver or no driver."""

from __future__ import annotations

from pathlib import Path

from hpcverify.telemetry import sysfs

DEVICES = "sys/bus/pci/devices"
NVIDIA = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers; an NVSwitch (0x0680) or an audio function is neither."""
PASSED_ON = frozenset({"vfio-pci", "nvidia-vgpu-vfio", "pci-stub", "pciback"})
"""Drivers of a device that has been handed to a virtual machine."""


def nvidia_gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """List the addresses of the NVIDIA GPUs that belong to this node."""
    addresses = (
        device.name.lower()
        for device in sysfs.entries(root / DEVICES)
        if sysfs.text(device / "vendor") == NVIDIA
        and (sysfs.text(device / "class") or "").startswith(DISPLAY_CLASSES)
        and driver(device) not in PASSED_ON
    )
    return tuple(sorted(addresses))


def driver(device: Path) -> str | None:
    """Name the driver that is bound to the *device* with this folder."""
    bound = sysfs.target(device / "driver")
    return bound.name if bound else None


def device_id(address: str, root: Path = Path("/")) -> str | None:
    """Say which device is at *address*, by its maker's number, as in ``2330``."""
    number = sysfs.text(root / DEVICES / address / "device")
    return number.removeprefix("0x") if number else None


def address_of(device: Path) -> str | None:
    """Find the PCI address that the *device* with this folder hangs on."""
    end = sysfs.target(device)
    if end is None:
        return None
    on_bus = (name for name in reversed(end.parts) if _is_address(name))
    return next(on_bus, None)


def _is_address(name: str) -> bool:
    return len(name) == len("0000:00:00.0") and name[4:5] == name[7:8] == ":"


def normal(bus_id: str) -> str:
    """Write NVML's ``00000000:18:00.0`` as sysfs does: ``0000:18:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
