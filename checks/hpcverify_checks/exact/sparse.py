"""
Matrix products in which each output is one product of two numbers, rounded once.

Integers whose sums are exact never round, leave most bits of a significand unused, and
never reach the ends of a type's range. Here each row of A has one number that is not zero,
and B is full; or each column of B has one, and A is full. All other products are zero and
change no sum, so that an output is the product of two numbers with all bits of their
significands. IEEE 754 knows one right result
of it, whatever the order of summation: rounded to nearest, ties to even; subnormal where it
is small; infinite where it is too large. No output is zero, since nothing fixes its sign.

The host computes the right product with integers alone: none of the units that are tested
takes part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import hash_crossings, hash_places, view_integers
from hpcverify_checks.exact.products import (
    HOST_DEVICE,
    OperandPlan,
    PlannedOperands,
    ProductProof,
    iter_blocks,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks.exact.bits import DeviceLike

TURNED_KEY = 16
BAND_ROWS = 16
"""Numbers of the thin operand that share a band of exponents. Few, since a CPU may take 150
cycles for each sum that is subnormal."""
LONG, LIMB = 53, 27
"""Bits of a significand as it is kept here, and of its lower half."""
GUARD = 44
"""Low bits of a product of two significands that only matter if one of them is set."""
TOP = 2 * LONG - 1 - GUARD
"""The place of the first bit of what is left, if it is set."""


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """A binary format of IEEE 754, or operands that are a part of one."""

    precision: int
    """Bits of the significand, with the first one, which is not stored."""
    min_exponent: int
    """The smallest exponent of normal numbers."""
    width: int
    """Bits in memory, of outputs."""

    @property
    def infinity(self) -> int:
        """The bits of infinity."""
        return ((1 << self.width - self.precision) - 1) << self.precision - 1


FP64 = FloatFormat(53, -1022, 64)
FP32 = FloatFormat(24, -126, 32)
BF16 = FloatFormat(8, -126, 16)
FP16 = FloatFormat(11, -14, 16)
E4M3 = FloatFormat(4, -6, 8)


@dataclass(frozen=True, slots=True)
class SparsePlan(OperandPlan):
    """A recipe for a thin and a full operand: numbers with random signs and significands."""

    operand: FloatFormat
    output: FloatFormat
    thin: range
    """Exponents; those below the smallest of *operand* make subnormal operands."""
    full: range
    bands: tuple[range, ...] = ()
    """Exponents of the first `BAND_ROWS` numbers of the thin operand, of the next, and so on."""
    full_a: bool = False
    """Whether A is full and each column of B has one number; else each row of A has one."""

    @property
    def turned(self) -> SparsePlan:
        """The same with the other operand full, under a name and a key of its own."""
        return replace(self, name=f"{self.name} a", key=self.key + TURNED_KEY, full_a=True)

    @property
    def rounds(self) -> bool:
        """Whether a product has more bits than an output."""
        return 2 * self.operand.precision > self.output.precision

    @property
    def makes_subnormals(self) -> bool:
        """Whether some outputs are subnormal."""
        least = min(e.start for e in (self.thin, *self.bands)) + self.full.start
        return least < self.output.min_exponent

    @property
    def makes_infinity(self) -> bool:
        """Whether some outputs are infinite."""
        largest = max(e[-1] for e in (self.thin, *self.bands)) + self.full[-1]
        return largest > 1 - self.output.min_exponent


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers as integers (int64): the significands are below 2^53, their first bit is set."""

    negative: Tensor
    exponent: Tensor
    significand: Tensor

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        """All three."""
        return self.negative, self.exponent, self.significand


