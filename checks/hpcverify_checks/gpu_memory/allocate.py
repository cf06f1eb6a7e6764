"""Allocate nearly all memory of a device, in ever smaller chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import WORD_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WORDS_PER_PIECE = 2**22
"""Words per kernel: 32 MiB, so that the table stays in a large cache."""
MAX_CHUNK_BYTES = 2**30
MIN_CHUNK_BYTES = WORDS_PER_PIECE * WORD_BYTES
RESERVE_BYTES = 2**29
"""Bytes left free: for the table, scratch space, and kernels still to load."""
CONTEXT_BYTES = 2**29
"""Bytes that a context and the kernels of torch may take on a large GPU (inferred, as in
`gpu_setup`)."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device, in bytes."""

    total: int
    """What a process can have of it."""
    free: Callable[[], int]
    """What is free now, shared with all other processes."""
    allocate: Callable[[int], Tensor]
    """Returns 64-bit words; raises torch's OutOfMemoryError."""
    withheld: Callable[[], int] = lambda: 0
    """What others hold of the total by right: a display, or the kernel of the host."""


def query_gpu_memory(device: torch.device, count_withheld: Callable[[int], int]) -> DeviceMemory:
    """
    Query the driver, after torch has released its cache.

    *count_withheld* counts what others hold by right, by what is used beside a context.
    """
    import torch

    torch.cuda.empty_cache()

    def allocate(size: int) -> Tensor:
        return torch.empty(size // WORD_BYTES, dtype=torch.int64, device=device)

    free, total = torch.cuda.mem_get_info(device)
    used = max(0, total - free - CONTEXT_BYTES)
    return DeviceMemory(
        total - CONTEXT_BYTES - RESERVE_BYTES,
        lambda: torch.cuda.mem_get_info(device)[0],
        allocate,
        lambda: count_withheld(used),
    )


def allocate_chunks(
    room: DeviceMemory,
    largest: int = MAX_CHUNK_BYTES,
    smallest: int = MIN_CHUNK_BYTES,
    reserve: int = RESERVE_BYTES,
) -> tuple[Tensor, ...]:
    """Allocate until less than *smallest* and the *reserve* is free."""
    import torch

    chunks: list[Tensor] = []
    size = largest
    while size >= smallest:
        if room.free() - reserve < size:
            size //= 2
            continue
        try:
            chunks.append(room.allocate(size))
        except torch.OutOfMemoryError:  # fragmented, or another process was faster
            size //= 2
    return tuple(chunks)
