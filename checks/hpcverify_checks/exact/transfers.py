"""Words that are copied between memories, and what copies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcverify_checks.exact.bits import GOLDEN, mix_bits, wrap_int64

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Copy = Callable[["Tensor", "Tensor"], None]
"""Begins to copy the second into the first; tests inject a faulty one."""


def copy(target: Tensor, source: Tensor) -> None:
    """Begin to copy *source* into *target*, in the streams of their devices."""
    target.copy_(source, non_blocking=True)


def make_pattern(key: int, words: range, device: torch.device) -> Tensor:
    """Make the *words* of pattern *key*: a hash of the key and of their places."""
    import torch

    place = torch.arange(len(words), dtype=torch.int64, device=device)
    return mix_bits(place.add_(wrap_int64(key * GOLDEN + words.start)))
