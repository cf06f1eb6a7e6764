"""
Repeat what failed with a node that passed with others: is it slow with some partners, each time?

A node with several adapters, of which one is bad, is slow with those partners that it reaches by
that one. It fails and passes by turns, as a fault that comes and goes does; but the same pairs
fail each time. It is not reported as faulty: what is between the node and these partners may be the
cause as well.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from random import Random
from typing import TypeVar

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

SLOW_PARTNERS, WELL_PARTNERS = 3, 2
"""The fewest partners that must be slow with a node each time, and well with it again: who fails
with two may have met two such nodes."""
MAX_RETRIED_PARTNERS = 6
"""The most partners of either kind that are tried again."""
PAIR_REPEATS = 2
"""A pair that failed must fail each time; one that passed must pass once."""

MAX_ROUNDS = 24
"""Far more than it takes where rounds are not disturbed."""

T = TypeVar("T")
PairResults = dict[frozenset[str], list[bool]]
"""Whether each test of a pair failed."""


class PartlySlow(Struct, frozen=True):
    """A node that is slow with some partners each time, and well with others."""

    node: str
    slow_with: Members
    well_with: Members


def note_pairs(
    plan: Generator[Round, Outcomes, T], seen: PairResults
) -> Generator[Round, Outcomes, T]:
    """Carry out a *plan*, and note in *seen* what came of its tests of two members."""
    tests = next(plan)
    try:
        while True:
            outcomes = yield tests
            for test, outcome in zip(tests, outcomes or (), strict=False):
                if len(test.members) == TWO and outcome is not GroupOutcome.UNKNOWN:
                    results = seen.setdefault(frozenset(test.members), [])
                    results.append(outcome is GroupOutcome.FAILED)
            tests = plan.send(outcomes)
    except StopIteration as end:
        result: T = end.value
    return result


class _Candidate(Struct):
    node: str
    to_fail: list[str]
    to_pass: list[str]
    slow: list[str]
    well: list[str]
    repeats: int = 0

    @property
    def is_open(self) -> bool:
        """Whether it can still turn out to be slow with some, and is not known to be."""
        may_be_slow = len(self.slow) + len(self.to_fail) >= SLOW_PARTNERS
        may_be_well = len(self.well) + len(self.to_pass) >= WELL_PARTNERS
        return may_be_slow and may_be_well and not self.is_partly_slow

    @property
    def is_partly_slow(self) -> bool:
        return len(self.slow) >= SLOW_PARTNERS and len(self.well) >= WELL_PARTNERS

    def choose_partner(self, busy: Collection[str]) -> str | None:
        """Choose the next partner: first one that should fail, as chance does not twice."""
        need_slow = len(self.slow) < SLOW_PARTNERS
        left = self.to_fail if need_slow else self.to_pass
        return next((partner for partner in left if partner not in busy), None)

    def learn(self, partner: str, *, has_failed: bool) -> None:
        """Take what came of a test with *partner*."""
        if partner in self.to_pass:
            self.to_pass.remove(partner)
            self.well += [] if has_failed else [partner]
        elif not has_failed:
            self.to_fail.remove(partner)
            self.repeats = 0
        elif self.repeats + 1 == PAIR_REPEATS:
            self.to_fail.remove(partner)
            self.slow.append(partner)
            self.repeats = 0
        else:
            self.repeats += 1


def find_partly_slow(
    suspects: Sequence[str],
    good: Sequence[str],
    *,
    seen: PairResults,
    zones: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[PartlySlow, ...]]:
    """
    Yield rounds that try *suspects* again with those *good* nodes that they have met.

    What is *seen* of pairs says which. Where *zones* are known, only partners of the same
    one count: what is between zones may be slow for all.
    """
    candidates = [_choose_partners(node, good, seen, zones, random) for node in suspects]
    for _ in range(MAX_ROUNDS):
        trials = list(_plan_trials(candidates, gone))
        if not trials:
            break
        busy = {*(candidate.node for candidate, _ in trials), *(partner for _, partner in trials)}
        free = [candidate for candidate in good if candidate not in busy and candidate not in gone]
        tests = [
            GroupTest((candidate.node, partner), GroupPurpose.PAIR) for candidate, partner in trials
        ]
        if len(free) >= TWO:
            tests.append(GroupTest((free[0], free[1]), GroupPurpose.CONTROL))
        outcomes = yield tuple(tests)
        if outcomes is None:
            break
        if GroupOutcome.FAILED in outcomes[len(trials) :]:
            continue  # what disturbed the control may have disturbed the others
        for (candidate, partner), outcome in zip(trials, outcomes, strict=False):
            if outcome is not GroupOutcome.UNKNOWN:
                candidate.learn(partner, has_failed=outcome is GroupOutcome.FAILED)
    return tuple(
        PartlySlow(candidate.node, tuple(candidate.slow), tuple(candidate.well))
        for candidate in candidates
        if candidate.is_partly_slow
    )


def _choose_partners(
    node: str, good: Sequence[str], seen: PairResults, zones: Mapping[str, str], random: Random
) -> _Candidate:
    """Choose the *good* nodes with which *node* has failed, or only passed."""
    zone = zones.get(node)
    met = [
        (partner, seen[pair])
        for partner in random.sample(good, len(good))
        if (pair := frozenset({node, partner})) in seen and zones.get(partner) == zone
    ]
    to_fail = [
        partner for partner, results in sorted(met, key=lambda pair: -sum(pair[1])) if any(results)
    ]
    to_pass = [partner for partner, results in met if not any(results)]
    return _Candidate(node, to_fail[:MAX_RETRIED_PARTNERS], to_pass[:MAX_RETRIED_PARTNERS], [], [])


def _plan_trials(
    candidates: Sequence[_Candidate], gone: Collection[str]
) -> Iterator[tuple[_Candidate, str]]:
    busy = set(gone)
    for candidate in candidates:
        if (
            candidate.is_open
            and candidate.node not in busy
            and (partner := candidate.choose_partner(busy))
        ):
            busy |= {candidate.node, partner}
            yield candidate, partner
