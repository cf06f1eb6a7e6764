"""
How the devices of a node begin their soak together, and the record each worker leaves.

The clock alone makes the edges of the square waves coincide, so that the node's power
supply sees their sum. Only the start is agreed on.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from hpcverify_checks.exact.soak import StretchResult
from hpcverify_checks.ranks.board import FolderBoard

SETTLE_SECONDS = 3.0
"""Idle samples are taken between the last device that is ready and the load."""
READY_TIMEOUT_SECONDS = 60.0
"""The slowest device gets ready within this time: one that crashed must not stop the others."""
METER_PERIOD_SECONDS = 1.0
RECENT_SECONDS = 1500.0
"""Until this long before the end the sampler still has every sample, so that means are right."""


class LoadRecord(Struct, frozen=True):
    """What a device did in a soak, as its worker leaves it for `observe`."""

    done: tuple[StretchResult, ...]

    @property
    def start(self) -> float:
        """When the load began."""
        return self.done[0].began

    @property
    def end(self) -> float:
        """When the load ended."""
        return self.done[-1].ended

    @property
    def steady(self) -> tuple[StretchResult, ...]:
        """The stretches of steady load with at least one product."""
        return tuple(d for d in self.done if not d.period and d.products)

    @property
    def recent(self) -> tuple[StretchResult, ...]:
        """Those of them whose samples are all kept: in a short soak, all."""
        since = self.end - RECENT_SECONDS
        return tuple(d for d in self.steady if d.began >= since)

    @property
    def rate(self) -> float | None:
        """Operations per second of recent steady load, if there was any."""
        seconds = sum(d.seconds for d in self.recent)
        return sum(d.flop for d in self.recent) / seconds if seconds else None


@dataclass(slots=True)
class Meter:
    """The rate of work over time, in 16 bytes per *period* seconds."""

    period: float
    t: array[float] = field(default_factory=lambda: array("d"))
    rates: array[float] = field(default_factory=lambda: array("d"))
    """GFLOP/s."""
    _since: float = 0.0
    _flop: float = 0.0

    def begin(self, t: float) -> None:
        """Start again at *t*, after a time that does not count."""
        self._since, self._flop = t, 0.0

    def add(self, t: float, flop: float) -> None:
        """Count *flop* operations that ended at *t*."""
        self._flop += flop
        if t - self._since >= self.period:
            self.t.append(t)
            self.rates.append(self._flop / (t - self._since) / 1e9)
            self.begin(t)


def wait_for_all(
    board: FolderBoard, rank: int, ranks: Collection[int], clock: Callable[[], float]
) -> float:
    """
    Wait up to `READY_TIMEOUT_SECONDS` for all *ranks*; return when to begin.

    One that failed before it was ready, and announced that, is not waited for. If one is never
    ready, they begin later by this time, so that all begin together.
    """
    board.post("ready", rank, repr(clock()).encode())
    until = clock() + READY_TIMEOUT_SECONDS
    while not (complete := {*board.read("ready"), *board.read("lost")} >= {*ranks}):
        if clock() >= until:
            break
        time.sleep(board.pause)
    last = max(float(moment) for r, moment in board.read("ready").items() if r in ranks)
    return last + SETTLE_SECONDS + (0.0 if complete else READY_TIMEOUT_SECONDS)


def write_record(board: FolderBoard, rank: int, record: LoadRecord) -> None:
    """Leave the record of a device where `read_record` looks for it."""
    board.post("record", rank, msgspec.json.encode(record))


def read_record(board: FolderBoard, rank: int) -> LoadRecord | None:
    """Read the record of a device; None if its worker did not finish."""
    written = board.read("record").get(rank)
    return msgspec.json.decode(written, type=LoadRecord) if written else None
