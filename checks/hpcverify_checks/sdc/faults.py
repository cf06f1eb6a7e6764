"""
Faults for the seams of the hunt: what broken parts do to a product, and to its check.

They are injected where the hardware would have them, and everything else is the real
check; its tests and its selftest share them. They imitate what was seen in broken parts
and in models of them: not only single flipped bits but stuck ones, periodic and
warp-aligned ones, and tiles at the wrong address (arXiv 2605.04213).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import view_integers
from hpcverify_checks.exact.product_loop import Compare
from hpcverify_checks.node.dtypes import Multiply

if TYPE_CHECKING:
    from torch import Tensor

MultiplyFault = Callable[[Multiply], Multiply]
CompareFault = Callable[[Compare], Compare]
OutputFault = Callable[["Tensor"], object]
"""Changes a product in place."""

ALL_CALLS = range(sys.maxsize)
FRAGMENT_ROWS, FRAGMENT_COLUMNS = 64, 8
"""A fragment of the output: the same lane of the same unit recurs at this period."""
FAULTY_ROW, FAULTY_COLUMN = 3, 5
"""The broken lane of it."""
TILE_EDGE = 32
WARP_THREADS, BLIND_LANE = 32, 3
"""Threads that work in lockstep, on adjacent elements, and the one that is blind."""


def make_multiply_fault(harm: OutputFault) -> MultiplyFault:
    """Do *harm* to every product."""

    def fault(multiply: Multiply) -> Multiply:
        def multiply_wrongly(a: Tensor, b: Tensor, out: Tensor) -> None:
            multiply(a, b, out)
            harm(out)

        return multiply_wrongly

    return fault


def limit_to_calls(fault: MultiplyFault, calls: Sequence[int]) -> MultiplyFault:
    """Limit *fault* to these *calls*, counted from 0."""

    def limit(multiply: Multiply) -> Multiply:
        faulty, made = fault(multiply), 0

        def multiply_sometimes(a: Tensor, b: Tensor, out: Tensor) -> None:
            nonlocal made
            number, made = made, made + 1
            (faulty if number in calls else multiply)(a, b, out)

        return multiply_sometimes

    return limit


def flip(bit: int, row: int = 17, column: int = 33) -> OutputFault:
    """Flip a *bit* of one element."""

    def harm(out: Tensor) -> None:
        view_integers(out)[row, column].bitwise_xor_(make_bit_mask(bit, out))

    return harm


def stick(bit: int, *, at: int) -> OutputFault:
    """Hold a *bit* in one lane of every fragment *at* 0 or 1."""

    def harm(out: Tensor) -> None:
        lane = view_integers(out)[FAULTY_ROW::FRAGMENT_ROWS, FAULTY_COLUMN::FRAGMENT_COLUMNS]
        wanted = make_bit_mask(bit, out)
        _ = lane.bitwise_or_(wanted) if at else lane.bitwise_and_(~wanted)

    return harm


def flip_pair(bit: int) -> OutputFault:
    """Flip the same *bit* of two elements of a row, which an XOR does not see."""

    def harm(out: Tensor) -> None:
        for column in (FAULTY_COLUMN, FAULTY_COLUMN + FRAGMENT_COLUMNS):
            flip(bit, FAULTY_ROW, column)(out)

    return harm


def flip_periodic(bit: int) -> OutputFault:
    """Flip the same *bit* in every eighth element that a warp writes."""

    def harm(out: Tensor) -> None:
        warp = view_integers(out)[FAULTY_ROW, : FRAGMENT_COLUMNS * WARP_THREADS]
        warp[FAULTY_COLUMN::FRAGMENT_COLUMNS].bitwise_xor_(make_bit_mask(bit, out))

    return harm


def swap_tiles(out: Tensor) -> None:
    """Write two tiles to each other's address."""
    left, right = out[:TILE_EDGE, :TILE_EDGE], out[:TILE_EDGE, TILE_EDGE : 2 * TILE_EDGE]
    kept = left.clone()
    left.copy_(right)
    right.copy_(kept)


def duplicate_tile(out: Tensor) -> None:
    """Write a tile to its own address and over another one."""
    out[TILE_EDGE : 2 * TILE_EDGE, :TILE_EDGE].copy_(out[:TILE_EDGE, :TILE_EDGE])


def put_nan(out: Tensor) -> None:
    """Put a NaN in place of one element."""
    out[FAULTY_ROW, FAULTY_COLUMN] = float("nan")


def negate_zeros(out: Tensor) -> None:
    """Give every zero a minus sign."""
    out.masked_fill_(out == 0, -0.0)


def skip_tile(multiply: Multiply) -> Multiply:
    """Leave a tile as it was before the product."""

    def multiply_partly(a: Tensor, b: Tensor, out: Tensor) -> None:
        tile = out[TILE_EDGE : 2 * TILE_EDGE, TILE_EDGE : 2 * TILE_EDGE]
        kept = tile.clone()
        multiply(a, b, out)
        tile.copy_(kept)

    return multiply_partly


@contextmanager
def corrupt_memory(tensor: Tensor) -> Generator[None]:
    """
    Keep one element of *tensor* wrong while the block runs.

    The element is in the middle, where every shift uses it. The bit is the last but
    one, which changes the number in every type, whatever the other bits are.
    """
    row, column = (length // 2 for length in tensor.shape)
    element = view_integers(tensor)[row, column]
    bit = 8 * tensor.element_size() - 2
    element.bitwise_xor_(make_bit_mask(bit, tensor))
    try:
        yield
    finally:
        element.bitwise_xor_(make_bit_mask(bit, tensor))


def make_bit_mask(bit: int, like: Tensor) -> int:
    """Make the integer, as wide as *like*'s elements, that has only this *bit* set."""
    width = 8 * like.element_size()
    signed = width > 8 and bit == width - 1  # noqa: PLR2004 - bytes are unsigned here
    return -(1 << bit) if signed else 1 << bit


def ignore_all(_compare: Compare) -> Compare:
    """See nothing."""

    def count_nothing(_found: Tensor, _expected: Tensor, count: Tensor) -> None:
        count.zero_()

    return count_nothing


def ignore_lane(compare: Compare) -> Compare:
    """See nothing in one lane of each warp."""

    def compare_other_lanes(found: Tensor, expected: Tensor, count: Tensor) -> None:
        seen = found.clone()
        seen[BLIND_LANE::WARP_THREADS] = expected[BLIND_LANE::WARP_THREADS]
        compare(seen, expected, count)

    return compare_other_lanes


def ignore_low_bit(compare: Compare) -> Compare:
    """See every bit of each word but the lowest."""

    def compare_high_bits(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found & ~1, expected & ~1, count)

    return compare_high_bits


def drop_single_hits(compare: Compare) -> Compare:
    """Lose a single hit in the reduction of the counts."""

    def compare_lossily(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found, expected, count)
        count.masked_fill_(count == 1, 0)

    return compare_lossily
