"""
The faults of network ports, and what hpcverify must make of each: rows of docs/faults.md.

A fault is some files of an H100 node (`tests.checks.nic_trees.h100`) that are different an
hour after a run in which the node was well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcverify.model import Cause, Remedy, Verdict
from tests.checks.nic_trees import UNSET_GID, address

PASS, WARN, ERROR, FAIL = Verdict.PASS, Verdict.WARN, Verdict.ERROR, Verdict.FAIL
INSPECT, CONFIGURE = Remedy.INSPECT, Remedy.FIX_CONFIGURATION

RDMA = "sys/class/infiniband"
IB3 = f"{RDMA}/mlx5_3/ports/1"
ROCE = f"{RDMA}/mlx5_bond_0/ports/1"
ENS8 = "sys/class/net/ens8"
PCI3 = f"sys/bus/pci/devices/{address(3)}"


@dataclass(frozen=True, slots=True)
class PortFault:
    """One fault; *says* are words that the reason must hold, *files* what is different."""

    name: str
    files: Mapping[str, object]
    verdict: Verdict
    remedy: Remedy
    says: str
    cause: Cause = Cause.NONE


def lose_link(name: str) -> dict[str, object]:
    port = f"{RDMA}/{name}/ports/1"
    return {
        f"{port}/state": "1: DOWN",
        f"{port}/phys_state": "2: Polling",
        f"{port}/rate": "10 Gb/sec (4X SDR)",
    }


def on_all(path: str, value: object) -> dict[str, object]:
    return {f"{RDMA}/mlx5_{i}/ports/1/{path}": value for i in range(8)}


STATES = (
    PortFault("an InfiniBand port is down", lose_link("mlx5_3"), FAIL, INSPECT, "mlx5_3: is down"),
    PortFault(
        "all InfiniBand ports are down at once",
        {path: text for i in range(8) for path, text in lose_link(f"mlx5_{i}").items()},
        *(FAIL, INSPECT, "node: all 8 InfiniBand ports are down at once"),
    ),
    PortFault(
        "all InfiniBand ports are slower at once",
        on_all("rate", "200 Gb/sec (4X HDR)"),
        *(WARN, INSPECT, "node: all 8 InfiniBand ports are slower than before (mlx5_0 200 Gb"),
    ),
    PortFault(
        "an Ethernet port has no carrier",
        {f"{ENS8}/carrier": 0},
        *(FAIL, INSPECT, "ens8: is down (no carrier), before 25 Gb/s"),
    ),
    PortFault(
        "an InfiniBand port has half its lanes",
        {f"{IB3}/rate": "200 Gb/sec (2X NDR)"},
        *(FAIL, INSPECT, "mlx5_3: runs at 200 Gb/sec (2X NDR)"),
    ),
    PortFault(
        "an Ethernet port is slower than before",
        {f"{ENS8}/speed": 10000},
        *(FAIL, INSPECT, "ens8: runs at 10 Gb/s, before at 25 Gb/s"),
    ),
    PortFault(
        "an adapter lost half of its PCIe lanes",
        {f"{PCI3}/current_link_width": 8},
        *(FAIL, INSPECT, "mlx5_3: has 8 PCIe lanes, before 16"),
    ),
    PortFault(
        "a port is not set up by the subnet manager",
        {f"{IB3}/state": "2: INIT"},
        *(ERROR, CONFIGURE, "mlx5_3: has a link", Cause.MISCONFIGURED),
    ),
    PortFault(
        "a RoCE port lost a GID",
        {f"{ROCE}/gids/3": UNSET_GID},
        *(ERROR, CONFIGURE, "ens8: lost GID index 3", Cause.MISCONFIGURED),
    ),
    PortFault(
        "a port lost a partition key",
        {f"{IB3}/pkeys/0": "0x0000", f"{IB3}/pkeys/1": "0x8001"},
        *(ERROR, CONFIGURE, "lost partition key 0xffff", Cause.MISCONFIGURED),
    ),
    PortFault(
        "an Ethernet port that was up is switched off",
        {f"{ENS8}/carrier": 0, f"{ENS8}/flags": "0x1002"},
        *(WARN, CONFIGURE, "ens8: was up and is switched off"),
    ),
    PortFault(
        "an InfiniBand port that was up is switched off",
        {f"{IB3}/state": "1: DOWN", f"{IB3}/phys_state": "3: Disabled"},
        *(WARN, CONFIGURE, "mlx5_3: was up and is switched off"),
    ),
)
"""What stays as it is until it is repaired or accepted."""

EVENTS = (
    PortFault(
        "a link fell and came back",
        {f"{IB3}/counters/link_downed": 1},
        *(WARN, INSPECT, "mlx5_3: link_down.delta 1 > 0"),
    ),
    PortFault(
        "an InfiniBand link fell three times in an hour",
        {f"{IB3}/counters/link_downed": 3},
        *(FAIL, INSPECT, "mlx5_3: link_down.rate 3 1/h > 2"),
    ),
    PortFault(
        "an Ethernet port lost its carrier, which may be somebody's work on it",
        {f"{ENS8}/carrier_down_count": 4},
        *(WARN, INSPECT, "ens8: carrier.delta 3 > 0"),
    ),
    PortFault(
        "an Ethernet port lost its carrier more often than anybody works on it",
        {f"{ENS8}/carrier_down_count": 22},
        *(FAIL, INSPECT, "ens8: carrier.rate 21 1/h > 20"),
    ),
    PortFault(
        "all links fell at once and came back",
        on_all("counters/link_downed", 4),
        *(WARN, INSPECT, "node: all 8 InfiniBand ports lost their link"),
    ),
    PortFault(
        "the links to one of two switches fell at once and came back",
        {f"{RDMA}/mlx5_{i}/ports/1/counters/link_downed": 3 for i in range(4)},
        *(WARN, INSPECT, "node: 4 of 8 InfiniBand ports lost their link"),
    ),
    PortFault(
        "a link has more symbol errors than the standard allows",
        {f"{IB3}/counters/symbol_error": 121},
        *(WARN, INSPECT, "mlx5_3: symbol.rate 121 1/h > 120"),
    ),
    PortFault(
        "a link was retrained very often",
        {f"{IB3}/counters/link_error_recovery": 301},
        *(WARN, INSPECT, "mlx5_3: recovery.rate 301 1/h > 300"),
    ),
    PortFault(
        "very many broken packets were received",
        {f"{ENS8}/statistics/rx_crc_errors": 36_001},
        *(WARN, INSPECT, "ens8: receive.rate"),
    ),
    PortFault(
        "the carrier was lost while sending, very often",
        {f"{ENS8}/statistics/tx_carrier_errors": 36_001},
        *(WARN, INSPECT, "ens8: transmit.rate"),
    ),
    PortFault(
        "a buffer of the port overran",
        {f"{IB3}/counters/excessive_buffer_overrun_errors": 1},
        *(WARN, INSPECT, "mlx5_3: integrity.delta 1 > 0"),
    ),
    PortFault(
        "very many acknowledgements did not come",
        {f"{ROCE}/hw_counters/local_ack_timeout_err": 3601},
        *(WARN, INSPECT, "ens8: timeout.rate 3601 1/h > 3600"),
    ),
    PortFault(
        "RoCE restarts slowly very often",
        {f"{ROCE}/hw_counters/roce_slow_restart": 36_001},
        *(WARN, INSPECT, "ens8: slow_restart.rate"),
    ),
    PortFault(
        "a fatal error of PCIe at an adapter",
        {f"{PCI3}/aer_dev_fatal": "DLP 1"},
        *(FAIL, INSPECT, "mlx5_3: pcie.fatal.delta 1 > 0"),
    ),
    PortFault(
        "a non-fatal error of PCIe at an adapter",
        {f"{PCI3}/aer_dev_nonfatal": "CmpltTO 1"},
        *(WARN, INSPECT, "mlx5_3: pcie.non_fatal.delta 1 > 0"),
    ),
    PortFault(
        "very many corrected errors of PCIe at an adapter",
        {f"{PCI3}/aer_dev_correctable": "RxErr 481"},
        *(WARN, INSPECT, "mlx5_3: pcie.correctable.rate 481 1/h > 480"),
    ),
    PortFault(
        "packets came out of sequence, as with adaptive routing",
        {f"{ROCE}/hw_counters/out_of_sequence": 10**6},
        *(PASS, Remedy.NONE, ""),
    ),
    PortFault(
        "receivers were not ready",
        {f"{ROCE}/hw_counters/rnr_nak_retry_err": 10**6},
        *(PASS, Remedy.NONE, ""),
    ),
)
"""What has been: the next run tells it no more."""

OTHERS = (
    PortFault(
        "an adapter runs PCIe far slower than it could",
        {f"{PCI3}/current_link_speed": "2.5 GT/s PCIe"},
        *(WARN, INSPECT, "mlx5_3: runs generation 1 of PCIe"),
    ),
    PortFault(
        "like adapters have different firmware",
        {f"{RDMA}/mlx5_3/fw_ver": "28.39.2048"},
        *(WARN, CONFIGURE, "mlx5_3 28.39.2048"),
    ),
)
PORT_FAULTS = (*STATES, *EVENTS, *OTHERS)
HUNG = PortFault(
    "a port never answers, and its firmware hangs",
    {},
    *(ERROR, Remedy.REBOOT, "does not answer within", Cause.HUNG),
)
"""Its test has a file that never ends."""
