"""
Measure the throughput of matrix products, data type by data type.

Each type that the part has hardware for runs without a pause, in a shape that fills the
part: first a burst, then long enough for power and heat to settle. The two are judged
apart, since a good part bursts faster than it sustains. The operands are random normal
numbers: zeros or small integers would toggle fewer wires, draw less power and look
faster than real work. On a GPU, events on the device time every step and the host stays
only a few steps ahead, so neither Python nor a wait is part of the result. On a CPU,
each core is also timed alone, and the CPU time says on how many of them the library works
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.limits.specs import DTYPES
from hpcverify.stats import find_percentile
from hpcverify.telemetry import cpu
from hpcverify.telemetry.thinning import thin
from hpcverify.units import GIGA
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.node.contention import MAX_OTHER_CORES, CpuUsage
from hpcverify_checks.node.cores import format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import (
    find_torch_device,
    list_native_dtypes,
    read_amd_architecture,
    report_left_out,
    report_overrides,
    require_memory,
    use_float32_precision,
    use_threads,
)
from hpcverify_checks.node.dtypes import (
    AMD_DTYPES,
    DTYPE_REFUSED_CODE,
    DTYPE_REFUSED_RULE,
    find_refusal,
    report_refused_dtype,
)
from hpcverify_checks.node.estimates import count_dtypes, count_threads
from hpcverify_checks.node.peaks import NO_CLOCK, Peak, find_peak
from hpcverify_checks.node.timing import choose_timer, make_product_step, time_on_host

if TYPE_CHECKING:
    import torch

GPU_SIZE = 8192
CPU_SIZES = ((32, 4096), (2, 2048), (1, 1024))
"""(Cores, size): what fills a CPU of that many cores, with steps short enough to get many. A
library may compute less than 2048^3 in bf16 on one core, with AMX (oneDNN of torch 2.13)."""
MIN_CORES_SHARE = 0.75
"""The least share of the cores, by CPU time: with less, a number is not that of all of them."""
LEAST_GAIN = 1.3
"""Times as fast as fp32: a narrower type that has units of its own is faster than that."""
CORES_UNUSED_CODE = "cores_unused"
CORE_SIZE = 512
SLOW_FP64_SIZE = 2048
"""The size for fp64 on parts where it is 1/32 of fp32 or less: steps under 0.1 s."""
FAST_FP64_CAPABILITIES = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities with fp64 at half the speed of fp32 or more."""
BYTES_PER_ELEMENT = 3 * 8
"""Two operands and a product, in the largest type."""
WARM_UP_SECONDS = 0.3
MAX_POINTS = 300
ALL_CORES_SECONDS = 15.0
"""The time for all cores in turn; those that do not fit wait for the next run."""


MakeStep = Callable[[str, int, "torch.device"], Callable[[], object]]
"""Makes the product that is timed, of a type and size; tests make one that is refused."""


class GemmParams(hv.Params, frozen=True):
    """Data types, times (seconds) and matrix size."""

    dtypes: tuple[str, ...] = ()
    """From fp64, fp32, tf32, fp16, bf16, fp8, int8; all native ones if empty."""
    burst_seconds: Annotated[float, Meta(gt=0)] = 1.0
    seconds: Annotated[float, Meta(gt=0)] = 5.0
    """Sustained load per type; the second half counts."""
    core_seconds: Annotated[float, Meta(ge=0)] = 0.2
    """The time for each CPU core alone; 0 skips them."""
    size: Annotated[int, Meta(ge=0)] = 0
    """Rows, columns and depth; 0 picks what fills the part."""


def estimate(ctx: hv.Context, params: GemmParams) -> float:
    """Add up the times of all types and, on a CPU, of as many cores as get a turn."""
    count = len(params.dtypes) or count_dtypes(ctx)
    seconds = count * (WARM_UP_SECONDS + params.burst_seconds + params.seconds)
    if ctx.device.kind != "cpu" or not params.core_seconds:
        return seconds
    fit = max(1, int(ALL_CORES_SECONDS / params.core_seconds))
    return seconds + min(fit, count_threads(ctx) or fit) * params.core_seconds


