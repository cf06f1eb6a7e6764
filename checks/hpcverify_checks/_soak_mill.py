"""
The load of a soak: one product again and again, each compared with its first making.

Same kernel, same operands, same output: a product that comes out otherwise is wrong.
On a GPU that rests on cuBLAS, which promises bitwise the same result at every run on
one stream of one part ("Results reproducibility" in its guide); the operands are
random normal numbers, which toggle the most wires. Libraries for CPUs promise no such
thing, so there the operands are random 20-bit integers in fp64, whose product is
exact whatever the order of summation (see `_exact`).

All is compared where it is computed and without a wait, and the comparison streams
the products through the part's memory: about a twentieth of the time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify_checks._bits import view_words
from hpcverify_checks._exact import Operands, Shape, view_shifted
from hpcverify_checks._families import make_fp64_plans, multiply
from hpcverify_checks._hunt import Multiply
from hpcverify_checks._soak import Meter, Stretch, StretchResult, find_next_edge
from hpcverify_checks._torch import list_native_dtypes, require_memory

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STEADY_SIZES = {"cuda": 8192, "cpu": 1024}
"""Edges of the matrices under steady load: as large as it takes to fill the part."""
WAVE_SIZES = {"cuda": 4096, "cpu": 384}
"""The same under a square wave: 0.2 ms on an H100, so that 2.5 ms hold several."""
GPU_DTYPES = ("bf16", "fp16", "fp32")
"""For GPUs, the first that the part has units for: tensor cores draw most power."""
TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
SLOTS = 4
"""Products that are compared at a time."""
GPU_BYTES = 3 * 2**30
"""Bytes on a GPU: operands, products, references, and what comparing takes."""
BATCH_SECONDS = 0.25
"""Work that is sent at a time; a GPU has the next batch before it ends the last."""
MIN_PACE_SECONDS = 0.1
DUTY_CYCLE = 0.5
"""The share of a square wave's period in which the load is on."""

Wait = Callable[[], object]


@dataclass(frozen=True, slots=True)
class WorkQueue:
    """How a device takes work."""

    record_point: Callable[[], Wait]
    """Marks a point in the queue; what it returns waits until the device is there."""
    batches_ahead: int
    """Batches that wait in the queue while one is computed."""


def _record_event() -> Wait:
    import torch

    # A blocking one, or eight workers would spin on as many cores for hours.
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


def _skip_wait() -> None:
    """Wait for nothing: on a CPU all is over when it returns."""


GPU_QUEUE, CPU_QUEUE = (
    WorkQueue(_record_event, batches_ahead=1),
    WorkQueue(lambda: _skip_wait, batches_ahead=0),
)


@dataclass(frozen=True, slots=True)
class ProductLoop:
    """Makes a product of *a* and *b* again and again."""

    text: str
    """What is multiplied, in words."""
    a: Tensor
    b: Tensor
    slots: Tensor
    """Products on top of each other, each compared before it is made again."""
    reference: Tensor
    """The words of the first product."""
    wrong: Tensor
    """How many wrong products each slot has held."""
    queue: WorkQueue
    multiply: Multiply = multiply

    @property
    def flop(self) -> float:
        """Operations of one product."""
        return 2.0 * self.a.shape[0] * self.a.shape[1] * self.b.shape[1]

    def start(self, products: int) -> Wait:
        """Make and compare so many *products*; a GPU is only told to."""
        for begin in range(0, products, len(self.slots)):
            self._run_slots(min(len(self.slots), products - begin))
        return self.queue.record_point()

    def _run_slots(self, count: int) -> None:
        import torch

        for slot in self.slots[:count]:
            self.multiply(self.a, self.b, slot)
        made = self.slots[:count].view(torch.int64).flatten(1)
        self.wrong[:count] += torch.ne(made, self.reference).any(dim=1)

    def take_wrong_count(self) -> int:
        """Wait for all products, and say how many were wrong since the last time."""
        wrong = int(self.wrong.sum())
        self.wrong.zero_()
        return wrong


def build_loop(size: int, device: torch.device, *, wide: bool = False) -> ProductLoop:
    """
    Make a mill for products of *size* in each dimension.

    A *wide* one keeps the 32 bits that tensor cores sum in, so that no wrong bit is
    rounded away; the other one writes what daily work writes, and is faster.
    """
    if device.type == "cpu":
        text, a, b = _make_exact_operands(size)
        return _prime_loop(text, a, b, "float64", CPU_QUEUE)
    require_memory(device, GPU_BYTES)
    text, a, b = _make_normal_operands(size, device)
    output = "float32" if wide else str(a.dtype).removeprefix("torch.")
    return _prime_loop(text, a, b, output, GPU_QUEUE)


