"""Collectives between GPUs that are not there: right ones pass, a wrong word is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcverify.model import Cause, Remedy, Verdict
from tests.rehearsal.node import Node

pytestmark = pytest.mark.system

Rehearse = Callable[..., Node]
OPERATIONS = ("all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")


def test_all_operations_of_three_gpus_are_measured_by_their_events(rehearse: Rehearse) -> None:
    run = rehearse(gpus=3).run("--check", "collectives")
    (result,) = run.results

    assert result.verdict is Verdict.PASS
    found = {m.name: m.value or 0.0 for m in result.measurements}
    for operation in OPERATIONS:
        # By the clock of the GPUs: 20 us to start, and 256 KiB at 350 GB/s and more.
        assert 15 < found[f"time_p50.{operation}.256KiB"] < 60, operation
        assert found[f"busbw.{operation}.256KiB"] > 0
    covered = " ".join(c.text for c in result.coverage)
    assert "3 ranks, nccl: " in covered


def test_a_gpu_that_gets_a_wrong_word_fails_the_node(rehearse: Rehearse) -> None:
    run = rehearse(gpus=3).run("--check", "collectives", faults="sum@1:after=5,every=3")
    (result,) = run.results

    assert (result.verdict, result.remedy) == (Verdict.FAIL, Remedy.INSPECT)
    wrong = [f for f in result.findings if f.code == "wrong_result"]
    assert wrong
    assert {f.evidence["rank"] for f in wrong} == {"1"}


def test_without_memory_for_any_size_nothing_was_verified(rehearse: Rehearse) -> None:
    params = {"collectives": {"sizes": [2**30]}}
    run = rehearse(gpus=2, params=params).run("--check", "collectives")
    (result,) = run.results

    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert "no size fits into the free memory: 1GiB" in result.reason