@dataclass(frozen=True, slots=True)
class SparseOperands(PlannedOperands):
    """The numbers of a plan, made when and where they are needed."""

    plan: SparsePlan

    @property
    def limit(self) -> int:
        """No output has a partial sum."""
        return 0

    def make_a_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of A: len(rows) x depth, fp64."""
        import torch

        if self.plan.full_a:
            return encode_double(self._draw_full(rows, range(self.shape.depth), device))
        values = torch.zeros(len(rows), self.shape.depth, dtype=torch.float64, device=device)
        thin = encode_double(self._draw_thin(rows, device))
        return values.scatter_(1, self._draw_places(rows, device)[:, None], thin[:, None])

    def make_b_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of B: len(rows) x size, fp64."""
        import torch

        if not self.plan.full_a:
            return encode_double(self._draw_full(rows, range(self.shape.size), device))
        every = range(self.shape.size)
        thin, places = (
            encode_double(self._draw_thin(every, device)),
            self._draw_places(every, device),
        )
        (columns,) = ((places >= rows.start) & (places < rows.stop)).nonzero(as_tuple=True)
        values = torch.zeros(len(rows), self.shape.size, dtype=torch.float64, device=device)
        values[places[columns] - rows.start, columns] = thin[columns]
        return values

    def compute_rows(self, rows: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Compute these *rows* of the product on the host, with integers: rounded once."""
        import torch

        every, chosen = range(self.shape.size), torch.tensor(list(rows))
        thin, places = self._draw_thin(every, HOST_DEVICE), self._draw_places(every, HOST_DEVICE)
        if self.plan.full_a:
            full = self._draw_crossings(chosen, places)
        else:
            thin = Numbers(*(part[chosen, None] for part in thin.parts))
            full = self._draw_crossings(places[chosen], torch.tensor(every))
        kinds = {16: torch.int16, 32: torch.int32, 64: torch.int64}
        width = self.plan.output.width
        return round_products(thin, full, self.plan.output).to(kinds[width]).view(dtype)

    def prove(self, product: Tensor, seed: int) -> ProductProof:
        """Compare *product*, on the host, with its rows as integers give them."""
        del seed
        wrong: list[int] = []
        for block in iter_blocks(self.shape.size):
            bits = view_integers(product[block.start : block.stop])
            right = view_integers(self.compute_rows(block, product.dtype))
            wrong += [block.start + int(i) for i in (bits != right).any(dim=1).nonzero()]
        return ProductProof(tuple(wrong), 0)

    def describe(self, certificate: int, product: Tensor) -> str:
        """Describe how the outputs of *product* are made, and how many are special."""
        del certificate
        output = self.plan.output
        magnitude = view_integers(product) & ((1 << output.width - 1) - 1)
        subnormal = int((magnitude < 1 << output.precision - 1).sum())
        infinite = int((magnitude == output.infinity).sum())
        how = "rounded once" if self.plan.rounds else "exact"
        return (
            f"{self.name} (one product each, {how}, {self.plan.operand.precision} bits by "
            f"{self.plan.operand.precision}; {subnormal} subnormal, {infinite} infinite)"
        )

    def _draw_thin(self, numbers: range, device: DeviceLike) -> Numbers:
        """Draw these *numbers* of the thin operand, by the row of A or the column of B."""
        hashed = hash_places(self.make_key(int(self.plan.full_a)), numbers, 1, device)[:, 0]
        drawn = draw_numbers(hashed, self.plan.thin, self.plan.operand)
        for band, exponents in enumerate(self.plan.bands):
            start = max(0, BAND_ROWS * band - numbers.start)
            part = slice(start, max(0, BAND_ROWS * (band + 1) - numbers.start))
            special = draw_numbers(hashed[part], exponents, self.plan.operand)
            drawn.exponent[part] = special.exponent
            drawn.significand[part] = special.significand
        return drawn

    def _draw_places(self, numbers: range, device: DeviceLike) -> Tensor:
        """Draw where in the depth each is."""
        hashed = hash_places(self.third_key, numbers, 1, device)[:, 0]
        return (hashed >> 20 & (2**43 - 1)) % self.shape.depth

    def _draw_full(self, rows: range, columns: range, device: DeviceLike) -> Numbers:
        import torch

        new = partial(torch.arange, dtype=torch.int64, device=device)
        return self._draw_crossings(new(rows.start, rows.stop), new(columns.stop))

    def _draw_crossings(self, rows: Tensor, columns: Tensor) -> Numbers:
        """Draw the numbers of the full operand in these *rows* and *columns*."""
        hashed = hash_crossings(self.make_key(int(not self.plan.full_a)), rows, columns)
        return draw_numbers(hashed, self.plan.full, self.plan.operand)


def draw_numbers(hashed: Tensor, exponents: range, kind: FloatFormat) -> Numbers:
    """Make a number of *kind* with one of these *exponents* of each hash, of 64 bits."""
    spread = (hashed >> LONG - 1 & 2**11 - 1) * len(exponents) >> 11
    exponent = spread + exponents.start
    significand = hashed & (2 ** (LONG - 1) - 1) | 1 << LONG - 1
    # A subnormal number lacks as many of its last bits as its exponent is too small.
    cut = (kind.min_exponent - exponent).clamp_min(0) + LONG - kind.precision
    return Numbers((hashed < 0).long(), exponent, significand >> cut << cut)


def encode_double(numbers: Numbers) -> Tensor:
    """Encode *numbers* in fp64, which holds each of them."""
    import torch

    lacking = (FP64.min_exponent - numbers.exponent).clamp_min(0)
    above = numbers.exponent.clamp_min(FP64.min_exponent) - FP64.min_exponent
    # The first bit of the significand adds one to the field of the exponent.
    magnitude = (above << LONG - 1) + (numbers.significand >> lacking)
    return (magnitude | numbers.negative << FP64.width - 1).view(torch.float64)


def round_products(a: Numbers, b: Numbers, output: FloatFormat) -> Tensor:
    """
    Multiply *a* by *b*, element by element, and round as IEEE 754 does by default.

    Returns the bits of the results in the format *output*, as int64. Every result must be
    at least as large as the smallest subnormal number.
    """
    kept = _multiply_significands(a.significand, b.significand)
    exponent = a.exponent + b.exponent + (kept >> TOP)
    field = exponent.clamp_min(output.min_exponent) - output.min_exponent
    drop = TOP - output.precision + (kept >> TOP) + (field + output.min_exponent - exponent)
    half = (kept.new_ones(()) << drop - 1) - 1
    rounded = kept + half + (kept >> drop & 1) >> drop
    # A significand that is rounded up to a power of two moves the exponent up as well.
    field = field.clamp_max(2 ** (output.width - output.precision) - 2)
    magnitude = ((field << output.precision - 1) + rounded).clamp_max(output.infinity)
    return magnitude | (a.negative ^ b.negative) << output.width - 1


def _multiply_significands(a: Tensor, b: Tensor) -> Tensor:
    """Multiply, and keep the first bits: 2^60 to 2^62, odd if a lower bit was set."""
    low_mask = 2**LIMB - 1
    middle = (a >> LIMB) * (b & low_mask) + (a & low_mask) * (b >> LIMB)
    low = (a & low_mask) * (b & low_mask) + ((middle & low_mask) << LIMB)
    high = (a >> LIMB) * (b >> LIMB) + (middle >> LIMB) + (low >> 2 * LIMB)
    low &= 2 ** (2 * LIMB) - 1
    sticky = ((low & (2**GUARD - 1)) != 0).long()
    kept: Tensor = high << 2 * LIMB - GUARD | low >> GUARD | sticky
    return kept
