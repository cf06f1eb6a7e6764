"""
Find the rank that does not come when all others wait.

Each launcher posts how far its ranks have come, once a second, whatever they do: a rank that
is stopped, or hangs in the kernel, cannot say so itself. When no rank has moved for a while,
those are missing whose launcher fell silent, that are stopped, or that are still at their own
work where others wait for them. Those that wait are never missing. If all of them wait, the
network between them may be at fault, and no rank is missing. The time in which this node
itself stood still, as a virtual machine does while it is moved, does not count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from hpcverify.processes import DISK_WAIT, STOPPED

HEARTBEAT = "heartbeat"
"""The messages of launchers about the progress of their ranks."""
HEARTBEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0
"""After this time without a heartbeat, which costs its node hardly anything, a launcher is lost."""
STALL_SHARE = 2 / 3
"""The share of the ranks' timeout after which the group has stalled: before they give up."""
MAX_STALL_SECONDS = 20.0
"""However long their timeout is: the missing rank is named within a minute."""
PAUSE_SECONDS = 5.0
"""Two looks, a tenth of a second apart, that are further apart show that this node stood still."""


class Heartbeat(Struct, frozen=True):
    """How far a rank is, as its launcher reads it."""

    position: int
    """See `progress`: odd while the rank waits for others."""
    state: str
    """The state of its process: R, S, D, T, ..."""

    @property
    def is_waiting(self) -> bool:
        """Whether the rank waits for others."""
        return self.position % 2 == 1


class HangWatch:
    """Keeps the progress of all ranks of a group."""

    def __init__(self, now: float, timeout: float) -> None:
        """Begin at the time *now*, on any clock, in s; ranks give up after *timeout* seconds."""
        self.stall = min(STALL_SHARE * timeout, MAX_STALL_SECONDS)
        self.heartbeats: dict[int, Heartbeat] = {}
        self.heard: dict[int, float] = {}
        self.stopped: dict[int, float] = {}
        """Since when ranks are stopped."""
        self.moved = now
        """When any rank last moved on, or this node after a pause."""
        self.looked = now

    def look(self, now: float) -> None:
        """Begin a look; after a pause of this node, all waits begin anew."""
        if now > self.looked + PAUSE_SECONDS:
            self.moved = now
            self.heard = dict.fromkeys(self.heard, now)
            self.stopped.clear()
        self.looked = now

    def hear(self, heartbeats: Mapping[int, Heartbeat], at: float) -> None:
        """Note the heartbeats of a launcher's ranks, which came *at* a time."""
        for rank, heartbeat in heartbeats.items():
            before = self.heartbeats.get(rank)
            if before is None or before.position != heartbeat.position:
                self.moved = max(self.moved, at)
            if heartbeat.state not in STOPPED:
                self.stopped.pop(rank, None)
            else:
                self.stopped.setdefault(rank, at)
            self.heartbeats[rank] = heartbeat
            self.heard[rank] = max(self.heard.get(rank, at), at)

    def find_missing(self, now: float, done: Collection[int] = ()) -> dict[int, str]:
        """Find the ranks that all others wait for, and say what is known of each."""
        stalled = now - self.moved
        open_ranks = {
            rank: heartbeat for rank, heartbeat in self.heartbeats.items() if rank not in done
        }
        if not open_ranks or stalled < SILENT_SECONDS:
            return {}
        if silent := [r for r in open_ranks if now - self.heard[r] > SILENT_SECONDS]:
            return self._keep_few(silent, dict.fromkeys(silent, "does not answer, nor its node"))
        if stalled < self.stall:
            return {}
        stopped = [
            rank for rank in open_ranks if now - self.stopped.get(rank, now) >= SILENT_SECONDS
        ]
        if stopped:
            return self._keep_few(stopped, dict.fromkeys(stopped, "is stopped (state T)"))
        front = max(heartbeat.position for heartbeat in self.heartbeats.values())
        behind: dict[int, str] = {}
        for rank, heartbeat in open_ranks.items():
            if not heartbeat.is_waiting and heartbeat.position < front:
                where = " in the kernel (state D)" if heartbeat.state == DISK_WAIT else ""
                what = f"has hung at its own work{where} for {stalled:.0f} s"
                behind[rank] = f"{what}, while others wait for it"
        return self._keep_few(list(behind), behind)

    def _keep_few(self, ranks: Sequence[int], reasons: dict[int, str]) -> dict[int, str]:
        """Name no rank if it would be most of them: then this node is cut off, or slow."""
        return reasons if len(ranks) <= len(self.heartbeats) / 2 else {}
