"""
Copies between memories, of many sizes and alignments, with every byte compared.

What is copied is a hash of its place, so that a byte that changed, moved, or came twice
shows. What it is copied over is first filled with the complement of what must come, so
that a copy that did nothing, or stopped short, shows in every byte; and what lies
around each copy must stay as it was, so that one that went too far shows. They are
compared where they arrive: by a GPU in its own memory, with a hash that it made itself
and without the host waiting, and by the host in the host's. On every lap the copies are
drawn anew, from one byte to half of the room, and a canary, one flipped bit, proves
that the comparison is awake.

A GPU copies from and to pinned memory by its copy engines, from and to pageable memory
by way of the driver's buffers, and within its own memory. A CPU copies core by core:
with torch, and with the C library's memmove, which goes around the caches when a copy
is large (non-temporal stores). Memory that a copy comes from is taken as it is where
both ends are the same memory: that it holds what was written is for other checks.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hpcverify.check import Context, Unable
from hpcverify.model import Cause, Covered, Finding, Found, Measurement, Remedy
from hpcverify.telemetry import cpu
from hpcverify_checks._bits import words
from hpcverify_checks._cores import listed, on_each, turn
from hpcverify_checks._transfers import WORD, Copy, copy, pattern

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROOM = {"cuda": 64 * 2**20, "cpu": 32 * 2**20}
"""Bytes of each memory that is copied from or to."""
AT_ONCE = 32
"""Cores at a time: together they take a GiB, and fill the memory's bandwidth."""
COPIES = 24
"""In one lap on one way, at most."""
ALIGNMENTS = (1, 2, 4, 8, 16, 64, 256, 4096)
"""Of where copies begin, in bytes."""
GUARD = 64
"""Bytes in front of a copy and behind it that must stay as they were."""
FILL = 0xA5
"""What they hold."""
CHUNK = 4 * 2**20
"""Bytes compared at a time: comparing takes as much again."""
RERUNS = 3
HOST = "cpu"

Unlike = Callable[["Tensor", "Tensor"], "Tensor"]
"""Counts the words in which two rows of bytes differ: a scalar where they are."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A copy of *size* bytes, from an offset in one memory to one in another."""

    source: int
    target: int
    size: int

    @property
    def sent(self) -> slice:
        """The bytes that are copied."""
        return slice(self.source, self.source + self.size)

    @property
    def arrived(self) -> slice:
        """The bytes that they are copied over."""
        return slice(self.target, self.target + self.size)

    @property
    def before(self) -> slice:
        """The bytes in front of those: no more than lie there."""
        return slice(max(0, self.target - GUARD), self.target)

    @property
    def behind(self) -> slice:
        """The bytes after those."""
        return slice(self.target + self.size, self.target + self.size + GUARD)


def drawn(chance: random.Random, room: int) -> list[Piece]:
    """
    Draw copies between memories of *room* bytes: first half of it, then ever less.

    Their sizes are as often of one order of magnitude as of any other that fits.
    """
    pieces: list[Piece] = []
    end, size = 0, room // 2
    while len(pieces) < COPIES and size:
        target = _aligned(end, chance) + chance.choice(ALIGNMENTS)
        source = -_aligned(-chance.randrange(room - size), chance)
        pieces.append(Piece(source, target, size))
        end = pieces[-1].behind.stop
        left = room - end - 2 * max(ALIGNMENTS) - GUARD
        size = int(left ** chance.random()) if left > 1 else 0
    return pieces


