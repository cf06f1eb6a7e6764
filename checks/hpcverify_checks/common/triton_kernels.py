"""
The kernels in Triton: functions import this module where Triton is installed.

Each is compiled at its first launch, in seconds, and kept in Triton's own cache.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit(do_not_specialize_on_alignment=["count"])  # type: ignore[untyped-decorator] # Triton has no types
def count_unequal(  # noqa: PLR0917 - a kernel has no keyword-only arguments
    found: tl.tensor,
    expected: tl.tensor,
    count: tl.tensor,
    length: tl.tensor,
    width: tl.constexpr,
    reads: tl.constexpr,
) -> None:
    """
    Add to *count* in how many of *length* 64-bit words *found* and *expected* differ.

    Each program reads *width* words of both, *reads* times; nothing else is read or
    written while all words are equal.
    """
    start = tl.program_id(0).to(tl.int64) * (width * reads)
    unequal = tl.zeros((width,), tl.int32)
    for read in range(reads):
        place = start + read * width + tl.arange(0, width)
        inside = place < length
        one = tl.load(found + place, mask=inside, other=0)
        other = tl.load(expected + place, mask=inside, other=0)
        unequal += (one != other).to(tl.int32)
    total = tl.sum(unequal)
    if total > 0:
        tl.atomic_add(count, total.to(tl.int64))


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def sm_id() -> Any:
    """Read the number of the multiprocessor that runs the program."""
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit  # type: ignore[untyped-decorator] # Triton has no types
def check_tile(  # noqa: PLR0917 - a kernel has no keyword-only arguments
    a: tl.tensor,
    b: tl.tensor,
    expected: tl.tensor,
    log: tl.tensor,
    repeats: tl.tensor,
    place: tl.constexpr,
    edge: tl.constexpr,
    depth: tl.constexpr,
    step: tl.constexpr,
) -> None:
    """
    Multiply *a*, edge x depth, by *b*, depth x edge, and compare with *expected*.

    Every program does the same *repeats* times, each time starting at another k, which
    changes nothing if the product is exact. It writes its row of *log* (int32): the
    number that *place* returns, how many elements were wrong, and the OR of their
    differing bits.
    """
    across, within = tl.arange(0, edge), tl.arange(0, step)
    square = across[:, None] * edge + across[None, :]
    right = tl.load(expected + square).to(tl.int32, bitcast=True)
    wrong = tl.zeros((), tl.int32)
    bits = tl.zeros((edge, edge), tl.int32)
    for repeat in range(repeats):
        total = tl.zeros((edge, edge), tl.float32)
        for start in range(0, depth, step):
            k = (start + repeat * step) % depth + within
            left = tl.load(a + across[:, None] * depth + k[None, :])
            below = tl.load(b + k[:, None] * edge + across[None, :])
            total = tl.dot(left, below, total)
        differing = total.to(tl.int32, bitcast=True) ^ right
        wrong += tl.sum((differing != 0).to(tl.int32))
        bits |= differing
    row = log + tl.program_id(0) * 3
    tl.store(row, place())
    tl.store(row + 1, wrong)
    tl.store(row + 2, tl.reduce_or(tl.reshape(bits, (edge * edge,)), 0))
