"""A qualification to print: made up, with a step of each kind of end."""

from __future__ import annotations

from datetime import UTC, datetime

from hpcverify.model import Verdict
from hpcverify.qualification import (
    Count,
    MeasuredFigure,
    Qualification,
    QualificationStep,
    StepReport,
)

MODEL = "NVIDIA H100 80GB HBM3"
LINE = (
    "h100-sxm5-80gb,bf16,sustained,706,TFLOP/s,A,"
    '"measured by hpcverify 0.1.0 on 2026-11-22, driver 565.57.01: median of 8 GPUs"'
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
        compared=(("bare loop", 710e3), ("data sheet", 989e3)),
    )
    counts = (
        Count("products called wrong", 0, 2_000_000),
        Count("alarms without a fault", 0, 2),
    )
    steps = (
        StepReport(
            step=QualificationStep(name="products", question="how fast?", budget=480),
            verdict=Verdict.PASS,
            seconds=120,
            figures=(figure,),
            notes=("nccl_tests: left out: not installed",),
        ),
        StepReport(
            step=QualificationStep(name="corruption", question="how often wrong?", budget=1500),
            verdict=Verdict.FAIL,
            reason="sdc: GPU 3 (…4f21): a product was wrong",
            seconds=900,
            counts=counts,
        ),
        StepReport(
            step=QualificationStep(name="quick", question="how long?", budget=420),
            verdict=Verdict.ERROR,
            reason="interrupted before it began",
        ),
    )
    return Qualification(
        started=datetime(2026, 11, 22, 9, tzinfo=UTC),
        seconds=1020,
        complete=False,
        machine={"product": "PowerEdge XE9680", "os": "Debian GNU/Linux 13"},
        gpus=(MODEL,) * 8,
        versions={"hpcverify": "0.1.0", "torch": "2.13.0"},
        steps=steps,
        reached=(LINE,),
        not_reached=("p2p: it did not pass",),
    )
