"""
Calls that may never return, made in threads that can be left behind.

One visit at a time: NVML serialises its calls, and a visit that waits behind the call of
another thread looks as if it hung itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, TypeVar, cast

A = TypeVar("A")


class _Visitor(Thread):
    """Does one visit after the other; to start a thread for each would take as long."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.visits: SimpleQueue[Visit[Any]] = SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            visit = self.visits.get()
            visit.work()
            _idle.append(self)
            visit.ended.set()


_idle: list[_Visitor] = []
os.register_at_fork(after_in_child=_idle.clear)


class Visit(Generic[A]):
    """Does some *work* in another thread, from now on."""

    def __init__(self, work: Callable[[], A]) -> None:
        """Begin."""
        self.began = time.monotonic()
        self.ended = Event()
        self._work = work
        self._answer: A | None = None
        self._error: BaseException | None = None
        try:
            worker = _idle.pop()
        except IndexError:  # the others have been left behind
            worker = _Visitor()
        worker.visits.put(self)

    def work(self) -> None:
        """Work, and keep the answer."""
        try:
            self._answer = self._work()
        except BaseException as exc:  # noqa: BLE001 - `take` raises it again
            self._error = exc

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end, for *seconds* at most, and return whether it came."""
        return self.ended.is_set() or self.ended.wait(max(seconds, 0.0))

    def take(self) -> A:
        """Return the answer of a visit that has ended, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return cast("A", self._answer)
