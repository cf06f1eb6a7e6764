"""
Where a product is wrong: which elements, by how much, and which multiprocessor.

Hardware faults rarely flip just one bit: in a production GPU most corrupted outputs differ
in several, at addresses that recur with the period of a warp or a fragment (Anatomy of
silent data corruption in GPUs, arXiv 2605.04213). The pattern shows which unit wrote it;
the common common_divisor of the errors shows by which operand they were multiplied (as FLARE
does, arXiv 2605.08594).

To find the multiprocessor, all of them compute the same exact tile; each program checks
its own and reports where it ran. This is done only after a mismatch, by a kernel that was
compiled before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING

from hpcverify.check import Context, Coverage
from hpcverify_checks.common.bits import make_integers, view_integers
from hpcverify_checks.common.cores import format_ranges
from hpcverify_checks.common.exact import fold_integers
from hpcverify_checks.common.kernels import load_kernels, try_launch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

TILE_SHAPES = (
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
MIN_TILE_SHARE = 0.25
"""A stuck bit shows in about half of the elements of a tile."""
PERIODS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
EVIDENCE_BITS = 10
"""Chance makes such a pattern once in a thousand times."""
MAX_SAMPLE_ELEMENTS = 2**20
INTEGER_LIMIT = 2**62
"""Below this the difference of two integers fits into 64 bits."""

TILE_EDGE, TILE_DEPTH, TILE_STEP = 128, 1024, 64
"""One thread block's tile, with its operands in the GPU's L2 cache."""
TILE_KEY = 2**20
"""The key of the tile's operands: no plan has it."""
FIRST_BOUND = 255
TILE_PLANS = ((63, 0), (31, 2**23))
"""Bounds of the second operand, and biases: no sum of magnitudes reaches 2^24, and with
the bias the lowest bits change too."""
TILE_REPEATS = 256
"""One program repeats the tile this often, in milliseconds."""
PROGRAMS_PER_SM = 4
"""With so many no multiprocessor is left out."""
TILE_ROUNDS = 8
TILE_WARPS = 8
BF16_CAPABILITY = (8, 0)


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Rows, or columns, with wrong elements."""

    first: int
    last: int
    period: int = 0
    """0 if there is none."""
    residues: tuple[int, ...] = ()
    """Which of each *period*."""

    def describe(self, name: str) -> str:
        """Put it in words: ``rows 3 to 195 (3 of every 64)``."""
        if self.first == self.last:
            return f"{name} {self.first}"
        where = f"{name}s {self.first} to {self.last}"
        if not self.period:
            return where
        return f"{where} ({format_ranges(self.residues)} of every {self.period})"


@dataclass(frozen=True, slots=True)
class TileFit:
    """The tiles that fit the wrong elements best, and the share of them that is wrong."""

    rows: int
    columns: int
    count: int
    share: float

    def describe(self) -> str:
        """Put it in words: ``all of 2 tiles of 64 x 64``."""
        share = "all" if self.share == 1 else f"{math.floor(100 * self.share)} %"
        plural = "" if self.count == 1 else "s"
        return f"{share} of {self.count} tile{plural} of {self.rows} x {self.columns}"


@dataclass(frozen=True, slots=True)
class ErrorValues:
    """By how much integers differ from what they should be."""

    has_non_integers: bool
    distinct: int
    low: int
    high: int
    common_divisor: int

    def describe(self) -> str:
        """Put it in words: ``off by 3 values from -512 to 256, multiples of 128``."""
        subject = "those that are integers " if self.has_non_integers else ""
        if self.distinct == 1:
            return f"{subject}off by {self.low}"
        text = f"{subject}off by {self.distinct} values from {self.low} to {self.high}"
        return text if self.common_divisor == 1 else f"{text}, multiples of {self.common_divisor}"


@dataclass(frozen=True, slots=True)
class ErrorExtent:
    """How far the wrong elements of a product reach."""

    elements: int
    rows: IndexSpan
    columns: IndexSpan
    tiles: TileFit | None
    errors: ErrorValues | None
    """None where there are no integers to compare."""

    def describe(self) -> str:
        """Put it in words, for a report to the vendor."""
        plural = "" if self.elements == 1 else "s"
        parts = [f"{self.elements} element{plural}"]
        parts += [self.rows.describe("row"), self.columns.describe("column")]
        parts += [part.describe() for part in (self.tiles, self.errors) if part]
        return ", ".join(parts)


def measure_extent(found: Tensor, expected: Tensor) -> ErrorExtent:
    """Measure where *found* differs from *expected*: matrices on the host that do differ."""
    wrong = view_integers(found).ne(view_integers(expected))
    return ErrorExtent(
        int(wrong.sum()),
        find_span(wrong.any(dim=1).nonzero().flatten().tolist()),
        find_span(wrong.any(dim=0).nonzero().flatten().tolist()),
        _fit_tiles(wrong),
        _collect_error_values(
            found[wrong][:MAX_SAMPLE_ELEMENTS], expected[wrong][:MAX_SAMPLE_ELEMENTS]
        ),
    )


def find_span(places: Sequence[int]) -> IndexSpan:
    """Find the span of *places*, in ascending order, and their period."""
    period = max(PERIODS, key=lambda p: _score_period(places, p))
    if _score_period(places, period) < EVIDENCE_BITS:
        return IndexSpan(places[0], places[-1])
    residues = tuple(sorted({place % period for place in places}))
    return IndexSpan(places[0], places[-1], period, residues)


def _score_period(places: Sequence[int], period: int) -> float:
    """Compute how unlikely, in bits, so few residues are by chance."""
    residues = len({place % period for place in places})
    bits_per_place = math.log2(period / residues)
    return len(places) * bits_per_place - math.log2(math.comb(period, residues))


def _fit_tiles(wrong: Tensor) -> TileFit | None:
    """Find the tile shape with the largest wrong share; of several, the largest."""
    counts = _sum_blocks(wrong, *TILE_SHAPES[0])
    fits = [_measure_fill(counts, *tile) for tile in TILE_SHAPES if _divides(tile, wrong.shape)]
    best = max(fits, key=lambda t: (t.share, t.rows * t.columns), default=None)
    return best if best and best.share >= MIN_TILE_SHARE else None


def _divides(tile: Sequence[int], shape: Sequence[int]) -> bool:
    return not any(size % edge for size, edge in zip(shape, tile, strict=True))


def _measure_fill(counts: Tensor, rows: int, columns: int) -> TileFit:
    """Measure how *counts* of the smallest tiles fill those of *rows* x *columns*."""
    filled = _sum_blocks(counts, rows // TILE_SHAPES[0][0], columns // TILE_SHAPES[0][1])
    touched = int((filled > 0).sum())
    share = int(filled.sum()) / (touched * rows * columns)
    return TileFit(rows, columns, touched, share)


def _sum_blocks(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Sum over blocks of *rows* x *columns*; drop the rest at the edges."""
    high, wide = matrix.shape[0] // rows, matrix.shape[1] // columns
    whole = matrix[: high * rows, : wide * columns]
    return whole.reshape(high, rows, wide, columns).sum(dim=(1, 3))