def measure(
    ctx: hv.Context, params: GemmParams, make_step: MakeStep = make_product_step
) -> Iterator[hv.CheckItem]:
    """Measure each type in turn: burst, sustained, and spread of the steps."""
    device = find_torch_device(ctx)
    import torch

    yield from report_overrides(ctx)
    native, on_cpu = list_native_dtypes(device), device.type == "cpu"
    began, rates = perf_counter(), dict[str, float]()
    for dtype in _choose_dtypes(params, native):
        with (
            use_float32_precision(FAMILIES[dtype].precision),
            hv.operation(f"{dtype} products", ctx.device),
            use_threads(count_physical_cores() if on_cpu else torch.get_num_threads()),
        ):
            size = params.size or choose_size(dtype, device)
            step = make_step(dtype, size, device)
            timer = choose_timer(device)
            if refusal := _warm_up(partial(timer, step, WARM_UP_SECONDS)):
                yield report_refused_dtype(ctx.device.part, dtype, refusal, "not measured")
                continue
            crowd = CpuUsage.read()
            burst = timer(step, params.burst_seconds)
            start = perf_counter() - began
            worked = process_time()
            sustained = timer(step, params.seconds)
            busy = (process_time() - worked) / sum(sustained)
            cores = torch.get_num_threads()
        load = GemmLoad(dtype, ctx.device.part, 2.0 * size**3, find_peak(ctx, dtype))
        numbers = report_steps(load, burst, sustained, start)
        if on_cpu:
            yield from report_cores(dtype, busy, cores, crowd.count_other_cores(CpuUsage.read()))
            numbers = crowd.omit_if_busy(name_contended_metrics(dtype), numbers)
        yield from numbers
        text = (
            f"{dtype}: {len(burst)} products of {size}^3 random normal numbers in a "
            f"burst of {sum(burst):.1f} s, {len(sustained)} more in {sum(sustained):.1f} s"
        )
        source = f"; peak from {load.peak.source}" if load.peak else ""
        yield hv.Coverage(load.part_id, f"{text}{source}")
        rates[dtype] = load.compute_rate(sustained)
    yield from report_left_out(ctx, device)
    if not on_cpu:
        return
    yield from report_emulated(rates)
    if find_peak(ctx, "fp32") is None:
        yield hv.Coverage(ctx.device.part, NO_CLOCK)
    if params.core_seconds:
        yield from _measure_cores(ctx, params)


def count_physical_cores() -> int:
    """Count the cores that we may use; threads of one core are one, where that is known."""
    physical = cpu.map_cores()
    return len({physical.get(core, ("", str(core))) for core in cpu.read_cores().allowed})


def report_cores(
    dtype: str, busy: float, cores: int, others: float
) -> Iterator[hv.Coverage | hv.Finding]:
    """
    Report how many *cores* were *busy* with us, in CPU seconds a second.

    If they were fewer, though no *others* used them, the throughput is not that of all.
    """
    text = f"{dtype}.sustained is the work of {busy:.1f} of {cores} cores"
    if busy < MIN_CORES_SHARE * cores and others <= MAX_OTHER_CORES:
        text += ": the library leaves cores idle, or they are not there for us"
        yield hv.Finding(CORES_UNUSED_CODE, "cpu", text)
    else:
        yield hv.Coverage("cpu", text)


def report_emulated(rates: Mapping[str, float]) -> Iterator[hv.Coverage]:
    """Report which types have *rates* (GFLOP/s) as if they were computed in fp32."""
    usual = rates.get("fp32")
    for dtype, rate in rates.items():
        if usual and dtype not in ("fp32", "fp64") and rate < LEAST_GAIN * usual:
            text = (
                f"{dtype}: {rate / usual:.2f} times as fast as fp32: the library converts it, and "
                "does not use the units that the CPU has for it"
            )
            yield hv.Coverage("cpu", text)


def name_contended_metrics(dtype: str) -> tuple[str, ...]:
    """Name the metrics left out on a CPU that others use."""
    return tuple(f"{dtype}.{name}" for name in ("burst", "step_p50", "spread"))


def _warm_up(work: Callable[[], object]) -> str:
    """Do the first *work* of a type; give the status with which the library declined it, if so."""
    try:
        work()
    except RuntimeError as exc:
        if not (status := find_refusal(exc)):
            raise
        return status
    return ""


def _choose_dtypes(params: GemmParams, native: frozenset[str]) -> tuple[str, ...]:
    unknown = set(params.dtypes) - native
    if unknown:
        raise hv.Unable(
            f"this part does not multiply {', '.join(sorted(unknown))} natively: remove "
            f"it from dtypes; this part has {', '.join(sorted(native))}",
            hv.Cause.MISCONFIGURED,
        )
    return params.dtypes or tuple(d for d in DTYPES if d in native)


def choose_size(dtype: str, device: torch.device) -> int:
    """Choose the size that fills the part: always the same for the same part."""
    import torch

    if device.type == "cpu":
        threads = torch.get_num_threads()
        return next(size for cores, size in CPU_SIZES if threads >= cores)
    slow = dtype == "fp64" and not has_fast_fp64(device)
    size = SLOW_FP64_SIZE if slow else GPU_SIZE
    require_memory(device, BYTES_PER_ELEMENT * size * size)
    return size


def has_fast_fp64(device: torch.device) -> bool:
    """Whether *device* multiplies fp64 at half the rate of fp32 or faster."""
    import torch

    if torch.version.hip is not None:
        return read_amd_architecture(device) in AMD_DTYPES
    return torch.cuda.get_device_capability(device) in FAST_FP64_CAPABILITIES


@dataclass(frozen=True, slots=True)
class GemmLoad:
    """What ran where, with how many operations per step, and the peak."""

    dtype: str
    part_id: str
    operations: float
    peak: Peak | None

    @property
    def unit(self) -> str:
        """Unit of the throughput: integer operations are not floating-point."""
        return "GOP/s" if self.dtype == "int8" else "GFLOP/s"

    def compute_rate(self, steps: Sequence[float]) -> float:
        """Compute the throughput over all *steps*, in 1e9 operations per second."""
        return len(steps) * self.operations / sum(steps) / GIGA


