"""
Calls that may never return, made in threads that can be left behind.

One visit at a time: NVML serialises its calls, and a visit that waits behind the call of
another thread looks as if it hung itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar, cast

A = TypeVar("A")


class Visit(Thread, Generic[A]):
    """Does some *work* in a thread of its own, from now on."""

    def __init__(self, work: Callable[[], A]) -> None:
        """Start the thread."""
        super().__init__(daemon=True)
        self.began = time.monotonic()
        self._work = work
        self._answer: A | None = None
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Work, and keep the answer."""
        try:
            self._answer = self._work()
        except BaseException as exc:  # noqa: BLE001 - `take` raises it again
            self._error = exc

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end, for *seconds* at most, and return whether it came."""
        self.join(max(seconds, 0.0))
        return not self.is_alive()

    def take(self) -> A:
        """Return the answer of a visit that has ended, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return cast("A", self._answer)