def _collect_error_values(found: Tensor, expected: Tensor) -> ErrorValues | None:
    import torch

    whole = _mask_integers(found) & _mask_integers(expected)
    errors = torch.unique(found[whole].long() - expected[whole].long())
    errors = errors[errors != 0]  # as where only the sign of a zero differs
    if not len(errors):
        return None
    common_divisor = fold_integers(errors.abs(), torch.gcd)
    low, high = int(errors[0]), int(errors[-1])
    return ErrorValues(not bool(whole.all()), len(errors), low, high, common_divisor)


def _mask_integers(values: Tensor) -> Tensor:
    exact = values.double()
    return (exact == exact.round()) & (exact.abs() < INTEGER_LIMIT)


@dataclass(frozen=True, slots=True)
class FaultySm:
    """A multiprocessor that computed a tile wrongly."""

    sm: int
    elements: int
    wrong_bits: int

    def describe(self) -> str:
        """Put it in words: ``17 (12 elements, bits 3, 12)``."""
        bits = format_ranges([bit for bit in range(32) if self.wrong_bits >> bit & 1])
        return f"{self.sm} ({self.elements} elements, bits {bits})"


@dataclass(frozen=True, slots=True)
class SmReport:
    """Which multiprocessors computed wrongly, of those that were seen."""

    faulty: tuple[FaultySm, ...]
    seen: int
    units: int
    """Multiprocessors of the GPU."""

    def describe(self) -> str:
        """Put it in words: which of them, of how many."""
        names = ", ".join(suspect.describe() for suspect in self.faulty) or "none"
        return f"{names} of the {self.seen} seen of {self.units}"


