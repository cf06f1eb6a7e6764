"""Memory with faults, put under torch: below all of our code, word by word in their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

WORD_BYTES = 8
real_xor = torch.bitwise_xor

Effect = Callable[[int], int]
"""What becomes of a bit that is disturbed."""
EFFECTS: dict[str, Effect] = {
    "set to 0": lambda _: 0,
    "set to 1": lambda _: 1,
    "inverted": lambda b: 1 - b,
}


def bit(place: int) -> int:
    """Make a signed word with one bit."""
    return 1 << place if place < 63 else -(1 << 63)


@dataclass(frozen=True)
class Cell:
    """A bit of a word of a chunk."""

    words: Tensor
    index: int
    place: int

    def read(self) -> int:
        """Read it from the memory itself."""
        return int(self.words[self.index]) >> self.place & 1

    def write(self, value: int) -> None:
        """Change it in the memory itself."""
        mask = bit(self.place)
        if value:
            self.words[self.index].bitwise_or_(mask)
        else:
            self.words[self.index].bitwise_and_(~mask)

    def find_in(self, words: Tensor) -> int | None:
        """Find the index of its word in *words*, if it is there."""
        address = self.words.data_ptr() + self.index * WORD_BYTES
        offset = (address - words.data_ptr()) // WORD_BYTES
        return offset if 0 <= offset < words.numel() else None


@dataclass
class FaultyTorch:
    """Stands in for `torch.bitwise_xor`, which reads and writes all memory under test."""

    chunks: Sequence[Tensor]
    after_write: Callable[[Tensor], object] = lambda _: None
    split_at: Callable[[Tensor], int | None] = lambda _: None
    """Where a write stops to do harm, if it does so before it is complete."""
    calls: int = field(default=0, init=False)

    def xor(self, given: Tensor, mask: Any, *, out: Tensor) -> Tensor:
        """Write *given* XORed with *mask* into *out*, in the order of the words."""
        if not any(contains(chunk, out) for chunk in self.chunks):
            return real_xor(given, mask, out=out)
        self.calls += 1
        cut = self.split_at(out)
        first = len(out) if cut is None else cut + 1
        real_xor(given[:first], mask, out=out[:first])
        self.after_write(out)
        if first < len(out):
            real_xor(given[first:], mask, out=out[first:])
        return out


def contains(chunk: Tensor, words: Tensor) -> bool:
    """Whether *words* are some of *chunk*."""
    end = chunk.data_ptr() + chunk.numel() * WORD_BYTES
    return chunk.data_ptr() <= words.data_ptr() < end


@dataclass
class Coupling:
    """A change of one cell, up or down, changes another."""

    aggressor: Cell
    victim: Cell
    edge: tuple[int, int]
    """What the aggressor must change from, and to."""
    effect: Effect
    before: int = 0

    def install(self, chunks: Sequence[Tensor], *, at_once: bool = False) -> FaultyTorch:
        """
        Make memory that has it.

        The victim is disturbed as soon as the aggressor's word is written, or (*at_once*)
        when all words of the operation are.
        """

        def split_at(out: Tensor) -> int | None:
            self.before = self.aggressor.read()
            return None if at_once else self.aggressor.find_in(out)

        return FaultyTorch(chunks, self.disturb, split_at)

    def disturb(self, _: Tensor) -> None:
        """Change the victim if the aggressor has changed."""
        if (self.before, self.aggressor.read()) == self.edge:
            self.victim.write(self.effect(self.victim.read()))


@dataclass
class AddressLine:
    """A line of the address that is always 0: two words share one cell."""

    chunk: Tensor
    line: int

    def xor(self, given: Tensor, mask: Any, *, out: Tensor) -> Tensor:
        """Read and write through the addresses that the memory sees."""
        if contains(self.chunk, out):
            cells = self._find_cells(out)
            made = real_xor(given, mask)
            for index, word in zip(cells.tolist(), made.tolist(), strict=True):
                self.chunk[index] = word
            return out
        if contains(self.chunk, given):
            given = self.chunk[self._find_cells(given)]
        return real_xor(given, mask, out=out)

    def _find_cells(self, words: Tensor) -> Tensor:
        first = (words.data_ptr() - self.chunk.data_ptr()) // WORD_BYTES
        return torch.arange(first, first + len(words)) & ~(1 << self.line)
