"""
Run ``all_reduce_perf`` of nccl-tests over all GPUs, where it is installed.

It is what vendors and sites quote bus bandwidths from, so `allreduce` is held against it.
Both count 2 (n - 1) / n of a message as its bus traffic, and both are in place here.
nccl-tests gives the mean time of a step, our check the median.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify_checks.ranks.nccl_tests import INSTALL_FIX, PROGRAM, run_all_reduce
from hpcverify_checks.ranks.sizes import format_size

USUAL_SECONDS = 60.0


class NcclTestsParams(hv.Params, frozen=True):
    """The range of message sizes, in bytes, each a number of times the one before."""

    least: Annotated[int, Meta(ge=1)] = 2**16
    most: Annotated[int, Meta(ge=1)] = 2**32
    factor: Annotated[int, Meta(ge=2)] = 4
    steps: Annotated[int, Meta(ge=1)] = 20
    timeout_seconds: Annotated[float, Meta(gt=0)] = 240.0


def estimate(_ctx: hv.Context, _params: NcclTestsParams) -> float:
    """Assume so much: 25 steps of each size, and the check of its results on the host."""
    return USUAL_SECONDS


def measure(ctx: hv.Context, params: NcclTestsParams) -> Iterator[hv.CheckItem]:
    """Yield the bus bandwidth of each message size."""
    gpus = sum(device.kind == "cuda" for device in ctx.inventory.devices)
    if gpus < 2:  # noqa: PLR2004 - a pair
        raise hv.Skip("fewer than two GPUs: nothing to reduce with")
    if shutil.which(PROGRAM) is None:
        raise hv.Skip(f"{PROGRAM} is not installed: {INSTALL_FIX}", hv.Cause.MISSING)
    sizes = ["-b", str(params.least), "-e", str(params.most), "-f", str(params.factor)]
    arguments = [*sizes, "-g", str(gpus), "-n", str(params.steps)]
    rows = run_all_reduce(arguments, timeout=params.timeout_seconds)
    for row in rows:
        if row.has_wrong:
            text = f"{PROGRAM} counts {row.wrong:g} wrong elements of {format_size(row.size)}"
            yield hv.Finding("wrong_sum", "node", text)
        yield hv.Measurement(f"busbw.{format_size(row.size)}", row.busbw, "GB/s")
        yield hv.Measurement(f"time.{format_size(row.size)}", row.time_us, "us")
    command = " ".join([PROGRAM, *arguments])
    yield hv.Coverage("node", f"{command}: in place, the mean of {params.steps} steps")


CHECK = hv.Check(
    summary="bus bandwidth by all_reduce_perf of nccl-tests",
    measure=measure,
    params=NcclTestsParams,
    metrics={
        "busbw.*": hv.Metric("GB/s", "low", "bus bandwidth of the mean step, in place"),
        "time.*": hv.Metric("us", "high", "mean time of a step, in place"),
    },
    # Which GPU is at fault, its output does not say: `allreduce` does.
    finding_rules=hv.warn_on("wrong_sum"),
    estimate=estimate,
    placement=hv.Placement.DEVICES_TOGETHER,
    timeout=300.0,
)
