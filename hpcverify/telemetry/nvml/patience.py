"""
Calls that may never return, made one after the other in a thread of their own.

One thread, because NVML serialises calls anyway and Python's threads would but take
turns. It is left behind when what it does takes too long, and another one goes on
with the rest: what hangs is named, and costs the others nothing but the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Generic, TypeVar

T = TypeVar("T")
A = TypeVar("A")


SHORT = 3
"""By which patience is divided once something hangs: a driver whose lock is held hangs
with every GPU, and whoever waits for it all has a deadline."""


class Round(Generic[T, A]):
    """Visits *items* in turn; those that take longer than *patience* s are left."""

    def __init__(
        self, items: Iterable[T], visit: Callable[[T], A], patience: float
    ) -> None:
        """Visit all; when this returns, `answers` and `left` are whole."""
        self._visit = visit
        self.answers: list[tuple[T, A]] = []
        self.left: list[T] = []
        """Items whose visit has not come back."""
        pending = list(items)
        while pending:
            pending = self._go_on(pending, patience / SHORT if self.left else patience)

    def _go_on(self, pending: list[T], patience: float) -> list[T]:
        """Visit *pending* until all are done or one is left; return the rest."""
        returned: SimpleQueue[A | BaseException] = SimpleQueue()
        forsaken = Event()
        Thread(
            target=self._work, args=(pending, returned, forsaken), daemon=True
        ).start()
        for place, item in enumerate(pending):
            try:
                answer = returned.get(timeout=patience)
            except Empty:
                forsaken.set()
                self.left.append(item)
                return pending[place + 1 :]
            if isinstance(answer, BaseException):
                raise answer
            self.answers.append((item, answer))
        return []

    def _work(
        self,
        pending: list[T],
        returned: SimpleQueue[A | BaseException],
        forsaken: Event,
    ) -> None:
        for item in pending:
            if forsaken.is_set():  # it came back after all, when another went on
                return
            try:
                returned.put(self._visit(item))
            except BaseException as exc:  # noqa: BLE001 - raised again by who waits
                returned.put(exc)
                return
