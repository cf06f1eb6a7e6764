"""
The stress phase: products of random normal numbers, under steady load and load steps.

Exact plans multiply small integers, which toggle fewer wires and draw less power than
the numbers of daily work: this phase finds faults of power and timing (see `soak`).

Libraries for CPUs give the same bits for a fixed number of threads and one code path
(oneMKL, "Reproducibility Conditions"). So each core computes in one pinned thread, with
operands and outputs at fixed addresses, and is compared with itself. Nothing is promised
across cores, so cores that differ only warn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify_checks.exact.families import Family
from hpcverify_checks.exact.product_loop import HARDWARE_SEAMS, ProductSeams, ProductTask
from hpcverify_checks.exact.products import Shape
from hpcverify_checks.exact.soak import (
    DUTY_CYCLE,
    NORMAL_NUMBERS,
    OPERAND_PAIRS,
    Pair,
    PartSoak,
    count_by_part,
    name_vote_group,
    plan_stretches,
)
from hpcverify_checks.exact.vote import CORES_GROUP
from hpcverify_checks.node.cores import MAX_CORES, format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import use_float32_precision
from hpcverify_checks.sdc.dissent import disprove_cores

if TYPE_CHECKING:
    import torch

CPU_SHAPE = Shape(size=384, depth=512)
"""A few milliseconds on one core, so that a burst holds several."""
GPU_SHAPE = Shape(size=4096, depth=8192)
SLOW_SHAPE = Shape(size=4096, depth=2048)
"""Types without tensor cores take a few milliseconds for a product of it."""
SLOW_DTYPES = frozenset({"fp32", "fp64"})
MIN_LOAD_SECONDS = 0.05
"""The least of load, however long the first products took."""
WAVE_SHARE = 0.5
PERIOD_SECONDS = (0.01, 0.04, 0.1)
"""The square waves have bursts of 5, 20 and 50 ms."""


def run_stress(
    ctx: hv.Context,
    device: torch.device,
    seconds: float,
    families: Sequence[Family],
    seams: ProductSeams = HARDWARE_SEAMS,
) -> Iterator[hv.CheckItem]:
    """
    Compare products of normal numbers with the first of their kind, for *seconds*.

    Each of *families* gets its turn, if there is time left for it. On a CPU up to
    `MAX_CORES` cores work at the same time; the others come in later runs.
    """
    on_cpu = ctx.device.kind == "cpu"
    soaks: list[PartSoak] = []
    end = time.monotonic() + seconds
    for turn, family in enumerate(families):
        left = end - time.monotonic()
        if soaks and left <= 0:
            text = f"{family.name}: random products left out: no time was left"
            yield hv.Coverage(ctx.device.part, text)
            continue
        shape = SLOW_SHAPE if family.name in SLOW_DTYPES else GPU_SHAPE
        task = ProductTask(ctx, family, CPU_SHAPE if on_cpu else shape, device, seams, ctx.seed)
        mine: list[PartSoak] = []
        with use_float32_precision(family.precision):
            for soak in stress_device(task, left / (len(families) - turn)):
                mine.append(soak)
                if soak.corruption:  # a faulty part may crash before it can report this
                    yield soak.corruption
        soaks += mine
        yield from (report_cores if on_cpu else report_gpu)(task, mine)
    yield from count_by_part(soaks)


def stress_device(task: ProductTask, seconds: float) -> Iterator[PartSoak]:
    """Stress the GPU, or each core of the CPU by itself, until *seconds* from now."""
    end, least = time.monotonic() + seconds, min(seconds, MIN_LOAD_SECONDS)
    with hv.operation(f"random {task.family.name} operands", task.ctx.device):
        pairs = [NORMAL_NUMBERS.make(task, pair, task.device) for pair in range(OPERAND_PAIRS)]
    if task.ctx.device.kind != "cpu":
        yield stress_part(task, pairs, end, least, task.ctx.device.part)
        return
    cores = pick_cores(cpu.read_cores().allowed, MAX_CORES, task.ctx.rotation)
    work = partial(stress_part, task, pairs, end, least)
    yield from run_on_each(cores, lambda core: work(f"cpu{core}"))


def stress_part(
    task: ProductTask, pairs: Sequence[Pair], end: float, least: float, part_id: str
) -> PartSoak:
    """Stress the part or core *part_id* until it errs or *end*, but for the *least* seconds."""
    with hv.operation(f"the first random {task.family.name} products", task.ctx.device):
        soak = PartSoak.prepare(task, part_id, NORMAL_NUMBERS, pairs)
    now = time.monotonic()
    seconds = max(end - now, least)
    for stretch in plan_stretches(now, seconds, WAVE_SHARE, PERIOD_SECONDS):
        if soak.corruption is None:
            soak.run(stretch)
    return soak


def report_gpu(task: ProductTask, soaks: Sequence[PartSoak]) -> Iterator[hv.CheckItem]:
    """Yield what a GPU did with one type, and its answer for the vote."""
    for soak in soaks:
        yield hv.Coverage(soak.bench.part_id, f"{task.family.name}: {describe_stress(task, soaks)}")
        yield soak.make_answer(name_vote_group(task))


def report_cores(task: ProductTask, soaks: Sequence[PartSoak]) -> Iterator[hv.CheckItem]:
    """Yield what the cores did with one type; if they differ, their answers too."""
    differ = len({soak.digest for soak in soaks}) > 1
    cores = format_ranges([int(soak.bench.part_id.removeprefix("cpu")) for soak in soaks])
    alike = "differ" if differ else "are identical"
    text = f"{task.family.name} on cores {cores}, whose first products {alike}"
    yield hv.Coverage(task.ctx.device.part, f"{text}: {describe_stress(task, soaks)}")
    if differ:
        yield from disprove_cores(task, soaks)
        yield from (soak.make_answer(CORES_GROUP) for soak in soaks)


def describe_stress(task: ProductTask, soaks: Sequence[PartSoak]) -> str:
    """Describe what was exercised, and how."""
    done = [d for soak in soaks for d in soak.done]
    products = sum(d.products for d in done)
    bursts = ", ".join(f"{DUTY_CYCLE * period * 1e3:g}" for period in PERIOD_SECONDS)
    return (
        f"{products} {soaks[0].text} "
        f"({products * task.shape.operations:.3g} operations) compared bit by bit with "
        f"the first in {sum(d.seconds for d in done):.1f} s; load switched on "
        f"{sum(d.edges for d in done)} times, for {bursts} ms"
    )
