"""Simulated clusters: who is bad, and what a test of some of its nodes says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from hpcverify.isolation.group_tests import GroupOutcome, GroupTest, Members, Outcomes, Round
from hpcverify.isolation.search import SearchResult, make_groups, search

T = TypeVar("T")
Failing = Callable[[GroupTest, int, Random], bool]
"""Whether a test in some round fails."""


@dataclass(frozen=True)
class Walk:
    """What a search took."""

    tests: int
    rounds: int


def name_nodes(count: int) -> list[str]:
    """Name the nodes of a cluster."""
    return [f"n{number:05}" for number in range(count)]


def walk(
    plan: Generator[Round, Outcomes, T], fails: Failing, random: Random, flaky: float = 0.0
) -> tuple[T, Walk]:
    """Follow a *plan* to its end; a share of the tests, *flaky*, says the opposite."""
    tests = rounds = 0
    try:
        todo = next(plan)
        while True:
            check_round(todo)
            tests, rounds = tests + len(todo), rounds + 1
            has_failed = [fails(t, rounds, random) != (random.random() < flaky) for t in todo]
            todo = plan.send(
                [GroupOutcome.FAILED if bad else GroupOutcome.PASSED for bad in has_failed]
            )
    except StopIteration as end:
        return end.value, Walk(tests, rounds)


def check_round(todo: Round) -> None:
    """Hold a round to what it promises: tests side by side, each of two members or more."""
    groups = {frozenset(test.members) for test in todo}  # a pair sends in both directions
    members = [member for group in groups for member in group]
    assert len(members) == len(set(members)), "two tests of one round share a member"
    assert all(test.members for test in todo)


def look(
    nodes: Sequence[str],
    fails: Failing,
    seed: str,
    *,
    flaky: float = 0.0,
    groups: Sequence[Members] = (),
    zones: Mapping[str, str] | None = None,
) -> tuple[SearchResult, Walk]:
    """Search *nodes* in one simulated cluster."""
    random = Random(f"search {seed}")
    plan = search(groups or make_groups(nodes, random), random, zones or {})
    return walk(plan, fails, Random(f"cluster {seed}"), flaky)


def contains_any(bad: set[str]) -> Failing:
    """Fail each test with one of the *bad*."""
    return lambda test, _round, _random: not bad.isdisjoint(test.members)


def contains_pair(*links: tuple[str, str]) -> Failing:
    """Fail each test with both ends of a bad link."""
    return lambda test, _round, _random: any({*link} <= {*test.members} for link in links)
