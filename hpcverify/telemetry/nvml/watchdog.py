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
from typing import Any, Generic, TypeVar, cast

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
    """The seconds waited so far."""


class TimedCalls(Struct, Generic[T, A], frozen=True):
    """What came of visiting each item."""

    answers: tuple[tuple[T, A], ...]
    timed_out: tuple[TimedOut[T], ...]
    unasked: tuple[T, ...]
    """Items that were not visited, because those before them hung."""


def _take(results: SimpleQueue[Any], seconds: float) -> Any:
    return results.get(timeout=seconds)


def call_each(
    items: Iterable[T],
    visit: Callable[[T], A],
    timeout: float,
    hurried_timeout: float | None = None,
    doing: Callable[[T], str] = str,
    *,
    wait: Callable[[SimpleQueue[Any], float], Any] = _take,
) -> TimedCalls[T, A]:
    """
    Call *visit* with each of *items* in turn, and go on without those that hang.

    Waits *timeout* seconds for an item, and once one hangs *hurried_timeout* seconds;
    *doing* says what a visit is at. *wait* takes the next result within so many seconds,
    or raises Empty. What a visit raises is raised here.
    """
    pending = deque(items)
    answers: list[tuple[T, A]] = []
    abandoned: list[tuple[TimedOut[T], _Visitor[T, A]]] = []
    hangs_in_a_row = 0
    while pending and hangs_in_a_row < MAX_HANGS_IN_A_ROW:
        seconds = hurried_timeout if abandoned and hurried_timeout else timeout
        visitor = _Visitor(pending, visit)
        visitor.start()
        while True:
            try:
                result = wait(visitor.results, seconds)
            except Empty:
                if not (stuck := visitor.abandon()):
                    continue
                abandoned.append((TimedOut(stuck[0], doing(stuck[0]), seconds), visitor))
                hangs_in_a_row += 1
                break
            if result is None:
                break
            answers.append(result.unwrap())
            hangs_in_a_row = 0
    late = [visitor.take_late_answer() for _, visitor in abandoned]
    return TimedCalls(
        answers=(*answers, *(answer for answer in late if answer)),
        timed_out=tuple(
            out for (out, _), answer in zip(abandoned, late, strict=True) if not answer
        ),
        unasked=tuple(pending),
    )


class _CallResult(Struct, Generic[T, A], frozen=True):
    item: T
    answer: A | None = None
    raised: BaseException | None = None

    def unwrap(self) -> tuple[T, A]:
        if self.raised is not None:
            raise self.raised
        return self.item, cast("A", self.answer)


class _Visitor(Thread, Generic[T, A]):
    """Visits what is pending, one after the other, until it is left behind."""

    def __init__(self, pending: deque[T], visit: Callable[[T], A]) -> None:
        super().__init__(daemon=True)
        self.results: SimpleQueue[_CallResult[T, A] | None] = SimpleQueue()
        self._pending = pending
        self._visit = visit
        self._lock = Lock()
        self._current: list[T] = []
        self._is_abandoned = False

    def run(self) -> None:
        while current := self._claim():
            (item,) = current
            try:
                self.results.put(_CallResult(item, self._visit(item)))
            except BaseException as exc:  # noqa: BLE001 - raised again by who waits
                self.results.put(_CallResult(item, raised=exc))
                return

    def _claim(self) -> list[T]:
        """Take the next item, if this thread has not been left behind meanwhile."""
        with self._lock:
            if self._is_abandoned:
                return []
            self._current = [self._pending.popleft()] if self._pending else []
            if not self._current:
                self.results.put(None)
            return self._current

    def abandon(self) -> list[T]:
        """Leave it behind with the item at hand; none if it comes back at this moment."""
        with self._lock:
            if not self.results.empty() or not self._current:
                return []
            self._is_abandoned = True
            return self._current

    def take_late_answer(self) -> tuple[T, A] | None:
        """Take the answer of an item that was slow, and has come back meanwhile."""
        result = None if self.results.empty() else self.results.get()
        return result.unwrap() if result and not result.raised else None
