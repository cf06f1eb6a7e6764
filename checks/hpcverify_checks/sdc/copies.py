"""
Copies between memories, of many sizes and alignments, with every byte compared.

The source holds a hash of each place, so that a byte that changed, moved, or came twice
shows. The target is first filled with the complement, so that a copy that did nothing,
or stopped short, shows in every byte; the bytes around each target must not change, so
that a copy that went too far shows. Copies are compared where they arrive: in a GPU's
memory by the GPU, with a hash that it made itself and without the host waiting; in the
host's memory by the host. Every lap draws new copies, from one byte to half the room,
and a canary, one flipped bit, proves that the comparison works.

A GPU copies from and to pinned memory by its copy engines, from and to pageable memory
through the driver's buffers, and within its own memory. A CPU copies core by core: with
torch, and with the C library's memmove, which bypasses the caches when a copy is large
(non-temporal stores). What must arrive is never the source itself: the hash is made a
second time, in memory of its own, and on a CPU by another core. So a source that does not
hold what was written shows as well. Then the memory fails and not the copy.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify.units import format_count
from hpcverify_checks.exact.bits import WORD_BYTES, view_words
from hpcverify_checks.exact.products import HOST_DEVICE
from hpcverify_checks.exact.reruns import rerun
from hpcverify_checks.exact.transfers import Copy, copy, make_pattern
from hpcverify_checks.exact.vote import (
    HOST_MEMORY,
    MEMORY_CODE,
    MEMORY_TEXT,
    UNWITNESSED_CODE,
    is_of_host,
)
from hpcverify_checks.node.cores import format_ranges, list_other_cores, pick_cores, run_on_each
from hpcverify_checks.node.device import wait_for_device
from hpcverify_checks.node.stalls import StallMeter, read_core_wait

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ROOM_BYTES = {"cuda": 64 * 2**20, "cpu": 32 * 2**20}
"""Bytes of each memory that is copied from or to."""
MAX_CORES = 32
"""Cores at a time: together they take a GiB, and use all of the memory's bandwidth."""
MAX_COPIES_PER_LAP = 24
START_ALIGNMENTS_BYTES = (1, 2, 4, 8, 16, 64, 256, 4096)
GUARD_BYTES, GUARD_FILL = 4096, 0xA5
"""Bytes before and after each copy that must not change, and what they hold."""
CHUNK_BYTES = 4 * 2**20
"""Bytes compared at a time: comparing takes as much again."""

CountUnequal = Callable[["Tensor", "Tensor"], "Tensor"]
"""Counts the words in which two rows of bytes differ: a scalar on their device."""


@dataclass(frozen=True, slots=True)
class PlannedCopy:
    """A copy of *size* bytes, from an offset in one memory to one in another."""

    source: int
    target: int
    size: int

    @property
    def source_slice(self) -> slice:
        """The bytes that are copied."""
        return slice(self.source, self.source + self.size)

    @property
    def target_slice(self) -> slice:
        """The bytes that they are copied over."""
        return slice(self.target, self.target + self.size)

    @property
    def guard_before(self) -> slice:
        """The bytes before those; fewer at the start of the memory."""
        return slice(max(0, self.target - GUARD_BYTES), self.target)

    @property
    def guard_after(self) -> slice:
        """The bytes after those."""
        return slice(self.target + self.size, self.target + self.size + GUARD_BYTES)


def draw_copies(chance: random.Random, room: int) -> list[PlannedCopy]:
    """
    Draw copies between memories of *room* bytes: first half of it, then less and less.

    Every order of magnitude that fits is equally likely.
    """
    pieces: list[PlannedCopy] = []
    end, size = 0, room // 2
    while len(pieces) < MAX_COPIES_PER_LAP and size:
        target = _align_up(end, chance) + chance.choice(START_ALIGNMENTS_BYTES)
        source = -_align_up(-chance.randrange(room - size), chance)
        pieces.append(PlannedCopy(source, target, size))
        end = pieces[-1].guard_after.stop
        left = room - end - 2 * max(START_ALIGNMENTS_BYTES) - GUARD_BYTES
        size = int(left ** chance.random()) if left > 1 else 0
    return pieces


