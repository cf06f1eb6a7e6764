"""GPUs that sum together: one that is lost is named alone, and the others are witnesses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hpcverify.model import Cause, Remedy, Result, Run, Verdict
from tests.rehearsal.node import Node

pytestmark = pytest.mark.system

Rehearse = Callable[..., Node]
TOGETHER = ("training", "allreduce")
CHECKS = [word for name in TOGETHER for word in ("--check", name)]
IMPATIENT = {name: {"timeout_seconds": 8.0} for name in TOGETHER}
ECC, LAUNCH = "uncorrectable ECC error", "unspecified launch failure"


def run_together(rehearse: Rehearse, faults: str) -> Run:
    """Run the checks in which GPUs sum, on four of them."""
    return rehearse(gpus=4, params=IMPATIENT).run(*CHECKS, faults=faults)


def list_accused(run: Run, result: Result) -> set[str]:
    """Name the parts that decide the verdict, and those that the reason speaks of first."""
    ruled = {code for code, rule in result.rulings.items() if rule.verdict >= Verdict.WARN}
    named = {f.part_id for f in result.findings if f.code in ruled}
    named |= {s.part_id for s in result.shortfalls}
    return {run.inventory.find_label(one).partition(" (")[0] for one in named}


def list_witnesses(run: Run, result: Result) -> set[str]:
    """Name the parts that could not be judged without another one."""
    told = [c for c in result.coverage if c.text.startswith("could not be judged without GPU 1")]
    return {run.inventory.find_label(c.part_id).partition(" (")[0] for c in told}


@pytest.mark.parametrize(
    ("fault", "words", "remedy"),
    [("ecc@1:after=100", ECC, Remedy.RESET_GPU), ("launch@1:after=100", LAUNCH, None)],
)
def test_a_gpu_that_dies_is_named_and_none_of_its_peers(
    rehearse: Rehearse, fault: str, words: str, remedy: Remedy | None
) -> None:
    run = run_together(rehearse, fault)
    assert len(run.results) == len(TOGETHER)
    for result in run.results:
        assert words in result.reason
        assert result.verdict is Verdict.FAIL
        assert result.remedy is remedy or remedy is None
        assert list_accused(run, result) == {"GPU 1"}
        assert list_witnesses(run, result) == {"GPU 0", "GPU 2", "GPU 3"}


def test_a_gpu_on_which_nccl_does_not_start_keeps_nobody_waiting(rehearse: Rehearse) -> None:
    run = rehearse(gpus=4).run(*CHECKS, faults="nccl_start@1")
    for result in run.results:
        assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.NO_SPACE)
        assert "end the processes that nvidia-smi lists" in result.reason
        assert list_accused(run, result) == {"GPU 1"}
        assert list_witnesses(run, result) == {"GPU 0", "GPU 2", "GPU 3"}


def test_gpus_too_full_for_any_message_are_no_pass(rehearse: Rehearse) -> None:
    run = rehearse(gpus=2, params={"allreduce": {"sizes": [2**26]}}).run("--check", "allreduce")
    [result] = run.results
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert "not even 64MiB fit into the free memory of every GPU: end the" in result.reason


def test_a_gpu_whose_work_does_not_end_is_named_within_the_groups_time(
    rehearse: Rehearse,
) -> None:
    node = rehearse(gpus=4, params=IMPATIENT)
    run = node.run("--check", "training", faults="hang@1:after=100")
    [result] = run.results
    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.TIMEOUT)
    assert "its own work did not end within 8 s" in result.reason
    assert list_accused(run, result) == {"GPU 1"}
    assert list_witnesses(run, result) == {"GPU 0", "GPU 2", "GPU 3"}


def test_a_rank_that_never_comes_back_from_nccl_is_named_and_its_peers_are_witnesses(
    rehearse: Rehearse,
) -> None:
    node = rehearse(gpus=4, params=IMPATIENT, timeout=30.0)
    run = node.run("--check", "allreduce", faults="nccl_hang@1:after=3")
    [result] = run.results
    assert result.verdict is Verdict.ERROR
    assert "in the all-reduce of 65536 bytes over 4 ranks" in result.reason
    assert list_accused(run, result) == {"GPU 1"}
    assert list_witnesses(run, result) == {"GPU 0", "GPU 2", "GPU 3"}


def test_training_leaves_nccl_as_the_site_set_it(rehearse: Rehearse) -> None:
    run = rehearse(gpus=2).run(*CHECKS, NCCL_DEBUG="WARN", TORCH_NCCL_BLOCKING_WAIT="0")
    texts = {c.text for result in run.results for c in result.coverage}
    assert run.verdict is Verdict.PASS
    assert "NCCL's settings in the environment: NCCL_DEBUG=WARN" in texts
    assert "set in the environment and ignored: TORCH_NCCL_BLOCKING_WAIT" in texts
    assert not [text for text in texts if "NVLS" in text]