def _make_exact_operands(size: int) -> tuple[str, Tensor, Tensor]:
    import torch

    made = Operands(make_fp64_plans(size)[0], Shape(size, size))
    a, b = view_shifted(*made.store(torch.float64, "cpu"), 0)
    return f"fp64 products of {size}^3 random 20-bit integers", a, b


def _make_normal_operands(size: int, device: torch.device) -> tuple[str, Tensor, Tensor]:
    import torch

    native = list_native_dtypes(device)
    dtype = next(name for name in GPU_DTYPES if name in native)
    generator = torch.Generator(device).manual_seed(1)
    normal = torch.randn(2, size, size, device=device, generator=generator)
    a, b = normal.to(getattr(torch, TORCH_NAMES[dtype]))
    return f"{dtype} products of {size}^3 random normal numbers", a, b


def _prime_loop(text: str, a: Tensor, b: Tensor, output: str, queue: WorkQueue) -> ProductLoop:
    import torch

    shape = (SLOTS, a.shape[0], b.shape[1])
    slots = torch.empty(shape, dtype=getattr(torch, output), device=a.device)
    multiply(a, b, slots[0])
    reference = view_words(slots[0]).clone()
    wrong = torch.zeros(SLOTS, dtype=torch.int64, device=a.device)
    return ProductLoop(text, a, b, slots, reference, wrong, queue)


@dataclass(frozen=True, slots=True)
class LoopPace:
    """A mill, and the seconds that one of its products takes."""

    loop: ProductLoop
    seconds: float

    @classmethod
    def measure(cls, loop: ProductLoop) -> LoopPace:
        """Time ever more products until they take long enough to tell."""
        loop.start(SLOTS)()
        products, took = SLOTS, 0.0
        while took < MIN_PACE_SECONDS:
            products *= 2
            began = time.monotonic()
            loop.start(products)()
            took = time.monotonic() - began
        return cls(loop, took / products)

    def count_products_in(self, seconds: float) -> int:
        """Say how many products take about so many *seconds*: one or more."""
        return max(1, round(seconds / self.seconds))


def run_steady(pace: LoopPace, stretch: Stretch, meter: Meter) -> StretchResult:
    """Load without a pause until the *stretch* ends; the *meter* tells how fast."""
    _sleep_until(stretch.start)
    span = min(BATCH_SECONDS, (stretch.end - stretch.start) / 4)
    batch = pace.count_products_in(span)
    until = stretch.end - (1 + pace.loop.queue.batches_ahead) * span
    flop = batch * pace.loop.flop
    began = ended = time.monotonic()
    meter.begin(began)
    count = 0
    for ended in _run_batches(pace.loop, batch, until):
        meter.add(ended, flop)
        count += 1
    wrong = pace.loop.take_wrong_count()
    return StretchResult(0.0, began, ended, count * batch, count * flop, wrong)


def _run_batches(loop: ProductLoop, products: int, until: float) -> Iterator[float]:
    """Send batches until then, always one ahead; yield when each was over."""
    waits: deque[Wait] = deque()
    while time.monotonic() < until:
        waits.append(loop.start(products))
        if len(waits) > loop.queue.batches_ahead:
            waits.popleft()()
            yield time.monotonic()
    for wait in waits:
        wait()
        yield time.monotonic()


def run_wave(pace: LoopPace, stretch: Stretch) -> StretchResult:
    """
    Switch the load on and off until the *stretch* ends.

    A part too slow for the period switches at every second edge, or third.
    """
    on = DUTY_CYCLE * stretch.period
    burst = pace.count_products_in(on)
    began = ended = max(time.monotonic(), stretch.start)
    edges = 0
    while (edge := find_next_edge(ended, stretch.period)) + on <= stretch.end:
        _sleep_until(edge)
        pace.loop.start(burst)()
        edges += 1
        ended = time.monotonic()
    products = edges * burst
    wrong = pace.loop.take_wrong_count()
    flop = products * pace.loop.flop
    return StretchResult(stretch.period, began, ended, products, flop, wrong, edges)


def _sleep_until(t: float) -> None:
    time.sleep(max(0.0, t - time.monotonic()))
