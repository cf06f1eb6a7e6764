"""
Isolate what spoils collectives between nodes: each node alone, nodes, switches, directions.

1. Each node alone, with direct copies between its GPUs switched off: what fails now is in
   the node and its own adapters, and is left out of all that follows.
2. Groups of nodes, by their switch where that is known, until each node is judged; then
   those that were found bad once more, so that nobody is blamed by chance.
3. Groups of whole switches: what fails only now is between them.
4. A matrix of those that were bad with as many that passed: who sends slowly, who receives
   slowly, and which link is slow.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import chain
from math import sqrt
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
from hpcverify.isolation.matrix import MAX_NODES, MatrixFound, find_directions
from hpcverify.isolation.search import Found, make_groups, search

INSIDE_FAILURES = 2
"""Failures alone, of three tests at most, that make a node bad."""
INSIDE_TESTS = 3
CONFIRM_FAILURES, REFUTING_PASSES = 4, 2
"""Of each bad node, when all are found: what comes first, decides."""
CONFIRM_CONTROLS = 4
"""Pairs beside them, of those that have passed."""


class Isolation(Struct, frozen=True):
    """What is to blame, and what is not known."""

    inside: Members = ()
    """Nodes that fail alone."""
    nodes: Found = Found()
    switches: Found = Found()
    """Its members are switches."""
    matrix: MatrixFound = MatrixFound()


def isolate(
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    *,
    inside: bool = True,
    gone: Collection[str] = frozenset(),
) -> Generator[Round, Outcomes, Isolation]:
    """
    Yield rounds of tests of *nodes*, take their outcomes, and say what is to blame.

    *switches* has the switch of each node, as far as it is known. *inside* is whether nodes
    can be tested alone. Nodes may be *gone* in the meantime, as `search` has it. The same
    *random* and outcomes give the same rounds.
    """
    bad_inside: Members = ()
    if inside:
        bad_inside = yield from _test_inside(nodes, gone)
    left = [node for node in nodes if node not in {*bad_inside, *gone}]
    of_nodes = yield from search(_group_by_switch(left, switches, random), random, switches, gone)
    lost = tuple(n for n in nodes if n in gone and n not in {*bad_inside, *of_nodes.untested})
    of_nodes = replace(of_nodes, untested=of_nodes.untested + lost)
    of_nodes = yield from _confirm(of_nodes, left, switches, random, gone)
    if of_nodes.is_widespread:
        return Isolation(bad_inside, of_nodes)
    accused = {*of_nodes.bad, *(n for n in left if switches.get(n) in of_nodes.bad_zones)}
    good = [node for node in left if node not in {*accused, *of_nodes.untested}]
    of_switches = yield from _search_switches(good, switches, random, gone)
    suspects = [*of_nodes.bad, *chain.from_iterable(of_nodes.links)][: MAX_NODES // 2]
    chosen = _choose_for_matrix(suspects, [node for node in good if node not in gone], random)
    matrix = MatrixFound()
    if chosen:
        matrix = yield from find_directions(chosen, switches, gone)
    return Isolation(bad_inside, of_nodes, of_switches, matrix)


def _test_inside(
    nodes: Sequence[str], gone: Collection[str]
) -> Generator[Round, Outcomes, Members]:
    """Test each node alone; again what failed, or did not come to its end."""
    failures = dict.fromkeys(nodes, 0)
    left = list(nodes)
    for _ in range(INSIDE_TESTS):
        left = [node for node in left if node not in gone]
        if not left:
            break
        outcomes = yield tuple(GroupTest((node,), GroupPurpose.INSIDE) for node in left)
        if outcomes is None:
            break
        results = dict(zip(left, outcomes, strict=True))
        for node, outcome in results.items():
            failures[node] += outcome is GroupOutcome.FAILED
        open_nodes = {n for n in left if failures[n] or results[n] is GroupOutcome.UNKNOWN}
        left = [node for node in left if node in open_nodes and failures[node] < INSIDE_FAILURES]
    return tuple(node for node, count in failures.items() if count >= INSIDE_FAILURES)


def _confirm(
    found: Found,
    nodes: Sequence[str],
    switches: Mapping[str, str],
    random: Random,
    gone: Collection[str],
) -> Generator[Round, Outcomes, Found]:
    """
    Test those that were found bad once more, and take back who passes.

    The tests by which they were found were chosen since they failed, and what they were
    compared with since it passed: on a noisy network both may be chance. These are not, and
    nor are the controls beside them, whatever comes of them.
    """
    if found.is_widespread:
        return found
    zones = set(found.bad_zones)
    vague = {*found.bad, *found.untested, *chain.from_iterable((*found.links, *found.intermittent))}
    good = [node for node in nodes if node not in vague and switches.get(node) not in zones]
    passes, failures = dict.fromkeys(found.bad, 0), dict.fromkeys(found.bad, 0)
    for _ in range(CONFIRM_FAILURES + REFUTING_PASSES - 1):
        left = [node for node in found.bad if node not in gone]
        left = [n for n in left if failures[n] < CONFIRM_FAILURES and passes[n] < REFUTING_PASSES]
        partners = [node for node in good if node not in gone]
        if not left or len(partners) <= TWO:
            break
        random.shuffle(partners)
        pairs = zip(left, partners[TWO:], strict=False)
        tests = [GroupTest(pair, GroupPurpose.PAIR) for pair in pairs]
        others = [*partners[:TWO], *partners[TWO + len(tests) :]][: TWO * CONFIRM_CONTROLS]
        controls = zip(others[::2], others[1::2], strict=False)
        tests += [GroupTest(pair, GroupPurpose.CONTROL) for pair in controls]
        outcomes = yield tuple(tests)
        if outcomes is None:
            break
        for test, outcome in zip(tests, outcomes, strict=True):
            if test.purpose is GroupPurpose.PAIR:
                passes[test.members[0]] += outcome is GroupOutcome.PASSED
                failures[test.members[0]] += outcome is GroupOutcome.FAILED
    few = sum(node not in gone for node in good) <= TWO  # no control beside a pair
    doubtful = [node for node, count in passes.items() if few or count >= REFUTING_PASSES]
    return replace(
        found,
        bad=tuple(node for node in found.bad if node not in doubtful),
        intermittent=(*found.intermittent, *((node,) for node in doubtful)),
    )


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
    lone = [some[0] for some in at.values() if len(some) == 1]
    groups = make_groups(lone, random) if lone else []
    for some in at.values():
        if len(some) == 1:
            continue
        count = max(1, len(some) // most)  # nobody alone
        groups += [tuple(some[start::count]) for start in range(count)]
    return groups


def _search_switches(
    nodes: Sequence[str], switches: Mapping[str, str], random: Random, gone: Collection[str]
) -> Generator[Round, Outcomes, Found]:
    """Search for switches that spoil what is between them, by tests of all their nodes."""
    at: dict[str, list[str]] = {}
    for node in nodes:
        if switch := switches.get(node):
            at.setdefault(switch, []).append(node)
    if len(at) <= 1:
        return Found()
    empty: set[str] = set()
    plan = search(make_groups(at, random), random, {}, empty)
    tests = next(plan)
    try:
        while True:
            outcomes = yield tuple(
                GroupTest(tuple(chain.from_iterable(at[s] for s in t.members)), t.purpose)
                for t in tests
            )
            empty.update(switch for switch, some in at.items() if all(n in gone for n in some))
            tests = plan.send(outcomes)
    except StopIteration as end:
        found: Found = end.value
        return found


def _choose_for_matrix(suspects: Sequence[str], good: Sequence[str], random: Random) -> list[str]:
    """
    Choose *suspects* and as many *good* ones to send to each other; none without suspects.

    In the first round good ones meet each other, so that the others can be compared.
    """
    if not suspects:
        return []
    chosen = dict.fromkeys(suspects)
    others = [node for node in good if node not in chosen]
    count = min(len(others), max(2, len(chosen)), MAX_NODES - len(chosen))
    nodes = [*random.sample(others, count), *chosen]  # who is first here, meets the next one
    if len(nodes) % 2:
        nodes = [nodes.pop(), *nodes]  # the first has nobody to meet
        return [nodes[0], *nodes[1::2], *reversed(nodes[2::2])]
    return [*nodes[::2], *reversed(nodes[1::2])]