def _align_up(offset: int, chance: random.Random) -> int:
    step = chance.choice(START_ALIGNMENTS_BYTES)
    return -(-offset // step) * step


def count_unequal_words(found: Tensor, expected: Tensor) -> Tensor:
    """Count the words in which two rows of bytes differ, without waiting for the device."""
    import torch

    total = torch.zeros((), dtype=torch.int64, device=found.device)
    for start in range(0, len(found), CHUNK_BYTES):
        chunk = slice(start, start + CHUNK_BYTES)
        unequal = torch.ne(found[chunk], expected[chunk])
        if lacking := -len(unequal) % WORD_BYTES:
            unequal = torch.cat([unequal, unequal.new_zeros(lacking)])
        total += torch.count_nonzero(view_words(unequal))
    return total


def copy_with_memmove(target: Tensor, source: Tensor) -> None:
    """Copy *source* into *target*, both on the host, with the C library."""
    ctypes.memmove(target.data_ptr(), source.data_ptr(), len(target))


@dataclass(frozen=True, slots=True)
class CopyPath:
    """A way to copy, between two memories of the same room: rows of bytes."""

    name: str
    source: Tensor
    target: Tensor
    expected: Tensor
    """What *source* must hold, where *target* is."""
    copy: Copy
    count_unequal: CountUnequal = count_unequal_words

    def poison(self, piece: PlannedCopy) -> None:
        """Fill the target with the complement of what must arrive, and the guards."""
        import torch

        torch.bitwise_not(self.expected[piece.source_slice], out=self.target[piece.target_slice])
        for guard in (piece.guard_before, piece.guard_after):
            self.target[guard].fill_(GUARD_FILL)

    def count_wrong(self, piece: PlannedCopy) -> Tensor:
        """Count the words that are wrong in the copy, or changed around it."""
        wrong = self.count_unequal(
            self.target[piece.target_slice], self.expected[piece.source_slice]
        )
        for place in (piece.guard_before, piece.guard_after):
            guard = self.target[place]
            wrong += self.count_unequal(guard, guard.new_full((), GUARD_FILL).expand_as(guard))
        return wrong

    def make_copies(self, pieces: Sequence[PlannedCopy]) -> None:
        """Make the copies over their complements."""
        for piece in pieces:
            self.poison(piece)
        for piece in pieces:
            self.copy(self.target[piece.target_slice], self.source[piece.source_slice])
        wait_for_device(self.source.device, self.target.device)

    def copy_and_count(self, pieces: Sequence[PlannedCopy]) -> list[int]:
        """Make the copies, and count the wrong words of each."""
        import torch

        self.make_copies(pieces)
        return torch.stack([self.count_wrong(piece) for piece in pieces]).tolist()

    def require_awake(self, piece: PlannedCopy, chance: random.Random, part_id: str) -> None:
        """Flip one bit of a correct copy of *part_id*, which the comparison must count."""
        place = piece.target + chance.randrange(piece.size)
        self.target[place : place + 1].bitwise_xor_(1 << chance.randrange(8))
        counted = int(self.count_wrong(piece))
        if counted != 1:
            # What is in a GPU's memory, only that GPU can count.
            others = list_other_cores(part_id)[:1] if self.target.device.type == "cpu" else []
            again = [*run_on_each(others, lambda _: int(self.count_wrong(piece)))]
            whose = f"{part_id}: " if is_of_host(part_id) else ""
            elsewhere = f", and on core {others[0]} {again[0]}" if others else ""
            is_common = bool(others) and f"cpu{others[0]}" != part_id and again != [1]
            raise hv.Unable(
                f"{whose}copies {self.name}: after one flipped bit the comparison counted "
                f"{counted} wrong words{elsewhere}: do not trust its other answers"
                f"{'' if is_common else ': it may be the part that errs'}",
                hv.Cause.CHECKER,
                hv.Remedy.FIX_CHECKER if is_common else hv.Remedy.INSPECT,
            )


@dataclass(slots=True)
class CopyTally:
    """What was copied on the part or core *part_id*, and what was wrong."""

    part_id: str
    copies: int = 0
    bytes: int = 0
    wrong: Counter[str] = field(default_factory=Counter[str])
    """Words of 8 bytes, by the part that fails: *part_id*, or the host's memory."""
    findings: tuple[hv.Finding, ...] = ()
    laps: list[float] = field(default_factory=list[float])
    """Seconds of each lap of each path."""
    error: Exception | None = None
    """What ended it early."""


def check_copies(
    ctx: hv.Context, device: torch.device, seconds: float, copy: Copy = copy
) -> Generator[hv.CheckItem, None, hv.Unable | None]:
    """
    Copy for *seconds* on all paths of a device, but once at least, and compare.

    On a CPU up to `MAX_CORES` cores work at the same time; the others come in later runs.
    Returns what kept a comparison from being trusted, if anything.
    """
    room = ROOM_BYTES[ctx.device.kind]
    run = partial(copy_for_seconds, seed=ctx.seed, seconds=seconds)
    if ctx.device.kind == "cpu":
        cores = pick_cores(cpu.read_cores().allowed, MAX_CORES, ctx.rotation)
        sent, expected = make_both(cores, ctx.seed, room)
        work = run_on_each(
            cores, lambda core: run(make_core_paths(sent, expected, copy), f"cpu{core}")
        )
        tallies = list(work)
        text = f"on cores {format_ranges(cores)}, with torch and with memmove"
    else:
        with hv.operation("copies to, from and within its memory", ctx.device):
            paths = make_gpu_paths(device, ctx.seed, room, copy)
            stalls, began = StallMeter(), read_core_wait()
            tallies = [run(paths, ctx.device.part)]
            stalls.note(tallies[0].laps, read_core_wait() - began)
        yield from stalls.report(ctx.device.part, "copies.stall")
        text = ", ".join(path.name for path in paths)
    number, size = sum(t.copies for t in tallies), sum(t.bytes for t in tallies)
    yield hv.Coverage(
        ctx.device.part,
        f"{number} copies ({size / 2**30:.3g} GiB) of 1 byte to {room / 2**21:g} MiB, at odd and "
        f"even offsets, compared byte by byte: {text}",
    )
    for tally in tallies:
        yield hv.Measurement("copied_bytes", tally.bytes, "B", tally.part_id)
        yield hv.Measurement("copied_wrong_words", tally.wrong[tally.part_id], "", tally.part_id)
        yield from (f for f in tally.findings if f.part_id == tally.part_id)
    # All cores copy from the same memory, so what the first one found is reported once. It may be
    # the core that wrote the words, so their count is no measurement of the memory.
    findings = [f for tally in tallies for f in tally.findings if f.part_id == HOST_MEMORY]
    for finding in findings[:1]:
        yield replace(finding, code=MEMORY_CODE, text=f"{MEMORY_TEXT}: {finding.text}")
    blind: hv.Unable | None = None
    for error in (tally.error for tally in tallies if tally.error):
        if not isinstance(error, hv.Unable):
            raise error
        blind = blind or error
    return blind


def make_source(seed: int, room: int, device: torch.device | str) -> Tensor:
    """Make *room* bytes, a hash of their places."""
    import torch

    return make_pattern(seed, range(room // WORD_BYTES), torch.device(device)).view(torch.uint8)


def make_both(cores: Sequence[int], seed: int, room: int) -> tuple[Tensor, Tensor]:
    """Make what all cores copy, and what must arrive: on the first core and on the last."""
    sent, expected = (
        made
        for core in (cores[0], cores[-1])
        for made in run_on_each([core], lambda _: make_source(seed, room, HOST_DEVICE))
    )
    return sent, expected


def make_core_paths(sent: Tensor, expected: Tensor, copy: Copy) -> tuple[CopyPath, ...]:
    """Make the paths of a core: all cores copy from the same memory."""
    import torch

    into = torch.empty_like(sent)
    return (
        CopyPath("with torch", sent, into, expected, copy),
        CopyPath("with memmove", sent, into, expected, copy_with_memmove),
    )


def make_gpu_paths(device: torch.device, seed: int, room: int, copy: Copy) -> tuple[CopyPath, ...]:
    """Make the paths from, to and within a GPU's memory."""
    import torch

    here = make_source(seed, room, HOST_DEVICE)
    there, expected = (make_source(seed, room, device) for _ in range(2))
    pinned = torch.empty_like(here, pin_memory=device.type == "cuda")
    pinned.copy_(here)
    arrived, back = torch.empty_like(there), torch.empty_like(here)
    into_pinned = torch.empty_like(pinned, pin_memory=device.type == "cuda")
    return (
        CopyPath("from pinned memory to the GPU", pinned, arrived, expected, copy),
        CopyPath("from pageable memory to the GPU", here, arrived, expected, copy),
        CopyPath("within the GPU's memory", there, arrived, expected, copy),
        CopyPath("from the GPU to pinned memory", there, into_pinned, here, copy),
        CopyPath("from the GPU to pageable memory", there, back, here, copy),
    )


def copy_for_seconds(
    ways: Sequence[CopyPath], part_id: str, *, seed: int, seconds: float
) -> CopyTally:
    """Copy on all *ways* in turn for *seconds*, and drop one after its first error."""
    tally = CopyTally(part_id)
    try:
        _copy_until(tally, ways, seed, time.monotonic() + seconds)
    except (hv.Unable, RuntimeError) as exc:  # as CUDA's: what was found by then counts
        tally.error = exc
    return tally


def _copy_until(tally: CopyTally, ways: Sequence[CopyPath], seed: int, until: float) -> None:
    part_id, good = tally.part_id, list(ways)
    chance = random.Random(f"{seed} {part_id}")  # noqa: S311 - no secret
    while good:
        for way in tuple(good):
            pieces = draw_copies(chance, len(way.target))
            began = time.monotonic()
            counts = way.copy_and_count(pieces)
            tally.laps.append(time.monotonic() - began)
            tally.copies += len(pieces)
            tally.bytes += sum(piece.size for piece in pieces)
            if any(counts):
                good.remove(way)
                finding = investigate_miscopy(way, pieces, counts, seed, part_id)
                tally.findings += (finding,)
                if finding.code != UNWITNESSED_CODE:
                    tally.wrong[finding.part_id] += sum(counts)
            else:
                way.require_awake(chance.choice(pieces), chance, part_id)
        if time.monotonic() >= until:
            break


def investigate_miscopy(
    way: CopyPath, pieces: Sequence[PlannedCopy], counts: Sequence[int], seed: int, part_id: str
) -> hv.Finding:
    """
    Find out more about the first wrong copy.

    Of what a GPU copied to the host, the host is the only witness. So another core counts
    the wrong words again, and words around a copy have to change more than once.
    """
    wrong = [i for i, count in enumerate(counts) if count]
    by_host = not is_of_host(part_id) and way.target.device.type == "cpu"
    number, is_witnessed = wrong[0], True
    if by_host:
        others = list_other_cores(part_id)[-1:]
        (again,) = run_on_each(others, lambda _: [int(way.count_wrong(pieces[i])) for i in wrong])
        number = next((i for i, count in zip(wrong, again, strict=True) if count), number)
        is_witnessed = any(again)
    piece = pieces[number]
    right = remake_bytes(piece, seed)
    traced = trace_error(way, piece, right)  # before the copy is made again
    place, owner = _locate_fault(way, piece, right, part_id)
    evidence = {
        "way": way.name,
        "copy": f"{number + 1} of {len(pieces)}",
        "bytes": str(piece.size),
        "from": str(piece.source),
        "to": str(piece.target),
        "wrong_words": str(counts[number]),
        "place": place,
        **traced,
    }
    reruns = rerun(lambda: any(way.copy_and_count([piece])))
    evidence["reruns"] = reruns.describe()
    if not is_witnessed or (by_host and "offset" not in traced and not reruns.wrong):
        text = (
            f"a copy of {piece.size} bytes {way.name} was taken for wrong once, by a core of the "
            "host that may have erred: run cpu_units and host_memory"
        )
        return hv.Finding(UNWITNESSED_CODE, part_id, text, evidence)
    text = (
        f"a copy of {piece.size} bytes {way.name} has "
        f"{format_count(counts[number], 'wrong word')}: "
        f"{evidence['what']}; {evidence['place']}, {evidence['reruns']}"
    )
    return hv.Finding("miscopied", owner, text, evidence)


def remake_bytes(piece: PlannedCopy, seed: int) -> Tensor:
    """Make the bytes of a copy again, on the host."""
    import torch

    first, last = piece.source // WORD_BYTES, -(-piece.source_slice.stop // WORD_BYTES)
    whole = make_pattern(seed, range(first, last), torch.device(HOST_DEVICE)).view(torch.uint8)
    return whole[piece.source - first * WORD_BYTES :][: piece.size]


def trace_error(way: CopyPath, piece: PlannedCopy, right: Tensor) -> dict[str, str]:
    """Describe what is wrong with a copy, and where first."""
    arrived = way.target[piece.target_slice].cpu()
    places = arrived.ne(right).nonzero().flatten()
    if not len(places):
        return {"what": "bytes around it were overwritten"}
    first = int(places[0])
    stale = bool((arrived[places] == ~right[places]).all())
    around = slice(first // WORD_BYTES * WORD_BYTES, (first // WORD_BYTES + 1) * WORD_BYTES)
    return {
        "what": f"{len(places)} bytes, {'never written' if stale else 'changed'}, the "
        f"first at byte {first:#x} and the last at byte {int(places[-1]):#x}",
        "offset": f"{first:#x}",
        "found": bytes(arrived[around].tolist()).hex(" "),
        "expected": bytes(right[around].tolist()).hex(" "),
    }


def _locate_fault(
    way: CopyPath, piece: PlannedCopy, right: Tensor, part_id: str
) -> tuple[str, str]:
    for memory, does in ((way.source, "copied from"), (way.expected, "compared with")):
        if not memory[piece.source_slice].cpu().equal(right):
            owner = HOST_MEMORY if memory.device.type == "cpu" else part_id
            return f"memory that it was {does}", owner
    others = [core for core in list_other_cores(part_id) if f"cpu{core}" != part_id]
    if is_of_host(part_id) and others:
        (errs,) = run_on_each(others[:1], lambda _: any(way.copy_and_count([piece])))
        if errs:
            return f"core {others[0]} makes the same copy wrongly, too", HOST_MEMORY
    return "the copy itself, or the memory that it was copied to", part_id
