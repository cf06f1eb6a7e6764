"""What a search found is tested once more, and taken back if it passes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hpcverify.isolation.confirm import CONFIRM_CONTROLS, confirm
from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose, GroupTest, Members, Round
from hpcverify.isolation.search import SearchResult
from hpcverify.isolation.search_state import MAX_ATTEMPTS
from tests.isolation.clusters import check_round, contains_any, contains_pair, name_nodes, walk

NODES = name_nodes(12)
ZONES = {node: f"s{number // 4}" for number, node in enumerate(NODES)}
A, B, C = NODES[:3]
EVERYTHING = SearchResult(bad=(A,), links=((B, C),))


def check(
    found: SearchResult,
    outcome_of: Callable[[GroupTest], GroupOutcome],
    *,
    rounds: int = 100,
    gone: frozenset[str] = frozenset(),
    zones: dict[str, str] | None = None,
    nodes: list[str] = NODES,
) -> tuple[SearchResult, list[Round]]:
    """Confirm what was *found*, by at most so many *rounds*."""
    plan = confirm(found, nodes, zones or {}, Random(1), gone)
    asked: list[Round] = []
    try:
        tests = next(plan)
        while True:
            check_round(tests)
            asked.append(tests)
            over = len(asked) > rounds
            tests = plan.send(None if over else [outcome_of(test) for test in tests])
    except StopIteration as end:
        return end.value, asked


@pytest.mark.parametrize("gone", [A, C])
def test_who_is_gone_by_then_is_untested(gone: str) -> None:
    bad = contains_any({A})
    link = contains_pair((B, C))

    found, _ = check(
        EVERYTHING,
        lambda test: (
            GroupOutcome.FAILED
            if bad(test, 0, Random()) or link(test, 0, Random())
            else GroupOutcome.PASSED
        ),
        gone=frozenset({gone}),
    )

    left = {
        A: SearchResult(links=((B, C),), untested=(A,)),
        C: SearchResult(bad=(A,), untested=(B, C)),
    }
    assert found == left[gone]


def test_what_fails_again_is_confirmed_in_four_rounds() -> None:
    fails = contains_any({A})
    link = contains_pair((B, C))

    found, took = walk(
        confirm(EVERYTHING, NODES, {}, Random(1), frozenset()),
        lambda test, number, random: fails(test, number, random) or link(test, number, random),
        Random(2),
    )

    assert found == EVERYTHING
    assert took.rounds == 4


def test_what_passes_twice_is_intermittent() -> None:
    found, took = walk(
        confirm(EVERYTHING, NODES, {}, Random(1), frozenset()), lambda *_: False, Random(2)
    )
    assert found == SearchResult(intermittent=((A,), (B, C)))
    assert took.rounds == 2


def test_without_a_further_round_nothing_is_confirmed_and_nothing_is_said_to_have_passed() -> None:
    found, _ = check(EVERYTHING, lambda _: GroupOutcome.FAILED, rounds=3)
    assert found == SearchResult(untested=(A, B, C))


def test_tests_that_come_to_no_end_confirm_nothing() -> None:
    found, asked = check(EVERYTHING, lambda _: GroupOutcome.UNKNOWN)
    assert found == SearchResult(untested=(A, B, C))
    assert len(asked) == 5


def test_a_member_has_another_partner_each_time_and_controls_beside_it() -> None:
    _, asked = check(SearchResult(bad=(A,)), lambda _: GroupOutcome.FAILED)
    partners = [test.members[1] for tests in asked for test in tests if A in test.members]
    controls = [sum(test.purpose is GroupPurpose.CONTROL for test in tests) for tests in asked]
    assert len(set(partners)) >= 2
    assert controls == [CONFIRM_CONTROLS] * 4


def test_links_that_share_an_end_are_confirmed_in_turn() -> None:
    links: tuple[Members, ...] = ((A, B), (A, C))
    outcomes = (GroupOutcome.PASSED, GroupOutcome.FAILED)
    found, asked = check(SearchResult(links=links), lambda test: outcomes[test.members in links])
    assert found.links == links
    assert len(asked) == 8


def test_partners_are_of_the_same_zone_so_that_a_bad_switch_is_not_a_bad_node() -> None:
    """All that leaves s0 fails; within it nothing does."""

    def judge(test: GroupTest) -> GroupOutcome:
        at = {ZONES[node] for node in test.members}
        return GroupOutcome.FAILED if len(at) > 1 and "s0" in at else GroupOutcome.PASSED

    found, _ = check(SearchResult(bad=(A,)), judge, zones=ZONES)

    assert found == SearchResult(intermittent=((A,),))


VAGUE = tuple((node,) for node in NODES[1:4])
"""All neighbours of A."""


def test_a_node_whose_neighbours_are_all_vague_is_confirmed_with_others_from_afar() -> None:
    bad = contains_any({A})

    found, asked = check(
        SearchResult(bad=(A,), intermittent=VAGUE),
        lambda test: GroupOutcome.FAILED if bad(test, 0, Random()) else GroupOutcome.PASSED,
        zones=ZONES,
    )

    assert found == SearchResult(bad=(A,), intermittent=VAGUE)
    assert len(asked) == 4
    for trial, witness, *_ in asked:
        assert trial.members[0] == A
        assert witness.purpose is GroupPurpose.CONTROL
        assert [ZONES[node] for node in witness.members] == [ZONES[n] for n in trial.members]
        assert witness.members[0] != A


def test_a_node_is_not_blamed_from_afar_while_its_neighbours_fail_from_there_too() -> None:
    """All that leaves s0 fails: it may be the switch."""
    found, asked = check(
        SearchResult(bad=(A,), intermittent=VAGUE),
        lambda test: (
            GroupOutcome.FAILED
            if "s0" in {ZONES[node] for node in test.members}
            else GroupOutcome.PASSED
        ),
        zones=ZONES,
    )

    assert (found.bad, found.untested) == ((), (A,))
    assert len(asked) == MAX_ATTEMPTS


def test_with_one_neighbour_a_node_meets_it_once_and_then_others_from_afar() -> None:
    """A slow link between the two would fail each of their tests."""
    zones = {node: f"s{number // 2}" for number, node in enumerate(NODES)}
    link = contains_pair((A, B))

    _, asked = check(SearchResult(bad=(A,)), lambda _: GroupOutcome.PASSED, zones=zones)
    found, _ = check(
        SearchResult(bad=(A,)),
        lambda test: GroupOutcome.FAILED if link(test, 0, Random()) else GroupOutcome.PASSED,
        zones=zones,
    )

    assert [zones[tests[0].members[1]] == "s0" for tests in asked] == [True, False]
    assert found == SearchResult(intermittent=((A,),))


def test_a_node_that_fails_with_one_neighbour_alone_is_not_blamed() -> None:
    """B is bad, and nobody knows it: it spoils each test that could tell."""
    zones = {node: f"s{number // 2}" for number, node in enumerate(NODES)}
    bad = contains_any({B})

    found, _ = check(
        SearchResult(bad=(A,)),
        lambda test: GroupOutcome.FAILED if bad(test, 0, Random()) else GroupOutcome.PASSED,
        zones=zones,
    )

    assert A not in found.bad


def test_any_member_stands_for_its_zone() -> None:
    fails = contains_any(set(NODES[:4]))

    def judge(test: GroupTest) -> GroupOutcome:
        return GroupOutcome.FAILED if fails(test, 0, Random()) else GroupOutcome.PASSED

    found, _ = check(SearchResult(bad_zones=("s0",)), judge, zones=ZONES)
    cleared, _ = check(SearchResult(bad_zones=("s0",)), lambda _: GroupOutcome.PASSED, zones=ZONES)

    assert found == SearchResult(bad_zones=("s0",))
    assert cleared == SearchResult(intermittent=(tuple(NODES[:4]),))


def test_with_nobody_for_a_control_nothing_is_confirmed() -> None:
    found, asked = check(SearchResult(bad=(A,)), lambda _: GroupOutcome.FAILED, nodes=NODES[:3])
    assert (found, asked) == (SearchResult(untested=(A,)), [])
