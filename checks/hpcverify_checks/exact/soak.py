"""
A load that is compared with itself: products again and again, steady and in square waves.

The operands are bell-shaped, sums of the bytes of a hash, so that they are the same bits
everywhere. They use all bits of a significand, and toggle more wires than the small
integers of exact plans, to find faults of power and timing. The right product is not known
to the last bit, so a part is compared with its own first product, and the first products of
parts of a kind with each other.

cuBLAS gives the same bits in every run of one version on GPUs of the same architecture and
number of SMs, while one stream is active ("Results reproducibility" in its guide). So one
stream is used, a GPU that differs from its own first product computed wrongly, and like
GPUs vote (see `vote`).

The load switches at multiples of a period of CLOCK_MONOTONIC, which all processes of a
machine share: the edges of all devices coincide without communication, and a weak supply
sags at the edges. A part that errs the same way every time agrees with itself: the exact
plans and the vote find that.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify_checks.exact.bits import compute_digest, format_word, hash_places
from hpcverify_checks.exact.investigation import investigate_corruption
from hpcverify_checks.exact.mismatch import count_unequal
from hpcverify_checks.exact.product_loop import (
    HuntResult,
    ProductBench,
    ProductJob,
    ProductTask,
    WrongProduct,
    hunt,
    ignore_batch,
    poison,
)
from hpcverify_checks.exact.products import HOST_DEVICE, PAD_DEPTH, iter_blocks, view_shifted
from hpcverify_checks.exact.vote import UNWITNESSED_CODE, Ballot, identify_kind, make_answer
from hpcverify_checks.node.stalls import STALL, StallMeter

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks.exact.bits import DeviceLike

OWN_REFERENCE = "own first product"
"""What a part is compared with here, which is not proven."""
MISMATCH_METRIC = "stress.mismatched"
SOAK_METRICS = {
    # Where all parts agree, the words are disputed instead.
    MISMATCH_METRIC: hv.Metric(
        "", "high", "64-bit words that differed from the part's own first product"
    ).fail(
        high=0,
        remedy=hv.Remedy.REPLACE,
        conclusive=True,
        source="the same product of the same part has the same bits",
    ),
    "stress.disputed": hv.Metric(
        "", "high", "words in which all parts contradict their own first product alike"
    ),
    "stress.stall": STALL,
    "stress.products": hv.Metric("", "low", "products compared with the part's own first"),
}
"""Every check that soaks a part has these, so that a fault counts the same in each."""
FIRST_PRODUCTS = 2
"""First products of a pair that must have the same bits."""
OPERAND_PAIRS = 2
"""The pairs take turns, so that a tile that is not written shows."""
DUTY_CYCLE = 0.5
"""The share of a square wave's period in which the load is on."""
MAX_STEADY_SECONDS = 1200.0
RAMP_SECONDS = 1.0
"""From then on sampled power and utilization (means over up to 1 s) are those of the load only."""
LAG_SECONDS = 0.5
"""A sample dated t is read at most this much later: eight GPUs take time to read."""

