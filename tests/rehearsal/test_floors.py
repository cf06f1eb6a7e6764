"""Nodes of which every GPU is as slow as the others, and the doctor, on GPUs that are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcverify.model import Run, Verdict
from tests.rehearsal.faults import VARIABLE
from tests.rehearsal.node import PRELOAD, Node, make_node
from tests.warm import run_warm

pytestmark = pytest.mark.system

SPEED_CHECKS = ("--check", "gemm", "--check", "gpu_memory")
HALF = "slow@*:share=0.5"


def verdicts(run: Run) -> dict[str, Verdict]:
    return {result.check: result.verdict for result in run.results}


@pytest.mark.parametrize("part", ["h200", "b200", "l40s"])
def test_a_whole_node_at_half_speed_fails_and_a_good_one_passes(
    tmp_path: Path, nvml_library: Path, part: str
) -> None:
    node = make_node(tmp_path, nvml_library, part=part, gpus=2)

    good, slow = node.run(*SPEED_CHECKS), node.run(*SPEED_CHECKS, faults=HALF)

    assert set(verdicts(good).values()) == {Verdict.PASS}
    assert set(verdicts(slow).values()) == {Verdict.FAIL}
    reasons = {result.check: result.reason for result in slow.results}
    assert "bf16.sustained" in reasons["gemm"]
    assert "memory.copy" in reasons["gpu_memory"]
    assert "confidence B" in reasons["gemm"]


def test_a_power_limit_of_the_site_is_no_fault_of_the_gpus(
    tmp_path: Path, nvml_library: Path
) -> None:
    node = make_node(tmp_path, nvml_library, gpus=2)
    capped = "slow@*:share=0.7"
    unset = node.run("--check", "gemm", faults=capped)
    scenario = tmp_path / "scenario.txt"
    lines = scenario.read_text().replace("power.limit_mw = 700000", "power.limit_mw = 500000")
    scenario.write_text(lines)

    assert unset.verdict is Verdict.FAIL
    assert node.run("--check", "gemm", faults=capped).verdict is Verdict.PASS
    half = node.run("--check", "gemm", faults=HALF)
    assert half.verdict is Verdict.FAIL
    assert "power is limited to 500 of 700 W: floor scaled by 0.71" in half.results[0].reason


def ask_doctor(node: Node, faults: str) -> dict[str, dict[str, str]]:
    environment = {**node.cli.environment, VARIABLE: faults}
    done = run_warm(["doctor", "--json"], environment, preload=PRELOAD)
    return {item["subject"]: item for item in json.loads(done.stdout)}


def test_the_doctor_says_that_a_gpu_computes(tmp_path: Path, nvml_library: Path) -> None:
    found = ask_doctor(make_node(tmp_path, nvml_library, gpus=2), "")

    assert found["computing"]["state"].startswith("starts, and computes on GPU 0")
    assert found["computing"]["fix"] == ""
    assert "floor bf16" in found


def test_the_doctor_says_why_cuda_does_not_start(tmp_path: Path, nvml_library: Path) -> None:
    found = ask_doctor(make_node(tmp_path, nvml_library, gpus=2), "init802@*")

    assert "802" in found["computing"]["state"]
    assert found["computing"]["fix"]
    assert "fix the check" not in found["computing"]["fix"]
