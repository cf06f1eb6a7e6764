"""
Where a product is wrong: which elements, by how much, and which multiprocessor.

Faults of hardware rarely flip one bit and be done: in a production GPU most corrupted
outputs differ in several, at addresses that come again with the period of a warp or a
fragment (Anatomy of silent data corruption in GPUs, arXiv 2605.04213). The pattern
says which unit wrote it, and what all errors are multiples of says which operand they
were multiplied with (as FLARE does, arXiv 2605.08594).

The multiprocessor is found by having all of them compute the same exact tile, each of
which checks itself and says on which one it ran. That is done after a mismatch only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from hpcverify_checks._bits import integers, integers_of
from hpcverify_checks._cores import listed
from hpcverify_checks._kernels import kernels_for

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TILES = (
    (8, 8),
    (16, 8),
    (64, 8),
    (64, 64),
    (64, 128),
    (128, 64),
    (64, 256),
    (128, 128),
    (128, 256),
    (256, 128),
)
"""Rows and columns that are written together: the fragments of mma and wgmma (PTX ISA,
matrix instructions), and the tiles that GEMM libraries give to a thread block."""
LEAST_SHARE = 0.25
"""Of a tile: a bit that is stuck shows in about half of the elements."""
PERIODS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
EVIDENCE_BITS = 10
"""Chance makes a pattern of so many bits once in a thousand times."""
SAMPLE = 2**20
"""Wrong elements whose errors are looked at."""
INTEGERS = 2**62
"""Below this the difference of two integers is one of 64 bits."""

EDGE, DEPTH, STEP = 128, 1024, 64
"""Of the tile: one thread block's, with its operands in the GPU's second cache."""
KEY = 2**20
"""Of the tile's operands: no plan has it."""
FIRST_BOUND = 255
PLANS = ((63, 0), (31, 2**23))
"""Bounds of the second operand, and biases: no sum of magnitudes reaches 2^24, and
with the bias the lowest bits change too."""
REPEATS = 256
"""Of the tile in one program, or milliseconds."""
PROGRAMS = 4
"""For each multiprocessor, so that none is left out."""
ROUNDS = 8
WARPS = 8
BF16_SINCE = (8, 0)


@dataclass(frozen=True, slots=True)
class Span:
    """Rows, or columns, that have wrong elements in them."""

    first: int
    last: int
    period: int = 0
    """0 if there is none."""
    residues: tuple[int, ...] = ()
    """Which ones of each *period*."""

    def text(self, name: str) -> str:
        """Put it in words: ``rows 3 to 195 (3 of every 64)``."""
        if self.first == self.last:
            return f"{name} {self.first}"
        where = f"{name}s {self.first} to {self.last}"
        if not self.period:
            return where
        return f"{where} ({listed(self.residues)} of every {self.period})"


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiles that best fit the wrong elements, and the share of them in those."""

    rows: int
    columns: int
    count: int
    share: float

    def text(self) -> str:
        """Put it in words: ``all of 2 tiles of 64 x 64``."""
        share = "all" if self.share == 1 else f"{math.floor(100 * self.share)} %"
        plural = "" if self.count == 1 else "s"
        return f"{share} of {self.count} tile{plural} of {self.rows} x {self.columns}"


@dataclass(frozen=True, slots=True)
class Errors:
    """By how much integers differ from what they should be."""

    some: bool
    """Whether there are elements that are no integers, too."""

    distinct: int
    low: int
    high: int
    divisor: int
    """Of all of them, the greatest."""

    def text(self) -> str:
        """Put it in words: ``off by 3 values from -512 to 256, multiples of 128``."""
        those = "those that are integers " if self.some else ""
        if self.distinct == 1:
            return f"{those}off by {self.low}"
        text = f"{those}off by {self.distinct} values from {self.low} to {self.high}"
        return text if self.divisor == 1 else f"{text}, multiples of {self.divisor}"


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the wrong elements of a product reach."""

    elements: int
    rows: Span
    columns: Span
    tiles: Tiles | None
    errors: Errors | None
    """None where there are no integers to compare."""

    def text(self) -> str:
        """Put it in words, for whoever asks the vendor."""
        plural = "" if self.elements == 1 else "s"
        parts = [f"{self.elements} element{plural}"]
        parts += [self.rows.text("row"), self.columns.text("column")]
        parts += [part.text() for part in (self.tiles, self.errors) if part]
        return ", ".join(parts)


def extent_of(found: Tensor, expected: Tensor) -> Extent:
    """Describe how *found* differs from *expected*: matrices on the host that do."""
    import torch

    wrong = torch.ne(integers_of(found), integers_of(expected))
    return Extent(
        int(wrong.sum()),
        span_of(wrong.any(dim=1).nonzero().flatten().tolist()),
        span_of(wrong.any(dim=0).nonzero().flatten().tolist()),
        _tiles(wrong),
        _errors(found[wrong][:SAMPLE], expected[wrong][:SAMPLE]),
    )


def span_of(places: Sequence[int]) -> Span:
    """Describe *places*, in ascending order, and the period that they have."""
    period = max(PERIODS, key=lambda p: _evidence(places, p))
    if _evidence(places, period) < EVIDENCE_BITS:
        return Span(places[0], places[-1])
    residues = tuple(sorted({place % period for place in places}))
    return Span(places[0], places[-1], period, residues)


def _evidence(places: Sequence[int], period: int) -> float:
    """Say how unlikely it is, in bits, that chance makes so few residues."""
    residues = len({place % period for place in places})
    one = math.log2(period / residues)
    return len(places) * one - math.log2(math.comb(period, residues))


