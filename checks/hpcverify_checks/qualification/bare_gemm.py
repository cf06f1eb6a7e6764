"""
Measure the throughput of matrix products with the plainest loop that there is.

`gemm` must reach what this reaches. The products and their operands are the same. Here the
host starts them one after the other, and two events of the GPU say how long a row of them
took; the check has an event for each, and a host that stays only a few ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.limits.specs import DTYPES
from hpcverify.units import GIGA
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.gemm import WARM_UP_SECONDS, choose_size
from hpcverify_checks.node.device import (
    find_torch_device,
    list_native_dtypes,
    use_float32_precision,
)
from hpcverify_checks.node.estimates import count_dtypes
from hpcverify_checks.node.timing import make_product_step
from hpcverify_checks.qualification import require_gpu

ROW_SHARE = 0.02
"""The share of the time, about what the products between two looks at the clock take."""


class BareGemmParams(hv.Params, frozen=True):
    """Times in seconds, for each type; as for `gemm`, the second half of the long one counts."""

    burst_seconds: Annotated[float, Meta(gt=0)] = 1.0
    seconds: Annotated[float, Meta(gt=0)] = 5.0
    size: Annotated[int, Meta(ge=0)] = 0
    """Rows, columns and depth; 0 picks what `gemm` does."""


def estimate(ctx: hv.Context, params: BareGemmParams) -> float:
    """Add up the times of all types."""
    return count_dtypes(ctx) * (2 * WARM_UP_SECONDS + params.burst_seconds + params.seconds)


def measure(ctx: hv.Context, params: BareGemmParams) -> Iterator[hv.CheckItem]:
    """Measure each type in turn: burst and sustained."""
    require_gpu(ctx)
    device = find_torch_device(ctx)
    native = list_native_dtypes(device)
    for dtype in (d for d in DTYPES if d in native):
        with (
            use_float32_precision(FAMILIES[dtype].precision),
            hv.operation(f"{dtype} products", ctx.device),
        ):
            size = params.size or choose_size(dtype, device)
            product = make_product_step(dtype, size, device)
            repeat_rows(product, 1, WARM_UP_SECONDS)
            once = repeat_rows(product, 1, WARM_UP_SECONDS)
            row = max(1, int(ROW_SHARE * params.seconds / once))
            burst = repeat_rows(product, row, params.burst_seconds)
            repeat_rows(product, row, params.seconds / 2)
            sustained = repeat_rows(product, row, params.seconds / 2)
        unit = "GOP/s" if dtype == "int8" else "GFLOP/s"
        for name, seconds in (("burst", burst), ("sustained", sustained)):
            rate = 2.0 * size**3 / seconds / GIGA
            yield hv.Measurement(f"{dtype}.{name}", rate, unit, ctx.device.part)
        yield hv.Coverage(
            ctx.device.part, f"{dtype}: rows of {row} products of {size}^3, no checks"
        )


def repeat_rows(product: Callable[[], object], row: int, seconds: float) -> float:
    """Multiply for *seconds*, and compute the seconds of one product by the GPU's clock."""
    import torch

    first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    count, until = 0, perf_counter() + seconds
    first.record()
    while not count or perf_counter() < until:
        for _ in range(row):
            product()
        last.record()
        last.synchronize()
        count += row
    return float(first.elapsed_time(last)) / 1e3 / count


CHECK = hv.Check(
    summary="matrix products in a bare loop, to hold gemm against",
    measure=measure,
    params=BareGemmParams,
    metrics={
        "int8.*": hv.Metric("GOP/s", "low", "throughput of the bare loop"),
        "*": hv.Metric("GFLOP/s", "low", "throughput of the bare loop"),
    },
    applies=require_gpu,
    estimate=estimate,
    placement=hv.Placement.DEVICES,
    timeout=900.0,
)
