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

If nobody of a group turns out to be bad, the group is tested once more as a whole. Then either it
passes twice, and what was seen is *intermittent*; or two members are found that fail only
with each other, a *link*; or it fails only as a whole, and no single member is the cause. Groups
that failed and led to nothing are repeated at the end: a test that was wrong may lead astray.

Binary splitting of groups: F. K. Hwang, "A method for detecting all defective members in
a population by group testing" (J. Am. Stat. Assoc. 67, 1972). No search can need fewer
than log2(C(n, d)) tests that only pass or fail, to find d of n.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import sqrt
from random import Random

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
from hpcverify.isolation.search_state import (
    CLEARED_PASSES,
    JUDGING,
    MAX_ATTEMPTS,
    SENDS_FROM,
    SearchState,
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
"""With more suspects it is not tested who of them sends and who receives slowly."""
MAX_ROUNDS = 80
"""Far more than a search takes whose tests can be repeated at all."""


class SearchResult(Struct, frozen=True):
    """What a search found. Who is in none of these was cleared."""

    bad: Members = ()
    bad_zones: Members = ()
    """Zones where some members are bad, and nobody has passed."""
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

    Whoever runs the tests may add to *gone* the members that cannot be tested any more,
    before it sends the outcomes of a round. Tests of that round may have run without them.
    They are in no later test, and untested unless they were bad before.
    """
    state = SearchState(groups, random, zones, gone, of_switches=of_switches, doubts=doubts)
    seen = yield from _test_each(groups, GroupPurpose.GROUP, gone)
    if len(seen) >= MIN_GROUPS and _share_of_failures(seen) > WIDESPREAD_GROUPS:
        seen = {}
        for _ in range(MAX_PAIRINGS):
            mixed = random.sample(list(state.known), len(state.known))
            seen |= yield from _test_each(_pair_up(mixed), GroupPurpose.PAIRS, gone)
            if not seen or _share_of_failures(seen) < FEW_PAIRS:
                break
        if seen and _share_of_failures(seen) > WIDESPREAD_PAIRS:
            return SearchResult(is_widespread=True)
    for group, outcome in seen.items():
        state.learn_group(group, outcome)
    while tests := _plan_round(state) or _plan_repeats(state):
        outcomes = yield tests
        if outcomes is None:
            break
        state.learn(tests, outcomes)
    result = _conclude(state)
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


def _are_most_bad(state: SearchState) -> bool:
    records = state.known.values()
    failing = sum(record.lead + record.unfair >= PROBABLE_LEAD for record in records)
    return failing > max(MIN_BAD, MAX_BAD_SHARE * len(state.known))


def _plan_repeats(state: SearchState) -> Round:
    state.repeat_unexplained()
    return _plan_round(state)


def _plan_round(state: SearchState) -> Round:
    if state.rounds == MAX_ROUNDS or _are_most_bad(state):
        return ()
    tests: list[GroupTest] = []
    state.give_up_zones()
    state.forget_lost()
    ends = {pair[0] for pair in state.links}  # without them, the others must pass
    lost = state.list_lost()
    taken = {*state.bad, *state.list_suspects(), *state.given_up, *state.excused, *ends, *lost}
    for clash in state.clashes:
        tests += [GroupTest(both, GroupPurpose.BETWEEN) for both in clash.list_tests()]
    for whole in state.repeats:
        if taken.isdisjoint(whole):
            tests.append(GroupTest(whole, GroupPurpose.WHOLE))
            if len(whole) == TWO:
                tests += _plan_sends(state, whole, state.wholes[frozenset(whole)][True])
            taken.update(whole)
    good = _list_good(state, taken)
    reserved = good[-TWO:] if len(good) > MIN_GOOD else []  # for a control
    good = good[: len(good) - len(reserved)]
    for part in _choose_parts(state):
        if len(part) > 1:
            tests.append(GroupTest(part, GroupPurpose.HALF))
        else:
            trial = _plan_trial(state, part[0], good, taken)
            taken.update(chain.from_iterable(test.members for test in trial))
            good = [member for member in good if member not in taken]
            tests += trial
    good += reserved
    tests += _plan_rest(state, taken, good)
    if any(test.purpose in JUDGING for test in tests):
        taken.update(chain.from_iterable(test.members for test in tests))
        tests += _plan_controls(state, tests, [member for member in good if member not in taken])
    return tuple(tests)


def _plan_controls(
    state: SearchState, tests: Sequence[GroupTest], good: Sequence[str]
) -> Iterator[GroupTest]:
    """Pair *good* members, of one zone where that can be; none but beside no other control."""
    if any(test.purpose is GroupPurpose.REST for test in tests):
        return
    near = sorted(good, key=lambda member: state.zones.get(member, ""))
    for pair in _pair_up(near)[:CONTROLS]:
        yield GroupTest(pair, GroupPurpose.CONTROL)


def _choose_parts(state: SearchState) -> Iterator[Members]:
    """Choose what to test of each suspicion: of two halves one, unless nobody may be bad."""
    for suspicion in state.suspicions:
        first, *others = suspicion.split()
        yield first
        if suspicion.is_careful or len(first) == 1:
            yield from others


def _plan_trial(
    state: SearchState, member: str, good: Sequence[str], taken: Collection[str]
) -> list[GroupTest]:
    """
    Plan a test of a *member* with one of the *good* that it has not met, if there is one.

    It meets others of its zone first. With one of another zone, a witness goes between these
    zones as well, unless nobody of its own is left: the cause may be between the zones.
    """
    record, zone = state.known[member], state.zones.get(member)
    near = [other for other in good if state.zones.get(other) == zone]
    spare = [m for m in state.known if m not in taken and state.zones.get(m) == zone]
    by_meeting = record.partners.__contains__
    partner = min(near or good if not spare else near, key=by_meeting, default=None)
    witness: list[GroupTest] = []
    if spare and not (near and record.unknowns) and (not near or partner in record.partners):
        far = sorted((m for m in good if state.zones.get(m) != zone), key=by_meeting)
        there = state.zones.get(far[0]) if far else None
        others = [m for m in far[1:] if state.zones.get(m) == there]
        if others:
            partner = far[0]
            witness = [GroupTest((spare[0], others[0]), GroupPurpose.CONTROL)]
    if partner is None:
        return []
    pair = (member, partner)
    return [GroupTest(pair, GroupPurpose.PAIR), *_plan_sends(state, pair, record.lead), *witness]


def _plan_sends(state: SearchState, pair: Members, failures: int) -> Iterator[GroupTest]:
    """Send in both directions, in the job of the test of a *pair* that has failed."""
    if not state.of_switches and failures >= SENDS_FROM and len(state.suspicions) <= MAX_DIRECTIONS:
        yield GroupTest(pair, GroupPurpose.SEND)
        yield GroupTest(pair[::-1], GroupPurpose.SEND)


def _list_good(state: SearchState, taken: set[str]) -> list[str]:
    """List who has passed and has nothing to do, the surest first."""
    vague = {*chain.from_iterable(state.intermittent)}
    unsure = {m for m in vague if state.known[m].passes < _count_needed(state, m)} | taken
    good = [m for m, r in state.known.items() if r.passes and m not in unsure]
    state.random.shuffle(good)
    return sorted(good, key=lambda member: -min(state.known[member].passes, CLEARED_PASSES))


def _plan_rest(
    state: SearchState, taken: Collection[str], good: Sequence[str]
) -> Iterator[GroupTest]:
    """Test all of a zone together whose passes do not suffice, and who may have one more."""
    missing = {
        m: 1 if state.has_new_link else _count_needed(state, m) - r.passes
        for m, r in state.known.items()
        if m not in taken
    }
    are_known = all(state.known[member].passes for member in missing)
    if are_known and any(len(s.members) > TWO for s in state.suspicions):
        return  # one test at the end does for all
    rest: dict[str | None, list[str]] = {}
    for member in missing:
        rest.setdefault(state.zones.get(member), []).append(member)
    rest = {z: members for z, members in rest.items() if any(missing[m] > 0 for m in members)}
    busy = {*taken, *chain.from_iterable(rest.values())}
    spare = [member for member in good if member not in busy]
    smallest = min(map(len, state.together), default=len(state.known) + 1)
    for members in rest.values():
        group = members if len(members) > 1 else [*members, *spare[:1]]  # nobody alone
        spare = [member for member in spare if member not in group]
        if 1 < len(group) < smallest:
            yield GroupTest(tuple(group), GroupPurpose.REST)


def _count_needed(state: SearchState, member: str) -> int:
    """Count the passes that clear *member*: more, after failures that nobody explains."""
    doubts = sum(member in group for group in state.intermittent)
    return CLEARED_PASSES + state.of_switches + 2 * min(2, doubts)


def _conclude(state: SearchState) -> SearchResult:
    if _are_most_bad(state):
        return SearchResult(is_widespread=True)
    left = {*state.list_suspects(), *state.list_lost()} - {*state.bad}
    dead = {state.zones[member]: None for member in state.known if member in state.given_up}
    return SearchResult(
        bad=tuple(member for member in state.bad if member not in state.given_up),
        bad_zones=tuple(dead),
        links=tuple(state.links),
        senders=tuple(state.list_slow(0)),
        receivers=tuple(state.list_slow(1)),
        ways=tuple(state.list_slow_ways()),
        together=tuple(state.together),
        intermittent=tuple(state.intermittent),
        untested=tuple(
            m
            for m, r in state.known.items()
            if m in left or not (r.passes or m in state.bad or m in state.given_up)
        ),
    )
