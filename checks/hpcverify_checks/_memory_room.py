"""Take nearly all memory of a device, in chunks that get smaller towards the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify_checks._memory_march import AT_ONCE, WORD_BYTES

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST = 2**30
SMALLEST = AT_ONCE * WORD_BYTES
RESERVE = 2**29
"""Bytes left free: for a table, what is compared with it, and kernels still to load."""


@dataclass(frozen=True, slots=True)
class Room:
    """The memory of a device; in bytes."""

    total: int
    free: Callable[[], int]
    """What can be had now, by whoever asks first."""
    allocate: Callable[[int], Tensor]
    """Gives 64-bit words; raises torch's OutOfMemoryError."""


def of_gpu(device: torch.device) -> Room:
    """Say what the driver has, after torch gave back what it keeps for later."""
    import torch

    torch.cuda.empty_cache()

    def free() -> int:
        return torch.cuda.mem_get_info(device)[0]

    def allocate(size: int) -> Tensor:
        return torch.empty(size // WORD_BYTES, dtype=torch.int64, device=device)

    return Room(torch.cuda.mem_get_info(device)[1], free, allocate)


def take(
    room: Room,
    largest: int = LARGEST,
    smallest: int = SMALLEST,
    reserve: int = RESERVE,
) -> tuple[Tensor, ...]:
    """Allocate until less than *smallest* and the *reserve* is free."""
    chunks: list[Tensor] = []
    size = largest
    while size >= smallest:
        chunk = _granted(room, size) if room.free() - reserve >= size else None
        if chunk is None:
            size //= 2
        else:
            chunks.append(chunk)
    return tuple(chunks)


def _granted(room: Room, size: int) -> Tensor | None:
    import torch

    try:
        return room.allocate(size)
    except torch.OutOfMemoryError:  # in pieces, or someone else was faster
        return None
