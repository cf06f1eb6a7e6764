"""
Find the members that spoil a collective, by tests of groups of them.

A test is one collective over some members; it fails if one of them is bad. A member is a
node, or all nodes of a switch. Tests of a round are disjoint, so they run side by side.

The first round tests groups. Of a group that fails, one half is tested: if that passes, the
fault must be in the other one. A member that is left alone is tested with members that
have passed. Meanwhile all others are tested together, until each has passed twice.

No member is found bad by inference. A member is *bad* only if it failed with two different
partners, in rounds in which members that had passed did so again (a control). If nobody
of a group turns out to be bad, the group is tested once more as a whole. Then either it
passes, and what was seen is *intermittent*; or two members are found that fail only
with each other, a *link*; or it fails only as a whole, and no single member is the cause.

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
    EXTRA_CONTROLS,
    FAILURES_TO_NAME,
    JUDGING,
    MAX_ATTEMPTS,
    SearchState,
    halve,
)

MAX_BAD_SHARE = 0.2
"""If a larger share of the members is bad, it is not they."""
MIN_BAD = 10
"""This many may be bad in the smallest cluster. From then on it is tested whether they fit each
other."""
FITTING_PAIRS = 0.5
"""If fewer of the pairs of bad members fail, they are not bad."""
WIDESPREAD_GROUPS, WIDESPREAD_PAIRS = 0.5, 0.4
"""If larger shares of the first groups fail, and then of pairs, no members can be distinguished:
with a fifth of all bad, 0.36 of the pairs fail; with two versions that do not fit, 0.5."""
MIN_GROUPS = 4
"""From so many groups on, failures can be widespread."""
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
    state = SearchState(groups, random, zones, gone)
    seen = yield from _test_each(groups, GroupPurpose.GROUP, gone)
    if len(seen) >= MIN_GROUPS and _share_of_failures(seen) > WIDESPREAD_GROUPS:
        mixed = list(state.known)
        random.shuffle(mixed)
        seen = yield from _test_each(_pair_up(mixed), GroupPurpose.PAIRS, gone)
        if seen and _share_of_failures(seen) > WIDESPREAD_PAIRS:
            return SearchResult(is_widespread=True)
    for group, outcome in seen.items():
        state.learn_group(group, outcome)
    while tests := _plan_round(state):
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
    return len(state.bad) > max(MIN_BAD, MAX_BAD_SHARE * len(state.known))


def _plan_round(state: SearchState) -> Round:
    if state.rounds == MAX_ROUNDS or _are_most_bad(state):
        return ()
    tests: list[GroupTest] = []
    state.give_up_zones()
    state.forget_lost()
    ends = {pair[0] for pair in state.links}  # without them, the others must pass
    lost = state.list_lost()
    taken = {*state.bad, *state.list_suspects(), *state.given_up, *ends, *lost}
    for clash in state.clashes:
        tests += [GroupTest(both, GroupPurpose.BETWEEN) for both in clash.list_tests()]
    for whole in state.repeats:
        if taken.isdisjoint(whole):
            tests.append(GroupTest(whole, GroupPurpose.WHOLE))
            taken.update(whole)
    good = _list_good(state, taken)
    known_good = frozenset(good)
    for half in _choose_halves(state):
        if len(half) > 1:
            tests.append(GroupTest(half, GroupPurpose.HALF))
        elif partner := _choose_partner(state, *half, good=good, known_good=known_good):
            tests.append(GroupTest((*half, partner), GroupPurpose.PAIR))
            taken.add(partner)
            good.remove(partner)
    tests += _plan_rest(state, taken, good)
    purposes = {test.purpose for test in tests}
    if purposes & JUDGING and GroupPurpose.REST not in purposes:
        taken.update(chain.from_iterable(test.members for test in tests))
        tests += _plan_controls(state, [member for member in good if member not in taken])
    return tuple(tests)


def _plan_controls(state: SearchState, good: Sequence[str]) -> Iterator[GroupTest]:
    count = 1 + EXTRA_CONTROLS * (state.disturbances > 0)
    for pair in _pair_up(good)[:count]:
        yield GroupTest(pair, GroupPurpose.CONTROL)


def _choose_halves(state: SearchState) -> Iterator[Members]:
    """Choose one half of each suspicion; both of two members if others are further on."""
    are_late = any(len(suspicion.members) == 1 for suspicion in state.suspicions)
    for suspicion in state.suspicions:
        first, second = halve(suspicion.members)
        is_behind = are_late or state.known[first[0]].failures < FAILURES_TO_NAME - 2
        both = suspicion.is_careful or (is_behind and len(suspicion.members) == TWO)
        yield first
        if both and second:
            yield second


def _list_good(state: SearchState, taken: set[str]) -> list[str]:
    """List who has passed and has nothing to do, the surest first."""
    unsure = set(chain.from_iterable(state.intermittent)) | taken
    good = [m for m, r in state.known.items() if r.passes and m not in unsure]
    state.random.shuffle(good)
    return sorted(good, key=lambda member: -min(state.known[member].passes, CLEARED_PASSES))


def _choose_partner(
    state: SearchState, member: str, *, good: Sequence[str], known_good: Collection[str]
) -> str | None:
    """Choose a new partner of *member*, of its zone if there is one; else once it met all."""
    met, zone = state.known[member].partners, state.zones.get(member)
    fresh = [candidate for candidate in good if candidate not in met or met.issuperset(known_good)]
    return min(fresh, key=lambda candidate: state.zones.get(candidate) != zone, default=None)


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
    for member, passes in missing.items():
        if passes >= 0:
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
    return CLEARED_PASSES + 2 * min(2, doubts)


def _conclude(state: SearchState) -> SearchResult:
    if _are_most_bad(state):
        return SearchResult(is_widespread=True)
    left = {*state.list_suspects(), *state.list_lost()} - {*state.bad}
    dead = {state.zones[member]: None for member in state.known if member in state.given_up}
    return SearchResult(
        bad=tuple(member for member in state.bad if member not in state.given_up),
        bad_zones=tuple(dead),
        links=tuple(state.links),
        together=tuple(state.together),
        intermittent=tuple(state.intermittent),
        untested=tuple(
            m
            for m, r in state.known.items()
            if m in left or not (r.passes or m in state.bad or m in state.given_up)
        ),
    )