def report_steps(
    load: GemmLoad, burst: Sequence[float], sustained: Sequence[float], start: float
) -> Iterator[hv.CheckItem]:
    """Report the step times as measurements and a series that begins at *start*."""
    # Clocks still fall in the first half of the time.
    half = sum(sustained) / 2
    late = [s for s, end in zip(sustained, accumulate(sustained), strict=True) if end > half]
    late = late or list(sustained)
    steady = load.compute_rate(late)
    typical, slow = (find_percentile(late, share) for share in (0.5, 0.95))
    numbers = {
        "burst": (load.operations / median(burst) / GIGA, load.unit),
        "sustained": (steady, load.unit),
        "step_p50": (typical * 1e3, "ms"),
        "step_p95": (slow * 1e3, "ms"),
        "spread": (slow / typical, "ratio"),
    }
    if load.peak:
        numbers["of_peak"] = (steady / load.peak.value, "ratio")
        if load.peak.derived:
            numbers["peak_derived"] = (load.peak.value, load.unit)
    for name, (value, unit) in numbers.items():
        yield hv.Measurement(f"{load.dtype}.{name}", value, unit, load.part_id)
    times = [start + t for t in accumulate(sustained)]
    rates = [load.operations / step / GIGA for step in sustained]
    t, values = thin(times, rates, MAX_POINTS)
    yield hv.Series(f"{load.dtype}.rate", load.unit, load.part_id, tuple(t), tuple(values))


def _measure_cores(ctx: hv.Context, params: GemmParams) -> Iterator[hv.CheckItem]:
    # One after the other, so that none slows another.
    allowed = cpu.read_cores().allowed
    fit = max(1, int(ALL_CORES_SECONDS / params.core_seconds))
    chosen = pick_cores(allowed, fit, ctx.rotation)
    work = partial(_measure_core, params.core_seconds)
    for core in chosen:
        with hv.operation(f"fp32 products on core {core}", ctx.device):
            [rate] = run_on_each([core], work)
        yield hv.Measurement("fp32.core", rate, "GFLOP/s", f"cpu{core}")
    every = format_ranges(cpu.read_cores().online)
    yield hv.Coverage(
        ctx.device.part,
        f"fp32 on cores {format_ranges(chosen)} of {every}, one at a time, "
        f"{params.core_seconds:g} s each",
    )


def _measure_core(seconds: float, _core: int) -> float:
    import torch

    step = make_product_step("fp32", CORE_SIZE, torch.device("cpu"))
    time_on_host(step, 0.0)
    # CPU time of the thread: other processes on this core must not make it look slower.
    steps = time_on_host(step, seconds, thread_time)
    return 2.0 * CORE_SIZE**3 / median(steps) / GIGA


SPREAD_SOURCE = (
    "hpcverify default: good GPUs at their power limit differ by 8 % (arXiv 2208.11035), more if "
    "one row breathes the warm air of the other"
)

CHECK = hv.Check(
    summary="throughput of matrix products, for each type the part has units for",
    measure=measure,
    estimate=estimate,
    params=GemmParams,
    metrics={
        "int8.burst": hv.Metric("GOP/s", "low", "throughput of a short burst"),
        "int8.sustained": hv.Metric("GOP/s", "low", "throughput that lasts"),
        "*.burst": hv.Metric("GFLOP/s", "low", "throughput of a short burst").warn(
            of_spec=0.75,
            of_baseline=0.7,
            source="hpcverify default: only what lasts fails a part; a burst may begin hot",
        ),
        "*.sustained": hv.Metric("GFLOP/s", "low", "throughput that lasts")
        .fail(of_spec=0.9, of_siblings=0.8, source=SPREAD_SOURCE)
        .warn("*sustained", of_spec=0.9, of_siblings=0.9, source=SPREAD_SOURCE),
        "*.step_p50": hv.Metric("ms", "high", "median time of a product").warn(of_baseline=1.4),
        "*.step_p95": hv.Metric("ms", "high", "95 % of products take at most this"),
        "*.spread": hv.Metric("ratio", "high", "step_p95 / step_p50").warn(
            high=3.0,
            remedy=hv.Remedy.RERUN,
            source="hpcverify default: something else may load the node",
        ),
        "*.of_peak": hv.Metric("ratio", "low", "sustained / dense peak of the part"),
        "*.peak_derived": hv.Metric(
            "GFLOP/s", "neither", "peak from cores, clock and vector width"
        ),
        "*.core": hv.Metric("GFLOP/s", "low", "throughput of one core alone").warn(of_siblings=0.5),
    },
    finding_rules={
        DTYPE_REFUSED_CODE: DTYPE_REFUSED_RULE,
        # Says so in the reason of a PASS: the library may do so on every node of the kind.
        CORES_UNUSED_CODE: hv.FindingRule(hv.Verdict.PASS, hv.Remedy.INSPECT),
    },
    placement=hv.Placement.DEVICES,
    timeout=600.0,
)
