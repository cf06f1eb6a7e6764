"""
The network of several kinds of machines, as sysfs shows it.

The InfiniBand ports have the names, texts and values of a published tree of an H100 node
(leptonai/gpud, sys-class-infiniband-h100); interfaces have the form of the kernel's
documents (ABI/testing/sysfs-class-net). Addresses are invented.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.telemetry.trees import grow, link

COUNTERS = {
    "counters/symbol_error": 0,
    "counters/link_error_recovery": 0,
    "counters/link_downed": 0,
    "counters/port_rcv_errors": 14,
    "counters/local_link_integrity_errors": 0,
    "counters/excessive_buffer_overrun_errors": 0,
    "counters/port_xmit_discards": 0,
}
HW_COUNTERS = {
    "hw_counters/lifespan": 12,
    "hw_counters/local_ack_timeout_err": 0,
    "hw_counters/packet_seq_err": 0,
    "hw_counters/out_of_sequence": 0,
    "hw_counters/implied_nak_seq_err": 0,
    "hw_counters/rnr_nak_retry_err": 0,
    "hw_counters/roce_adp_retrans": 3,
    "hw_counters/roce_adp_retrans_to": 0,
    "hw_counters/roce_slow_restart": 0,
}
UNSET_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
AER = {
    "aer_dev_fatal": "DLP 0\nTOTAL_ERR_FATAL 0",
    "aer_dev_nonfatal": "UnsupReq 0\nTOTAL_ERR_NONFATAL 0",
    "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR 0",
}


def address(index: int, function: int = 0) -> str:
    return f"0000:{0x18 + index:02x}:00.{function}"


def device(root: Path, index: int, driver: str = "mlx5_core", function: int = 0) -> str:
    """Plug in adapter *index* below a port of the root, on 16 lanes of generation 5."""
    above = f"sys/devices/pci0000:{index:02x}/0000:{index:02x}:01.0"
    folder = f"{above}/{address(index, function)}"
    lanes = {
        "current_link_speed": "32.0 GT/s PCIe",
        "current_link_width": 16,
        "max_link_speed": "32.0 GT/s PCIe",
        "max_link_width": 16,
    }
    for end in (above, folder):
        grow(root, {f"{end}/{name}": text for name, text in lanes.items()})
        if not (root / f"sys/bus/pci/devices/{Path(end).name}").exists():
            link(root, f"sys/bus/pci/devices/{Path(end).name}", end)
    grow(root, {f"{folder}/{name}": text for name, text in AER.items()})
    link(root, f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
    return folder


def adapter(root: Path, name: str, folder: str, index: int, **port: object) -> str:
    """Make RDMA adapter *name* on the device *folder*; return the folder of its port."""
    own = f"sys/class/infiniband/{name}"
    shown: Mapping[str, object] = {
        "link_layer": "InfiniBand",
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "gids/0": f"fe80:0000:0000:0000:a088:c203:00aa:{index:04x}",
        **{f"gids/{i}": UNSET_GID for i in range(1, 4)},
        "pkeys/0": "0xffff",
        **{f"pkeys/{i}": "0x0000" for i in range(1, 4)},
        **COUNTERS,
        **HW_COUNTERS,
    } | port
    facts = {
        "hca_type": "MT4129",
        "board_id": "MT_0000000838",
        "fw_ver": "28.41.1000",
        "node_guid": f"a088:c203:00aa:{index:04x}",
    }
    grow(root, {f"{own}/{fact}": text for fact, text in facts.items()})
    grow(root, {f"{own}/ports/1/{file}": t for file, t in shown.items() if t is not None})
    link(root, f"{own}/device", folder)
    return f"{own}/ports/1"


def interface(root: Path, name: str, folder: str | None, index: int = 0, **files: object) -> str:
    """Make the interface *name*, on the device *folder* if it has one; return its folder."""
    own = f"sys/class/net/{name}"
    shown: Mapping[str, object] = {
        "address": f"b8:3f:d2:00:00:{index:02x}",
        "addr_assign_type": 0,
        "type": 1,
        "flags": "0x1003",
        "carrier": 1,
        "carrier_down_count": 1,
        "carrier_changes": 2,
        "speed": 25000,
        "duplex": "full",
        "statistics/rx_crc_errors": 0,
        "statistics/rx_frame_errors": 0,
        "statistics/tx_carrier_errors": 0,
    } | files
    grow(root, {f"{own}/{file}": text for file, text in shown.items() if text is not None})
    if folder:
        link(root, f"{own}/device", folder)
    return own


def h100(root: Path, **infiniband: object) -> Path:
    """Build a node with eight NDR ports, IPoIB on one, and a bond of two RoCE ports."""
    for index in range(8):
        folder = device(root, index)
        adapter(root, f"mlx5_{index}", folder, index, **infiniband)
        if index == 0:
            interface(root, "ib0", folder, type=32, carrier=0, speed=400000, flags="0x1002")
    for index in (8, 9):
        folder = device(root, index)
        interface(root, f"ens{index}", folder, index, **{"bonding_slave/perm_hwaddr": f"c{index}"})
    gids = {f"gids/{i}": f"0000:0000:0000:0000:0000:ffff:0a00:000{i}" for i in range(4)}
    ethernet = {"link_layer": "Ethernet", "rate": "200 Gb/sec (2X NDR)", **gids}
    adapter(root, "mlx5_bond_0", f"sys/bus/pci/devices/{address(8)}", 8, **ethernet)
    for name in ("bond0", "lo", "docker0", "veth1", "ens8.100"):
        interface(root, name, None, carrier=0)
    virtual = device(root, 10)
    grow(root, {f"{virtual}/physfn/vendor": "0x15b3"})
    interface(root, "ens8v0", virtual, carrier=0)
    interface(
        root, "ens8r0", f"sys/bus/pci/devices/{address(8)}", carrier=0, phys_port_name="pf0vf0"
    )
    return root


def gb200(root: Path) -> Path:
    """Build a node with four ports of which none has RoCE counters or AER."""
    absent = dict.fromkeys(HW_COUNTERS)
    for index in range(4):
        folder = device(root, index)
        adapter(root, f"ibp{index}s0", folder, index, **absent, **{"counters/link_downed": None})
        for name in AER:
            (root / folder / name).unlink()
    folder = device(root, 5)
    adapter(root, "mlx5_4", folder, 5, link_layer="Ethernet", **absent)
    interface(root, "enP5p3s0f0", folder, 5, carrier=0)  # a BlueField without a cable
    return root


def roce(root: Path) -> Path:
    """Build a node with eight ports of RoCE at 400 Gb/s, and one that it is reached by."""
    for index in range(8):
        folder = device(root, index)
        gids = {f"gids/{i}": f"0000:0000:0000:0000:0000:ffff:0a00:{index}00{i}" for i in range(4)}
        owners = {f"gid_attrs/ndevs/{i}": f"ens{index}" for i in range(4)}
        adapter(root, f"mlx5_{index}", folder, index, link_layer="Ethernet", **gids, **owners)
        interface(root, f"ens{index}", folder, index, speed=400000)
    interface(root, "eno1", device(root, 9, "igb"), 9, speed=1000)
    return root


def azure(root: Path) -> Path:
    """Build a VM with two functions of InfiniBand, and one that serves a virtual interface."""
    vmbus = "sys/devices/LNXSYSTM:00/LNXSYBUS:00/ACPI0004:00/VMBUS:00/000d3a00-0001"
    link(root, f"{vmbus}/driver", "sys/bus/vmbus/drivers/hv_netvsc")
    interface(root, "eth0", vmbus, 1, speed=50000)
    folder = device(root, 1)
    adapter(root, "mlx5_an0", folder, 1, link_layer="Ethernet", rate="50 Gb/sec (1X NDR)")
    interface(root, "enP1s1", folder, 1, speed=50000)
    link(root, "sys/class/net/enP1s1/master", "sys/class/net/eth0")
    for index in (2, 3):
        keys = {"pkeys/0": "0x8001", "pkeys/1": "0x7fff"}
        folder = device(root, index)
        adapter(root, f"mlx5_ib{index}", folder, index, **keys)
        address = f"00:00:0a:2{index}:fe:80:00:00:00:00:00:00:00:15:5d:ff:fd:33:ff:0{index}"
        interface(root, f"ib{index}", folder, type=32, address=address, speed=400000)
    return root


def cloud(root: Path) -> Path:
    """Build a VM with the adapters of several clouds: virtio, ENA and EFA, MANA, gVNIC."""
    for index, (name, driver) in enumerate(
        [("eth0", "virtio_net"), ("ens5", "ena"), ("eth1", "mana"), ("ens4", "gve")]
    ):
        folder = device(root, index, driver)
        grow(root, {f"{folder}/current_link_width": 0, f"{folder}/max_link_width": 255})
        interface(root, name, folder, index, speed=-1, duplex="unknown")
    efa = {"link_layer": "Unspecified", "rate": "100 Gb/sec (4X EDR)", "pkeys/0": None}
    absent = dict.fromkeys((*COUNTERS, *HW_COUNTERS))
    for index in (6, 7):
        name = f"rdmap{index}s0"
        adapter(root, name, device(root, index, "efa"), 6, **efa, **absent)
        grow(root, {f"sys/class/infiniband/{name}/node_guid": "0000:0000:0000:0000"})
    return root


def laptop(root: Path) -> Path:
    """Build a laptop: a radio, a socket without a cable, and a dock on USB."""
    radio = interface(root, "wlp2s0", device(root, 0, "iwlwifi"), carrier=0, speed=-1)
    (root / radio / "wireless").mkdir()
    interface(root, "enp3s0", device(root, 1, "e1000e"), 1, carrier=0, speed=-1, duplex="unknown")
    usb = "sys/devices/pci0000:00/0000:00:14.0/usb1/1-8"
    interface(root, "enx00", usb, 2, carrier=0)
    interface(root, "lo", None)
    return root


def container(root: Path) -> Path:
    """Build what a container sees: a veth, and no device."""
    interface(root, "lo", None)
    interface(root, "eth0", None)
    return root
