"""What the name of a node tells of its place."""

from __future__ import annotations

import pytest

from hpcverify.selection.places import locate_nodes, read_place


@pytest.mark.parametrize(
    ("name", "places", "positions"),
    [
        ("n17", (), ()),
        ("login", (), ()),
        ("r12n04", ("r12",), ("r*n04",)),
        ("c3-0c2s7n1", ("c3", "c3-0", "c3-0c2", "c3-0c2s7"), None),
        ("rack1-chassis2-node3", ("rack1", "rack1-chassis2"), None),
    ],
)
def test_what_stands_before_the_last_number_is_a_place(
    name: str, places: tuple[str, ...], positions: tuple[str, ...] | None
) -> None:
    found = read_place(name)
    assert found[0] == places
    assert positions is None or found[1] == positions


def test_nodes_of_other_racks_have_the_same_position() -> None:
    assert read_place("c3-0c2s7n1")[1][1] == "c*-*c2s*n*" == read_place("c9-1c2s0n0")[1][1]


def test_the_switch_is_the_widest_place_and_the_batch_a_position() -> None:
    near, far = locate_nodes({"r1n1": 20_000.0, "r1n2": 20_100.0}, {"r1n1": "leaf7"})
    assert near.places == ("switch leaf7", "r1")
    assert (far.places, far.positions) == (("r1",), ("r*n2", "the batch of 2025-01"))


def test_nodes_that_all_came_at_once_are_no_batch() -> None:
    (node, *_) = locate_nodes({"n1": 20_000.0, "n2": 20_001.0})
    assert node.positions == ()
