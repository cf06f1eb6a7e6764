"""
The loads of a soak: large products that fill the part, and small ones for square waves.

GPUs multiply random normal numbers, which toggle the most wires. Libraries for CPUs
promise the same bits only with one thread, so there the operands are random 20-bit
integers in fp64, whose product is exact in any order of summation (see `exact`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, make_fp64_plans
from hpcverify_checks.exact.kernels import load_comparison
from hpcverify_checks.exact.product_loop import ProductSeams, ProductTask
from hpcverify_checks.exact.products import Operands, Shape
from hpcverify_checks.exact.soak import (
    NORMAL_NUMBERS,
    OPERAND_PAIRS,
    OperandSource,
    Pair,
    PartSoak,
    Stretch,
    StretchResult,
)
from hpcverify_checks.node.device import find_torch_device, list_native_dtypes, require_memory
from hpcverify_checks.thermal.plan import Meter

if TYPE_CHECKING:
    from hpcverify_checks.exact.bits import DeviceLike

STEADY_SIZES = {"cuda": 8192, "cpu": 1024}
"""Edges of the matrices under steady load: large enough to fill the part."""
WAVE_SIZES = {"cuda": 4096, "cpu": 384}
"""The same under a square wave: 0.2 ms on an H100, so that 2.5 ms hold several."""
GPU_DTYPES = ("bf16", "fp16", "fp32")
"""A GPU takes the first that it has units for: tensor cores draw the most power."""
GPU_BYTES = 2 * 2**30
"""Bytes on a GPU for each byte of an operand's element: operands, products, references,
and temporaries of the comparison."""
PACE_SECONDS = 0.1
"""Steady load for this long shows how long a product of the waves takes."""


def make_exact_pair(task: ProductTask, pair: int, device: DeviceLike) -> Pair:
    """Make two matrices of integers whose product is exact in fp64."""
    import torch

    plan = make_fp64_plans(task.shape.depth)[pair]
    return Operands(plan, task.shape).store(torch.float64, device)


EXACT_INTEGERS = OperandSource("exact", "random 20-bit integers", make_exact_pair)


def prepare_loads(ctx: hv.Context, seams: ProductSeams | None = None) -> tuple[PartSoak, PartSoak]:
    """
    Make the steady load and the wave load, and measure how fast the latter is.

    The wave load keeps the 32 bits that tensor cores sum in, so that no wrong bit is
    rounded away; the steady load writes what daily work writes, and is faster.
    """
    device = find_torch_device(ctx)
    if device.type == "cpu":
        steady_type = wave_type = CPU_FAMILIES["fp64"]
        source = EXACT_INTEGERS
    else:
        import torch

        native = list_native_dtypes(device)
        wave_type = FAMILIES[next(name for name in GPU_DTYPES if name in native)]
        steady_type = replace(wave_type, output=wave_type.job_output)
        source = NORMAL_NUMBERS
        require_memory(device, GPU_BYTES * getattr(torch, wave_type.operand).itemsize)
    seams = seams or ProductSeams(compare=load_comparison(device)[0])
    loads: list[PartSoak] = []
    for family, sizes in ((steady_type, STEADY_SIZES), (wave_type, WAVE_SIZES)):
        size = sizes[device.type]
        task = ProductTask(ctx, family, Shape(size, size), device, seams, ctx.seed)
        pairs = [source.make(task, pair, device) for pair in range(OPERAND_PAIRS)]
        loads.append(PartSoak.prepare(task, ctx.device.part, source, pairs))
    steady, waves = loads
    if waves.corruption is None:
        now = time.monotonic()
        waves.run(Stretch(now, now + PACE_SECONDS))
    return steady, waves


def run_loads(
    loads: tuple[PartSoak, PartSoak], table: Sequence[Stretch], meter: Meter
) -> Iterator[StretchResult]:
    """
    Load the part as the *table* says; the *meter* records how fast.

    Stops at the first error: the part has failed, and may crash before it can report it.
    """
    steady, waves = loads
    flop = steady.task.shape.operations
    for stretch in table:
        if steady.corruption or waves.corruption:
            return
        if stretch.period:
            yield waves.run(stretch)
        else:
            meter.begin(max(stretch.start, time.monotonic()))
            yield steady.run(stretch, lambda n: meter.add(time.monotonic(), n * flop))
