"""What is read of a node, and that nothing is read ahead of time."""

from __future__ import annotations

from math import log

import pytest

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetHistory, FleetNode, make_history
from hpcverify.selection.places import locate_nodes
from hpcverify.selection.traits import PRIOR_WEIGHTS, FleetState

NAMES = [f"r{i // 10}n{i % 10}" for i in range(100)]


def make_fleet(*outages: Outage) -> FleetHistory:
    """Make a fleet of ten racks with ten nodes each."""
    return make_history(locate_nodes(dict.fromkeys(NAMES, 0.0)), outages)


def read(history: FleetHistory, name: str, now: float) -> dict[str, float]:
    """Read the traits of a node by what began before *now*."""
    state = FleetState(history)
    for outage in history.outages:
        if outage.began < now:
            state.advance(outage)
    return dict(zip(PRIOR_WEIGHTS, state.read_traits(history.nodes[name], now), strict=True))


def test_a_node_of_a_fleet_without_a_past_has_none() -> None:
    traits = read(make_fleet(), "r0n0", 100)
    assert traits.pop("age") > 0
    assert set(traits.values()) == {0.0}


def test_a_return_fades_in_days_and_its_outage_in_weeks() -> None:
    history = make_fleet(Outage("r0n0", 9, 10))
    soon, later, late = (read(history, "r0n0", day) for day in (10, 17, 200))

    assert soon["returned"] == pytest.approx(log(11))
    assert soon["recent"] == pytest.approx(log(3))
    assert later["returned"] < 0.3
    assert later["recent"] > 0.9
    assert late["recent"] < 0.01
    assert late["age"] > later["age"]


def test_a_rack_whose_nodes_fail_is_known_by_its_rate_and_its_neighbours() -> None:
    history = make_fleet(*(Outage(f"r0n{i}", 50 + i / 10, 51 + i / 10) for i in range(1, 9)))

    there, elsewhere = (read(history, name, 52) for name in ("r0n0", "r5n0"))
    assert there["place"] > 0.4
    assert elsewhere["place"] < 0
    assert there["neighbours"] > 1
    assert elsewhere["neighbours"] < 0
    assert read(history, "r0n0", 120)["neighbours"] < 0.01


def test_two_months_of_outages_of_a_rack_count_more_than_twice_as_many_of_last_year() -> None:
    """A rack whose parts were replaced is no longer the one that fails."""
    before = [Outage(f"r0n{i % 10}", 10.0 + 2 * i, 11.0 + 2 * i) for i in range(40)]
    since = [Outage(f"r5n{i % 10}", 240.0 + 3 * i, 241.0 + 3 * i) for i in range(20)]
    history = make_fleet(*before, *since)

    old, new = (read(history, name, 301)["place"] for name in ("r0n0", "r5n0"))
    assert new > 0.4
    assert new > 2 * old


def test_its_own_outage_does_not_make_a_node_its_neighbour() -> None:
    history = make_fleet(Outage("r0n0", 50, 51))
    assert read(history, "r0n0", 52)["neighbours"] < 0 < read(history, "r0n1", 52)["neighbours"]


def test_a_position_that_fails_in_all_racks_is_known() -> None:
    history = make_fleet(*(Outage(f"r{i}n3", 10.0 + i, 11.0 + i) for i in range(9)))
    assert read(history, "r9n3", 30)["position"] > 0.4 > read(history, "r9n4", 30)["position"]


def test_nothing_is_known_before_it_happens() -> None:
    past = [Outage("r0n0", 9, 10), Outage("r0n1", 20, 30)]
    future = [Outage("r0n0", 60, 61), Outage("r3n3", 70, 71)]
    for name in NAMES[:12]:
        known = read(make_fleet(*past), name, 50)
        assert read(make_fleet(*past, *future), name, 50) == known


def test_a_node_is_in_service_from_when_it_joined_but_for_its_outages() -> None:
    node = FleetNode("n1", since=5)
    history = make_history([node], [Outage("n1", 10, 12)])
    state = FleetState(history)
    state.advance(history.outages[0])

    assert [state.is_in_service(node, day) for day in (4, 10, 11.9, 12)] == [
        False,
        False,
        False,
        True,
    ]
