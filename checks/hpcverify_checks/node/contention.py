"""
Whether a check had the node's CPUs to itself.

On a node that others use, times say as much about the others as about the node. They are
then left out, and the coverage says so. /proc/stat counts how long all CPUs were busy, or
taken by the hypervisor for another guest (proc(5)); the time of this process and its ended
children is subtracted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import hpcverify.check as hv
from hpcverify.telemetry import sysfs

MAX_OTHER_CORES = 0.25
"""The engine, the telemetry and system daemons may take this share of a core, on average."""
IDLE_FIELD, IOWAIT_FIELD, FIELD_COUNT = 3, 4, 8
"""The line ``cpu`` has user, nice, system, idle, iowait, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """The CPU time used by the moment *wall*, in seconds."""

    wall: float
    busy: float
    """The time of all CPUs together, steal included."""
    own: float

    @classmethod
    def read(cls, root: Path = Path("/")) -> CpuUsage:
        """Read the clocks; where the kernel has none, assume that nobody else is busy."""
        own = sum(os.times()[:4])
        line = (sysfs.read_text(root / "proc/stat") or "").partition("\n")[0]
        ticks = [int(field) for field in line.split()[1 : 1 + FIELD_COUNT]]
        if len(ticks) < FIELD_COUNT:
            return cls(time.monotonic(), own, own)
        busy = sum(ticks) - ticks[IDLE_FIELD] - ticks[IOWAIT_FIELD]
        return cls(time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), own)

    def count_other_cores(self, now: CpuUsage) -> float:
        """Compute how many cores others used on average, from this moment until *now*."""
        used = (now.busy - self.busy) - (now.own - self.own)
        return max(0.0, used / max(now.wall - self.wall, 1e-3))

    def omit_if_busy(
        self, names: Sequence[str], items: Iterable[hv.CheckItem], now: CpuUsage | None = None
    ) -> Iterator[hv.CheckItem]:
        """Leave out measurements that match *names* if others were busy until *now*."""
        others = self.count_other_cores(now or CpuUsage.read())
        if others <= MAX_OTHER_CORES:
            yield from items
            return
        part_id = "node"
        for item in items:
            if isinstance(item, hv.Measurement):
                part_id = item.part_id
                if any(hv.matches(item.name, name) for name in names):
                    continue
            yield item
        text = f"other processes used {others:.1f} cores during the measurement; left out:"
        yield hv.Coverage(part_id, f"{text} {', '.join(names)}")
