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
from hpcverify.isolation.stages import isolate  # noqa: E402 - are below the path
from tests.isolation.clusters import (  # noqa: E402
    Failing,
    Walk,
    contains_any,
    contains_pair,
    name_nodes,
    walk,
)
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
SIZES = ((16, (1, 2)), (64, (1, 3)), (232, (0, 1, 5, 10, 20)), (1024, (1, 5, 20)))
FEWEST = 3
"""Nodes at the switch of a fault: of fewer, a node, its link and its switch look alike."""
LARGE, LARGE_BAD = 10_000, 20
LEAVES = {node: f"s{number // 32}" for number, node in enumerate(name_nodes(232))}


def take(nodes: list[str], bad: set[str], seed: str) -> Walk:
    """Isolate *bad* among *nodes*; return what that takes."""
    plan = isolate(nodes, {}, Random(seed), inside=False)  # noqa: S311 - of a simulation
    found, took = walk(plan, contains_any(bad), Random(seed))  # noqa: S311
    if set(found.nodes.bad) != bad:
        sys.exit(f"named {found.nodes.bad}, not {bad}: the count means nothing")
    return took


def choose(nodes: list[str], count: int, seed: int) -> set[str]:
    """Choose *count* bad nodes."""
    return set(Random(f"bad {seed}").sample(nodes, count))  # noqa: S311 - of a simulation


def time_rounds(nodes: list[str], bad: set[str], switches: dict[str, str]) -> list[float]:
    """Isolate *bad* among *nodes*; return the seconds to plan each round."""
    plan = isolate(nodes, switches, Random("large"))  # noqa: S311 - of a simulation
    took: list[float] = []
    outcomes: list[GroupOutcome] | None = None
    try:
        while True:
            began = time.process_time()
            todo = next(plan) if outcomes is None else plan.send(outcomes)
            took.append(time.process_time() - began)
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
        named = list_named(isolate_noisy(list(switches), slow, spread, seed, known))
        found, wronged = found + (named == wanted), wronged + bool(named - wanted)
    return found, wronged


def print_flaky(what: str, *, switches: dict[str, str], flaky: float) -> None:
    """Print how often *what* is found in 232 nodes where a share of the tests is wrong."""
    nodes, exact, wronged, walks = name_nodes(232), 0, 0, list[Walk]()
    for seed in range(CLUSTERS):
        fails, wanted = choose_cause(what, nodes, seed)
        plan = isolate(nodes, switches, Random(seed), inside=False)  # noqa: S311
        found, took = walk(plan, fails, Random(f"flaky {seed}"), flaky)  # noqa: S311
        named = list_named(found)
        exact, wronged = exact + (named == wanted), wronged + bool(named - wanted)
        walks.append(took)
    tests, rounds = median(one.tests for one in walks), median(one.rounds for one in walks)
    by = "switches" if switches else "lot"
    print(
        f"{what:>14} {by:>9} {flaky:6.0%} {exact:6} {wronged:7} {tests:6g} {rounds:6g}", flush=True
    )


def choose_cause(
    what: str, nodes: list[str], seed: int
) -> tuple[Failing, set[str | frozenset[str]]]:
    """Choose what spoils tests, and what an isolation should name."""
    if what == "five nodes":
        bad = choose(nodes, 5, seed)
        return contains_any(bad), {*bad}
    random = Random(f"ends {seed}")  # noqa: S311 - of a simulation
    one = random.choice(nodes)
    is_near = what == "a near link"
    others = [n for n in nodes if n != one and (LEAVES[n] == LEAVES[one]) == is_near]
    ends = (one, random.choice(others))
    return contains_pair(ends), {frozenset(ends)}


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
    print(f"{'nodes':>6} {'bad':>4} tests  most rounds  most bound")
    for size, counts in SIZES:
        nodes = name_nodes(size)
        for count in counts:
            found = [take(nodes, choose(nodes, count, seed), str(seed)) for seed in range(CLUSTERS)]
            tests, rounds = [one.tests for one in found], [one.rounds for one in found]
            bound = log2(comb(size, count))
            print(
                f"{size:6} {count:4} {median(tests):5g} {max(tests):5} {median(rounds):6g}"
                f" {max(rounds):5} {bound:5.0f}",
                flush=True,
            )
    nodes = [f"n{number}" for number in range(LARGE)]
    leaves = {node: f"s{number // 32}" for number, node in enumerate(nodes)}
    for by, switches in (("switches of 32", leaves), ("lot", dict[str, str]())):
        took = time_rounds(nodes, choose(nodes, LARGE_BAD, 0), switches)
        print(
            f"{LARGE} nodes by {by}, {LARGE_BAD} bad: {len(took)} rounds, {sum(took):.1f} s to "
            f"plan them, {max(took):.3f} s the longest, {median(took):.3f} s the median one"
        )
    print(
        f"{'spoiled by':>14} {'groups by':>9} {'wrong':>6} {'exact':>6} {'others':>7} tests rounds"
    )
    for flaky in (0.0, 0.02, 0.05):
        print_flaky("five nodes", switches={}, flaky=flaky)
        for what in ("five nodes", "a near link", "a far link"):
            print_flaky(what, switches=LEAVES, flaky=flaky)
    print_noise()


if __name__ == "__main__":
    main()
