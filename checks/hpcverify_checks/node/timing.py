"""Times of steps on a CPU or a GPU, and products of each type to take them of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hpcverify_checks.node.dtypes import DTYPES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

MAX_STEPS_AHEAD = 16
"""Steps that the host runs ahead of a GPU: enough to keep it busy."""
MIN_STEPS = 3
INT8_DEVIATION = 32
"""The standard deviation of int8 operands: uses all bits and clips little."""

Step = Callable[[], object]
Timer = Callable[[Step, float], list[float]]
"""Repeats a step for some seconds and gives the time of each, in seconds."""


def make_product_step(dtype: str, size: int, device: torch.device) -> partial[Tensor]:
    """Make a step: one product of *size* in each dimension, into a fixed output."""
    import torch

    kind = DTYPES[dtype]
    generator = torch.Generator(device).manual_seed(1)
    operands = [_make_normal(kind.operand, size, device, generator) for _ in range(2)]
    a, b = operands[0], operands[1].T if kind.by_columns else operands[1]
    out = torch.empty(size, size, dtype=getattr(torch, kind.job_output), device=device)
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


def _make_normal(dtype: str, size: int, device: torch.device, generator: torch.Generator) -> Tensor:
    import torch

    normal = torch.randn(size, size, device=device, generator=generator)
    if dtype == "int8":
        normal = (INT8_DEVIATION * normal).round().clamp(-127, 127)
    return normal.to(getattr(torch, dtype))


def choose_timer(device: torch.device) -> Timer:
    """Choose how steps are timed on *device*."""
    return time_on_host if device.type == "cpu" else time_on_gpu


def time_on_host(
    step: Step, seconds: float, clock: Callable[[], float] = perf_counter
) -> list[float]:
    """Repeat *step*, which is done when it returns, and time each run by *clock*."""
    ends, until = [clock()], perf_counter() + seconds
    while perf_counter() < until or len(ends) <= MIN_STEPS:
        step()
        ends.append(clock())
    return [after - before for before, after in pairwise(ends)]


def time_on_gpu(step: Step, seconds: float) -> list[float]:
    """Repeat *step*, which only starts work, and time each run by events on the GPU."""
    import torch

    def record_event() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    events = [record_event()]
    until = perf_counter() + seconds
    while perf_counter() < until or len(events) <= MIN_STEPS:
        step()
        events.append(record_event())
        if len(events) > MAX_STEPS_AHEAD:  # the queue stays full: this waits for an old step
            events[-MAX_STEPS_AHEAD].synchronize()
    events[-1].synchronize()
    return [before.elapsed_time(after) / 1e3 for before, after in pairwise(events)]


class StepClock:
    """Marks of time: the host's, or events in a GPU's stream of work."""

    def __init__(self, device: torch.device) -> None:
        self._marks: list[Any] = []
        self._device = device

    def mark(self) -> None:
        """Note the time, without waiting for the GPU."""
        if self._device.type == "cpu":
            self._marks.append(perf_counter())
            return
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def mark_host_time(self) -> float:
        """Note the time once the GPU has done all its work; give it by the host's clock, in s."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        self.mark()
        mark = self._marks[-1]
        if self._device.type == "cpu":
            return float(mark)
        mark.synchronize()
        return perf_counter()

    def read(self) -> list[float]:
        """Give the seconds of each mark since the first, once all is done."""
        if self._device.type == "cpu":
            return [mark - self._marks[0] for mark in self._marks]
        # From each mark to the next: an event's float32 would round those of a long run.
        steps = (before.elapsed_time(after) / 1e3 for before, after in pairwise(self._marks))
        return list(accumulate(steps, initial=0.0))
