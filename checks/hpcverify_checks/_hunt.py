"""The hunt for a wrong bit: products compared where they are computed, in windows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from hpcverify.check import Unable
from hpcverify.model import Cause, Finding, Remedy
from hpcverify_checks._exact import SHIFTS, Plan, digest, view, words

if TYPE_CHECKING:
    from torch import Tensor

WINDOW_SECONDS = 0.25
"""Time between two looks at the log, and between two canaries."""
LONGEST_WINDOW = 256
RERUNS = 3
WORD_BITS = 64

Multiply = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes the product of the first two into the third: what is under examination."""
Compare = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes into the third: how many words differ, the index of the first, its XOR."""
Enough = Callable[[int], bool]
"""Whether to stop, after so many products."""


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Multiply on the device, into the type of *out*."""
    import torch

    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:  # a 16-bit output would hide the low bits of the sums
        torch.mm(a, b, out.dtype, out=out)


def compare(found: Tensor, expected: Tensor, row: Tensor) -> None:
    """Compare rows of words bit by bit on their device, without a wait for it."""
    import torch

    unequal = torch.ne(found, expected)
    first = unequal.view(torch.uint8).argmax()[None]
    row[0] = torch.count_nonzero(unequal)  # a sum of booleans is far slower
    row[1] = first[0]
    row[2] = (found.index_select(0, first) ^ expected.index_select(0, first))[0]


@dataclass(frozen=True, slots=True)
class Seams:
    """What multiplies and what compares; tests put faulty ones here."""

    multiply: Multiply = multiply
    compare: Compare = compare


HARDWARE = Seams()


@dataclass(frozen=True, slots=True)
class Job:
    """One plan with its operands and its proven product, where it is computed."""

    plan: Plan
    a: Tensor
    b: Tensor
    reference: Tensor
    digests: tuple[int, int, int]
    """Of the operands, taken on the host before they left it, and of the reference."""

    def place(self) -> str:
        """Say what a mismatch is due to: what lies in memory is digested again."""
        now = (digest(self.a), digest(self.b), digest(self.reference))
        names = ("operand A", "operand B", "reference")
        changed = [
            name
            for name, was, is_ in zip(names, self.digests, now, strict=True)
            if was != is_
        ]
        return f"memory ({', '.join(changed)} changed)" if changed else "compute"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A wrong product: which one, in how many words, and the first of those."""

    number: int
    words: int
    word: int
    xor: int


@dataclass(frozen=True, slots=True)
class Page:
    """The log of one window, on its way to the host."""

    number: int
    """Of its first product."""
    size: int
    canary: list[int]
    """What the last row must be."""
    rows: Callable[[], list[list[int]]]
    """Waits for the window to be over."""

    def mismatches(self, rows: list[list[int]]) -> list[Mismatch]:
        """List the products that were wrong."""
        return [
            Mismatch(self.number + i, *row) for i, row in enumerate(rows[:-1]) if row[0]
        ]


@dataclass(frozen=True, slots=True)
class Bench:
    """Jobs that take turns in one output buffer, on the part or core *where*."""

    where: str
    dtype: str
    jobs: tuple[Job, ...]
    out: Tensor
    seed: int
    seams: Seams = HARDWARE

    def turn(self, number: int) -> tuple[Job, int]:
        """Say which job the product *number* is, and by how much it is shifted."""
        lap, place = divmod(number, len(self.jobs))
        return self.jobs[place], lap % SHIFTS

    def step(self, number: int, row: Tensor) -> None:
        """Compute and compare the product *number*; the outcome goes into *row*."""
        job, shift = self.turn(number)
        self.seams.multiply(*view(job.a, job.b, shift), self.out)
        self.seams.compare(words(self.out), words(job.reference), row)

    def canary(self, number: int, row: Tensor) -> list[int]:
        """Flip a bit of the product *number*, compare, and say what must be found."""
        chance = random.Random(f"{self.seed} {self.where} {number}")  # noqa: S311 - no secret
        flat = words(self.out)
        place, mask = chance.randrange(flat.numel()), 1 << chance.randrange(63)
        flat[place].bitwise_xor_(mask)
        self.seams.compare(flat, words(self.turn(number)[0].reference), row)
        return [1, place, mask]

    def window(self, number: int, size: int) -> Page:
        """Start *size* products and a canary; on a GPU nothing here waits for them."""
        import torch

        log = torch.zeros(size + 1, 3, dtype=torch.int64, device=self.out.device)
        for i in range(size):
            self.step(number + i, log[i])
        canary = self.canary(number + size - 1, log[size])
        return Page(number, size, canary, _published(log))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a hunt on one part or core came to."""

    where: str
    products: int = 0
    seconds: float = 0.0
    mismatched: int = 0
    """Words of 64 bits."""
    corruption: Finding | None = None


