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

Every other step of a reducing operation has float32 instead: +-(m A' + k B' + c), with A'
and B' of so few bits, and c so large, that every sum over all ranks is an integer from 2^23
to 2^24. It is exact in any order, and uses all 24 bits of the significand.

A and B repeat, after different numbers of words, and together only after 2^44: messages of
any size are made of tables that stay small.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcverify_checks.exact.bits import GOLDEN, mix_bits, mix_word, wrap_int64
from hpcverify_checks.exact.mismatch import Mismatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WORD_BYTES = 4
CHUNK_WORDS = 2**22
"""Made and compared at a time: temporaries stay small beside the messages."""
PERIODS = 2**22 - 1, 2**22 - 3
"""Words after which A and B repeat; they have no common factor."""
SUM_BITS = 23
"""Float sums are integers from 2^23 to 2^24: the significand has no bit to spare."""
MAX_RANKS = 2**16
"""With this many ranks a float share has 7 bits."""


def estimate_memory(size: int) -> int:
    """Estimate the bytes of two pairs of tables, and of temporaries, for messages of *size*."""
    return 16 * min(size, WORD_BYTES * CHUNK_WORDS)


def draw_bits(seed: int, step: int, rank: int) -> int:
    """Draw 64 bits for *rank* in *step*, counted from 0."""
    return mix_word(mix_word(seed + step * MAX_RANKS) + rank)


class Weights(Struct, frozen=True):
    """What a share or a sum of shares has of A and of B, and the c of floats."""

    a: int
    b: int
    c: int = 0

    def __add__(self, other: Weights) -> Weights:
        """Weigh the sum of two shares."""
        return Weights(self.a + other.a, self.b + other.b, self.c + other.c)

    def __sub__(self, other: Weights) -> Weights:
        """Weigh a sum without a share."""
        return Weights(self.a - other.a, self.b - other.b, self.c - other.c)


class StepMismatch(Mismatch, frozen=True, kw_only=True):
    """The first step with wrong elements."""

    step: int
    """Counted from 0, those of the warm-up included."""
    hint: str = ""
    """What the first element would be right for, if that is known."""


