"""A slow link of two nodes at different switches is theirs, and not that of the switches."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.group_tests import GroupTest
from hpcverify.isolation.stages import Isolation, isolate
from tests.isolation.clusters import Failing, contains_pair, name_nodes, walk
from tests.isolation.noisy import list_named

NODES = name_nodes(64)
SWITCHES = {node: f"s{number // 8}" for number, node in enumerate(NODES)}


def run(fails: Failing, seed: int, flaky: float = 0.0) -> Isolation:
    plan = isolate(NODES, SWITCHES, Random(seed), inside=False)
    return walk(plan, fails, Random(f"far {seed}"), flaky)[0]


def choose_ends(seed: int) -> tuple[str, str]:
    """Choose two nodes at different switches."""
    random = Random(f"ends {seed}")
    one = random.choice(NODES)
    return one, random.choice([node for node in NODES if SWITCHES[node] != SWITCHES[one]])


def test_a_slow_link_of_two_nodes_at_different_switches_is_theirs() -> None:
    for seed in range(50):
        ends = choose_ends(seed)
        found = run(contains_pair(ends), seed)
        assert list_named(found, SWITCHES) == {frozenset(ends)}, seed
        assert found.switches.links == ()


@pytest.mark.parametrize("flaky", [0.0, 0.02])
def test_what_is_slow_between_two_switches_is_not_a_link_of_two_nodes(flaky: float) -> None:
    for seed in range(30):
        one, other = Random(f"switches {seed}").sample(sorted(set(SWITCHES.values())), 2)

        def fails(test: GroupTest, _round: int, _random: Random) -> bool:
            return {one, other} <= {SWITCHES[node] for node in test.members}  # noqa: B023

        found = run(fails, seed, flaky)

        assert list_named(found, SWITCHES) <= {frozenset((one, other))}, seed
        assert found.nodes.links == ()


def test_where_tests_fail_by_chance_a_far_link_names_nobody_else() -> None:
    named = 0
    for seed in range(50):
        ends = choose_ends(seed)

        found = list_named(run(contains_pair(ends), seed, 0.02), SWITCHES)

        at = frozenset(SWITCHES[node] for node in ends)
        assert found <= {frozenset(ends), at}, seed
        named += frozenset(ends) in found

    assert named >= 25
