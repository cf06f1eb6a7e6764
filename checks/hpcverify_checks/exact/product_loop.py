"""
The hunt for a wrong bit: products compared where they are computed.

Plans take turns, and so do the outputs, so that no output ever holds the product that is
about to be written to it: a tile that is not written shows. The part compares, and keeps
only a count of the words that differ; the host reads the counts of a batch of products
while the part works on the next one, and before the outputs of that batch are written
again. So a wrong product is still there when the host learns of it, and the loop itself
need not locate anything.

Now and then a canary proves that the comparison works: a copy of a product with one bit
flipped in every word must differ in all words, and copies with a flipped bit in one word
and in a few words in as many. On a CPU `memcmp` decides whether anything differs: it reads
both sides once and writes nothing. What it finds is counted by torch. So there a canary
also flips a bit in each lane of its vectors, one lane at a time.
"""

from __future__ import annotations

import ctypes
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import gcd
from time import perf_counter, thread_time
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify_checks.exact.bits import GOLDEN, WORD_BITS, count_from, view_words, wrap_int64
from hpcverify_checks.exact.products import ALL_SHIFTS, Shape, view_shifted
from hpcverify_checks.exact.vote import is_of_host
from hpcverify_checks.node.cores import list_other_cores, run_on_each
from hpcverify_checks.node.dtypes import Dtype, Multiply, multiply
from hpcverify_checks.node.stalls import StallMeter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CANARY_PRODUCTS = 256
"""Products between canaries, which so cost a thousandth at most."""
CANARY_COPIES, FEW_WORDS = 4, 8
"""Counts of spoiled copies of a product, and the most words that the third is spoiled in; the
fourth is that of all lanes together."""
LANES, WINDOW_WORDS = 64, 512
"""Words after which the loop of `memcmp` begins again, at most, and as many as it compares for
that: glibc takes four vectors of 64 bytes or less at a time, and this is twice as much."""
GPU_BATCH_PRODUCTS = 4
"""Products whose counts the host reads together: they take far longer than reading does."""

POISON_WORD = -1
"""Every bit set: NaN in every floating-point type, and no product of any plan."""

