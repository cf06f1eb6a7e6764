"""Loads that are timed step by step: products of each type, on a CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

AHEAD = 16
"""Steps that the host is ahead of a GPU: enough never to let it wait."""
LEAST_STEPS = 3
INT8_SPREAD = 32
"""The standard deviation of int8 operands: uses all bits and clips few."""

Step = Callable[[], object]
Timer = Callable[[Step, float], list[float]]
"""Repeats a step for some seconds and gives the time of each, in seconds."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a type is multiplied: the types that torch gives in and out, and how."""

    operand: str
    output: str
    transposed: bool = False
    """Whether the second operand must be stored by columns."""
    precision: str = "highest"


FORMS = {
    "fp64": Form("float64", "float64"),
    "fp32": Form("float32", "float32"),
    "tf32": Form("float32", "float32", precision="high"),
    "fp16": Form("float16", "float16"),
    "bf16": Form("bfloat16", "bfloat16"),
    "fp8": Form("float8_e4m3fn", "bfloat16", transposed=True),
    "int8": Form("int8", "int32", transposed=True),
}


def product_step(dtype: str, size: int, device: torch.device) -> partial[Tensor]:
    """Make a step: one product of *size* in each dimension, into a fixed output."""
    import torch

    form = FORMS[dtype]
    generator = torch.Generator(device).manual_seed(1)
    operands = [_normal(form.operand, size, device, generator) for _ in range(2)]
    a, b = operands[0], operands[1].T if form.transposed else operands[1]
    out = torch.empty(size, size, dtype=getattr(torch, form.output), device=device)
    if dtype == "int8":
        return partial(torch.ops.aten._int_mm.out, a, b, out=out)  # noqa: SLF001 - torch has no public one
    if dtype == "fp8":
        one = torch.ones((), device=device)
        return partial(
            torch.ops.aten._scaled_mm.out,  # noqa: SLF001 - torch has no public one
            a,
            b,
            one,
            one,
            out_dtype=out.dtype,
            use_fast_accum=True,
            out=out,
        )
    return partial(torch.mm, a, b, out=out)


def _normal(
    dtype: str, size: int, device: torch.device, generator: torch.Generator
) -> Tensor:
    import torch

    normal = torch.randn(size, size, device=device, generator=generator)
    if dtype == "int8":
        normal = (INT8_SPREAD * normal).round().clamp(-127, 127)
    return normal.to(getattr(torch, dtype))


def timer_for(device: torch.device) -> Timer:
    """Choose how steps are timed on *device*."""
    return on_host if device.type == "cpu" else on_gpu


def on_host(
    step: Step, seconds: float, clock: Callable[[], float] = perf_counter
) -> list[float]:
    """Repeat *step*, which is over when it returns, and time each run by *clock*."""
    ends, until = [clock()], perf_counter() + seconds
    while perf_counter() < until or len(ends) <= LEAST_STEPS:
        step()
        ends.append(clock())
    return [after - before for before, after in pairwise(ends)]


def on_gpu(step: Step, seconds: float) -> list[float]:
    """Repeat *step*, which only starts, and time each run by events on the GPU."""
    import torch

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    events = [mark()]
    until = perf_counter() + seconds
    while perf_counter() < until or len(events) <= LEAST_STEPS:
        step()
        events.append(mark())
        if len(events) > AHEAD:  # the queue stays full: this waits for an old step
            events[-AHEAD].synchronize()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]
