"""
What ranks send: words that differ at each step, rank and place, and fill every bit.

Two rows of words, A and B, are splitmix64 of a seed and the place. Rank r sends
m A + k B in step t, modulo 2^32; m and k are splitmix64 of (seed, t, r). So a sum over
ranks is (sum of m) A + (sum of k) B, exact in any order and on any number of ranks, and
costs as little as a share. A result of the step before, a share that was taken twice, two
ranks that changed places and a chunk that came to a wrong place all differ from the right
result, each word with a chance of 2^-32 to be the same.

One of m and k is odd in every share, and one of the two sums is: so the lowest bit of
shares and of sums changes from word to word, and a loss of low bits shows.

Every other step of a reducing operation has float32 instead: integers m A' - k B' with
so few bits that a sum over all ranks stays within +-2^24, and is exact in any order. It
has all 24 bits of the significand that the number of ranks leaves room for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcverify_checks.common.bits import mix_bits, mix_word, wrap_int64

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WORD_BYTES = 4
CHUNK_WORDS = 2**22
"""Made and compared at a time: temporaries stay small beside the messages."""
EXACT_BITS = 24
"""Integers of so many bits are exact in float32."""
MAX_RANKS = 2**16
"""So many leave 8 bits for a float share."""


class Weights(Struct, frozen=True):
    """What a share or a sum of shares has of A and of B."""

    a: int
    b: int

    def __add__(self, other: Weights) -> Weights:
        """Weigh the sum of two shares."""
        return Weights(self.a + other.a, self.b + other.b)


@dataclass(frozen=True, slots=True)
class StepData:
    """The data of one step of all ranks."""

    seed: int
    step: int
    world: int
    floats: bool
    """float32 instead of words."""

    def weigh_share(self, rank: int) -> Weights:
        """Draw the weights of the share of *rank*."""
        drawn = mix_word(mix_word(self.seed + self.step * MAX_RANKS) + rank)
        bits = self._weight_bits if self.floats else 32
        odd, even = drawn % 2**bits | 1, (drawn >> 32) % 2**bits & ~1 or 2
        # The parities of the first rank are those of no other: then one sum is odd.
        swap = (rank == 0) != bool(self.step // 2 % 2)
        return Weights(even, odd) if swap else Weights(odd, even)

    def weigh_sum(self) -> Weights:
        """Add up the weights of all ranks."""
        total = Weights(0, 0)
        for rank in range(self.world):
            total += self.weigh_share(rank)
        return total

    @property
    def _share_bits(self) -> int:
        return EXACT_BITS - (self.world - 1).bit_length()

    @property
    def _weight_bits(self) -> int:
        return self._share_bits // 3

    @property
    def value_bits(self) -> int:
        """Bits of A and B that float shares are made of."""
        return self._share_bits - self._weight_bits


@dataclass(frozen=True, slots=True)
class Words:
    """The rows A and B, on the device."""

    a: Tensor
    b: Tensor

    @classmethod
    def make(cls, seed: int, count: int, device: torch.device) -> Words:
        """Make *count* words of each row."""
        import torch

        a, b = (torch.empty(count, dtype=torch.int32, device=device) for _ in range(2))
        for number, row in enumerate((a, b)):
            key = wrap_int64(mix_word(seed + number))
            for start, stop in _iter_chunks(count):
                place = torch.arange(start, stop, dtype=torch.int64, device=device)
                row[start:stop] = mix_bits(place + key)  # keeps the low half
        return cls(a, b)

    def build(self, data: StepData, weights: Weights, start: int, stop: int) -> Tensor:
        """Build words *start* to *stop* of a share or a sum: int32, or the bits of float32."""
        import torch

        a, b = self.a[start:stop], self.b[start:stop]
        if not data.floats:
            mixed = torch.mul(a, _wrap_int32(weights.a))
            return mixed.add_(b, alpha=_wrap_int32(weights.b))
        mask = 2**data.value_bits - 1
        mixed = torch.bitwise_and(a, mask).mul_(weights.a)
        mixed.sub_(torch.bitwise_and(b, mask), alpha=weights.b)
        return mixed.float().view(torch.int32)

    def fill(self, out: Tensor, data: StepData, weights: Weights, start: int = 0) -> None:
        """Fill *out*, int32, with the words from *start* on."""
        for first, last in _iter_chunks(len(out)):
            out[first:last] = self.build(data, weights, start + first, start + last)

    def compare(
        self, found: Tensor, data: StepData, piece: tuple[Weights, int, int], row: Tensor
    ) -> None:
        """
        Hold *found*, int32, against a piece of a share or a sum, without waiting for a GPU.

        The *piece* is its weights, from which of its words on, and where it is in the result.

        Adds the number of wrong words to row[0], and keeps in row[1:] the index of the
        first in the result, what it is, and what it should be.
        """
        import torch

        weights, start, at = piece
        for first, last in _iter_chunks(len(found)):
            right, part = self.build(data, weights, start + first, start + last), found[first:last]
            wrong = torch.ne(part, right)
            if data.floats:  # a zero may have any sign
                wrong &= torch.ne(part.view(torch.float32), right.view(torch.float32))
            count = torch.count_nonzero(wrong)
            where = wrong.view(torch.uint8).argmax()[None]
            is_first = (row[0] == 0) & (count > 0)
            told = torch.cat([where + (at + first), part[where], right[where]])
            row[1:] = torch.where(is_first, told, row[1:])
            row[0] += count


def format_value(word: int, *, floats: bool) -> str:
    """Print one word as what it stands for."""
    import torch

    if not floats:
        return f"{word % 2**32:#010x}"
    return f"{torch.tensor(word, dtype=torch.int32).view(torch.float32).item():.9g}"


def _wrap_int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _iter_chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK_WORDS):
        yield start, min(count, start + CHUNK_WORDS)
