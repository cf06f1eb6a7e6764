"""
Looks at a real veth in the network namespace that this is started in, as at a port.

A veth hangs on no device, so the folder of the port is links to its files, and a device.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcverify.model import CarryOver
from hpcverify.telemetry import ethtool, nics
from hpcverify.telemetry.probe import probe
from hpcverify.testing import judge_items, make_context
from hpcverify_checks import nic
from tests.checks.links import clock, marks
from tests.checks.nic_trees import device
from tests.telemetry.trees import grow, link
from tests.waiting import wait_until

FILES = (
    *("address", "addr_assign_type", "type", "flags", "carrier", "carrier_down_count"),
    *("speed", "duplex", "statistics"),
)


def configure(words: str) -> None:
    subprocess.run(words.split(), check=True, capture_output=True)


def await_carrier(value: str) -> None:
    carrier = Path("/sys/class/net/port/carrier")
    wait_until(lambda: carrier.read_text().strip() == value)


class Bench:
    """Looks at the port again and again."""

    def __init__(self, folder: Path) -> None:
        """Link the files of the interface called ``port`` below *folder*."""
        self.folder, self.root = folder, folder / "root"
        own = self.root / "sys/class/net/port"
        own.mkdir(parents=True)
        for name in FILES:
            (own / name).symlink_to(Path("/sys/class/net/port") / name)
        link(self.root, "sys/class/net/port/device", device(self.root, 0))
        self.inventory = probe(self.root)
        self.kept: dict[tuple[str, str], CarryOver] = {}
        self.hours = 1

    def show(self, what: str) -> None:
        """Print the verdict of an hour later."""
        self.hours += 1
        clock(self.root, self.hours * 3600)
        ctx = make_context(
            self.folder,
            inventory=self.inventory,
            previous=self.inventory if self.kept else None,
            carry_overs=tuple(self.kept.values()),
        )
        readings = nics.read_ports(self.root, 20)
        found = list(nic.report_ports(readings, ctx, nic.NicParams(), self.root))
        self.kept |= {(mark.name, mark.part_id): mark for mark in marks(found)}
        verdict = judge_items(nic.CHECK, found, self.inventory).verdict
        sys.stdout.write(f"{what}={verdict.value}\n")


def main(folder: Path) -> None:
    """Take the port down, up, slow and off, and judge it each time."""
    configure("ip link add port type veth peer name other")
    configure("ip link set port up")
    configure("ip link set other up")
    await_carrier("1")
    bench = Bench(folder)
    bench.show("first")
    assert ethtool.read_statistics("port", {"peer_ifindex"})["peer_ifindex"] > 0
    bench.show("again")
    configure("ip link set other down")
    await_carrier("0")
    bench.show("down")
    configure("ip link set other up")
    await_carrier("1")
    configure("ip link set other down")
    await_carrier("0")
    configure("ip link set other up")
    await_carrier("1")
    bench.show("back")
    for _ in range(3):  # as at the end of a boot
        configure("ip link set port down")
        configure("ip link set port up")
        await_carrier("1")
    bench.show("work")
    for _ in range(21):
        configure("ip link set other down")
        await_carrier("0")
        configure("ip link set other up")
        await_carrier("1")
    bench.show("flaps")
    speed = bench.root / "sys/class/net/port/speed"  # a veth always says 10 Gb/s
    speed.unlink()
    grow(bench.root, {"sys/class/net/port/speed": 1000})
    bench.show("slow")
    speed.unlink()
    speed.symlink_to("/sys/class/net/port/speed")
    configure("ip link set port down")
    bench.show("off")
    configure("ip link set port up")
    await_carrier("1")
    bench.show("up")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
