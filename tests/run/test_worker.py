"""A worker waits for nobody whose check applies nowhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hpcverify.check import Context
from hpcverify.model import Coverage, Device, Verdict
from hpcverify.run.wire import Outcome, Request, Settle, decode_response
from hpcverify.run.worker import WorkerServer
from hpcverify.testing import make_context

PACKAGES = ("hpcverify_checks",)
GPUS = tuple(Device("cuda", f"GPU-{i}", f"GPU {i}") for i in range(2))


def settled(name: str, *contexts: Context) -> list[Coverage]:
    """Have a worker settle that does not sample, and says so where it would wait."""
    told = io.BytesIO()
    task = Settle(timeout=9, name=name, packages=PACKAGES, contexts=contexts)
    WorkerServer(told).handle(Request(1, task))
    *items, outcome = (decode_response(line)[1] for line in told.getvalue().splitlines())
    assert isinstance(outcome, Outcome)
    assert outcome.verdict is Verdict.PASS, outcome.reason
    return [item for item in items if isinstance(item, Coverage)]


@pytest.mark.parametrize("name", ["gpu_memory", "pcie_bandwidth", "p2p", "thermal"])
def test_nobody_waits_to_settle_for_a_check_that_cannot_apply(tmp_path: Path, name: str) -> None:
    assert settled(name, make_context(tmp_path)) == []


@pytest.mark.parametrize("name", ["gemm", "storage", "allreduce"])
def test_a_check_that_may_apply_has_the_devices_settle(tmp_path: Path, name: str) -> None:
    assert len(settled(name, make_context(tmp_path))) == 1


def test_of_a_gpu_that_nobody_can_ask_the_release_is_said_to_be_unknown(tmp_path: Path) -> None:
    told = io.BytesIO()
    task = Settle(
        timeout=0,
        name="gemm",
        packages=PACKAGES,
        contexts=(make_context(tmp_path),),
        released=("GPU-0",),
        release_timeout=30,
    )
    WorkerServer(told).handle(Request(1, task))
    item, outcome = (decode_response(line)[1] for line in told.getvalue().splitlines())

    assert isinstance(item, Coverage)
    assert (item.part_id, item.text.startswith("unknown whether its memory")) == ("GPU-0", True)
    assert isinstance(outcome, Outcome)
    assert outcome.verdict is Verdict.PASS


def test_one_device_that_a_check_applies_to_is_enough(tmp_path: Path) -> None:
    cpu = make_context(tmp_path)
    gpu = make_context(tmp_path, device=GPUS[0], peers=GPUS)
    assert len(settled("gpu_memory", cpu, gpu)) == 1
