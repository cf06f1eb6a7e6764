"""How much of its speed a collective keeps on more nodes."""

from __future__ import annotations

import pytest

from hpcverify.isolation.scaling import STEP, compute_scaling
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming, RankPlace, RankSteps

SIZE = 2**20


def build_run(nodes: int, busbw: float, step: float = 0.0) -> CollectiveRun:
    timing = CollectiveTiming("all_reduce", SIZE, 10, 1.0, 1.0, 1.0, busbw, busbw)
    ends = tuple(step * n for n in range(9)) if step else ()
    return CollectiveRun(
        id="x",
        started="",
        ended="",
        version="",
        ranks=tuple(RankPlace(rank, f"n{rank // 2}", "cpu") for rank in range(2 * nodes)),
        timings=(timing,),
        steps=tuple(RankSteps(rank, ends, ends) for rank in range(2 * nodes)) if step else (),
    )


def test_a_collective_is_compared_with_that_of_the_fewest_nodes_with_a_network() -> None:
    points = compute_scaling([build_run(4, 36), build_run(1, 400), build_run(2, 40)])

    assert [(p.nodes, p.ranks, p.efficiency) for p in points] == [
        (1, 2, 10.0),
        (2, 4, 1.0),
        (4, 8, 0.9),
    ]


def test_several_runs_of_as_many_nodes_count_as_their_median() -> None:
    points = compute_scaling([build_run(2, 40), *(build_run(4, v) for v in (10, 30, 32))])
    assert points[-1].value == 30


def test_a_step_of_equal_work_is_compared_with_that_of_the_fewest_nodes() -> None:
    points = compute_scaling([build_run(1, 1, 0.010), build_run(2, 1, 0.0125)])
    steps = {p.nodes: p.efficiency for p in points if p.operation == STEP}
    assert steps == {1: pytest.approx(1.0), 2: pytest.approx(0.8)}


def test_what_was_measured_on_one_number_of_nodes_only_has_no_efficiency() -> None:
    assert compute_scaling([build_run(2, 40), build_run(2, 41)]) == ()
    assert compute_scaling([]) == ()
