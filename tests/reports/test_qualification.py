"""The page of a qualification says what each step came to, beside what it is held against."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from hpcverify.model import Verdict
from hpcverify.records.qualification import (
    Comparison,
    Count,
    Figure,
    GpuFacts,
    Qualification,
    ReachedLine,
    StepReport,
    format_line,
)
from hpcverify_reports.qualification import markdown, render
from tests.reports.dom import Dom
from tests.reports.samples import HOSTILE
from tests.reports.test_browser import chromium

MODEL = "NVIDIA H100 80GB HBM3"
LINE = ReachedLine(
    part="h100-sxm5-80gb",
    quantity="bf16",
    mode="sustained",
    reached="706",
    unit="TFLOP/s",
    confidence="A",
    source="measured by hpcverify 0.1.0 on 2026-11-22, driver 565.57.01: median of 8 GPUs",
)


def a_qualification() -> Qualification:
    """Make one with a step of each kind of end."""
    figure = Figure(
        check="gemm",
        quantity="bf16.sustained",
        unit="GFLOP/s",
        model=MODEL,
        parts=8,
        median=706e3,
        lowest=690e3,
        highest=720e3,
        lowest_part="GPU 2 (…b3d8)",
        compared=(Comparison("bare loop", 710e3), Comparison("data sheet", 989e3)),
    )
    counts = (
        Count(what="products called wrong", events=0, tries=2_000_000, bound=1.5e-6),
        Count(what="alarms without a fault", events=0, tries=2, bound=1.0),
    )
    steps = (
        StepReport(
            name="products",
            question="how fast?",
            verdict=Verdict.PASS,
            seconds=120,
            budget=480,
            run="runs/products.json",
            figures=(figure,),
            notes=("nccl_tests: left out: not installed",),
        ),
        StepReport(
            name="corruption",
            question="how often wrong?",
            verdict=Verdict.FAIL,
            reason="sdc: GPU 3 (…4f21): a product was wrong",
            seconds=900,
            budget=1500,
            run="runs/corruption.json",
            counts=counts,
        ),
        StepReport(
            name="quick",
            question="how long?",
            verdict=Verdict.ERROR,
            reason="interrupted before it began",
            budget=420,
        ),
    )
    return Qualification(
        hpcverify="0.1.0",
        started=datetime(2026, 11, 22, 9, tzinfo=UTC),
        seconds=1020,
        complete=False,
        verdict=Verdict.FAIL,
        machine={"product": "PowerEdge XE9680", "os": "Debian GNU/Linux 13"},
        gpus=tuple(GpuFacts(label=f"GPU {i}", name=MODEL) for i in range(8)),
        versions={"torch": "2.13.0"},
        steps=steps,
        reached=(LINE,),
        not_reached=("p2p: it did not pass",),
    )


FORMS = pytest.mark.parametrize("write", [render, markdown])


def test_the_page_has_no_scripts_and_loads_nothing() -> None:
    page = Dom(render(a_qualification()))

    assert not {"script", "img", "link", "iframe"} & set(page.tags())


@pytest.mark.parametrize(
    "text",
    [
        "8 x NVIDIA H100 80GB HBM3",
        "3 steps in 17 min: 1 pass, 1 error, 1 fail; it was interrupted.",
        "sdc: GPU 3 (…4f21): a product was wrong",
        "706 TFLOP/s",
        "690 TFLOP/s (GPU 2 (…b3d8)) to 720 TFLOP/s",
        "99.4 % of bare loop 710 TFLOP/s; 71.4 % of data sheet 989 TFLOP/s",
        "2,000,000",
        "more than 1 in 666,667",
        "too few to say",
        "interrupted before it began",
        "p2p: it did not pass",
        format_line(LINE),
    ],
)
def test_the_page_and_the_markdown_say(text: str) -> None:
    written = markdown(a_qualification()).replace("\\", "")

    assert text in Dom(render(a_qualification())).text
    assert text in written


@FORMS
def test_the_same_qualification_gives_the_same_bytes(write: object) -> None:
    assert callable(write)
    assert write(a_qualification()) == write(a_qualification())


def test_models_are_named_in_each_row_only_where_they_differ() -> None:
    report = a_qualification()
    mixed = msgspec.structs.replace(
        report, gpus=(*report.gpus, GpuFacts(label="GPU 8", name="NVIDIA L40S"))
    )

    assert "8 x GPU" in Dom(render(report)).text
    assert f"8 x {MODEL}" in markdown(mixed)


def test_text_from_outside_comes_out_as_text() -> None:
    report = a_qualification()
    steps = tuple(
        msgspec.structs.replace(step, reason=HOSTILE, notes=(HOSTILE,)) for step in report.steps
    )
    page = render(msgspec.structs.replace(report, steps=steps, not_reached=(HOSTILE,)))

    assert "script" not in Dom(page).tags()
    assert "\x1b" not in page
    assert "\u202e" not in page


@pytest.mark.browser
def test_a_browser_paints_the_page(tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    size = ("--window-size=1280,1600", f"--screenshot={picture}")
    chromium(render(a_qualification()), tmp_path, *size)

    # A blank page of this size is compressed to under 10 kB.
    assert picture.stat().st_size > 40_000
