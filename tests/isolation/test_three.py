"""Three members, each two of them in turn."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.group_tests import GroupOutcome, Round
from hpcverify.isolation.search import Plan, SearchResult
from hpcverify.isolation.three import search_three
from tests.isolation.clusters import Failing, Walk, walk

THREE = ("a", "b", "c")


def find(fails: Failing, seed: int = 0) -> tuple[SearchResult, Walk]:
    return walk(search_three(THREE, set()), fails, Random(seed))


def test_three_that_pass_together_twice_are_cleared() -> None:
    found, took = find(lambda *_: False)
    assert found == SearchResult()
    assert took.rounds == 2


@pytest.mark.parametrize("bad", THREE)
def test_the_one_whose_pairs_all_fail_is_bad(bad: str) -> None:
    found, _ = find(lambda test, *_: bad in test.members)
    assert found == SearchResult(bad=(bad,))


@pytest.mark.parametrize("link", [("a", "b"), ("a", "c"), ("b", "c")])
def test_two_that_fail_only_with_each_other_are_a_link(link: tuple[str, str]) -> None:
    found, _ = find(lambda test, *_: set(link) <= set(test.members))
    assert found == SearchResult(links=(link,))


TRIALS: dict[str, tuple[Failing, SearchResult]] = {
    "three that fail only together blame nobody": (
        lambda test, *_: len(test.members) == len(THREE),
        SearchResult(together=(THREE,)),
    ),
    "if all pairs fail nobody is told apart": (lambda *_: True, SearchResult(is_widespread=True)),
    "a failure that does not come again is intermittent": (
        lambda _test, number, _random: number == 1,
        SearchResult(intermittent=(THREE,)),
    ),
    "who passes once is not blamed": (  # the bad one of the last pairs was well at first
        lambda test, number, _random: "b" in test.members and number != 2,
        SearchResult(intermittent=(("a", "b"),)),
    ),
}


@pytest.mark.parametrize(("fails", "expected"), TRIALS.values(), ids=TRIALS)
def test_three_nodes(fails: Failing, expected: SearchResult) -> None:
    assert find(fails)[0] == expected


def test_nobody_is_blamed_where_every_twentieth_test_fails_by_chance() -> None:
    for seed in range(100):
        found, _ = find(lambda _test, _number, random: random.random() < 0.05, seed)
        assert SearchResult(together=found.together, intermittent=found.intermittent) == found, seed


def end(plan: Plan, tests: Round, outcome: GroupOutcome) -> tuple[SearchResult, int]:
    """Let *tests* and all that follow have one *outcome*; count them."""
    count = 0
    try:
        while True:
            count += len(tests)
            tests = plan.send([outcome])
    except StopIteration as over:
        return over.value, count


@pytest.mark.parametrize("lost", THREE)
def test_of_two_that_are_left_nothing_can_be_said(lost: str) -> None:
    gone = set[str]()
    plan = search_three(THREE, gone)
    tests = next(plan)
    gone.add(lost)

    found, count = end(plan, tests, GroupOutcome.FAILED)

    assert found == SearchResult(untested=THREE)
    assert count == 1 + 3, "those two with each other"


def test_tests_that_come_to_no_end_are_tried_again_and_then_left() -> None:
    plan = search_three(THREE, set())
    found, count = end(plan, next(plan), GroupOutcome.UNKNOWN)
    assert found == SearchResult(untested=THREE)
    assert count == 5
