"""
Run ``all_reduce_perf`` of nccl-tests over all GPUs, where it is installed.

It is what vendors and sites quote bus bandwidths from, so `allreduce` is held against it.
Both count 2 (n - 1) / n of a message as its bus traffic, and both are in place here.
nccl-tests gives the mean time of a step, our check the median.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from msgspec import Struct

from hpcverify.check import (
    Cause,
    Check,
    CheckItem,
    Context,
    Coverage,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Params,
    Placement,
    Remedy,
    Skip,
    Unable,
    Verdict,
)
from hpcverify.processes import run_tool
from hpcverify_checks.common.sizes import format_size

PROGRAM = "all_reduce_perf"
INSTALL_FIX = (
    "git clone https://github.com/NVIDIA/nccl-tests, make there, and put its build folder into PATH"
)
ROW_FIELDS = 12
"""Of a row without a root: size, count, type, operation, and four fields for each of the two
ways. Newer versions have a root in between."""
COLUMNS_PER_WAY = 4
"""Time, algorithm bandwidth, bus bandwidth, errors."""
NOT_CHECKED = "N/A"
"""In the place of the errors, where results are not checked."""


USUAL_SECONDS = 60.0


class NcclTestsParams(Params, frozen=True):
    """The range of message sizes, in bytes, each a number of times the one before."""

    least: int = 2**16
    most: int = 2**32
    factor: int = 4
    steps: int = 20
    timeout_seconds: float = 240.0


class BusRow(Struct, frozen=True):
    """One row of the table: the size in bytes, in-place time (µs) and bus bandwidth (GB/s)."""

    size: int
    time_us: float
    busbw: float
    wrong: float | None
    """Wrong elements, or in old versions the largest error, which is below 1; None if it was
    not checked."""


def estimate(_ctx: Context, _params: NcclTestsParams) -> float:
    """Assume so much: 25 steps of each size, and the check of its results on the host."""
    return USUAL_SECONDS


def measure(ctx: Context, params: NcclTestsParams) -> Iterator[CheckItem]:
    """Yield the bus bandwidth of each message size."""
    gpus = sum(device.kind == "cuda" for device in ctx.inventory.devices)
    if gpus < 2:  # noqa: PLR2004 - a pair
        raise Skip("fewer than two GPUs: nothing to reduce with")
    if shutil.which(PROGRAM) is None:
        raise Skip(f"{PROGRAM} is not installed: {INSTALL_FIX}", Cause.MISSING)
    sizes = ["-b", str(params.least), "-e", str(params.most), "-f", str(params.factor)]
    command = [PROGRAM, *sizes, "-g", str(gpus), "-n", str(params.steps)]
    done = run_tool(command, timeout=params.timeout_seconds)
    text = done.stdout.decode(errors="replace")
    rows = parse_rows(text)
    if done.returncode != 0 or not rows:
        said = [*text.splitlines(), *done.stderr.decode(errors="replace").splitlines()]
        last = next((line.strip() for line in reversed(said) if line.strip()), "nothing")
        raise Unable(
            f"{PROGRAM} ended with {done.returncode}; its last line: {last}: run it by hand: "
            f"{' '.join(command)}",
            Cause.CRASHED,
        )
    for row in rows:
        if row.wrong is not None and row.wrong >= 1:
            text = f"{PROGRAM} counts {row.wrong:g} wrong elements of {format_size(row.size)}"
            yield Finding("wrong_sum", "node", text)
        yield Measurement(f"busbw.{format_size(row.size)}", row.busbw, "GB/s")
        yield Measurement(f"time.{format_size(row.size)}", row.time_us, "us")
    yield Coverage("node", f"{' '.join(command)}: in place, the mean of {params.steps} steps")


def parse_rows(text: str) -> list[BusRow]:
    """
    Read the table of nccl-tests, of any version; rows of other text are left out.

    The last eight fields of a row are time, algbw, busbw and errors: out of place, then in
    place. Versions before 2.12 print no root, and the largest error in place of a count.
    """
    rows = (_parse_row(line.split()) for line in text.splitlines())
    return [row for row in rows if row]


def _parse_row(fields: list[str]) -> BusRow | None:
    if len(fields) < ROW_FIELDS or not fields[0].isdecimal() or not fields[1].isdecimal():
        return None
    time, _, busbw, wrong = fields[-COLUMNS_PER_WAY:]
    try:
        error = None if wrong == NOT_CHECKED else float(wrong)
        return BusRow(int(fields[0]), float(time), float(busbw), error)
    except ValueError:  # a line of a log that begins with two numbers
        return None


CHECK = Check(
    summary="bus bandwidth by all_reduce_perf of nccl-tests",
    measure=measure,
    params=NcclTestsParams,
    metrics={
        "busbw.*": Metric(unit="GB/s", meaning="bus bandwidth of the mean step, in place"),
        "time.*": Metric(unit="us", meaning="mean time of a step, in place"),
    },
    # Which GPU is at fault, its output does not say: `allreduce` does.
    finding_rules={"wrong_sum": FindingRule(Verdict.WARN, Remedy.INSPECT)},
    estimate=estimate,
    placement=Placement.DEVICES_TOGETHER,
    timeout=300.0,
)
