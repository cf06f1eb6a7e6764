"""Calls that never return are left behind, and cost the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from hpcverify.telemetry.nvml.watchdog import TimedCalls, call_each
from tests.waiting import PATIENCE_S

IMPATIENT = 0.05
HANGS = threading.Semaphore(0)
"""Is released by each visit that hangs."""


def wait(results: SimpleQueue[Any], _seconds: float) -> Any:
    """Give up once a visit hangs, and not after a time: a visit may be slow, and answers."""
    while True:
        try:
            return results.get(timeout=0.01)
        except Empty:
            if HANGS.acquire(blocking=False):
                raise


def stuck_at(*numbers: int) -> Callable[[int], int]:
    never = threading.Event()

    def visit(number: int) -> int:
        if number in numbers:
            HANGS.release()
            never.wait()
        return number * 10

    return visit


def test_all_are_visited_in_order() -> None:
    visited = call_each(range(4), stuck_at(), PATIENCE_S)
    assert visited.answers == ((0, 0), (1, 10), (2, 20), (3, 30))
    assert visited.timed_out == ()


def left(visited: TimedCalls[int, int]) -> list[int]:
    return [left.item for left in visited.timed_out]


@pytest.mark.parametrize("stuck", [(0,), (3,), (0, 2)])
def test_those_that_do_not_return_are_left_and_the_rest_is_visited(stuck: tuple[int, ...]) -> None:
    visited = call_each(range(4), stuck_at(*stuck), IMPATIENT, wait=wait)
    assert left(visited) == list(stuck)
    assert [n for n, _ in visited.answers] == [n for n in range(4) if n not in stuck]
    assert visited.unasked == ()


def test_when_two_in_a_row_do_not_return_nobody_else_is_asked() -> None:
    visited = call_each(range(5), stuck_at(1, 2), IMPATIENT, wait=wait)
    assert (left(visited), visited.unasked) == ([1, 2], (3, 4))
    assert visited.answers == ((0, 0),)


def test_what_was_under_way_is_told_as_it_was_by_then() -> None:
    visited = call_each([7], stuck_at(7), IMPATIENT, doing=lambda n: f"call {n}", wait=wait)
    assert [(one.doing, one.seconds) for one in visited.timed_out] == [("call 7", IMPATIENT)]


def test_who_comes_back_too_late_does_not_go_on() -> None:
    let_go, gone_on = threading.Event(), threading.Event()
    visits: list[int] = []

    def visit(number: int) -> int:
        visits.append(number)
        if number == 0:
            HANGS.release()
            let_go.wait()
            gone_on.set()
        return number

    visited = call_each([0, 1], visit, IMPATIENT, wait=wait)
    let_go.set()
    assert gone_on.wait(PATIENCE_S)
    assert (left(visited), visits) == ([0], [0, 1])


def test_who_was_slow_and_comes_back_in_time_has_answered() -> None:
    asked, threads = threading.Event(), list[threading.Thread]()

    def visit(number: int) -> int:
        threads.append(threading.current_thread())
        if number == 0:
            HANGS.release()
            asked.wait()
            return number
        asked.set()
        threads[0].join()  # the slow one gets through
        return number

    visited = call_each([0, 1], visit, IMPATIENT, wait=wait)
    assert (left(visited), sorted(visited.answers)) == ([], [(0, 0), (1, 1)])


def test_what_a_visit_raises_is_raised_to_who_asked() -> None:
    with pytest.raises(ZeroDivisionError):
        call_each([0], lambda n: 1 // n, PATIENCE_S)
