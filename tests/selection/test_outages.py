"""What of the outages of a fleet counts."""

from __future__ import annotations

from math import inf

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetNode, make_history

FLEET = [FleetNode(f"n{i}") for i in range(100)]


def test_outages_come_in_the_order_of_their_beginning() -> None:
    history = make_history(FLEET, [Outage("n2", 5, 6), Outage("n1", 1, 2)])
    assert [outage.node for outage in history.outages] == ["n1", "n2"]


def test_outages_of_a_node_that_overlap_are_one() -> None:
    tickets = [Outage("n1", 1, 5), Outage("n1", 2, 3), Outage("n1", 5, 7), Outage("n1", 9)]

    assert make_history(FLEET, tickets).outages == (Outage("n1", 1, 7), Outage("n1", 9, inf))


def test_an_outage_of_a_node_that_is_gone_does_not_count() -> None:
    assert make_history(FLEET, [Outage("old", 1, 5)]).outages == ()


def test_nodes_that_go_out_all_at_once_are_no_outages_of_theirs() -> None:
    maintenance = [Outage(f"n{i}", 3 + i / 1e4, 4) for i in range(50)]
    real = Outage("n7", 1, 2)
    assert make_history(FLEET, [real, *maintenance]).outages == (real,)


def test_a_few_nodes_that_go_out_together_count() -> None:
    rack = [Outage(f"n{i}", 3, 4) for i in range(10)]
    assert len(make_history(FLEET, rack).outages) == 10
