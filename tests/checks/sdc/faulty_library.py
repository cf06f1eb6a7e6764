"""
Faults put under torch and the C library: below all of our code, on one core or on all.

Nothing of hpcverify is replaced: its products come from `torch.mm` and `_int_mm`, it
compares with `memcmp`, `torch.ne` and `torch.count_nonzero`, and copies with
`Tensor.copy_` and `ctypes.memmove`. These err here.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from hpcverify_checks.exact import product_loop
from hpcverify_checks.exact.bits import view_integers
from tests.checks.sdc.work_clock import WorkClock

BAD = max(os.sched_getaffinity(0))
"""The core that has the fault, where one has it."""
PAUSE_SECONDS = 0.002
LINE_BYTES = 64

_mm, _int_mm = torch.mm, torch.ops.aten._int_mm.out
_ne, _count_nonzero = torch.ne, torch.count_nonzero
_copy, _memmove = torch.Tensor.copy_, ctypes.memmove


def is_bad_core() -> bool:
    """Whether this thread is pinned to the core that has the fault."""
    return os.sched_getaffinity(0) == {BAD}


def is_any_core() -> bool:
    """Every core has it."""
    return True


def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Multiply rightly, by the library."""
    if a.dtype == torch.int8:
        _int_mm(a, b, out=out)
    else:
        _mm(a, b, out=out)


@dataclass(frozen=True, slots=True)
class Product:
    """One product, as a fault finds it."""

    a: Tensor
    b: Tensor
    out: Tensor
    """The right product."""
    before: Tensor
    """What the output held before it."""

    @property
    def bits(self) -> Tensor:
        """The bits of the output."""
        return view_integers(self.out)


Harm = Callable[[Product], object]
"""What a fault does to a product."""


def flip_bit(bit: int) -> Harm:
    """Flip a bit of one element."""

    def harm(made: Product) -> None:
        width = 8 * made.out.element_size()
        made.bits[3, 4] ^= 1 << bit if bit < width - 1 else -(1 << bit)

    return harm


def swap_rows(made: Product) -> None:
    """Let two rows change places."""
    made.out[[3, 9]] = made.out[[9, 3]]


def swap_neighbours(made: Product) -> None:
    """Let two elements of a row change places."""
    made.out[5, [20, 21]] = made.out[5, [21, 20]]


def fill_with_nan(made: Product) -> None:
    """Make no number at all."""
    made.out.fill_(torch.nan)


def fill_with_zero(made: Product) -> None:
    """Make nothing but zeros."""
    made.out.zero_()


def negate_zeros(made: Product) -> None:
    """Give zeros a minus sign, as a unit that rounds down where sums cancel."""
    made.out.masked_fill_(made.out == 0, -0.0)


def write_nothing(made: Product) -> None:
    """Leave what was there."""
    made.out.copy_(made.before)


def skip_element(made: Product) -> None:
    """Leave one element as it was."""
    made.out[7, 8] = made.before[7, 8]


def hold_lane(made: Product) -> None:
    """Hold a bit at one in one lane of 16."""
    made.bits[:, 5::16] |= 1 << 9


def drop_depth(made: Product) -> None:
    """Leave the last 16 products out of each sum."""
    multiply(made.a[:, :-16], made.b[:-16], made.out)


def err_above(exponent: float) -> Harm:
    """Add one to the last bit of results that are larger than this power of two."""

    def harm(made: Product) -> None:
        made.bits.add_((made.out.abs() > 2.0**exponent).to(made.bits.dtype))

    return harm


def lose_low_bit(made: Product) -> None:
    """Leave the lowest bit of each operand out of the multiplier."""
    a, b = (view_integers(x).bitwise_and(-2).view(x.dtype) for x in (made.a, made.b))
    multiply(a, b, made.out)


def round_towards_zero(made: Product) -> None:
    """Cut off what does not fit, where fp64 shows that rounding went up."""
    exact = _mm(made.a.double(), made.b.double()).abs()
    up = (made.out.double().abs() > exact) & made.out.isfinite()
    made.bits.sub_(up.to(made.bits.dtype))


def flush_results(made: Product) -> None:
    """Replace subnormal results by zero."""
    made.out.masked_fill_(made.out.abs() < torch.finfo(made.out.dtype).tiny, 0.0)


def flush_operands(made: Product) -> None:
    """Take subnormal operands for zero."""
    small = made.a.abs() < torch.finfo(made.a.dtype).tiny
    multiply(made.a.masked_fill(small, 0.0), made.b, made.out)


