"""Words that are copied between memories and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcverify_checks.common.bits import GOLDEN, WORD_BYTES, format_word, mix_bits, wrap_int64

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


@dataclass(frozen=True, slots=True)
class WrongWords:
    """How many words differ, and the first of them."""

    words: int
    index: int
    found: int
    expected: int

    def to_evidence(self) -> dict[str, str]:
        """Convert to a finding's evidence; the offset is in bytes."""
        return {
            "wrong_words": str(self.words),
            "offset": str(self.index * WORD_BYTES),
            "found": format_word(self.found),
            "expected": format_word(self.expected),
        }


def compare_words(found: Tensor, expected: Tensor) -> WrongWords | None:
    """Compare bit by bit, on the device of both; None if they are equal."""
    import torch

    if torch.equal(found, expected):
        return None
    unequal = torch.ne(found, expected)
    words = int(torch.count_nonzero(unequal))
    if not words:
        return None
    index = int(unequal.view(torch.uint8).argmax())
    return WrongWords(words, index, int(found[index]), int(expected[index]))
