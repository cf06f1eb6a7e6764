"""
What an isolation takes: tests and rounds to find bad nodes, and the time to plan a round.

Clusters exist in memory only, and a test fails if one of its nodes is bad. A bound from
information theory stands beside: log2 of the ways to choose the bad nodes, since a test
only passes or fails.
"""

from __future__ import annotations

import sys
import time
from math import comb, log2
from pathlib import Path
from random import Random
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.isolation.group_tests import GroupOutcome  # noqa: E402 - as all three
from hpcverify.isolation.search import make_groups, search  # noqa: E402 - are
from hpcverify.isolation.stages import isolate  # noqa: E402 - below the path

CLUSTERS = 200
SIZES = ((16, (1, 2)), (64, (1, 3)), (232, (0, 1, 5, 10)), (1024, (1, 5, 20)))
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


def main() -> None:
    """Print both."""
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


if __name__ == "__main__":
    main()
