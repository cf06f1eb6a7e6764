"""
Load all parts of a kind, steadily and in square waves, and watch how each of them copes.

The load is the product of two large matrices again and again, the hottest thing these
parts do in daily work, with the next batch queued before the last one ends. In the
middle all parts switch on and off together, at several periods: the edges make supply
voltages droop. Every product is compared with the first (see `soak`), and parts
of a kind vote. Then the load ends, and the check watches how fast the part cools.

Slowdown is measured twice: by the hardware's own counters (seconds throttled, by cause;
they also count between samples) and by the work that gets done. Work per clock separates
a throttled part (low clock, as much work per cycle as its siblings) from a defective one
(the same clock, less work).

A healthy GPU reaches its power cap under heavy load; that is listed and never fails.
Heat, an external power brake and their hardware slowdown are faults of the cooling, the
power supply or the part; if all GPUs have it, of the node. A sampled event counts for the time
until the next sample, and only if that one still shows it: "hardware slowdown" appears for an
instant when a GPU changes its clock.

Siblings are compared by their rise over idle temperature per kilowatt of added power:
the thermal resistance of their cooling. Degrees alone would fail parts that sit behind
others in their warm air, idle as well as under load; and a part throttled by heat draws
less power and would look cool. A temperature or power that stays at one value under load and
at rest, while clock or power follow the load, is that of a broken sensor: it is reported, and
nothing is judged by it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.telemetry import name_sensor, problems
from hpcverify.telemetry.thinning import thin
from hpcverify_checks.exact import vote
from hpcverify_checks.exact.kernels import report_comparison
from hpcverify_checks.exact.product_loop import ProductSeams
from hpcverify_checks.exact.soak import (
    SOAK_METRICS,
    PartSoak,
    count_by_part,
    name_vote_group,
    plan_stretches,
)
from hpcverify_checks.node.device import reserve_gpu_cores
from hpcverify_checks.ranks.board import FolderBoard
from hpcverify_checks.ranks.rendezvous import announce_failure
from hpcverify_checks.thermal import plan, response
from hpcverify_checks.thermal.load import prepare_loads, run_loads
from hpcverify_checks.thermal.plan import LoadRecord, Meter
from hpcverify_checks.thermal.response import GAUGES, MIN_SAMPLES, compute_sag

PREPARE_SECONDS = 5.0
"""Operands and first products take this long."""
MIN_POINTS = 16
"""The fewest points of the rate over time, however short the soak."""


class ThermalParams(hv.Params, frozen=True):
    """How long to load the device and how, and how long to watch it cool."""

    seconds: Annotated[float, Meta(gt=0)] = 60.0
    """The time of the load, waves included."""
    wave_share: Annotated[float, Meta(ge=0, le=1)] = 0.2
    """The share of the load that is a square wave."""
    wave_periods: tuple[Annotated[float, Meta(gt=0)], ...] = (0.5, 0.05, 0.005)
    """Seconds; the load is on for half of each. Power supplies hold up for some 20 ms;
    their regulators, the boards' and the chips' each react faster than the last."""
    recovery_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """The device is watched while it cools; the next check then begins on a cool one."""


def applies(ctx: hv.Context) -> None:
    """Raise `Skip` for a device without a sensor."""
    if not has_gauge(ctx, ctx.device.part):
        raise hv.Skip(
            "no sensor for temperature, clock or throttling can be read",
            hv.Cause.NOT_OBSERVABLE,
        )


def estimate(_ctx: hv.Context, params: ThermalParams) -> float:
    """Add the preparation and the wait for the others to the load and the cooling."""
    return PREPARE_SECONDS + plan.SETTLE_SECONDS + params.seconds + params.recovery_seconds


def measure(
    ctx: hv.Context, params: ThermalParams, seams: ProductSeams | None = None
) -> Iterator[hv.CheckItem]:
    """Load the device for `ThermalParams.seconds` and yield how the work went."""
    applies(ctx)
    began = time.monotonic()
    board = FolderBoard(ctx.shared)
    with announce_failure(board, ctx.rank):  # the others do not wait for a lost rank
        with hv.operation("the first products", ctx.device):
            loads = prepare_loads(ctx, seams)
        with hv.operation("the first kernels", ctx.device):
            yield from report_comparison(ctx, loads[0].task.device)
    watched = [i for i, peer in enumerate(ctx.peers) if has_gauge(ctx, peer.part)]
    with hv.operation("the wait for the others"):
        start = plan.wait_for_all(board, ctx.rank, watched, time.monotonic)
    table = plan_stretches(
        start,
        params.seconds,
        params.wave_share,
        params.wave_periods,
    )
    meter = Meter(min(plan.METER_PERIOD_SECONDS, params.seconds / MIN_POINTS))
    with reserve_gpu_cores(ctx):
        account = LoadRecord(tuple(run_loads(loads, table, meter)))
    yield from (load.corruption for load in loads if load.corruption)
    yield from count_by_part(loads)
    if account.done:  # else a product was wrong before the load
        plan.write_record(board, ctx.rank, account)
        yield from report_work(ctx.device.part, account, meter, began)
        yield hv.Coverage(ctx.device.part, describe_coverage(account, loads))
    if ctx.device.kind != "cpu":
        yield from (load.make_answer(name_vote_group(load.task)) for load in loads)
    time.sleep(params.recovery_seconds)


def has_gauge(ctx: hv.Context, part_id: str) -> bool:
    """Whether any sensor shows how the part *part_id* copes with its load."""
    return any(name_sensor(part_id, name) in ctx.inventory.sensors for name in GAUGES)


def report_work(
    part_id: str, account: LoadRecord, meter: Meter, began: float
) -> Iterator[hv.Series | hv.Measurement]:
    """Yield how fast the work went, over time and at the end against the start."""
    t, rates = thin([moment - began for moment in meter.t], meter.rates)
    yield hv.Series("work", "GFLOP/s", part_id, tuple(t), tuple(rates))
    if account.rate:
        yield hv.Measurement("rate.mean", account.rate / 1e9, "GFLOP/s", part_id)
    if len(meter.rates) >= MIN_SAMPLES:
        yield hv.Measurement("rate_sag", compute_sag(meter.rates), "ratio", part_id)
    edges = [d.edges for d in account.done if d.period]
    if edges:
        yield hv.Measurement("wave.edges", sum(edges), "", part_id)


def describe_coverage(account: LoadRecord, loads: tuple[PartSoak, PartSoak]) -> str:
    """Describe what was exercised."""
    steady, waves = loads
    products = sum(d.products for d in account.steady)
    seconds = sum(d.seconds for d in account.steady)
    text = f"{steady.task.family.name}: {products} {steady.text} in {seconds:.1f} s"
    for done in account.done:
        if done.period:
            text += (
                f"; {done.edges} edges of a square wave of {done.period:g} s, "
                f"{done.products} {waves.text}"
            )
    return f"{text}; each compared bitwise with the first"


def observe(watch: hv.Watch, ctx: hv.Context, params: ThermalParams) -> Iterator[hv.CheckItem]:
    """Yield what was sampled of the device before, during and after its load."""
    if has_gauge(ctx, ctx.device.part):
        record = plan.read_record(FolderBoard(ctx.shared), ctx.rank)
        yield from response.observe_soak(watch, ctx, record)


def reconcile(items: Sequence[hv.JudgedItem], inventory: hv.Inventory) -> Iterator[hv.JudgedItem]:
    """Hold the votes; what slowed all GPUs down is the node's."""
    yield from response.move_to_node(vote.reconcile(items, inventory), inventory)


