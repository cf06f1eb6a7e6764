"""
Find the members that spoil a collective, by tests of groups of them.

A test is one collective over some members; it fails if one of them is bad. A member is a
node, or all nodes of a switch. Tests of a round are disjoint, so they run side by side.

The first round tests groups. Of a group that fails, one half is tested: if that passes, the
fault must be in the other one. Each of the last four members is tested with members that
have passed. Meanwhile all others are tested together, until each has passed twice.

No member is found bad by inference, nor by the tests that chose it: these failed, perhaps by
chance. A member is *bad* if it fails with partners five times more than it passes, in rounds in
which members that had passed did so again (a control). From its first failure on, both directions
between it and its partner are tested in the same job. A partner is of its own zone if there is one;
a test between two zones has a *witness* beside it, a control between the same two, without which
its failure does not count.

If no member of a group turns out to be bad, it is tested once more as a whole. Then either it
passes twice, and what was seen is *intermittent*; or two members are found that fail only
with each other, a *link*; or it fails only as a whole, and no single member is the cause. Groups
that failed and led to nothing are repeated at the end: a test that was wrong may lead astray.

A group that failed is a suspicion: one of its members is bad, unless it failed for another
reason. Each round makes it smaller, until a member is bad or cleared, or what is between
two members is the cause, or no single one is.

Binary splitting of groups: F. K. Hwang, "A method for detecting all defective members in
a population by group testing" (J. Am. Stat. Assoc. 67, 1972). No search can need fewer
than log2(C(n, d)) tests that only pass or fail, to find d of n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from math import sqrt
from random import Random

from msgspec import Struct, field

from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)

MAX_BAD_SHARE = 0.2
"""If a larger share of the members is bad, it is not they."""
MIN_BAD = 10
"""This many may be bad in the smallest cluster. From then on it is tested whether they fit each
other."""
PROBABLE_LEAD = 2
"""The lead at which a member counts as bad here."""
FITTING_PAIRS = 0.5
"""If fewer of the pairs of bad members fail, they are not bad."""
WIDESPREAD_GROUPS, WIDESPREAD_PAIRS = 0.5, 0.4
"""If larger shares of the first groups fail, and then of pairs, no members can be distinguished:
with a fifth of all bad, 0.36 of the pairs fail; with two versions that do not fit, 0.5."""
FEW_PAIRS, MAX_PAIRINGS = 0.25, 2
"""From this share on nodes are paired once more: chance makes 0.5 of 116 pairs 0.4."""
MIN_GROUPS = 4
"""From so many groups on, failures can be widespread."""
CONTROLS = 4
"""Pairs that have passed, beside suspects: whatever comes of them, they show how tests vary."""
MIN_GOOD = 8
"""With more members that have passed, two are kept for a control."""
MAX_DIRECTIONS = 16
"""With more suspects it is not tested which of them send and which receive slowly."""
MAX_ROUNDS = 80
"""Far more than a search takes whose tests can be repeated at all."""
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
"""The lead from which on it is tested which members send and which receive slowly."""
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


class SearchResult(Struct, frozen=True):
    """What a search found. A member in none of these was cleared."""

    bad: Members = ()
    bad_zones: Members = ()
    """Zones where some members are bad, and none has passed."""
    links: tuple[Members, ...] = ()
    """Pairs that fail only with each other."""
    together: tuple[Members, ...] = ()
    """Groups that fail as a whole, while no part of them does."""
    intermittent: tuple[Members, ...] = ()
    """Groups, or single members, that failed and then passed: not excluded."""
    untested: Members = ()
    """Members whose tests did not come to an end."""
    senders: Members = ()
    receivers: Members = ()
    """The bad ones that send, and that receive, slowly."""
    ways: tuple[Members, ...] = ()
    """Links in the direction that is slow, from the first member to the second."""
    is_widespread: bool = False
    """Most groups failed, and most pairs: a cause that all share."""


Plan = Generator[Round, Outcomes, SearchResult]


def make_groups(members: Iterable[str], random: Random) -> list[Members]:
    """Make about as many groups as each of them has members, by lot."""
    mixed = list(members)
    random.shuffle(mixed)
    count = max(1, min(round(sqrt(len(mixed))), len(mixed) // 2))
    return [tuple(mixed[start::count]) for start in range(count)]


def search(
    groups: Sequence[Members],
    random: Random,
    zones: Mapping[str, str],
    gone: Collection[str] = frozenset(),
    *,
    of_switches: bool = False,
    doubts: int = 0,
) -> Plan:
    """
    Yield rounds of tests, and take their outcomes, until all members of *groups* are judged.

    *zones* says at which switch a member is: partners, and those that are tested together,
    are of one zone where that can be. The same *random* and outcomes give the same rounds,
    so a search can be resumed.

    The caller, who runs the tests, may add to *gone* the members that cannot be tested any more,
    before it sends the outcomes of a round. Tests of that round may have run without them.
    They are in no later test, and untested unless they were bad before.
    """
    known = {member: MemberRecord() for member in chain.from_iterable(groups)}
    state = _Search(random, zones, gone, of_switches, doubts, known)
    seen = yield from _test_each(groups, GroupPurpose.GROUP, gone)
    if len(seen) >= MIN_GROUPS and _share_of_failures(seen) > WIDESPREAD_GROUPS:
        seen = {}
        for _ in range(MAX_PAIRINGS):
            mixed = random.sample(list(known), len(known))
            seen |= yield from _test_each(_pair_up(mixed), GroupPurpose.PAIRS, gone)
            if not seen or _share_of_failures(seen) < FEW_PAIRS:
                break
        if seen and _share_of_failures(seen) > WIDESPREAD_PAIRS:
            return SearchResult(is_widespread=True)
    for group, outcome in seen.items():
        state.learn_group(group, outcome)
    while tests := state.plan_round():
        outcomes = yield tests
        if outcomes is None:
            break
        state.learn(tests, outcomes)
    result = state.conclude()
    if len(result.bad) > MIN_BAD:  # if they fit each other, two versions do not fit, say
        seen = yield from _test_each(_pair_up(result.bad), GroupPurpose.PAIRS, gone)
        if seen and _share_of_failures(seen) < FITTING_PAIRS:
            return SearchResult(is_widespread=True)
    return result


def _test_each(
    groups: Sequence[Members], purpose: GroupPurpose, gone: Collection[str]
) -> Generator[Round, Outcomes, dict[Members, GroupOutcome]]:
    """Test each of the *groups*, again if need be; leave out what did not come to its end."""
    left = [group for group in groups if len(group) > 1]
    seen: dict[Members, GroupOutcome] = {}
    for _ in range(MAX_ATTEMPTS):
        present = [tuple(member for member in group if member not in gone) for group in left]
        left = [group for group in present if len(group) > 1]
        if not left:
            break
        outcomes = yield tuple(GroupTest(group, purpose) for group in left)
        if outcomes is None:
            break
        results = dict(zip(left, outcomes, strict=True))
        seen |= {group: o for group, o in results.items() if o is not GroupOutcome.UNKNOWN}
        left = [group for group in left if group not in seen]
    return seen


def _pair_up(members: Sequence[str]) -> list[Members]:
    return list(zip(members[::2], members[1::2], strict=False))


def _share_of_failures(seen: Mapping[Members, GroupOutcome]) -> float:
    return sum(outcome is GroupOutcome.FAILED for outcome in seen.values()) / len(seen)


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


class Suspicion(Struct, eq=False):
    """One of *members* is bad, unless *origin* failed for another reason."""

    members: Members
    origin: Members
    """The last group that failed itself, and not by inference."""
    is_careful: bool = False
    """Perhaps no member is bad: test both halves, and infer nothing."""
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


class _Search(Struct, eq=False):
    """What is known of the members by now, and what is to be tested next."""

    random: Random
    zones: Mapping[str, str]
    gone: Collection[str]
    of_switches: bool
    doubts: int
    known: dict[str, MemberRecord]
    suspicions: list[Suspicion] = []
    clashes: list[Clash] = []
    repeats: list[Members] = []
    """Groups that failed, though no member was bad."""
    unexplained: list[Members] = []
    """Groups that failed and are repeated once nothing else is to be tested."""
    pairs: list[Members] = []
    """Partners with whom a member failed that was cleared since, and that member."""
    wholes: dict[frozenset[str], list[bool]] = {}
    """Whether groups failed when they were repeated."""
    sent: dict[Members, list[bool]] = {}
    """Whether tests failed in which the first sent to the second."""
    bad: list[str] = []
    links: list[Members] = []
    together: list[Members] = []
    intermittent: list[Members] = []
    excused: set[str] = set()
    """Intermittent members that have spoiled a test of all others: these go on without them."""
    given_up: set[str] = set()
    """Members of zones that are bad as a whole."""
    has_new_link: bool = False
    """It explains why others failed: all of them have to pass without it."""
    disturbances: int = 0
    rounds: int = 0

    def list_suspects(self) -> set[str]:
        """List the members that may be bad."""
        suspected = (suspicion.members for suspicion in self.suspicions)
        return {*chain.from_iterable((*suspected, *(clash.origin for clash in self.clashes)))}

    def list_lost(self) -> set[str]:
        """List the members that are gone, or whose tests do not come to their end."""
        return {*self.gone, *(m for m, r in self.known.items() if r.unknowns >= MAX_ATTEMPTS)}

    def are_most_bad(self) -> bool:
        """Whether so many members fail that they are not the cause."""
        records = self.known.values()
        failing = sum(record.lead + record.unfair >= PROBABLE_LEAD for record in records)
        return failing > max(MIN_BAD, MAX_BAD_SHARE * len(self.known))

    def count_doubts(self) -> int:
        """Count the failures more that it takes where much fails and then passes."""
        return min(MORE_LEAD, self.doubts + len(self.intermittent) // DOUBTS)

    def count_needed(self, member: str) -> int:
        """Count the passes that clear *member*: more, after failures without a known cause."""
        doubts = sum(member in group for group in self.intermittent)
        return CLEARED_PASSES + self.of_switches + 2 * min(2, doubts)

    # What is tested next

    def plan_round(self) -> Round:
        """Plan the next round; repeat what is unexplained once nothing else is left."""
        tests = self._plan_tests()
        if not tests:
            for group in self.unexplained:
                self._doubt(group)
            self.unexplained.clear()
            tests = self._plan_tests()
        return tests

    def _plan_tests(self) -> Round:
        if self.rounds == MAX_ROUNDS or self.are_most_bad():
            return ()
        self._forget_zones_and_lost()
        lost = self.list_lost()
        ends = {pair[0] for pair in self.links}  # without them, the others must pass
        taken = {*self.bad, *self.list_suspects(), *self.given_up, *self.excused, *ends, *lost}
        tests: list[GroupTest] = []
        for clash in self.clashes:
            tests += [GroupTest(both, GroupPurpose.BETWEEN) for both in clash.list_tests()]
        for whole in self.repeats:
            if taken.isdisjoint(whole):
                tests.append(GroupTest(whole, GroupPurpose.WHOLE))
                if len(whole) == TWO:
                    tests += self._plan_sends(whole, sum(self.wholes.get(frozenset(whole), ())))
                taken.update(whole)
        # The members that have passed and are in no other test, the surest first.
        vague = {*chain.from_iterable(self.intermittent)}
        unsure = {m for m in vague if self.known[m].passes < self.count_needed(m)}
        good = [m for m, r in self.known.items() if r.passes and m not in unsure | {*taken}]
        self.random.shuffle(good)
        good.sort(key=lambda member: -min(self.known[member].passes, CLEARED_PASSES))
        reserved = good[-TWO:] if len(good) > MIN_GOOD else []  # for a control
        good = good[: len(good) - len(reserved)]
        for suspicion in self.suspicions:
            first, *others = suspicion.split()
            # Of two halves one is tested, unless perhaps no member is bad.
            for part in [first, *others] if suspicion.is_careful or len(first) == 1 else [first]:
                if len(part) > 1:
                    tests.append(GroupTest(part, GroupPurpose.HALF))
                    continue
                trial = self._plan_trial(part[0], good, taken)
                taken.update(chain.from_iterable(test.members for test in trial))
                good = [member for member in good if member not in taken]
                tests += trial
        good += reserved
        rest = list(self._plan_rest(taken, good))
        tests += rest
        if not rest and any(test.purpose in JUDGING for test in tests):
            taken.update(chain.from_iterable(test.members for test in tests))
            free = [member for member in good if member not in taken]
            near = sorted(free, key=lambda member: self.zones.get(member, ""))
            tests += [GroupTest(pair, GroupPurpose.CONTROL) for pair in _pair_up(near)[:CONTROLS]]
        return tuple(tests)

    def _forget_zones_and_lost(self) -> None:
        """Give up zones with bad members in which no member has passed, and lost members."""
        bad = Counter(zone for member in self.bad if (zone := self.zones.get(member)))
        cleared = {m for m, record in self.known.items() if record.passes >= CLEARED_PASSES}
        alive = {self.zones.get(member) for member in cleared}
        dead = {z for z, count in bad.items() if count >= MIN_BAD_OF_ZONE and z not in alive}
        self.given_up = {member for member in self.known if self.zones.get(member) in dead}
        self.suspicions = [s for s in self.suspicions if self.given_up.isdisjoint(s.members)]
        lost = self.list_lost()
        for suspicion in self.suspicions:  # of a group that failed, the others are tested
            suspicion.members = tuple(m for m in suspicion.members if m not in lost)
        self.suspicions = [suspicion for suspicion in self.suspicions if suspicion.members]
        self.repeats = [w for w in self.repeats if (lost | self.given_up).isdisjoint(w)]
        self.clashes = [clash for clash in self.clashes if lost.isdisjoint(clash.origin)]

    def _plan_trial(
        self, member: str, good: Sequence[str], taken: Collection[str]
    ) -> list[GroupTest]:
        """
        Plan a test of a *member* with one of the *good* that it has not met, if there is one.

        It meets others of its zone first. With one of another zone, a witness goes between these
        zones as well, unless no other of its own is left: the cause may be between the zones.
        """
        record, zone = self.known[member], self.zones.get(member)
        near = [other for other in good if self.zones.get(other) == zone]
        spare = [m for m in self.known if m not in taken and self.zones.get(m) == zone]
        by_meeting = record.partners.__contains__
        partner = min(near or good if not spare else near, key=by_meeting, default=None)
        witness: list[GroupTest] = []
        if spare and not (near and record.unknowns) and (not near or partner in record.partners):
            far = sorted((m for m in good if self.zones.get(m) != zone), key=by_meeting)
            there = self.zones.get(far[0]) if far else None
            others = [m for m in far[1:] if self.zones.get(m) == there]
            if others:
                partner = far[0]
                witness = [GroupTest((spare[0], others[0]), GroupPurpose.CONTROL)]
        if partner is None:
            return []
        pair = (member, partner)
        sends = self._plan_sends(pair, record.lead)
        return [GroupTest(pair, GroupPurpose.PAIR), *sends, *witness]

    def _plan_sends(self, pair: Members, failures: int) -> list[GroupTest]:
        if self.of_switches or failures < SENDS_FROM or len(self.suspicions) > MAX_DIRECTIONS:
            return []
        return [GroupTest(way, GroupPurpose.SEND) for way in (pair, pair[::-1])]

    def _plan_rest(self, taken: Collection[str], good: Sequence[str]) -> Iterator[GroupTest]:
        """Test together all of a zone whose passes do not suffice, or that may have one more."""
        missing = {
            m: 1 if self.has_new_link else self.count_needed(m) - r.passes
            for m, r in self.known.items()
            if m not in taken
        }
        are_known = all(self.known[member].passes for member in missing)
        if are_known and any(len(s.members) > TWO for s in self.suspicions):
            return  # one test at the end does for all
        rest: dict[str | None, list[str]] = {}
        for member in missing:
            rest.setdefault(self.zones.get(member), []).append(member)
        rest = {z: members for z, members in rest.items() if any(missing[m] > 0 for m in members)}
        busy = {*taken, *chain.from_iterable(rest.values())}
        spare = [member for member in good if member not in busy]
        smallest = min(map(len, self.together), default=len(self.known) + 1)
        for members in rest.values():
            group = members if len(members) > 1 else [*members, *spare[:1]]  # no member alone
            spare = [member for member in spare if member not in group]
            if 1 < len(group) < smallest:
                yield GroupTest(tuple(group), GroupPurpose.REST)

    # What is learned from a round

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
        for test, outcome in results.items():
            self._count(test, outcome)
        fair = {test: True for test, o in results.items() if o is GroupOutcome.FAILED}
        fair |= {test: False for test, o in results.items() if o is GroupOutcome.PASSED}
        if any(test.purpose is GroupPurpose.REST for test in fair):
            self.has_new_link = False
        verdicts = {  # a pair is about its first member
            test.members[:1] if test.purpose is GroupPurpose.PAIR else test.members: has_failed
            for test, has_failed in fair.items()
            if test.purpose is not GroupPurpose.SEND
        }
        suspicions, self.suspicions = self.suspicions, []
        for suspicion in suspicions:
            self._follow(suspicion, verdicts)
        for pair in self.pairs:  # one of them was cleared: was it the other?
            self._suspect(pair[:1], pair)
        self.pairs.clear()
        clashes, self.clashes = self.clashes, []
        for clash in clashes:
            self._follow_clash(clash, verdicts)
        for test, has_failed in fair.items():
            if test.purpose is GroupPurpose.WHOLE:
                self._learn_whole(test.members, has_failed=has_failed)
            elif test.purpose is GroupPurpose.REST and has_failed:
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
        zones = {test: frozenset(map(self.zones.get, test.members)) for test in results}
        disturbed = {
            test.purpose
            for test in failed
            if test.purpose is GroupPurpose.REST
            or (test.purpose is GroupPurpose.CONTROL and len(zones[test]) == 1)
        }
        self.disturbances += GroupPurpose.CONTROL in disturbed
        controls = [t for t in results if t.purpose in {GroupPurpose.REST, GroupPurpose.CONTROL}]
        passed = {zones[test] for test in controls if results[test] is GroupOutcome.PASSED}
        unfair = {zones[test] for test in controls} - passed
        fair = dict(results)
        for test in failed:
            if test.purpose not in JUDGING:
                continue
            if disturbed:
                del fair[test]
            elif len(test.members) == TWO and (not passed or zones[test] in unfair):
                fair[test] = GroupOutcome.UNKNOWN
                self.known[test.members[0]].unfair += test.purpose is GroupPurpose.PAIR
        return fair

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
            record = self.known[member]
            record.partners.add(partner)
            record.pair_tests += 1
            record.lead += 1 if has_failed else -1
            record.failed_with += [partner] if has_failed else []

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

    def _judge_single(self, suspicion: Suspicion) -> None:
        member = suspicion.members[0]
        record = self.known[member]
        needed = LEAD_TO_NAME + self.count_doubts() + min(self.disturbances, MAX_DISTURBANCES)
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

    def _doubt(self, origin: Members) -> None:
        """Have *origin*, of which no member was bad, tested again, unless that is explained."""
        members = {*origin}
        alone = {group[0] for group in self.intermittent if len(group) == 1}
        is_explained = (
            any(members == {*group} for group in self.intermittent)
            or not members.isdisjoint({*self.bad, *alone, *self.given_up})
            or any(members.issuperset(group) for group in (*self.links, *self.together))
        )
        if not is_explained and origin not in self.repeats:
            self.repeats.append(origin)

    def _learn_whole(self, whole: Members, *, has_failed: bool) -> None:
        results = self.wholes.setdefault(frozenset(whole), [])
        results.append(has_failed)
        failures = sum(results)
        if len(results) - failures == MAX_PASSES:
            self.repeats.remove(whole)
            self.intermittent.append(whole)
        elif has_failed:
            self.repeats.remove(whole)
            if len(whole) == TWO:
                self._judge_link(whole, failures)
            elif failures == MAX_WHOLES:
                self.together.append(whole)
            else:
                mixed = tuple(self.random.sample(whole, len(whole)))
                self._suspect(mixed, mixed, is_careful=True)
                self.unexplained.append(whole)

    def _judge_link(self, pair: Members, failures: int) -> None:
        for member, end in (pair, pair[::-1]):
            record = self.known[member]
            others = sum(partner != end for partner in record.failed_with)
            if record.lead > -LINK_LEAD or others > OTHER_FAILURES:  # is it one of the two?
                for suspect in pair:
                    self._suspect((suspect,), pair, clearing_lead=-LINK_LEAD)
                return
        if failures < FAILURES_OF_LINK + self.count_doubts():
            self.repeats.append(pair)
        else:
            self.links.append(pair)
            self.has_new_link = True

    def _suspect_rest(self, members: Members) -> None:
        """Suspect the members that have not passed; if all have, have them tested again."""
        unknown = tuple(member for member in members if not self.known[member].passes)
        alone = {group[0] for group in self.intermittent if len(group) == 1} & {*members}
        if unknown:
            self._suspect(unknown, members)
            self.unexplained.append(members)
        elif alone:
            self.excused |= alone
        else:
            self._doubt(members)

    def conclude(self) -> SearchResult:
        """Say what was found."""
        if self.are_most_bad():
            return SearchResult(is_widespread=True)
        slow_ways = [way for way, failed in self.sent.items() if is_slow_way(failed)]
        slow: tuple[list[str], list[str]] = ([], [])
        for end, member in product((0, 1), self.bad):
            cells = (failed for way, failed in self.sent.items() if way[end] == member)
            if is_slow_way([*chain.from_iterable(cells)]):
                slow[end].append(member)
        left = {*self.list_suspects(), *self.list_lost()} - {*self.bad}
        dead = {self.zones[member]: None for member in self.known if member in self.given_up}
        return SearchResult(
            bad=tuple(member for member in self.bad if member not in self.given_up),
            bad_zones=tuple(dead),
            links=tuple(self.links),
            senders=tuple(slow[0]),
            receivers=tuple(slow[1]),
            ways=tuple(w for link in self.links for w in (link, link[::-1]) if w in slow_ways),
            together=tuple(self.together),
            intermittent=tuple(self.intermittent),
            untested=tuple(
                m
                for m, r in self.known.items()
                if m in left or not (r.passes or m in self.bad or m in self.given_up)
            ),
        )


def is_slow_way(failed: Sequence[bool]) -> bool:
    """Whether so many of the tests of one direction have *failed* that it is slow."""
    return sum(failed) >= MIN_FAILED_SENDS and sum(failed) > len(failed) / 2
