"""
Calls that may never return, made one after the other in a thread of their own.

One thread, because NVML serialises calls anyway and Python's threads would but take
turns. It is left behind when what it does takes too long, and another one goes on
with the rest: what hangs is named, and costs the others nothing but the wait. When two
in a row hang, somebody holds the driver's lock, and nobody else is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")
A = TypeVar("A")

MAX_HANGS_IN_A_ROW = 2
"""Items that hang one after the other, upon which the others are not asked."""


class TimedOut(Struct, Generic[T], frozen=True):
    """An item whose visit has not come back, and what it was at by then."""

    item: T
    doing: str
    seconds: float
    """For which it was waited."""


class _CallResult(Struct, Generic[T, A], frozen=True):
    item: T
    answer: A | None = None
    raised: BaseException | None = None


class TimedCalls(Generic[T, A]):
    """Visits *items* in turn, and goes on without those that take too long."""

    def __init__(
        self,
        items: Iterable[T],
        visit: Callable[[T], A],
        timeout: float,
        hurried_timeout: float | None = None,
        doing: Callable[[T], str] = str,
    ) -> None:
        """
        Visit all; when this returns, what came of it is whole.

        Waits *patience* seconds for an item, and once one hangs *hurried* seconds;
        *doing* says what a visit is at.
        """
        self._visit = visit
        self._doing = doing
        self._pending = deque(items)
        self._lock = Lock()
        self._owner = 0
        self._current: list[T] = []
        self._queues: list[SimpleQueue[_CallResult[T, A] | None]] = []
        self.answers: list[tuple[T, A]] = []
        self.timed_out: list[TimedOut[T]] = []
        self._hangs_in_a_row = 0
        while self._pending and self._hangs_in_a_row < MAX_HANGS_IN_A_ROW:
            self._run_thread(hurried_timeout if self.timed_out and hurried_timeout else timeout)
        self.unasked = list(self._pending)
        """Items that were not visited, because those before them hung."""
        self._take_late_results()

    def _run_thread(self, timeout: float) -> None:
        """Have a thread visit what is pending, until all is done or an item hangs."""
        visited: SimpleQueue[_CallResult[T, A] | None] = SimpleQueue()
        self._current = []
        Thread(target=self._work, args=(self._owner, visited), daemon=True).start()
        while True:
            try:
                done = visited.get(timeout=timeout)
            except Empty:
                if self._abandon_item(visited, timeout):
                    return
                continue
            if done is None:
                return
            self._take_result(done)

    def _take_result(self, done: _CallResult[T, A]) -> None:
        if done.raised is not None:
            raise done.raised
        self.answers.append((done.item, done.answer))  # type: ignore[arg-type] # it did not raise
        self._hangs_in_a_row = 0

    def _abandon_item(self, visited: SimpleQueue[_CallResult[T, A] | None], timeout: float) -> bool:
        """Give up on the item at hand, unless it comes back at this very moment."""
        with self._lock:
            if not visited.empty() or not self._current:
                return False
            self._owner += 1
            (item,) = self._current
            self.timed_out.append(TimedOut(item, self._doing(item), timeout))
            self._queues.append(visited)
            self._hangs_in_a_row += 1
        return True

    def _take_late_results(self) -> None:
        """Take the answers of those that were slow, and came back meanwhile."""
        for left, visited in list(zip(self.timed_out, self._queues, strict=True)):
            if not visited.empty() and (done := visited.get()) and not done.raised:
                self.timed_out.remove(left)
                self._take_result(done)

    def _work(self, me: int, visited: SimpleQueue[_CallResult[T, A] | None]) -> None:
        while (item := self._claim(me, visited)) is not None:
            try:
                visited.put(_CallResult(item[0], self._visit(item[0])))
            except BaseException as exc:  # noqa: BLE001 - raised again by who waits
                visited.put(_CallResult(item[0], raised=exc))
                return

    def _claim(self, me: int, visited: SimpleQueue[_CallResult[T, A] | None]) -> list[T] | None:
        """Take the next item, if this thread has not been left behind meanwhile."""
        with self._lock:
            if self._owner != me:
                return None
            if not self._pending:
                visited.put(None)
                return None
            self._current = [self._pending.popleft()]
            return self._current
