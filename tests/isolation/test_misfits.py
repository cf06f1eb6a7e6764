"""Nodes of another version are not bad: they pass with each other."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.stages import Isolation, isolate
from tests.isolation.clusters import Failing, contains_any, name_nodes, walk
from tests.isolation.noisy import list_named


def run(fails: Failing, count: int, seed: int, flaky: float = 0.0) -> Isolation:
    plan = isolate(name_nodes(count), {}, Random(seed), inside=False)
    return walk(plan, fails, Random(f"misfits {seed}"), flaky)[0]


def does_not_fit(others: set[str]) -> Failing:
    """Fail each test of *others* with those that are not."""
    return lambda test, _round, _random: (
        not others.isdisjoint(test.members) and not others.issuperset(test.members)
    )


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_few_nodes_of_another_version_are_not_accused(count: int) -> None:
    for seed in range(20):
        others = set(Random(f"others {seed}").sample(name_nodes(232), count))
        found = run(does_not_fit(others), 232, seed)
        assert set(found.misfits) == others, seed
        assert not list_named(found)


@pytest.mark.parametrize("flaky", [0.0, 0.02])
def test_bad_nodes_fail_with_each_other_and_stay_bad(flaky: float) -> None:
    found = 0
    for seed in range(20):
        bad = set(Random(f"bad {seed}").sample(name_nodes(232), 5))

        answer = run(contains_any(bad), 232, seed, flaky)

        assert answer.misfits == ()
        assert list_named(answer) <= bad
        found += len(answer.nodes.bad)

    assert found >= 95


def test_a_bad_node_among_those_of_another_version_is_bad() -> None:
    nodes = name_nodes(64)
    bad, misfit = contains_any({nodes[0]}), does_not_fit({*nodes[1:4]})
    found = run(lambda t, n, r: bad(t, n, r) or misfit(t, n, r), 64, 1)
    assert (found.nodes.bad, set(found.misfits)) == ((nodes[0],), {*nodes[1:4]})


@pytest.mark.parametrize("seed", [20, 53])
def test_no_node_is_in_two_tests_of_a_round_whatever_is_found(seed: int) -> None:
    """Of two versions by halves, one node may be found bad and at the end of a link."""
    nodes = name_nodes(24)
    switches = {node: f"s{number // 6}" for number, node in enumerate(nodes)}
    others = set(Random(f"v{seed}").sample(nodes, 12))
    plan = isolate(nodes, switches, Random(seed), inside=False)

    _, took = walk(plan, does_not_fit(others), Random(1))  # it checks each round

    assert took.rounds > 1