def hunt(bench: Bench, enough: Enough) -> Outcome:
    """
    Compute and compare until it is *enough*, or something is wrong.

    Raises:
        Unable: A flipped bit was not noticed, or noticed wrongly.

    """
    start, products = perf_counter(), 0
    for page in _pages(bench, enough):
        rows = page.rows()
        products += page.size
        wrong = page.mismatches(rows)
        if wrong:
            return corrupted(bench, wrong, products, perf_counter() - start)
        if rows[-1] != page.canary:
            raise Unable(
                f"{bench.where}: the comparison did not notice a flipped bit: it found "
                f"{rows[-1]} instead of {page.canary}: do not trust its other answers",
                Cause.CHECKER,
                Remedy.FIX_CHECKER,
            )
    return Outcome(bench.where, products, perf_counter() - start)


def _pages(bench: Bench, enough: Enough) -> Iterator[Page]:
    # One window is always under way while the log of the one before is read.
    number, size = 0, len(bench.jobs)
    before, then = None, perf_counter()
    while not number or not enough(number):
        page = bench.window(number, size)
        number += size
        if before:
            yield before
        before = page
        now = perf_counter()
        if now - then < WINDOW_SECONDS / 2:
            size = min(2 * size, LONGEST_WINDOW)
        then = now
    if before:
        yield before


def _published(log: Tensor) -> Callable[[], list[list[int]]]:
    """Start copying *log* to the host; what is returned waits until it is there."""
    import torch

    if log.device.type == "cpu":
        return log.tolist
    host = torch.empty_like(log, device="cpu", pin_memory=True)
    host.copy_(log, non_blocking=True)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record()

    def wait() -> list[list[int]]:
        copied.synchronize()
        return host.tolist()

    return wait


def corrupted(
    bench: Bench, wrong: Sequence[Mismatch], products: int, seconds: float
) -> Outcome:
    """Find out more about the first of the *wrong* products, and put it in words."""
    first = wrong[0]
    evidence = _evidence(bench, first)
    text = (
        f"{bench.dtype} product {first.number} ({evidence['plan']}) was wrong in "
        f"{first.words} words: row {evidence['row']} column {evidence['column']} is "
        f"{evidence['found']}, not {evidence['expected']} ({evidence['place']}, "
        f"{evidence['reruns']})"
    )
    return Outcome(
        bench.where,
        products,
        seconds,
        sum(m.words for m in wrong),
        Finding("corruption", bench.where, text, evidence),
    )


def _evidence(bench: Bench, first: Mismatch) -> dict[str, str]:
    import torch

    job, shift = bench.turn(first.number)
    width = 8 * bench.out.element_size()
    xor, per_word = first.xor % 2**WORD_BITS, WORD_BITS // width
    within = 0 if xor % 2**width else per_word - 1  # hosts and GPUs are little-endian
    xor = (xor >> width * within) % 2**width
    row, column = divmod(first.word * per_word + within, bench.out.shape[1])
    integer = torch.int64 if width == WORD_BITS else torch.int32
    expected = int(job.reference.view(integer)[row, column]) % 2**width
    place = job.place()
    again = sum(_rerun(bench, first.number) for _ in range(RERUNS))
    return {
        "dtype": bench.dtype,
        "plan": job.plan.name,
        "shift": str(shift),
        "row": str(row),
        "column": str(column),
        "expected": f"{expected:#0{2 + width // 4}x}",
        "found": f"{expected ^ xor:#0{2 + width // 4}x}",
        "xor": f"{xor:#0{2 + width // 4}x}",
        "bits": " ".join(str(bit) for bit in range(width) if xor >> bit & 1),
        "wrong_words": str(first.words),
        "place": place,
        "reruns": f"{'persistent' if again == RERUNS else 'intermittent'}: "
        f"{again} of {RERUNS} reruns wrong",
    }


def _rerun(bench: Bench, number: int) -> bool:
    """Repeat the product *number* and say whether it is wrong again."""
    import torch

    # What lies there would be the right answer where a tile is not written.
    bench.out.fill_(torch.nan)
    row = torch.zeros(3, dtype=torch.int64, device=bench.out.device)
    bench.step(number, row)
    return bool(row[0])
