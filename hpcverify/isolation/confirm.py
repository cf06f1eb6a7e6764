"""
Test once more what a search found, and drop what passes.

The tests by which somebody was found were chosen since they failed, and what they were
compared with since it passed: on a noisy network both may be chance. These tests are not,
and nor are the controls beside them, whatever comes of them.

A member is tested with others of its zone. Before it meets one of them again, it is tested
with those of other zones, beside a *witness*: a pair that goes between the same two zones.
Unless that passes, the cause may be between the zones.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from itertools import chain
from random import Random

from msgspec import Struct, field
from msgspec.structs import replace

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
from hpcverify.isolation.search_state import MAX_ATTEMPTS

CONFIRMING_FAILURES, REFUTING_PASSES = 4, 2
"""What comes first, decides."""
MORE_FAILURES, DOUBTS = 4, 4
"""The most repeats to add: one for each `DOUBTS` groups and members that failed and then passed:
where chance fails that much, it fails four times in a row as well."""
CONFIRM_CONTROLS = 4
"""Pairs beside them, of those that have passed."""


class _Claim(Struct, eq=False):
    """That what a search *found*, a member, a zone or a link, fails each test."""

    found: str | Members
    members: Members
    purpose: GroupPurpose
    needed: int = CONFIRMING_FAILURES
    """Failures that confirm it."""
    passes: int = 0
    failures: int = 0
    unknowns: int = 0
    partners: set[str] = field(default_factory=set[str])
    failed_with: set[Members] = field(default_factory=set[Members])
    """What failed: if it is one pair alone, either may be bad."""
    is_near_next: bool = False
    """The last witness did not pass: the cause may be between the zones."""

    @property
    def tests(self) -> int:
        return self.passes + self.failures + self.unknowns

    @property
    def is_one_pair(self) -> bool:
        return self.purpose is GroupPurpose.PAIR and len(self.failed_with) == 1

    @property
    def is_confirmed(self) -> bool:
        return self.failures >= self.needed and not self.is_one_pair

    @property
    def is_refuted(self) -> bool:
        return self.passes >= REFUTING_PASSES

    @property
    def is_open(self) -> bool:
        return not (self.is_confirmed or self.is_refuted or self.is_lost)

    @property
    def is_lost(self) -> bool:
        return self.unknowns >= MAX_ATTEMPTS or (self.failures >= self.needed and self.is_one_pair)

    def learn(self, members: Members, outcome: GroupOutcome, *witness: GroupOutcome) -> None:
        """Take the *outcome* of a test; a failure counts only if its *witness* passed."""
        is_fair = all(outcome is GroupOutcome.PASSED for outcome in witness)
        self.is_near_next = not is_fair
        if outcome is GroupOutcome.PASSED:
            self.passes += 1
        elif outcome is GroupOutcome.FAILED and is_fair:
            self.failures += 1
            self.failed_with.add(members)
        else:
            self.unknowns += 1


class _Trial(Struct, frozen=True):
    claim: _Claim
    tests: Round


def confirm(
    result: SearchResult,
    members: Sequence[str],
    zones: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, SearchResult]:
    """
    Yield rounds that test a *result* among *members* again, and return what is left of it.

    A member, or any one of a zone, is tested with several partners; a link as it is. What
    passes is intermittent. What could not be tested to its end, or has nobody to be tested
    with, is untested. The rest is as `search` has it.
    """
    claims = [_Claim(member, (member,), GroupPurpose.PAIR) for member in result.bad]
    claims += [_Claim(link, link, GroupPurpose.WHOLE) for link in result.links]
    for zone in result.bad_zones:
        there = tuple(member for member in members if zones.get(member) == zone)
        claims.append(_Claim(zone, there, GroupPurpose.PAIR))
    claimed = {*chain.from_iterable(claim.members for claim in claims)}
    others = tuple(member for member in members if member not in claimed)
    vague = {*result.untested, *chain.from_iterable(result.intermittent)}
    is_cut_short = False
    while not is_cut_short:
        free = [member for member in others if member not in gone]
        random.shuffle(free)
        bystanders = _Bystanders(others, vague, zones, sorted(free, key=vague.__contains__))
        trials = list(_plan_trials(claims, bystanders, random, gone))
        if not trials:
            break
        tests = tuple(chain.from_iterable(trial.tests for trial in trials))
        outcomes = yield (*tests, *bystanders.plan_controls())
        is_cut_short = outcomes is None
        results = dict(zip(tests, outcomes or (), strict=False))
        for trial in trials if results else ():
            trial.claim.learn(trial.tests[0].members, *(results[test] for test in trial.tests))
        doubts = len(result.intermittent) + sum(claim.is_refuted for claim in claims)
        for claim in claims:
            claim.needed = CONFIRMING_FAILURES + min(MORE_FAILURES, doubts // DOUBTS)
    left = [claim for claim in claims if not claim.is_confirmed]
    lost = [
        claim
        for claim in left
        if not claim.is_refuted
        and (is_cut_short or claim.is_lost or not claim.passes or set(gone) & {*claim.members})
    ]
    return _take_back(result, left, lost)


class _Bystanders(Struct):
    members: Members
    """All of them, those who are gone too."""
    vague: Collection[str]
    """Those who failed and then passed, or are untested: they are no partners."""
    zones: Mapping[str, str]
    free: list[str]
    """Who has nothing to do yet, the vague ones last."""

    def plan_trial(self, claim: _Claim, member: str) -> _Trial | None:
        """Plan a test of a *member*, with a partner that it has not met if there is one."""
        zone = self.zones.get(member)
        has_neighbours = any(self.zones.get(member) == zone for member in self.members)
        good = [member for member in self.free if member not in self.vague]
        good.sort(key=claim.partners.__contains__)
        near = [member for member in good if not has_neighbours or self.zones.get(member) == zone]
        near_by = {*near}
        far = [member for member in good if member not in near_by]
        is_near = bool(near) and (claim.is_near_next or near[0] not in claim.partners)
        if far and not is_near and (witness := self._choose_witness(member, far[0])):
            return self._take(claim, (member, far[0]), witness)
        if near and len(self.free) > TWO:
            return self._take(claim, (member, near[0]))
        return None

    def plan_whole(self, claim: _Claim) -> _Trial | None:
        """Plan a test of all members of a *claim*."""
        return self._take(claim, claim.members) if len(self.free) >= TWO else None

    def plan_controls(self) -> list[GroupTest]:
        """Pair those who have nothing to do."""
        pairs = zip(self.free[::2], self.free[1::2], strict=False)
        return [GroupTest(pair, GroupPurpose.CONTROL) for pair in pairs][:CONFIRM_CONTROLS]

    def _choose_witness(self, member: str, partner: str) -> Members | None:
        zone, there = self.zones.get(member), self.zones.get(partner)
        near = [spare for spare in self.free if self.zones.get(spare) == zone]
        far = [spare for spare in self.free if self.zones.get(spare) != zone and spare != partner]
        far.sort(key=lambda spare: self.zones.get(spare) != there)
        return (near[0], far[0]) if near and far else None

    def _take(self, claim: _Claim, members: Members, witness: Members = ()) -> _Trial:
        busy = {*members, *witness}
        self.free = [member for member in self.free if member not in busy]
        claim.partners.update(members)
        tests = [GroupTest(members, claim.purpose)]
        tests += [GroupTest(witness, GroupPurpose.CONTROL)] if witness else []
        return _Trial(claim, tuple(tests))


def _plan_trials(
    claims: Sequence[_Claim], bystanders: _Bystanders, random: Random, gone: Collection[str]
) -> Iterator[_Trial]:
    taken: set[str] = set()
    for claim in sorted(claims, key=lambda claim: claim.tests):
        here = tuple(member for member in claim.members if member not in gone)
        if not (claim.is_open and here and taken.isdisjoint(here)):
            continue
        if claim.purpose is GroupPurpose.PAIR:
            trial = bystanders.plan_trial(claim, random.choice(here))
        elif here == claim.members:
            trial = bystanders.plan_whole(claim)
        else:
            continue
        if trial:
            taken.update(trial.tests[0].members)
            yield trial


def _take_back(
    result: SearchResult, left: Collection[_Claim], lost: Collection[_Claim]
) -> SearchResult:
    refuted = {claim.found for claim in left}
    untested = chain.from_iterable(claim.members for claim in lost)
    return replace(
        result,
        bad=tuple(member for member in result.bad if member not in refuted),
        links=tuple(link for link in result.links if link not in refuted),
        bad_zones=tuple(zone for zone in result.bad_zones if zone not in refuted),
        intermittent=(
            *result.intermittent,
            *(claim.members for claim in left if claim not in lost),
        ),
        untested=tuple(dict.fromkeys((*result.untested, *untested))),
    )
