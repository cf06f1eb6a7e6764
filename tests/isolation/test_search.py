"""Bad members are found with few tests, and nobody else is faulty."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.isolation.search import MAX_ATTEMPTS, make_groups, search
from tests.isolation.clusters import contains_any, contains_pair, look, name_nodes, walk

NODES = name_nodes(232)
"""As many as in the largest cluster of which the number of such tests is published."""
RACK_SIZE = 16
RACKS = {node: f"rack{number // RACK_SIZE}" for number, node in enumerate(NODES)}
BY_RACK = [tuple(n for n in NODES if RACKS[n] == rack) for rack in dict.fromkeys(RACKS.values())]


def choose(seed: int, count: int, nodes: list[str] = NODES) -> set[str]:
    return set(Random(f"bad {seed}").sample(nodes, count))


def test_five_bad_nodes_of_232_take_at_most_125_tests_and_10_rounds() -> None:
    """The median of 50 clusters; `bench/isolate.py` has it for 200."""
    walks = []
    for seed in range(50):
        bad = choose(seed, 5)
        found, took = look(NODES, contains_any(bad), str(seed))
        assert set(found.bad) == bad
        assert not any((found.links, found.together, found.intermittent, found.untested))
        walks.append(took)

    assert median(took.tests for took in walks) <= 125
    assert median(took.rounds for took in walks) <= 10


def test_with_two_percent_of_the_tests_wrong_all_is_found_and_nobody_else_blamed() -> None:
    """In 50 clusters; `bench/isolate.py` has it for 1,000: 990 exactly, one with a good node."""
    exact = faulty = 0
    for seed in range(50):
        bad = choose(seed, 5)
        found, _ = look(NODES, contains_any(bad), str(seed), flaky=0.02)
        exact += set(found.bad) == bad
        faulty += bool({*found.bad} - bad or found.links or found.bad_zones)

    assert exact >= 49
    assert faulty == 0


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 12, 20, 40])
def test_any_number_of_bad_nodes_is_found(count: int) -> None:
    for seed in range(20):
        bad = choose(seed, count)
        found, _ = look(NODES, contains_any(bad), str(seed))
        assert set(found.bad) == bad
        assert not found.is_widespread


def test_a_healthy_cluster_takes_two_rounds() -> None:
    found, took = look(NODES, contains_any(set()), "healthy")
    assert found.bad == ()
    assert took.rounds == 2


@pytest.mark.parametrize("size", [4, 5, 6, 7, 8, 12])
def test_one_bad_node_of_a_small_cluster_is_found(size: int) -> None:
    nodes = name_nodes(size)
    for seed in range(20):
        bad = choose(seed, 1, nodes)
        found, _ = look(nodes, contains_any(bad), str(seed))
        assert set(found.bad) == bad


@pytest.mark.parametrize("size", [2, 3])
def test_without_partners_that_pass_nobody_is_blamed(size: int) -> None:
    nodes = name_nodes(size)
    found, _ = look(nodes, contains_any({nodes[0]}), "small")
    assert not {*found.bad} - {nodes[0]}
    assert nodes[0] in {*found.bad, *found.untested}


def test_twenty_bad_nodes_of_ten_thousand_are_found() -> None:
    nodes = name_nodes(10_000)
    bad = choose(7, 20, nodes)
    found, took = look(nodes, contains_any(bad), "large")
    assert set(found.bad) == bad
    assert took.tests < 380


def test_a_bad_link_is_no_bad_node() -> None:
    for seed in range(50):
        one, other = sorted(choose(seed, 2))
        found, _ = look(NODES, contains_pair((one, other)), str(seed))
        assert not found.bad
        assert [sorted(link) for link in found.links] == [[one, other]]


def test_two_bad_links_are_both_found() -> None:
    for seed in range(50):
        a, b, c, d = sorted(choose(seed, 4))
        found, _ = look(NODES, contains_pair((a, b), (c, d)), str(seed))
        assert not found.bad
        assert sorted(sorted(link) for link in found.links) == [[a, b], [c, d]]


def test_what_fails_only_as_a_whole_is_nobodys_fault() -> None:
    found, _ = look(NODES, lambda test, _, __: len(test.members) >= 20, "whole")
    assert not any((found.bad, found.links, found.bad_zones))
    assert found.together


@pytest.mark.parametrize("share", [0.5, 0.4, 0.2])
def test_two_versions_that_do_not_fit_are_nobodys_fault(share: float) -> None:
    for seed in range(20):
        new = choose(seed, int(share * len(NODES)))

        def fails(test: GroupTest, _round: int, _random: Random, new: set[str] = new) -> bool:
            return 0 < len(new.intersection(test.members)) < len(test.members)

        found, _ = look(NODES, fails, str(seed))

        assert not any((found.bad, found.links))
        assert found.is_widespread


def test_traffic_of_others_that_comes_and_goes_blames_nobody() -> None:
    """In a third of the rounds, three of five tests fail for it; three nodes are bad as well."""
    faulty = 0
    for seed in range(100):
        bad = choose(seed, 3)
        storms = Random(f"storm {seed}")
        rounds = [storms.random() < 0.33 for _ in range(200)]

        def fails(
            test: GroupTest,
            number: int,
            random: Random,
            bad: set[str] = bad,
            rounds: list[bool] = rounds,
        ) -> bool:
            return not bad.isdisjoint(test.members) or (rounds[number] and random.random() < 0.6)

        found, _ = look(NODES, fails, str(seed))
        faulty += bool({*found.bad} - bad or found.bad_zones)

    assert faulty <= 1


def test_a_node_that_fails_now_and_then_is_told_or_blamed_and_nobody_else() -> None:
    for seed in range(50):
        bad = choose(seed, 1)

        def fails(test: GroupTest, _: int, random: Random, bad: set[str] = bad) -> bool:
            return not bad.isdisjoint(test.members) and random.random() < 0.5

        found, _ = look(NODES, fails, str(seed))

        assert {*found.bad} <= bad
        assert all(not bad.isdisjoint(link) for link in found.links)


def test_a_dead_switch_is_one_finding() -> None:
    for seed in range(20):
        rack = Random(f"rack {seed}").choice(sorted(set(RACKS.values())))
        others = {node for node in choose(seed, 3) if RACKS[node] != rack}
        bad = {node for node in NODES if RACKS[node] == rack}

        found, _ = look(NODES, contains_any(bad | others), str(seed), groups=BY_RACK, zones=RACKS)

        assert (found.bad_zones, set(found.bad)) == ((rack,), others)


def test_partners_are_of_the_same_switch() -> None:
    """So that a slow link to other switches blames no node."""
    bad = {NODES[20]}

    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        if test.purpose is GroupPurpose.PAIR:
            assert len({RACKS[member] for member in test.members}) == 1
        return not bad.isdisjoint(test.members)

    found, _ = look(NODES, fails, "near", groups=BY_RACK, zones=RACKS)

    assert set(found.bad) == bad


def test_each_partner_of_a_suspect_is_another_one() -> None:
    met: dict[str, list[str]] = {}
    bad = choose(3, 5)

    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        if test.purpose is GroupPurpose.PAIR:
            suspect, partner = test.members
            met.setdefault(suspect, []).append(partner)
        return not bad.isdisjoint(test.members)

    look(NODES, fails, "partners")

    assert all(len(set(met[node])) == len(met[node]) >= 2 for node in bad)


def test_a_test_that_does_not_come_to_its_end_is_planned_again() -> None:
    random = Random("unknown")
    plan = search(make_groups(NODES, random), random, {})
    first = next(plan)
    again = plan.send([GroupOutcome.UNKNOWN, *[GroupOutcome.PASSED] * (len(first) - 1)])
    assert [test.members for test in again] == [first[0].members]


def test_what_never_comes_to_its_end_is_untested_and_not_blamed() -> None:
    random = Random("never")
    plan = search([("a", "b"), ("c", "d")], random, {})
    todo = next(plan)
    rounds = 1
    try:
        while True:
            todo = plan.send([GroupOutcome.UNKNOWN] * len(todo))
            rounds += 1
    except StopIteration as end:
        found = end.value

    assert rounds <= 20 * MAX_ATTEMPTS
    assert (found.bad, set(found.untested)) == ((), {"a", "b", "c", "d"})


def test_without_a_further_round_what_is_known_is_told() -> None:
    random = Random("budget")
    plan = search(make_groups(NODES, random), random, {})
    first = next(plan)
    plan.send([GroupOutcome.FAILED, *[GroupOutcome.PASSED] * (len(first) - 1)])

    with pytest.raises(StopIteration) as end:
        plan.send(None)

    assert end.value.value.bad == ()
    assert set(first[0].members) <= set(end.value.value.untested)


def test_with_few_partners_a_suspect_meets_them_again_until_it_is_judged() -> None:
    """Six nodes at three switches; of tests with another partner each time, 80 of 1,000 ended."""
    nodes = name_nodes(6)
    zones = {node: f"s{number // 2}" for number, node in enumerate(nodes)}
    groups = [tuple(nodes[at : at + 2]) for at in (0, 2, 4)]
    bad = contains_any({nodes[0]})
    untested = 0
    for seed in range(300):
        found, _ = look(nodes, bad, str(seed), flaky=0.05, groups=groups, zones=zones)
        untested += bool(found.untested)

    assert untested <= 3


def test_the_same_seed_and_outcomes_give_the_same_rounds() -> None:
    """So a search that was killed goes on where it was."""
    bad = choose(11, 5)
    seen: list[list[GroupTest]] = [[], []]
    for tests in seen:

        def fails(
            test: GroupTest, _round: int, _random: Random, tests: list[GroupTest] = tests
        ) -> bool:
            tests.append(test)
            return not bad.isdisjoint(test.members)

        random = Random("again")
        walk(search(make_groups(NODES, random), random, {}), fails, Random(1))

    assert seen[0] == seen[1]
