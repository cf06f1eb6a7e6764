"""
Load the device steadily and watch whether heat or power holds it back.

The load is the product of two large matrices again and again, which is the hottest
thing these parts do in their daily work. Slowing down is measured twice: by the
hardware's own account (seconds throttled, by cause, from counters that run on
between samples) and by the work that gets done, late against early.

A heavy load runs into the power cap of a healthy GPU; that is listed and not held
against it. Heat, an external power brake and their hardware slowdown are faults of
the cooling, of the power supply or of the part. A sampled event counts for the
time until the next sample, and only if the next one shows it still: "hardware
slowdown" comes up for an instant when a GPU changes its clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING

from hpcverify.check import (
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Rule,
    Sample,
    Skip,
    Watch,
)
from hpcverify.model import (
    Cause,
    Covered,
    Found,
    Measurement,
    Remedy,
    Series,
    Verdict,
)
from hpcverify.telemetry import sensor
from hpcverify.telemetry.thinning import thin, thinned
from hpcverify_checks._torch import torch_device

if TYPE_CHECKING:
    import torch

SIZES = {"cuda": 8192, "cpu": 1024}
"""Edges of the matrices: as large as it takes to fill the part."""

BATCH_SECONDS = 0.25
"""How much work is sent to the device at a time."""

GAUGES = ("temperature", "clock", "throttled.hw_thermal", "event.hw_thermal")
"""Series of which one is enough to tell how a part bears a load."""

CAUSES = (
    "hw_thermal",
    "hw_slowdown",
    "hw_power_brake",
    "sw_thermal",
    "sw_power_cap",
    "cores",
)
"""Why a part may run slower; of a CPU's cores the time is added up."""

SHOWN = (
    "temperature",
    "temperature.memory",
    "temperature.headroom",
    "clock",
    "clock.slowest",
    "power",
    "utilization",
)
"""Series that go into the report."""

QUARTERS = 4
FEWEST = 8
"""Values, below which there is no late against early."""


class ThermalParams(Params, frozen=True):
    """How long to load the device."""

    seconds: float = 60.0


def measure(ctx: Context, params: ThermalParams) -> Iterator[Found]:
    """Load the device for the wanted time and yield how the work went."""
    if not has_gauge(ctx, ctx.device.part):
        raise Skip(
            f"no temperature, clock or throttle sensor for {ctx.device.label} on "
            "this machine",
            Cause.NOT_OBSERVABLE,
        )
    where = ctx.device.part
    began = time.monotonic()
    t, rates = work(torch_device(ctx), params.seconds)
    kept = thin([moment - began for moment in t], rates)
    yield Series("work", "GFLOP/s", where, tuple(kept[0]), tuple(kept[1]))
    if len(rates) >= FEWEST:
        yield Measurement("rate_sag", sag(rates), "ratio", where)
    yield Covered(where, f"{len(rates)} batches of GEMM over {params.seconds:g} s")


def has_gauge(ctx: Context, where: str) -> bool:
    """Whether any sensor can tell how the part *where* bears its load."""
    return any(sensor(where, name) in ctx.inventory.sensors for name in GAUGES)


def work(device: torch.device, seconds: float) -> tuple[list[float], list[float]]:
    """Multiply matrices for *seconds*; return when, and how fast in GFLOP/s."""
    multiply, wait = load(device)
    flop = 2.0 * SIZES[device.type] ** 3
    multiply(1)
    wait()
    times, rates = [time.monotonic()], list[float]()
    repeats, deadline = 1, times[0] + seconds
    while times[-1] < deadline:
        multiply(repeats)
        wait()
        times.append(time.monotonic())
        took = max(times[-1] - times[-2], 1e-9)
        rates.append(repeats * flop / took / 1e9)
        repeats = max(1, round(repeats * min(2.0, BATCH_SECONDS / took)))
    return times[1:], rates


def load(device: torch.device) -> tuple[Callable[[int], None], Callable[[], None]]:
    """Make the two steps of the load: send so many products, and wait for them."""
    import torch

    n = SIZES[device.type]
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out: torch.Tensor = torch.empty_like(left)

    def multiply(repeats: int) -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    return multiply, torch.cuda.synchronize if device.type == "cuda" else lambda: None


def sag(values: Sequence[float]) -> float:
    """Say by what share the last quarter of *values* lies below the first."""
    quarter = len(values) // QUARTERS
    early, late = median(values[:quarter]), median(values[-quarter:])
    return 1 - late / early if early else 0.0


