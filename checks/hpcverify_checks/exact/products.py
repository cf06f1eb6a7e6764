"""
Matrix products whose every bit is known beforehand, on any part.

The operands are small integers, so that every partial sum in any order is an integer
that the accumulator holds exactly: whatever the order of summation, the tiles or the
library, there is one right result, known to the last bit. The certificate proves this: a
bound on every partial sum, computed from the operands themselves. The operands come from
a counter hash (see `hash_places`) and are the same everywhere.

A product is proven on the host, outside the part that made it: by `SHIPPED_DIGESTS`, the
digests of the right products for the shapes that suites use, which hold for every part of
every vendor, or by Freivalds' check in the integers modulo 2^64, where nothing rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, isqrt, log2
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import WORD_BITS, hash_places, make_integers, view_integers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks.exact.bits import DeviceLike

PAD_DEPTH = 128
"""Columns of A and rows of B that are repeated at the end, for `view_shifted`."""
SHIFT_STEP = 16
"""Keeps 16-byte alignment for operands of one byte."""
SHIFT_COUNT = PAD_DEPTH // SHIFT_STEP + 1
ALL_SHIFTS = tuple(range(SHIFT_COUNT))
UNIT_POWERS = range(1)
_BLOCK_ROWS = 512
"""Rows handled at a time, so that 64-bit copies of large operands stay small."""
MISS_BITS = 40
"""Freivalds' check misses a wrong row with a chance of at most 2^-40."""
HOST_DEVICE = "cpu"


@dataclass(frozen=True, slots=True)
class Shape:
    """A product of *size* x *depth* by *depth* x *size*."""

    size: int
    depth: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of one product."""
        return 2 * self.size * self.size * self.depth


@dataclass(frozen=True, slots=True)
class OperandPlan:
    """A recipe for two operands."""

    name: str
    key: int
    """Shared with no other plan."""


@dataclass(frozen=True, slots=True)
class ProductPlan(OperandPlan):
    """
    A recipe for operands of integers.

    Their integers are within +-*a* and +-*b*. A *bias* of 2^n, from one product at k = 0,
    is added to every output: without it the lowest output bits of short sums are always
    zero, and a bit stuck at zero would never show.
    """

    a: int
    b: int
    limit: int
    """The magnitude up to which the accumulator holds every integer."""
    bias: int = 0
    powers: range = UNIT_POWERS
    """Powers of two that scale each row and column, to exercise exponents."""


@dataclass(frozen=True, slots=True)
class ProductProof:
    """What the host found about a product that a part made."""

    wrong_rows: tuple[int, ...]
    certificate: int
    """If no row is wrong, no partial sum in any order or grouping is larger."""


@dataclass(frozen=True, slots=True)
class PlannedOperands(ABC):
    """Two operands that are made when and where they are needed, and their right product."""

    plan: OperandPlan
    shape: Shape
    draw: int = 0
    """0 makes the operands of `SHIPPED_DIGESTS`; any other number makes different ones."""

    @property
    def name(self) -> str:
        """The name of their plan."""
        return self.plan.name

    @property
    @abstractmethod
    def limit(self) -> int:
        """The largest certificate with which the product is exact."""

    @abstractmethod
    def make_a_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of A: len(rows) x depth, fp64."""

    @abstractmethod
    def make_b_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of B: len(rows) x size, fp64."""

    @abstractmethod
    def compute_rows(self, rows: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Compute these *rows* of the product on the host, in *dtype*, the output's."""

    @abstractmethod
    def prove(self, product: Tensor, seed: int) -> ProductProof:
        """Prove *product*, on the host, or list its wrong rows."""

    @abstractmethod
    def describe(self, certificate: int, product: Tensor) -> str:
        """Describe what the right *product* exercises, for the coverage."""

    def make_key(self, operand: int) -> int:
        """Make the key of the hashes of *operand*, 0 or 1."""
        return 2 * self.plan.key + operand + (self.draw << 8)

    @property
    def third_key(self) -> int:
        """The key of what the hashes of neither operand decide."""
        return -self.plan.key - (self.draw << 8)

    def store(
        self, dtype: torch.dtype, device: DeviceLike, *, by_columns: bool = False
    ) -> tuple[Tensor, Tensor]:
        """
        Store both in *dtype*, exactly, with the first `PAD_DEPTH` of k repeated at the end.

        Returns A, size x (depth + PAD), and B, (depth + PAD) x size, stored *by columns*
        where the library wants it so.
        """
        size, padded = self.shape.size, self.shape.depth + PAD_DEPTH
        a, b = allocate_operands(self.shape, dtype, device, by_columns=by_columns)
        for block in iter_blocks(size):
            part = slice(block.start, block.stop)
            a[part, :-PAD_DEPTH] = _cast(self.make_a_values(block, device), dtype)
        for block in iter_blocks(self.shape.depth):
            part = slice(block.start, block.stop)
            b[part] = _cast(self.make_b_values(block, device), dtype)
        for start in range(self.shape.depth, padded, self.shape.depth):
            width = min(self.shape.depth, padded - start)
            a[:, start : start + width] = a[:, :width]
            b[start : start + width] = b[:width]
        return a, b


