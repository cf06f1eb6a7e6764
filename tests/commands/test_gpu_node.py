"""A whole run on a node with GPUs that only NVML shows: nothing passes unseen."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from hpcverify.limits.specs import load_specs
from hpcverify.model import Remedy, Run
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.summary.run_summary import summarize
from hpcverify.summary.verdict import explain_verdict
from tests.cli import Cli
from tests.nvml_lab.nvmllab import Lab
from tests.nvml_lab.parts import profile

GPUS = 8
MAX_RESULT_LINES = 12
"""Lines of the result of a passive run with three bad GPUs."""


@pytest.fixture
def node(cli: Cli, lab: Lab) -> Cli:
    cli.environment["LD_LIBRARY_PATH"] = str(lab.library.parent)
    cli.environment["NVML_LAB_SCENARIO"] = str(lab.scenario)
    cli.preload = "tests.nvml_lab.hurry"
    return cli


SHORT = """
    [[check]]
    name = "gemm"
    params = { seconds = 0.1, burst_seconds = 0.1, core_seconds = 0, size = 64 }

    [[check]]
    name = "sdc"
    params = { seconds = 0.2, size = 128, depth = 128 }

    [[check]]
    name = "*"
"""
"""What is said of the GPUs is the same, however much the CPU beside them does."""


def results(node: Cli, *checks: str, status: int) -> dict[str, Any]:
    node.suite("short", SHORT)
    names = [word for check in checks for word in ("--check", check)]
    done = node("run", "--suite", "short", "--json", *names)
    assert done.returncode == status, done.stderr
    return {r["check"]: r for r in json.loads(done.stdout)["results"]}


def test_healthy_gpus_pass_run_after_run(node: Cli) -> None:
    for _ in range(3):
        found = results(node, "inventory", "ecc", status=0)
        assert {r["verdict"] for r in found.values()} == {"pass"}
        (gpus,) = (m for m in found["inventory"]["measurements"] if m["name"] == "gpus")
        assert gpus["value"] == GPUS


@pytest.mark.parametrize(("gpus", "status"), [(8, 0), (7, 1), (9, 1)])
def test_a_first_run_fails_without_the_number_of_gpus_that_was_asked_for(
    node: Cli, lab: Lab, gpus: int, status: int
) -> None:
    lab.write("gpus = 8")
    done = node("run", "--check", "inventory", "--expect-gpus", str(gpus), "--json")
    run = msgspec.json.decode(done.stdout, type=Run)
    assert done.returncode == status, done.stderr
    assert [x.source for x in run.results[0].limits if x.name == "gpus"] == ["--expect-gpus"]


@pytest.mark.parametrize(("gpus", "missing"), [(7, 1), (6, 2), (5, 3), (3, 1)])
def test_a_first_run_warns_of_gpus_that_a_board_lacks_and_a_site_may_allow_it(
    node: Cli, lab: Lab, gpus: int, missing: int
) -> None:
    lab.write(f"gpus = {gpus}")
    inventory = results(node, "inventory", status=0)["inventory"]

    assert inventory["verdict"] == "warn"
    assert f"gpus.missing_from_board {missing} > 0" in inventory["reason"]

    node.site(f'limits.inventory."gpus.missing_from_board" = {{ high = {missing} }}')
    assert results(node, "inventory", status=0)["inventory"]["verdict"] == "pass"


def test_a_number_of_gpus_is_not_asked_for_where_nothing_counts_them(node: Cli) -> None:
    done = node("run", "--check", "steady", "--expect-gpus", "8")
    assert done.returncode == 2
    assert "needs the check inventory" in done.stderr


@pytest.mark.needs("root")
def test_a_gpu_may_take_seconds_to_initialise(node: Cli, lab: Lab) -> None:
    # In real time: NVIDIA's page on persistence says 1 to 3 s, 8 A100 take 3.75 s each.
    node.preload = ""
    lab.write("gpus = 1", "fault = nvmlDeviceGetHandleByIndex gpu=0 hang=3.75 times=1")
    run = node("run", "--suite", "prolog")
    assert run.returncode == 0, run.stdout


@pytest.mark.system
def test_gpus_that_torch_cannot_reach_are_an_error_and_not_a_cpu_node(node: Cli, lab: Lab) -> None:
    lab.write("gpus = 2")
    gemm = results(node, "gemm", status=3)["gemm"]
    assert (gemm["verdict"], gemm["cause"]) == ("error", "missing")
    assert "without CUDA" in gemm["reason"]
    assert gemm["reason"].count("GPU ") >= 2


def test_a_gpu_that_someone_uses_is_left_alone(node: Cli, lab: Lab) -> None:
    lab.write("gpu.3.process = 4242 1073741824 python3 train.py")
    found = results(node, "gemm", "inventory", status=3)
    assert found["gemm"]["cause"] == "busy"
    assert re.match(r"GPU 3 \(…\w+\) in use by process 4242\. Fix: wait", found["gemm"]["reason"])
    assert (found["gemm"]["measurements"], found["inventory"]["verdict"]) == ([], "pass")


def test_a_gpu_that_fell_off_the_bus_fails_again_and_again(node: Cli, lab: Lab) -> None:
    results(node, "inventory", status=0)
    lab.load("lost-gpu")
    for _ in range(2):
        inventory = results(node, "inventory", status=1)["inventory"]
        assert (inventory["verdict"], inventory["remedy"]) == ("fail", "reboot")


def test_parts_that_were_taken_out_can_be_accepted(node: Cli, lab: Lab) -> None:
    results(node, "inventory", status=0)
    lab.write("gpus = 7")
    results(node, "inventory", status=1)

    accepted = node("run", "--check", "inventory", "--accept-parts")

    assert accepted.returncode == 0, accepted.stderr
    results(node, "inventory", status=0)


@pytest.mark.parametrize(
    ("check", "lost"), [("nvlink", "gpu.*.nvlink.*.state = 0"), ("pcie", "gpu.*.pcie.width = 8")]
)
def test_what_gpus_lost_since_an_earlier_run_can_be_accepted(
    node: Cli, lab: Lab, check: str, lost: str
) -> None:
    part = profile(next(s for s in load_specs() if s.key == "h100-nvl-94gb"), busy=False)
    for line, status in (("", 0), (lost, 1)):
        lab.write(*part, line)
        results(node, check, status=status)

    accepted = node("run", "--check", check, "--accept-parts")

    assert accepted.returncode == 0, accepted.stderr
    assert results(node, check, status=0)[check]["verdict"] == "pass"


def test_a_driver_at_odds_with_its_library_is_an_error_of_all_checks(node: Cli, lab: Lab) -> None:
    results(node, "inventory", status=0)
    lab.load("driver-mismatch")
    found = results(node, "inventory", "sdc", status=3)
    assert {r["cause"] for r in found.values()} == {"misconfigured"}


def test_memory_that_could_not_be_remapped_fails_and_names_the_gpu(node: Cli, lab: Lab) -> None:
    lab.load("ecc-row-remap-failure", "freeze_t = 600")
    ecc = results(node, "ecc", status=1)["ecc"]
    assert ecc["verdict"] == "fail"
    assert "remap.failed 1 > 0" in ecc["reason"]
    assert "GPU " in ecc["reason"]


def test_three_bad_gpus_take_a_line_each_and_the_result_twelve_at_most(node: Cli, lab: Lab) -> None:
    lab.write(
        "gpu.2.remapped_rows.pending = 1",
        "gpu.2.recovery_action = GPU_RESET",
        "gpu.5.remapped_rows.failure = 1",
        "gpu.7.ecc.sram_threshold_exceeded = 1",
    )
    done = node("run", "--suite", "prolog")
    head, *lines = done.stdout.splitlines()
    bad = [line for line in lines if line.startswith("  FAIL  GPU ")]

    assert done.returncode == 1
    assert head.startswith("FAIL  ")
    assert "8 x NVIDIA H100 80GB HBM3  suite prolog" in head
    assert len(done.stdout.splitlines()) <= MAX_RESULT_LINES
    assert sorted(line.split()[2] for line in bad) == ["2", "5", "7"]
    assert all("  serial 165" in line for line in bad)
    assert [line[line.rindex("  ") :][:5] for line in bad] == ["  1. ", "  2. ", "  3. "]
    assert done.stdout.count("drain") == 1
    assert len(done.stderr.splitlines()) == len(
        json.loads(node("show", "--json").stdout)["results"]
    )


@pytest.mark.parametrize("known", [False, True])
def test_the_head_counts_the_gpus_that_are_lost_and_missing(
    node: Cli, lab: Lab, *, known: bool
) -> None:
    if known:
        assert node("run", "--check", "inventory").returncode == 0
    lab.write("gpu.6.absent = 1", "gpu.2.lost = 1")
    head, first, *_ = node("run", "--check", "inventory").stdout.splitlines()
    missing = "GPU 6 missing" if known else "1 missing"

    assert f"8 x NVIDIA H100 80GB HBM3 expected: 6 healthy, GPU 2 lost, {missing}  " in head
    assert re.match(r"  FAIL  node  GPU (with NVML index )?2\b.* \(gpu_lost\)", first)


@pytest.mark.needs("root")
def test_a_gpu_that_holds_the_driver_is_the_one_cause_of_all_that_cannot_be_read(
    node: Cli, lab: Lab
) -> None:
    lab.write("fault = nvmlDeviceGetPowerUsage gpu=5 hang=forever lock=1")
    done = node("run", "--suite", "prolog", "--json")
    run = msgspec.json.decode(done.stdout, type=Run)
    sick = next(part.id for part in run.inventory.parts if part.label.startswith("GPU 5"))

    assert done.returncode == 3, done.stderr
    steps = summarize(run).steps
    assert [part[0].part_id for part in steps[run.verdict, Remedy.REBOOT]] == [sick]
    assert len(steps[run.verdict, Remedy.RERUN]) == GPUS - 1
    (cause,) = (d for d in diagnose_run(run) if d.part_ids == (sick,))
    assert len(cause.checks) == len(PASSIVE)
    assert "GPU 5" in explain_verdict(run)
    assert "GPU 0" not in explain_verdict(run)
    assert summarize(run).next_steps.startswith("drain the node, reboot the node, then:")


PASSIVE = ("inventory", "recovery", "ecc", "nvlink", "pcie", "gpu_setup")


def rounds(node: Cli, count: int) -> list[dict[str, Any]]:
    """Load the node and ask its GPUs, *count* times in one run."""
    checks = [f'[[check]]\nname = "{name}"' for name in ("steady", *PASSIVE)]
    node.suite("acme", "\n".join([f"rounds = {count}", *checks]))
    done = node("run", "--suite", "acme", "--json")
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return found


def test_healthy_gpus_pass_round_after_round(node: Cli) -> None:
    found = rounds(node, 3)
    told = {r["check"]: r["reason"] for r in found if r["verdict"] != "pass"}
    assert told == {}
    assert len(found) == 3 * (1 + len(PASSIVE))


def test_a_gpu_that_is_failing_ends_a_burn_in_with_all_its_evidence(node: Cli, lab: Lab) -> None:
    lab.load("ecc-row-remap-failure", "freeze_t = 600")
    found = rounds(node, 3)
    verdicts = {r["check"]: r["verdict"] for r in found}
    assert {r["round"] for r in found} == {1}
    assert (len(found), verdicts["ecc"]) == (1 + len(PASSIVE), "fail")
