"""Calls that never return are left behind, and cost the others nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from hpcverify.telemetry.nvml.patience import Round

GENEROUS = 60.0
IMPATIENT = 0.05


def stuck_at(*numbers: int) -> Callable[[int], int]:
    never = threading.Event()

    def visit(number: int) -> int:
        if number in numbers:
            never.wait()
        return number * 10

    return visit


def test_all_are_visited_in_order() -> None:
    visited = Round(range(4), stuck_at(), GENEROUS)
    assert visited.answers == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert visited.left == []


@pytest.mark.parametrize("stuck", [(0,), (3,), (1, 2), (0, 1, 2, 3)])
def test_those_that_do_not_return_are_left_and_the_rest_is_visited(
    stuck: tuple[int, ...],
) -> None:
    visited = Round(range(4), stuck_at(*stuck), IMPATIENT)
    assert visited.left == list(stuck)
    assert [n for n, _ in visited.answers] == [n for n in range(4) if n not in stuck]


def test_who_comes_back_too_late_does_not_go_on() -> None:
    let_go, gone_on = threading.Event(), threading.Event()
    visits: list[int] = []

    def visit(number: int) -> None:
        visits.append(number)
        if number == 0:
            let_go.wait()
            gone_on.set()

    visited = Round([0, 1], visit, IMPATIENT)
    let_go.set()
    assert gone_on.wait(GENEROUS)
    assert (visited.left, visits) == ([0], [0, 1])


def test_what_a_visit_raises_is_raised_to_who_asked() -> None:
    with pytest.raises(ZeroDivisionError):
        Round([0], lambda n: 1 // n, GENEROUS)
