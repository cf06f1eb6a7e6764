"""
The time of a process that works with GPUs that are not there.

It is modelled: it stands still while a CPU computes in the GPU's stead, moves on by a
little with each call, and jumps to the end of what the host waits for. So neither the
speed of this machine nor what else it does shows in what is measured, and a wait of a
minute takes no time. Before a process uses a GPU and after a check it is real; and it is
real wherever the telemetry of another process looks on (see `Clock.pass_for_real`).

Whoever sleeps waits for another process, so sleeping is real in any case. A node can be
in haste: then a second takes a part of one, for all of its processes alike.
"""

from __future__ import annotations

import math
import os
import threading
import time

CALL_SECONDS = 2e-9
"""Of the model's host, for a call of torch: so little that no GPU waits for its host."""
READ_SECONDS = 1e-9
"""Of the model's host, to read the clock: who only reads it comes to an end, too."""
HANG_POLL_SECONDS = 3600.0

HASTE = "REHEARSAL_HASTE"
"""The environment variable with the number of the node's seconds in a second."""

read_real = time.monotonic
_sleep_real = time.sleep


def read_haste() -> float:
    """Read how many seconds of the node pass in one."""
    return float(os.environ.get(HASTE, "1"))


def read_node() -> float:
    """Give the time of the node, if it is not modelled."""
    return read_real() * read_haste()


def sleep_on_node(seconds: float) -> None:
    """Sleep for *seconds* of the node's."""
    _sleep_real(seconds / read_haste())


class Clock:
    """The time of each thread, in seconds since this process began to use GPUs."""

    def __init__(self) -> None:
        self.is_modelled = False
        self._holds_real = False
        self._origin = 0.0
        self._latest = 0.0
        self._here = threading.local()

    def read(self) -> float:
        """Give the seconds since the origin, and let the reading take its time."""
        if not self.is_modelled:
            return read_node() - self._origin
        return self.advance(READ_SECONDS)

    def read_monotonic(self) -> float:
        """Give what `time.monotonic` and `time.perf_counter` give."""
        if not self.is_modelled:
            return read_node()
        return self._origin + self.advance(READ_SECONDS)

    def advance(self, seconds: float) -> float:
        """Let *seconds* of modelled time pass for this thread; return the time."""
        now: float = getattr(self._here, "t", self._latest)
        self._here.t = self._latest = now + seconds
        return now + seconds

    def sleep(self, seconds: float) -> None:
        """Sleep; a process that waits for another cannot know how long that takes."""
        sleep_on_node(seconds)
        if self.is_modelled:
            self.advance(max(0.0, seconds))

    def wait_until(self, end: float) -> None:
        """Wait until *end*, in seconds since the origin; forever, if that is infinite."""
        while math.isinf(end):
            sleep_on_node(HANG_POLL_SECONDS)
        left = end - self.read()
        if left <= 0:
            return
        if self.is_modelled:
            self.advance(left)
        else:
            sleep_on_node(left)

    def model(self) -> None:
        """Pass into modelled time, unless it is to be real."""
        if self.is_modelled or self._holds_real:
            return
        self._origin = self._origin or read_node()
        self._latest = max(self._latest, read_node() - self._origin)
        self._here = threading.local()
        self.is_modelled = True

    def pass_for_real(self) -> None:
        """Have real time until the check ends: others look on."""
        self.is_modelled, self._holds_real = False, True

    def end_check(self) -> None:
        """Have real time again until a GPU is used."""
        self.is_modelled = self._holds_real = False


CLOCK = Clock()


def install() -> None:
    """Have all that asks for the time, or sleeps, ask here."""
    time.monotonic = time.perf_counter = CLOCK.read_monotonic
    time.sleep = CLOCK.sleep  # type: ignore[assignment]
