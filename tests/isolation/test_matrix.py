"""A bad row of a matrix is a sender, a column a receiver, a cell that stays bad a link."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hpcverify.isolation.group_tests import GroupOutcome
from hpcverify.isolation.matrix import MatrixReading, find_directions, pair_all, read_matrix
from tests.isolation.clusters import Walk, name_nodes, walk

NODES = name_nodes(16)
Slow = Callable[[str, str], bool]


def measure(
    slow: Slow,
    *,
    switches: dict[str, str] | None = None,
    bad: tuple[str, ...] = (),
    flaky: float = 0.0,
    seed: int = 0,
) -> tuple[MatrixReading, Walk]:
    plan = find_directions(NODES, switches or {}, bad=bad)
    random = Random(f"matrix {seed}")
    return walk(plan, lambda test, _, __: slow(*test.members), random, flaky)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 15, 16])
def test_each_node_meets_each_other_one_once_in_disjoint_pairs(count: int) -> None:
    nodes = name_nodes(count)

    rounds = pair_all(nodes)

    assert len(rounds) == count - 1 + count % 2
    assert all(len({*sum(pairs, ())}) == 2 * len(pairs) for pairs in rounds)
    met = {frozenset(pair) for pairs in rounds for pair in pairs}
    assert len(met) == sum(map(len, rounds)) == count * (count - 1) // 2


def test_sixteen_nodes_take_fifteen_rounds() -> None:
    found, took = measure(lambda *_: False)
    assert found == MatrixReading()
    assert took == Walk(tests=240, rounds=15)


def test_a_bad_row_is_a_sender() -> None:
    found, took = measure(lambda sender, _: sender == "n00005")
    assert found == MatrixReading(senders=("n00005",))
    assert took.rounds <= 16


def test_a_bad_column_is_a_receiver() -> None:
    found, _ = measure(lambda _, receiver: receiver == "n00005")
    assert found == MatrixReading(receivers=("n00005",))


def test_a_node_that_does_both_slowly_is_in_both_and_nobody_else_in_any() -> None:
    """Half of the nodes: to a good one, most senders are slow, and it is not to blame."""
    bad = set(NODES[:8])
    found, _ = measure(lambda *pair: not bad.isdisjoint(pair))
    assert (set(found.senders), set(found.receivers), found.links) == (bad, bad, ())


def test_a_bad_cell_is_a_link_in_its_direction() -> None:
    found, took = measure(lambda *pair: pair == ("n00002", "n00009"))
    assert found == MatrixReading(links=(("n00002", "n00009"),))
    assert took.rounds == 18, "it was repeated three times"


def test_a_bad_switch_is_one_finding() -> None:
    """Its nodes are slow to all others in both directions, and not among themselves."""
    switches = {node: f"s{number // 4}" for number, node in enumerate(NODES)}

    found, _ = measure(
        lambda one, other: (
            switches[one] != switches[other] and "s1" in {switches[one], switches[other]}
        ),
        switches=switches,
        bad=tuple(NODES[4:8]),
    )

    assert found == MatrixReading(switches=("s1",))


@pytest.mark.parametrize("others", [NODES[8:10], NODES[8:16]])
def test_two_bad_nodes_at_a_switch_are_two_bad_nodes(others: list[str]) -> None:
    """And no switch: not theirs, since they fail with each other, nor that of those they meet."""
    bad = ("n00004", "n00005")
    switches = {node: f"s{number // 4}" for number, node in enumerate(NODES)}
    plan = find_directions([*bad, *others], switches, bad=bad)

    found, _ = walk(plan, lambda test, _, __: not set(bad).isdisjoint(test.members), Random(0))

    assert {*found.senders} == {*found.receivers} == {*bad}
    assert (found.switches, found.links) == ((), ())


def test_a_bad_node_has_no_slow_link_whatever_fails_with_it() -> None:
    found, took = measure(lambda *pair: pair == ("n00002", "n00009"), bad=("n00002",))
    assert found == MatrixReading()
    assert took.rounds == 15


def test_cells_that_fail_by_chance_are_no_links() -> None:
    """Of 100 matrices with 2 % of the tests wrong, none names a node, and at most one a link."""
    named = 0
    for seed in range(100):
        found, _ = measure(lambda *_: False, flaky=0.02, seed=seed)
        assert not (found.senders)
        assert not (found.receivers)
        named += bool(found.links)

    assert named <= 1


def test_a_cell_that_passes_when_it_is_repeated_is_flaky() -> None:
    plan = find_directions(["a", "b", "c"], {})
    tests, failed = next(plan), False
    try:
        while True:
            outcomes = []
            for test in tests:
                is_first = test.members == ("a", "b") and not failed
                failed |= is_first
                outcomes.append(GroupOutcome.FAILED if is_first else GroupOutcome.PASSED)
            tests = plan.send(outcomes)
    except StopIteration as end:
        found = end.value

    assert found == MatrixReading(flaky=(("a", "b"),))


def test_what_did_not_come_to_its_end_is_no_failure() -> None:
    assert read_matrix({("a", "b"): False, ("b", "a"): False}, {}) == MatrixReading()


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_without_a_further_round_a_cell_is_not_confirmed(names: str) -> None:
    """Whether all were tested once, or not even that."""
    plan = find_directions([*names], {})
    first, *_ = next(plan)
    sender, receiver = first.members
    plan.send([GroupOutcome.FAILED, GroupOutcome.PASSED])

    with pytest.raises(StopIteration) as end:
        plan.send(None)

    assert end.value.value == MatrixReading(flaky=((sender, receiver),))


def test_who_is_gone_is_left_out() -> None:
    plan = find_directions(["a", "b", "c"], {}, {"b"})

    seen = set()
    try:
        tests = next(plan)
        while True:
            seen |= {test.members for test in tests}
            tests = plan.send([GroupOutcome.PASSED] * len(tests))
    except StopIteration:
        pass

    assert seen == {("a", "c"), ("c", "a")}
