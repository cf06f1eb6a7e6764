"""Runs of a small fleet over some nights, to write and to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hpcverify.history.writer import MeasurementWriter
from hpcverify.model import Inventory, Measurement, Part, Result, Run, Verdict

FIRST = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
"""A Monday."""
DRIVER = "565.57.01"


def make_run(
    node: str,
    night: int = 0,
    value: float | None = 500.0,
    *,
    driver: str = DRIVER,
    gpus: int = 2,
    passive: bool = False,
    complete: bool = True,
) -> Run:
    """Make the run of *node* on the *night* after the first: *value* on its first GPU."""
    started = FIRST + timedelta(days=night)
    parts = [
        Part("gpu", f"GPU-{node}-{i}", f"GPU {i}", {"name": "H100", "driver": driver})
        for i in range(gpus)
    ]
    figures = [value, *(500.0 + i for i in range(1, gpus))]
    measured = [
        Measurement("bf16.sustained", figure, "TFLOP/s", part.id)
        for part, figure in zip(parts, figures, strict=True)
    ]
    number = int.from_bytes(node.encode()[-3:])
    return Run(
        id=f"{started:%Y%m%d-%H%M%S}-{number:06x}",
        node=node,
        suite="idle",
        started=started,
        seconds=60,
        verdict=Verdict.PASS,
        complete=complete,
        passive=passive,
        inventory=Inventory(parts=tuple(parts)),
        results=(
            Result(check="gemm", verdict=Verdict.PASS, measurements=tuple(measured)),
            Result(
                check="storage",
                verdict=Verdict.WARN,
                measurements=(Measurement("read", 3.5, "GB/s"),),
            ),
        ),
    )


def write_runs(state: Path, *runs: Run, night: int = 0, keep_nights: int = 100) -> None:
    """Write *runs* as one collect does, on the *night* after the first."""
    writer = MeasurementWriter(state, print, lambda: FIRST + timedelta(days=night))
    for run in runs:
        writer.add(run)
    writer.flush()
    writer.write(keep_nights)
