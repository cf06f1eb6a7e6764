"""A node that is slow with half of its partners is not one that fails now and then."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.group_tests import GroupTest
from hpcverify.isolation.stages import Isolation, isolate
from tests.isolation.clusters import Failing, Walk, is_slow_with, name_nodes, walk
from tests.isolation.noisy import list_named

NODES = name_nodes(64)
SWITCHES = {node: f"s{number // 16}" for number, node in enumerate(NODES)}


def run(
    fails: Failing, seed: int, *, flaky: float = 0.0, switches: dict[str, str] | None = None
) -> tuple[Isolation, Walk]:
    plan = isolate(NODES, switches or {}, Random(seed), inside=False)
    return walk(plan, fails, Random(f"partly {seed}"), flaky)


@pytest.mark.parametrize("switches", [{}, SWITCHES])
def test_a_node_that_is_slow_with_half_of_its_partners_is_told_so(switches: dict[str, str]) -> None:
    told = 0
    for seed in range(40):
        random = Random(f"half {seed}")
        bad = random.choice(NODES)
        partners = set(random.sample([node for node in NODES if node != bad], 32))

        found, _ = run(is_slow_with(bad, partners), seed, switches=switches)

        assert {one.node for one in found.partly} <= {bad}
        assert set(found.nodes.bad) <= {bad}
        for one in found.partly:
            assert set(one.slow_with) <= partners
            assert partners.isdisjoint(one.well_with)
            assert len(one.slow_with) == 3
        told += bad in {*(one.node for one in found.partly), *found.nodes.bad}

    assert told >= 30


@pytest.mark.parametrize("flaky", [0.02, 0.05, 0.1])
def test_no_healthy_node_is_partly_slow_where_tests_fail_by_chance(flaky: float) -> None:
    for seed in range(150):
        found, _ = run(lambda _test, _round, _random: False, seed, flaky=flaky)
        assert found.partly == ()
        assert not list_named(found)


def test_two_nodes_that_are_slow_with_half_of_the_others_are_no_fault_of_those() -> None:
    told = 0
    for seed in range(40):
        random = Random(f"two {seed}")
        bad = random.sample(NODES, 2)
        halves = [set(random.sample([n for n in NODES if n != one], 32)) for one in bad]
        first, second = (is_slow_with(one, half) for one, half in zip(bad, halves, strict=True))

        def fails(test: GroupTest, number: int, random: Random) -> bool:
            return first(test, number, random) or second(test, number, random)  # noqa: B023

        found, _ = run(fails, seed)

        assert {one.node for one in found.partly} <= {*bad}
        assert set(found.nodes.bad) <= {*bad}
        told += len({*(one.node for one in found.partly), *found.nodes.bad})

    assert told >= 50


def test_a_node_that_is_slow_with_a_few_gets_no_switch_named() -> None:
    """Only a test with many others meets one of those, and looks like its switch."""
    for seed in range(60):
        random = Random(f"few {seed}")
        bad = random.choice(NODES)
        partners = set(random.sample([node for node in NODES if node != bad], 12))

        found, _ = run(is_slow_with(bad, partners), seed, switches=SWITCHES)

        assert found.switches.bad == (), seed


def test_a_switch_that_spoils_what_all_its_nodes_do_with_others_stays_bad() -> None:
    for seed in range(20):
        switch = Random(f"uplink {seed}").choice(sorted(set(SWITCHES.values())))

        def fails(test: GroupTest, _round: int, _random: Random) -> bool:
            at = {SWITCHES[node] for node in test.members}
            return switch in at and len(at) > 1  # noqa: B023

        found, _ = run(fails, seed, switches=SWITCHES)

        assert found.switches.bad == (switch,), seed
