"""
The hunt for a wrong bit: products compared where they are computed.

Plans take turns, and so do the outputs, in such a way that no output ever holds the
product that is about to be written to it: a tile that is not written shows. The part
compares by itself and keeps only a count of the words that differ; the host looks at
the counts of a page of products while the part is at work on the next one, and before
the outputs of that page are written again. So the wrong product is still there when
the host comes to know of it, and nothing needs to be located in the loop.

Now and then a canary proves that the comparison is awake: a copy of a product in
which every word has one bit flipped must differ in all its words, and one in which a
single bit is flipped in one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from time import perf_counter
from typing import TYPE_CHECKING

from hpcverify.check import Cause, Context, Remedy, Unable
from hpcverify_checks.common.bits import GOLDEN, WORD_BITS, count_from, view_words, wrap_int64
from hpcverify_checks.common.dtypes import Family, Multiply, multiply
from hpcverify_checks.common.exact import SHIFT_COUNT, Shape, view_shifted

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CANARY_PRODUCTS = 256
"""Products: so rare that it costs a thousandth of them, if that."""
GPU_BATCH_PRODUCTS = 4
"""Products whose counts are looked at together: several times what the host takes."""

POISON_WORD = -1
"""Every bit set: NaN in every floating-point type, and no product of any plan."""

Compare = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes into the third, an int64 scalar, how many words differ of the first two."""
ShouldStop = Callable[[int], bool]
"""Whether to stop, after so many products."""


def compare(found: Tensor, expected: Tensor, count: Tensor) -> None:
    """Compare rows of words bit by bit on their device, without a wait for it."""
    import torch

    unequal = torch.ne(found, expected)
    if found.device.type == "cpu":  # there a sum of booleans is far slower
        count.copy_(torch.count_nonzero(unequal))
    else:
        torch.sum(unequal, dim=0, dtype=torch.int64, out=count)


def poison(output: Tensor) -> None:
    """Fill *output* with what no product leaves there: what is not written shows."""
    view_words(output).fill_(POISON_WORD)


@dataclass(frozen=True, slots=True)
class ProductSeams:
    """What multiplies and what compares; tests put faulty ones here."""

    multiply: Multiply = multiply
    compare: Compare = compare


HARDWARE_SEAMS = ProductSeams()


@dataclass(frozen=True, slots=True)
class ProductJob:
    """Operands, where they are multiplied, and the product that must come out."""

    name: str
    """Of the plan."""
    a: Tensor
    b: Tensor
    reference: Tensor
    digest: int
    """Of the reference, taken on the host."""
    remake: Callable[[], tuple[Tensor, Tensor]]
    """Makes the operands again, on the host: what lies in memory may have changed."""
    draw: int = 0


@dataclass(frozen=True, slots=True)
class WrongProduct:
    """A product that was wrong, in how many words, and the output it still lies in."""

    number: int
    words: int
    output: Tensor


@dataclass(frozen=True, slots=True)
class ProductBatch:
    """The counts of some products in a row, on their way to the host."""

    number: int
    """Of the first product."""
    outputs: tuple[Tensor, ...]
    canary_counts: tuple[int, ...]
    """What the counts after those of the products must be."""
    wait_for_counts: Callable[[], list[int]]
    """Waits until all of them are there."""

    def list_wrong(self, counts: list[int]) -> list[WrongProduct]:
        """List the products that were wrong."""
        return [
            WrongProduct(self.number + i, count, output)
            for i, (count, output) in enumerate(zip(counts, self.outputs, strict=False))
            if count
        ]


