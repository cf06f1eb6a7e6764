"""
March C- over memory: every word is written and compared in both orders, with a pause.

A march test is a list of sweeps over all cells (van de Goor, *Testing Semiconductor
Memories*, 1991). March C- is

    up(w0); up(r0, w1); up(r1, w0); down(r0, w1); down(r1, w0); down(r0)

It finds bits that are stuck or do not change, addresses that lead to the wrong cell, and
cells that a write to another cell changes, whichever of the two comes first. Before the
second and the third sweep nothing touches the memory for a while: a cell that does not
keep its charge loses it then, and each bit waits once as a zero and once as a one.

Here a cell is a *piece* of memory, which one operation reads or writes as a whole. Each
piece is compared, then written, before the next one is compared: up through all pieces,
and down in exactly the reverse order. Within a piece the order is that of the hardware,
which writes many words at once and through its caches. There only the data help: words
that disturb each other show if they hold different bits when both have been written, so
the *background* changes from pass to pass.

Every word is that of a table, at its place in its piece, XORed with a mask of the piece.
If table and masks are hashes, every word is a hash of its own address, so two addresses
that lead to the same cell contradict each other wherever they are. The table is in the
memory of the device, too: after each pass it is compared with the host's own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify_checks.exact.bits import (
    WORD_BITS,
    WORD_BYTES,
    compute_digest,
    mix_bits,
    mix_word,
    wrap_int64,
)
from hpcverify_checks.exact.mismatch import Mismatch, find_mismatch, list_bits
from hpcverify_checks.node.cores import list_other_cores, run_on_each

if TYPE_CHECKING:
    from torch import Tensor

PLAIN, INVERSE = 0, -1
"""What each word of the background is XORed with."""
CHECKERBOARD = 0x5555_5555_5555_5555
BACKGROUND_NAMES = ("hashed addresses", "00/FF", "55/AA", "walking bit")
"""The backgrounds take turns in this order."""
ACCESSES_PER_PASS = 10
"""Each word is written five times and compared five times."""
CORRUPTED_CODE = "memory_corrupted"
MARCH_METRICS = {
    "passes": hv.Metric("", "low", "passes of March C-"),
    "mismatches": hv.Metric("", "high", "wrong 64-bit words").fail(
        high=0,
        remedy=hv.Remedy.REPLACE,
        conclusive=True,
        optional=False,
        source="memory holds what was written",
    ),
}
MARCH_FINDING_RULES = hv.fail_on(CORRUPTED_CODE, remedy=hv.Remedy.REPLACE, conclusive=True)
"""Every check that marches over memory has these, so that a fault counts the same in each."""
MAX_DESCRIBED_WORDS = 3

Write = Callable[["Tensor", "Tensor", int], None]
"""Writes into the first the words of the second, XORed with the mask."""
Read = Callable[["Tensor", int, "Tensor"], None]
"""Writes into the last the words of the first, XORed with the mask."""
Compare = Callable[["Tensor", "Tensor"], Mismatch | None]
"""Compares words bit by bit on their device, and waits for the answer."""


def write(words: Tensor, table: Tensor, mask: int) -> None:
    """Write on the device, without a temporary."""
    import torch

    torch.bitwise_xor(table, mask, out=words)


def read(words: Tensor, mask: int, out: Tensor) -> None:
    """Read on the device, without a temporary."""
    import torch

    torch.bitwise_xor(words, mask, out=out)


@dataclass(frozen=True, slots=True)
class MemorySeams:
    """What accesses the memory; tests supply faulty ones."""

    write: Write = write
    read: Read = read
    compare: Compare = find_mismatch


HARDWARE = MemorySeams()


@dataclass(frozen=True, slots=True)
class MarchSweep:
    """A sweep over all pieces: up or down, what they must hold, and what they become."""

    is_up: bool
    held: int | None
    becomes: int | None
    rests: bool = False
    """Whether nothing touches the memory for a while before it."""


MARCH_C_MINUS = (
    MarchSweep(is_up=True, held=None, becomes=PLAIN),
    MarchSweep(is_up=True, held=PLAIN, becomes=INVERSE, rests=True),
    MarchSweep(is_up=True, held=INVERSE, becomes=PLAIN, rests=True),
    MarchSweep(is_up=False, held=PLAIN, becomes=INVERSE),
    MarchSweep(is_up=False, held=INVERSE, becomes=PLAIN),
    MarchSweep(is_up=False, held=PLAIN, becomes=None),
)
PAUSES = sum(sweep.rests for sweep in MARCH_C_MINUS)


@dataclass(frozen=True, slots=True)
class MemoryPiece:
    """A piece of the memory under test that one kernel writes or compares."""

    chunk: int
    number: int
    """Its number among all pieces."""
    start: int
    """Index of its first word among all words."""
    words: Tensor


@dataclass(frozen=True, slots=True)
class Background:
    """What every word of the memory should be."""

    name: str
    table: Tensor
    """As many words as a piece has, on the host."""
    key: int | None = None
    """The table is XORed with a hash of this key and the piece's number; None: with nothing."""

    def compute_mask(self, number: int) -> int:
        """Compute what the table is XORed with in the piece *number*."""
        return 0 if self.key is None else wrap_int64(mix_word((self.key + number) % 2**WORD_BITS))


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory under test: chunks of 64-bit words."""

    chunks: tuple[Tensor, ...]
    words_per_piece: int
    seams: MemorySeams = HARDWARE
    first_piece: int = 0
    """The number of its first piece, where several memories are tested together."""

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(chunk.numel() for chunk in self.chunks) * WORD_BYTES

    def split_pieces(self) -> tuple[MemoryPiece, ...]:
        """Divide the chunks into pieces."""
        numbers = count(self.first_piece)
        starts = accumulate((chunk.numel() for chunk in self.chunks), initial=0)
        return tuple(
            MemoryPiece(index, next(numbers), start + cut, chunk[cut:][: self.words_per_piece])
            for index, (chunk, start) in enumerate(zip(self.chunks, starts, strict=False))
            for cut in range(0, chunk.numel(), self.words_per_piece)
        )

    def start_pass(self, background: Background) -> MarchPass:
        """Copy the table of *background* to the device."""
        import torch

        device = self.chunks[0].device
        scratch = torch.empty(self.words_per_piece, dtype=torch.int64, device=device)
        # A copy even on the host: a fault must not reach the original.
        table = torch.empty_like(scratch).copy_(background.table)
        digest = compute_digest(background.table)
        return MarchPass(self, self.split_pieces(), background, table, scratch, digest)


def generate_backgrounds(words: int, seed: int) -> Iterator[Background]:
    """Make endless backgrounds for pieces of *words*; each hash is a new one."""
    import torch

    place = torch.arange(words, dtype=torch.int64)
    _, solid, board, walking = BACKGROUND_NAMES
    for lap in count():
        yield hash_addresses(words, f"{seed} {lap}")
        yield Background(solid, torch.zeros_like(place))
        yield Background(board, -(place & 1) ^ CHECKERBOARD)
        one = torch.ones_like(place)
        yield Background(walking, one << ((place + lap) % WORD_BITS))


def hash_addresses(words: int, key: str) -> Background:
    """
    Make a table and a key of masks that hash the address of each word.

    The mixing is a bijection: no two places and no two pieces share a hash; two words
    that differ in both are equal once in 2^64.
    """
    import torch

    chance = random.Random(key)  # noqa: S311 - no secret
    table = mix_bits(torch.arange(words, dtype=torch.int64) + chance.getrandbits(62))
    return Background(BACKGROUND_NAMES[0], table, chance.getrandbits(WORD_BITS))


@dataclass(frozen=True, slots=True)
class WrongPiece:
    """A piece with wrong words, and the first of them."""

    piece: MemoryPiece
    state: int
    """What the background was XORed with."""
    pattern: str
    mismatch: Mismatch
    """Its index is that among all words of the memory."""
    again: str
    """What a second reading says of it."""
    reference: str
    """Whether the table on the device is still what the host made."""

    @property
    def address(self) -> int:
        """The virtual address of the first wrong word."""
        offset = (self.mismatch.index - self.piece.start) * WORD_BYTES
        return self.piece.words.data_ptr() + offset

    def describe(self) -> str:
        """Say what is wrong."""
        return (
            f"{self.pattern}: {self._share} words of a piece are wrong, "
            f"{self.mismatch.describe('the memory tested')} "
            f"(bits {list_bits(self.mismatch.xor)}); {self.again}"
        )

    def to_evidence(self) -> dict[str, str]:
        """Convert to a finding's evidence."""
        wrong = self.mismatch
        return wrong.to_evidence() | {
            "pattern": self.pattern,
            "chunk": str(self.piece.chunk),
            "bits_0_to_1": list_bits(wrong.xor & wrong.found),
            "bits_1_to_0": list_bits(wrong.xor & wrong.expected),
            "wrong_words": self._share,
            "again": self.again,
            "reference": self.reference,
        }

    @property
    def _share(self) -> str:
        return f"{self.mismatch.count} of {self.piece.words.numel()}"


