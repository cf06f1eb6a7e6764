"""
Matrix products whose every bit is known beforehand, on whatever part.

The operands are small integers, so that every partial sum in any order is an integer
that the accumulator holds exactly: whatever the order of summation, the tiles or the
library, there is one right result, and it is known to the last bit. What makes that
sound is `certificate`, computed from the operands themselves. The operands come from
a counter hash in 64-bit integer arithmetic, whose bits are the same on every machine
(a random generator's are not promised to be).

A result is proven by Freivalds' check in the ring of integers modulo 2^64, where
nothing rounds, and for the shapes that suites use also by `UNIVERSAL`: digests that
hold for every part of every vendor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PAD = 64
"""Columns of A and rows of B that are repeated at the end, for `views`."""
SHIFT_STEP = 8
"""Keeps 16-byte alignment for two-byte operands."""
SHIFTS = PAD // SHIFT_STEP + 1
SINGLE_POWERS = range(-14, 9)
"""By which rows and columns may be scaled: 1 to 255 stay normal numbers of fp16."""
DOUBLE_POWERS = range(-60, 61)
ALIKE = range(1)

SINGLE_LIMIT = 2**24
"""fp32 holds every integer up to here, and tensor cores sum bf16, fp16 and tf32 in
fp32 registers that lose nothing below it (arXiv 2511.10909 for Volta to Blackwell)."""
DOUBLE_LIMIT = 2**53
DOUBLE_OPERAND = 2**20 - 1
_BLOCK = 512
"""Rows handled at a time, so that 64-bit copies of large operands stay small."""
_SIGNED = 2**63


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
class Plan:
    """
    A recipe for two operands.

    Their integers lie within +-*a* and +-*b*. A *bias* of 2^n, made of one
    product at k = 0, is added to every output: without one the lowest output bits
    of short sums are always zero, and one stuck at zero would never show.
    """

    name: str
    key: int
    a: int
    b: int
    bias: int = 0
    powers: range = ALIKE
    """Of two, by which each row and column is multiplied: exercises exponents."""

    @property
    def limit(self) -> int:
        """The magnitude below which all integers are exact in the accumulator."""
        return DOUBLE_LIMIT if self.a >= DOUBLE_OPERAND else SINGLE_LIMIT


def single_plans(depth: int) -> tuple[Plan, ...]:
    """Make the plans that are exact with 8-bit operands and an fp32 accumulator."""
    wide, half = _second(depth, SINGLE_LIMIT), _second(depth, SINGLE_LIMIT // 2)
    return (
        Plan("plain", 1, 255, wide),
        Plan("bias+", 2, 255, half, bias=2**23),
        Plan("bias-", 3, half, 255, bias=-(2**23)),
        Plan("scaled", 4, wide, 255, powers=SINGLE_POWERS),
    )


def double_plans(depth: int) -> tuple[Plan, ...]:
    """Make the plans for an fp64 accumulator; *depth* must not pass 4096 x 2."""
    bits = DOUBLE_OPERAND if depth <= 2**11 else DOUBLE_OPERAND >> 2
    if depth > 2**13:
        raise ValueError(f"depth {depth} is more than an fp64 plan is exact for")
    return (
        Plan("double", 5, DOUBLE_OPERAND, bits),
        Plan("double+", 6, DOUBLE_OPERAND, bits, bias=2**52),
        Plan("double-", 7, DOUBLE_OPERAND, bits, bias=-(2**52)),
        Plan("double scaled", 8, DOUBLE_OPERAND, bits, powers=DOUBLE_POWERS),
    )


def _second(depth: int, room: int) -> int:
    # mean |a| is 128 for |a| <= 255; a quarter is left for the rows above the mean.
    return max(1, min(255, room * 3 // (4 * 128 * depth)))


def hashed(key: int, rows: range, columns: int) -> Tensor:
    """Hash the place of each element: splitmix64's mixing of a 64-bit counter."""
    import torch

    row = torch.arange(rows.start, rows.stop, dtype=torch.int64)[:, None]
    x = (row << 32) + torch.arange(columns, dtype=torch.int64)[None, :]
    return mixed(x + _wrapped(key * 0x9E3779B97F4A7C15))


def mixed(x: Tensor) -> Tensor:
    """Mix the 64 bits of each element of *x*, in place (Steele and others, 2014)."""
    x ^= (x >> 30) & (2**34 - 1)
    x *= _wrapped(0xBF58476D1CE4E5B9)
    x ^= (x >> 27) & (2**37 - 1)
    x *= _wrapped(0x94D049BB133111EB)
    x ^= (x >> 31) & (2**33 - 1)
    return x


