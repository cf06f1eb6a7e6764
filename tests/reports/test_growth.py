"""
The work of each output grows with the document, not with its square.

A node writes its document itself: one of 2 MB has room for 5,000 failed parts. Calls are counted,
so that the result does not depend on how fast the machine is.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import pytest

from hpcverify.check import judge
from hpcverify.commands.report import add_actions
from hpcverify.fleet.evidence import extract_evidence
from hpcverify.metrics.node import list_run_families
from hpcverify.model import (
    Coverage,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Measurement,
    Part,
    Remedy,
    Result,
    Run,
    Series,
    Verdict,
)
from hpcverify.plan.config import Site
from hpcverify.records.store import Store
from hpcverify.summary.terminal import Console, show_run
from hpcverify_reports.node import render
from hpcverify_reports.text import junit, markdown
from tests.doubles import a_run

PARTS = 40
REPLACE = FindingRule(Verdict.FAIL, Remedy.REPLACE)


def make_alike(count: int) -> Run:
    """Make a run of *count* parts of one model that all fail the same checks."""
    gpus = tuple(Part("gpu", f"gpu-{i}", f"GPU {i}", {"name": "H100"}) for i in range(count))
    remap = Limit(name="remap.failed", high=0, source="NVIDIA")
    heat = Limit(name="temperature.headroom.min", low=5, source="NVIDIA")
    return make_run(
        gpus,
        make_result("ecc", [Measurement("remap.failed", 1.0, "", g.id) for g in gpus], remap),
        make_result("thermal", [Measurement(heat.name, 9.0, "°C", g.id) for g in gpus], heat),
        find("xid", [Finding("xid_79", text=f"lost at {g.id}", part_id=g.id) for g in gpus]),
    )


def make_unlike(count: int) -> Run:
    """Make a run of *count* parts, each with facts, checks, metrics and codes of its own."""
    gpus = tuple(
        Part("gpu", f"gpu-{i}", f"GPU {i}", {"name": f"model {i}", f"fact_{i}": "x"})
        for i in range(count)
    )
    limits = tuple(Limit(name=f"m{i}", high=0, source="x") for i in range(count))
    measured = [Measurement(f"m{i}", 1.0, "GB/s", g.id) for i, g in enumerate(gpus)]
    series = [Series(f"m{i}", "GB/s", g.id, (0.0, 1.0), (1.0, 2.0)) for i, g in enumerate(gpus)]
    return make_run(
        gpus,
        make_result("ecc", measured, *limits, series=tuple(series)),
        *(
            find(f"c{i}", [Finding(f"f{i}", text=f"bad {i}", part_id=gpu.id)], gpu.id)
            for i, gpu in enumerate(gpus)
        ),
    )


def make_result(
    check: str, measured: list[Measurement], *limits: Limit, series: tuple[Series, ...] = ()
) -> Result:
    return Result(
        check=check,
        verdict=Verdict.PASS,
        measurements=tuple(measured),
        limits=limits,
        series=series,
    )


def find(check: str, findings: list[Finding], *covered: str) -> Result:
    return Result(
        check=check,
        verdict=Verdict.PASS,
        findings=tuple(findings),
        rulings={finding.code: REPLACE for finding in findings},
        coverage=tuple(Coverage(part_id, "read") for part_id in covered),
    )


def make_run(parts: tuple[Part, ...], *results: Result) -> Run:
    inventory = Inventory(parts=parts)
    return a_run(
        results=tuple(judge(result, inventory) for result in results),
        verdict=Verdict.FAIL,
        inventory=inventory,
        started=datetime(2026, 11, 1, tzinfo=UTC),
    )


def print_terminal(run: Run, _: Path) -> None:
    show_run(run, Console(file=io.StringIO()))


OUTPUTS: dict[str, Callable[[Run, Path], object]] = {
    "page": lambda run, _: render(run, history=[run, run]),
    "markdown": lambda run, _: markdown(run),
    "junit": lambda run, _: junit(run),
    "json": lambda run, folder: add_actions(run, Store(folder), None),
    "terminal": print_terminal,
    "metrics": lambda run, _: list(list_run_families(run)),
    "ledger": lambda run, _: extract_evidence(run, None, Site(), 0.0),
    "judge": lambda run, _: [judge(result, run.inventory) for result in run.results],
}


@pytest.mark.parametrize("make", [make_alike, make_unlike])
@pytest.mark.parametrize("output", OUTPUTS)
def test_twice_the_failed_parts_are_at_most_twice_the_work(
    output: str, make: Callable[[int], Run], tmp_path: Path
) -> None:
    write = OUTPUTS[output]
    write(make(2), tmp_path)  # what is made once, such as templates

    few, many = (count_calls(write, make(count), tmp_path) for count in (PARTS, 2 * PARTS))

    assert many < 2.2 * few


def count_calls(write: Callable[[Run, Path], object], run: Run, folder: Path) -> int:
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        write(run, folder)
    finally:
        sys.setprofile(before)
    return calls
