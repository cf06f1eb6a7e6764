"""A qualification to print: made up, with a step of each kind of end."""

from __future__ import annotations

from datetime import UTC, datetime

from hpcverify.model import Verdict
from hpcverify.records.qualification import (
    Comparison,
    Count,
    GpuFacts,
    MeasuredFigure,
    Qualification,
    ReachedLine,
    StepReport,
)

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
    figure = MeasuredFigure(
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
        topology="\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X ",
        steps=steps,
        reached=(LINE,),
        not_reached=("p2p: it did not pass",),
    )