@dataclass(frozen=True, slots=True)
class Tile:
    """Operands and their one right product, on the host."""

    a: Tensor
    b: Tensor
    expected: Tensor


TileRunner = Callable[[Tile, int], "Tensor"]
"""Computes a tile in so many programs. Returns a row for each: where it ran, how many
elements were wrong, which bits differed; -1 for a program that did not run."""


@dataclass(frozen=True, slots=True)
class TileKernel:
    """What computes tiles on a device, if anything does."""

    run: TileRunner | None = None
    failure: str = ""
    """Why Triton cannot, in its own words."""


@cache
def load_tile_kernel(device: torch.device) -> TileKernel:
    """Compile the kernel for *device*, in seconds, and run it once."""
    import torch

    kernels = load_kernels(device)
    if kernels.module is None or torch.cuda.get_device_capability(device) < BF16_CAPABILITY:
        return TileKernel()
    run = partial(run_tile, kernels.module, device, TILE_REPEATS)
    failure = try_launch(partial(run, make_tile(*TILE_PLANS[0]), 1), device)
    return TileKernel(failure=failure) if failure else TileKernel(run)


def prepare_kernels(ctx: Context, device: torch.device) -> Iterator[Coverage]:
    """Compile all kernels for *device* before they are needed; report those that cannot be."""
    if failure := load_kernels(device).failure:
        text = "products are compared by torch, and no multiprocessor can be named, since Triton"
        yield Coverage(ctx.device.part, f"{text} compiles no kernel here: {failure}")
    elif failure := load_tile_kernel(device).failure:
        text = "no multiprocessor can be named, since Triton does not compile its kernel"
        yield Coverage(ctx.device.part, f"{text}: {failure}")


def find_faulty_sms(device: torch.device) -> SmReport | None:
    """Compute the same on all multiprocessors of *device*; None if that is not possible."""
    import torch

    run = load_tile_kernel(device).run
    if run is None:
        return None
    return examine_sms(run, torch.cuda.get_device_properties(device).multi_processor_count)


def examine_sms(runner: TileRunner, units: int) -> SmReport:
    """Test all *units*, with enough programs that each runs several."""
    tiles = [make_tile(bound, bias) for bound, bias in TILE_PLANS]
    logs = [runner(tile, PROGRAMS_PER_SM * units) for _ in range(TILE_ROUNDS) for tile in tiles]
    return sum_by_sm((row for log in logs for row in log.tolist()), units)


def sum_by_sm(rows: Iterable[Sequence[int]], units: int) -> SmReport:
    """Add up the errors of each multiprocessor."""
    wrong: dict[int, tuple[int, int]] = {}
    for sm, elements, bits in rows:
        before = wrong.get(sm, (0, 0))
        wrong[sm] = before[0] + elements, before[1] | bits % 2**32
    wrong.pop(-1, None)
    faulty = (FaultySm(sm, *wrong[sm]) for sm in sorted(wrong) if wrong[sm][0])
    return SmReport(tuple(faulty), len(wrong), units)


def make_tile(bound: int, bias: int) -> Tile:
    """Make the tile whose second operand lies within +-*bound*, as `exact` plans."""
    import torch

    a = make_integers(TILE_KEY, range(TILE_EDGE), TILE_DEPTH, FIRST_BOUND, "cpu")
    b = make_integers(TILE_KEY + 1, range(TILE_DEPTH), TILE_EDGE, bound, "cpu")
    if bias:
        a[:, 0], b[0] = 2**12, bias >> 12
    return Tile(a.to(torch.bfloat16), b.to(torch.bfloat16), (a @ b).float())


def run_tile(
    kernels: ModuleType, device: torch.device, repeats: int, tile: Tile, programs: int
) -> Tensor:
    """Compute *tile* in *programs* programs on *device*: a `TileRunner`."""
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
        step=TILE_STEP,
        num_warps=TILE_WARPS,
    )
    return log.cpu()