def saturate(made: Product) -> None:
    """Give the largest number in place of infinity."""
    largest = torch.finfo(made.out.dtype).max
    made.out.clamp_(-largest, largest)


def err_on_full_significands(made: Product) -> None:
    """Add one to the last bit where the last bit of an operand is set, as of few integers."""
    full = (view_integers(made.a) & 1).bool().any(dim=1, keepdim=True)
    made.bits.add_(full.to(made.bits.dtype))


def err_on_pattern(made: Product) -> None:
    """Flip a bit in rows with an operand that ends in 0101..., of 12 bits (of int8: 8)."""
    pattern, mask = (0x55, 0xFF) if made.a.element_size() == 1 else (0x555, 0xFFF)
    hit = ((view_integers(made.a).to(torch.int64) & mask) == pattern).any(dim=1)
    made.bits[hit, 3] ^= 1 << 6


@dataclass
class FaultyProducts:
    """Multiplies wrongly in some of the products that a core makes in some types."""

    harm: Harm
    here: Callable[[], bool] = is_bad_core
    when: Callable[[int], bool] = lambda _number: True
    """By the number of the product, counted on each core."""
    which: Callable[[Product], bool] = lambda _made: True
    dtypes: frozenset[torch.dtype] = frozenset()
    """Of outputs; none stands for all."""
    numbers: Counter[frozenset[int]] = field(default_factory=Counter[frozenset[int]])

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let torch multiply in this way."""
        monkeypatch.setattr(torch, "mm", self.make)
        monkeypatch.setattr(torch.ops.aten._int_mm, "out", self.make)

    def make(self, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
        """Multiply, and do harm if it is time."""
        made = Product(a, b, out, out.clone())
        multiply(a, b, out)
        if self.here() and (not self.dtypes or out.dtype in self.dtypes):
            core = frozenset(os.sched_getaffinity(0))
            number = self.numbers[core]
            self.numbers[core] += 1
            if self.when(number) and self.which(made):
                self.harm(made)
        return out


def is_random(made: Product) -> bool:
    """Look at the low bits of A: integers have none, and B is full in sparse products."""
    bits = view_integers(made.a) & 0xFF, view_integers(made.b) & 0xFF
    return all(float(x.bool().float().mean()) > 1 / 2 for x in bits)


def add_in_another_order(made: Product) -> None:
    """Add up the products from the last one on."""
    multiply(made.a.flip(1), made.b.flip(0), made.out)


def err_on_tail(made: Product) -> None:
    """Flip a bit of the last column if it is amid a vector, as where lanes are masked."""
    if made.out.shape[1] % 16:
        made.bits[:, -1] ^= 1 << 6


def err_on_columns(made: Product) -> None:
    """Flip a bit if B is stored by columns."""
    if made.b.stride(0) == 1:
        made.bits[3, 4] ^= 1 << 6


def exaggerate(made: Product) -> None:
    """Make an element a tenth larger."""
    made.out[3, 4] *= 1.1


class FirstRandomProduct:
    """Whether a product is the first on this core whose operands use all their bits."""

    def __init__(self) -> None:
        """Have seen none."""
        self.seen: set[frozenset[int]] = set()

    def __call__(self, made: Product) -> bool:
        """Remember the core."""
        core = frozenset(os.sched_getaffinity(0))
        random = is_random(made)
        first = random and core not in self.seen
        self.seen |= {core} if random else set()
        return first


class AfterPause:
    """Whether a product is the first on this thread after a pause of 2 ms or more."""

    def __init__(self, clock: WorkClock) -> None:
        """Watch who waits by this clock, before it is used."""
        self.paused, wait = threading.local(), clock.sleep

        def sleep(seconds: float) -> None:
            self.paused.now = getattr(self.paused, "now", False) or seconds >= PAUSE_SECONDS
            wait(seconds)

        clock.sleep = sleep  # type: ignore[method-assign]

    def __call__(self, _made: Product) -> bool:
        """Forget the pause."""
        after, self.paused.now = getattr(self.paused, "now", False), False
        return after


Notice = Callable[[Tensor], Tensor]
"""What a comparison makes of which words are unequal, or of their number."""


def overlook_lane(unequal: Tensor) -> Tensor:
    """Take one lane of 32 for equal."""
    unequal.view(-1)[5::32] = False
    return unequal


def overlook_all(unequal: Tensor) -> Tensor:
    """Take everything for equal."""
    return unequal.zero_()


def take_few_for_none(count: Tensor) -> Tensor:
    """Count two to five words as none."""
    return count.masked_fill((count >= 2) & (count <= 5), 0)


def count_one_more(count: Tensor) -> Tensor:
    """Count one word too many where there is none."""
    return count.masked_fill(count == 0, 1)


HELD_BIT = 17


@dataclass(frozen=True, slots=True)
class FaultyComparison:
    """Compares wrongly: with `torch.ne`, with `torch.count_nonzero`, or what it loads."""

    unequal: Notice | None = None
    count: Notice | None = None
    holds_bit: bool = False
    """Whether the load port holds a bit at one, of both operands."""
    here: Callable[[], bool] = is_bad_core

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let torch compare in this way."""
        monkeypatch.setattr(torch, "ne", self.compare)
        monkeypatch.setattr(torch, "count_nonzero", self.count_words)
        monkeypatch.setattr(product_loop, "memcmp", self.compare_bytes)

    def compare_bytes(self, found: int, expected: int, size: int) -> int:
        """Stand in for `memcmp`, which compares with the same units."""
        one, other = (
            torch.frombuffer((ctypes.c_char * size).from_address(place), dtype=torch.int64)
            for place in (found, expected)
        )
        return int(self.count_words(self.compare(one, other)))

    def compare(self, found: Tensor, expected: Tensor) -> Tensor:
        """Stand in for `torch.ne`."""
        if self.holds_bit and self.here() and found.dtype == torch.int64:
            found, expected = (x | 1 << HELD_BIT for x in (found, expected))
        unequal = _ne(found, expected)
        return self.unequal(unequal) if self.unequal and self.here() else unequal

    def count_words(self, unequal: Tensor) -> Tensor:
        """Stand in for `torch.count_nonzero`."""
        count = _count_nonzero(unequal)
        errs = self.count and unequal.dtype == torch.bool and self.here()
        return self.count(count) if self.count and errs else count


