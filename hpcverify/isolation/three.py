"""
Find which of three members spoils a collective, by tests of each two of them.

Among three nobody has partners that are known to pass, and no other two are left for a
control. So all three pairs are tested in turn, several times: the pair without the bad
member passes, in between those that fail.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from itertools import chain, combinations

from hpcverify.isolation.group_tests import (
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)
from hpcverify.isolation.search import Plan, SearchResult
from hpcverify.isolation.search_state import CLEARED_PASSES, MAX_ATTEMPTS

THREE = 3
TESTS_PER_PAIR = 3
"""A bad member fails six tests, and three without it pass in between."""


Pairs = dict[Members, list[GroupOutcome]]
"""What came of the tests of each pair."""


def search_three(members: Members, gone: Collection[str]) -> Plan:
    """
    Yield rounds of tests of three *members*, and take their outcomes, until they are judged.

    A node that is *gone* cannot be tested; then the other two cannot be distinguished.
    """
    outcome = GroupOutcome.PASSED
    for _ in range(CLEARED_PASSES):
        if outcome is GroupOutcome.PASSED:
            outcome = yield from _test(members, GroupPurpose.GROUP, gone)
    if outcome is GroupOutcome.PASSED:
        return SearchResult()
    if outcome is GroupOutcome.UNKNOWN:
        return SearchResult(untested=members)
    pairs: Pairs = {pair: [] for pair in combinations(members, 2)}
    for _ in range(TESTS_PER_PAIR):
        for pair, outcomes in pairs.items():
            outcomes.append((yield from _test(pair, GroupPurpose.HALF, gone)))
    if any(GroupOutcome.FAILED in outcomes for outcomes in pairs.values()):
        return _explain(pairs)
    again = yield from _test(members, GroupPurpose.WHOLE, gone)
    if again is GroupOutcome.FAILED:
        return SearchResult(together=(members,))
    return SearchResult(intermittent=(members,))


def _explain(pairs: Pairs) -> SearchResult:
    """Name the bad member or link, if each pair always passes or always fails."""
    if any(GroupOutcome.UNKNOWN in outcomes for outcomes in pairs.values()):
        return SearchResult(untested=tuple(dict.fromkeys(chain.from_iterable(pairs))))
    mixed = tuple(pair for pair, outcomes in pairs.items() if len({*outcomes}) > 1)
    if mixed:
        return SearchResult(intermittent=mixed)
    failing = [pair for pair, outcomes in pairs.items() if outcomes[0] is GroupOutcome.FAILED]
    if len(failing) == len(pairs):
        return SearchResult(is_widespread=True)
    if len(failing) == 1:
        return SearchResult(links=tuple(failing))
    return SearchResult(bad=tuple({*failing[0]} & {*failing[1]}))


def _test(
    members: Members, purpose: GroupPurpose, gone: Collection[str]
) -> Generator[Round, Outcomes, GroupOutcome]:
    """Test *members* together, again if need be; unknown if that cannot be."""
    for _ in range(MAX_ATTEMPTS):
        if not set(gone).isdisjoint(members):
            break
        outcomes = yield (GroupTest(members, purpose),)
        if outcomes is None:
            break
        if outcomes[0] is not GroupOutcome.UNKNOWN:
            return outcomes[0]
    return GroupOutcome.UNKNOWN