FIELD_BITS = 8
"""A hash has fields of so many bits, all of which are summed."""
LOW_BITS = 43
"""Uniform bits below that sum: a double just holds the whole 53 bits."""
BELL_MEAN: int = (64 // FIELD_BITS) * (2**FIELD_BITS - 1) << (LOW_BITS - 1)
BELL_SCALE = 2.0**-51
"""Makes the standard deviation, which is 209 x 2^43, 0.8."""
INT8_SHIFT = 46
"""Makes it 26, and the largest magnitude 128."""

Pair = tuple["Tensor", "Tensor"]
"""Two operands for `view_shifted`."""


def make_bell_integers(key: int, rows: range, columns: int, device: DeviceLike) -> Tensor:
    """Make these *rows* of a matrix of bell-shaped integers below 2^53, as int64."""
    fields = hash_places(2 * key, rows, columns, device)
    low = hash_places(2 * key + 1, rows, columns, device) & (2**LOW_BITS - 1)
    made: Tensor = low - BELL_MEAN
    for bit in range(0, 64, FIELD_BITS):
        made += ((fields >> bit) & (2**FIELD_BITS - 1)) << LOW_BITS
    return made


def make_matrix(
    key: int, rows: int, columns: int, dtype: torch.dtype, device: DeviceLike
) -> Tensor:
    """Make a matrix of bell-shaped numbers: the same bits on every device."""
    import torch

    out = torch.empty(rows, columns, dtype=dtype, device=device)
    for block in iter_blocks(rows):
        made = _round_to(dtype, make_bell_integers(key, block, columns, device))
        out[block.start : block.stop] = made
    return out


def _round_to(dtype: torch.dtype, made: Tensor) -> Tensor:
    """Round to nearest, through fp32 for narrower types; int8 is rounded down."""
    import torch

    if dtype == torch.int8:
        return (made >> INT8_SHIFT).to(dtype)
    exact = made.double() * BELL_SCALE
    return exact if dtype == torch.float64 else exact.float().to(dtype)


def make_normal_pair(task: ProductTask, pair: int, device: DeviceLike) -> Pair:
    """
    Make the operands of a *pair*, which depend on the draw of the *task*.

    They have the padded depth of `view_shifted`; B is stored as the library wants it.
    """
    import torch

    dtype = getattr(torch, task.family.operand)
    size, depth = task.shape.size, task.shape.depth + PAD_DEPTH
    key = 2 * (OPERAND_PAIRS * task.draw + pair)
    a = make_matrix(key, size, depth, dtype, device)
    if task.family.by_columns:
        return a, make_matrix(key + 1, size, depth, dtype, device).T
    return a, make_matrix(key + 1, depth, size, dtype, device)


@dataclass(frozen=True, slots=True)
class OperandSource:
    """Makes pairs of operands: the same bits every time and everywhere."""

    name: str
    text: str
    """The operands in words."""
    make: Callable[[ProductTask, int, DeviceLike], Pair]
    """Makes the pair of this number on a device."""
    rounds: bool = False
    """Whether sums of their products are rounded."""


NORMAL_NUMBERS = OperandSource("normal", "random normal numbers", make_normal_pair, rounds=True)


class Stretch(Struct, frozen=True):
    """A span of one kind of load, on the monotonic clock."""

    start: float
    end: float
    period: float = 0.0
    """The period of the square wave, in seconds; 0 is steady load."""

    def describe(self) -> str:
        """Name the kind of load."""
        return f"load steps every {self.period * 1e3:g} ms" if self.period else "steady load"


def plan_stretches(
    start: float, seconds: float, wave_share: float, periods: Sequence[float]
) -> tuple[Stretch, ...]:
    """
    Plan a load of *seconds*: steady, waves of all *periods*, steady.

    The waves come when the parts are warm and their circuits slowest. The steady load
    after them shows how heat slowed the part, which then cools from it.
    """
    waving = wave_share * seconds if periods else 0.0
    half = (seconds - waving) / 2
    pieces = math.ceil(half / MAX_STEADY_SECONDS)
    steady = [(half / pieces, 0.0)] * pieces if pieces else []
    waves = [(waving / len(periods), period) for period in periods if waving]
    plan = [*steady, *waves, *steady]
    ends = accumulate((length for length, _ in plan), initial=start)
    return tuple(
        Stretch(begin, end, period)
        for (begin, end), (_, period) in zip(pairwise(ends), plan, strict=True)
    )


class StretchResult(Struct, frozen=True):
    """What was done in a stretch."""

    period: float
    began: float
    """When the first product was sent, on the monotonic clock."""
    ended: float
    products: int = 0
    flop: float = 0.0
    mismatched_words: int = 0
    """Words of 64 bits that differed from the first product."""
    edges: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended - self.began

    def contains(self, t: float) -> bool:
        """Whether a sample taken at *t* shows this load and nothing else."""
        return self.began + RAMP_SECONDS <= t <= self.ended - LAG_SECONDS


@dataclass(slots=True)
class LoadSchedule:
    """Decides when a stretch is over; until then it switches the load on and off."""

    stretch: Stretch
    burst_products: int = 1
    """Products while the load is on."""
    drain_seconds: float = 0.0
    """Seconds for which the device still works after the last product was sent."""
    edges: int = 0
    _since: int = field(default=0, repr=False)

    @classmethod
    def plan(cls, stretch: Stretch, pace: float, batch_size: int) -> LoadSchedule:
        """Plan for products that take *pace* seconds each and are sent in batches."""
        if not stretch.period:
            return cls(stretch)
        burst = round(DUTY_CYCLE * stretch.period / pace) if pace else 0
        return cls(stretch, max(batch_size, burst), batch_size * pace)

    def __call__(self, products: int) -> bool:
        """Pause the load after each burst; return whether the stretch is over."""
        now = time.monotonic()
        if self.stretch.period and products - self._since >= self.burst_products:
            edge = find_next_edge(now + self.drain_seconds, self.stretch.period)
            if edge >= self.stretch.end:
                return True
            time.sleep(edge - now)
            self.edges += 1
            self._since = products
        return time.monotonic() >= self.stretch.end


def find_next_edge(now: float, period: float) -> float:
    """Find when the load is next switched on: at a multiple of *period*."""
    return (math.floor(now / period) + 1) * period


@dataclass(slots=True)
class PartSoak:
    """One part or core under load with one type of operands, and its results."""

    task: ProductTask
    bench: ProductBench
    operands: str
    """A description for people."""
    is_witnessed: bool = True
    """Whether the host found the digests that the part took of its first products."""
    done: list[StretchResult] = field(default_factory=list[StretchResult])
    corruption: hv.Finding | None = None
    """The first wrong product, which ends the soak."""

    @classmethod
    def prepare(
        cls, task: ProductTask, part_id: str, source: OperandSource, pairs: Sequence[Pair]
    ) -> PartSoak:
        """
        Make the first products of *pairs*, and a bench that compares the later ones.

        Each is made twice, and a third time if the two differ, so that an error in the
        very first does not make all later ones look wrong.
        """
        jobs: list[ProductJob] = []
        odd: list[tuple[WrongProduct, str]] = []
        unwitnessed: list[int] = []
        for pair, (a, b) in enumerate(pairs):
            first, second = (_make_product(task, a, b) for _ in range(FIRST_PRODUCTS))
            if count_unequal(first, second):
                third = _make_product(task, a, b)
                wrong, other = (first, second) if count_unequal(first, third) else (second, first)
                others = "different each time" if count_unequal(other, third) else "alike"
                wrong_words = count_unequal(wrong, third)
                odd.append((WrongProduct(pair, wrong_words, wrong), others))
                first = third
            remake = partial(source.make, task, pair, HOST_DEVICE)
            digest = compute_digest(first)
            if compute_digest(first.cpu()) != digest:
                unwitnessed.append(pair)
            name = f"{source.name} {pair}"
            jobs.append(ProductJob(name, a, b, first, digest, remake, task.draw, source.rounds))
        bench = dataclasses.replace(task, shifts=(0,)).make_bench(part_id, tuple(jobs))
        soak = cls(task, bench, source.text, is_witnessed=not unwitnessed)
        if odd:
            (wrong_product, others), now = odd[0], time.monotonic()
            made = FIRST_PRODUCTS * len(jobs)
            soak.done.append(StretchResult(0.0, now, now, made, 0.0, wrong_product.words))
            against = f"the same product made twice more, {others}"
            soak.report_wrong_product(wrong_product, "before the load", against)
        return soak

    @property
    def text(self) -> str:
        """The products, in words."""
        size, depth = self.task.shape.size, self.task.shape.depth
        return f"products of {size} x {depth} x {size} {self.operands}"

    @property
    def digest(self) -> str:
        """The digests of the first products."""
        return " ".join(format_word(job.digest) for job in self.bench.jobs)

    def run(self, stretch: Stretch, note: Callable[[int], object] = ignore_batch) -> StretchResult:
        """Load the part until the *stretch* ends, or a product differs from the first."""
        time.sleep(max(0.0, stretch.start - time.monotonic()))
        began = time.monotonic()
        load = LoadSchedule.plan(stretch, self.pace, self.bench.batch_size)
        late = began >= stretch.end
        doing = f"{self.task.family.name} products, {stretch.describe()},"
        hunted = HuntResult(0, 0.0)
        with hv.operation(doing, self.task.ctx.device):
            if not late:
                with self.task.stalls.time_batches(self.task.device) as tick:
                    hunted = hunt(self.bench, load, lambda n: (tick(n), note(n)))
        self.done.append(
            StretchResult(
                stretch.period,
                began,
                time.monotonic(),
                hunted.products,
                float(hunted.products * self.task.shape.operations),
                sum(wrong.words for wrong in hunted.wrong),
                0 if late else load.edges,
            )
        )
        if hunted.wrong:
            against = f"its {OWN_REFERENCE}, which it made twice with the same bits"
            if stretch.period:
                against += "; a sagging power supply does this too: check it"
            self.report_wrong_product(hunted.wrong[0], stretch.describe(), against)
        return self.done[-1]

    @property
    def pace(self) -> float:
        """Seconds per product under the latest steady load; 0 without one."""
        steady = [d for d in self.done if d.products and not d.period]
        return steady[-1].seconds / steady[-1].products if steady else 0.0

    def report_wrong_product(self, wrong: WrongProduct, load: str, against: str) -> None:
        """Report a *wrong* product, what it was compared with, and under what load."""
        finding = investigate_corruption(self.bench, wrong)
        self.corruption = replace(
            finding,
            text=f"{finding.text}; {self.operands}, {load}, compared with {against}",
            evidence={**finding.evidence, "reference": OWN_REFERENCE, "load": load},
            data={**finding.data, "metric": MISMATCH_METRIC},
        )

    def make_answer(self, group: str) -> hv.Finding:
        """Make the part's vote, its first products, in its *group*, if the host bears it out."""
        name = self.task.family.name
        text = f"{name}: its first products of {self.operands}"
        if not self.is_witnessed:
            text += (
                " have another digest on the host than on the part, so it has no vote: a copy, a "
                "core of the host or its memory erred, or the part that took the digest: run "
                "cpu_units and host_memory"
            )
            return hv.Finding(UNWITNESSED_CODE, self.bench.part_id, text)
        return make_answer(self.bench.part_id, text, Ballot(group, name, self.digest))


def _make_product(task: ProductTask, a: Tensor, b: Tensor) -> Tensor:
    product = task.make_output()
    poison(product)
    task.seams.multiply(*view_shifted(a, b, 0), product)
    return product


def name_vote_group(task: ProductTask) -> str:
    """Name the GPUs, software and products that must give the same bits."""
    import torch

    kind = identify_kind(task.ctx.inventory, task.ctx.device.part)
    if task.device.type == "cuda":
        properties = torch.cuda.get_device_properties(task.device)
        kind += f", {properties.multi_processor_count} SMs"
    size, depth = task.shape.size, task.shape.depth
    return f"{kind}, torch {torch.__version__}, {size} x {depth}, draw {task.draw}"


def count_by_part(soaks: Sequence[PartSoak]) -> Iterator[hv.Measurement]:
    """Add up the results with all types for each part or core."""
    for part_id in dict.fromkeys(soak.bench.part_id for soak in soaks):
        done = [d for soak in soaks if soak.bench.part_id == part_id for d in soak.done]
        yield hv.Measurement("stress.products", sum(d.products for d in done), "", part_id)
        yield hv.Measurement(MISMATCH_METRIC, sum(d.mismatched_words for d in done), "", part_id)
        meters = [soak.task.stalls for soak in soaks if soak.bench.part_id == part_id]
        stood = [meter.longest for meter in meters if not math.isnan(meter.longest)]
        yield from StallMeter(max(stood, default=math.nan)).report(part_id, "stress.stall")
