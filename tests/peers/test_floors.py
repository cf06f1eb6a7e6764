"""The table of practical sizes, and which side is the bad one."""

from __future__ import annotations

import pytest

from hpcverify.peers.floors import PeerFloor, find_floor, find_worse_side, load_floors


def test_every_metric_has_a_floor() -> None:
    assert find_floor("no such check", "no such metric").floor == 0.02
    assert all(line.source for line in load_floors())


def test_the_lines_of_the_site_go_before_those_that_ship() -> None:
    own = PeerFloor(check="storage", floor=0.3)

    assert find_floor("storage", "seq_read.bandwidth", [own]) is own
    assert find_floor("storage", "seq_read.bandwidth").floor == 0.1
    assert find_floor("gemm", "bf16.sustained", [own]).floor == 0.02


@pytest.mark.parametrize(
    ("unit", "side"), [("ms", "high"), ("GB/s", "low"), ("GFLOP/s", "low"), ("", None), ("W", None)]
)
def test_the_unit_says_which_side_is_worse(unit: str, side: str | None) -> None:
    assert find_worse_side(PeerFloor(floor=0.02), unit) == side


def test_the_table_goes_before_the_unit() -> None:
    assert find_worse_side(PeerFloor(floor=0.02, worse="high"), "GB/s") == "high"