@dataclass(frozen=True, slots=True)
class ProductBench:
    """Jobs and outputs that take turns, on the part or core *where*."""

    where: str
    dtype: str
    jobs: tuple[ProductJob, ...]
    """Two or more."""
    outputs: tuple[Tensor, ...]
    """As many as `count_outputs` says."""
    seed: int
    seams: ProductSeams = HARDWARE_SEAMS
    shifts: int = SHIFT_COUNT
    """By so many lanes the operands of an exact product move, from one lap to the next;
    with 1 they stay: others would be rounded otherwise."""

    def get_job(self, number: int) -> tuple[ProductJob, int]:
        """Say which job the product *number* is, and by how much it is shifted."""
        lap, place = divmod(number, len(self.jobs))
        return self.jobs[place], lap % self.shifts

    def get_output(self, number: int) -> Tensor:
        """Say where the product *number* is written."""
        return self.outputs[number % len(self.outputs)]

    @property
    def batch_size(self) -> int:
        """How many products the host looks at together."""
        return max(1, len(self.outputs) // 2)

    def compute_and_compare(self, number: int, count: Tensor) -> None:
        """Compute and compare the product *number*; nothing here waits for a GPU."""
        (job, shift), out = self.get_job(number), self.get_output(number)
        self.seams.multiply(*view_shifted(job.a, job.b, shift), out)
        self.seams.compare(view_words(out), view_words(job.reference), count)

    def run_canary(self, number: int, counts: Tensor) -> tuple[int, ...]:
        """Compare spoiled copies of the product *number*; say what must be counted."""
        reference = view_words(self.get_job(number)[0].reference)
        chance = random.Random(f"{self.seed} {self.where} {number}")  # noqa: S311 - no secret
        spoiled = view_words(self.get_output(number)) ^ _make_bit_masks(reference, chance)
        self.seams.compare(spoiled, reference, counts[0])
        spoiled.copy_(view_words(self.get_output(number)))
        place, bit = chance.randrange(len(reference)), chance.randrange(WORD_BITS)
        spoiled.narrow(0, place, 1).bitwise_xor_(wrap_int64(1 << bit))
        self.seams.compare(spoiled, reference, counts[1])
        return len(reference), 1

    def start_batch(self, number: int, *, canary: bool) -> ProductBatch:
        """Start a page of products from *number* on, and a *canary* if it is time."""
        import torch

        there = self.outputs[0].device
        counts = torch.zeros(self.batch_size + 2, dtype=torch.int64, device=there)
        for i in range(self.batch_size):
            self.compute_and_compare(number + i, counts[i])
        expected: tuple[int, ...] = ()
        if canary:
            expected = self.run_canary(number + self.batch_size - 1, counts[self.batch_size :])
        outputs = tuple(self.get_output(number + i) for i in range(self.batch_size))
        return ProductBatch(number, outputs, expected, _start_host_copy(counts))


@dataclass(frozen=True, slots=True)
class ProductTask:
    """One type of operands with which to load one device, and the shape of products."""

    ctx: Context
    family: Family
    shape: Shape
    device: torch.device
    seams: ProductSeams = HARDWARE_SEAMS
    draw: int = 0

    def make_output(self) -> Tensor:
        """Make room for one product."""
        import torch

        size, dtype = self.shape.size, getattr(torch, self.family.output)
        return torch.empty(size, size, dtype=dtype, device=self.device)

    def make_bench(
        self, where: str, jobs: tuple[ProductJob, ...], shifts: int = SHIFT_COUNT
    ) -> ProductBench:
        """Make outputs for the part or core *where*."""
        outputs = tuple(self.make_output() for _ in range(count_outputs(len(jobs), self.device)))
        return ProductBench(
            where, self.family.name, jobs, outputs, self.ctx.seed, self.seams, shifts
        )


def count_outputs(jobs: int, device: torch.device) -> int:
    """
    Say how many outputs *jobs* must share.

    A GPU fills one page of them while the host looks at another; a CPU is looked at
    after every product. A number that has no divisor in common with that of the
    jobs makes each output see them all in turn.
    """
    least = 1 if device.type == "cpu" else 2 * GPU_BATCH_PRODUCTS + 1
    return next(n for n in range(least, least + jobs + 1) if gcd(n, jobs) == 1)


def _make_bit_masks(like: Tensor, chance: random.Random) -> Tensor:
    """Make a word with one bit set for each word of *like*: another one each time."""
    import torch

    # The high bits of multiples of an odd number go through all values evenly.
    bit = count_from(chance.getrandbits(62), like).mul_(wrap_int64(GOLDEN))
    bit.bitwise_right_shift_(WORD_BITS - 6).bitwise_and_(WORD_BITS - 1)
    return torch.bitwise_left_shift(torch.ones_like(bit), bit)


def _start_host_copy(counts: Tensor) -> Callable[[], list[int]]:
    """Start copying *counts* to the host; what is returned waits for them."""
    import torch

    if counts.device.type != "cuda":
        return counts.tolist
    host = torch.empty_like(counts, device="cpu", pin_memory=True)
    host.copy_(counts, non_blocking=True)
    # A blocking one, or eight workers would spin on as many cores for hours.
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[int]:
        copied.synchronize()
        return host.tolist()

    return wait


@dataclass(frozen=True, slots=True)
class HuntResult:
    """What a hunt came to."""

    products: int
    seconds: float
    wrong: tuple[WrongProduct, ...] = ()


def ignore_batch(_products: int) -> None:
    """Take no note of products that are done."""


def hunt(
    bench: ProductBench, should_stop: ShouldStop, note: Callable[[int], object] = ignore_batch
) -> HuntResult:
    """
    Compute and compare until it is time to stop, or something is wrong.

    Whenever products have been compared, *note* is told how many.

    Raises:
        BlindComparison: A flipped bit was not noticed, or noticed wrongly.

    """
    for output in bench.outputs:
        poison(output)
    start, products = perf_counter(), 0
    for page in _start_batches(bench, should_stop):
        counts = page.wait_for_counts()
        products += len(page.outputs)
        note(len(page.outputs))
        if wrong := page.list_wrong(counts):
            return HuntResult(products, perf_counter() - start, tuple(wrong))
        _require_awake(bench, page, counts[len(page.outputs) :])
    return HuntResult(products, perf_counter() - start)


class BlindComparison(Unable):
    """Raised where the part or core *where* does not notice flipped bits."""

    def __init__(self, where: str, reason: str) -> None:
        """Keep where it was."""
        super().__init__(f"{where}: {reason}", Cause.CHECKER, Remedy.FIX_CHECKER)
        self.where = where


def _require_awake(bench: ProductBench, page: ProductBatch, counts: list[int]) -> None:
    if page.canary_counts and tuple(counts) != page.canary_counts:
        raise BlindComparison(
            bench.where,
            f"the comparison did not notice flipped bits: of products "
            f"with {page.canary_counts[0]} and {page.canary_counts[1]} wrong words it counted "
            f"{counts[0]} and {counts[1]}: do not trust its other answers",
        )


def _start_batches(bench: ProductBench, should_stop: ShouldStop) -> Iterator[ProductBatch]:
    """Start pages one ahead of the host; a canary comes first, last and in between."""
    ahead = 0 if bench.batch_size == len(bench.outputs) else 1
    started: deque[ProductBatch] = deque()
    number = since = 0
    last = False
    while not last:
        last = number >= len(bench.jobs) and should_stop(number)
        due = last or not number or since >= CANARY_PRODUCTS
        started.append(bench.start_batch(number, canary=due))
        number += bench.batch_size
        since = 0 if due else since + bench.batch_size
        if len(started) > ahead:
            yield started.popleft()
    yield from started