@dataclass(frozen=True, slots=True)
class MarchPass:
    """The memory, the background of a pass, and room to compare the two."""

    memory: Memory
    pieces: tuple[MemoryPiece, ...]
    background: Background
    table: Tensor
    scratch: Tensor
    digest: int
    """The digest of the table, taken on the host."""

    def keep_chunks(self, number: int) -> MarchPass:
        """Leave out all chunks but the first *number*, for good."""
        memory = replace(self.memory, chunks=self.memory.chunks[:number])
        pieces = tuple(piece for piece in self.pieces if piece.chunk < number)
        return replace(self, memory=memory, pieces=pieces)

    def compute_mask(self, piece: MemoryPiece, state: int) -> int:
        """Compute what the table is XORed with in *piece*."""
        return self.background.compute_mask(piece.number) ^ state

    def write(self, piece: MemoryPiece, state: int) -> None:
        """Start writing *piece*."""
        table = self.table[: piece.words.numel()]
        self.memory.seams.write(piece.words, table, self.compute_mask(piece, state))

    def compare(self, piece: MemoryPiece, state: int) -> Mismatch | None:
        """Compare *piece* with the background."""
        size = piece.words.numel()
        words, seams = self.scratch[:size], self.memory.seams
        seams.read(piece.words, self.compute_mask(piece, state), words)
        return seams.compare(words, self.table[:size])

    def sweep(self, sweep: MarchSweep) -> Iterator[WrongPiece]:
        """Sweep over all pieces, each compared and then written, and yield the wrong ones."""
        pieces = self.pieces if sweep.is_up else self.pieces[::-1]
        self.evict(pieces[0].chunk)
        described = 0
        for piece in pieces:
            wrong = None if sweep.held is None else self.compare(piece, sweep.held)
            if wrong and sweep.held is not None:
                described += 1
                is_first = described <= MAX_DESCRIBED_WORDS
                yield self._investigate(piece, sweep.held, wrong, read_again=is_first)
            if sweep.becomes is not None:
                self.write(piece, sweep.becomes)

    def _investigate(
        self, piece: MemoryPiece, state: int, wrong: Mismatch, *, read_again: bool
    ) -> WrongPiece:
        mask = self.compute_mask(piece, state)
        again = "not read again"
        if read_again:
            self.evict(piece.chunk)
            again = describe_reread(wrong, self.compare(piece, state))
        return WrongPiece(
            piece=piece,
            state=state,
            pattern=self.background.name + (", inverted" if state else ""),
            mismatch=Mismatch(
                wrong.count,
                piece.start + wrong.index,
                wrong.found ^ mask,
                int(self.background.table[wrong.index]) ^ mask,
            ),
            again=again,
            reference="intact" if self.is_table_intact() else "changed in its memory",
        )

    def evict(self, chunk: int) -> None:
        """Read enough of another chunk that no cache holds any of *chunk*: the first are large."""
        others = [c for i, c in enumerate(self.memory.chunks[:2]) if i != chunk]
        (others or self.memory.chunks)[0].sum()

    def is_table_intact(self) -> bool:
        """
        Whether the table on the device is still what the host made.

        The host errs, too: two copies have to be alike and both differ from its own table,
        which has to be as it was.
        """
        made, copied = self.background.table, self.table.cpu()
        if copied.equal(made) or compute_digest(made) != self.digest:
            return True
        again = self.table.cpu()
        return again.equal(made) or not again.equal(copied)

    def require_canary(self, chance: random.Random) -> None:
        """Flip one bit after a pass: the comparison must find it."""
        piece = self.pieces[-1]
        place, mask = chance.randrange(piece.words.numel()), 1 << chance.randrange(63)
        piece.words[place].bitwise_xor_(mask)
        wrong = self.compare(piece, PLAIN)
        seen = wrong and (wrong.count, wrong.index, wrong.xor)
        if seen != (1, place, mask):
            # What is in a GPU's memory, only that GPU can compare.
            cores = list_other_cores("")[:2] if piece.words.device.type == "cpu" else []
            found = [*run_on_each(cores, lambda _: self.compare(piece, PLAIN))]
            # What it found besides has changed in the memory since the pass.
            is_common = not wrong and len(found) > 1 and not any(found)
            raise hv.Unable(
                f"the comparison did not notice a flipped bit: it found {seen}, not "
                f"{(1, place, mask)}: do not trust its other answers",
                hv.Cause.CHECKER,
                hv.Remedy.FIX_CHECKER if is_common else hv.Remedy.INSPECT,
            )


