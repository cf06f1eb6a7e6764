"""Each node alone, then groups, then switches, then directions."""

from __future__ import annotations

from random import Random
from statistics import median

import pytest

from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest
from hpcverify.isolation.search import SearchResult
from hpcverify.isolation.stages import Isolation, isolate
from tests.isolation.clusters import Failing, Walk, contains_any, contains_pair, name_nodes, walk
from tests.isolation.noisy import list_named

NODES = name_nodes(64)
SWITCHES = {node: f"s{number // 8}" for number, node in enumerate(NODES)}


def run_stages(
    fails: Failing,
    *,
    switches: dict[str, str] | None = None,
    inside: bool = False,
    flaky: float = 0.0,
    seed: int = 0,
) -> tuple[Isolation, Walk]:
    plan = isolate(NODES, switches or {}, Random(seed), inside=inside)
    return walk(plan, fails, Random(f"stages {seed}"), flaky)


def test_what_fails_alone_is_in_no_test_with_others() -> None:
    """So that it accuses no partner."""
    bad, together = "n00007", set[str]()

    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        if test.purpose is not GroupPurpose.INSIDE:
            together.update(test.members)
        return bad in test.members

    found, took = run_stages(fails, inside=True)

    assert found.inside == (bad,)
    assert together == {*NODES} - {bad}
    assert not found.nodes.bad
    assert took.rounds == 4, "two alone, two in groups"


def test_a_node_that_failed_alone_only_once_is_tested_with_others() -> None:
    def fails(test: GroupTest, number: int, _random: Random) -> bool:
        return test.members == ("n00007",) and number == 1

    found, _ = run_stages(fails, inside=True)

    assert found == Isolation()


def test_nodes_of_a_slow_switch_are_well_among_themselves_and_not_to_blame() -> None:
    """All that goes from or to the switch is slow."""

    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        at = {SWITCHES[node] for node in test.members}
        return "s3" in at and len(at) > 1

    for seed in range(20):
        found, _ = run_stages(fails, switches=SWITCHES, seed=seed)

        assert not (found.nodes.bad)
        assert not (found.nodes.links)
        assert not (found.inside)
        assert found.switches.bad == ("s3",)


def test_a_slow_link_between_two_switches_is_theirs() -> None:
    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        return {"s2", "s5"} <= {SWITCHES[node] for node in test.members}

    for seed in range(20):
        found, _ = run_stages(fails, switches=SWITCHES, seed=seed)

        assert not (found.nodes.bad)
        assert not (found.switches.bad)
        assert [sorted(link) for link in found.switches.links] == [["s2", "s5"]]


def test_a_slow_link_within_a_switch_is_not_that_switch() -> None:
    for seed in range(20):
        found, _ = run_stages(contains_pair(("n00000", "n00001")), switches=SWITCHES, seed=seed)
        assert [sorted(link) for link in found.nodes.links] == [["n00000", "n00001"]]
        assert (found.nodes.bad, found.switches) == ((), SearchResult())


def test_two_bad_nodes_at_one_switch_are_not_that_switch() -> None:
    for seed in range(20):
        bad = set(Random(seed).sample(NODES[8:16], 2))
        found, _ = run_stages(contains_any(bad), switches=SWITCHES, seed=seed)
        assert set(found.nodes.bad) == bad
        assert found.switches.bad == ()


@pytest.mark.parametrize("way", ["senders", "receivers"])
def test_a_bad_node_gets_its_direction(way: str) -> None:
    bad = "n00020"

    def fails(test: GroupTest, _round: int, _random: Random) -> bool:
        if test.purpose is GroupPurpose.SEND:
            return test.members[way == "receivers"] == bad
        return bad in test.members

    for seed in range(10):
        found, _ = run_stages(fails, seed=seed)

        assert found.nodes.bad == (bad,)
        expected = {"senders": (), "receivers": (), way: (bad,)}
        assert {name: getattr(found.nodes, name) for name in expected} == expected


def test_nodes_that_are_gone_are_untested_and_in_no_later_test() -> None:
    """Two go in the second round, one of them a suspect; the other bad one is found."""
    bad = {"n00001", "n00030"}
    for seed in range(20):
        gone = set[str]()
        plan = isolate(NODES, SWITCHES, Random(seed), inside=False, gone=gone)
        number = 0
        try:
            tests = next(plan)
            while True:
                number += 1
                assert gone.isdisjoint(node for test in tests for node in test.members)
                if number == 2:
                    gone |= {"n00030", "n00050"}
                here = [set(test.members) - gone for test in tests]
                tests = plan.send(
                    [
                        GroupOutcome.PASSED if bad.isdisjoint(some) else GroupOutcome.FAILED
                        for some in here
                    ]
                )
        except StopIteration as end:
            found = end.value

        assert (found.nodes.bad, set(found.nodes.untested)) == (("n00001",), {"n00030", "n00050"})
        assert not (found.nodes.intermittent)
        assert not (found.nodes.links)
        assert not (found.nodes.together)


