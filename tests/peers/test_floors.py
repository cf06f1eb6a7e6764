"""The table of practical sizes, and which side is the bad one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcverify.model import Side
from hpcverify.peers.floors import PeerFloor, find_floor, load_floors, make_floor_finder
from hpcverify.peers.foreign import find_foreign
from hpcverify.plan.catalog import make_side_finder
from tests.tables import read_table


def test_every_metric_has_a_floor() -> None:
    assert find_floor("no such check", "no such metric").floor == 0.02
    assert all(line.source for line in load_floors())


def test_the_lines_of_the_site_go_before_those_that_ship() -> None:
    own = PeerFloor(check="storage", floor=0.3)
    assert find_floor("storage", "seq_read.bandwidth", [own]) is own
    assert find_floor("storage", "seq_read.bandwidth").floor == 0.1
    assert find_floor("gemm", "bf16.sustained", [own]).floor == 0.02


def test_the_table_that_ships_has_sizes_alone() -> None:
    assert {line.worse for line in load_floors()} == {None}


@dataclass(frozen=True)
class Row:
    """A row of ``sides.csv``: which values of a metric are worse, or none where it is unknown."""

    check: str
    metric: str
    side: Side | None = None


@pytest.mark.parametrize("row", read_table(Path(__file__).with_name("sides.csv"), Row), ids=str)
def test_the_declaration_of_a_metric_says_which_side_is_worse(row: Row) -> None:
    assert make_floor_finder((), make_side_finder())(row.check, row.metric).worse == row.side


@pytest.mark.parametrize(
    ("metric", "side"),
    [
        ("mem_bandwidth_matrix_numa_0_1_lat", "high"),
        ("mem_bandwidth_matrix_numa_0_1_bw", "low"),
        ("rr_two-sided+sync_bw_x_99%", "high"),
        ("rr_two-sided+sync_bw_99%", "low"),
        ("STREAM_COPY_double_array_1_time_min", "high"),
        ("ib_write_lat_8388608_gpu-to-gpu", "high"),
        ("fp16_train_throughput", "low"),
    ],
)
def test_the_side_of_a_metric_of_superbench_is_that_of_its_manual(metric: str, side: Side) -> None:
    known = find_foreign(metric)
    assert known is not None
    assert known.worse == side


def test_the_site_may_turn_a_side_around_or_take_a_metric_out() -> None:
    lines = [
        PeerFloor(check="gemm", metric="*.step_p95", floor=0.1, worse="low"),
        PeerFloor(check="gemm", floor=0.1, worse="neither"),
    ]
    find = make_floor_finder(lines, make_side_finder())

    assert find("gemm", "bf16.step_p95").worse_side == "low"
    assert find("gemm", "bf16.sustained").worse_side is None
    assert find("storage", "seq_read.bandwidth").worse_side == "low"
