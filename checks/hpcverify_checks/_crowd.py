"""
Whether a check had the node's CPUs to itself.

On a node that others use, times say as much of the others as of the node. No limit is
then held against them: they are left out, and the coverage says so. /proc/stat says how
long all CPUs were busy, or were taken by the hypervisor for another guest (proc(5));
what this process and its ended children used is taken off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcverify.check import matches
from hpcverify.model import Covered, Found, Measurement
from hpcverify.telemetry import sysfs

TOLERATED = 0.25
"""Of a core, on average: what the engine, telemetry and a system's daemons may take."""
IDLE, IOWAIT, FIELDS = 3, 4, 8
"""Of the line ``cpu``: user, nice, system, idle, iowait, irq, softirq, steal."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """What was used when a check began to measure, in seconds."""

    wall: float
    busy: float
    """All CPUs together, steal among it."""
    own: float

    @classmethod
    def now(cls, root: Path = Path("/")) -> Crowd:
        """Read the clocks; where the kernel does not say, nobody else is busy."""
        own = sum(os.times()[:4])
        return cls(time.monotonic(), _busy(root) or own, own)

    def others(self, now: Crowd) -> float:
        """Say how many cores others had on average, from this moment until *now*."""
        used = (now.busy - self.busy) - (now.own - self.own)
        return max(0.0, used / max(now.wall - self.wall, 1e-3))

    def without(
        self, names: Sequence[str], found: Iterable[Found], now: Crowd | None = None
    ) -> Iterator[Found]:
        """Leave out the numbers *names*, patterns, if others were busy until *now*."""
        others = self.others(now or Crowd.now())
        if others <= TOLERATED:
            yield from found
            return
        where = "node"
        for item in found:
            if isinstance(item, Measurement):
                where = item.where
                if any(matches(item.name, name) for name in names):
                    continue
            yield item
        text = f"other processes took {others:.1f} cores meanwhile; left out:"
        yield Covered(where, f"{text} {', '.join(names)}")


def _busy(root: Path) -> float:
    line = (sysfs.text(root / "proc/stat") or "").partition("\n")[0]
    ticks = [int(field) for field in line.split()[1 : 1 + FIELDS]]
    if len(ticks) < FIELDS:
        return 0.0
    return (sum(ticks) - ticks[IDLE] - ticks[IOWAIT]) / os.sysconf("SC_CLK_TCK")
