"""What of the outages of a fleet counts."""

from __future__ import annotations

from math import inf

from hpcverify.selection.outages import FleetNode, PastOutage, make_history

FLEET = [FleetNode(f"n{i}") for i in range(100)]


def test_outages_come_in_the_order_of_their_beginning() -> None:
    history = make_history(FLEET, [PastOutage("n2", 5, 6), PastOutage("n1", 1, 2)])

    assert [outage.node for outage in history.outages] == ["n1", "n2"]


def test_outages_of_a_node_that_overlap_are_one() -> None:
    tickets = [
        PastOutage("n1", 1, 5),
        PastOutage("n1", 2, 3),
        PastOutage("n1", 5, 7),
        PastOutage("n1", 9),
    ]

    assert make_history(FLEET, tickets).outages == (
        PastOutage("n1", 1, 7),
        PastOutage("n1", 9, inf),
    )


def test_an_outage_of_a_node_that_is_gone_does_not_count() -> None:
    assert make_history(FLEET, [PastOutage("old", 1, 5)]).outages == ()


def test_nodes_that_go_out_all_at_once_are_no_outages_of_theirs() -> None:
    maintenance = [PastOutage(f"n{i}", 3 + i / 1e4, 4) for i in range(50)]
    real = PastOutage("n7", 1, 2)

    assert make_history(FLEET, [real, *maintenance]).outages == (real,)


def test_a_few_nodes_that_go_out_together_count() -> None:
    rack = [PastOutage(f"n{i}", 3, 4) for i in range(10)]

    assert len(make_history(FLEET, rack).outages) == 10
