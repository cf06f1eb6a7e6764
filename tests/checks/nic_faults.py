"""
The faults of network ports, and what hpcverify must make of each.

A fault of `nic_faults.csv` is some files of an H100 node (`tests.checks.nic_trees.h100`) that
are different an hour after a run in which the node was well. What *lasts* stays as it is until
it is repaired or accepted; what does not has been, and the next run tells it no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcverify.model import Cause, Remedy, Verdict
from tests.checks.nic_trees import address
from tests.tables import read_table

RDMA = "sys/class/infiniband"
IB3 = f"{RDMA}/mlx5_3/ports/1"
ROCE = f"{RDMA}/mlx5_bond_0/ports/1"
ENS8 = "sys/class/net/ens8"
PCI3 = f"sys/bus/pci/devices/{address(3)}"


@dataclass(frozen=True, slots=True)
class PortFault:
    """One fault; *says* are words that the reason must hold, *changes* what is different."""

    name: str
    verdict: Verdict
    remedy: Remedy
    lasts: str = ""
    changes: tuple[str, ...] = ()
    says: str = ""
    cause: Cause = Cause.NONE

    @property
    def files(self) -> Mapping[str, object]:
        """What the files that differ have in them, by path."""
        pairs = (change.split(" = ") for change in self.changes)
        return {path: text for paths, text in pairs for path in _expand(paths)}


def _expand(paths: str) -> Iterator[str]:
    """List the paths that one with ``[0-7]`` in it stands for."""
    head, bracket, rest = paths.partition("[0-")
    last, _, tail = rest.partition("]")
    yield from (f"{head}{i}{tail}" for i in range(int(last) + 1)) if bracket else (paths,)


def lose_link(name: str) -> dict[str, object]:
    port = f"{RDMA}/{name}/ports/1"
    return {
        f"{port}/state": "1: DOWN",
        f"{port}/phys_state": "2: Polling",
        f"{port}/rate": "10 Gb/sec (4X SDR)",
    }


PORT_FAULTS = read_table(Path(__file__).with_suffix(".csv"), PortFault)
STATES = [fault for fault in PORT_FAULTS if fault.lasts == "yes"]
EVENTS = [fault for fault in PORT_FAULTS if fault.lasts == "no"]
HUNG = PortFault(
    "a port never answers, and its firmware hangs",
    verdict=Verdict.ERROR,
    remedy=Remedy.REBOOT,
    says="does not answer within",
    cause=Cause.HUNG,
)
"""Its test has a file that never ends."""
