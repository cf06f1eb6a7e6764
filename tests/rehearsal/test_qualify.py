"""``hpcverify qualify`` on GPUs that are not there: to its end, and past a fault."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcverify.model import Run, Verdict
from hpcverify.qualification import STEP_NAMES, MeasuredFigure, collect_figures, count_alarms
from tests.nvml_lab.nvmllab import ROOT
from tests.rehearsal.faults import VARIABLE
from tests.rehearsal.node import PARAMS, PRELOAD, Node, make_node
from tests.warm import run_warm

pytestmark = pytest.mark.system

FOLDER = ROOT / "checks/hpcverify_checks/qualification"
RECORDED = ROOT / "tests/checks/ranks/recorded/counts.txt"
SMALL: Mapping[str, Mapping[str, Any]] = {
    **PARAMS,
    "bare_gemm": {"burst_seconds": 5e-6, "seconds": 1e-5, "size": 256},
    "exactness": {"size": 128, "depth": 256},
    "comparison_cost": {"seconds": 1e-4, "size": 128, "depth": 256},
    "thermal": {"seconds": 3, "recovery_seconds": 1},
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
    made = make_node(tmp_path, nvml_library, gpus=2)
    write_steps(made)
    return made


def install(node: Node, name: str, text: str) -> None:
    """Put a program called *name* that prints *text* into the PATH of *node*."""
    folder = node.cli.state.parent / "bin"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    (folder / name).chmod(0o755)
    path = node.cli.environment.get("PATH", os.defpath)
    node.cli.environment["PATH"] = f"{folder}{os.pathsep}{path}"


def qualify(
    node: Node, *arguments: str, faults: str = ""
) -> tuple[subprocess.CompletedProcess[str], Path]:
    out = node.cli.state.parent / "out"
    done = run_warm(
        ["qualify", "-o", str(out), *arguments],
        {**node.cli.environment, VARIABLE: faults},
        preload=PRELOAD,
    )
    return done, out


def read(out: Path, step: str) -> Run:
    return msgspec.json.decode((out / "runs" / f"{step}.json").read_bytes(), type=Run)


def read_figures(out: Path, *steps: str) -> Mapping[tuple[str, str], MeasuredFigure]:
    found = (figure for step in steps for figure in collect_figures(read(out, step)))
    return {(figure.check, figure.quantity): figure for figure in found}


def read_verdicts(out: Path) -> dict[str, str]:
    """Read the verdict of each step, by its name."""
    text = (out / "qualification.md").read_text()
    return dict(re.findall(r"^## (\w+): (\w+)$", text, re.MULTILINE))


def test_a_healthy_node_goes_through_all_steps_and_gives_lines_for_the_table(node: Node) -> None:
    done, out = qualify(node)
    printed = done.stdout.splitlines()

    assert done.returncode == 0, done.stdout + done.stderr
    assert tuple(read_verdicts(out)) == STEP_NAMES
    assert set(read_verdicts(out).values()) <= {"pass", "warn"}
    assert any(line.startswith("h100-sxm5-80gb,bf16,sustained,") for line in printed)
    assert any(line.startswith("h100-sxm5-80gb,memory,copy,") for line in printed)
    assert {path.stem for path in (out / "runs").glob("*.html")} == {*STEP_NAMES} - {"selftest"}
    text = (out / "qualification.md").read_text()
    assert "bare loop" in text
    assert node.cli.node not in text


def test_gemm_reaches_what_a_bare_loop_reaches_and_no_offset_is_refused(node: Node) -> None:
    _, out = qualify(node, "--only", "products", "--only", "arithmetic")
    figures = read_figures(out, "products", "arithmetic")
    beside = dict(figures["gemm", "bf16.sustained"].compared)

    assert figures["gemm", "bf16.sustained"].median == pytest.approx(beside["bare loop"], rel=0.05)
    assert figures["exactness", "fp8.refused_offsets"].highest == 0
    assert figures["exactness", "fp8.wrong_products"].highest == 0


def test_nccl_is_held_against_nccl_tests(node: Node) -> None:
    install(node, "all_reduce_perf", RECORDED.read_text())
    install(node, "nvidia-smi", "\tGPU0\tGPU1\nGPU0\t X \tNV18")
    _, out = qualify(node, "--only", "links")
    figures = read_figures(out, "links")
    facts = read(out, "facts")
    wiring = [f.evidence for r in facts.results for f in r.findings if f.code == "topology"]

    assert figures["allreduce", "busbw.1MiB"].compared == (("nccl-tests", 66.76),)
    assert wiring == [{"topology": "\tGPU0\tGPU1\nGPU0\t X \tNV18"}]


def test_what_a_library_refuses_is_counted_and_speaks_against_no_gpu(node: Node) -> None:
    _, out = qualify(node, "--only", "arithmetic", faults="refused@0 picky@1")
    run = read(out, "arithmetic")
    refused = {f.part_id for r in run.results for f in r.findings if f.code == "offset_refused"}
    compared = {
        m.part_id for r in run.results for m in r.measurements if m.name == "fp8.checked_over_bare"
    }

    assert run.verdict < Verdict.FAIL
    assert len(refused) == 2
    assert len(compared) == 1


def test_a_gpu_that_errs_is_named_in_its_step_and_the_others_are_taken(node: Node) -> None:
    done, out = qualify(node, "--only", "corruption", faults="flip@1:after=40,every=7")
    failed = next(line for line in done.stdout.splitlines() if line.startswith("FAIL  corruption"))

    assert done.returncode == 1
    assert read_verdicts(out)["facts"] in ("pass", "warn")
    assert "GPU 1" in failed
    assert "GPU 0" not in failed
    (count, *_) = count_alarms(read(out, "corruption"))
    assert count.events > 0


def test_a_gpu_that_is_lost_costs_its_steps_and_gives_no_lines(node: Node) -> None:
    done, out = qualify(node, "--only", "arithmetic", "--only", "products", faults="ecc@1:after=20")
    verdicts = read_verdicts(out)

    assert done.returncode == 1
    assert verdicts["facts"] in ("pass", "warn")
    for name in ("arithmetic", "products"):
        (line,) = [x for x in done.stdout.splitlines() if x.startswith(f"FAIL  {name}")]
        assert verdicts[name] == "fail"
        assert "GPU 1" in line
        assert "uncorrectable ECC error" in line
    assert "h100-sxm5-80gb,bf16" not in done.stdout
    assert "no line for the table: gemm did not pass" in done.stdout


def test_a_page_that_cannot_be_written_costs_no_lines_for_the_table(node: Node) -> None:
    out = node.cli.state.parent / "out"

    def stand_in_the_way() -> None:
        while not (out / "runs" / "facts.html").exists():  # after the first step of two
            time.sleep(0.01)
        (out / "runs" / "products.html").mkdir()

    thread = threading.Thread(target=stand_in_the_way, daemon=True)
    thread.start()
    done, _ = qualify(node, "--only", "products")
    thread.join()

    assert done.returncode == 2
    assert "products.html cannot be written" in done.stderr
    assert "h100-sxm5-80gb,bf16,sustained," in done.stdout


def test_an_interrupt_keeps_what_is_done(node: Node) -> None:
    node.cli.site("")  # with the checks of the tests
    folder = node.cli.config.parent / "suites" / "qualification"
    waits = '[[check]]\nname = "naughty"\nparams.way = "wait"\n'
    (folder / "links.toml").write_text(f'summary = "waits"\nbudget = 300\n{waits}')
    out = node.cli.state.parent / "out"
    only = ("--only", "links", "--only", "corruption")
    command = [*node.cli.command, "qualify", "-o", str(out), *only]
    environment = {**node.cli.environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("[2/3]"):
                running.send_signal(signal.SIGINT)
                break
        running.stdout.read()
    text = (out / "qualification.md").read_text()

    assert running.returncode == 3
    assert (out / "runs" / "facts.json").exists()
    assert "it was interrupted." in text
    assert read_verdicts(out)["corruption"] == "error"
    assert text.partition("## corruption: error")[2].count("interrupted before it began") == 1