@dataclass(frozen=True, slots=True)
class StepData:
    """The data of one step of all ranks."""

    seed: int
    step: int
    world: int
    floats: bool
    """float32 instead of words."""

    @classmethod
    def make_for_sum(cls, seed: int, step: int, world: int) -> StepData:
        """Choose the data of a step that adds up: words and floats in turn."""
        return cls(seed, step, world, floats=step % 2 == 1)

    def weigh_share(self, rank: int) -> Weights:
        """Draw the weights of the share of *rank*."""
        drawn = draw_bits(self.seed, self.step, rank)
        bits = self._weight_bits if self.floats else 32
        odd, even = drawn % 2**bits | 1, (drawn >> 32) % 2**bits & ~1 or 2
        # The parities of the first rank are those of no other: then one sum is odd.
        swap = (rank == 0) != bool(self.step // 2 % 2)
        a, b = (even, odd) if swap else (odd, even)
        share, rest = divmod(1 << SUM_BITS, self.world)
        return Weights(a, b, (share + rest * (rank == 0)) if self.floats else 0)

    def weigh_sum(self) -> Weights:
        """Add up the weights of all ranks."""
        total = Weights(0, 0)
        for rank in range(self.world):
            total += self.weigh_share(rank)
        return total

    @property
    def _share_bits(self) -> int:
        return SUM_BITS - (self.world - 1).bit_length()

    @property
    def _weight_bits(self) -> int:
        return (self._share_bits - 1) // 3

    @property
    def value_bits(self) -> int:
        """Bits of A and B that float shares are made of."""
        return self._share_bits - 1 - self._weight_bits

    def view_values(self, words: Tensor) -> Tensor:
        """View *words*, int32, as the type that the ranks send."""
        import torch

        return words.view(torch.float32) if self.floats else words

    def compute_word(self, weights: Weights, place: int) -> int:
        """Compute a word of a share or a sum on the host, apart from all tables: int32."""
        counted = (mix_word(self.seed + row) + place % period for row, period in enumerate(PERIODS))
        a, b = (mix_word(word - GOLDEN) % 2**32 for word in counted)  # it adds that again
        if not self.floats:
            return _wrap_int32(a * weights.a + b * weights.b)
        mask = 2**self.value_bits - 1
        value = float((a & mask) * weights.a + (b & mask) * weights.b + weights.c)
        return int(struct.unpack("i", struct.pack("f", -value if a >> 31 else value))[0])

    def explain_word(self, word: int, place: int) -> str:
        """Say what a wrong word of a sum would be right for; nothing if that is not known."""
        total, shares = self.weigh_sum(), [*map(self.weigh_share, range(self.world))]
        for what, causes in (
            ("it is the share of rank {}", shares),
            ("the share of rank {} is missing", [total - share for share in shares]),
            ("the share of rank {} was counted twice", [total + share for share in shares]),
        ):
            for rank, weights in enumerate(causes):
                if self.compute_word(weights, place) == word:
                    return what.format(rank)
        for back in (1, 2):  # of the other type, and of the same
            before = StepData.make_for_sum(self.seed, self.step - back, self.world)
            if back <= self.step and before.compute_word(before.weigh_sum(), place) == word:
                return f"it is the sum of step {before.step}"
        return ""

    def make_mismatch(
        self, count: int, index: int, found: int, expected: int, *, hint: str = ""
    ) -> StepMismatch:
        """Make the mismatch of this step."""
        return StepMismatch(
            count, index, found, expected, 8 * WORD_BYTES, self.floats, step=self.step, hint=hint
        )


@dataclass(frozen=True, slots=True)
class Words:
    """As much of the rows A and B as messages of a size need, on the device."""

    a: Tensor
    b: Tensor
    count: int
    """Words of a message."""

    @classmethod
    def make(cls, seed: int, count: int, device: torch.device) -> Words:
        """Make both rows for messages of *count* words."""
        a, b = (_make_row(seed, number, count, device) for number in range(2))
        return cls(a, b, count)

    def build(self, data: StepData, weights: Weights, start: int, stop: int) -> Tensor:
        """
        Build words *start* to *stop* of a share or a sum: int32, or the bits of float32.

        They are at most `CHUNK_WORDS`.
        """
        import torch

        places = (start % period for period in PERIODS)
        a, b = (
            row[place : place + stop - start]
            for row, place in zip((self.a, self.b), places, strict=True)
        )
        if not data.floats:
            mixed = torch.mul(a, _wrap_int32(weights.a))
            return mixed.add_(b, alpha=_wrap_int32(weights.b))
        mask = 2**data.value_bits - 1
        mixed = torch.bitwise_and(a, mask).mul_(weights.a)
        mixed.add_(torch.bitwise_and(b, mask), alpha=weights.b).add_(weights.c)
        return mixed.float().copysign_(a.view(torch.float32)).view(torch.int32)

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
        first in the result, what it is, and what it should be by these tables.
        """
        import torch

        weights, start, at = piece
        for first, last in _iter_chunks(len(found)):
            right, part = self.build(data, weights, start + first, start + last), found[first:last]
            wrong = torch.ne(part, right)
            count = torch.count_nonzero(wrong)
            where = wrong.view(torch.uint8).argmax()[None]
            is_first = (row[0] == 0) & (count > 0)
            first_wrong = torch.cat([where + (at + first), part[where], right[where]])
            row[1:] = torch.where(is_first, first_wrong, row[1:])
            row[0] += count


def _make_row(seed: int, number: int, count: int, device: torch.device) -> Tensor:
    """Make a row, and so much of its next period that no chunk has to be put together."""
    import torch

    period, key = PERIODS[number], wrap_int64(mix_word(seed + number))
    row = torch.empty(min(count, period + CHUNK_WORDS), dtype=torch.int32, device=device)
    for start, stop in _iter_chunks(len(row)):
        place = torch.arange(start, stop, dtype=torch.int64, device=device)
        row[start:stop] = mix_bits(place.remainder_(period).add_(key))  # keeps the low half
    return row


def _wrap_int32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _iter_chunks(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, CHUNK_WORDS):
        yield start, min(count, start + CHUNK_WORDS)
