"""
The kernels in Triton. Only `_jit` imports this, where Triton is installed.

Each is compiled at its first launch, which takes seconds, and kept in Triton's cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def count_unequal(
    found,
    expected,
    count,
    length,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """
    Add to *count* in how many of *length* 64-bit words *found* and *expected* differ.

    Both are read once, *BLOCKS* x *BLOCK* words by each program, and nothing else is
    read or written as long as all words are equal.
    """
    start = tl.program_id(0).to(tl.int64) * (BLOCK * BLOCKS)
    unequal = tl.zeros((BLOCK,), tl.int32)
    for block in range(BLOCKS):
        place = start + block * BLOCK + tl.arange(0, BLOCK)
        inside = place < length
        one = tl.load(found + place, mask=inside, other=0)
        other = tl.load(expected + place, mask=inside, other=0)
        unequal += (one != other).to(tl.int32)
    total = tl.sum(unequal)
    if total > 0:
        tl.atomic_add(count, total.to(tl.int64))


@triton.jit
def sm_id():
    """Read the number of the streaming multiprocessor that runs the program."""
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %smid;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def check_tile(
    a,
    b,
    expected,
    log,
    repeats,
    place: tl.constexpr,
    EDGE: tl.constexpr,
    DEPTH: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """
    Multiply *a*, EDGE x DEPTH, by *b*, DEPTH x EDGE, and compare with *expected*.

    Every program does the same *repeats* times, each time begun at another k, which
    changes nothing where the product is exact. Its row of *log*, which is int32,
    becomes: the number that *place* gives, how many elements were wrong, and the OR
    of how their bits differed.
    """
    edge, deep = tl.arange(0, EDGE), tl.arange(0, STEP)
    square = edge[:, None] * EDGE + edge[None, :]
    right = tl.load(expected + square).to(tl.int32, bitcast=True)
    wrong = tl.zeros((), tl.int32)
    bits = tl.zeros((EDGE, EDGE), tl.int32)
    for repeat in range(repeats):
        total = tl.zeros((EDGE, EDGE), tl.float32)
        for step in range(0, DEPTH, STEP):
            k = (step + repeat * STEP) % DEPTH + deep
            left = tl.load(a + edge[:, None] * DEPTH + k[None, :])
            below = tl.load(b + k[:, None] * EDGE + edge[None, :])
            total = tl.dot(left, below, total)
        differing = total.to(tl.int32, bitcast=True) ^ right
        wrong += tl.sum((differing != 0).to(tl.int32))
        bits |= differing
    row = log + tl.program_id(0) * 3
    tl.store(row, place())
    tl.store(row + 1, wrong)
    tl.store(row + 2, tl.reduce_or(tl.reshape(bits, (EDGE * EDGE,)), 0))
