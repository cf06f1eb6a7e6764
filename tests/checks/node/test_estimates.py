"""How long a check should take follows from what it will do on the part at hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.model import Device, Inventory, Part
from hpcverify.testing import CPU, make_context
from hpcverify_checks import allreduce, gemm, training
from hpcverify_checks.node.estimates import count_dtypes

GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(2))
PARAMS = gemm.GemmParams(burst_seconds=1, seconds=2, core_seconds=0.5)


def node(**facts: str) -> Inventory:
    return Inventory(devices=(CPU,), parts=(Part("cpu", "cpu", "CPU", facts),))


@pytest.mark.parametrize(("threads", "turns"), [("4", 4), ("100000", None), ("0", None)])
def test_each_core_of_the_host_gets_a_turn_as_far_as_the_time_goes(
    tmp_path: Path, threads: str, turns: int | None
) -> None:
    context = make_context(tmp_path, inventory=node(threads=threads, dtypes="fp32 fp64"))
    together = 2 * (gemm.WARM_UP_SECONDS + 3)
    alone = gemm.ALL_CORES_SECONDS if turns is None else turns * 0.5

    assert gemm.estimate(context, PARAMS) == pytest.approx(together + alone)


def test_a_host_that_hides_its_types_may_have_all_of_them(tmp_path: Path) -> None:
    hidden, known = (make_context(tmp_path, inventory=node(**f)) for f in ({}, {"dtypes": "fp32"}))

    assert count_dtypes(hidden) > count_dtypes(known) == 1


def test_what_the_gpus_do_in_the_hosts_stead_takes_it_no_time(tmp_path: Path) -> None:
    with_gpus = make_context(tmp_path, inventory=Inventory(devices=(CPU, *GPUS)))
    without = make_context(tmp_path)

    sums, steps = allreduce.AllreduceParams(), training.TrainingParams()

    assert allreduce.estimate(with_gpus, sums) == 0 < allreduce.estimate(without, sums)
    assert training.estimate(with_gpus, steps) == 0 < training.estimate(without, steps)
