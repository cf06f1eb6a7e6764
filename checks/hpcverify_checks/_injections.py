"""
Faults for the seams of the hunt: what broken parts do to a product, and to its check.

They are put where the hardware would have them, behind the same seams, and everything
else is the real check: its tests and its selftest share them. What they imitate is what
was seen of broken parts and in models of them: not only single flipped bits but stuck
ones, periodic and warp-aligned ones, and tiles at the wrong address (arXiv 2605.04213).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpcverify_checks._bits import integers_of
from hpcverify_checks._hunt import Compare, Multiply

if TYPE_CHECKING:
    from torch import Tensor

Fault = Callable[[Multiply], Multiply]
"""Makes a unit that multiplies wrongly of one that multiplies."""
Blindness = Callable[[Compare], Compare]
"""Makes a comparison that does not see all of one that does."""
Harm = Callable[["Tensor"], object]
"""Changes a product in place."""

ALWAYS = range(sys.maxsize)
ROWS, COLUMNS = 64, 8
"""A fragment of the output, in which the same lane of the same unit comes back."""
ROW, COLUMN = 3, 5
"""The lane of it that is broken."""
TILE = 32
WARP = 32
"""Threads that work in step, and the elements they write side by side."""
LANES = 32
BLIND_LANE = 3


def harmed(harm: Harm) -> Fault:
    """Do *harm* to every product."""

    def fault(multiply: Multiply) -> Multiply:
        def harming(a: Tensor, b: Tensor, out: Tensor) -> None:
            multiply(a, b, out)
            harm(out)

        return harming

    return fault


def sometimes(fault: Fault, calls: Sequence[int]) -> Fault:
    """Have *fault* in these *calls* only, the first of which is 0."""

    def rare(multiply: Multiply) -> Multiply:
        faulty, made = fault(multiply), 0

        def now_and_then(a: Tensor, b: Tensor, out: Tensor) -> None:
            nonlocal made
            number, made = made, made + 1
            (faulty if number in calls else multiply)(a, b, out)

        return now_and_then

    return rare


def flip(bit: int, row: int = 17, column: int = 33) -> Harm:
    """Flip a *bit* of one element."""

    def harm(out: Tensor) -> None:
        integers_of(out)[row, column].bitwise_xor_(mask(bit, out))

    return harm


def stick(bit: int, *, at: int) -> Harm:
    """Hold a *bit* in one lane of every fragment *at* 0 or 1."""

    def harm(out: Tensor) -> None:
        lane = integers_of(out)[ROW::ROWS, COLUMN::COLUMNS]
        wanted = mask(bit, out)
        _ = lane.bitwise_or_(wanted) if at else lane.bitwise_and_(~wanted)

    return harm


def paired(bit: int) -> Harm:
    """Flip the same *bit* of two elements of a row, of which an XOR stays as it is."""

    def harm(out: Tensor) -> None:
        for column in (COLUMN, COLUMN + COLUMNS):
            flip(bit, ROW, column)(out)

    return harm


def warp_periodic(bit: int) -> Harm:
    """Flip the same *bit* in every eighth element that a warp writes."""

    def harm(out: Tensor) -> None:
        warp = integers_of(out)[ROW, : COLUMNS * WARP]
        warp[COLUMN::COLUMNS].bitwise_xor_(mask(bit, out))

    return harm


def swapped(out: Tensor) -> None:
    """Write two tiles to each other's address."""
    left, right = out[:TILE, :TILE], out[:TILE, TILE : 2 * TILE]
    kept = left.clone()
    left.copy_(right)
    right.copy_(kept)


def duplicated(out: Tensor) -> None:
    """Write a tile to its own address and over another one."""
    out[TILE : 2 * TILE, :TILE].copy_(out[:TILE, :TILE])


def spoiled(out: Tensor) -> None:
    """Put a NaN in place of one element."""
    out[ROW, COLUMN] = float("nan")


def negated_zeros(out: Tensor) -> None:
    """Give every zero the sign that it should not have."""
    out.masked_fill_(out == 0, -0.0)


def unwritten(multiply: Multiply) -> Multiply:
    """Leave a tile as it was before the product."""

    def forgetting(a: Tensor, b: Tensor, out: Tensor) -> None:
        tile = out[TILE : 2 * TILE, TILE : 2 * TILE]
        kept = tile.clone()
        multiply(a, b, out)
        tile.copy_(kept)

    return forgetting


@contextmanager
def in_memory(tensor: Tensor) -> Generator[None]:
    """
    Keep one element of *tensor* wrong for a while.

    The element is in the middle, where every shift uses it; the bit is the last but
    one, of which every type of ours makes another number, whatever the others are.
    """
    row, column = (length // 2 for length in tensor.shape)
    element = integers_of(tensor)[row, column]
    bit = 8 * tensor.element_size() - 2
    element.bitwise_xor_(mask(bit, tensor))
    try:
        yield
    finally:
        element.bitwise_xor_(mask(bit, tensor))


def mask(bit: int, like: Tensor) -> int:
    """Give the integer of the width of *like*'s elements that has only this *bit*."""
    width = 8 * like.element_size()
    signed = width > 8 and bit == width - 1  # noqa: PLR2004 - bytes are unsigned here
    return -(1 << bit) if signed else 1 << bit


def blind(_compare: Compare) -> Compare:
    """See nothing."""

    def seeing_nothing(_found: Tensor, _expected: Tensor, count: Tensor) -> None:
        count.zero_()

    return seeing_nothing


def blind_in_a_lane(compare: Compare) -> Compare:
    """See nothing in one lane of each warp."""

    def squinting(found: Tensor, expected: Tensor, count: Tensor) -> None:
        seen = found.clone()
        seen[BLIND_LANE::LANES] = expected[BLIND_LANE::LANES]
        compare(seen, expected, count)

    return squinting


def blind_to_a_bit(compare: Compare) -> Compare:
    """See all bits of each word but the lowest."""

    def coarse(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found & ~1, expected & ~1, count)

    return coarse


def blind_to_one(compare: Compare) -> Compare:
    """Lose a hit that is alone, in the reduction of the counts."""

    def losing(found: Tensor, expected: Tensor, count: Tensor) -> None:
        compare(found, expected, count)
        count.masked_fill_(count == 1, 0)

    return losing
