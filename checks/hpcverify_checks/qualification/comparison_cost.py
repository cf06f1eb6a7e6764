"""
Measure what it costs to compare every product: hunts of `sdc` against the same products alone.

The two take turns, so that heat and clocks are the same for both, and the median of the
ratios counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import hpcverify.check as hv
from hpcverify_checks.exact.kernels import load_comparison
from hpcverify_checks.exact.product_loop import ProductBench, ProductSeams, compare, hunt
from hpcverify_checks.exact.products import view_shifted
from hpcverify_checks.node.device import find_torch_device, use_float32_precision, wait_for_device
from hpcverify_checks.qualification import require_gpu
from hpcverify_checks.sdc import PREPARE_SECONDS, SdcParams, choose_shape
from hpcverify_checks.sdc.offsets import try_offsets
from hpcverify_checks.sdc.prepare import DeviceTask, References, list_families, prepare

Clock = Callable[[], float]
"""Seconds since whenever; tests have one that stands still."""
PAIRS = 7
MIN_PRODUCTS = 16


def estimate(_ctx: hv.Context, params: SdcParams) -> float:
    """Add the making of operands and proofs to the time of the pairs."""
    return PREPARE_SECONDS + params.seconds


def measure(ctx: hv.Context, params: SdcParams) -> Iterator[hv.CheckItem]:
    """Yield for each type how much longer a checked product takes."""
    require_gpu(ctx)
    device, references = find_torch_device(ctx), References()
    compared = load_comparison(device)[0]
    families = list_families(device)
    for family in families:
        shape = choose_shape(family, device, params)
        seams = ProductSeams(compare=compared)
        task = DeviceTask(ctx, family, shape, device, seams, references=references)
        with (
            use_float32_precision(family.precision),
            hv.operation(f"{family.name} products", ctx.device),
        ):
            (trial,) = try_offsets([task])
            if not trial.task.shifts:
                yield hv.Coverage(ctx.device.part, trial.describe())
                continue
            bench = trial.task.make_bench(ctx.device.part, prepare(trial.task).jobs)
            ratio, count = compare_in_pairs(bench, params.seconds / len(families))
        yield hv.Measurement(f"{family.name}.checked_over_bare", ratio, "ratio", ctx.device.part)
        text = f"{family.name}: {PAIRS} pairs of {count} products of {shape.size} x {shape.depth}"
        yield hv.Coverage(ctx.device.part, text)
    how = "torch's own operations" if compared is compare else "one kernel of Triton's"
    yield hv.Coverage(ctx.device.part, f"compared by {how}")


def compare_in_pairs(
    bench: ProductBench, seconds: float, clock: Clock = perf_counter
) -> tuple[float, int]:
    """Take `PAIRS` in about *seconds*; return the median ratio, and the products of each."""
    time_bare(bench, len(bench.jobs), clock)
    once = time_bare(bench, MIN_PRODUCTS, clock)
    count = max(MIN_PRODUCTS, int(seconds / (2 * PAIRS * once)))
    ratios = list[float]()
    for _ in range(PAIRS):
        began = clock()
        hunted = hunt(bench, lambda products: products >= count)
        ratios.append((clock() - began) / hunted.products / time_bare(bench, count, clock))
    return median(ratios), count


def time_bare(bench: ProductBench, count: int, clock: Clock) -> float:
    """Time one of *count* products that nobody looks at, in seconds."""
    device = bench.outputs[0].device
    wait_for_device(device)
    began = clock()
    for number in range(count):
        job, shift = bench.get_job(number)
        bench.seams.multiply(*view_shifted(job.a, job.b, shift), bench.get_output(number))
    wait_for_device(device)
    return (clock() - began) / count


CHECK = hv.Check(
    summary="how much longer a product takes that is compared bit by bit",
    measure=measure,
    params=SdcParams,
    metrics={
        "*.checked_over_bare": hv.Metric("ratio", "high", "time of a checked product / alone")
    },
    applies=require_gpu,
    estimate=estimate,
    placement=hv.Placement.DEVICES,
    timeout=600.0,
)