@dataclass(frozen=True, slots=True)
class Operands(PlannedOperands):
    """The integers of a plan, made when and where they are needed."""

    plan: ProductPlan

    @property
    def limit(self) -> int:
        """What the accumulator holds exactly."""
        return self.plan.limit

    def make_a(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of A: len(rows) x depth, int64."""
        block = make_integers(self.make_key(0), rows, self.shape.depth, self.plan.a, device)
        if self.plan.bias:
            high = 2 ** (self._exponent - self._exponent // 2)
            block[:, 0] = high if self.plan.bias > 0 else -high
        return block

    def make_b(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of B: len(rows) x size, int64."""
        block = make_integers(self.make_key(1), rows, self.shape.size, self.plan.b, device)
        if self.plan.bias and not rows.start:
            block[0] = 2 ** (self._exponent // 2)
        return block

    @property
    def _exponent(self) -> int:
        return abs(self.plan.bias).bit_length() - 1

    def make_factors(self, device: DeviceLike) -> tuple[Tensor, Tensor]:
        """Make the powers of two of the rows (size x 1) and columns (1 x size)."""
        import torch

        powers, size = self.plan.powers, self.shape.size
        if len(powers) == 1:
            ones = torch.ones(size, dtype=torch.float64, device=device)
            return ones[:, None], ones[None, :]
        # Looked up, since a vectorised pow() may be wrong in the last bit.
        table = torch.tensor([2.0**e for e in powers], dtype=torch.float64, device=device)
        half = (len(powers) - 1) // 2
        chosen = table[make_integers(self.third_key, range(2), size, half, device) + half]
        return chosen[0][:, None], chosen[1][None, :]

    def make_a_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of A, scaled: len(rows) x depth, fp64."""
        factors, _ = self.make_factors(device)
        return self.make_a(rows, device) * factors[rows.start : rows.stop]

    def make_b_values(self, rows: range, device: DeviceLike) -> Tensor:
        """Make these *rows* of B, scaled: len(rows) x size, fp64."""
        _, factors = self.make_factors(device)
        return self.make_b(rows, device) * factors

    def compute_rows(self, rows: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Compute these *rows* of the scaled product on the host."""
        return self.compute_exact_rows(rows).to(dtype)

    def prove(self, product: Tensor, seed: int) -> ProductProof:
        """Prove *product*, on the host, by Freivalds' check."""
        return prove_by_freivalds(self, product, seed)

    def describe(self, certificate: int, product: Tensor) -> str:
        """Describe how large the sums are."""
        del product
        return f"{self.name} (sums to 2^{log2(certificate):.2f})"

    def compute_exact_rows(self, rows: Sequence[int]) -> Tensor:
        """Compute these *rows* of the scaled product on the host, in fp64: exact."""
        import torch

        a = torch.cat([self.make_a(range(row, row + 1), HOST_DEVICE) for row in rows]).double()
        total = torch.zeros(len(a), self.shape.size, dtype=torch.float64)
        for block in iter_blocks(self.shape.depth):
            part = a[:, block.start : block.stop]
            total += part @ self.make_b(block, HOST_DEVICE).double()
        factors, columns = self.make_factors(HOST_DEVICE)
        return total * factors[list(rows)] * columns


def allocate_operands(
    shape: Shape, dtype: torch.dtype, device: DeviceLike, *, by_columns: bool = False
) -> tuple[Tensor, Tensor]:
    """Allocate A and B as `Operands.store` lays them out, of zeros."""
    import torch

    new = partial(torch.zeros, dtype=dtype, device=device)
    padded = shape.depth + PAD_DEPTH
    b = new(shape.size, padded).T if by_columns else new(padded, shape.size)
    return new(shape.size, padded), b


def _cast(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Store *exact*, fp64, in *dtype*: through fp32, from which torch makes all others."""
    return exact if dtype.itemsize == exact.itemsize else exact.float().to(dtype)


def iter_blocks(length: int) -> Iterator[range]:
    """Cut *length* rows into blocks that are handled at a time."""
    for start in range(0, length, _BLOCK_ROWS):
        yield range(start, min(length, start + _BLOCK_ROWS))


def view_shifted(a: Tensor, b: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """
    View the operands of `Operands.store` from k = *shift* x `SHIFT_STEP` on.

    The product is the same to the last bit, but every element moves to another lane and
    another address; nothing is copied.
    """
    start, depth = shift * SHIFT_STEP, b.shape[0] - PAD_DEPTH
    return a.narrow(1, start, depth), b.narrow(0, start, depth)


def prove_by_freivalds(made: Operands, product: Tensor, seed: int) -> ProductProof:
    """
    Compare *product*, on the host, with A x B, and bound their partial sums.

    Freivalds' check modulo 2^64, with vectors of odd numbers drawn from *seed*, always finds
    a row with one wrong element; it misses any other wrong row with a chance of at most
    2^-`MISS_BITS`. A zero with a minus sign is wrong as well: sums that cancel round to plus.

    The sums of positive and of negative products of an output are P and N; every partial
    sum is within [-N, P]. P + N is at most the product of the norms of the row and the
    column (Cauchy and Schwarz), and P - N is the output, so that max(P, N) is at most half
    the sum of the two; a bias adds its own.
    """
    import torch

    draws = [seed * MISS_BITS + draw for draw in range(count_vectors(made.plan.limit))]
    odd = [hash_places(draw, range(1), made.shape.size, HOST_DEVICE)[0] | 1 for draw in draws]
    weights = torch.stack(odd)
    right, b_square = _multiply_b(made, weights.T)
    rows, columns = made.make_factors(HOST_DEVICE)
    wrong: list[int] = []
    a_square = largest = 0
    for block in iter_blocks(made.shape.size):
        part = slice(block.start, block.stop)
        a = made.make_a(block, HOST_DEVICE)
        unscaled = product[part] / rows[part] / columns
        # What is not an integer in range is wrong, whatever it is congruent to.
        fit = (unscaled == unscaled.round()) & (unscaled.abs() <= made.plan.limit)
        values = torch.where(fit, unscaled, 0.0).long()
        sums = _multiply_modulo(values, weights.T) == _multiply_modulo(a, right)
        same = fit.all(dim=1) & sums.all(dim=1)
        same &= ~((values == 0) & product[part].signbit()).any(dim=1)
        wrong += [block.start + int(i) for i in (~same).nonzero()]
        a_square = max(a_square, int(_sum_squares(a, made.plan.bias, dim=1).max()))
        largest = max(largest, int((values - made.plan.bias).abs().max()))
    bound = (isqrt(a_square * b_square) + 1 + largest) // 2 + 1 + abs(made.plan.bias)
    return ProductProof(tuple(wrong), bound)


def count_vectors(limit: int) -> int:
    """
    Count the vectors of Freivalds' check of integers within +-*limit*.

    An error is at most twice the limit. If 2^v is the largest power of two that divides all
    errors of a row, one vector of odd numbers modulo 2^64 misses it with a chance of
    2^-(63 - v): the more bits an integer may have, the more vectors it takes.
    """
    return ceil(MISS_BITS / (WORD_BITS - 1 - limit.bit_length()))


def _multiply_b(made: Operands, weights: Tensor) -> tuple[Tensor, int]:
    """Compute B x *weights*, and the largest squared norm of a column of B."""
    import torch

    parts: list[Tensor] = []
    squares = torch.zeros(made.shape.size, dtype=torch.int64)
    for block in iter_blocks(made.shape.depth):
        b = made.make_b(block, HOST_DEVICE)
        parts.append(_multiply_modulo(b, weights))
        squares += _sum_squares(b, 0 if block.start else made.plan.bias, dim=0)
    return torch.cat(parts), int(squares.max())


def _sum_squares(block: Tensor, bias: int, *, dim: int) -> Tensor:
    skipped = 1 if bias else 0
    return block.narrow(dim, skipped, block.shape[dim] - skipped).square().sum(dim)


def _multiply_modulo(matrix: Tensor, weights: Tensor) -> Tensor:
    import torch

    return torch.stack([(matrix * column).sum(1) for column in weights.T], dim=1)


def find_constant_bits(matrices: Iterable[Tensor]) -> tuple[int, ...]:
    """
    List the bits that are the same in every element of all *matrices*.

    A bit stuck at such a value cannot show. Only the first rows are read, which is enough
    to see that a bit changes.
    """
    import torch

    flat = torch.cat([view_integers(m[:_BLOCK_ROWS]).reshape(-1) for m in matrices])
    ever = fold_integers(flat, torch.bitwise_or)
    always = fold_integers(flat, torch.bitwise_and)
    width = 8 * flat.element_size()
    return tuple(b for b in range(width) if not ever >> b & 1 or always >> b & 1)


def fold_integers(flat: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> int:
    """Combine all integers of the row *flat*."""
    import torch

    while len(flat) > 1:
        half = len(flat) // 2
        both = combine(flat[:half], flat[half : 2 * half])
        flat = torch.cat([both, flat[2 * half :]])
    return int(flat)