Compare = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes into the third, an int64 scalar, how many words of the first two differ."""
ShouldStop = Callable[[int], bool]
"""Takes the number of products so far."""


memcmp = ctypes.CDLL(None).memcmp
memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def compare(found: Tensor, expected: Tensor, count: Tensor) -> None:
    """Compare rows of words bit by bit on their device, without waiting for it."""
    import torch

    if found.device.type != "cpu":
        torch.sum(torch.ne(found, expected), dim=0, dtype=torch.int64, out=count)
    elif memcmp(found.data_ptr(), expected.data_ptr(), found.nbytes):
        # A sum of booleans is far slower there. Two opinions: one that differs is enough.
        count.copy_(torch.count_nonzero(torch.ne(found, expected)).clamp_(min=1))
    else:
        count.zero_()


def poison(output: Tensor) -> None:
    """Fill *output* with a value that no product has, so that unwritten words show."""
    view_words(output).fill_(POISON_WORD)


@dataclass(frozen=True, slots=True)
class ProductSeams:
    """What multiplies and what compares; tests inject faulty ones."""

    multiply: Multiply = multiply
    compare: Compare = compare


HARDWARE_SEAMS = ProductSeams()


@dataclass(frozen=True, slots=True)
class ProductJob:
    """Operands, on the device that multiplies them, and their correct product."""

    name: str
    """The name of its plan."""
    a: Tensor
    b: Tensor
    reference: Tensor
    digest: int
    """The digest of the reference when it was made."""
    remake: Callable[[], tuple[Tensor, Tensor]]
    """Makes the operands again, on the host: those in memory may have changed."""
    draw: int = 0
    rounds: bool = False
    """Whether its sums are rounded, so that their order shows."""


@dataclass(frozen=True, slots=True)
class WrongProduct:
    """A wrong product, the number of its wrong words, and the output that still holds it."""

    number: int
    words: int
    output: Tensor


@dataclass(frozen=True, slots=True)
class ProductBatch:
    """The counts of consecutive products, on their way to the host."""

    number: int
    """The number of the first product."""
    outputs: tuple[Tensor, ...]
    canary_counts: tuple[int, ...]
    """The correct counts of the canaries, which follow those of the products."""
    wait_for_counts: Callable[[], list[int]]

    def list_wrong(self, counts: list[int]) -> list[WrongProduct]:
        """List the products that were wrong."""
        return [
            WrongProduct(self.number + i, count, output)
            for i, (count, output) in enumerate(zip(counts, self.outputs, strict=False))
            if count
        ]


@dataclass(frozen=True, slots=True)
class ProductBench:
    """Jobs and outputs that take turns, on the part or core *part_id*."""

    part_id: str
    dtype: str
    jobs: tuple[ProductJob, ...]
    """Two or more."""
    outputs: tuple[Tensor, ...]
    seed: int
    seams: ProductSeams = HARDWARE_SEAMS
    shifts: tuple[int, ...] = ALL_SHIFTS
    """The shifts that the operands go through, one per lap."""

    def get_job(self, number: int) -> tuple[ProductJob, int]:
        """Find the job of the product *number*, and its shift."""
        lap, place = divmod(number, len(self.jobs))
        return self.jobs[place], self.shifts[lap % len(self.shifts)]

    def get_output(self, number: int) -> Tensor:
        """Find the output of the product *number*."""
        return self.outputs[number % len(self.outputs)]

    @property
    def batch_size(self) -> int:
        """How many products the host handles together."""
        return max(1, len(self.outputs) // 2)

    def compute_and_compare(self, number: int, count: Tensor) -> None:
        """Compute and compare the product *number* without waiting for a GPU."""
        (job, shift), out = self.get_job(number), self.get_output(number)
        self.seams.multiply(*view_shifted(job.a, job.b, shift), out)
        self.seams.compare(view_words(out), view_words(job.reference), count)

    def run_canary(self, number: int, counts: Tensor) -> tuple[int, ...]:
        """Compare spoiled copies of the product *number*; return the correct counts."""
        reference = view_words(self.get_job(number)[0].reference)
        chance = random.Random(f"{self.seed} {self.part_id} {number}")  # noqa: S311 - no secret
        spoiled = view_words(self.get_output(number)) ^ _make_bit_masks(reference, chance)
        self.seams.compare(spoiled, reference, counts[0])
        few = chance.randint(2, FEW_WORDS)
        for place, words in enumerate((1, few), start=1):
            spoiled.copy_(view_words(self.get_output(number)))
            first, bit = chance.randrange(len(reference) - words), chance.randrange(WORD_BITS)
            spoiled.narrow(0, first, words).bitwise_xor_(wrap_int64(1 << bit))
            self.seams.compare(spoiled, reference, counts[place])
        lanes = LANES if reference.device.type == "cpu" else 0
        start = chance.randrange(max(1, len(reference) - WINDOW_WORDS))
        window = slice(start, start + WINDOW_WORDS)
        spoiled, count = view_words(self.get_output(number))[window].clone(), counts.new_zeros(())
        for lane in range(lanes):
            word = spoiled[lane + LANES * chance.randrange(len(spoiled) // LANES)]
            flipped = wrap_int64(1 << chance.randrange(WORD_BITS))
            word.bitwise_xor_(flipped)
            self.seams.compare(spoiled, reference[window], count)
            counts[3].add_(count)
            word.bitwise_xor_(flipped)
        return len(reference), 1, few, lanes

    def start_batch(self, number: int, *, canary: bool) -> ProductBatch:
        """Start a batch of products from *number* on, with a *canary* if one is due."""
        counts = view_words(self.outputs[0]).new_zeros(self.batch_size + CANARY_COPIES)
        for i in range(self.batch_size):
            self.compute_and_compare(number + i, counts[i])
        expected: tuple[int, ...] = ()
        if canary:
            expected = self.run_canary(number + self.batch_size - 1, counts[self.batch_size :])
        outputs = tuple(self.get_output(number + i) for i in range(self.batch_size))
        return ProductBatch(number, outputs, expected, _start_host_copy(counts))


@dataclass(frozen=True, slots=True)
class ProductTask:
    """One type and shape of products with which to load one device."""

    ctx: hv.Context
    family: Dtype
    shape: Shape
    device: torch.device
    seams: ProductSeams = HARDWARE_SEAMS
    draw: int = 0
    shifts: tuple[int, ...] = ALL_SHIFTS
    """The shifts of the operands of exact products. Inexact ones would be rounded differently,
    so they have the same shift each time."""
    stalls: StallMeter = field(default_factory=StallMeter)

    def make_output(self) -> Tensor:
        """Allocate one product."""
        import torch

        size, dtype = self.shape.size, getattr(torch, self.family.output)
        return torch.empty(size, size, dtype=dtype, device=self.device)

    def make_bench(self, part_id: str, jobs: tuple[ProductJob, ...]) -> ProductBench:
        """Make a bench with its outputs for the part or core *part_id*."""
        outputs = tuple(self.make_output() for _ in range(count_outputs(len(jobs), self.device)))
        return ProductBench(
            part_id, self.family.name, jobs, outputs, self.ctx.seed, self.seams, self.shifts
        )


def count_outputs(jobs: int, device: torch.device) -> int:
    """
    Choose how many outputs *jobs* share.

    A GPU fills one batch of them while the host reads another; a CPU is checked after
    every product. A number with no common divisor with *jobs* makes each output hold
    them all in turn.
    """
    least = 1 if device.type == "cpu" else 2 * GPU_BATCH_PRODUCTS + 1
    return next(n for n in range(least, least + jobs + 1) if gcd(n, jobs) == 1)


def _make_bit_masks(like: Tensor, chance: random.Random) -> Tensor:
    import torch

    # The high bits of multiples of an odd number take all values evenly.
    bit = count_from(chance.getrandbits(62), like).mul_(wrap_int64(GOLDEN))
    bit.bitwise_right_shift_(WORD_BITS - 6).bitwise_and_(WORD_BITS - 1)
    return torch.bitwise_left_shift(torch.ones_like(bit), bit)


def _start_host_copy(counts: Tensor) -> Callable[[], list[int]]:
    """Start copying *counts* to the host; return a function that waits for them."""
    import torch

    if counts.device.type != "cuda":
        return counts.tolist
    copies = [torch.empty_like(counts, device="cpu", pin_memory=True) for _ in range(2)]
    for host in copies:
        host.copy_(counts, non_blocking=True)
    # A blocking event, or eight workers would spin on as many cores for hours.
    copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[int]:
        copied.synchronize()
        read: list[int] = copies[0].tolist()
        # The host errs, too. To ask the GPU each time would wait for the batch that comes next.
        return read if read == copies[1].tolist() else counts.tolist()

    return wait


@dataclass(frozen=True, slots=True)
class HuntResult:
    """The result of a hunt."""

    products: int
    seconds: float
    """The CPU time of this thread where it multiplies itself: none while others had the core."""
    wrong: tuple[WrongProduct, ...] = ()


def ignore_batch(_products: int) -> None:
    """Do nothing."""


def hunt(
    bench: ProductBench, should_stop: ShouldStop, note: Callable[[int], object] = ignore_batch
) -> HuntResult:
    """
    Compute and compare until it is time to stop, or something is wrong.

    Calls *note* with the number of products after each batch.

    Raises:
        BlindComparison: The comparison missed or miscounted flipped bits.

    """
    for output in bench.outputs:
        poison(output)
    clock = thread_time if bench.outputs[0].device.type == "cpu" else perf_counter
    start, products = clock(), 0
    for batch in _start_batches(bench, should_stop):
        counts = batch.wait_for_counts()
        products += len(batch.outputs)
        note(len(batch.outputs))
        wrong = batch.list_wrong(counts) or _compare_again(bench, batch, counts)
        if wrong:
            return HuntResult(products, clock() - start, tuple(wrong))
        _require_awake(bench, batch, counts[len(batch.outputs) :])
    return HuntResult(products, clock() - start)


class BlindComparison(hv.Unable):
    """Raised if the comparison on the part or core *part_id* misses flipped bits."""

    def __init__(self, part_id: str, reason: str, *, is_common: bool) -> None:
        remedy = hv.Remedy.FIX_CHECKER if is_common else hv.Remedy.INSPECT
        super().__init__(f"{part_id}: {reason}", hv.Cause.CHECKER, remedy)
        self.part_id = part_id
        self.is_common = is_common
        """Whether another core misses the same words: else the part may err, and not the check."""


def _compare_again(
    bench: ProductBench, batch: ProductBatch, counts: list[int]
) -> list[WrongProduct]:
    """
    Compare the product again whose canaries have more wrong words than were spoiled.

    It or its reference may have changed since it was compared: no bit went unnoticed.
    """
    canaries = zip(counts[len(batch.outputs) :], batch.canary_counts, strict=False)
    if not any(counted > spoiled for counted, spoiled in canaries):
        return []
    last = batch.number + len(batch.outputs) - 1
    words, reference = view_words(batch.outputs[-1]), bench.get_job(last)[0].reference
    count = words.new_zeros(())
    bench.seams.compare(words, view_words(reference), count)
    return [WrongProduct(last, int(count), batch.outputs[-1])] if int(count) else []


def _require_awake(bench: ProductBench, batch: ProductBatch, counts: list[int]) -> None:
    if batch.canary_counts and tuple(counts) != batch.canary_counts:
        wrong, counted = (", ".join(map(str, row)) for row in (batch.canary_counts, counts))
        is_common = _is_blind_elsewhere(bench, batch, counts)
        whose = "" if is_common else ": no other part missed them, so this one may err"
        raise BlindComparison(
            bench.part_id,
            f"the comparison did not notice flipped bits: with {wrong} wrong words it counted "
            f"{counted}: do not trust its other answers{whose}",
            is_common=is_common,
        )


def _is_blind_elsewhere(bench: ProductBench, batch: ProductBatch, counted: list[int]) -> bool:
    """Whether another core of the host counts the same in the canaries of a core."""
    others = [core for core in list_other_cores(bench.part_id) if f"cpu{core}" != bench.part_id]
    if not is_of_host(bench.part_id) or not others:
        return False

    def is_blind(_core: int) -> bool:
        counts = view_words(bench.outputs[0]).new_zeros(CANARY_COPIES)
        last = batch.number + len(batch.outputs) - 1
        bench.run_canary(last, counts)
        return counts.tolist() == counted

    (blind,) = run_on_each(others[:1], is_blind)
    return blind


def _start_batches(bench: ProductBench, should_stop: ShouldStop) -> Iterator[ProductBatch]:
    """Start batches, one ahead of the host, with a canary first, last and in between."""
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
