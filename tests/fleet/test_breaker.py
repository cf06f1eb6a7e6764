"""The breaker: how many may be held, and when a check is the suspect."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from hpcverify.fleet.breaker import (
    compute_allowance,
    compute_out_limit,
    explain_rollout_doubt,
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


@pytest.mark.parametrize(
    ("eligible", "limit"), [(1, 2), (4, 2), (8, 4), (12, 4), (40, 8), (200, 16), (1000, 50)]
)
def test_a_twentieth_may_be_out_and_in_a_small_fleet_twice_what_may_be_held(
    eligible: int, limit: int
) -> None:
    assert compute_out_limit(eligible, POLICY) == limit


def test_one_more_than_may_be_out_trips_it_however_slowly_they_came() -> None:
    out = [f"n{i}" for i in range(8)]
    assert explain_trip([], ["n9"], out[:7], 40, POLICY) == ""
    assert explain_trip([], ["n9"], out, 40, POLICY).startswith("9 of 40 nodes would be out")
    assert explain_trip([], out, out, 40, replace(POLICY, share=1)) == ""


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


@pytest.mark.parametrize(
    ("bad_fresh", "fresh", "bad_others", "others", "doubted"),
    [
        (2, 2, 0, 38, False),  # two bad nodes are believed
        (3, 3, 0, 37, True),
        (3, 3, 0, 9, True),
        (3, 3, 0, 4, False),  # by chance
        (3, 18, 0, 22, False),
        (3, 3, 1, 36, True),  # one node is bad besides
        (3, 3, 8, 29, False),
        (5, 20, 0, 80, False),  # most of those with something new pass
        (8, 20, 0, 80, True),
    ],
)
def test_a_check_that_fails_with_something_new_alone_is_the_suspect(
    bad_fresh: int, fresh: int, bad_others: int, others: int, *, doubted: bool
) -> None:
    ran = [f"n{i}" for i in range(fresh + others)]
    failing = [*ran[:bad_fresh], *ran[fresh : fresh + bad_others]]
    assert bool(explain_rollout_doubt(failing, ran[:fresh], ran, POLICY)) is doubted


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
