"""
Tensor cores in software, bit for bit: what the limits of exact products rest on.

An instruction takes a few products and what was summed before, aligns all of them to
the largest exponent, cuts off what lies below a fixed number of fractional bits, adds
up exactly what is left, and rounds the sum once. How many products it takes, how many
bits survive the alignment and how many the rounding differs from one architecture to
the next and is documented by no vendor. The figures here were measured on hardware by
others: MMA-Sim (Xie and others, arXiv 2511.10909, github.com/microsoft/MMA-Sim), and
for V100, A100, H100 and B200 also Khattak and Mikaitis (arXiv 2512.07004).

What is not modelled: NaN, infinity, overflow, and the sign of a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Exponents = NDArray[np.int32]
Rounding = Callable[[Matrix], Matrix]

SMALLEST = -126
"""The exponent of the smallest normal fp32, and that of a zero."""
LEAST = {"bf16": -126, "fp16": -14, "tf32": -126, "fp8": -6}
"""The exponents of the smallest normal operands (fp8: e4m3)."""


def towards_zero(bits: int) -> Rounding:
    """Keep so many fractional *bits* of the significand and cut off the others."""

    def rounded(x: Matrix) -> Matrix:
        unit = bits - _exponents(x, SMALLEST)
        return np.ldexp(np.trunc(np.ldexp(x, unit)), -unit)

    return rounded


def to_nearest(x: Matrix) -> Matrix:
    """Round to fp32 as IEEE 754 does by default."""
    return x.astype(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Core:
    """How one architecture multiplies one type of operands into fp32."""

    name: str
    operand: str
    products: int
    """That one instruction sums at a time."""
    aligned: int
    """Fractional bits that survive the alignment."""
    rounding: Rounding
    apart: int | None = None
    """AMD: fractional bits of the products' sum as it is aligned once more, with what
    was summed before, by rounding down. NVIDIA aligns all of them at once."""

    def step(self, terms: Matrix, top: Exponents, before: Matrix) -> Matrix:
        """
        Do one instruction.

        *terms* are ... x products, *top* their largest exponents and *before* what
        was summed before, both of the shape of the outputs.
        """
        own = _exponents(before, SMALLEST)
        if self.apart is None:
            top = np.maximum(top, own)
            total = _sum(terms, top, self.aligned)
            return self.rounding(total + _aligned(before, top, self.aligned, np.trunc))
        total = _sum(terms, top, self.aligned)
        top = np.maximum(top, own)
        total = _aligned(total, top, self.apart, np.floor)
        return self.rounding(total + _aligned(before, top, self.aligned, np.floor))

    def product(self, a: Matrix, b: Matrix, promote: int = 0) -> Matrix:
        """
        Multiply *a*, ... x m x k, by *b*, ... x k x n.

        With *promote*, the sum is moved to another one in fp32 whenever so many more
        of k are in it, as libraries do for fp8.
        """
        total = part = np.zeros((*a.shape[:-1], b.shape[-1]))
        for number, (terms, top) in enumerate(self.instructions(a, b), start=1):
            part = self.step(terms, top, part)
            if promote and number * self.products % promote == 0:
                total, part = to_nearest(total + part), np.zeros_like(part)
        return to_nearest(total + part)

    def instructions(self, a: Matrix, b: Matrix) -> Iterator[tuple[Matrix, Exponents]]:
        """Give the products that each instruction sums, and their largest exponents."""
        least, across = LEAST[self.operand], np.swapaxes(b, -1, -2)
        of_a, of_b = _exponents(a, least), _exponents(across, least)
        terms = a[..., :, None, :] * across[..., None, :, :]
        exponents = of_a[..., :, None, :] + of_b[..., None, :, :]
        starts = range(0, a.shape[-1], self.products)
        tops = np.maximum.reduceat(exponents, starts, axis=-1)
        for number, start in enumerate(starts):
            yield terms[..., start : start + self.products], tops[..., number]


def _exponents(x: Matrix, least: int) -> Exponents:
    """Give floor(log2 |x|), but at least *least*; that of zero is `MIN_CHUNK_BYTES`."""
    exponents = np.maximum(np.frexp(x)[1] - 1, least)
    return np.where(x == 0, SMALLEST, exponents)


def _aligned(x: Matrix, top: Exponents, bits: int, cut: Rounding) -> Matrix:
    """Align to the exponent *top* and *cut* off what lies below *bits* of fraction."""
    unit = bits - top
    return np.ldexp(cut(np.ldexp(x, unit)), -unit)


def _sum(terms: Matrix, top: Exponents, bits: int) -> Matrix:
    return np.asarray(_aligned(terms, top[..., None], bits, np.trunc).sum(axis=-1))


def fma_chain(a: Matrix, b: Matrix, dtype: type[np.floating[Any]]) -> Matrix:
    """
    Multiply integers as CUDA cores do, and tensor cores in fp64: one FMA at a time.

    An FMA rounds once, which is what is done here as long as no sum passes 2^63.
    """
    terms = (a[..., :, None, :] * np.swapaxes(b, -1, -2)[..., None, :, :]).astype(int)
    total = np.zeros(terms.shape[:-1], int)
    for k in range(terms.shape[-1]):
        total = (total + terms[..., k]).astype(dtype).astype(int)
    return total.astype(np.float64)


def _cores() -> Iterator[Core]:
    cut, short = towards_zero(23), towards_zero(13)
    for operand, ampere, hopper, cdna3 in (
        ("fp16", 8, 16, 8),
        ("bf16", 8, 16, 8),
        ("tf32", 4, 8, 4),
    ):
        yield Core("Ampere, Ada", operand, ampere, 24, cut)
        yield Core("Hopper, Blackwell", operand, hopper, 25, cut)
        yield Core("CDNA3", operand, cdna3, 24, to_nearest, 31)
    yield Core("Volta", "fp16", 4, 23, cut)
    yield Core("Turing", "fp16", 8, 24, cut)
    yield Core("Ada", "fp8", 16, 13, short)
    yield Core("Hopper", "fp8", 32, 13, short)
    yield Core("Blackwell", "fp8", 32, 25, cut)


CORES = tuple(_cores())
