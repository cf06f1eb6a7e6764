"""
Tell a slow link between two nodes at different switches from what is slow between the switches.

Both spoil a test of all nodes of the two. What is between switches spoils pairs of any of their
nodes; the link of two nodes only theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from random import Random

from msgspec import Struct

from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)
from hpcverify.isolation.search import (
    FAILURES_OF_LINK,
    MAX_PASSES,
    halve,
    is_slow_way,
)

SAMPLE_PAIRS, SAMPLE_ROUNDS = 4, 2
"""Pairs of other nodes that are tried between two switches at a time, and how often."""
MAX_FAILED_PAIRS = 1
"""Of these, one may be the link: with more, it is between the switches."""
ENDS = 2
"""Other nodes with which each end is paired: if a pair fails, it is that end."""
ATTEMPTS = 2
"""To find the half that fails, and to have a failure again."""
SEARCHES = 4
"""Each begins anew: a single test that was wrong leads a search astray."""


class FarLink(Struct, frozen=True):
    """What is slow between two switches."""

    ends: Members = ()
    """The two nodes, if it is theirs alone."""
    ways: tuple[Members, ...] = ()
    """The directions that are slow, as far as that is known."""
    is_shared: bool = False
    """Pairs of other nodes are slow as well."""


def pass_between(
    first: Sequence[str], second: Sequence[str], random: Random, gone: Collection[str]
) -> Generator[Round, Outcomes, bool]:
    """Test nodes of a *first* switch with those of a *second*, by lot; return whether they pass."""
    slow: set[Members] = set()
    for _ in range(SAMPLE_ROUNDS):
        here, there = ([node for node in side if node not in gone] for side in (first, second))
        count = min(len(here), len(there), SAMPLE_PAIRS)
        pairs = zip(random.sample(here, count), random.sample(there, count), strict=True)
        failed = (yield from _list_failing(pairs)) if count > MAX_FAILED_PAIRS else None
        if failed is None:
            return False
        slow |= failed
    return len(slow) <= MAX_FAILED_PAIRS


def _list_failing(pairs: Iterable[Members]) -> Generator[Round, Outcomes, set[Members] | None]:
    """List the disjoint *pairs* that fail each time; None: a test came to no end."""
    left = list(pairs)
    for _ in range(ATTEMPTS):
        outcomes = (
            (yield tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in left)) if left else ()
        )
        if outcomes is None or GroupOutcome.UNKNOWN in outcomes:
            return None
        results = zip(left, outcomes, strict=True)
        left = [pair for pair, outcome in results if outcome is GroupOutcome.FAILED]
    return set(left)


def find_far_link(
    first: Sequence[str], second: Sequence[str], random: Random, gone: Collection[str]
) -> Generator[Round, Outcomes, FarLink]:
    """Find the link of nodes of a *first* and a *second* switch that slows what is between them."""
    if not (yield from pass_between(first, second, random, gone)):
        return FarLink(is_shared=True)
    for _ in range(SEARCHES):
        here, there = (
            tuple(random.sample(side, len(side)))
            for side in ([node for node in side if node not in gone] for side in (first, second))
        )
        ends = yield from _halve_both(here, there)
        if ends and (yield from _are_ends_well(ends, here, there)):
            link = yield from _repeat_link(ends, here, there)
            if link.ends:
                return link
    return FarLink()


def _are_ends_well(
    ends: Members, first: Members, second: Members
) -> Generator[Round, Outcomes, bool]:
    """Whether both *ends* pass with other nodes of the other's switch."""
    near, far = ([node for node in side if node not in ends][:ENDS] for side in (first, second))
    for other, another in zip(far, near, strict=False):
        failed = yield from _list_failing([(ends[0], other), (another, ends[1])])
        if failed is None or failed:
            return False
    return True


def _repeat_link(
    ends: Members, first: Members, second: Members
) -> Generator[Round, Outcomes, FarLink]:
    """Test the *ends* with each other until it is clear that they fail, or that they pass."""
    control = tuple(next((n for n in side if n not in ends), "") for side in (first, second))
    tests = [GroupTest(ends, GroupPurpose.WHOLE)]
    tests += [GroupTest(way, GroupPurpose.SEND) for way in (ends, ends[::-1])]
    tests += [GroupTest(control, GroupPurpose.CONTROL)] if all(control) else []
    seen: list[Sequence[GroupOutcome]] = []
    counts = {GroupOutcome.FAILED: 0, GroupOutcome.PASSED: 0, GroupOutcome.UNKNOWN: 0}
    while counts[GroupOutcome.FAILED] < FAILURES_OF_LINK:
        outcomes = yield tuple(tests)
        if outcomes is None:
            return FarLink()
        seen.append(outcomes)
        counts[outcomes[0]] += 1
        if counts[GroupOutcome.PASSED] + counts[GroupOutcome.UNKNOWN] >= MAX_PASSES:
            return FarLink()
    ways = (
        test.members
        for place, test in enumerate(tests[1:3], 1)
        if is_slow_way([one[place] is GroupOutcome.FAILED for one in seen])
    )
    return FarLink(ends, tuple(ways))


def find_culprit(
    members: Sequence[str], others: Members, gone: Collection[str]
) -> Generator[Round, Outcomes, Members]:
    """Find the node of *members* that alone fails with *others*; empty if none does by itself."""
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
