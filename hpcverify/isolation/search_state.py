"""
What a search knows of its members by now, and what it learns from a round.

A group that failed is a suspicion: one of its members is bad, unless it failed for another
reason. Each round makes it smaller, until a member is bad or cleared, or what is between
two members is the cause, or no single one is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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

LEAD_TO_NAME = 5
"""Failures more than passes, with two partners at least, that make a member bad."""
LINK_LEAD = 5
"""More passes than failures, each with another partner, of two that fail with each other."""
OTHER_FAILURES = 1
"""The most of them, with other partners: what fails more often has no single slow link."""
DOUBTS, MORE_LEAD = 4, 4
"""For so many members and groups that failed and then passed, a lead of one more is needed: where
chance fails that much, it fails four times in a row as well."""
MAX_PAIR_TESTS_OF_MEMBER = 16
"""With no such lead after as many, a member is intermittent."""
FAILURES_OF_LINK, MAX_PASSES = 6, 2
"""Of two that were found to fail with each other: what comes first, says whether they do. Any
group that passes as often is intermittent."""
CLEARED_PASSES = 2
"""Passed tests until a member is cleared: one may have passed by chance."""
SENDS_FROM = 1
"""The lead from which on it is tested who sends slowly and who receives slowly."""
MIN_FAILED_SENDS = 2
"""And more than half: with fewer it is not known to be slow in that direction."""
MAX_SINGLES = 4
"""Members of a suspicion that are each tested with a partner."""
MAX_WHOLES = 3
"""A group that fails as often as a whole, while none of its parts does, is reported as one."""
MIN_BAD_OF_ZONE = 3
"""Bad members of a zone in which nothing has passed, from which on it is the zone."""
MAX_DISTURBANCES = 3
"""Of controls that failed, for each of which a lead of one more is needed."""
MAX_ATTEMPTS = 5
"""To test a group, or a member, whose tests do not come to their end."""

JUDGING = frozenset({GroupPurpose.PAIR, GroupPurpose.WHOLE, GroupPurpose.SEND})
"""Tests by which members are found bad."""


class MemberRecord(Struct):
    """What is known of one member."""

    passes: int = 0
    unknowns: int = 0
    """Tests in a row that did not come to their end."""
    pair_tests: int = 0
    lead: int = 0
    """Failures minus passes, in pairs."""
    unfair: int = 0
    """Failures in pairs that did not count."""
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

    def split(self) -> Sequence[Members]:
        """Split it in halves, or few members in single ones."""
        if len(self.members) <= MAX_SINGLES and not self.is_careful:
            return [(member,) for member in self.members]
        return [half for half in halve(self.members) if half]


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
        *,
        of_switches: bool,
        doubts: int,
    ) -> None:
        """Begin with members that were not tested yet; the rest is as `search` has it."""
        self.of_switches = of_switches
        self.doubts = doubts
        self.random = random
        self.zones = zones
        self.gone = gone
        self.known = {member: MemberRecord() for member in chain.from_iterable(groups)}
        self.suspicions: list[Suspicion] = []
        self.repeats: list[Members] = []
        """Groups that failed, though no member was bad."""
        self.pairs: list[Members] = []
        """Partners with whom a member failed that was cleared since, and that member."""
        self.wholes = defaultdict[frozenset[str], Counter[bool]](Counter)
        """How often groups failed, and passed, when they were repeated."""
        self.unexplained: list[Members] = []
        """Groups that failed and are repeated once nothing else is to be tested."""
        self.sent: dict[Members, list[bool]] = {}
        """Whether tests failed in which the first sent to the second."""
        self.bad: list[str] = []
        self.links: list[Members] = []
        self.together: list[Members] = []
        self.intermittent: list[Members] = []
        self.clashes: list[Clash] = []
        self.excused: set[str] = set()
        """Intermittent members that have spoiled a test of all others: these go on without them."""
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

    def list_slow(self, end: int) -> Iterator[str]:
        """List who of the bad sends slowly, the *end* 0, or receives slowly, 1."""
        for member in self.bad:
            cells = [cell for ends, cell in self.sent.items() if ends[end] == member]
            if is_slow_way(list(chain.from_iterable(cells))):
                yield member

    def list_slow_ways(self) -> Iterator[Members]:
        """List the directions of links that are slow."""
        for link in self.links:
            for way in (link, link[::-1]):
                if is_slow_way(self.sent.get(way, [])):
                    yield way

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
        self._count(GroupTest(group, GroupPurpose.GROUP), outcome)
        if outcome is GroupOutcome.FAILED:
            self._suspect(group, group)
            self.unexplained.append(group)

    def learn(self, tests: Round, outcomes: Sequence[GroupOutcome]) -> None:
        """Take the *outcomes* of *tests*, in their order."""
        self.rounds += 1
        results = self._drop_unfair(dict(zip(tests, outcomes, strict=True)))
        failed = [test for test, o in results.items() if o is GroupOutcome.FAILED]
        passed = [test for test, o in results.items() if o is GroupOutcome.PASSED]
        for test, outcome in results.items():
            self._count(test, outcome)
        if any(test.purpose is GroupPurpose.REST for test in (*failed, *passed)):
            self.has_new_link = False
        verdicts = {
            _name_part(test): test in failed
            for test in (*failed, *passed)
            if test.purpose is not GroupPurpose.SEND
        }
        self._follow_all(verdicts)
        for test in (*failed, *passed):
            if test.purpose is GroupPurpose.WHOLE:
                self._learn_whole(test.members, has_failed=test in failed)
            elif test.purpose is GroupPurpose.REST and test in failed:
                self._suspect_rest(test.members)

    def _drop_unfair(
        self, results: Mapping[GroupTest, GroupOutcome]
    ) -> dict[GroupTest, GroupOutcome]:
        """
        Drop failures that may have another cause.

        What disturbs a control or the rest may disturb others. A failure of two members is unknown
        unless a control passed and, between two zones, its witness, a control between the same two.
        """
        failed = [test for test, outcome in results.items() if outcome is GroupOutcome.FAILED]
        disturbed = {
            test.purpose
            for test in failed
            if test.purpose is GroupPurpose.REST
            or (test.purpose is GroupPurpose.CONTROL and len(self.name_zones(test.members)) == 1)
        }
        self.disturbances += GroupPurpose.CONTROL in disturbed
        controls = {
            test: outcome
            for test, outcome in results.items()
            if test.purpose in {GroupPurpose.REST, GroupPurpose.CONTROL}
        }
        passed = {
            self.name_zones(test.members)
            for test, outcome in controls.items()
            if outcome is GroupOutcome.PASSED
        }
        unfair = {self.name_zones(test.members) for test in controls} - passed
        fair = dict(results)
        for test in failed:
            if test.purpose in JUDGING and disturbed:
                del fair[test]
            elif (
                test.purpose in JUDGING
                and len(test.members) == TWO
                and (not passed or self.name_zones(test.members) in unfair)
            ):
                fair[test] = GroupOutcome.UNKNOWN
                self.known[test.members[0]].unfair += test.purpose is GroupPurpose.PAIR
        return fair

    def name_zones(self, members: Members) -> frozenset[str | None]:
        """Name the zones that *members* are of."""
        return frozenset(map(self.zones.get, members))

    def _count(self, test: GroupTest, outcome: GroupOutcome) -> None:
        has_failed = outcome is GroupOutcome.FAILED
        if test.purpose is GroupPurpose.SEND:
            if outcome is not GroupOutcome.UNKNOWN:
                self.sent.setdefault(test.members, []).append(has_failed)
            return
        for member in test.members:
            record = self.known[member]
            record.unknowns = record.unknowns + 1 if outcome is GroupOutcome.UNKNOWN else 0
            if member not in self.gone:  # the test may have run without it
                record.passes += outcome is GroupOutcome.PASSED
        if test.purpose is GroupPurpose.PAIR and outcome is not GroupOutcome.UNKNOWN:
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
        members, parts = suspicion.members, suspicion.split()
        tested = [part for part in parts if part in verdicts]
        failed = [part for part in tested if verdicts[part]]
        left = tuple(m for m in members if (m,) not in tested and not any(m in p for p in tested))
        if len(members) == 1:
            self._judge_single(suspicion)
        elif failed:  # what was not tested goes to the rest
            for part in failed:
                origin = part if len(part) > 1 else suspicion.origin
                self._suspect(part, origin, is_careful=suspicion.is_careful)
        elif not tested or (suspicion.is_careful and left):
            self.suspicions.append(suspicion)
        elif left:
            self._suspect(left, suspicion.origin)
        elif len(members) > TWO and len(parts) == TWO:
            self.clashes.append(Clash.between(*parts))
        else:
            self._doubt(suspicion.origin)

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
        needed = LEAD_TO_NAME + self._count_doubts() + min(self.disturbances, MAX_DISTURBANCES)
        if record.lead >= needed and len(set(record.failed_with)) == 1:
            record.unknowns = MAX_ATTEMPTS  # that partner may be bad as well: it stays untested
        elif record.lead >= needed:
            self.bad.append(member)
            self.repeats = [whole for whole in self.repeats if member not in whole]
        elif record.pair_tests >= MAX_PAIR_TESTS_OF_MEMBER:
            self.intermittent.append((member,))
        elif record.lead <= suspicion.clearing_lead:
            self._doubt(suspicion.origin)
            self.pairs += [(partner, member) for partner in record.failed_with]
        else:
            self.suspicions.append(suspicion)

    def _count_doubts(self) -> int:
        """Count the failures more that it takes where much fails and then passes."""
        return min(MORE_LEAD, self.doubts + len(self.intermittent) // DOUBTS)

    def _doubt(self, origin: Members) -> None:
        """Nobody of *origin* was bad: have it tested again, unless that is explained by now."""
        if not self._is_explained(origin) and origin not in self.repeats:
            self.repeats.append(origin)

    def _is_explained(self, group: Members) -> bool:
        members = {*group}
        if any(members == {*known} for known in self.intermittent):
            return True
        return not members.isdisjoint({*self.bad, *self._list_alone(), *self.given_up}) or any(
            members.issuperset(known) for known in (*self.links, *self.together)
        )

    def _list_alone(self) -> set[str]:
        """List the members that are intermittent by themselves."""
        return {group[0] for group in self.intermittent if len(group) == 1}

    def repeat_unexplained(self) -> None:
        """Have the groups tested again in which a test led astray has found nothing."""
        for group in self.unexplained:
            self._doubt(group)
        self.unexplained.clear()

    def _learn_whole(self, whole: Members, *, has_failed: bool) -> None:
        """Take what came of a group that failed before, though no member was bad."""
        counts = self.wholes[frozenset(whole)]
        counts[has_failed] += 1
        if counts[False] == MAX_PASSES:
            self.repeats.remove(whole)
            self.intermittent.append(whole)
        elif has_failed:
            self.repeats.remove(whole)
            self._explain_whole(whole, counts[True])

    def _explain_whole(self, whole: Members, failures: int) -> None:
        """Search for what makes a *whole* fail that has failed so often."""
        if len(whole) == TWO:
            self._judge_link(whole, failures)
        elif failures == MAX_WHOLES:
            self.together.append(whole)
        else:
            mixed = tuple(self.random.sample(whole, len(whole)))
            self._suspect(mixed, mixed, is_careful=True)
            self.unexplained.append(whole)

    def _judge_link(self, pair: Members, failures: int) -> None:
        ways = (pair, pair[::-1])
        if not all(self.known[member].lead <= -LINK_LEAD for member in pair) or not all(
            self._count_other_failures(*way) <= OTHER_FAILURES for way in ways
        ):
            for member in pair:
                self._suspect((member,), pair, clearing_lead=-LINK_LEAD)
        elif failures < FAILURES_OF_LINK + self._count_doubts():
            self.repeats.append(pair)
        else:
            self.links.append(pair)
            self.has_new_link = True

    def _count_other_failures(self, member: str, end: str) -> int:
        return sum(partner != end for partner in self.known[member].failed_with)

    def _suspect_rest(self, members: Members) -> None:
        """Suspect those who have not passed; if all have, have them tested again."""
        unknown = tuple(member for member in members if not self.known[member].passes)
        if unknown:
            self._suspect(unknown, members)
            self.unexplained.append(members)
        elif alone := self._list_alone() & {*members}:
            self.excused |= alone
        else:
            self._doubt(members)


def is_slow_way(failed: Sequence[bool]) -> bool:
    """Whether so many of the tests of one direction have *failed* that it is slow."""
    return sum(failed) >= MIN_FAILED_SENDS and sum(failed) > len(failed) / 2


def _name_part(test: GroupTest) -> Members:
    """Name what a test is about: of a pair, its first member."""
    return test.members[:1] if test.purpose is GroupPurpose.PAIR else test.members
