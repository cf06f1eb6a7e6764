"""
Tell a slow link between two nodes at different switches from what is slow between the switches.

Both spoil a test of all nodes of the two. What is between switches spoils pairs of any of their
nodes; the link of two nodes only theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from random import Random

from hpcverify.isolation.confirm import confirm
from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)
from hpcverify.isolation.search import SearchResult
from hpcverify.isolation.search_state import halve

SAMPLE_PAIRS, SAMPLE_ROUNDS = 4, 2
"""Pairs of other nodes that are tried between two switches at a time, and how often."""
MAX_FAILED_PAIRS = 1
"""Pairs that fail by chance or since one is the link: with more, it is between the switches."""

PAIRS_PER_END = 4
"""An end is paired with other nodes of the other switch: if a pair fails, it is that end."""
ATTEMPTS = 2
"""To find the half that fails."""


def pass_between(
    first: Sequence[str], second: Sequence[str], random: Random, gone: Collection[str]
) -> Generator[Round, Outcomes, bool]:
    """Test nodes of a *first* switch with those of a *second*, by lot; return whether they pass."""
    failed, tests = set[Members](), 0
    for _ in range(SAMPLE_ROUNDS):
        here, there = ([node for node in side if node not in gone] for side in (first, second))
        count = min(len(here), len(there), SAMPLE_PAIRS)
        pairs = list(zip(random.sample(here, count), random.sample(there, count), strict=True))
        planned = tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in pairs)
        outcomes = (yield planned) if planned else None
        if outcomes is None:
            return False
        results = list(zip(pairs, outcomes, strict=True))
        failed |= {pair for pair, outcome in results if outcome is GroupOutcome.FAILED}
        tests += sum(outcome is not GroupOutcome.UNKNOWN for outcome in outcomes)
    return len(failed) <= MAX_FAILED_PAIRS < tests


def find_far_link(
    first: Sequence[str], second: Sequence[str], random: Random, gone: Collection[str]
) -> Generator[Round, Outcomes, Members]:
    """
    Find the link of nodes of a *first* and a *second* switch that slows what is between them.

    Empty if there is none: other pairs are slow as well, or nothing is by itself.
    """
    if not (yield from pass_between(first, second, random, gone)):
        return ()
    link = yield from _halve_both(tuple(first), tuple(second))
    if not link:
        return ()
    others = [(link[0], node) for node in second if node != link[1] and node not in gone]
    others += [(node, link[1]) for node in first if node != link[0] and node not in gone]
    for pair in random.sample(others, min(len(others), PAIRS_PER_END)):  # is it one of its ends?
        outcomes = yield (GroupTest(pair, GroupPurpose.PAIRS),)
        if outcomes is None or outcomes[0] is GroupOutcome.FAILED:
            return ()
    members = (*first, *second)
    confirmed = yield from confirm(SearchResult(links=(link,)), members, {}, random, gone)
    return confirmed.links[0] if confirmed.links else ()


def find_culprit(
    members: Sequence[str], others: Members, gone: Collection[str]
) -> Generator[Round, Outcomes, Members]:
    """
    Find the one of the *members* of a switch that alone spoils what they do with *others*.

    Empty if there is none: all of them do, as behind a bad uplink, or none by itself. One that is
    slow with a few partners fails only in a test with many others, which looks like its switch.
    """
    here = tuple(node for node in members if node not in gone)
    left = here
    while len(left) > 1:
        failed = []
        for half in halve(left):
            outcomes = yield (GroupTest(half + others, GroupPurpose.BETWEEN),)
            if outcomes is None:
                return ()
            failed += [half] if outcomes[0] is not GroupOutcome.PASSED else []
        if len(failed) != 1:
            return ()
        left = failed[0]
    rest = tuple(node for node in here if node not in left)
    for _ in range(ATTEMPTS if rest else 0):
        outcomes = yield (GroupTest(rest + others, GroupPurpose.BETWEEN),)
        if outcomes is None or outcomes[0] is not GroupOutcome.PASSED:
            return ()
    return left if rest else ()


def _halve_both(first: Members, second: Members) -> Generator[Round, Outcomes, Members]:
    """Halve both sides until one of each is left that fail together; empty: all passes."""
    while len(first) + len(second) > TWO:
        (a, b), (c, d) = halve(first), halve(second)
        for facing in (((a, c), (b, d)), ((a, d), (b, c))) * ATTEMPTS:
            sides = [(here, there) for here, there in facing if here and there]
            tests = tuple(GroupTest(here + there, GroupPurpose.BETWEEN) for here, there in sides)
            outcomes = (yield tests) if tests else ()
            if outcomes is None:
                return ()
            results = zip(sides, outcomes, strict=True)
            failed = [side for side, outcome in results if outcome is GroupOutcome.FAILED]
            if failed:
                first, second = failed[0]
                break
        else:
            return ()
    return first + second
