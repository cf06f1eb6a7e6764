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
from collections.abc import Generator
from math import comb, log2
from pathlib import Path
from random import Random
from statistics import median
from typing import TypeVar

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.isolation.group_tests import GroupOutcome, Outcomes, Round  # noqa: E402 - as all three
from hpcverify.isolation.search import make_groups, search  # noqa: E402 - are
from hpcverify.isolation.stages import isolate  # noqa: E402 - below the path
from tests.isolation.clusters import contains_any, look, name_nodes  # noqa: E402
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
T = TypeVar("T")


def take(nodes: list[str], bad: set[str], seed: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Search *nodes*; return the tests and rounds that this takes, and those to the answer."""
    random = Random(seed)  # noqa: S311 - of a simulation
    found, searched = follow(search(make_groups(nodes, random), random, {}), bad)
    if set(found.bad) != bad:
        sys.exit(f"found {found.bad}, not {bad}: the count means nothing")
    isolated, answered = follow(isolate(nodes, {}, Random(seed), inside=False), bad)  # noqa: S311
    if set(isolated.nodes.bad) != bad:
        sys.exit(f"named {isolated.nodes.bad}, not {bad}: the count means nothing")
    return searched, answered


def follow(plan: Generator[Round, Outcomes, T], bad: set[str]) -> tuple[T, tuple[int, int]]:
    """Follow a *plan* where each test with a *bad* node fails; count its tests and rounds."""
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
        return end.value, (tests, rounds)


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
        named = list_named(isolate_noisy(list(switches), slow, spread, seed, known), switches)
        found, wronged = found + (named == wanted), wronged + bool(named - wanted)
    return found, wronged


def print_flaky() -> None:
    """Print how often five bad nodes of 232 are found where one test in 50 gives a wrong answer."""
    nodes = name_nodes(232)
    exact = faulty = 0
    for seed in range(HEALTHY):
        bad = choose(nodes, 5, seed)
        found, _ = look(nodes, contains_any(bad), str(seed), flaky=0.02)
        exact += set(found.bad) == bad
        faulty += bool({*found.bad} - bad or found.links or found.bad_zones)
    print(f"5 of 232 nodes, 2 % of tests wrong: {exact} of {HEALTHY} exact, {faulty} name others")


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
    heads = ("tests", "worst", "rounds", "worst", "bound", "to the answer: tests", "rounds")
    print(f"{'nodes':>6} {'bad':>4} {' '.join(heads)}")
    for size, counts in SIZES:
        nodes = [f"n{number}" for number in range(size)]
        for count in counts:
            found = [take(nodes, choose(nodes, count, seed), str(seed)) for seed in range(CLUSTERS)]
            tests, rounds = zip(*(searched for searched, _ in found), strict=True)
            all_tests, all_rounds = zip(*(answered for _, answered in found), strict=True)
            bound = log2(comb(size, count))
            print(
                f"{size:6} {count:4} {median(tests):5g} {max(tests):5} {median(rounds):6g}"
                f" {max(rounds):5} {bound:5.0f} {median(all_tests):20g} {median(all_rounds):6g}",
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
    print_flaky()
    print_noise()


if __name__ == "__main__":
    main()
