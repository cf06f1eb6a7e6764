"""An error of CUDA in a whole run: whose it is, what stands beside it, and what comes next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hpcverify.model import Cause, Remedy, Result, Run, Verdict
from tests.rehearsal.node import Node

pytestmark = pytest.mark.system

Rehearse = Callable[..., Node]


def of(run: Run, check: str) -> Result:
    (result,) = (r for r in run.results if r.check == check)
    return result


def test_the_gpu_with_the_error_fails_beside_its_xid_and_the_next_check_has_a_new_process(
    tmp_path: Path, rehearse: Rehearse
) -> None:
    node = rehearse(gpus=3)
    with (tmp_path / "scenario.txt").open("a") as scenario:
        scenario.write("event = xid 94 gpu=1\n")

    run = node.run("--check", "gemm", "--check", "allreduce", faults="ecc@1:after=3")

    for check in ("gemm", "allreduce"):
        result = of(run, check)
        (finding,) = (f for f in result.findings if f.code == "ecc_uncorrectable")
        assert (result.verdict, result.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
        assert result.reason.startswith("GPU 1 ")
    (finding,) = of(run, "gemm").findings
    assert finding.evidence["xid"].startswith("Xid 94 at ")
    assert finding.text.endswith(finding.evidence["xid"])


@pytest.mark.parametrize("fault", ["ecc214@*", "nvlink220@*"])
@pytest.mark.parametrize(
    ("line", "checks"),
    [
        ("gpu.2.ecc.volatile.dram_uncorrectable = 1", "gemm p2p"),
        ("gpu.2.recovery_action = GPU_RESET", "gemm p2p"),
        (
            "gpu.1.ecc.volatile.dram_uncorrectable = 2\ngpu.2.recovery_action = GPU_RESET",
            "gemm",
        ),
        ("event = xid 95 gpu=2", "gemm"),  # once, while the first check runs
        ("event = xid 31 gpu=1\ngpu.2.recovery_action = GPU_RESET", "gemm"),  # of a job
    ],
)
def test_the_gpu_that_keeps_cuda_from_starting_is_the_one_that_nvml_names(
    tmp_path: Path, rehearse: Rehearse, line: str, checks: str, fault: str
) -> None:
    node = rehearse(gpus=4)
    with (tmp_path / "scenario.txt").open("a") as scenario:
        scenario.write(f"{line}\n")

    run = node.run(*(f"--check={name}" for name in checks.split()), faults=fault)

    assert run.results
    for result in run.results:
        accused = {run.inventory.find_label(f.part_id)[:5] for f in result.findings}
        assert (result.verdict, accused) == (Verdict.FAIL, {"GPU 2"}), result.reason


def test_an_old_count_of_a_gpu_says_nothing_where_another_gpu_cannot_answer(
    tmp_path: Path, rehearse: Rehearse
) -> None:
    node = rehearse(gpus=4)
    with (tmp_path / "scenario.txt").open("a") as scenario:
        scenario.write("gpu.1.ecc.volatile.dram_uncorrectable = 2\ngpu.2.lost = 1\n")

    result = of(node.run("--check", "gemm", faults="ecc214@*"), "gemm")

    failed = {c.part_id for c in result.faults if c.verdict is Verdict.FAIL}
    assert failed == {"node"}, result.reason


def test_an_error_that_software_causes_too_is_no_gpus_where_cuda_does_not_start(
    rehearse: Rehearse,
) -> None:
    result = of(rehearse(gpus=3).run("--check", "gemm", faults="launch@*"), "gemm")

    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.MISCONFIGURED)


def test_of_gpus_in_one_process_the_broken_one_is_named(rehearse: Rehearse) -> None:
    run = rehearse(gpus=3, is_reversed=True).run("--check", "p2p", faults="launch@0:after=3")

    (finding,) = of(run, "p2p").findings
    assert run.inventory.find_label(finding.part_id).startswith("GPU 2 ")
    assert of(run, "p2p").verdict is Verdict.FAIL


def test_what_befalls_all_gpus_of_one_process_accuses_none(rehearse: Rehearse) -> None:
    result = of(rehearse(gpus=3).run("--check", "p2p", faults="launch@*:after=3"), "p2p")

    assert (result.verdict, result.findings) == (Verdict.ERROR, ())
    assert "did not report which" in result.reason


def test_what_all_gpus_raise_is_the_fault_of_no_gpu_in_any_check_of_the_run(
    rehearse: Rehearse,
) -> None:
    run = rehearse(gpus=2).run("--check", "gemm", "--check", "p2p", faults="illegal@*:after=3")

    assert {(r.verdict, r.cause) for r in run.results} == {(Verdict.ERROR, Cause.MISCONFIGURED)}
    assert all("driver and torch do not match" in r.reason for r in run.results)


def test_of_gpus_in_one_process_the_full_one_is_named(rehearse: Rehearse) -> None:
    result = of(rehearse(gpus=3, is_reversed=True).run("--check", "p2p", faults="oom@0"), "p2p")

    assert (result.verdict, result.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert result.reason.startswith("GPU 2 ")
    assert "the GPU ran out of memory" in result.reason


def test_a_node_without_its_fabric_manager_is_told_to_start_it(rehearse: Rehearse) -> None:
    run = rehearse(gpus=2).run("--check", "gemm", "--check", "p2p", faults="init802@*")

    assert {(r.verdict, r.cause) for r in run.results} == {(Verdict.ERROR, Cause.MISCONFIGURED)}
    assert all("systemctl start nvidia-fabricmanager" in r.reason for r in run.results)
