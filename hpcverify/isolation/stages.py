"""
Isolate what spoils collectives between nodes: each node alone, nodes, switches, directions.

1. Each node alone, with direct copies between its GPUs switched off: what fails now is in
   the node and its own adapters, and is left out of all that follows.
2. Groups of nodes, by their switch where that is known, until each node is judged, and with
   those that fail who sends slowly and who receives slowly.
3. Those that were bad with each other: who passes there does not fit the others, and is not bad.
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
from hpcverify.isolation.misfits import find_misfits
from hpcverify.isolation.partly import PairResults, PartlySlow, find_partly_slow, note_pairs
from hpcverify.isolation.search import SearchResult, make_groups, search
from hpcverify.isolation.three import THREE, search_three

INSIDE_FAILURES = 2
"""Failures alone, of three tests at most, that make a node bad."""
INSIDE_TESTS = 3
SWITCH_PASSES = 6
"""Of all nodes of a switch, without others: one that fails now and then may pass a few times."""


class Isolation(Struct, frozen=True):
    """What is faulty, and what is not known."""

    inside: Members = ()
    """Nodes that fail alone."""
    nodes: SearchResult = SearchResult()
    switches: SearchResult = SearchResult()
    """Its members are switches."""
    between: tuple[Members, ...] = ()
    """Two switches each, where some node of the one is slow with some node of the other."""
    partly: tuple[PartlySlow, ...] = ()
    misfits: Members = ()
    """Nodes that fail with all others, and pass with each other."""


def isolate(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    *,
    inside: bool = True,
    gone: Collection[str] = frozenset(),
) -> Generator[Round, Outcomes, Isolation]:
    """
    Yield rounds of tests of *nodes*, take their outcomes, and say what is faulty.

    *switches* has the switch of each node, as far as it is known. *inside* is whether nodes
    can be tested alone. Nodes may be *gone* in the meantime, as `search` has it. The same
    *random* and outcomes give the same rounds.
    """
    bad_inside: Members = ()
    if inside:
        alone = {node: (node,) for node in nodes}
        bad_inside = yield from _test_inside(alone, GroupPurpose.INSIDE, gone)
    left = [node for node in nodes if node not in {*bad_inside, *gone}]
    of_nodes, partly = yield from _search_nodes(left, switches, random, gone)
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
    misfits = yield from find_misfits(of_nodes.bad, gone)
    of_nodes = replace(of_nodes, bad=tuple(n for n in of_nodes.bad if n not in misfits))
    faulty = {*of_nodes.bad, *misfits, *(n for n in left if switches.get(n) in of_nodes.bad_zones)}
    vague = {*of_nodes.untested, *(entry.node for entry in partly)}
    good = [node for node in left if node not in {*faulty, *vague}]
    # What fails within a switch would fail between switches as well; larger groups have passed.
    odd = (group for group in of_nodes.intermittent if len(group) <= TWO)
    failing = {*chain.from_iterable((*of_nodes.links, *of_nodes.together, *odd))}
    sound = [node for node in good if node not in failing]
    doubts = len(of_nodes.intermittent)
    of_switches = yield from _search_switches(sound, switches, random, gone, doubts=doubts)
    of_nodes, of_switches = yield from _clear_switches(
        of_nodes, of_switches, sound, switches, gone=gone
    )
    of_nodes, of_switches, between = yield from _name_far_links(
        of_nodes, of_switches, sound, switches, random=random, gone=gone
    )
    if misfits and (switch := _find_switch_of_all(misfits, left, switches)):
        of_switches = replace(of_switches, bad=(*of_switches.bad, switch))
        misfits = ()
    return Isolation(bad_inside, of_nodes, of_switches, between, partly, misfits)


def _find_switch_of_all(
    misfits: Members, nodes: Sequence[str], switches: Mapping[str, str]
) -> str | None:
    """Find the switch whose nodes are all *misfits*, and the only ones: it is its fault."""
    switch = switches.get(misfits[0])
    there = {node for node in nodes if switch and switches.get(node) == switch}
    return switch if there == set(misfits) else None


def _search_nodes(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[SearchResult, tuple[PartlySlow, ...]]]:
    groups = _group_by_switch(nodes, switches, random)
    seen: PairResults = {}
    plan = note_pairs(search(groups, random, switches, gone), seen)
    result = yield from plan
    repeats = _repeat_failures(
        result, nodes, seen=seen, switches=switches, random=random, gone=gone
    )
    return (yield from repeats)


def _clear_switches(
    of_nodes: SearchResult,
    of_switches: SearchResult,
    sound: Sequence[str],
    switches: Mapping[str, str],
    *,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[SearchResult, SearchResult]]:
    """Clear a switch of which one node alone spoils what its nodes do with all others."""
    for switch in of_switches.bad:
        members = [node for node in sound if switches.get(node) == switch]
        others = tuple(
            node
            for node in sound
            if node not in gone and switches.get(node) not in {None, *of_switches.bad}
        )
        if others and (culprit := (yield from find_culprit(members, others, gone))):
            rest = tuple(other for other in of_switches.bad if other != switch)
            of_switches = replace(of_switches, bad=rest)
            of_nodes = replace(of_nodes, intermittent=(*of_nodes.intermittent, culprit))
    return of_nodes, of_switches


def _name_far_links(
    of_nodes: SearchResult,
    of_switches: SearchResult,
    sound: Sequence[str],
    switches: Mapping[str, str],
    *,
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[SearchResult, SearchResult, tuple[Members, ...]]]:
    """Name the two nodes, where what is slow between two switches is theirs alone."""
    between: list[Members] = []
    for pair in of_switches.links:
        first, second = (
            [node for node in sound if switches.get(node) == switch] for switch in pair
        )
        link = yield from find_far_link(first, second, random, gone)
        if link.is_shared:
            continue
        rest = tuple(other for other in of_switches.links if other != pair)
        of_switches = replace(of_switches, links=rest)
        if link.ends:
            links, ways = (*of_nodes.links, link.ends), (*of_nodes.ways, *link.ways)
            of_nodes = replace(of_nodes, links=links, ways=ways)
        else:
            between.append(pair)
    return of_nodes, of_switches, tuple(between)


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


def _repeat_failures(
    result: SearchResult,
    nodes: Sequence[str],
    *,
    seen: PairResults,
    switches: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, tuple[SearchResult, tuple[PartlySlow, ...]]]:
    """Try nodes again that failed and passed; those slow with some each time are set apart."""
    alone = [group[0] for group in result.intermittent if len(group) == 1]
    suspects = list(dict.fromkeys((*alone, *chain.from_iterable(result.links))))
    if result.is_widespread or not suspects:
        return result, ()
    others = {*result.bad, *result.untested, *chain.from_iterable(result.intermittent), *alone}
    good = [node for node in nodes if node not in others]
    partly = yield from find_partly_slow(
        suspects, good, seen=seen, zones=switches, random=random, gone=gone
    )
    partly_slow = {entry.node for entry in partly}
    left = replace(
        result,
        intermittent=tuple(group for group in result.intermittent if partly_slow.isdisjoint(group)),
        links=tuple(link for link in result.links if partly_slow.isdisjoint(link)),
    )
    return left, partly


def _test_inside(
    groups: Mapping[str, Members], purpose: GroupPurpose, gone: Collection[str], *, passes: int = 1
) -> Generator[Round, Outcomes, Members]:
    """Test each of the *groups* by itself, until it has so many *passes* or fails again."""
    failures, missing = dict.fromkeys(groups, 0), dict.fromkeys(groups, passes)
    left = dict(groups)
    for _ in range(INSIDE_TESTS + passes):
        left = {name: members for name, members in left.items() if set(gone).isdisjoint(members)}
        if not left:
            break
        outcomes = yield tuple(GroupTest(members, purpose) for members in left.values())
        if outcomes is None:
            break
        results = dict(zip(left, outcomes, strict=True))
        for name, outcome in results.items():
            failures[name] += outcome is GroupOutcome.FAILED
            missing[name] -= outcome is GroupOutcome.PASSED
        left = {
            name: members
            for name, members in left.items()
            if missing[name] and failures[name] < INSIDE_FAILURES
        }
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
        if len(members) == 1:
            continue
        count = max(1, len(members) // most)  # nobody alone
        groups += [tuple(members[start::count]) for start in range(count)]
    return groups


def _search_switches(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    gone: Collection[str],
    *,
    doubts: int,
) -> Generator[Round, Outcomes, SearchResult]:
    """
    Search for switches that spoil what is between them, by tests of all their nodes.

    If these fail without any other node, it is not the switch. *doubts* are the groups of nodes
    that failed and then passed.
    """
    at: dict[str, list[str]] = {}
    for node in nodes:
        if switch := switches.get(node):
            at.setdefault(switch, []).append(node)
    if len(at) <= 1:
        return SearchResult()
    empty: set[str] = set()
    if len(at) == THREE:
        plan = search_three(tuple(at), empty)
    else:
        groups = make_groups(at, random)
        plan = search(groups, random, {}, empty, of_switches=True, doubts=doubts)
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