def observe(watch: Watch, ctx: Context, params: ThermalParams) -> Iterator[Found]:
    """Yield what was sampled of the device while it was loaded."""
    if has_gauge(ctx, ctx.device.part):
        yield from bearing(watch, ctx.device.part)


def bearing(watch: Watch, where: str) -> Iterator[Found]:
    """Yield how the part *where* bore its load, by what was sampled of it."""
    series = {
        name: samples
        for name in dict.fromkeys(sample.name for sample in watch.samples)
        for part, samples in watch.series(name)
        if part == where
    }
    seen = max(len(series.get(name, ())) for name in GAUGES)
    yield Measurement("samples", seen, "", where)
    yield from extremes(series, where)
    yield from throttled(series, where)
    yield from (thinned(series[n], watch.start) for n in SHOWN if n in series)


def extremes(series: dict[str, list[Sample]], where: str) -> Iterator[Measurement]:
    """Yield the highest, lowest and mean values that say something."""
    for name, suffix, combine in SUMMARIES:
        values = [sample.value for sample in series.get(name, ())]
        if values:
            unit = series[name][0].unit
            yield Measurement(f"{name}{suffix}", combine(values), unit, where)
    clock = [sample.value for sample in series.get("clock", ())]
    if len(clock) >= FEWEST:
        yield Measurement("clock.sag", sag(clock), "ratio", where)


def first(values: Sequence[float]) -> float:
    """Take the value from before the load took hold."""
    return values[0]


SUMMARIES: tuple[tuple[str, str, Callable[[Sequence[float]], float]], ...] = (
    ("temperature", ".idle", first),
    ("temperature", ".max", max),
    ("temperature.memory", ".max", max),
    ("temperature.headroom", ".min", min),
    ("power", ".max", max),
    ("power", ".mean", fmean),
)


def throttled(series: dict[str, list[Sample]], where: str) -> Iterator[Measurement]:
    """Yield for how long each cause held the part back, and what share that is."""
    for cause in CAUSES:
        counted = series.get(f"throttled.{cause}", [])
        yield from held_back(cause, counted or series.get(f"event.{cause}", []), where)


def held_back(
    cause: str, samples: Sequence[Sample], where: str
) -> Iterator[Measurement]:
    """Count the seconds, by a counter of seconds or else by sampled events."""
    if len(samples) < 2 or samples[-1].t <= samples[0].t:  # noqa: PLR2004 - a difference needs two
        return
    if samples[0].name.startswith("throttled."):
        seconds = max(0.0, samples[-1].value - samples[0].value)
    else:
        seconds = sum(b.t - a.t for a, b in pairwise(samples) if a.value and b.value)
    share = seconds / (samples[-1].t - samples[0].t)
    yield Measurement(f"throttled.{cause}", seconds, "s", where)
    yield Measurement(f"throttled.{cause}.share", share, "ratio", where)


CHECK = Check(
    summary="no throttling by heat or power brake under steady load",
    measure=measure,
    observe=observe,
    params=ThermalParams,
    metrics={
        "samples": Metric(unit="", meaning="samples of the part's best-read sensor"),
        "rate_sag": Metric(unit="ratio", meaning="loss of speed, late against early"),
        "clock.sag": Metric(unit="ratio", meaning="loss of clock, late against early"),
        "temperature.*": Metric(unit="°C", meaning="before and under load"),
        "temperature.headroom.min": Metric(unit="°C", meaning="left until slowdown"),
        "power.*": Metric(unit="W", meaning="power under load"),
        "throttled.*.share": Metric(
            unit="ratio", meaning="share of the time held back"
        ),
        "throttled.*": Metric(unit="s", meaning="time held back, by cause"),
    },
    rules={
        "samples": Rule(low=2, otherwise=Verdict.ERROR, remedy=Remedy.RERUN),
        "throttled.hw_thermal": Rule(high=1, optional=True),
        "throttled.hw_slowdown": Rule(high=1, optional=True),
        "throttled.hw_power_brake": Rule(high=1, optional=True),
        "throttled.sw_thermal.share": Rule(high=0.01, optional=True),
        "throttled.cores.share": Rule(high=0.01, otherwise=Verdict.WARN, optional=True),
        "temperature.headroom.min": Rule(low=2, otherwise=Verdict.WARN, optional=True),
        "rate_sag": Rule(high=0.15, otherwise=Verdict.WARN, optional=True),
        "clock.sag": Rule(high=0.2, otherwise=Verdict.WARN, optional=True),
    },
    placement=Placement.DEVICES,
    timeout=900,
)
