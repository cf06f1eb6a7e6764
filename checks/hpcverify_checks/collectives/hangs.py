"""
Which rank does not come, when all others wait.

Each launcher tells how far its ranks have come, once a second, whatever they do: a rank that
is stopped, or hangs in the kernel, cannot say so itself. When nobody has moved for a while,
those are missing whose launcher fell silent, that are stopped, or that are still at their own
work where others wait for them. Those that wait are never missing. If all wait, nobody is
accused: the network between them may be. Nor is anybody for the time in which this node
itself stood still, as a virtual machine does that is moved.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from hpcverify.processes import DISK_WAIT, STOPPED

BEAT = "beat"
"""The messages of launchers about the progress of their ranks."""
BEAT_SECONDS = 1.0
SILENT_SECONDS = 15.0
"""Without a word from a launcher, which takes hardly any time of its node."""
STALL_SHARE = 2 / 3
"""Of the timeout of the ranks, without any that moves on: before they give up themselves."""
MAX_STALL_SECONDS = 20.0
"""However patient the ranks are: who is missing has a name within a minute."""
PAUSE_SECONDS = 5.0
"""Between two looks, which take turns of a tenth of a second: then it was this node."""


class Beat(Struct, frozen=True):
    """What a launcher says of one of its ranks."""

    position: int
    """See `progress`: odd while it waits for others."""
    state: str
    """Of its process: R, S, D, T, ..."""

    @property
    def is_waiting(self) -> bool:
        """Whether it is at a point where it waits for the others."""
        return self.position % 2 == 1


class HangWatch:
    """What is known of the progress of all ranks of a group."""

    def __init__(self, now: float, timeout: float) -> None:
        """Begin at the time *now*, on any clock; ranks give up after *timeout*; in seconds."""
        self.stall = min(STALL_SHARE * timeout, MAX_STALL_SECONDS)
        self.beats: dict[int, Beat] = {}
        self.heard: dict[int, float] = {}
        self.stopped: dict[int, float] = {}
        """Since when ranks are stopped."""
        self.moved = now
        """When any rank last moved on, or this node after a pause."""
        self.looked = now

    def look(self, now: float) -> None:
        """Begin a look; after a pause of this node all others get their time anew."""
        if now > self.looked + PAUSE_SECONDS:
            self.moved = now
            self.heard = dict.fromkeys(self.heard, now)
            self.stopped.clear()
        self.looked = now

    def hear(self, beats: Mapping[int, Beat], at: float) -> None:
        """Take what a launcher said at a time."""
        for rank, beat in beats.items():
            before = self.beats.get(rank)
            if before is None or before.position != beat.position:
                self.moved = max(self.moved, at)
            if beat.state not in STOPPED:
                self.stopped.pop(rank, None)
            else:
                self.stopped.setdefault(rank, at)
            self.beats[rank] = beat
            self.heard[rank] = max(self.heard.get(rank, at), at)

    def find_missing(self, now: float, done: Collection[int] = ()) -> dict[int, str]:
        """Find the ranks that all others wait for, and say what is known of each."""
        stalled = now - self.moved
        open_ranks = {rank: beat for rank, beat in self.beats.items() if rank not in done}
        if not open_ranks or stalled < SILENT_SECONDS:
            return {}
        silent = [rank for rank in open_ranks if now - self.heard[rank] > SILENT_SECONDS]
        if silent:
            return self._keep_few(silent, dict.fromkeys(silent, "does not answer, nor its node"))
        if stalled < self.stall:
            return {}
        stopped = [
            rank for rank in open_ranks if now - self.stopped.get(rank, now) >= SILENT_SECONDS
        ]
        if stopped:
            return self._keep_few(stopped, dict.fromkeys(stopped, "is stopped (state T)"))
        front = max(beat.position for beat in self.beats.values())
        behind = {
            rank: _describe_work(beat, stalled)
            for rank, beat in open_ranks.items()
            if not beat.is_waiting and beat.position < front
        }
        return self._keep_few(list(behind), behind)

    def _keep_few(self, ranks: Sequence[int], reasons: dict[int, str]) -> dict[int, str]:
        """Accuse nobody if it would be most: then it is this node that is cut off, or slow."""
        return reasons if len(ranks) <= len(self.beats) / 2 else {}


def _describe_work(beat: Beat, stalled: float) -> str:
    where = " in the kernel (state D)" if beat.state == DISK_WAIT else ""
    return f"has hung at its own work{where} for {stalled:.0f} s, while others wait for it"
