"""
The kernel in Triton: functions import this module where Triton is installed.

It is compiled at its first launch, in seconds, and kept in Triton's own cache.
"""

from __future__ import annotations

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