def describe_reread(first: Mismatch, again: Mismatch | None) -> str:
    """Say whether the memory holds the wrong words, or they changed in transit."""
    if again is None:
        return "right when read again: changed in transit, not in the cells"
    if again == first:
        return "the same when read again: the memory holds it"
    return f"different when read again: {again.count} words wrong"


@dataclass(slots=True)
class PassTally:
    """The results of the passes so far."""

    passes: Counter[str] = field(default_factory=Counter[str])
    mismatches: int = 0
    places: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """The piece and the index of each wrong word already described."""

    def select_new(self, pieces: Iterable[WrongPiece]) -> Iterator[WrongPiece]:
        """Count all wrong words, and pass on the first few that were not there before."""
        for wrong in pieces:
            self.mismatches += wrong.mismatch.count
            place = (wrong.piece.number, wrong.mismatch.index)
            if place not in self.places and len(self.places) < MAX_DESCRIBED_WORDS:
                self.places.add(place)
                yield wrong

    def describe(self) -> str:
        """Say what was done, and which backgrounds were not reached: an error ends the test."""
        done = ", ".join(f"{kind} {n}" for kind, n in self.passes.items()) or "none"
        left = ", ".join(kind for kind in BACKGROUND_NAMES if kind not in self.passes)
        text = f"each word written and compared five times in a pass of March C-; passes: {done}"
        return f"{text}; not reached: {left}" if left else text


def run_pass(
    name: str,
    sweep_all: Callable[[MarchSweep], Iterable[WrongPiece]],
    tally: PassTally,
    rest: Callable[[], None],
) -> Iterator[WrongPiece]:
    """Make a pass with the background *name*, and yield the first wrong words."""
    for sweep in MARCH_C_MINUS:
        if sweep.rests:
            rest()
        yield from tally.select_new(sweep_all(sweep))
    tally.passes[name] += 1


def go_on() -> None:
    """Rest not at all: only the first pass does."""
