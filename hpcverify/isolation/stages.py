"""
Isolate what spoils collectives between nodes: each node alone, nodes, switches, directions.

1. Each node alone, with direct copies between its GPUs switched off: what fails now is in
   the node and its own adapters, and is left out of all that follows.
2. Groups of nodes, by their switch where that is known, until each node is judged, and with
   those that fail which send slowly and which receive slowly.
3. Those that were bad, with each other: a pair that passes is not named.
4. Groups of whole switches: what fails only now is between them.
5. Two switches that are slow with each other: is it the link of two of their nodes?
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import chain
from math import sqrt
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.isolation.far_links import find_culprit, find_far_link, pass_between
from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Members,
    Outcomes,
    Round,
)
from hpcverify.isolation.links import find_switch_pair
from hpcverify.isolation.search import SearchResult, make_groups, search

MIN_PARTNERS = 4
"""Nodes that have passed, beside those of pairs that failed: a suspect needs some."""
INSIDE_FAILURES = 2
"""Failures alone, of three tests at most, that make a node bad."""
INSIDE_TESTS = 3
SWITCH_PASSES = 6
"""Of all nodes of a switch, without others: one that fails now and then may pass a few times."""
PASSES_IN_A_ROW = 3
"""Of two bad nodes with each other, until they are not named: one pass may be chance."""
FIRST_PAIRINGS, MAX_PAIRINGS = 2, 4
"""The rest of the pairings of bad nodes are tested only if a pair has passed."""


class Isolation(Struct, frozen=True):
    """What is faulty, and what is not known."""

    inside: Members = ()
    """Nodes that fail alone."""
    nodes: SearchResult = SearchResult()
    switches: SearchResult = SearchResult()
    """Its members are switches."""
    between: tuple[Members, ...] = ()
    """Two switches each, where some node of the one is slow with some node of the other."""


Stages = Generator[Round, Outcomes, Isolation]


def try_pairs(
    pairs: Sequence[Members],
    spare: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    *,
    inside: bool = True,
    gone: Collection[str] = frozenset(),
) -> Stages:
    """
    Yield a round of *pairs* and, if some fail, the rounds that isolate the cause.

    A pair names no node: those that failed are searched with as many nodes that passed.
    *spare* are nodes in no pair that may be partners then, if too few have passed. The
    rest is as in `fabric bisect`. Nodes whose pair did not come to its end are untested.
    """
    outcomes = yield tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in pairs)
    nodes: dict[GroupOutcome, list[str]] = {outcome: [] for outcome in GroupOutcome}
    for pair, outcome in zip(pairs, outcomes or [GroupOutcome.UNKNOWN] * len(pairs), strict=True):
        nodes[outcome] += pair
    isolation = Isolation()
    if suspects := nodes[GroupOutcome.FAILED]:
        passed = nodes[GroupOutcome.PASSED]
        count = max(MIN_PARTNERS, len(suspects))
        partners = random.sample(passed, min(count, len(passed)))
        partners += random.sample(spare, min(count - len(partners), len(spare)))
        isolation = yield from isolate(
            [*suspects, *partners], switches, random, inside=inside, gone=gone
        )
    untested = (*isolation.nodes.untested, *nodes[GroupOutcome.UNKNOWN])
    return replace(isolation, nodes=replace(isolation.nodes, untested=untested))


def isolate(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    *,
    inside: bool = True,
    gone: Collection[str] = frozenset(),
) -> Stages:
    """Yield rounds of tests of *nodes*, take their outcomes, and return what is faulty."""
    bad_inside: Members = ()
    if inside:
        alone = {node: (node,) for node in nodes}
        bad_inside = yield from _test_inside(alone, GroupPurpose.INSIDE, gone)
    left = [node for node in nodes if node not in {*bad_inside, *gone}]
    of_nodes = yield from search(_group_by_switch(left, switches, random), random, switches, gone)
    judged = {*bad_inside, *of_nodes.bad, *of_nodes.untested}
    lost = tuple(node for node in nodes if node in gone and node not in judged)
    far = yield from _list_between_switches(of_nodes.links, left, switches, random, gone)
    of_nodes = replace(
        of_nodes,
        links=tuple(link for link in of_nodes.links if link not in far),
        intermittent=of_nodes.intermittent + far,  # what is between switches is tested next
        untested=of_nodes.untested + lost,
    )
    if of_nodes.is_widespread:
        return Isolation(bad_inside, of_nodes)
    of_nodes = yield from _drop_fitting(of_nodes, gone)
    # What fails within a switch would fail between switches as well; larger groups have passed.
    odd = (group for group in of_nodes.intermittent if len(group) <= TWO)
    faulty = {*of_nodes.bad, *of_nodes.untested}
    faulty |= {*chain.from_iterable((*of_nodes.links, *of_nodes.together, *odd))}
    sound = [n for n in left if n not in faulty and switches.get(n) not in of_nodes.bad_zones]
    at: dict[str, list[str]] = {}
    for node in sound:
        if switch := switches.get(node):
            at.setdefault(switch, []).append(node)
    if len(at) <= 1:
        return Isolation(bad_inside, of_nodes)
    doubts = len(of_nodes.intermittent)
    of_switches = yield from _search_switches(at, random, gone, doubts=doubts)
    of_nodes, of_switches = yield from _clear_switches(of_nodes, of_switches, at, gone)
    between: list[Members] = []
    for pair in of_switches.links:
        link = yield from find_far_link(at[pair[0]], at[pair[1]], random, gone)
        if link.is_shared:
            continue
        rest = tuple(other for other in of_switches.links if other != pair)
        of_switches = replace(of_switches, links=rest)
        if link.ends:  # what is slow between the switches is theirs alone
            links, ways = (*of_nodes.links, link.ends), (*of_nodes.ways, *link.ways)
            of_nodes = replace(of_nodes, links=links, ways=ways)
        else:
            between.append(pair)
    return Isolation(bad_inside, of_nodes, of_switches, tuple(between))


def _test_inside(
    groups: Mapping[str, Members], purpose: GroupPurpose, gone: Collection[str], *, passes: int = 1
) -> Generator[Round, Outcomes, Members]:
    """Test each of the *groups* by itself, until it has so many *passes* or fails again."""
    failures, missing = dict.fromkeys(groups, 0), dict.fromkeys(groups, passes)
    for _ in range(INSIDE_TESTS + passes):
        left = {
            name: members
            for name, members in groups.items()
            if missing[name] and failures[name] < INSIDE_FAILURES and set(gone).isdisjoint(members)
        }
        if not left:
            break
        outcomes = yield tuple(GroupTest(members, purpose) for members in left.values())
        if outcomes is None:
            break
        for name, outcome in zip(left, outcomes, strict=True):
            failures[name] += outcome is GroupOutcome.FAILED
            missing[name] -= outcome is GroupOutcome.PASSED
    return tuple(name for name, count in failures.items() if count >= INSIDE_FAILURES)


def _group_by_switch(
    nodes: Sequence[str], switches: Mapping[str, str], random: Random
) -> list[Members]:
    """Group nodes by switch, in groups of about the square root of all, or by lot."""
    if any(node not in switches for node in nodes):
        return make_groups(nodes, random)
    at: dict[str, list[str]] = {}
    for node in nodes:
        at.setdefault(switches[node], []).append(node)
    most = max(2, round(sqrt(len(nodes))))
    lone = [members[0] for members in at.values() if len(members) == 1]
    groups = make_groups(lone, random) if lone else []
    for members in at.values():
        if len(members) > 1:  # no group has a single node
            count = max(1, len(members) // most)
            groups += [tuple(members[start::count]) for start in range(count)]
    return groups


def _list_between_switches(
    links: Sequence[Members],
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[Members, ...]]:
    """List those *links* of nodes at two switches that other nodes of both may share."""
    shared: list[Members] = []
    for link in links:
        if pair := find_switch_pair(link, switches):
            first, second = (
                [node for node in nodes if switches.get(node) == switch and node not in link]
                for switch in pair
            )
            if not (yield from pass_between(first, second, random, gone)):
                shared.append(link)
    return tuple(shared)


def _drop_fitting(
    of_nodes: SearchResult, gone: Collection[str]
) -> Generator[Round, Outcomes, SearchResult]:
    """Drop bad nodes that pass with each other: they differ from the rest, as by a version."""
    ring = [node for node in of_nodes.bad if node not in gone]
    passed: dict[str, Members] = {}
    for number in range(MAX_PAIRINGS):
        left = list(zip(ring[::2], ring[1::2], strict=False))
        left = [pair for pair in left if not {*pair} <= {*passed}]
        if not left or (number >= FIRST_PAIRINGS and not passed):
            break
        for _ in range(PASSES_IN_A_ROW):
            outcomes = (yield tuple(GroupTest(pair, GroupPurpose.PAIRS) for pair in left)) or ()
            results = zip(left, outcomes, strict=False)
            left = [pair for pair, outcome in results if outcome is GroupOutcome.PASSED]
            if not left:
                break
        passed |= {node: pair for pair in left for node in pair}
        ring = ring[1:] + ring[:1]
    return replace(
        of_nodes,
        bad=tuple(node for node in of_nodes.bad if node not in passed),
        intermittent=(*of_nodes.intermittent, *dict.fromkeys(passed.values())),
    )


def _search_switches(
    at: Mapping[str, Sequence[str]], random: Random, gone: Collection[str], *, doubts: int
) -> Generator[Round, Outcomes, SearchResult]:
    """Search for switches that fail without other nodes, by tests of all their nodes."""
    empty: set[str] = set()
    plan = search(make_groups(at, random), random, {}, empty, of_switches=True, doubts=doubts)
    tests = next(plan)
    try:
        while True:
            outcomes = yield tuple(
                GroupTest(tuple(chain.from_iterable(at[s] for s in t.members)), t.purpose)
                for t in tests
            )
            empty.update(
                switch for switch, members in at.items() if all(n in gone for n in members)
            )
            tests = plan.send(outcomes)
    except StopIteration as end:
        result: SearchResult = end.value
    own = {s: here for s in result.bad if len(here := tuple(n for n in at[s] if n not in gone)) > 1}
    inside = yield from _test_inside(own, GroupPurpose.WHOLE, gone, passes=SWITCH_PASSES)
    return replace(
        result,
        bad=tuple(switch for switch in result.bad if switch not in inside),
        intermittent=(*result.intermittent, *((switch,) for switch in inside)),
    )


def _clear_switches(
    of_nodes: SearchResult,
    of_switches: SearchResult,
    at: Mapping[str, Sequence[str]],
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[SearchResult, SearchResult]]:
    """Clear a switch of which one node alone spoils what its nodes do with all others."""
    for switch in of_switches.bad:
        others = tuple(
            node
            for other, members in at.items()
            if other not in of_switches.bad
            for node in members
            if node not in gone
        )
        if others and (culprit := (yield from find_culprit(at[switch], others, gone))):
            rest = tuple(other for other in of_switches.bad if other != switch)
            of_switches = replace(of_switches, bad=rest)
            of_nodes = replace(of_nodes, intermittent=(*of_nodes.intermittent, culprit))
    return of_nodes, of_switches