def test_with_one_node_at_each_switch_groups_are_drawn_by_lot() -> None:
    alone = {node: f"s-{node}" for node in NODES}
    found, took = run_stages(lambda test, *_: "n00009" in test.members, switches=alone)
    assert found.nodes.bad == ("n00009",)
    assert not found.nodes.untested
    assert took.tests < 120


def test_with_some_tests_wrong_nobody_is_blamed_who_is_not_bad() -> None:
    """In 200 clusters with one bad node, and 2 % of the tests wrong."""
    faulty = missed = 0
    for seed in range(200):
        bad = Random(seed).choice(NODES)
        found, _ = run_stages(contains_any({bad}), flaky=0.02, seed=seed)
        faulty += bool({*found.nodes.bad, *found.inside} - {bad})
        missed += bad not in found.nodes.bad

    assert faulty == 0
    assert missed <= 6


def test_with_two_nodes_at_a_switch_noise_seldom_hides_a_bad_node_and_names_no_other() -> None:
    """Before a node met its partners again, and those of other switches, 421 of 500 were found."""
    nodes = NODES[:6]
    switches = {node: f"s{number // 2}" for number, node in enumerate(nodes)}
    named = 0
    for seed in range(500):
        bad = nodes[seed % len(nodes)]
        plan = isolate(nodes, switches, Random(seed), inside=False)
        found, _ = walk(plan, contains_any({bad}), Random(f"c{seed}"), 0.05)
        assert list_named(found) <= {bad}, seed
        named += found.nodes.bad == (bad,)

    assert named >= 470


@pytest.mark.parametrize(
    ("flaky", "tests", "rounds", "exact"), [(0.0, 130, 11, 20), (0.05, 250, 22, 18)]
)
def test_five_bad_nodes_of_232_are_named_with_few_tests_and_rounds(
    flaky: float, tests: int, rounds: int, exact: int
) -> None:
    """Medians of 20 clusters; `bench/isolate.py` has them for 200."""
    nodes, walks, named = name_nodes(232), list[Walk](), 0
    for seed in range(20):
        bad = set(Random(f"bad {seed}").sample(nodes, 5))
        plan = isolate(nodes, {}, Random(seed), inside=False)
        found, took = walk(plan, contains_any(bad), Random(f"c{seed}"), flaky)
        assert list_named(found) <= bad, seed
        walks.append(took)
        named += list_named(found) == bad

    assert median(took.tests for took in walks) <= tests
    assert median(took.rounds for took in walks) <= rounds
    assert named >= exact


def does_not_fit(others: set[str]) -> Failing:
    """Fail each test of *others* with those that are not."""
    return lambda test, _round, _random: 0 < len(others & {*test.members}) < len(test.members)


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_few_nodes_of_another_version_are_not_named(count: int) -> None:
    nodes = name_nodes(232)
    for seed in range(20):
        others = set(Random(f"others {seed}").sample(nodes, count))
        plan = isolate(nodes, {}, Random(seed), inside=False)
        found, _ = walk(plan, does_not_fit(others), Random(f"misfits {seed}"))
        assert not list_named(found)
        assert {n for group in found.nodes.intermittent for n in group} == others, seed


@pytest.mark.parametrize("seed", [20, 53])
def test_no_node_is_in_two_tests_of_a_round_whatever_is_found(seed: int) -> None:
    """Of two versions by halves, one node may be found bad and at the end of a link."""
    nodes = name_nodes(24)
    switches = {node: f"s{number // 6}" for number, node in enumerate(nodes)}
    others = set(Random(f"v{seed}").sample(nodes, 12))
    plan = isolate(nodes, switches, Random(seed), inside=False)

    _, took = walk(plan, does_not_fit(others), Random(1))  # it checks each round

    assert took.rounds > 1


FOUR_SWITCHES = {node: f"s{number // 16}" for number, node in enumerate(NODES)}


def test_a_node_that_is_slow_with_a_few_gets_no_switch_named() -> None:
    """Only a test with many others meets one of those, and looks like its switch."""
    for seed in range(60):
        random = Random(f"few {seed}")
        bad = random.choice(NODES)
        partners = set(random.sample([node for node in NODES if node != bad], 12))

        def fails(test: GroupTest, _round: int, _random: Random) -> bool:
            return bad in test.members and not partners.isdisjoint(test.members)  # noqa: B023

        found, _ = run_stages(fails, switches=FOUR_SWITCHES, seed=seed)

        assert found.switches.bad == (), seed


def test_a_switch_that_spoils_what_all_its_nodes_do_with_others_stays_bad() -> None:
    for seed in range(20):
        switch = f"s{seed % 4}"

        def fails(test: GroupTest, _round: int, _random: Random) -> bool:
            at = {FOUR_SWITCHES[node] for node in test.members}
            return switch in at and len(at) > 1  # noqa: B023

        found, _ = run_stages(fails, switches=FOUR_SWITCHES, seed=seed)

        assert found.switches.bad == (switch,), seed
