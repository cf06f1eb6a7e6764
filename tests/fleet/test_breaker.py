"""The breaker: how many may be held, and when a check is the suspect."""

from __future__ import annotations

import pytest

from hpcverify.fleet.breaker import (
    compute_allowance,
    explain_trip,
    find_doubted_checks,
    predict_doubt_end,
)
from hpcverify.plan.config import Quarantine

POLICY = Quarantine(share=0.1, cap=8, check_share=0.3)


@pytest.mark.parametrize(
    ("eligible", "allowed"), [(1, 2), (2, 2), (8, 2), (20, 2), (21, 3), (1024, 8)]
)
def test_a_tenth_may_be_held_two_always_and_never_more_than_the_cap(
    eligible: int, allowed: int
) -> None:
    assert compute_allowance(eligible, POLICY) == allowed


def test_two_of_four_may_be_held_and_a_third_trips_it() -> None:
    assert explain_trip([], ["n1", "n2"], [], 4, POLICY) == ""
    assert explain_trip(["n1", "n2"], ["n3"], [], 4, POLICY).startswith("3 of 4 nodes")
    assert explain_trip([], ["n1", "n2", "n3"], [], 4, POLICY)


def test_a_node_that_is_held_again_counts_once() -> None:
    assert explain_trip(["n1", "n2"], ["n1"], [], 4, POLICY) == ""


def test_what_was_held_before_trips_nothing_by_itself() -> None:
    assert explain_trip(["n1", "n2", "n3", "n4"], [], [], 4, POLICY) == ""


def test_a_check_that_fails_widely_is_the_suspect() -> None:
    ran = {f"n{i}": i < 4 for i in range(10)}
    assert find_doubted_checks({"gemm": ran}, POLICY) == {
        "gemm": "gemm fails on 4 of the 10 nodes that ran it: suspect the check, the "
        "driver or the image"
    }


@pytest.mark.parametrize("failed", [0, 1, 2, 3])
def test_a_check_that_fails_on_few_is_believed(failed: int) -> None:
    assert find_doubted_checks({"gemm": {f"n{i}": i < failed for i in range(10)}}, POLICY) == {}


def test_two_nodes_never_accuse_a_check() -> None:
    assert find_doubted_checks({"gemm": {"n1": True, "n2": True}}, POLICY) == {}


HOURS = 3600.0


@pytest.mark.parametrize(
    ("answers", "hours"),
    [
        ([(1, True), (2, True), (3, True)], 25),  # two are too few
        ([(1, True), (2, True), (3, True), (4, True)], 26),
        ([(1, False), (2, True), (3, True), (4, True)], 26),
        # The failures are the older ones, and leave first.
        ([*((1, True),) * 4, *((5, False),) * 8], 25),
        # The passes are: it only becomes worse.
        ([*((1, False),) * 4, *((5, True),) * 3], 29),
        ([(1, False)], 0),
    ],
)
def test_a_doubt_ends_when_too_few_failures_are_left_in_the_window(
    answers: list[tuple[float, bool]], hours: float
) -> None:
    at = [(hour * HOURS, failed) for hour, failed in answers]
    assert predict_doubt_end(at, POLICY) == hours * HOURS
