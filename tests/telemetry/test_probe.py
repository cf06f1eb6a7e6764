"""What a node is made of, from files of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.telemetry import blockdev, make_readers, name_sensor, nics
from hpcverify.telemetry import probe as probing
from hpcverify.telemetry.probe import probe
from tests.telemetry import trees
from tests.telemetry.trees import grow, link

PCI = "sys/devices/pci0000:00/0000:00:1d.0/0000:3b:00.0"


def disk(root: Path, name: str, **files: object) -> None:
    link(root, f"sys/block/{name}/device", f"{PCI}/{name}-device")
    grow(root, {f"sys/block/{name}/{file}": text for file, text in files.items()})
    grow(root, {f"sys/block/{name}/size": 7501476528})


def nic(root: Path, name: str, device: str | None, **files: object) -> None:
    port = {"address": "aa:bb:cc:00:00:01", "addr_assign_type": 0} | files
    grow(root, {f"sys/class/net/{name}/{file}": text for file, text in port.items()})
    if device:
        link(root, f"sys/class/net/{name}/device", device)


def test_this_machine_is_described_alike_every_time() -> None:
    first = probe()
    assert all(probe() == first for _ in range(50))
    assert {"system", "cpu", "memory"} <= {part.kind for part in first.parts}
    assert first.devices[0].part == "cpu"


def test_a_machine_that_tells_nothing_has_still_a_cpu(tmp_path: Path) -> None:
    found = probe(tmp_path)
    assert [part.id for part in found.parts] == ["node", "cpu", "memory"]
    assert (found.problems, found.sensors) == ((), ())


def test_every_part_has_an_id_of_its_own() -> None:
    ids = [part.id for part in probe().parts]
    assert len(ids) == len(set(ids))


def test_the_system_is_known_by_its_firmware_and_its_kernel(tmp_path: Path) -> None:
    tree = {
        "sys/class/dmi/id/sys_vendor": "Supermicro",
        "sys/class/dmi/id/product_serial": "S1",
        "sys/class/dmi/id/bios_version": "2.1",
        "proc/sys/kernel/osrelease": "6.8.0",
        "etc/os-release": 'ID=ubuntu\nPRETTY_NAME="Ubuntu 24.04"',
    }
    assert probing.describe_system(grow(tmp_path, tree)).facts == {
        "vendor": "Supermicro",
        "serial": "S1",
        "bios": "2.1",
        "kernel": "6.8.0",
        "os": "Ubuntu 24.04",
    }


def test_memory_is_counted_in_blocks_or_else_by_what_the_kernel_kept(tmp_path: Path) -> None:
    grow(tmp_path, {"proc/meminfo": "MemTotal: 263000000 kB\nMemFree: 1 kB"})
    assert probing.describe_memory(tmp_path).facts == {"total": "251 GiB"}
    blocks = "sys/devices/system/memory"
    grow(tmp_path, {f"{blocks}/block_size_bytes": "80000000"})
    for number in range(128):
        (tmp_path / blocks / f"memory{number}").mkdir()
    assert probing.describe_memory(tmp_path).facts == {"total": "256 GiB"}


def test_a_drive_goes_by_its_worldwide_name(tmp_path: Path) -> None:
    disk(tmp_path, "nvme0n1", wwid="eui.0025", **{"queue/rotational": 0})
    device = f"{PCI}/nvme0n1-device"
    grow(
        tmp_path,
        {
            f"{device}/model": "PM9A3",
            f"{device}/serial": "S64G",
            f"{device}/firmware_rev": "GDC5902Q",
        },
    )
    (part,) = probing.list_disks(tmp_path)
    assert (part.id, part.label) == ("eui.0025", "nvme0n1")
    assert part.facts == {
        "model": "PM9A3",
        "serial": "S64G",
        "size": "3840.8 GB",
        "firmware": "GDC5902Q",
        "rotational": "no",
        "pci_address": "0000:3b:00.0",
    }


@pytest.mark.parametrize(
    ("place", "files", "network", "address"),
    [
        ("platform/host3/session1/target3:0:0/3:0:0:1", {}, "iSCSI", None),
        (
            "pci0000:00/0000:3b:00.0/host1/rport-1:0-2/target1:0:0/1:0:0:0",
            {},
            "Fibre Channel",
            None,
        ),
        ("rbd/0", {}, "RBD", None),
        ("virtual/nvme-fabrics/ctl/nvme1", {"transport": "tcp"}, "tcp", None),
        ("pci0000:00/0000:3b:00.0/nvme/nvme0", {"transport": "pcie"}, None, "0000:3b:00.0"),
        (
            "pci0000:00/0000:00:1f.0/nvme/nvme0",
            {"transport": "pcie", "model": "Amazon Elastic Block Store"},
            "EBS",
            None,
        ),
        ("pci0000:00/0000:00:04.0/virtio1", {}, None, "0000:00:04.0"),
    ],
)
def test_a_disk_tells_how_it_is_reached(
    tmp_path: Path,
    place: str,
    files: dict[str, object],
    network: str | None,
    address: str | None,
) -> None:
    folder = f"sys/devices/{place}/block/sdx"
    link(tmp_path, f"{folder}/device", f"sys/devices/{place}")
    link(tmp_path, "sys/block/sdx", folder)
    grow(tmp_path, {f"{folder}/size": 1000} | {f"{folder}/device/{n}": t for n, t in files.items()})
    (part,) = probing.list_disks(tmp_path)
    assert (part.facts.get("network"), part.facts.get("pci_address")) == (network, address)


@pytest.mark.parametrize(("transport", "network"), [("tcp", "tcp"), ("pcie", None)])
def test_a_drive_of_several_controllers_tells_how_they_are_reached(
    tmp_path: Path, transport: str, network: str | None
) -> None:
    """As native multipath of NVMe has it, which it also is with one path."""
    subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys0"
    link(tmp_path, f"{subsystem}/nvme0n1/device", subsystem)
    link(tmp_path, "sys/block/nvme0n1", f"{subsystem}/nvme0n1")
    link(tmp_path, f"{subsystem}/nvme0", f"{PCI}/nvme/nvme0")
    grow(tmp_path, {f"{subsystem}/nvme0n1/size": 1000, f"{PCI}/nvme/nvme0/transport": transport})
    (part,) = probing.list_disks(tmp_path)
    assert part.facts.get("network") == network
    assert part.facts.get("pci_address") == (None if network else "0000:3b:00.0")
    assert blockdev.is_local(tmp_path / "sys/block/nvme0n1") is (network is None)


def test_memory_of_nodes_without_cores_is_told_apart(tmp_path: Path) -> None:
    blocks, nodes = "sys/devices/system/memory", "sys/devices/system/node"
    grow(tmp_path, {f"{blocks}/block_size_bytes": "40000000"})
    for number in range(6):
        node = f"{nodes}/node{number // 4}"
        grow(tmp_path, {f"{node}/cpulist": "0-71" if number < 4 else ""})
        link(tmp_path, f"{node}/memory{number}", f"{blocks}/memory{number}")
    facts = probing.describe_memory(tmp_path).facts
    assert facts == {"total": "6 GiB", "beside_cores": "4 GiB"}


@pytest.mark.parametrize("mark", ["removable", "hidden"])
def test_what_comes_and_goes_is_no_drive_of_the_node(tmp_path: Path, mark: str) -> None:
    disk(tmp_path, "sda", **{mark: 1})
    grow(tmp_path, {"sys/block/loop0/size": 100})
    assert list(probing.list_disks(tmp_path)) == []


def test_a_drive_without_any_number_goes_by_its_name(tmp_path: Path) -> None:
    disk(tmp_path, "vdb")
    assert [part.id for part in probing.list_disks(tmp_path)] == ["disk-vdb"]


def test_a_network_port_goes_by_its_burnt_in_address(tmp_path: Path) -> None:
    nic(tmp_path, "ens1", PCI)
    nic(tmp_path, "bond0", None)
    (part,) = nics.list_nics(tmp_path)
    assert (part.id, part.label) == ("aa:bb:cc:00:00:01", "ens1")
    assert part.facts == {"pci_address": "0000:3b:00.0"}


def test_an_address_that_was_assigned_names_nothing(tmp_path: Path) -> None:
    nic(tmp_path, "ens1", PCI, addr_assign_type=3)
    assert [part.id for part in nics.list_nics(tmp_path)] == ["0000:3b:00.0"]


def test_a_port_in_a_bond_keeps_its_own_address(tmp_path: Path) -> None:
    nic(tmp_path, "ens1", PCI, **{"bonding_slave/perm_hwaddr": "aa:bb:cc:00:00:99"})
    assert [part.id for part in nics.list_nics(tmp_path)] == ["aa:bb:cc:00:00:99"]


def test_the_network_of_the_service_processor_is_not_the_nodes(tmp_path: Path) -> None:
    nic(tmp_path, "ens1", PCI)
    nic(tmp_path, "usb0", "sys/devices/pci0000:00/0000:00:14.0/usb1/1-8")
    assert [part.label for part in nics.list_nics(tmp_path)] == ["ens1"]


def test_virtual_ports_count_where_there_are_no_others(tmp_path: Path) -> None:
    nic(tmp_path, "lo", None)
    nic(tmp_path, "eth0", None)
    assert [part.id for part in nics.list_nics(tmp_path)] == ["nic-eth0"]


def test_infiniband_adapters_are_listed_with_their_firmware(tmp_path: Path) -> None:
    adapter = "sys/class/infiniband/mlx5_0"
    grow(tmp_path, {f"{adapter}/node_guid": "a0b1", f"{adapter}/fw_ver": "28.39"})
    link(tmp_path, f"{adapter}/device", PCI)
    (part,) = nics.list_nics(tmp_path)
    assert part.id == "a0b1"
    assert part.facts == {"firmware": "28.39", "pci_address": "0000:3b:00.0"}


def test_the_sensors_of_a_machine_are_named_by_part_and_series(tmp_path: Path) -> None:
    found = probe(trees.edac(tmp_path))
    assert name_sensor("mc0/dimm1", "ecc.corrected") in found.sensors
    assert found.find_label("mc0/dimm1") == "CPU0_DIMM_B1"


def test_no_nvml_is_read_where_no_gpu_has_a_driver(tmp_path: Path) -> None:
    assert len(make_readers(probe(tmp_path), tmp_path)) == 3