CHECK = hv.Check(
    summary="steady and square-wave load: throttling, cooling, siblings, voltage droop",
    measure=measure,
    estimate=estimate,
    applies=applies,
    observe=observe,
    reconcile=reconcile,
    params=ThermalParams,
    metrics={
        **SOAK_METRICS,
        "samples": hv.Metric("", "neither", "samples of the part's most often read sensor").error(
            low=2, cause=hv.Cause.UNMEASURED, remedy=hv.Remedy.RERUN
        ),
        "loaded": hv.Metric("ratio", "low", "share of the soak in which the part was busy").error(
            low=0.9,
            cause=hv.Cause.UNMEASURED,
            remedy=hv.Remedy.RERUN,
            optional=True,
            source="hpcverify default: below this the load did not run properly",
        ),
        "rate.mean": hv.Metric("GFLOP/s", "low", "throughput under steady load"),
        "rate_sag": hv.Metric("ratio", "neither", "loss of speed, end against start").warn(
            high=0.15
        ),
        "wave.edges": hv.Metric("", "neither", "times the load was switched on"),
        "clock.mean": hv.Metric("MHz", "low", "clock under steady load").warn(
            of_siblings=0.85, source="hpcverify default: capped GPUs vary by 8 % (arXiv 2208.11035)"
        ),
        "clock.sag": hv.Metric("ratio", "neither", "loss of clock, end against start").warn(
            high=0.2
        ),
        "work_per_clock": hv.Metric("", "low", "operations of the whole part per clock cycle").fail(
            of_siblings=0.9, of_baseline=0.8
        ),
        "efficiency": hv.Metric("ratio", "low", "work_per_clock against the data sheet's").warn(
            low=0.5, source="the least that any part in gpu_reached.csv can have had"
        ),
        "energy_per_work": hv.Metric("J", "high", "energy per 1e15 operations").warn(
            of_siblings=1.25
        ),
        "held_back": hv.Metric(
            "ratio", "neither", "shortfall of both clock and power against siblings"
        ).warn(high=0.15),
        "recovery": hv.Metric("s", "high", "time to cool half-way to idle, or time watched").warn(
            high=60, source="hpcverify default: heat sinks settle within a minute"
        ),
        "temperature.rise_per_kW": hv.Metric(
            "°C", "high", "rise over idle per kW of added power: thermal resistance"
        ).warn(of_siblings=1.4, source="hpcverify default"),
        "temperature.*": hv.Metric("°C", "high", "before, during and after the load")
        .warn(
            "temperature.memory.max",
            high=95,
            source="the A100's maximum operating temperature of memory",
        )
        .warn("temperature.memory.rise", of_siblings=1.5),
        "temperature.headroom.min": hv.Metric("°C", "low", "margin to slowdown").warn(low=2),
        "power.*": hv.Metric("W", "neither", "power under load").warn(
            "power.mean",
            of_siblings=0.75,
            source="the least that DCGM's targeted_power takes for its target",
        ),
        "throttled.*.share": hv.Metric("ratio", "high", "share of the load's time throttled")
        .fail("throttled.sw_thermal.share", high=0.01)
        .warn("throttled.cores.share", high=0.01),
        "throttled.*": hv.Metric("s", "high", "time throttled, by cause")
        .fail(
            "throttled.hw_thermal",
            high=1,
            source="hpcverify default: heat sinks, fans, or the air that the node takes in",
        )
        .fail("throttled.hw_slowdown", high=1)
        .fail(
            "throttled.hw_power_brake",
            high=1,
            source="hpcverify default: the power supply or the chassis slows the GPUs",
        ),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        **vote.PRODUCT_FINDING_RULES,
        **hv.warn_on("gauge_stuck"),
    },
    placement=hv.Placement.ALL_DEVICES,  # heat and current of a node add up
    timeout=900,
)
