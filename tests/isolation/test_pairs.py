"""Pairs that pass clear their nodes; one that fails accuses nobody until it is isolated."""

from __future__ import annotations

from random import Random

import pytest

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.isolation.search import SearchResult
from hpcverify.isolation.stages import Isolation, try_pairs
from tests.isolation.clusters import Failing, Walk, contains_any, contains_pair, name_nodes, walk

NODES = name_nodes(40)
PAIRS = [(NODES[i], NODES[i + 1]) for i in range(0, 32, 2)]
SPARE = NODES[32:]


def sweep(
    fails: Failing, pairs: list[tuple[str, str]] = PAIRS, spare: list[str] = SPARE, seed: int = 1
) -> tuple[Isolation, Walk]:
    """Try pairs in a simulated cluster; no node fails alone."""

    def between(test: GroupTest, number: int, random: Random) -> bool:
        return test.purpose is not GroupPurpose.INSIDE and fails(test, number, random)

    return walk(try_pairs(pairs, spare, {}, Random(seed)), between, Random(seed))


def test_pairs_that_pass_take_one_round() -> None:
    found, took = sweep(contains_any(set()))
    assert found == Isolation()
    assert (took.tests, took.rounds) == (len(PAIRS), 1)


def test_of_a_pair_that_fails_the_bad_node_is_named_and_the_other_cleared() -> None:
    for seed in range(50):
        bad = Random(seed).choice(NODES[:32])
        found, took = sweep(contains_any({bad}), seed=seed)

        assert found.nodes.bad == (bad,)
        assert (found.nodes.links, found.nodes.untested) == ((), ())
        assert took.tests < 60


def test_a_single_pair_finds_its_partners_among_those_that_are_idle() -> None:
    found, _ = sweep(contains_any({NODES[1]}), PAIRS[:1])
    assert found.nodes.bad == (NODES[1],)


def test_a_link_between_good_nodes_accuses_neither() -> None:
    found, _ = sweep(contains_pair(PAIRS[3]))
    assert (found.nodes.bad, [set(link) for link in found.nodes.links]) == ((), [set(PAIRS[3])])


def test_a_pair_that_failed_once_accuses_nobody() -> None:
    found, _ = sweep(lambda test, number, _random: number == 1 and NODES[0] in test.members)
    assert (found.nodes.bad, found.nodes.links) == ((), ())


def test_of_two_nodes_without_any_partner_neither_is_accused() -> None:
    found, _ = sweep(contains_any({NODES[1]}), PAIRS[:1], [])
    assert found.nodes.bad == ()


def test_a_pair_that_did_not_end_is_untested() -> None:
    plan = try_pairs(PAIRS[:2], SPARE, {}, Random(1))
    next(plan)
    with pytest.raises(StopIteration) as ended:
        plan.send([GroupOutcome.PASSED, GroupOutcome.UNKNOWN])
    assert ended.value.value == Isolation(nodes=SearchResult(untested=PAIRS[1]))
