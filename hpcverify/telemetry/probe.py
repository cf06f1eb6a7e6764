"""
What a node is made of.

Everything is read from files of the kernel and from NVML; nothing is run. A file
that is missing leaves a fact out. The facts are those that stay the same while
nobody touches the machine, so that any difference between two runs means something.
Devices on USB are left out: the service processor of most servers plugs a network
card and drives in and out as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcverify.model import Device, Inventory, Part
from hpcverify.telemetry import cpu, dmi, edac, host_readers, pci, sensor, sysfs
from hpcverify.telemetry.reading import Reading

if TYPE_CHECKING:
    from hpcverify.telemetry.nvml.survey import Survey

Holders = tuple[tuple[str, int], ...]
"""Who holds which GPU: its UUID, and the id of the process."""

CPU_DEVICE = Device(kind="cpu", part="cpu", label="CPU")


def probe(root: Path = Path("/")) -> Inventory:
    """List the parts of this node, what can be computed on, and what is amiss."""
    inventory, _ = look(root)
    return inventory


def look(root: Path = Path("/")) -> tuple[Inventory, Holders]:
    """List what this node is made of and what is amiss, and who holds its GPUs."""
    gpus = _gpus(root)
    inventory = Inventory(
        parts=(
            system(root),
            cpu.part(root),
            memory(root),
            *dmi.dimms(root),
            *edac.parts(root),
            *gpus.parts,
            *nics(root),
            *disks(root),
        ),
        devices=(CPU_DEVICE, *gpus.devices),
        problems=gpus.problems,
    )
    read = [*gpus.readings, *_host_readings(inventory, root)]
    sensors = sorted({sensor(r.where, r.name) for r in read})
    return replace(inventory, sensors=tuple(sensors)), gpus.holders


def _gpus(root: Path) -> Survey:
    from hpcverify.telemetry.nvml.survey import survey  # noqa: PLC0415 - 30 ms that only a probe needs

    return survey(root)


def _host_readings(inventory: Inventory, root: Path) -> Iterator[Reading]:
    for reader in host_readers(inventory, root):
        with closing(reader):
            yield from reader.read()


def system(root: Path) -> Part:
    """Describe the machine as a whole: its maker, its firmware, its kernel."""
    dmi_id = root / "sys/class/dmi/id"
    facts = sysfs.known(
        vendor=sysfs.text(dmi_id / "sys_vendor"),
        product=sysfs.text(dmi_id / "product_name"),
        serial=sysfs.text(dmi_id / "product_serial"),
        board=sysfs.text(dmi_id / "board_name"),
        bios=sysfs.text(dmi_id / "bios_version"),
        kernel=sysfs.text(root / "proc/sys/kernel/osrelease"),
        os=_os_name(root),
    )
    return Part("system", "node", "node", facts)


def _os_name(root: Path) -> str | None:
    lines = (sysfs.text(root / "etc/os-release") or "").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("PRETTY_NAME", "").strip("\"'") or None


def memory(root: Path) -> Part:
    """
    Describe the memory as one part, with its total in whole GiB.

    The blocks that the kernel manages count what is plugged in, whatever it keeps
    for itself; MemTotal, the next best, varies a little with the kernel.
    """
    blocks = root / "sys/devices/system/memory"
    size = int(sysfs.text(blocks / "block_size_bytes") or "0", 16)
    total = size * len(sysfs.entries(blocks, "memory[0-9]*"))
    gib = round((total or _mem_total(root)) / 2**30)
    facts = {"total": f"{gib} GiB"} if gib else {}
    return Part("memory", "memory", "memory", facts)


def _mem_total(root: Path) -> int:
    line = (sysfs.text(root / "proc/meminfo") or "").partition("\n")[0]
    words = line.split()
    return int(words[1]) * 1024 if words[:1] == ["MemTotal:"] else 0


def nics(root: Path) -> Iterator[Part]:
    """Describe the network ports that hang on a device; failing these, any other."""
    ports = sysfs.entries(root / "sys/class/net")
    ports = [port for port in ports if (port / "address").exists()]
    real = [port for port in ports if _is_hardware(port)]
    for port in real or [port for port in ports if port.name != "lo"]:
        yield _ethernet(port)
    for adapter in sysfs.entries(root / "sys/class/infiniband"):
        if _is_hardware(adapter):
            yield _infiniband(adapter)


def _is_hardware(entry: Path) -> bool:
    """Whether *entry* hangs on a device that is plugged in for good."""
    device = sysfs.target(entry / "device")
    return (
        device is not None
        and not (entry / "device/physfn").exists()  # a virtual function
        and not any(name.startswith("usb") for name in device.parts)
    )


def _ethernet(port: Path) -> Part:
    facts = sysfs.known(
        pci_address=pci.address_of(port / "device"),
        driver=pci.driver(port / "device"),
    )
    mac = _permanent_mac(port)
    where = mac or facts.get("pci_address") or f"nic-{port.name}"
    return Part("nic", where, port.name, facts)


def _permanent_mac(port: Path) -> str | None:
    """Read the address that is burnt in; one that was assigned may change."""
    bonded = sysfs.text(port / "bonding_slave/perm_hwaddr")
    burnt_in = sysfs.text(port / "addr_assign_type") == "0" and _is_hardware(port)
    return bonded or (sysfs.text(port / "address") if burnt_in else None)


def _infiniband(adapter: Path) -> Part:
    facts = sysfs.known(
        model=sysfs.text(adapter / "hca_type"),
        board=sysfs.text(adapter / "board_id"),
        firmware=sysfs.text(adapter / "fw_ver"),
        pci_address=pci.address_of(adapter / "device"),
    )
    guid = sysfs.text(adapter / "node_guid")
    return Part("nic", guid or f"nic-{adapter.name}", adapter.name, facts)


def disks(root: Path) -> Iterator[Part]:
    """Describe the drives: no partitions, no loop devices, nothing removable."""
    for disk in sysfs.entries(root / "sys/block"):
        size = sysfs.number(disk / "size")
        removable = sysfs.text(disk / "removable") == "1"
        hidden = sysfs.text(disk / "hidden") == "1"  # one path of several to a drive
        if size and _is_hardware(disk) and not removable and not hidden:
            yield _disk(disk, size)


def _disk(disk: Path, sectors: float) -> Part:
    device = disk / "device"
    serial = sysfs.text(device / "serial") or sysfs.text(disk / "serial")
    wwid = sysfs.text(disk / "wwid") or sysfs.text(device / "wwid")
    facts = sysfs.known(
        model=sysfs.text(device / "model"),
        serial=serial,
        size=f"{sectors * 512 / 1e9:.1f} GB",
        firmware=sysfs.text(device / "firmware_rev") or sysfs.text(device / "rev"),
        rotational={"0": "no", "1": "yes"}.get(
            sysfs.text(disk / "queue/rotational") or ""
        ),
    )
    return Part("disk", wwid or serial or f"disk-{disk.name}", disk.name, facts)
