"""Simulated clusters in which bandwidth varies from test to test, as on a busy network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import log2
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


def measure(test: GroupTest, slow: Collection[str], spread: float, random: Random) -> CollectiveRun:
    """Measure a *test*: each timing is off by a lognormal factor of this *spread*."""
    nodes = test.members
    doublings = log2(len(nodes))
    share = 1.0 if set(slow).isdisjoint(nodes) else SLOW_SHARE
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


def isolate_noisy(
    count: int, slow: Sequence[str], spread: float, seed: int
) -> tuple[Isolation, int]:
    """Isolate in a cluster of *count* nodes; return what was found, and the number of tests."""
    random, reference = Random(f"noise {seed}"), PeerReference()
    plan = isolate(name_nodes(count), {}, Random(seed), inside=False)
    took = 0
    try:
        tests = next(plan)
        while True:
            took += len(tests)
            runs = [measure(test, slow, spread, random) for test in tests]
            tests = plan.send([one.outcome for one in reference.judge_round(tests, runs)])
    except StopIteration as end:
        found: Isolation = end.value
    return found, took
