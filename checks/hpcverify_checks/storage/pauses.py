"""
Whether this process or its fio stood still: then a slow access says nothing of the disk.

Slurm suspends jobs with SIGSTOP, containers are frozen, and guests move to another host
while they run. What is in flight meanwhile seems to take as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

from hpcverify.check import Cause, Remedy, Unable
from hpcverify.processes import is_stopped, list_session_members

LOOK_SECONDS = 0.5
LATE_SECONDS = 1.0
"""A look that comes this much too late was kept from running."""
DOUBTED_SECONDS = 5.0
"""A shorter access is fast enough, whatever else happened meanwhile."""
DOUBTED_SHARE = 0.5
"""If less than this share of an access was a pause, the disk took the rest."""


def has_stopped_process() -> bool:
    """Whether a signal has stopped a process of this session, as fio."""
    return any(map(is_stopped, list_session_members([os.getsid(0)])))


@dataclass(slots=True)
class Pauses:
    """The longest time in which we or fio did not run."""

    clock: Callable[[], float] = time.monotonic
    is_anyone_stopped: Callable[[], bool] = has_stopped_process
    longest: float = 0.0
    """In seconds."""
    _looked: float | None = None
    _ran: float = 0.0
    """When all were last seen to run."""

    @contextmanager
    def watch(self) -> Generator[None]:
        """Look every now and then while the block runs."""
        over = Event()

        def look_until_over() -> None:
            while not over.wait(LOOK_SECONDS):
                self.look()

        self.look()
        watcher = Thread(target=look_until_over, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()

    def look(self) -> None:
        """Look whether all run, and have run since the last look."""
        now = self.clock()
        looked, self._looked = self._looked, now
        if looked is None:
            self._ran = now
            return
        if now - looked > LOOK_SECONDS + LATE_SECONDS or self.is_anyone_stopped():
            self.longest = max(self.longest, now - self._ran)
        else:
            self._ran = now

    def require_none(self, seconds: float) -> None:
        """
        Refuse to judge the disk by an access that took *seconds*.

        Raises:
            Unable: we or fio did not run for much of that time.

        """
        if seconds > DOUBTED_SECONDS and self.longest >= DOUBTED_SHARE * seconds:
            raise Unable(
                f"an access took {seconds:.0f} s, but for {self.longest:.0f} s the check did not "
                "run: was its job suspended (SIGSTOP), or the machine paused? Run it again",
                Cause.TIMEOUT,
                Remedy.RERUN,
            )
