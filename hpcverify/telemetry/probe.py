"""
What a node is made of.

Everything is read from files of the kernel and from the library of the GPUs' vendor
(`vendors`); nothing is run. A file that is missing leaves a fact out. The facts are those
that stay the same while nobody touches the machine, so that any difference between two
runs means something. Devices on USB are left out: the service processor of most servers
plugs a network card and drives in and out as it likes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from hpcverify.model import Device, Inventory, Part
from hpcverify.telemetry import (
    blockdev,
    cpu,
    dmi,
    edac,
    make_host_readers,
    memory,
    name_sensor,
    nics,
    pci,
    sysfs,
    vendors,
)

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
            *nics.list_nics(root),
            *list_disks(root),
        ),
        devices=(CPU_DEVICE, *gpus.devices),
        problems=gpus.problems,
    )
    read = [*gpus.readings]
    for reader in make_host_readers(inventory, root):
        with closing(reader):
            read += reader.read()
    sensors = sorted({name_sensor(r.part_id, r.name) for r in read})
    return replace(inventory, sensors=tuple(sensors)), gpus.holders


def describe_system(root: Path) -> Part:
    """Describe the machine as a whole: its maker, its firmware, its kernel."""
    dmi_id = root / "sys/class/dmi/id"
    lines = (sysfs.read_text(root / "etc/os-release") or "").splitlines()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    facts = sysfs.drop_unknown(
        vendor=sysfs.read_text(dmi_id / "sys_vendor"),
        product=sysfs.read_text(dmi_id / "product_name"),
        serial=sysfs.read_text(dmi_id / "product_serial"),
        board=sysfs.read_text(dmi_id / "board_name"),
        bios=sysfs.read_text(dmi_id / "bios_version"),
        kernel=sysfs.read_text(root / "proc/sys/kernel/osrelease"),
        os=fields.get("PRETTY_NAME", "").strip("\"'") or None,
    )
    return Part("system", "node", "node", facts)


def describe_memory(root: Path) -> Part:
    """
    Describe the memory as one part, with its total in whole GiB.

    The blocks that the kernel manages count what is plugged in, whatever it keeps
    for itself; MemTotal, the next best, varies a little with the kernel. Where NUMA nodes
    without cores have some of it (a GPU's, CXL), the rest is listed as well: a driver or
    daxctl gives and takes the former.
    """
    blocks = root / "sys/devices/system/memory"
    size = int(sysfs.read_text(blocks / "block_size_bytes") or "0", 16)
    total = size * _count_blocks(blocks)
    gib = round((total or memory.read_memory(root).get("MemTotal", 0)) / 2**30)
    facts = {"total": f"{gib} GiB"} if gib else {}
    lists = (
        node / "cpulist" for node in sysfs.list_entries(root / memory.NODE_FOLDER, "node[0-9]*")
    )
    bare = [cores.parent for cores in lists if cores.exists() and not sysfs.read_text(cores)]
    if apart := size * sum(map(_count_blocks, bare)):
        facts["beside_cores"] = f"{round((total - apart) / 2**30)} GiB"
    return Part("memory", "memory", "memory", facts)


def _count_blocks(folder: Path) -> int:
    try:
        names = os.listdir(folder)  # noqa: PTH208 - a big node has thousands
    except OSError:
        return 0
    return sum(name.startswith("memory") and name[6:].isdigit() for name in names)


def list_disks(root: Path) -> Iterator[Part]:
    """Describe the drives: no partitions, no loop devices, nothing removable."""
    for disk in sysfs.list_entries(root / "sys/block"):
        size = sysfs.read_number(disk / "size")
        removable = sysfs.read_text(disk / "removable") == "1"
        hidden = sysfs.read_text(disk / "hidden") == "1"  # one path of several to a drive
        if size and sysfs.is_hardware(disk) and not removable and not hidden:
            yield _describe_disk(disk, size)


def _describe_disk(disk: Path, sectors: float) -> Part:
    device = disk / "device"
    controller, *others = blockdev.list_controllers(disk)
    network = blockdev.find_network(disk)
    serial = sysfs.read_text(device / "serial") or sysfs.read_text(disk / "serial")
    wwid = sysfs.read_text(disk / "wwid") or sysfs.read_text(device / "wwid")
    facts = sysfs.drop_unknown(
        model=sysfs.read_text(device / "model"),
        serial=serial,
        size=f"{sectors * 512 / 1e9:.1f} GB",
        firmware=sysfs.read_text(device / "firmware_rev") or sysfs.read_text(device / "rev"),
        rotational={"0": "no", "1": "yes"}.get(sysfs.read_text(disk / "queue/rotational") or ""),
        network=network,
        # Of several ways to a drive any may be gone.
        pci_address=None if network or others else pci.find_address(controller),
    )
    return Part("disk", wwid or serial or f"disk-{disk.name}", disk.name, facts)
