"""``hpcverify qualify`` on GPUs that are not there: to its end, and past a fault."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.model import Verdict
from hpcverify.qualification.steps import STEP_NAMES
from hpcverify.records.qualification import FILE_NAME, Qualification, StepReport
from tests.nvml_lab.nvmllab import ROOT
from tests.rehearsal.faults import VARIABLE
from tests.rehearsal.node import PARAMS, PRELOAD, Node, make_node
from tests.warm import run_warm

FOLDER = ROOT / "checks/hpcverify_checks/qualification"
SMALL: Mapping[str, Mapping[str, Any]] = {
    **PARAMS,
    "bare_gemm": {"burst_seconds": 5e-6, "seconds": 1e-5, "size": 256},
    "exactness": {"size": 128, "depth": 256},
    "comparison_cost": {"seconds": 1e-4, "size": 128, "depth": 256},
    "xid": {},
}
QUICK_CHECKS = ("gemm", "allreduce")
"""Enough to time a suite."""


def write_steps(node: Node) -> None:
    """Write the site's own steps: those that ship, small enough for a CPU."""
    suites = node.cli.config.parent / "suites"
    (suites / "qualification").mkdir()
    for path in FOLDER.glob("*.toml"):
        checks = [entry["name"] for entry in tomllib.loads(path.read_text())["check"]]
        (suites / "qualification" / path.name).write_text(format_suite(checks))
    (suites / "quick.toml").write_text(format_suite(QUICK_CHECKS))


def format_suite(checks: Any) -> str:
    lines = ['summary = "rehearsed"', "budget = 300"]
    for name in checks:
        lines += ["[[check]]", f'name = "{name}"']
        lines += [f"params.{key} = {format_toml(v)}" for key, v in SMALL.get(name, {}).items()]
    return "\n".join(lines)


def format_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {format_toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path) -> Node:
    """Make a node with two GPUs."""
    made = make_node(tmp_path, nvml_library, gpus=2)
    write_steps(made)
    return made


def qualify(
    node: Node, *arguments: str, faults: str = ""
) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = node.cli.state.parent / "out"
    done = run_warm(
        ["qualify", "--out", str(out), *arguments],
        {**node.cli.environment, VARIABLE: faults},
        preload=PRELOAD,
    )
    return done, out


def read(out: Path) -> Qualification:
    return msgspec.json.decode((out / FILE_NAME).read_bytes(), type=Qualification)


def steps_of(report: Qualification) -> dict[str, StepReport]:
    return {step.name: step for step in report.steps}


def test_a_healthy_node_goes_through_all_steps_and_gives_lines_for_the_table(node: Node) -> None:
    done, out = qualify(node)
    report = read(out)
    steps = steps_of(report)

    assert done.returncode == 0, done.stdout + done.stderr
    assert tuple(steps) == STEP_NAMES
    assert {s.name for s in report.steps if s.verdict > Verdict.WARN} == set()
    assert report.complete


def test_x(node: Node) -> None:
    done, out = qualify(
        node, "--only", "corruption", "--only", "arithmetic", faults="flip@1:after=40,every=7"
    )
    print(done.stdout, done.stderr)
    assert 0