def _wrapped(value: int) -> int:
    """Bring *value* into the range of a signed 64-bit integer, modulo 2^64."""
    return (value + _SIGNED) % (2 * _SIGNED) - _SIGNED


def integers(key: int, rows: int, columns: int, bound: int) -> Tensor:
    """Make *rows* x *columns* integers within +-*bound*, as int32 on the host."""
    import torch

    out = torch.empty(rows, columns, dtype=torch.int32)
    for start in range(0, rows, _BLOCK):
        block = range(start, min(rows, start + _BLOCK))
        high = (hashed(key, block, columns) >> 20) & (2**43 - 1)
        out[start : block.stop] = high % (2 * bound + 1) - bound
    return out


@dataclass(frozen=True, slots=True)
class Operands:
    """The integers of a plan on the host, and the powers of two that scale them."""

    plan: Plan
    shape: Shape
    a: Tensor
    b: Tensor
    rows: Tensor
    """Factors of the rows of A and of the product: fp64, a column."""
    columns: Tensor

    def scaled(self, product: Tensor) -> Tensor:
        """Scale an exact *product* as the operands are scaled: rounds nothing."""
        return (product.double() * self.rows * self.columns).to(product.dtype)

    def unscaled(self, product: Tensor) -> Tensor:
        """Undo `scaled`, in fp64: where *product* is right, these are integers."""
        return product.double() / self.rows / self.columns

    def stored(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cast to *dtype*, which is exact, and repeat the first `PAD` of k."""
        import torch

        a, b = (self.a * self.rows).to(dtype), (self.b * self.columns).to(dtype)
        return torch.cat([a, a[:, :PAD]], dim=1), torch.cat([b, b[:PAD]], dim=0)


def operands(plan: Plan, shape: Shape) -> Operands:
    """Make the operands of *plan*: the same ones wherever this runs."""
    a = integers(2 * plan.key, shape.size, shape.depth, plan.a)
    b = integers(2 * plan.key + 1, shape.depth, shape.size, plan.b)
    if plan.bias:
        exponent = abs(plan.bias).bit_length() - 1
        a[:, 0] = 2 ** ((exponent + 1) // 2) * (1 if plan.bias > 0 else -1)
        b[0, :] = 2 ** (exponent // 2)
    factors = _factors(plan, shape.size)
    return Operands(plan, shape, a, b, factors[0][:, None], factors[1][None, :])


def _factors(plan: Plan, size: int) -> Tensor:
    import torch

    if len(plan.powers) == 1:
        return torch.ones(2, size, dtype=torch.float64)
    # Looked up, since a vectorised pow() may be wrong in the last bit.
    powers = torch.tensor([2.0**e for e in plan.powers], dtype=torch.float64)
    half = len(plan.powers) // 2
    return powers[integers(-plan.key, 2, size, half).long() + half]


def view(a: Tensor, b: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    """
    Take the operands as `Operands.stored`, begun at k = *shift* x `SHIFT_STEP`.

    The product is the same to the last bit while every element moves to another
    lane and another address; nothing is copied.
    """
    start, depth = shift * SHIFT_STEP, b.shape[0] - PAD
    return a.narrow(1, start, depth), b.narrow(0, start, depth)


def certificate(a: Tensor, b: Tensor) -> int:
    """
    Bound every partial sum of the product of *a* and *b*, in any order or grouping.

    A sum over any of the products of an output is at most the sum of their
    magnitudes, and that at most the sum over k of |a|[i, k] max_j |b|[k, j].
    """
    return min(_bound(a, b), _bound(b.T, a.T))


def _bound(a: Tensor, b: Tensor) -> int:
    largest = b.abs().amax(dim=1).long()
    return max(int((m.abs().long() * largest).sum(dim=1).max()) for m in _blocks(a))


def _blocks(matrix: Tensor) -> Iterator[Tensor]:
    """Cut *matrix* into bands of rows, whose 64-bit copies stay small."""
    for start in range(0, len(matrix), _BLOCK):
        yield matrix[start : start + _BLOCK]


def wrong_rows(operands: Operands, product: Tensor, seed: int) -> list[int]:
    """
    List the rows of *product*, on the host, that are not those of A x B.

    Freivalds' check modulo 2^64, by two vectors of odd numbers drawn from *seed*: a
    row with one wrong element is always caught, any other one unless chance hits,
    at 2^-78 or less where outputs are fp32 integers below 2^24.
    """
    import torch

    exact = operands.unscaled(product)
    # What is not an integer in range is wrong, whatever it is congruent to.
    proper = ((exact == exact.round()) & (exact.abs() <= operands.plan.limit)).all(1)
    exact = torch.where(proper[:, None], exact, 0.0)
    good = proper
    for draw in range(2):
        weights = _odd(seed, draw, exact.shape[1])
        right = _times(operands.a, _times(operands.b, weights))
        good &= _times(exact, weights) == right
    return [int(row) for row in (~good).nonzero().flatten()]


def _odd(seed: int, draw: int, count: int) -> Tensor:
    return hashed(_wrapped(2 * seed + draw), range(1), count)[0] | 1


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Multiply modulo 2^64, block by block."""
    import torch

    return torch.cat([(m.long() * vector).sum(dim=1) for m in _blocks(matrix)])


def exact_product(operands: Operands, dtype: torch.dtype) -> Tensor:
    """Compute the product on the host in fp64, where it is exact, cast to *dtype*."""
    product = operands.a.double() @ operands.b.double()
    return operands.scaled(product).to(dtype)


def words(tensor: Tensor) -> Tensor:
    """View the bits of *tensor* as one row of 64-bit words; copies nothing."""
    import torch

    return tensor.view(torch.int64).view(-1)


def digest(tensor: Tensor) -> int:
    """
    Sum the words of *tensor*, each times an odd number of its place, modulo 2^64.

    Runs where the tensor is and has the same value everywhere. One changed word
    always changes it; swapped or paired changes do but for one in about 2^63.
    """
    total = 0
    for start, chunk in _chunks(words(tensor)):
        place = _counted(start, chunk)
        total += int((chunk * (mixed(place) | 1)).sum())
    return total % 2**64


def _counted(start: int, chunk: Tensor) -> Tensor:
    import torch

    return torch.arange(
        start, start + chunk.numel(), dtype=torch.int64, device=chunk.device
    )


def _chunks(flat: Tensor) -> Iterator[tuple[int, Tensor]]:
    at_once = 2**22
    for start in range(0, flat.numel(), at_once):
        yield start, flat[start : start + at_once]


def constant_bits(products: Iterable[Tensor]) -> tuple[int, ...]:
    """
    List the output bits that are the same in every element of all *products*.

    A fault that holds one of these at its value cannot show. Only the first rows
    are looked at: a bit that changes there changes.
    """
    import torch

    flat = torch.cat([_integers_of(p[:_BLOCK]).reshape(-1) for p in products])
    width = 8 * flat.element_size()
    ones = [int(((flat >> bit) & 1).sum()) for bit in range(width)]
    return tuple(bit for bit, n in enumerate(ones) if n in (0, flat.numel()))


def _integers_of(tensor: Tensor) -> Tensor:
    import torch

    return tensor.view(torch.int64 if tensor.element_size() == 8 else torch.int32)  # noqa: PLR2004 - bytes of fp64


def universal_digest(plan: Plan, shape: Shape) -> int:
    """Compute the digest of the one right product of *plan*: see `UNIVERSAL`."""
    import torch

    dtype = torch.float64 if plan.limit == DOUBLE_LIMIT else torch.float32
    return digest(exact_product(operands(plan, shape), dtype))


UNIVERSAL = {
    ("plain", 512, 2048): 0xA3BA_EEE3_A0B7_0730,
    ("bias+", 512, 2048): 0x2CE9_65B0_DE01_EE27,
    ("bias-", 512, 2048): 0x70DB_B1E5_7A08_F641,
    ("scaled", 512, 2048): 0x0EA4_9470_DC3D_6F10,
    ("double", 512, 2048): 0x2FDC_67E3_7989_E4C0,
    ("double+", 512, 2048): 0x6E04_455B_B1CC_4308,
    ("double-", 512, 2048): 0x2517_F283_5E20_EB26,
    ("double scaled", 512, 2048): 0x7047_4861_3869_2780,
    ("plain", 4096, 8192): 0x7B01_B5A0_54E6_A450,
    ("bias+", 4096, 8192): 0x4DC1_9C01_4A2F_8B78,
    ("bias-", 4096, 8192): 0xDF2B_3B3E_6DB8_DA95,
    ("scaled", 4096, 8192): 0x1E3C_0ABC_4C32_8AA0,
    ("double", 4096, 8192): 0x5859_87DD_CD0E_E780,
    ("double+", 4096, 8192): 0x98C7_70EA_69D9_FE49,
    ("double-", 4096, 8192): 0x1E0E_94C1_4691_5121,
    ("double scaled", 4096, 8192): 0x8ACB_8C64_FF35_4D80,
}
"""The digests of the right products, by plan, size and depth, as `universal_digest`
computes them: they hold for every part, vendor and library."""
