"""
MI300X and torch's ROCm build, rehearsed: the checks run to their end and judge as they should.

Nothing here says that torch's products are exact on such a GPU, nor what RCCL does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcverify.model import Cause, Remedy, Result, Run, Verdict
from tests.rehearsal.node import Node, make_node

pytestmark = pytest.mark.system

NVIDIA_WORDS = re.compile(r"nvidia|nvml|cublas|\bxids?\b", re.IGNORECASE)
OBSERVING = ("gpu_setup", "pcie", "nvlink", "recovery", "ecc", "xid")
ACTIVE = ("gemm", "sdc", "gpu_memory", "pcie_bandwidth", "p2p", "training", "allreduce")
GPUS = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """Make a node with three MI300X; NVML is not there."""
    return make_node(tmp_path_factory.mktemp("amd"), Path(), part="mi300x", gpus=GPUS)


def run(node: Node, *checks: str, faults: str = "") -> Run:
    return node.run(*(word for name in checks for word in ("--check", name)), faults=faults)


def list_texts(result: Result) -> list[str]:
    """List all that a result says to a person."""
    return [
        result.reason,
        *(item.text for item in result.coverage),
        *(finding.text for finding in result.findings),
        *(short.reason for short in result.shortfalls),
    ]


def require_own_words(run: Run) -> None:
    said = [text for result in run.results for text in list_texts(result)]
    assert [text for text in said if NVIDIA_WORDS.search(text)] == []


def test_healthy_gpus_of_amd_pass_what_can_be_verified_and_the_rest_is_said(node: Node) -> None:
    done = run(node, "inventory", "thermal", *ACTIVE, *OBSERVING)
    verdicts = {result.check: result.verdict for result in done.results}
    assert [result.reason for result in done.results if result.verdict > Verdict.SKIP] == []
    assert verdicts == {
        **dict.fromkeys(("inventory", *ACTIVE), Verdict.PASS),
        **dict.fromkeys(("thermal", *OBSERVING), Verdict.SKIP),
    }
    assert done.verdict is Verdict.PASS
    skipped = [result for result in done.results if result.verdict is Verdict.SKIP]
    assert {result.cause for result in skipped} == {Cause.NOT_OBSERVABLE}
    require_own_words(done)
    gemm = next(result for result in done.results if result.check == "gemm")
    left_out = [item.text for item in gemm.coverage if "left out" in item.text]
    assert len(left_out) == GPUS
    assert left_out[0].startswith("fp8, tf32: left out")


def test_gpus_of_amd_are_held_against_their_siblings_where_no_floor_is_known(node: Node) -> None:
    (gemm,) = run(node, "gemm", faults="slow@1:share=0.7").results
    assert gemm.verdict is Verdict.FAIL
    assert gemm.reason.startswith("GPU 1 ")
    assert "siblings" in gemm.reason
    assert "is not in the table of parts" in gemm.reason


def test_a_gpu_of_amd_that_computes_a_wrong_bit_is_replaced(node: Node) -> None:
    (sdc,) = run(node, "sdc", faults="flip@2:after=40,every=7").results
    assert (sdc.verdict, sdc.remedy) == (Verdict.FAIL, Remedy.REPLACE)
    assert "GPU 2 " in sdc.reason
    assert "GPU 0 " not in sdc.reason
    assert "GPU 1 " not in sdc.reason


@pytest.mark.parametrize("fault", ["ecc", "illegal", "launch"])
def test_an_error_that_a_gpu_of_amd_raises_is_its_own_in_the_words_of_hip(
    node: Node, fault: str
) -> None:
    done = run(node, "gemm", "p2p", faults=f"{fault}@1")
    for result in done.results:  # one worker for each GPU, and one for all
        assert (result.verdict, result.remedy) == (Verdict.FAIL, Remedy.RESET_GPU)
        assert result.reason.startswith("GPU 1 ")
        assert "HIP error" in result.reason
    require_own_words(done)


@pytest.mark.parametrize(
    ("fault", "fix"),
    [
        ("oom@1", "amd-smi process"),
        ("no_device@*", "HIP_VISIBLE_DEVICES"),
        ("no_image@1", "must name the GPU's gfx"),
    ],
)
def test_what_keeps_torch_from_a_gpu_of_amd_is_an_error_with_the_fix_for_rocm(
    node: Node, fault: str, fix: str
) -> None:
    done = run(node, "gemm", faults=fault)
    (gemm,) = done.results
    assert (gemm.verdict, gemm.remedy) == (Verdict.ERROR, Remedy.FIX_CONFIGURATION)
    assert fix in gemm.reason
    require_own_words(done)


def test_memory_that_others_hold_on_a_gpu_of_amd_is_told_with_its_vendors_tool(node: Node) -> None:
    done = run(node, "gpu_memory", faults="short@1:share=0.97")
    (memory,) = done.results
    assert (memory.verdict, memory.cause) == (Verdict.ERROR, Cause.NO_SPACE)
    assert "amd-smi process" in memory.reason
    require_own_words(done)


def test_gpus_of_amd_that_all_hang_are_named_and_their_own_driver_looked_for(
    tmp_path: Path,
) -> None:
    patient = make_node(tmp_path, Path(), part="mi300x", gpus=2, timeout=5.0)
    done = run(patient, "gemm", faults="hang@*")
    (gemm,) = done.results
    assert (gemm.verdict, gemm.remedy) == (Verdict.ERROR, Remedy.INSPECT)
    assert gemm.reason.startswith("GPU 0 ")
    assert gemm.reason.count("dmesg | grep -i amdgpu") == 2
    require_own_words(done)


@pytest.mark.parametrize("suite", ["prolog", "epilog"])
def test_the_suites_of_the_hooks_end_in_pass_and_list_what_they_could_not_see(
    node: Node, suite: str
) -> None:
    done = node.run("--suite", suite)  # the last one counts
    verdicts = {result.check: result.verdict for result in done.results}
    beneath = {verdicts.pop(name) for name in ("kernel_log", "nic", "host")}  # of this machine
    assert beneath <= {Verdict.PASS, Verdict.SKIP}
    assert verdicts == {"inventory": Verdict.PASS, **dict.fromkeys(OBSERVING, Verdict.SKIP)}
    assert (done.verdict, done.passive) == (Verdict.PASS, True)
    require_own_words(done)
