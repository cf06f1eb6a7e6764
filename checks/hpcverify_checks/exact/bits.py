"""
Bits that are the same on every machine: hashes of places, words, and their digest.

All of it is 64-bit integer arithmetic, which wraps around the same way on every CPU and
GPU. A random generator promises the same bits only on one part with one version of its
library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    DeviceLike = torch.device | str

WORD_BITS, WORD_BYTES = 64, 8
GOLDEN = 0x9E3779B97F4A7C15
"""The odd number next to 2^64 divided by the golden ratio: splitmix64's step."""
_SIGN_BIT = 2**63
_CHUNK_WORDS = 2**22


def wrap_int64(value: int) -> int:
    """Bring *value* into the range of a signed 64-bit integer, modulo 2^64."""
    return (value + _SIGN_BIT) % (2 * _SIGN_BIT) - _SIGN_BIT


def format_word(word: int) -> str:
    """Print the 64 bits of *word*, signed or not, in hexadecimal."""
    return f"{word % 2**WORD_BITS:#018x}"


def mix_bits(x: Tensor) -> Tensor:
    """Mix the 64 bits of each element of *x*, in place (Steele and others, 2014)."""
    x ^= (x >> 30) & (2**34 - 1)
    x *= wrap_int64(0xBF58476D1CE4E5B9)
    x ^= (x >> 27) & (2**37 - 1)
    x *= wrap_int64(0x94D049BB133111EB)
    x ^= (x >> 31) & (2**33 - 1)
    return x


def mix_word(x: int) -> int:
    """Step and mix one word, 0 to 2^64 - 1, as splitmix64 does."""
    x = (x + GOLDEN) % 2**WORD_BITS
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**WORD_BITS
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**WORD_BITS
    return x ^ x >> 31


def hash_places(key: int, rows: range, columns: int, device: DeviceLike) -> Tensor:
    """Hash the place of each element: splitmix64's mixing of a 64-bit counter."""
    import torch

    row = torch.arange(rows.start, rows.stop, dtype=torch.int64, device=device)
    return hash_crossings(key, row, torch.arange(columns, dtype=torch.int64, device=device))


def hash_crossings(key: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Hash the places in these *rows* and *columns*, int64, as `hash_places` does."""
    return mix_bits((rows << 32)[:, None] + columns[None, :] + wrap_int64(key * GOLDEN))


def make_integers(key: int, rows: range, columns: int, bound: int, device: DeviceLike) -> Tensor:
    """Make these *rows* of a matrix of integers within +-*bound*, as int64."""
    high = (hash_places(key, rows, columns, device) >> 20) & (2**43 - 1)
    return high % (2 * bound + 1) - bound


def view_words(tensor: Tensor) -> Tensor:
    """View the bits of *tensor* as one row of 64-bit words, without a copy."""
    import torch

    return tensor.view(torch.int64).view(-1)


def view_integers(tensor: Tensor) -> Tensor:
    """View the bits of each element of *tensor* as an integer of its own width."""
    import torch

    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(kinds[tensor.element_size()])


def compute_digest(tensor: Tensor) -> int:
    """
    Sum a hash of each word of *tensor* and of its place, modulo 2^64.

    Runs on the tensor's device, with the same result on every device. One changed word
    always changes it, since different words at a place have different hashes; any other
    change is missed once in about 2^64. The words themselves must not be summed: two
    flipped sign bits would cancel, whatever they are multiplied by.
    """
    return int(digest_on_device(tensor)) % (1 << WORD_BITS)


def digest_on_device(tensor: Tensor) -> Tensor:
    """Compute `compute_digest` as a signed int64 scalar, without waiting for the device."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    flat = view_words(tensor)
    for start in range(0, flat.numel(), _CHUNK_WORDS):
        chunk = flat[start : start + _CHUNK_WORDS]
        total += mix_bits(mix_bits(count_from(start + 1, chunk)).bitwise_xor_(chunk)).sum()
    return total


def count_from(start: int, chunk: Tensor) -> Tensor:
    """Make a row that counts up from *start*, as long as *chunk* and on its device."""
    import torch

    stop = start + chunk.numel()
    return torch.arange(start, stop, dtype=torch.int64, device=chunk.device)
