"""
What a node is made of.

Everything is read from files of the kernel and from the library of the GPUs' vendor
(`vendors`); nothing is run. A file that is missing leaves a fact out. The facts are those
that stay the same while nobody touches the machine, so that any difference between two
runs means something. Devices on USB are left out: the service processor of most servers
plugs a network card and drives in and out as it likes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from hpcverify.model import Device, Inventory, Part
from hpcverify.telemetry import cpu, dmi, edac, make_host_readers, name_sensor, pci, sysfs, vendors
from hpcverify.telemetry.reading import Reading

HolderPairs = tuple[tuple[str, int], ...]
"""Who holds which GPU: the id of its part, and that of the process."""

CPU_DEVICE = Device(kind="cpu", part="cpu", label="CPU")


def probe(root: Path = Path("/")) -> Inventory:
    """List the parts of this node, what can be computed on, and what is amiss."""
    inventory, _ = probe_with_holders(root)
    return inventory


def probe_with_holders(root: Path = Path("/")) -> tuple[Inventory, HolderPairs]:
    """List what this node is made of and what is amiss, and who holds its GPUs."""
    gpus = vendors.survey_gpus(root)
    inventory = Inventory(
        parts=(
            describe_system(root),
            cpu.describe_cpu(root),
            describe_memory(root),
            *dmi.list_dimms(root),
            *edac.list_parts(root),
            *gpus.parts,
            *list_nics(root),
            *list_disks(root),
        ),
        devices=(CPU_DEVICE, *gpus.devices),
        problems=gpus.problems,
    )
    read = [*gpus.readings, *_read_host(inventory, root)]
    sensors = sorted({name_sensor(r.where, r.name) for r in read})
    return replace(inventory, sensors=tuple(sensors)), gpus.holders


def _read_host(inventory: Inventory, root: Path) -> Iterator[Reading]:
    for reader in make_host_readers(inventory, root):
        with closing(reader):
            yield from reader.read()


def describe_system(root: Path) -> Part:
    """Describe the machine as a whole: its maker, its firmware, its kernel."""
    dmi_id = root / "sys/class/dmi/id"
    facts = sysfs.drop_unknown(
        vendor=sysfs.read_text(dmi_id / "sys_vendor"),
        product=sysfs.read_text(dmi_id / "product_name"),
        serial=sysfs.read_text(dmi_id / "product_serial"),
        board=sysfs.read_text(dmi_id / "board_name"),
        bios=sysfs.read_text(dmi_id / "bios_version"),
        kernel=sysfs.read_text(root / "proc/sys/kernel/osrelease"),
        os=_read_os_name(root),
    )
    return Part("system", "node", "node", facts)


def _read_os_name(root: Path) -> str | None:
    lines = (sysfs.read_text(root / "etc/os-release") or "").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("PRETTY_NAME", "").strip("\"'") or None


def describe_memory(root: Path) -> Part:
    """
    Describe the memory as one part, with its total in whole GiB.

    The blocks that the kernel manages count what is plugged in, whatever it keeps
    for itself; MemTotal, the next best, varies a little with the kernel.
    """
    blocks = root / "sys/devices/system/memory"
    size = int(sysfs.read_text(blocks / "block_size_bytes") or "0", 16)
    total = size * len(sysfs.list_entries(blocks, "memory[0-9]*"))
    gib = round((total or _read_mem_total(root)) / 2**30)
    facts = {"total": f"{gib} GiB"} if gib else {}
    return Part("memory", "memory", "memory", facts)


def _read_mem_total(root: Path) -> int:
    line = (sysfs.read_text(root / "proc/meminfo") or "").partition("\n")[0]
    words = line.split()
    return int(words[1]) * 1024 if words[:1] == ["MemTotal:"] else 0


def list_nics(root: Path) -> Iterator[Part]:
    """Describe the network ports that hang on a device; failing these, any other."""
    ports = sysfs.list_entries(root / "sys/class/net")
    ports = [port for port in ports if (port / "address").exists()]
    real = [port for port in ports if _is_hardware(port)]
    for port in real or [port for port in ports if port.name != "lo"]:
        yield _describe_ethernet(port)
    for adapter in sysfs.list_entries(root / "sys/class/infiniband"):
        if _is_hardware(adapter):
            yield _describe_infiniband(adapter)


def _is_hardware(entry: Path) -> bool:
    """Whether *entry* hangs on a device that is plugged in for good."""
    device = sysfs.resolve_link(entry / "device")
    return (
        device is not None
        and not (entry / "device/physfn").exists()  # a virtual function
        and not any(name.startswith("usb") for name in device.parts)
    )


def _describe_ethernet(port: Path) -> Part:
    facts = sysfs.drop_unknown(
        pci_address=pci.find_address(port / "device"), driver=pci.read_driver(port / "device")
    )
    mac = _read_permanent_mac(port)
    where = mac or facts.get("pci_address") or f"nic-{port.name}"
    return Part("nic", where, port.name, facts)


def _read_permanent_mac(port: Path) -> str | None:
    """Read the address that is burnt in; one that was assigned may change."""
    bonded = sysfs.read_text(port / "bonding_slave/perm_hwaddr")
    burnt_in = sysfs.read_text(port / "addr_assign_type") == "0" and _is_hardware(port)
    return bonded or (sysfs.read_text(port / "address") if burnt_in else None)


def _describe_infiniband(adapter: Path) -> Part:
    facts = sysfs.drop_unknown(
        model=sysfs.read_text(adapter / "hca_type"),
        board=sysfs.read_text(adapter / "board_id"),
        firmware=sysfs.read_text(adapter / "fw_ver"),
        pci_address=pci.find_address(adapter / "device"),
    )
    guid = sysfs.read_text(adapter / "node_guid")
    return Part("nic", guid or f"nic-{adapter.name}", adapter.name, facts)


def list_disks(root: Path) -> Iterator[Part]:
    """Describe the drives: no partitions, no loop devices, nothing removable."""
    for disk in sysfs.list_entries(root / "sys/block"):
        size = sysfs.read_number(disk / "size")
        removable = sysfs.read_text(disk / "removable") == "1"
        hidden = sysfs.read_text(disk / "hidden") == "1"  # one path of several to a drive
        if size and _is_hardware(disk) and not removable and not hidden:
            yield _describe_disk(disk, size)


def _describe_disk(disk: Path, sectors: float) -> Part:
    device = disk / "device"
    serial = sysfs.read_text(device / "serial") or sysfs.read_text(disk / "serial")
    wwid = sysfs.read_text(disk / "wwid") or sysfs.read_text(device / "wwid")
    facts = sysfs.drop_unknown(
        model=sysfs.read_text(device / "model"),
        serial=serial,
        size=f"{sectors * 512 / 1e9:.1f} GB",
        firmware=sysfs.read_text(device / "firmware_rev") or sysfs.read_text(device / "rev"),
        rotational={"0": "no", "1": "yes"}.get(sysfs.read_text(disk / "queue/rotational") or ""),
    )
    return Part("disk", wwid or serial or f"disk-{disk.name}", disk.name, facts)