def _tiles(wrong: Tensor) -> Tiles | None:
    """Find the tiles of which the largest share is wrong; of several, the largest."""
    counts = _summed(wrong, *TILES[0])
    fits = [_filled(counts, *tile) for tile in TILES if _divides(tile, wrong.shape)]
    best = max(fits, key=lambda t: (t.share, t.rows * t.columns), default=None)
    return best if best and best.share >= LEAST_SHARE else None


def _divides(tile: Sequence[int], shape: Sequence[int]) -> bool:
    return not any(size % edge for size, edge in zip(shape, tile, strict=True))


def _filled(counts: Tensor, rows: int, columns: int) -> Tiles:
    """Say how *counts* of the smallest tiles fill those of *rows* x *columns*."""
    filled = _summed(counts, rows // TILES[0][0], columns // TILES[0][1])
    touched = int((filled > 0).sum())
    share = int(filled.sum()) / (touched * rows * columns)
    return Tiles(rows, columns, touched, share)


def _summed(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Sum over blocks of *rows* x *columns*; what is left at the edges is left out."""
    high, wide = matrix.shape[0] // rows, matrix.shape[1] // columns
    whole = matrix[: high * rows, : wide * columns]
    return whole.reshape(high, rows, wide, columns).sum(dim=(1, 3))


def _errors(found: Tensor, expected: Tensor) -> Errors | None:
    import torch

    whole = _integral(found) & _integral(expected)
    errors = torch.unique(found[whole].long() - expected[whole].long())
    errors = errors[errors != 0]  # as where only the sign of a zero differs
    if not len(errors):
        return None
    divisor = errors.abs()
    while len(divisor) > 1:
        half = len(divisor) // 2
        folded = torch.gcd(divisor[:half], divisor[half : 2 * half])
        divisor = torch.unique(torch.cat([folded, divisor[2 * half :]]))
    some = not bool(whole.all())
    return Errors(some, len(errors), int(errors[0]), int(errors[-1]), int(divisor))


def _integral(values: Tensor) -> Tensor:
    exact = values.double()
    return (exact == exact.round()) & (exact.abs() < INTEGERS)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A multiprocessor that computed a tile wrongly."""

    sm: int
    elements: int
    bits: int
    """Which ones of an element differed, as a mask."""

    def text(self) -> str:
        """Put it in words: ``17 (12 elements, bits 3, 12)``."""
        bits = listed([bit for bit in range(32) if self.bits >> bit & 1])
        return f"{self.sm} ({self.elements} elements, bits {bits})"


@dataclass(frozen=True, slots=True)
class Suspects:
    """Which multiprocessors computed wrongly, of those that were seen."""

    faulty: tuple[Suspect, ...]
    seen: int
    units: int
    """That the GPU has."""

    def text(self) -> str:
        """Put it in words: which of them, of how many."""
        names = ", ".join(suspect.text() for suspect in self.faulty) or "none"
        return f"{names} of the {self.seen} seen of {self.units}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Operands and the one right product of them, on the host."""

    a: Tensor
    b: Tensor
    expected: Tensor


Look = Callable[[Tile, int], "Tensor"]
"""Has so many programs compute a tile. Gives a row for each: where it ran, how many
elements were wrong, which bits differed; a program that did not run says -1."""


def suspects(device: torch.device) -> Suspects | None:
    """Have all multiprocessors of *device* compute the same; None if nothing can."""
    import torch

    kernels = kernels_for(device)
    if kernels is None or torch.cuda.get_device_capability(device) < BF16_SINCE:
        return None
    units = torch.cuda.get_device_properties(device).multi_processor_count
    return examined(partial(look, kernels, device, REPEATS), units)


def examined(look: Look, units: int) -> Suspects:
    """Look at all *units* until all of them must have been there several times."""
    tiles = [made_tile(bound, bias) for bound, bias in PLANS]
    logs = [look(tile, PROGRAMS * units) for _ in range(ROUNDS) for tile in tiles]
    return summed((row for log in logs for row in log.tolist()), units)


def summed(rows: Iterable[Sequence[int]], units: int) -> Suspects:
    """Add up, for each multiprocessor, what was wrong on it."""
    wrong: dict[int, tuple[int, int]] = {}
    for sm, elements, bits in rows:
        before = wrong.get(sm, (0, 0))
        wrong[sm] = before[0] + elements, before[1] | bits % 2**32
    wrong.pop(-1, None)
    faulty = (Suspect(sm, *wrong[sm]) for sm in sorted(wrong) if wrong[sm][0])
    return Suspects(tuple(faulty), len(wrong), units)


def made_tile(bound: int, bias: int) -> Tile:
    """Make the tile whose second operand lies within +-*bound*, as `_exact` plans."""
    import torch

    a = integers(KEY, range(EDGE), DEPTH, FIRST_BOUND, "cpu")
    b = integers(KEY + 1, range(DEPTH), EDGE, bound, "cpu")
    if bias:
        a[:, 0], b[0] = 2**12, bias >> 12
    return Tile(a.to(torch.bfloat16), b.to(torch.bfloat16), (a @ b).float())


def look(
    kernels: ModuleType, device: torch.device, repeats: int, tile: Tile, programs: int
) -> Tensor:
    """Have *programs* of them compute *tile* on *device*, as `Look` says."""
    import torch

    edge, depth = tile.a.shape
    log = torch.full((programs, 3), -1, dtype=torch.int32, device=device)
    a, b, expected = (x.to(device) for x in (tile.a, tile.b, tile.expected))
    kernels.check_tile[(programs,)](
        a,
        b,
        expected,
        log,
        repeats,
        place=kernels.sm_id,
        edge=edge,
        depth=depth,
        step=STEP,
        num_warps=WARPS,
    )
    return log.cpu()
