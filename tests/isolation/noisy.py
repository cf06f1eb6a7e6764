"""Simulated clusters in which bandwidth varies from test to test, as on a busy network."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil, log2
from random import Random

from hpcverify.isolation.group_tests import GroupPurpose, GroupTest
from hpcverify.isolation.judge import PeerReference
from hpcverify.isolation.stages import Isolation, isolate
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming, RankPlace
from tests.isolation.clusters import name_nodes

SMALL, BIG = 2**16, 2**30
GOOD_GB_S, SMALL_GB_S = 40.0, 0.5
SLOW_SHARE = 0.5
"""Of its rate, that a bad node still has."""


Slow = Callable[[Collection[str]], bool]
"""Whether a collective over some nodes is slow."""


def be_well(_: Collection[str]) -> bool:
    """Have nothing that is slow."""
    return False


def slow_nodes(*bad: str) -> Slow:
    """Make all slow in which one of the *bad* nodes takes part."""
    return lambda nodes: not set(bad).isdisjoint(nodes)


def slow_link(*ends: str) -> Slow:
    """Make all slow in which both *ends* take part."""
    return lambda nodes: {*ends} <= {*nodes}


def slow_switch(name: str, switches: Mapping[str, str]) -> Slow:
    """Make all slow that goes through the switch of that *name*."""
    return lambda nodes: name in (at := {switches[node] for node in nodes}) and len(at) > 1


def slow_between(one: str, other: str, switches: Mapping[str, str]) -> Slow:
    """Make all slow in which nodes of both switches take part."""
    return lambda nodes: {one, other} <= {switches[node] for node in nodes}


def measure(test: GroupTest, slow: Slow, spread: float, random: Random) -> CollectiveRun:
    """Measure a *test*: each timing is off by a lognormal factor of this *spread*."""
    nodes = test.members
    doublings = log2(len(nodes))
    share = SLOW_SHARE if slow(nodes) else 1.0
    operations = ["broadcast"] if test.purpose is GroupPurpose.SEND else ["all_reduce"]
    if len(nodes) == 2 and test.purpose is not GroupPurpose.SEND:
        operations.append("broadcast")
    timings = []
    for operation in operations:
        for size, full in ((SMALL, SMALL_GB_S / len(nodes)), (BIG, GOOD_GB_S * 0.97**doublings)):
            rate = full * (share if size == BIG else 1.0) * random.lognormvariate(0.0, spread)
            timings.append(CollectiveTiming(operation, size, 20, 0.1, 0.1, 0.1, rate, rate))
    return CollectiveRun(
        id="noisy",
        started="",
        ended="",
        version="",
        ranks=tuple(RankPlace(rank, node, "cpu") for rank, node in enumerate(nodes)),
        timings=tuple(timings),
    )


def name_switches(count: int) -> dict[str, str]:
    """Name the switch of each of *count* nodes: four to eight switches."""
    at_each = max(2, ceil(count / 8))
    return {node: f"s{number // at_each}" for number, node in enumerate(name_nodes(count))}


def isolate_noisy(
    nodes: Sequence[str],
    slow: Slow,
    spread: float,
    seed: int,
    switches: Mapping[str, str] | None = None,
) -> Isolation:
    """Isolate what is *slow* in a cluster of *nodes*, by lot or at *switches*."""
    random, reference = Random(f"noise {seed}"), PeerReference()
    plan = isolate(nodes, switches or {}, Random(seed), inside=False)
    try:
        tests = next(plan)
        while True:
            runs = [measure(test, slow, spread, random) for test in tests]
            tests = plan.send([one.outcome for one in reference.judge_round(tests, runs)])
    except StopIteration as end:
        found: Isolation = end.value
    return found


def list_named(found: Isolation) -> set[str | frozenset[str]]:
    """List every node, link and switch that is to blame."""
    bad = {*found.nodes.bad_zones, *found.switches.bad}
    links = (*found.nodes.links, *found.switches.links)
    return {*found.inside, *found.nodes.bad} | bad | {*map(frozenset[str], links)}
