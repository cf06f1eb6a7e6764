"""
Test pairs of nodes side by side, and isolate what spoils those that failed.

So a sweep tries links, and names nobody by a pair alone: those that failed are searched
together with as many nodes that passed, as in any isolation.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import chain
from random import Random

from msgspec.structs import replace

from hpcverify.isolation.group_tests import (
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)
from hpcverify.isolation.stages import Isolation, isolate

MIN_PARTNERS = 4
"""Nodes that have passed, beside those of pairs that failed: who is confirmed needs some."""


def try_pairs(
    pairs: Sequence[Members],
    spare: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    *,
    inside: bool = True,
    gone: Collection[str] = frozenset(),
) -> Generator[Round, Outcomes, Isolation]:
    """
    Yield a round of *pairs* and, if some fail, the rounds that isolate the cause.

    *spare* are nodes in no pair that may be partners then, if too few have passed. The
    rest is as in `isolate`. Nodes whose pair did not come to its end are untested.
    """
    outcomes = yield tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in pairs)
    results = dict(zip(pairs, outcomes or [GroupOutcome.UNKNOWN] * len(pairs), strict=True))

    def list_nodes(wanted: GroupOutcome) -> list[str]:
        return list(chain.from_iterable(p for p, outcome in results.items() if outcome is wanted))

    untested = list_nodes(GroupOutcome.UNKNOWN)
    isolation = Isolation()
    if suspects := list_nodes(GroupOutcome.FAILED):
        passed = list_nodes(GroupOutcome.PASSED)
        count = max(MIN_PARTNERS, len(suspects))
        partners = random.sample(passed, min(count, len(passed)))
        partners += random.sample(spare, min(count - len(partners), len(spare)))
        isolation = yield from isolate(
            [*suspects, *partners], switches, random, inside=inside, gone=gone
        )
    nodes = replace(isolation.nodes, untested=(*isolation.nodes.untested, *untested))
    return replace(isolation, nodes=nodes)
