"""
Test once more whom a search found, and take back who passes.

The tests by which somebody was found were chosen since they failed, and what they were
compared with since it passed: on a noisy network both may be chance. These tests are not,
and nor are the controls beside them, whatever comes of them.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from itertools import chain
from random import Random

from msgspec import Struct
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
from hpcverify.isolation.search import Found
from hpcverify.isolation.search_state import MAX_ATTEMPTS

CONFIRM_FAILURES, REFUTING_PASSES = 4, 2
"""Of whatever was found: what comes first, decides."""
MORE_FAILURES, DOUBTS = 4, 4
"""So many more at most, one for each so many groups and members that failed and then passed:
where chance fails that much, it fails four times in a row as well."""
CONFIRM_CONTROLS = 4
"""Pairs beside them, of those that have passed."""


class _Claim(Struct, eq=False):
    """That what a search *found*, a member, a zone or a link, fails each test."""

    found: str | Members
    members: Members
    purpose: GroupPurpose
    needed: int = CONFIRM_FAILURES
    """Failures that confirm it."""
    passes: int = 0
    failures: int = 0
    unknowns: int = 0

    @property
    def tests(self) -> int:
        return self.passes + self.failures + self.unknowns

    @property
    def is_confirmed(self) -> bool:
        return self.failures >= self.needed

    @property
    def is_refuted(self) -> bool:
        return self.passes >= REFUTING_PASSES

    @property
    def is_open(self) -> bool:
        return not (self.is_confirmed or self.is_refuted or self.is_lost)

    @property
    def is_lost(self) -> bool:
        return self.unknowns >= MAX_ATTEMPTS

    def learn(self, outcome: GroupOutcome) -> None:
        self.passes += outcome is GroupOutcome.PASSED
        self.failures += outcome is GroupOutcome.FAILED
        self.unknowns += outcome is GroupOutcome.UNKNOWN


def confirm(
    found: Found,
    members: Sequence[str],
    zones: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, Found]:
    """
    Yield rounds of tests of what was *found* among *members*, and say what is left of it.

    A member, or any one of a zone, is tested with another partner each time; a link as it
    is. What passes, or has nobody to be tested with, is intermittent; what could not be
    tested to its end is untested. The rest is as `search` has it.
    """
    claims = [_Claim(one, (one,), GroupPurpose.PAIR) for one in found.bad]
    claims += [_Claim(link, link, GroupPurpose.WHOLE) for link in found.links]
    for zone in found.bad_zones:
        there = tuple(member for member in members if zones.get(member) == zone)
        claims.append(_Claim(zone, there, GroupPurpose.PAIR))
    claimed = {*chain.from_iterable(claim.members for claim in claims)}
    partners = _Partners(tuple(m for m in members if m not in claimed), found, zones)
    is_cut_short = False
    while not is_cut_short and (tests := dict(_plan_tests(claims, partners, random, gone))):
        used = {*chain.from_iterable(test.members for test in tests)}
        others = [one for one in partners.list_good(gone) if one not in used]
        random.shuffle(others)
        pairs = zip(others[::2], others[1::2], strict=False)
        controls = [GroupTest(pair, GroupPurpose.CONTROL) for pair in pairs][:CONFIRM_CONTROLS]
        outcomes = yield (*tests, *controls)
        is_cut_short = outcomes is None
        for claim, outcome in zip(tests.values(), outcomes or (), strict=False):
            claim.learn(outcome)
        doubts = len(found.intermittent) + sum(claim.is_refuted for claim in claims)
        for claim in claims:
            claim.needed = CONFIRM_FAILURES + min(MORE_FAILURES, doubts // DOUBTS)
    left = [claim for claim in claims if not claim.is_confirmed]
    lost = [one for one in left if is_cut_short or one.is_lost or set(gone) & {*one.members}]
    lost = [claim for claim in lost if not claim.is_refuted]
    return _take_back(found, left, lost)


class _Partners(Struct, frozen=True):
    """Who may be tested with whom was found: *others*, of whom some are vague."""

    others: Members
    found: Found
    zones: Mapping[str, str]

    def list_good(self, gone: Collection[str]) -> list[str]:
        """List who has passed and is there."""
        vague = {*gone, *self.found.untested, *chain.from_iterable(self.found.intermittent)}
        return [one for one in self.others if one not in vague]

    def choose(self, member: str, free: Sequence[str]) -> str | None:
        """
        Choose one who is *free*, of the same zone unless none but who was found is of it.

        With one of another zone, what is between the zones would be to blame as well.
        """
        zone = self.zones.get(member)
        has_near = any(self.zones.get(one) == zone for one in self.others)
        near = (one for one in free if not has_near or self.zones.get(one) == zone)
        return next(near, None)


def _plan_tests(
    claims: Sequence[_Claim], partners: _Partners, random: Random, gone: Collection[str]
) -> Iterator[tuple[GroupTest, _Claim]]:
    """Plan disjoint tests of *claims*, the least tested first; leave two for a control."""
    taken: set[str] = set()
    free = partners.list_good(gone)
    random.shuffle(free)
    for claim in sorted(claims, key=lambda one: one.tests):
        here = tuple(member for member in claim.members if member not in gone)
        if not (claim.is_open and here and taken.isdisjoint(here) and len(free) > TWO):
            continue
        if claim.purpose is GroupPurpose.PAIR:
            member = random.choice(here)
            if partner := partners.choose(member, free):
                free.remove(partner)
                yield GroupTest((member, partner), claim.purpose), claim
        elif here == claim.members:
            taken.update(here)
            yield GroupTest(here, claim.purpose), claim


def _take_back(found: Found, left: Collection[_Claim], lost: Collection[_Claim]) -> Found:
    """Take back what is *left*, since it was not confirmed; some of it is *lost* to tests."""
    refuted = {claim.found for claim in left}
    untested = chain.from_iterable(claim.members for claim in lost)
    return replace(
        found,
        bad=tuple(one for one in found.bad if one not in refuted),
        links=tuple(link for link in found.links if link not in refuted),
        bad_zones=tuple(zone for zone in found.bad_zones if zone not in refuted),
        intermittent=(
            *found.intermittent,
            *(claim.members for claim in left if claim not in lost),
        ),
        untested=tuple(dict.fromkeys((*found.untested, *untested))),
    )
