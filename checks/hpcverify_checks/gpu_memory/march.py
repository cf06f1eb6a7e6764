"""
Moving inversions over memory, written and compared on the device itself.

A pass first writes a background everywhere. Then it goes up, comparing each piece and
writing the inverse; then down, comparing that and writing the background again; and
then it compares everything once more. So every bit holds a zero and a one, changes both
ways, and is read long after it was written, from memory and not from a cache. (Memory
testers call this MATS++. Within one kernel the order is the GPU's own: faults that need
an exact order of neighbouring cells may not show.)

Every word is that of a table, at its place in its piece, XORed with a mask of the
piece. If table and masks are hashes, every word is a hash of its own address, so two
addresses that lead to the same cell contradict each other wherever they are. The host
makes the table and compares it with its own after each pass, since the table is in the
memory of the device, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import TYPE_CHECKING

from hpcverify.check import Cause, Finding, Remedy, Unable
from hpcverify_checks.common.bits import WORD_BITS, WORD_BYTES, format_word, mix_bits

if TYPE_CHECKING:
    from torch import Tensor

WORDS_PER_PIECE = 2**22
"""Words per kernel: 32 MiB, so that the table stays in a large cache."""
PLAIN, INVERSE = 0, -1
"""What each word of the background is XORed with."""
CHECKERBOARD = 0x5555_5555_5555_5555
BACKGROUND_NAMES = ("hashed addresses", "00/FF", "55/AA", "walking bit")
"""In the order of their turns."""

Write = Callable[["Tensor", "Tensor", int], None]
"""Writes into the first the words of the second, XORed with the mask."""
Read = Callable[["Tensor", int, "Tensor"], None]
"""Writes into the last the words of the first, XORed with the mask."""


def write(words: Tensor, table: Tensor, mask: int) -> None:
    """Write on the device, without a temporary."""
    import torch

    torch.bitwise_xor(table, mask, out=words)


def read(words: Tensor, mask: int, out: Tensor) -> None:
    """Read on the device, without a temporary."""
    import torch

    torch.bitwise_xor(words, mask, out=out)


Compare = Callable[["Tensor", "Tensor", "Tensor"], None]
"""Writes into the third: how many words differ, the index of the first, its XOR."""


def compare(found: Tensor, expected: Tensor, row: Tensor) -> None:
    """Compare words bit by bit on their device, without waiting for it."""
    import torch

    unequal = torch.ne(found, expected)
    first = unequal.view(torch.uint8).argmax()[None]
    row[0] = torch.count_nonzero(unequal)  # a sum of booleans is far slower
    row[1] = first[0]
    row[2] = (found.index_select(0, first) ^ expected.index_select(0, first))[0]


@dataclass(frozen=True, slots=True)
class MemorySeams:
    """What accesses the memory; tests supply faulty ones."""

    write: Write = write
    read: Read = read
    compare: Compare = compare


HARDWARE = MemorySeams()


@dataclass(frozen=True, slots=True)
class MemoryPiece:
    """A piece of the memory under test that one kernel writes or compares."""

    chunk: int
    number: int
    """Among all pieces."""
    start: int
    """Index of its first word among all words."""
    words: Tensor


@dataclass(frozen=True, slots=True)
class Background:
    """What every word of the memory should be."""

    name: str
    table: Tensor
    """On the host; as many words as a piece has."""
    masks: Sequence[int]
    """What the table is XORed with, piece by piece."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory under test: chunks of 64-bit words."""

    chunks: tuple[Tensor, ...]
    words_per_piece: int = WORDS_PER_PIECE
    seams: MemorySeams = HARDWARE

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(chunk.numel() for chunk in self.chunks) * WORD_BYTES

    def split_pieces(self) -> tuple[tuple[MemoryPiece, ...], ...]:
        """Divide each chunk into pieces."""
        numbers = count()
        starts = accumulate((chunk.numel() for chunk in self.chunks), initial=0)
        return tuple(
            tuple(
                MemoryPiece(index, next(numbers), start + cut, chunk[cut:][: self.words_per_piece])
                for cut in range(0, chunk.numel(), self.words_per_piece)
            )
            for index, (chunk, start) in enumerate(zip(self.chunks, starts, strict=False))
        )

    def start_pass(self, background: Background) -> MarchPass:
        """Copy the table of *background* to the device."""
        import torch

        device = self.chunks[0].device
        scratch = torch.empty(self.words_per_piece, dtype=torch.int64, device=device)
        # A copy even on the host: a fault must not reach the original.
        table = torch.empty_like(scratch).copy_(background.table)
        return MarchPass(self, self.split_pieces(), background, table, scratch)


def generate_backgrounds(words: int, pieces: int, seed: int) -> Iterator[Background]:
    """Make endless backgrounds for *pieces* of *words*; each hash is a new one."""
    import torch

    place = torch.arange(words, dtype=torch.int64)
    addresses, solid, board, walking = BACKGROUND_NAMES
    plain = (0,) * pieces
    for lap in count():
        yield Background(addresses, *hash_addresses(words, pieces, f"{seed} {lap}"))
        yield Background(solid, torch.zeros_like(place), plain)
        yield Background(board, -(place & 1) ^ CHECKERBOARD, plain)
        one = torch.ones_like(place)
        yield Background(walking, one << ((place + lap) % WORD_BITS), plain)


def hash_addresses(words: int, pieces: int, key: str) -> tuple[Tensor, list[int]]:
    """
    Make a table and masks that hash the address of each word.

    The mixing is a bijection: no two places and no two pieces share a hash; two words
    that differ in both are equal once in 2^64.
    """
    import torch

    chance = random.Random(key)  # noqa: S311 - no secret
    table, masks = (
        mix_bits(torch.arange(n, dtype=torch.int64) + chance.getrandbits(62))
        for n in (words, pieces)
    )
    return table, masks.tolist()