def _aligned(offset: int, chance: random.Random) -> int:
    """Round *offset* up to a multiple of one of the alignments."""
    step = chance.choice(ALIGNMENTS)
    return -(-offset // step) * step


def unlike(found: Tensor, expected: Tensor) -> Tensor:
    """Count the words in which two rows of bytes differ, without a wait for them."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=found.device)
    for start in range(0, len(found), CHUNK):
        chunk = slice(start, start + CHUNK)
        unequal = torch.ne(found[chunk], expected[chunk])
        if lacking := -len(unequal) % WORD:
            unequal = torch.cat([unequal, unequal.new_zeros(lacking)])
        total += torch.count_nonzero(words(unequal))
    return total


def move(target: Tensor, source: Tensor) -> None:
    """Copy *source* into *target*, both on the host, as the C library does."""
    ctypes.memmove(target.data_ptr(), source.data_ptr(), len(target))


@dataclass(frozen=True, slots=True)
class Way:
    """A way to copy, between two memories of the same room: rows of bytes."""

    name: str
    source: Tensor
    target: Tensor
    expected: Tensor
    """What *source* must hold, where *target* is."""
    copy: Copy
    unlike: Unlike = unlike

    def poison(self, piece: Piece) -> None:
        """Put the complement of what must come where it must come."""
        import torch

        torch.bitwise_not(self.expected[piece.sent], out=self.target[piece.arrived])
        for guard in (piece.before, piece.behind):
            self.target[guard].fill_(FILL)

    def wrong(self, piece: Piece) -> Tensor:
        """Count the words that came wrong, or changed around the copy."""
        wrong = self.unlike(self.target[piece.arrived], self.expected[piece.sent])
        for place in (piece.before, piece.behind):
            guard = self.target[place]
            wrong += self.unlike(guard, guard.new_full((), FILL).expand_as(guard))
        return wrong

    def carry(self, pieces: Sequence[Piece]) -> None:
        """Make the copies over their complements."""
        for piece in pieces:
            self.poison(piece)
        for piece in pieces:
            self.copy(self.target[piece.arrived], self.source[piece.sent])
        settle(self.source, self.target)

    def lap(self, pieces: Sequence[Piece]) -> list[int]:
        """Make the copies, and count for each of them the words that are wrong."""
        import torch

        self.carry(pieces)
        return torch.stack([self.wrong(piece) for piece in pieces]).tolist()

    def require_awake(self, piece: Piece, chance: random.Random) -> None:
        """
        Flip a bit of a copy that came right.

        Raises:
            Unable: the comparison does not count one wrong word.

        """
        place = piece.target + chance.randrange(piece.size)
        self.target[place : place + 1].bitwise_xor_(1 << chance.randrange(8))
        counted = int(self.wrong(piece))
        if counted != 1:
            raise Unable(
                f"copies {self.name}: of one flipped bit the comparison made {counted} "
                "wrong words: do not trust its other answers",
                Cause.CHECKER,
                Remedy.FIX_CHECKER,
            )


def settle(source: Tensor, target: Tensor) -> None:
    """Wait for what a GPU was told to copy into the host's memory."""
    import torch

    if source.device.type == "cuda" and target.device.type == HOST:
        torch.cuda.synchronize(source.device)


@dataclass(slots=True)
class Tally:
    """What was copied on the part or core *where*, and what came of it."""

    where: str
    copies: int = 0
    bytes: int = 0
    wrong: int = 0
    """Words of 8 bytes."""
    findings: tuple[Finding, ...] = ()
    trouble: Exception | None = None
    """What ended it early."""


def copies(
    ctx: Context, device: torch.device, seconds: float, copy: Copy = copy
) -> Iterator[Found]:
    """
    Copy for *seconds* on all ways that a device has, and compare.

    All cores of a CPU work at the same time, or as many as can, and those left out
    come in another run.
    """
    run = partial(carried, seed=ctx.seed, seconds=seconds)
    if ctx.device.kind == "cpu":
        sent = made(ctx.seed, ROOM["cpu"], device)
        cores = turn(cpu.cores().allowed, AT_ONCE, ctx.rotation)
        tallies = list(on_each(cores, partial(on_core, run, sent, copy)))
        text = f"on cores {listed(cores)}, with torch and with memmove"
    else:
        ways = of_gpu(device, ctx.seed, ROOM["cuda"], copy)
        tallies = [run(ways, ctx.device.part)]
        text = ", ".join(way.name for way in ways)
    yield Covered(ctx.device.part, f"{said(tallies, sent_most(ctx))} {text}")
    for tally in tallies:
        yield Measurement("copied_bytes", tally.bytes, "B", tally.where)
        yield Measurement("copied_wrong_words", tally.wrong, "", tally.where)
        yield from tally.findings
    for tally in tallies:
        if tally.trouble:
            raise tally.trouble


def on_core(
    run: Callable[[Sequence[Way], str], Tally], sent: Tensor, copy: Copy, core: int
) -> Tally:
    """Copy on one core of the CPU."""
    return run(of_core(sent, copy), f"cpu{core}")


def sent_most(ctx: Context) -> int:
    """Say how many bytes the largest copy has."""
    return ROOM[ctx.device.kind] // 2


def said(tallies: Sequence[Tally], largest: int) -> str:
    """Say in words how much was copied."""
    number = sum(tally.copies for tally in tallies)
    size = sum(tally.bytes for tally in tallies)
    return (
        f"{number} copies ({size / 2**30:.3g} GiB) of 1 byte to {largest / 2**20:g} "
        "MiB, on odd and even offsets, compared byte by byte:"
    )


def made(seed: int, room: int, device: torch.device | str) -> Tensor:
    """Make *room* bytes of the hash of their places."""
    import torch

    return pattern(seed, range(room // WORD), torch.device(device)).view(torch.uint8)


def of_core(sent: Tensor, copy: Copy) -> tuple[Way, ...]:
    """Give the ways to copy on a core: all cores copy from the same memory."""
    import torch

    into = torch.empty_like(sent)
    return (
        Way("with torch", sent, into, sent, copy),
        Way("with memmove", sent, into, sent, move),
    )


def of_gpu(device: torch.device, seed: int, room: int, copy: Copy) -> tuple[Way, ...]:
    """Give the ways to copy from, to and within a GPU's memory."""
    import torch

    here, there = made(seed, room, HOST), made(seed, room, device)
    pinned = torch.empty_like(here, pin_memory=device.type == "cuda")
    pinned.copy_(here)
    arrived, back = torch.empty_like(there), torch.empty_like(here)
    into_pinned = torch.empty_like(pinned, pin_memory=device.type == "cuda")
    return (
        Way("from pinned memory to the GPU", pinned, arrived, there, copy),
        Way("from pageable memory to the GPU", here, arrived, there, copy),
        Way("within the GPU's memory", there, arrived, there, copy),
        Way("from the GPU to pinned memory", there, into_pinned, here, copy),
        Way("from the GPU to pageable memory", there, back, here, copy),
    )


def carried(ways: Sequence[Way], where: str, *, seed: int, seconds: float) -> Tally:
    """Go on with all *ways* in turn for *seconds*, and leave one that errs."""
    tally = Tally(where)
    try:
        _carry_on(tally, ways, seed, time.monotonic() + seconds)
    except (Unable, RuntimeError) as exc:  # as CUDA's: what was found by then counts
        tally.trouble = exc
    return tally


def _carry_on(tally: Tally, ways: Sequence[Way], seed: int, until: float) -> None:
    where, good = tally.where, list(ways)
    chance = random.Random(f"{seed} {where}")  # noqa: S311 - no secret
    while good:
        for way in tuple(good):
            pieces = drawn(chance, len(way.target))
            counts = way.lap(pieces)
            tally.copies += len(pieces)
            tally.bytes += sum(piece.size for piece in pieces)
            tally.wrong += sum(counts)
            if any(counts):
                good.remove(way)
                tally.findings += (miscopied(way, pieces, counts, seed, where),)
            else:
                way.require_awake(chance.choice(pieces), chance)
        if time.monotonic() >= until:
            break


def rerun(way: Way, piece: Piece) -> str:
    """Say how often the copy is wrong again."""
    again = 0
    try:
        for _ in range(RERUNS):
            way.carry([piece])
            again += bool(way.wrong(piece))
    except RuntimeError as exc:  # as CUDA's: it must not hide what was found
        return f"not possible: {exc}"
    kind = "persistent" if again == RERUNS else "intermittent"
    return f"{kind}: {again} of {RERUNS} reruns wrong"


def miscopied(
    way: Way, pieces: Sequence[Piece], counts: Sequence[int], seed: int, where: str
) -> Finding:
    """Find out more about the first of the copies that came wrong."""
    number = next(i for i, count in enumerate(counts) if count)
    piece = pieces[number]
    evidence = {
        "way": way.name,
        "copy": f"{number + 1} of {len(pieces)}",
        "bytes": str(piece.size),
        "from": str(piece.source),
        "to": str(piece.target),
        "wrong_words": str(counts[number]),
        **traced(way, piece, truth(piece, seed)),
    }
    evidence["reruns"] = rerun(way, piece)
    text = (
        f"a copy of {piece.size} bytes {way.name} was wrong in {counts[number]} words: "
        f"{evidence['what']}; {evidence['place']}, {evidence['reruns']}"
    )
    return Finding("miscopied", where, text, evidence)


def truth(piece: Piece, seed: int) -> Tensor:
    """Make the bytes of a copy once more, on the host."""
    import torch

    first, last = piece.sent.start // WORD, -(-piece.sent.stop // WORD)
    whole = pattern(seed, range(first, last), torch.device(HOST)).view(torch.uint8)
    return whole[piece.source - first * WORD :][: piece.size]


def traced(way: Way, piece: Piece, right: Tensor) -> dict[str, str]:
    """Say what is wrong with a copy, where first, and where that was lost."""
    import torch

    found = way.target[piece.arrived].cpu()
    places = torch.ne(found, right).nonzero().flatten()
    evidence = {"place": _place(way, piece, right)}
    if not len(places):
        return evidence | {"what": "what lies around it was overwritten"}
    first = int(places[0])
    stale = bool((found[places] == ~right[places]).all())
    around = slice(first // WORD * WORD, (first // WORD + 1) * WORD)
    return evidence | {
        "what": f"{len(places)} bytes, {'never written' if stale else 'changed'}, the "
        f"first at {first} and the last at {int(places[-1])}",
        "offset": str(first),
        "found": bytes(found[around].tolist()).hex(" "),
        "expected": bytes(right[around].tolist()).hex(" "),
    }


def _place(way: Way, piece: Piece, right: Tensor) -> str:
    import torch

    if not torch.equal(way.source[piece.sent].cpu(), right):
        return "memory that it was copied from"
    if not torch.equal(way.expected[piece.sent].cpu(), right):
        return "memory that it was compared with"
    return "the copy, or the memory that it was copied to"
