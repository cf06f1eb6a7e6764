"""
How long a GPU stood still, where its median hides that.

A step that waits for a host which waits for a core is no fault of the GPU: what this thread
waited is subtracted. The kernel counts it (sched-stats, /proc/thread-self/schedstat); where it
does not, nothing is measured. A process that Slurm suspends (SIGSTOP), that is frozen or in a
guest that moves does not wait for a core; its `Absence` shows that. Nothing is measured on a CPU
either, which others may use.

GPUs that compute together wait for the slowest. `OWN_WORK` times what a GPU does by itself,
between their sums: only the one that stood still took long for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event, Lock, Thread
from time import CLOCK_MONOTONIC, clock_gettime, perf_counter
from typing import TYPE_CHECKING, Any

import hpcverify.check as hv

if TYPE_CHECKING:
    import torch

STALL = hv.Metric("s", "high", "by how much its longest step exceeds the median one").warn(
    high=5.0, source="hpcverify default: a step takes well below a second on any GPU"
)
SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds that the thread waited for one, and how often."""
REAL_CLOCK = partial(clock_gettime, CLOCK_MONOTONIC)
"""A rehearsal replaces `time.monotonic` by a clock that jumps with the stand-in's work."""
PULSE_SECONDS = 0.5
LATE_SECONDS = 1.0
"""A pulse that comes this much too late was kept from running."""


class Absence:
    """
    How long this process did not run: each `read` is a pulse, which then comes late.

    Slurm suspends jobs with SIGSTOP, containers are frozen, and guests move to another host.
    With *has_stopped*, the time counts in which a signal had stopped another process, as fio.
    """

    def __init__(
        self,
        clock: Callable[[], float] = REAL_CLOCK,
        has_stopped: Callable[[], bool] = bool,
    ) -> None:
        self._clock, self._has_stopped = clock, has_stopped
        self._lock = Lock()
        self._seen = self._ran = clock()
        self._seconds = 0.0
        self.longest = 0.0
        """Seconds from one moment in which all ran to the next."""

    def read(self) -> float:
        """Read the seconds since the beginning in which no thread of this process ran."""
        with self._lock:
            now = self._clock()
            late = now - self._seen - PULSE_SECONDS
            self._seen = now
            if late > LATE_SECONDS or self._has_stopped():
                self._seconds += max(0.0, late)
                self.longest = max(self.longest, now - self._ran)
            else:
                self._ran = now
            return self._seconds

    def start(self) -> Callable[[], None]:
        """Give it a pulse from now on; return what ends that."""
        self._seen = self._ran = self._clock()
        over = Event()

        def pulse() -> None:
            while not over.wait(PULSE_SECONDS):
                self.read()

        Thread(target=pulse, daemon=True).start()
        return over.set


@cache
def watch_absence() -> Absence:
    """Give this process a pulse until it ends."""
    absence = Absence()
    absence.start()
    return absence


def read_core_wait(*, with_work: bool = False) -> float:
    """Read for how many seconds this thread had no core, *with work* or ran; NaN if unknown."""
    try:
        worked, waited, _ = map(int, SCHEDSTAT.read_text().split())
        return (waited + worked * with_work) / 1e9 + watch_absence().read()
    except (OSError, ValueError):
        return math.nan


@dataclass(slots=True)
class StallMeter:
    """By how many seconds the longest step of a GPU exceeded the median of its kind."""

    longest: float = math.nan

    def note(self, times: Sequence[float], waited: float = 0.0) -> None:
        """Note the *times* of steps, in which this thread *waited* for a core, in seconds."""
        stood = max(times, default=0.0) - median(times or (0.0,)) - waited
        if not math.isnan(stood):
            self.longest = max(0.0, stood, self.longest if self.longest > 0 else 0.0)

    @contextmanager
    def time_batches(self, device: torch.device) -> Generator[Callable[[int], object]]:
        """Give what is called after each batch of products; the first one may load kernels."""
        ends, began = list[float](), read_core_wait()
        yield lambda _: ends.append(perf_counter())
        if device.type == "cuda":
            times = [after - before for before, after in pairwise(ends)]
            self.note(times, read_core_wait() - began)

    def report(self, part_id: str, name: str = "stall") -> Iterator[hv.Measurement]:
        """Measure how long the part *part_id* stood still, if that is known."""
        if not math.isnan(self.longest):
            yield hv.Measurement(name, self.longest, "s", part_id)


@dataclass(slots=True)
class OwnWork:
    """What the GPU of this process does between its sums with others, for which they wait."""

    meter: StallMeter = field(default_factory=StallMeter)
    _began: float = math.nan
    _since: Any = None
    """The event at which its own work began."""
    _pending: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])

    def start(self) -> None:
        """Forget what was before."""
        self.meter, self._began, self._since = StallMeter(), self._read_host(), None
        self._pending.clear()

    @contextmanager
    def pause(self, device: torch.device) -> Generator[None]:
        """Do not count the block, in which the GPU waits for others."""
        if device.type != "cuda":
            yield
            return
        if self._since is not None:
            self._pending.append((self._since, record_event()))
        yield
        self._since = record_event()

    def collect(self) -> float:
        """Collect what has ended by now; give the longest since `start`, in seconds."""
        ended = [begin.elapsed_time(end) / 1e3 for begin, end in self._pending if end.query()]
        self._pending.clear()
        now = self._read_host()
        self.meter.note([0.0, 0.0, *ended], now - self._began)
        self._began = now
        return self.meter.longest

    def _read_host(self) -> float:
        """Read how long the host worked: a GPU that it does not keep busy waits, too."""
        return read_core_wait(with_work=True)


def record_event() -> Any:
    """Note where the GPU's current stream is, without waiting for it."""
    import torch

    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


OWN_WORK = OwnWork()
"""A process has one GPU in a group of ranks, and its waits are deep inside."""
