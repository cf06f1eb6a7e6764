"""
What a search knows of its members by now, and what it learns from a round.

A group that failed is a suspicion: one of its members is bad, unless it failed for another
reason. Each round makes it smaller, until a member is bad or cleared, or what is between
two members is the cause, or no single one is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from random import Random

from msgspec import Struct, field

from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Round,
)

LEAD_TO_NAME = 2
"""Failures more than passes, each with another partner, that make a member bad."""
LINK_LEAD = 3
"""More passes than failures, each with another partner, of two that fail with each other."""
OTHER_FAILURES = 1
"""The most of them, with other partners: what fails more often has no single slow link."""
FAILURES_TO_NAME = 4
"""Failed tests of a bad member in all; with fewer, it takes a lead of one more."""
MAX_PAIR_TESTS_OF_MEMBER = 8
"""With no such lead after as many, a member is intermittent."""
CLEARED_PASSES = 2
"""Passed tests until a member is cleared: one may have passed by chance."""
MAX_WHOLES = 3
"""A group that fails as often as a whole, while none of its parts does, is reported as one."""
MIN_BAD_OF_ZONE = 3
"""Bad members of a zone in which nothing has passed, from which on it is the zone."""
EXTRA_CONTROLS = 3
"""Controls are added after one has failed: a disturbance that comes and goes must not count."""
MAX_ATTEMPTS = 5
"""To test a group, or a member, whose tests do not come to their end."""

JUDGING = frozenset({GroupPurpose.PAIR, GroupPurpose.WHOLE})
"""Tests by which members are found bad."""

CONTROLS = frozenset({GroupPurpose.REST, GroupPurpose.CONTROL})
"""Tests that pass, unless something disturbs the round or a bad member is not found yet."""


class MemberRecord(Struct):
    """What is known of one member."""

    passes: int = 0
    failures: int = 0
    unknowns: int = 0
    """Tests in a row that did not come to their end."""
    pair_tests: int = 0
    lead: int = 0
    """Failures minus passes, in pairs."""
    partners: set[str] = field(default_factory=set)
    failed_with: list[str] = field(default_factory=list)

    def meet(self, partner: str, *, has_failed: bool) -> None:
        """Take what came of a test with *partner*."""
        self.partners.add(partner)
        self.pair_tests += 1
        self.lead += 1 if has_failed else -1
        if has_failed:
            self.failed_with.append(partner)


class Suspicion(Struct, eq=False):
    """One of *members* is bad, unless *origin* failed for another reason."""

    members: Members
    origin: Members
    """The last group that failed itself, and not by inference."""
    is_careful: bool = False
    """Nobody may be bad: test both halves, and infer nothing."""
    clearing_lead: int = -1
    """The lead of failures over passes, in pairs, at which the last member is cleared."""


class Clash(Struct, eq=False):
    """Both sides of *origin* pass, and fail together: is the cause between two members?"""

    origin: Members
    left: list[tuple[Members, Members]]
    """Halves of both sides that are not tested together yet."""

    @classmethod
    def between(cls, first: Members, second: Members) -> Clash:
        """Expect the cause between a member of the *first* side and one of the *second*."""
        (a, b), (c, d) = halve(first), halve(second)
        facing = [(a, c), (b, d), (a, d), (b, c)]
        return cls(first + second, [pair for pair in facing if all(pair)])

    def list_tests(self) -> list[Members]:
        """List disjoint tests of what is left."""
        tests: list[Members] = []
        for first, second in self.left:
            if not any({*first, *second} & {*test} for test in tests):
                tests.append(first + second)
        return tests


def halve(members: Members) -> tuple[Members, Members]:
    """Split *members* in two; of an odd number the first half has one more."""
    middle = (len(members) + 1) // 2
    return members[:middle], members[middle:]


class SearchState:
    """What is known of the members of *groups*."""

    def __init__(
        self,
        groups: Sequence[Members],
        random: Random,
        zones: Mapping[str, str],
        gone: Collection[str],
    ) -> None:
        """Begin with members that were not tested yet; the rest is as `search` has it."""
        self.random = random
        self.zones = zones
        self.gone = gone
        self.known = {member: MemberRecord() for member in chain.from_iterable(groups)}
        self.suspicions: list[Suspicion] = []
        self.repeats: list[Members] = []
        """Groups that failed, though no member was bad."""
        self.pairs: list[Members] = []
        """Partners with whom a member failed that was cleared since, and that member."""
        self.wholes = Counter[frozenset[str]]()
        self.bad: list[str] = []
        self.links: list[Members] = []
        self.together: list[Members] = []
        self.intermittent: list[Members] = []
        self.clashes: list[Clash] = []
        self.given_up: set[str] = set()
        """Members of zones that are bad as a whole."""
        self.has_new_link = False
        """It explains why others failed: all of them have to pass without it."""
        self.disturbances = 0
        self.rounds = 0

    def list_suspects(self) -> Iterator[str]:
        """List who may be bad."""
        for suspicion in self.suspicions:
            yield from suspicion.members
        for clash in self.clashes:
            yield from clash.origin

    def list_lost(self) -> set[str]:
        """List who is gone, and whose tests do not come to their end."""
        return {*self.gone, *(m for m, r in self.known.items() if r.unknowns >= MAX_ATTEMPTS)}

    def give_up_zones(self) -> None:
        """Test no more of a zone with bad members in which nobody has passed."""
        bad = Counter(zone for member in self.bad if (zone := self.zones.get(member)))
        cleared = {m for m, record in self.known.items() if record.passes >= CLEARED_PASSES}
        alive = {self.zones.get(member) for member in cleared}
        dead = {z for z, count in bad.items() if count >= MIN_BAD_OF_ZONE and z not in alive}
        self.given_up = {member for member in self.known if self.zones.get(member) in dead}
        self.suspicions = [s for s in self.suspicions if self.given_up.isdisjoint(s.members)]
        self.repeats = [whole for whole in self.repeats if self.given_up.isdisjoint(whole)]

    def forget_lost(self) -> None:
        """Suspect nobody who is lost. Of a group that failed, who is left is tested on."""
        lost = self.list_lost()
        for suspicion in self.suspicions:
            suspicion.members = tuple(m for m in suspicion.members if m not in lost)
        self.suspicions = [suspicion for suspicion in self.suspicions if suspicion.members]
        self.repeats = [whole for whole in self.repeats if lost.isdisjoint(whole)]
        self.clashes = [clash for clash in self.clashes if lost.isdisjoint(clash.origin)]

    def learn_group(self, group: Members, outcome: GroupOutcome) -> None:
        """Take the *outcome* of one of the first groups."""
        has_failed = outcome is GroupOutcome.FAILED
        self._count(GroupTest(group, GroupPurpose.GROUP), has_failed=has_failed)
        if has_failed:
            self.suspicions.append(Suspicion(group, group))

    def learn(self, tests: Round, outcomes: Sequence[GroupOutcome]) -> None:
        """Take the *outcomes* of *tests*, in their order."""
        self.rounds += 1
        results = dict(zip(tests, outcomes, strict=True))
        failed = [test for test, o in results.items() if o is GroupOutcome.FAILED]
        passed = [test for test, o in results.items() if o is GroupOutcome.PASSED]
        for test, outcome in results.items():
            for member in test.members:
                record = self.known[member]
                record.unknowns = record.unknowns + 1 if outcome is GroupOutcome.UNKNOWN else 0
        self.disturbances += any(test.purpose is GroupPurpose.CONTROL for test in failed)
        if any(test.purpose in CONTROLS for test in failed):  # what disturbed it may disturb others
            failed = [test for test in failed if test.purpose not in JUDGING]
        for test in passed:
            self._count(test, has_failed=False)
        for test in failed:
            self._count(test, has_failed=True)
        if any(test.purpose is GroupPurpose.REST for test in (*failed, *passed)):
            self.has_new_link = False
        verdicts = {_name_part(test): test in failed for test in (*failed, *passed)}
        self._follow_all(verdicts)
        for test in (*failed, *passed):
            if test.purpose is GroupPurpose.WHOLE:
                self._learn_whole(test.members, has_failed=test in failed)
            elif test.purpose is GroupPurpose.REST and test in failed:
                self._suspect_rest(test.members)

    def _count(self, test: GroupTest, *, has_failed: bool) -> None:
        for member in test.members:
            if member not in self.gone:  # the test may have run without it
                self.known[member].passes += not has_failed
                self.known[member].failures += has_failed
        if test.purpose is GroupPurpose.PAIR:
            member, partner = test.members
            self.known[member].meet(partner, has_failed=has_failed)

    def _follow_all(self, verdicts: Mapping[Members, bool]) -> None:
        suspicions, self.suspicions = self.suspicions, []
        for suspicion in suspicions:
            self._follow(suspicion, verdicts)
        for pair in self.pairs:  # one of them was cleared: was it the other?
            self._suspect(pair[:1], pair)
        self.pairs.clear()
        clashes, self.clashes = self.clashes, []
        for clash in clashes:
            self._follow_clash(clash, verdicts)

    def _follow(self, suspicion: Suspicion, verdicts: Mapping[Members, bool]) -> None:
        members = suspicion.members
        halves = [half for half in halve(members) if half in verdicts]
        failed = [half for half in halves if verdicts[half]]
        if len(members) == 1:
            self._judge_single(suspicion)
        elif failed:  # what was not tested goes to the rest
            for half in failed:
                origin = half if len(half) > 1 else suspicion.origin
                self._suspect(half, origin, is_careful=suspicion.is_careful)
        elif not halves or (suspicion.is_careful and len(halves) == 1):
            self.suspicions.append(suspicion)
        elif len(halves) == 1:
            self._suspect(members[len(halves[0]) :], suspicion.origin)
        elif len(members) > TWO:
            self.clashes.append(Clash.between(*halve(members)))
        else:
            self._doubt(members)

    def _follow_clash(self, clash: Clash, verdicts: Mapping[Members, bool]) -> None:
        failed = [(a, b) for a, b in clash.left if verdicts.get(a + b)]
        clash.left = [(a, b) for a, b in clash.left if a + b not in verdicts]
        for first, second in failed:
            pair = first + second
            if len(pair) > TWO:
                self.clashes.append(Clash.between(first, second))
            else:  # is it one of the two, or what is between them?
                for member in pair:
                    self._suspect((member,), pair, clearing_lead=-LINK_LEAD)
        if not failed and clash.left:
            self.clashes.append(clash)
        elif not failed:
            self._doubt(clash.origin)

    def _suspect(
        self,
        members: Members,
        origin: Members,
        *,
        is_careful: bool = False,
        clearing_lead: int = -1,
    ) -> None:
        suspects = {*self.bad, *self.list_suspects()}
        if left := tuple(member for member in members if member not in suspects):
            self.suspicions.append(Suspicion(left, origin, is_careful, clearing_lead))

    def _judge_single(self, suspicion: Suspicion) -> None:
        member = suspicion.members[0]
        record = self.known[member]
        needed = (
            LEAD_TO_NAME
            + (record.failures < FAILURES_TO_NAME)
            + min(self.disturbances, EXTRA_CONTROLS)
        )
        if record.lead >= needed:
            self.bad.append(member)
            self.repeats = [whole for whole in self.repeats if member not in whole]
        elif record.pair_tests >= MAX_PAIR_TESTS_OF_MEMBER:
            self.intermittent.append((member,))
        elif record.lead <= suspicion.clearing_lead:
            self._doubt(suspicion.origin)
            self.pairs += [(partner, member) for partner in record.failed_with]
        else:
            self.suspicions.append(suspicion)

    def _doubt(self, origin: Members) -> None:
        """Nobody of *origin* was bad: have it tested again, unless that is explained by now."""
        explained = {*self.bad, *(group[0] for group in self.intermittent if len(group) == 1)}
        if explained.isdisjoint(origin) and origin not in self.repeats:
            self.repeats.append(origin)

    def _learn_whole(self, whole: Members, *, has_failed: bool) -> None:
        """Take what came of a group that failed before, though no member was bad."""
        self.repeats.remove(whole)
        self.wholes[frozenset(whole)] += has_failed
        if not has_failed:
            self.intermittent.append(whole)
        elif len(whole) == TWO:
            self._judge_link(whole)
        elif self.wholes[frozenset(whole)] == MAX_WHOLES:
            self.together.append(whole)
        else:
            mixed = tuple(self.random.sample(whole, len(whole)))
            self._suspect(mixed, mixed, is_careful=True)

    def _judge_link(self, pair: Members) -> None:
        ways = (pair, pair[::-1])
        are_well = all(self.known[member].lead <= -LINK_LEAD for member in pair)
        if are_well and all(self._count_other_failures(*way) <= OTHER_FAILURES for way in ways):
            self.links.append(pair)
            self.has_new_link = True
        else:
            for member in pair:
                self._suspect((member,), pair, clearing_lead=-LINK_LEAD)

    def _count_other_failures(self, member: str, end: str) -> int:
        return sum(partner != end for partner in self.known[member].failed_with)

    def _suspect_rest(self, members: Members) -> None:
        """Suspect those who have not passed; if all have, the cause may be between them."""
        unknown = tuple(member for member in members if not self.known[member].passes)
        self._suspect(unknown or members, members, is_careful=not unknown)


def _name_part(test: GroupTest) -> Members:
    """Name what a test is about: of a pair, its first member."""
    return test.members[:1] if test.purpose is GroupPurpose.PAIR else test.members