Move = Callable[[int, int, int, int], object]
"""Copies wrongly: target and source, as addresses, bytes, and how many copies there were."""


def move_all(target: int, source: int, size: int, _number: int) -> None:
    """Copy rightly."""
    _memmove(target, source, size)


def move_short(target: int, source: int, size: int, _number: int) -> None:
    """Leave out the last byte."""
    _memmove(target, source, size - 1)


def move_too_far(target: int, source: int, size: int, _number: int) -> None:
    """Write one byte too many."""
    _memmove(target, source, size)
    _memmove(target + size, source, 1)


def move_line_twice(target: int, source: int, size: int, _number: int) -> None:
    """Write a cache line twice, the second time over the next one."""
    _memmove(target, source, size)
    if size >= 2 * LINE_BYTES:
        _memmove(target + LINE_BYTES, target, LINE_BYTES)


def write_behind(target: int, source: int, size: int, _number: int) -> None:
    """Write 8 bytes where they do not belong, 200 bytes behind the copy."""
    _memmove(target, source, size)
    _memmove(target + size + 200, source, min(size, 8))


def flip_now_and_then(each: int) -> Move:
    """Flip a bit in one of *each* so many copies."""

    def move(target: int, source: int, size: int, number: int) -> None:
        _memmove(target, source, size)
        if number % each == each - 1:
            place = (ctypes.c_ubyte * size).from_address(target)
            place[size // 2] ^= 16

    return move


def swap_now_and_then(each: int) -> Move:
    """Let two words change places in one of *each* so many copies, if it has two."""

    def move(target: int, source: int, size: int, number: int) -> None:
        _memmove(target, source, size)
        if number % each == each - 1 and size >= 16:
            _memmove(target, source + 8, 8)
            _memmove(target + 8, source, 8)

    return move


@dataclass
class FaultyCopies:
    """Copies bytes wrongly on one core: with torch and with the C library alike."""

    move: Move
    numbers: int = 0

    def put_into(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let both copy in this way."""

        def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - torch's
            if target.dtype != torch.uint8 or not is_bad_core():
                return _copy(target, source, non_blocking)
            self.copy_bytes(target.data_ptr(), source.data_ptr(), len(target))
            return target

        monkeypatch.setattr(torch.Tensor, "copy_", copy_)
        monkeypatch.setattr(ctypes, "memmove", self.copy_bytes)

    def copy_bytes(self, target: int, source: int, size: int) -> None:
        """Stand in for `memmove`."""
        move = self.move if is_bad_core() else move_all
        move(target, source, size, self.numbers)
        self.numbers += is_bad_core()
