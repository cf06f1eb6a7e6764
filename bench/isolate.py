"""
What an isolation takes: tests and rounds to find bad nodes, and the time to plan a round.

And whom it names where bandwidth varies from test to test: of healthy clusters nobody.

Clusters exist in memory only, and a test fails if one of its nodes is bad. A bound from
information theory stands beside: log2 of the ways to choose the bad nodes, since a test
only passes or fails.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from math import comb, log2
from pathlib import Path
from random import Random
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.isolation.group_tests import GroupOutcome  # noqa: E402 - as all three
from hpcverify.isolation.search import make_groups, search  # noqa: E402 - are
from hpcverify.isolation.stages import isolate  # noqa: E402 - below the path
from tests.isolation.noisy import (  # noqa: E402
    Slow,
    be_well,
    isolate_noisy,
    list_named,
    name_switches,
    slow_link,
    slow_nodes,
    slow_switch,
)

CLUSTERS = 200
HEALTHY, FAULTY, SPREADS = 1000, 300, (0.05, 0.25)
"""Noisy clusters, and the standard deviation of the logarithm of their bandwidth."""
SIZES = ((16, (1, 2)), (64, (1, 3)), (232, (0, 1, 5, 10)), (1024, (1, 5, 20)))
FEWEST = 3
"""Nodes at the switch of a fault: of fewer, a node, its link and its switch look alike."""
LARGE, LARGE_BAD = 10_000, 20


def take(nodes: list[str], bad: set[str], seed: str) -> tuple[int, int]:
    """Search *nodes*; return the tests and rounds that it took."""
    random = Random(seed)  # noqa: S311 - of a simulation
    plan = search(make_groups(nodes, random), random, {})
    tests = rounds = 0
    try:
        todo = next(plan)
        while True:
            tests, rounds = tests + len(todo), rounds + 1
            failed = [not bad.isdisjoint(test.members) for test in todo]
            todo = plan.send(
                [GroupOutcome.FAILED if one else GroupOutcome.PASSED for one in failed]
            )
    except StopIteration as end:
        found = set(end.value.bad)
    if found != bad:
        sys.exit(f"found {found}, not {bad}: the count means nothing")
    return tests, rounds


def choose(nodes: list[str], count: int, seed: int) -> set[str]:
    """Choose *count* bad nodes."""
    return set(Random(f"bad {seed}").sample(nodes, count))  # noqa: S311 - of a simulation


def time_rounds(nodes: list[str], bad: set[str]) -> list[float]:
    """Isolate *bad* among *nodes* at switches of 32; return the seconds to plan each round."""
    switches = {node: f"s{number // 32}" for number, node in enumerate(nodes)}
    plan = isolate(nodes, switches, Random("large"))  # noqa: S311 - of a simulation
    took: list[float] = []
    outcomes: list[GroupOutcome] | None = None
    try:
        while True:
            began = time.perf_counter()
            todo = next(plan) if outcomes is None else plan.send(outcomes)
            took.append(time.perf_counter() - began)
            outcomes = [
                GroupOutcome.PASSED
                if len(test.members) == 1 or bad.isdisjoint(test.members)
                else GroupOutcome.FAILED
                for test in todo
            ]
    except StopIteration:
        return took


def choose_fault(
    kind: str, switches: dict[str, str], random: Random
) -> tuple[Slow, set[str | frozenset[str]]]:
    """Choose what is at half its rate, and what an isolation should name."""
    sizes = Counter(switches.values())
    node = random.choice([one for one in switches if sizes[switches[one]] >= FEWEST])
    if kind == "none":
        return be_well, set()
    if kind == "node":
        return slow_nodes(node), {node}
    if kind == "switch":
        return slow_switch(switches[node], switches), {switches[node]}
    near = [one for one in switches if switches[one] == switches[node] and one != node]
    ends = (node, random.choice(near))
    return slow_link(*ends), {frozenset(ends)}


def isolate_in_noise(kind: str, clusters: int, *, has_topology: bool) -> tuple[int, int]:
    """Isolate in noisy clusters of 24 to 64 nodes; count who was found, and who was wronged."""
    found = wronged = 0
    for seed in range(clusters):
        random = Random(f"noisy {seed}")  # noqa: S311 - of a simulation
        count, spread = random.randint(24, 64), random.uniform(*SPREADS)
        switches = name_switches(count)
        slow, wanted = choose_fault(kind, switches, random)
        known = switches if has_topology else {}
        named = list_named(isolate_noisy(list(switches), slow, spread, seed, known), switches)
        found, wronged = found + (named == wanted), wronged + bool(named - wanted)
    return found, wronged


def print_noise() -> None:
    """Print what is named in noisy clusters."""
    print(f"{'at half its rate':>17} {'by':>9} {'clusters':>8} {'exact':>6} {'others named':>12}")
    for kind in ("none", "node", "link", "switch"):
        clusters = FAULTY if kind != "none" else HEALTHY
        for has_topology in (False, True) if kind in {"none", "node"} else (True,):
            found, wronged = isolate_in_noise(kind, clusters, has_topology=has_topology)
            by = "switches" if has_topology else "lot"
            print(f"{kind:>17} {by:>9} {clusters:8} {found:6} {wronged:12}", flush=True)


def main() -> None:
    """Print tests and rounds, the time to plan, and what is named in noise."""
    print(
        f"{'nodes':>6} {'bad':>4} {'tests':>6} {'worst':>6} {'rounds':>7} {'bound':>6} {'pairs':>8}"
    )
    for size, counts in SIZES:
        nodes = [f"n{number}" for number in range(size)]
        for count in counts:
            found = [take(nodes, choose(nodes, count, seed), str(seed)) for seed in range(CLUSTERS)]
            tests = [one for one, _ in found]
            rounds = median(one for _, one in found)
            bound = log2(comb(size, count))
            print(
                f"{size:6} {count:4} {median(tests):6g} {max(tests):6} {rounds:7g} {bound:6.0f}"
                f" {comb(size, 2):8}"
            )
    nodes = [f"n{number}" for number in range(LARGE)]
    took = time_rounds(nodes, choose(nodes, LARGE_BAD, 0))
    print(
        f"{LARGE} nodes, {LARGE_BAD} bad: {len(took)} rounds, "
        f"{max(took):.3f} s to plan the longest, {median(took):.3f} s the median one"
    )
    print_noise()


if __name__ == "__main__":
    main()
