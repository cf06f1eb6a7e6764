"""
Test nodes that were found bad with each other: who is well there is no bad node, but does not fit.

A bad node spoils every test that it takes part in. Nodes of another version, or behind a switch
that nobody has named, spoil those with others and pass among themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence

from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)

FIRST_PAIRINGS, MAX_PAIRINGS = 2, 9
"""All nodes are tested in pairs: the rest of the pairings only if a pair has passed."""
PASSES_IN_A_ROW = 3
"""A single pass of a pair may be chance."""


def find_misfits(bad: Sequence[str], gone: Collection[str]) -> Generator[Round, Outcomes, Members]:
    """Yield rounds of pairs of *bad* nodes; return those that pass with another one of them."""
    here = [node for node in bad if node not in gone]
    if len(here) < TWO:
        return ()
    fitting: set[str] = set()
    for number, pairs in enumerate(pair_all(here)[:MAX_PAIRINGS]):
        if number >= FIRST_PAIRINGS and not fitting:
            break
        left = [pair for pair in pairs if not fitting.issuperset(pair)]
        for _ in range(PASSES_IN_A_ROW):
            if not left:
                break
            outcomes = yield tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in left)
            if outcomes is None:
                return ()
            results = zip(left, outcomes, strict=True)
            left = [pair for pair, outcome in results if outcome is GroupOutcome.PASSED]
        fitting.update(node for pair in left for node in pair)
    return tuple(node for node in bad if node in fitting)


def pair_all(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Pair each node with each other one, in rounds of disjoint pairs."""
    # The circle method: the first stays, the others move on by one seat a round.
    seats: list[str | None] = [*nodes, None][: len(nodes) + len(nodes) % 2]
    rounds: list[list[tuple[str, str]]] = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        rounds.append([(first, second) for first, second in facing if first and second])
        seats.insert(1, seats.pop())
    return rounds
