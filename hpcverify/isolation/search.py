"""
Find the members that spoil a collective, by tests of groups of them.

A test is one collective over some members; it fails if one of them is bad. A member is a
node, or all nodes of a switch. Tests of a round are disjoint, so they run side by side.

The first round tests groups. Of a group that fails, one half is tested: if that passes, the
fault must be in the other one. A member that is left alone is tested with members that
have passed. Meanwhile all others are tested together, until each has passed twice.

Nobody is blamed by inference. A member is *bad* only if it failed with two different
partners, in rounds in which members that had passed did so again (a control). If nobody
of a group turns out to be bad, the group is tested once more as a whole. Then either it
passes, and what was seen is *intermittent*; or two members are found that fail only
with each other, a *link*; or it fails only as a whole, and *nobody* is to blame.

Binary splitting of groups: F. K. Hwang, "A method for detecting all defective members in
a population by group testing" (J. Am. Stat. Assoc. 67, 1972). No search can need fewer
than log2(C(n, d)) tests that only pass or fail, to find d of n.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum, auto
from itertools import chain
from math import sqrt
from random import Random

from msgspec import Struct, field

Members = tuple[str, ...]

TWO = 2
"""The fewest that a collective needs."""

BLAME_LEAD = 2
"""Failures more than passes, each with another partner, that make a member bad."""
LINK_LEAD = 3
"""More passes than failures, each with another partner, of two that fail with each other."""
BLAME_FAILURES = 4
"""Failed tests of a bad member in all; with fewer, it takes a lead of one more."""
MAX_PAIR_TESTS = 8
"""Of one member. With no such lead after as many, it is intermittent."""
CLEARED_PASSES = 2
"""Passed tests until a member is cleared: one may have passed by chance."""
MAX_WHOLES = 3
"""Times that a group fails as a whole, while none of its parts does, until nobody is to blame."""
MIN_BAD_OF_ZONE = 3
"""Bad members of a zone in which nothing has passed, from which on it is the zone."""
MAX_BAD_SHARE = 0.2
"""If a larger share of the members is bad, it is not they."""
MIN_BAD = 10
"""So many may be bad in the smallest cluster. From then on it is tested whether they fit each
other."""
FITTING_PAIRS = 0.5
"""If fewer of the pairs of bad members fail, they are not bad."""
MORE_CONTROLS = 3
"""Beside the one, after one has failed: a disturbance that comes and goes must not blame."""
WIDESPREAD_GROUPS, WIDESPREAD_PAIRS = 0.5, 0.4
"""If larger shares of the first groups fail, and then of pairs, no members can be told apart:
with a fifth of all bad, 0.36 of the pairs fail; with two versions that do not fit, 0.5."""
MIN_GROUPS = 4
"""From so many groups on, failures can be widespread."""
MAX_ATTEMPTS = 5
"""To test a group, or a member, whose tests do not come to their end."""
MAX_ROUNDS = 80
"""Far more than a search takes whose tests can be repeated at all."""


class GroupOutcome(StrEnum):
    """What came of a test."""

    PASSED = auto()
    FAILED = auto()
    UNKNOWN = auto()
    """It did not come to its end for another reason. It is planned again."""


class GroupPurpose(StrEnum):
    """What a test is for."""

    GROUP = auto()
    PAIRS = auto()
    """Any two, after most groups failed."""
    HALF = auto()
    PAIR = auto()
    """Its first member, with one that has passed."""
    REST = auto()
    """All others that have not passed twice yet."""
    WHOLE = auto()
    """A group that failed, once more."""
    BETWEEN = auto()
    """Parts of two groups that pass, and fail together."""
    SEND = auto()
    """The first of two sends to the second."""
    INSIDE = auto()
    """A node alone, its GPUs by way of its own network adapters."""
    CONTROL = auto()
    """Two members that have passed: does the round judge fairly?"""


class GroupTest(Struct, frozen=True):
    """One collective over two or more *members*."""

    members: Members
    purpose: GroupPurpose


Round = tuple[GroupTest, ...]


class Found(Struct, frozen=True):
    """What a search found. Who is in none of these was cleared."""

    bad: Members = ()
    bad_zones: Members = ()
    """Zones of which some members are bad, and nobody has passed."""
    links: tuple[Members, ...] = ()
    """Pairs that fail only with each other."""
    together: tuple[Members, ...] = ()
    """Groups that fail as a whole, and of which nobody is to blame."""
    intermittent: tuple[Members, ...] = ()
    """Groups, or single members, that failed and then passed: not excluded."""
    untested: Members = ()
    """Members whose tests did not come to an end."""
    is_widespread: bool = False
    """Most groups failed, and most pairs: a cause that all share."""


JUDGING = frozenset({GroupPurpose.PAIR, GroupPurpose.WHOLE})
"""Tests by which members are blamed."""

CONTROLS = frozenset({GroupPurpose.REST, GroupPurpose.CONTROL})
"""Tests that pass, unless something disturbs the round or a bad member is not found yet."""

Outcomes = Sequence[GroupOutcome] | None
"""Of a round, test by test; None: no further round may run."""
Plan = Generator[Round, Outcomes, Found]


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
) -> Plan:
    """
    Yield rounds of tests, and take their outcomes, until all members of *groups* are judged.

    *zones* says at which switch a member is: partners, and those that are tested together,
    are of one zone where that can be. The same *random* and outcomes give the same rounds,
    so a search can be resumed.

    Whoever runs the tests may add to *gone* the members that cannot be tested any more,
    before it sends the outcomes of a round. Tests of that round may have run without them.
    They are in no later test, and untested unless they were bad before.
    """
    state = _Search(groups, random, zones, gone)
    seen = yield from _test_each(groups, GroupPurpose.GROUP, gone)
    if len(seen) >= MIN_GROUPS and _share_of_failures(seen) > WIDESPREAD_GROUPS:
        mixed = list(state.known)
        random.shuffle(mixed)
        seen = yield from _test_each(_pair_up(mixed), GroupPurpose.PAIRS, gone)
        if seen and _share_of_failures(seen) > WIDESPREAD_PAIRS:
            return Found(is_widespread=True)
    for group, outcome in seen.items():
        state.learn_group(group, outcome)
    while tests := state.plan_round():
        outcomes = yield tests
        if outcomes is None:
            break
        state.learn(tests, outcomes)
    found = state.conclude()
    if len(found.bad) > MIN_BAD:  # if they fit each other, two versions do not fit, say
        seen = yield from _test_each(_pair_up(found.bad), GroupPurpose.PAIRS, gone)
        if seen and _share_of_failures(seen) < FITTING_PAIRS:
            return Found(is_widespread=True)
    return found


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


class _Record(Struct):
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


class _Suspicion(Struct, eq=False):
    """One of *members* is bad, unless *origin* failed for another reason."""

    members: Members
    origin: Members
    """The last group that failed itself, and not by inference."""
    is_careful: bool = False
    """Nobody may be bad: test both halves, and infer nothing."""
    clearing_lead: int = -1
    """Of failures over passes, in pairs, from which on the last member is cleared."""


class _Clash(Struct, eq=False):
    """Both sides of *origin* pass, and fail together: is the cause between two members?"""

    origin: Members
    left: list[tuple[Members, Members]]
    """Halves of both sides that are not tested together yet."""

    @classmethod
    def between(cls, one: Members, other: Members) -> _Clash:
        """Expect the cause between a member of *one* side and one of the *other*."""
        (a, b), (c, d) = _halve(one), _halve(other)
        facing = [(a, c), (b, d), (a, d), (b, c)]
        return cls(one + other, [pair for pair in facing if all(pair)])

    def list_tests(self) -> list[Members]:
        """List disjoint tests of what is left."""
        tests: list[Members] = []
        for one, other in self.left:
            if not any({*one, *other} & {*test} for test in tests):
                tests.append(one + other)
        return tests


def _halve(members: Members) -> tuple[Members, Members]:
    middle = (len(members) + 1) // 2
    return members[:middle], members[middle:]


class _Search:
    def __init__(
        self,
        groups: Sequence[Members],
        random: Random,
        zones: Mapping[str, str],
        gone: Collection[str],
    ) -> None:
        self.random = random
        self.zones = zones
        self.gone = gone
        self.known = {member: _Record() for member in chain.from_iterable(groups)}
        self.suspicions: list[_Suspicion] = []
        self.repeats: list[Members] = []
        """Groups that failed, and of which nobody was bad."""
        self.pairs: list[Members] = []
        """Partners with whom a member failed that was cleared since, and that member."""
        self.wholes = Counter[frozenset[str]]()
        self.bad: list[str] = []
        self.links: list[Members] = []
        self.together: list[Members] = []
        self.intermittent: list[Members] = []
        self.clashes: list[_Clash] = []
        self.given_up: set[str] = set()
        """Members of zones that are bad as a whole."""
        self.has_new_link = False
        """It explains why others failed: all of them have to pass without it."""
        self.disturbances = 0
        self.rounds = 0

    # Planning

    def plan_round(self) -> Round:
        """Plan disjoint tests; none if all members are judged."""
        if self.rounds == MAX_ROUNDS or self._are_most_bad():
            return ()
        tests: list[GroupTest] = []
        self._give_up_zones()
        self._forget_lost()
        ends = {pair[0] for pair in self.links}  # without them, the others must pass
        lost = self._list_lost()
        taken = {*self.bad, *self._list_suspects(), *self.given_up, *ends, *lost}
        for clash in self.clashes:
            tests += [GroupTest(both, GroupPurpose.BETWEEN) for both in clash.list_tests()]
        for whole in self.repeats:
            if taken.isdisjoint(whole):
                tests.append(GroupTest(whole, GroupPurpose.WHOLE))
                taken.update(whole)
        good = self._list_good(taken)
        for half in self._choose_halves():
            if len(half) > 1:
                tests.append(GroupTest(half, GroupPurpose.HALF))
            elif partner := self._choose_partner(*half, good=good):
                tests.append(GroupTest((*half, partner), GroupPurpose.PAIR))
                taken.add(partner)
                good.remove(partner)
        tests += self._plan_rest(taken, good)
        purposes = {test.purpose for test in tests}
        if purposes & JUDGING and GroupPurpose.REST not in purposes:
            taken.update(chain.from_iterable(test.members for test in tests))
            tests += self._plan_controls([one for one in good if one not in taken])
        return tuple(tests)

    def _give_up_zones(self) -> None:
        """Test no more of a zone with bad members in which nobody has passed."""
        bad = Counter(zone for member in self.bad if (zone := self.zones.get(member)))
        cleared = {m for m, record in self.known.items() if record.passes >= CLEARED_PASSES}
        alive = {self.zones.get(member) for member in cleared}
        dead = {z for z, count in bad.items() if count >= MIN_BAD_OF_ZONE and z not in alive}
        self.given_up = {member for member in self.known if self.zones.get(member) in dead}
        self.suspicions = [s for s in self.suspicions if self.given_up.isdisjoint(s.members)]
        self.repeats = [whole for whole in self.repeats if self.given_up.isdisjoint(whole)]

    def _forget_lost(self) -> None:
        """Suspect nobody who is lost. Of a group that failed, who is left is tested on."""
        lost = self._list_lost()
        for suspicion in self.suspicions:
            suspicion.members = tuple(m for m in suspicion.members if m not in lost)
        self.suspicions = [suspicion for suspicion in self.suspicions if suspicion.members]
        self.repeats = [whole for whole in self.repeats if lost.isdisjoint(whole)]
        self.clashes = [clash for clash in self.clashes if lost.isdisjoint(clash.origin)]

    def _list_lost(self) -> set[str]:
        """List who is gone, and whose tests do not come to their end."""
        return {*self.gone, *(m for m, r in self.known.items() if r.unknowns >= MAX_ATTEMPTS)}

    def _are_most_bad(self) -> bool:
        return len(self.bad) > max(MIN_BAD, MAX_BAD_SHARE * len(self.known))

    def _plan_controls(self, good: Sequence[str]) -> Iterator[GroupTest]:
        count = 1 + MORE_CONTROLS * (self.disturbances > 0)
        for pair in _pair_up(good)[:count]:
            yield GroupTest(pair, GroupPurpose.CONTROL)

    def _choose_halves(self) -> Iterator[Members]:
        """Choose one half of each suspicion; both of two members if others are further on."""
        are_late = any(len(suspicion.members) == 1 for suspicion in self.suspicions)
        for suspicion in self.suspicions:
            first, second = _halve(suspicion.members)
            is_behind = are_late or self.known[first[0]].failures < BLAME_FAILURES - 2
            both = suspicion.is_careful or (is_behind and len(suspicion.members) == TWO)
            yield first
            if both and second:
                yield second

    def _list_suspects(self) -> Iterator[str]:
        for suspicion in self.suspicions:
            yield from suspicion.members
        for clash in self.clashes:
            yield from clash.origin

    def _list_good(self, taken: set[str]) -> list[str]:
        """List who has passed and has nothing to do, the surest first."""
        unsure = set(chain.from_iterable(self.intermittent)) | taken
        good = [m for m, r in self.known.items() if r.passes and m not in unsure]
        self.random.shuffle(good)
        return sorted(good, key=lambda one: -min(self.known[one].passes, CLEARED_PASSES))

    def _choose_partner(self, member: str, *, good: Sequence[str]) -> str | None:
        fresh = [one for one in good if one not in self.known[member].partners]
        near = (one for one in fresh if self.zones.get(one) == self.zones.get(member))
        return next(near, fresh[0] if fresh else None)

    def _plan_rest(self, taken: Collection[str], good: Sequence[str]) -> Iterator[GroupTest]:
        """Test all of a zone together whose passes do not suffice, and who may have one more."""
        missing = {
            m: 1 if self.has_new_link else self._count_needed(m) - r.passes
            for m, r in self.known.items()
            if m not in taken
        }
        are_known = all(self.known[member].passes for member in missing)
        if are_known and any(len(s.members) > TWO for s in self.suspicions):
            return  # one test at the end does for all
        rest: dict[str | None, list[str]] = {}
        for member, passes in missing.items():
            if passes >= 0:
                rest.setdefault(self.zones.get(member), []).append(member)
        rest = {z: some for z, some in rest.items() if any(missing[m] > 0 for m in some)}
        busy = {*taken, *chain.from_iterable(rest.values())}
        spare = [one for one in good if one not in busy]
        smallest = min(map(len, self.together), default=len(self.known) + 1)
        for members in rest.values():
            group = members if len(members) > 1 else [*members, *spare[:1]]  # nobody alone
            spare = [one for one in spare if one not in group]
            if 1 < len(group) < smallest:
                yield GroupTest(tuple(group), GroupPurpose.REST)

    def _count_needed(self, member: str) -> int:
        """Count the passes that clear *member*: more, after failures that nobody explains."""
        doubts = sum(member in group for group in self.intermittent)
        return CLEARED_PASSES + 2 * min(2, doubts)

    # Learning

    def learn_group(self, group: Members, outcome: GroupOutcome) -> None:
        """Take the *outcome* of one of the first groups."""
        has_failed = outcome is GroupOutcome.FAILED
        self._count(GroupTest(group, GroupPurpose.GROUP), has_failed=has_failed)
        if has_failed:
            self.suspicions.append(_Suspicion(group, group))

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
        """Follow all suspicions, by which parts of the round have failed."""
        suspicions, self.suspicions = self.suspicions, []
        for suspicion in suspicions:
            self._follow(suspicion, verdicts)
        for pair in self.pairs:  # one of them was cleared: was it the other?
            self._suspect(pair[:1], pair)
        self.pairs.clear()
        clashes, self.clashes = self.clashes, []
        for clash in clashes:
            self._follow_clash(clash, verdicts)

    def _follow(self, suspicion: _Suspicion, verdicts: Mapping[Members, bool]) -> None:
        """Follow one *suspicion*, by which of the parts of this round have failed."""
        members = suspicion.members
        halves = [half for half in _halve(members) if half in verdicts]
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
            self.clashes.append(_Clash.between(*_halve(members)))
        else:
            self._doubt(members)

    def _follow_clash(self, clash: _Clash, verdicts: Mapping[Members, bool]) -> None:
        failed = [(a, b) for a, b in clash.left if verdicts.get(a + b)]
        clash.left = [(a, b) for a, b in clash.left if a + b not in verdicts]
        for one, other in failed:
            pair = one + other
            if len(pair) > TWO:
                self.clashes.append(_Clash.between(one, other))
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
        """Suspect those of *members* who are not yet."""
        suspects = {*self.bad, *self._list_suspects()}
        if left := tuple(member for member in members if member not in suspects):
            self.suspicions.append(_Suspicion(left, origin, is_careful, clearing_lead))

    def _judge_single(self, suspicion: _Suspicion) -> None:
        member = suspicion.members[0]
        record = self.known[member]
        needed = (
            BLAME_LEAD + (record.failures < BLAME_FAILURES) + min(self.disturbances, MORE_CONTROLS)
        )
        if record.lead >= needed:
            self.bad.append(member)
            self.repeats = [whole for whole in self.repeats if member not in whole]
        elif record.pair_tests >= MAX_PAIR_TESTS:
            self.intermittent.append((member,))
        elif record.lead <= suspicion.clearing_lead:
            self._doubt(suspicion.origin)
            self.pairs += [(partner, member) for partner in record.failed_with]
        else:
            self.suspicions.append(suspicion)

    def _doubt(self, origin: Members) -> None:
        """Nobody of *origin* was bad: have it tested again, unless that is explained by now."""
        explained = {*self.bad, *(one[0] for one in self.intermittent if len(one) == 1)}
        if explained.isdisjoint(origin) and origin not in self.repeats:
            self.repeats.append(origin)

    def _learn_whole(self, whole: Members, *, has_failed: bool) -> None:
        """Take what came of a group that failed before, and of which nobody was bad."""
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
        if all(self.known[member].lead <= -LINK_LEAD for member in pair):
            self.links.append(pair)
            self.has_new_link = True
        else:
            for member in pair:
                self._suspect((member,), pair, clearing_lead=-LINK_LEAD)

    def _suspect_rest(self, members: Members) -> None:
        """Suspect those who have not passed; if all have, the cause may be between them."""
        unknown = tuple(one for one in members if not self.known[one].passes)
        self._suspect(unknown or members, members, is_careful=not unknown)

    # The end

    def conclude(self) -> Found:
        """Say what is known by now."""
        if self._are_most_bad():
            return Found(is_widespread=True)
        left = {*self._list_suspects(), *self._list_lost()} - {*self.bad}
        dead = {self.zones[member]: None for member in self.known if member in self.given_up}
        return Found(
            bad=tuple(member for member in self.bad if member not in self.given_up),
            bad_zones=tuple(dead),
            links=tuple(self.links),
            together=tuple(self.together),
            intermittent=tuple(self.intermittent),
            untested=tuple(
                m
                for m, r in self.known.items()
                if m in left or not (r.passes or m in self.bad or m in self.given_up)
            ),
        )


def _name_part(test: GroupTest) -> Members:
    """Name what a test is about: of a pair, its first member."""
    return test.members[:1] if test.purpose is GroupPurpose.PAIR else test.members
