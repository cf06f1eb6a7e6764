"""
PCIe links and the errors on them, as the kernel shows them in sysfs.

An error is counted at the end of a link that noticed it, which need not be the faulty
one: a GPU that causes trouble may show no error while the port above it counts them
all (kernel documentation, ABI/testing/sysfs-bus-pci-devices-aer). So whoever looks at
a GPU looks at the ports above it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hpcverify.limits.specs import PCIE_LANE_RATES, PCIE_WIDTHS, compute_pcie_bandwidth
from hpcverify.telemetry import pci, sysfs
from hpcverify.units import HOUR_SECONDS

ERROR_FILES = {
    "correctable": "aer_dev_correctable",
    "non_fatal": "aer_dev_nonfatal",
    "fatal": "aer_dev_fatal",
}
"""The file of each kind of errors, of which each line is a name and a count."""
TOTAL_PREFIX = "TOTAL_"
"""How the last line begins, which need not match the others (the same document)."""

GENERATION_BY_RATE = {v: g for g, (v, _) in PCIE_LANE_RATES.items()}
ADDRESS_COLONS = 2
"""In an address, as in ``0000:18:00.0``; a root complex (``pci0000:18``) has one."""


class Link(Struct, frozen=True):
    """What a link carries, or can: a generation of PCIe on so many lanes."""

    generation: int
    width: int

    @property
    def bandwidth(self) -> float:
        """GB/s in one direction, after encoding and before any packet's header."""
        return compute_pcie_bandwidth(self.generation, self.width)

    @property
    def allowed_errors(self) -> float:
        """
        Bit errors an hour that are no fault: one in 1e12 bits, as DCGM 4.6 computes it
        (`GetExpectedPcieReplayRate`; NVIDIA/DCGM#184), but no fewer than the 8 a minute that
        DCGM before 3.3.8 allowed on every link.
        """
        giga_transfers, _ = PCIE_LANE_RATES[self.generation]
        return max(480.0, giga_transfers * self.width * HOUR_SECONDS / 1000)


def read_link(address: str, root: Path = Path("/")) -> Link | None:
    """Read what the link of the device at *address* carries now, if that is known."""
    return _read_link_end(root / pci.PCI_DEVICES_FOLDER / address, "current")


def find_best_link(address: str, root: Path = Path("/")) -> Link | None:
    """Find the best link that *address* and the port above it support; None without such a port."""
    ends = (address, *list_ports(address, root)[:1])
    links = [_read_link_end(root / pci.PCI_DEVICES_FOLDER / end, "max") for end in ends]
    known = [link for link in links if link]
    if len(known) < 2:  # noqa: PLR2004 - a link has two ends
        return None
    return Link(min(k.generation for k in known), min(k.width for k in known))


def _read_link_end(device: Path, which: str) -> Link | None:
    words = (sysfs.read_text(f"{device}/{which}_link_speed") or "").split()
    width = sysfs.read_number(f"{device}/{which}_link_width")
    if not words or width not in PCIE_WIDTHS:
        return None
    whole, _, rest = words[0].partition(".")  # ``16.0``, or ``16`` by kernels before 5.7
    generation = GENERATION_BY_RATE.get(float(words[0])) if (whole + rest).isdecimal() else None
    return Link(generation, int(width)) if generation else None


def list_ports(address: str, root: Path = Path("/")) -> tuple[str, ...]:
    """List the ports above the device at *address*, up to the root, nearest first."""
    end = sysfs.resolve_link(root / pci.PCI_DEVICES_FOLDER / address)
    if end is None:
        return ()
    return tuple(f.name for f in end.parents if f.name.count(":") == ADDRESS_COLONS)


def read_errors(address: str, root: Path = Path("/")) -> Mapping[str, Mapping[str, int]]:
    """Read the PCIe errors of *address* that are not zero, by kind; no kind without AER."""
    device = root / pci.PCI_DEVICES_FOLDER / address
    errors: dict[str, dict[str, int]] = {}
    for kind, file in ERROR_FILES.items():
        if text := sysfs.read_text(f"{device}/{file}"):
            lines = (line.rpartition(" ") for line in text.splitlines())
            errors[kind] = {
                name: int(count)
                for name, _, count in lines
                if count.isdecimal() and int(count) and not name.startswith(TOTAL_PREFIX)
            }
    return errors


def list_local_cpus(address: str, root: Path = Path("/")) -> frozenset[int]:
    """List the cores on the same socket as *address*; none if that is not known."""
    listed = sysfs.read_text(root / pci.PCI_DEVICES_FOLDER / address / "local_cpulist") or ""
    return frozenset(sysfs.parse_cpu_list(listed))
