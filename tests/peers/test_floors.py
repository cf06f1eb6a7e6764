"""The table of practical sizes, and which side is the bad one."""

from __future__ import annotations

import pytest

from hpcverify.model import Side
from hpcverify.peers.floors import PeerFloor, find_floor, load_floors, make_floor_finder
from hpcverify.peers.foreign import find_foreign
from hpcverify.plan.catalog import make_side_finder


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


@pytest.mark.parametrize(
    ("check", "metric", "side"),
    [
        ("storage", "rand_read.longest", "high"),
        ("storage", "checkpoint.write.cv", "high"),
        ("storage", "checkpoint.write", "low"),
        ("storage", "cached.rand_read.p99", "high"),
        ("storage", "smart.temperature", "high"),
        ("host", "smart.media_errors", "high"),
        ("host", "smart.percentage_used", "high"),
        ("host", "smart.available_spare", "low"),
        ("allreduce", "time_p95.8MiB", "high"),
        ("allreduce", "jitter.8MiB", "high"),
        ("allreduce", "busbw.8MiB", "low"),
        ("pcie_bandwidth", "h2d", "low"),
        ("training", "mfu", "low"),
        ("training", "tokens", "low"),
        ("training", "step_p95", "high"),
        ("training", "communication.share", "neither"),
        ("thermal", "efficiency", "low"),
        ("thermal", "temperature.max", "high"),
        ("thermal", "temperature.headroom.min", "low"),
        ("nic", "module.headroom", "low"),
        ("gemm", "fp16.spread", "high"),
        ("gemm", "no.such", None),
        ("no_such_check", "bf16.sustained", None),
        ("../gemm", "bf16.sustained", None),
    ],
)
def test_the_declaration_of_a_metric_says_which_side_is_worse(
    check: str, metric: str, side: Side | None
) -> None:
    assert make_floor_finder((), make_side_finder())(check, metric).worse == side


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
