"""Places and versions: a group is named for what most of it shares."""

from __future__ import annotations

import random

from hpcverify.peers.groups import explain_split, find_group_outliers

FLOOR = 0.02


def draw_racks(seed: int, racks: int = 10, nodes: int = 12) -> dict[str, list[float]]:
    rng = random.Random(seed)
    return {f"r{i}": [rng.gauss(0, 0.005) for _ in range(nodes)] for i in range(racks)}


def test_healthy_racks_are_not_named() -> None:
    for seed in range(100):
        assert find_group_outliers(draw_racks(seed), FLOOR) == []


def test_a_slow_rack_is_named() -> None:
    racks = draw_racks(1)
    racks["r3"] = [distance + 0.04 for distance in racks["r3"]]
    (group,) = find_group_outliers(racks, FLOOR)
    assert group.name == "r3"
    assert 0.035 < group.distance < 0.045


def test_a_rack_with_a_few_slow_nodes_is_not_named() -> None:
    racks = draw_racks(1)
    racks["r3"] = [d + (0.1 if i < 7 else 0) for i, d in enumerate(racks["r3"])]
    assert find_group_outliers(racks, FLOOR) == []


def test_half_of_the_fleet_is_no_group_of_its_own() -> None:
    racks = draw_racks(1, racks=2)
    racks["r1"] = [distance + 0.04 for distance in racks["r1"]]
    racks["r1"].append(0.04)
    assert find_group_outliers(racks, FLOOR) == []


def test_the_field_that_divides_is_found() -> None:
    better = [{"driver": "580", "rack": f"r{i % 4}"} for i in range(20)]
    worse = [{"driver": "590", "rack": f"r{i % 4}"} for i in range(20)]
    assert explain_split(better, worse, ["rack", "driver"]) == "driver"
    assert explain_split(better, worse, ["rack"]) == ""
