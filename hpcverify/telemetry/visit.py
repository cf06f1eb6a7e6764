"""
A call that may never return, made in a thread that can be left behind.

The process that makes it must be one that can be left behind too: a thread that waits in
the kernel keeps it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, TypeVar, cast

A = TypeVar("A")


_idle: list[SimpleQueue[Visit[Any]]] = []
"""The queues of threads that wait for work: to start one for each visit would take as long."""
os.register_at_fork(after_in_child=_idle.clear)


class Visit(Generic[A]):
    """Does some *work* in another thread, from now on."""

    def __init__(self, work: Callable[[], A]) -> None:
        """Begin."""
        self.began = time.monotonic()
        self._work = work
        self._ended = Event()
        self._answer: A | None = None
        self._error: BaseException | None = None
        try:
            queue = _idle.pop()
        except IndexError:  # the others have been left behind
            queue = SimpleQueue()
            Thread(target=_serve, args=(queue,), daemon=True).start()
        queue.put(self)

    def do(self, queue: SimpleQueue[Visit[Any]]) -> None:
        """Work in the thread that *queue* feeds, and keep the answer."""
        try:
            self._answer = self._work()
        except BaseException as exc:  # noqa: BLE001 - `take` raises it again
            self._error = exc
        _idle.append(queue)
        self._ended.set()

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end, for *seconds* at most, and return whether it came."""
        return self._ended.is_set() or self._ended.wait(max(seconds, 0.0))

    def take(self) -> A:
        """Return the answer of a visit that has ended, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return cast("A", self._answer)


def _serve(queue: SimpleQueue[Visit[Any]]) -> None:
    while True:
        queue.get().do(queue)
