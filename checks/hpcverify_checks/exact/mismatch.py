"""Wrong data: how much of it, and what is wrong with the first. Every check reports it so."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from msgspec import Struct

from hpcverify_checks.exact.bits import WORD_BITS, view_integers, view_words

if TYPE_CHECKING:
    from torch import Tensor


class Mismatch(Struct, frozen=True):
    """How many words or elements are not what they should be, and the first of them."""

    count: int
    index: int
    found: int
    """The bits of the first, as an integer with or without a sign."""
    expected: int
    width: int = WORD_BITS
    """Bits of a word or an element."""
    is_float: bool = False
    """Whether people read it as a float32."""

    @property
    def offset(self) -> int:
        """Where the first begins, in bytes."""
        return self.index * self.width // 8

    @property
    def xor(self) -> int:
        """The bits of the first that are wrong."""
        return (self.found ^ self.expected) % (1 << self.width)

    @property
    def values(self) -> tuple[str, str]:
        """What was found and what was expected, as people read it."""
        if not self.is_float:
            return self._format_bits(self.found), self._format_bits(self.expected)
        words = struct.pack("2I", self.found % 2**32, self.expected % 2**32)
        found, expected = struct.unpack("2f", words)
        return f"{found:.9g}", f"{expected:.9g}"

    def describe(self, container: str = "") -> str:
        """Say where in the *container* the first is, what it is and what it should be."""
        found, expected = self.values
        place = f"{self.offset:#x} of {container}" if container else f"{self.offset:#x}"
        return f"the first at byte {place} is {found}, not {expected}"

    def to_evidence(self, noun: str = "word") -> dict[str, str]:
        """Convert to a finding's evidence; the *noun* says what was compared."""
        found, expected = self.values
        return {
            f"wrong_{noun}s": str(self.count),
            "index": str(self.index),
            "offset": f"{self.offset:#x}",
            "found": found,
            "expected": expected,
            "xor": self._format_bits(self.xor),
            "bits": list_bits(self.xor),
        }

    def _format_bits(self, value: int) -> str:
        return f"{value % 2**self.width:#0{2 + self.width // 4}x}"


def list_bits(word: int) -> str:
    """List the places of the bits that are set in *word*."""
    return " ".join(str(place) for place in range(word.bit_length()) if word >> place & 1)


def find_mismatch(found: Tensor, expected: Tensor) -> Mismatch | None:
    """Compare element by element and bit by bit, on the device of both; None if they are equal."""
    import torch

    values, right = (view_integers(tensor).reshape(-1) for tensor in (found, expected))
    if torch.equal(values, right):
        return None
    unequal = torch.ne(values, right)
    count = int(torch.count_nonzero(unequal))
    if not count:
        return None
    index = int(unequal.view(torch.uint8).argmax())
    width = 8 * values.element_size()
    return Mismatch(count, index, int(values[index]), int(right[index]), width)


def count_unequal(first: Tensor, second: Tensor) -> int:
    """Count the 64-bit words in which two tensors differ."""
    return int((view_words(first) != view_words(second)).sum())


def compare_bytes(found: bytes, expected: bytes) -> Mismatch:
    """Compare bytes that differ, as many of both, without torch."""
    places = [i for i, byte in enumerate(found) if byte != expected[i]]
    first = places[0]
    return Mismatch(len(places), first, found[first], expected[first], width=8)