@dataclass(frozen=True, slots=True)
class WrongPiece:
    """A piece with wrong words, and the first of them."""

    piece: MemoryPiece
    state: int
    words: int
    word: int
    xor: int
    reread: list[int]
    """The same three values when read again, from memory."""

    @property
    def place(self) -> int:
        """Index of the first wrong word among all words."""
        return self.piece.start + self.word

    def describe_reread(self) -> str:
        """Say whether the memory holds the wrong words, or they changed in transit."""
        if not self.reread[0]:
            return "right when read again: changed in transit, not in the cells"
        if self.reread == [self.words, self.word, self.xor]:
            return "the same when read again: the memory holds it"
        return f"different when read again: {self.reread[0]} words wrong"


@dataclass(frozen=True, slots=True)
class MarchPass:
    """The memory, the background of a pass, and room to compare the two."""

    memory: Memory
    pieces: tuple[tuple[MemoryPiece, ...], ...]
    background: Background
    table: Tensor
    scratch: Tensor

    def compute_mask(self, piece: MemoryPiece, state: int) -> int:
        """Compute what the table is XORed with in *piece*."""
        return self.background.masks[piece.number] ^ state

    def write(self, piece: MemoryPiece, state: int) -> None:
        """Start writing *piece*."""
        table = self.table[: piece.words.numel()]
        self.memory.seams.write(piece.words, table, self.compute_mask(piece, state))

    def compare(self, piece: MemoryPiece, state: int, row: Tensor) -> None:
        """Start comparing *piece*; the result goes into *row*."""
        size = piece.words.numel()
        found, seams = self.scratch[:size], self.memory.seams
        seams.read(piece.words, self.compute_mask(piece, state), found)
        seams.compare(found, self.table[:size], row)

    def verify(self, pieces: Sequence[MemoryPiece], state: int) -> Iterator[WrongPiece]:
        """Compare all *pieces*, and only then wait for the device."""
        log = self._make_log(len(pieces))
        for piece, row in zip(pieces, log, strict=True):
            self.compare(piece, state, row)
        for piece, row in zip(pieces, log.tolist(), strict=True):
            words, word, xor = row
            if words:
                self.evict(piece.chunk)
                again = self._make_log(1)
                self.compare(piece, state, again[0])
                yield WrongPiece(piece, state, words, word, xor, again[0].tolist())

    def evict(self, chunk: int) -> None:
        """Read enough of another chunk that no cache holds any of *chunk*: the first are large."""
        others = [c for i, c in enumerate(self.memory.chunks[:2]) if i != chunk]
        (others or self.memory.chunks)[0].sum()

    def _make_log(self, rows: int) -> Tensor:
        import torch

        return torch.zeros(rows, 3, dtype=torch.int64, device=self.table.device)

    def is_table_intact(self) -> bool:
        """Whether the table is still what the host made."""
        return self.table.cpu().equal(self.background.table)

    def require_canary(self, chance: random.Random) -> None:
        """
        Flip one bit after a pass: the comparison must find it.

        Raises:
            Unable: The comparison missed it or misplaced it.

        """
        piece = self.pieces[-1][-1]
        place, mask = chance.randrange(piece.words.numel()), 1 << chance.randrange(63)
        piece.words[place].bitwise_xor_(mask)
        row = self._make_log(1)
        self.compare(piece, PLAIN, row[0])
        if row[0].tolist() != [1, place, mask]:
            raise Unable(
                f"the comparison did not notice a flipped bit: it found {row[0].tolist()}, not "
                f"{[1, place, mask]}: do not trust its other answers",
                Cause.CHECKER,
                Remedy.FIX_CHECKER,
            )

    def build_finding(self, where: str, wrong: WrongPiece) -> Finding:
        """Describe the first wrong word of *wrong*."""
        mask = self.compute_mask(wrong.piece, wrong.state)
        expected = int(self.background.table[wrong.word]) ^ mask
        name = self.background.name + (", inverted" if wrong.state else "")
        bits = " ".join(str(b) for b in range(WORD_BITS) if wrong.xor >> b & 1)
        evidence = {
            "pattern": name,
            "offset": f"{wrong.place * WORD_BYTES:#x}",
            "chunk": str(wrong.piece.chunk),
            "expected": format_word(expected),
            "found": format_word(expected ^ wrong.xor),
            "xor": format_word(wrong.xor),
            "bits": bits,
            "wrong_words": f"{wrong.words} of {wrong.piece.words.numel()}",
            "again": wrong.describe_reread(),
            "reference": "intact" if self.is_table_intact() else "changed in GPU memory",
        }
        text = (
            f"{name}: {evidence['wrong_words']} words of a piece are wrong, the first at "
            f"byte {evidence['offset']} of the memory tested: {evidence['found']}, not "
            f"{evidence['expected']} (bits {bits}); {evidence['again']}"
        )
        return Finding("memory_corrupted", where, text, evidence)


UP, DOWN = 1, -1
MARCH_ELEMENTS = (
    (UP, None, PLAIN),
    (UP, PLAIN, INVERSE),
    (DOWN, INVERSE, PLAIN),
    (DOWN, PLAIN, None),
)
"""Each sweep over the memory: the order, what each piece must be, what it becomes."""


def find_wrong_pieces(march: MarchPass) -> Iterator[WrongPiece]:
    """Make one pass, and yield each piece with wrong words."""
    for order, held, becomes in MARCH_ELEMENTS:
        march.evict(march.pieces[::order][0][0].chunk)
        for pieces in march.pieces[::order]:
            if held is not None:
                yield from march.verify(pieces[::order], held)
            if becomes is not None:
                for piece in pieces[::order]:
                    march.write(piece, becomes)
