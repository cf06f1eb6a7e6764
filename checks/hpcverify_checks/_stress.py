"""
The stress phase: products of random normal numbers, under steady load and load steps.

Exact plans multiply small integers, which toggle fewer wires and draw less power than
the numbers of daily work: faults of power and timing belong here. The operands are
bell-shaped, sums of the bytes of a hash, so that they are the same bits everywhere;
all bits of a significand take part. Nobody knows the right product to the last bit, so
a part is compared with its own first one, and the first ones with each other.

What that rests on. cuBLAS gives the same bits at every run of one version on GPUs of
the same architecture and number of SMs, while one stream is active ("Results
reproducibility" in its guide): one stream is used, a GPU that departs from its own
first product computed wrongly, and like GPUs are put to the vote (see `_vote`).
Libraries for CPUs give the same bits for a fixed number of threads and one code path
(oneMKL, "Reproducibility Conditions"): each core computes in one thread, pinned to it,
with operands and outputs that stay where they are, and is compared with itself. Nothing
is promised from one core to the next, so cores that differ are worth no more than a
warning.

The load is steady at first, which tells how long a product takes, and is then switched
on and off at multiples of a period, on all devices at once (see `_soak`): a supply that
sags does so at the edges. A fault that a part repeats every time agrees with itself: it
is for the exact plans to find, and for the vote.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpcverify.check import Context
from hpcverify.model import CheckItem, Coverage, Finding, Measurement
from hpcverify.telemetry import cpu
from hpcverify_checks._benches import DeviceTask, list_families
from hpcverify_checks._bits import compute_digest, hash_places, view_words
from hpcverify_checks._cores import format_ranges, pick_cores, run_on_each
from hpcverify_checks._exact import HOST_DEVICE, PAD_DEPTH, Shape, view_shifted
from hpcverify_checks._hunt import (
    HARDWARE_SEAMS,
    HuntResult,
    ProductBench,
    ProductJob,
    ProductSeams,
    WrongProduct,
    count_outputs,
    hunt,
    poison,
)
from hpcverify_checks._mismatch import investigate_corruption
from hpcverify_checks._soak import find_next_edge
from hpcverify_checks._torch import use_float32_precision
from hpcverify_checks._vote import CORES_GROUP, OWN_REFERENCE

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CPU_SHAPE = Shape(size=384, depth=512)
"""A few milliseconds on one core, so that a burst holds several."""
GPU_SHAPE = Shape(size=4096, depth=8192)
SLOW_SHAPE = Shape(size=4096, depth=2048)
"""For the types without tensor cores, so that a product takes a few milliseconds."""
SLOW_DTYPES = frozenset({"fp32", "fp64"})
MAX_CORES = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""
FIRST_PRODUCTS = 2
"""First products of a pair that must have the same bits."""
OPERAND_PAIRS = 2
"""Of operands, which take turns: a tile that is not written shows."""
STEADY_SHARE = 0.5
PERIOD_SECONDS = (0.01, 0.04, 0.1)
"""Of the square waves, in seconds."""
DUTY_CYCLE = 0.5
"""The share of a period in which the load is on: bursts of 5, 20 and 50 ms."""
PLAN_NAME = "normal"

FIELD_BITS = 8
"""Of a hash's fields, all of which are summed."""
LOW_BITS = 43
"""Uniform bits below that sum, so that a double just holds the whole: 53 bits."""
BELL_MEAN: int = (64 // FIELD_BITS) * (2**FIELD_BITS - 1) << (LOW_BITS - 1)
BELL_SCALE = 2.0**-51
"""Makes the standard deviation, which is 209 x 2^43, 0.8."""
INT8_SHIFT = 46
"""Makes it 26, and the largest magnitude 128."""
BLOCK_ROWS = 512
"""Rows made at a time, so that 64-bit copies of large operands stay small."""


def make_bell_integers(key: int, rows: range, columns: int, device: torch.device | str) -> Tensor:
    """Make these *rows* of a matrix of bell-shaped integers below 2^53, as int64."""
    fields = hash_places(2 * key, rows, columns, device)
    low = hash_places(2 * key + 1, rows, columns, device) & (2**LOW_BITS - 1)
    made: Tensor = low - BELL_MEAN
    for bit in range(0, 64, FIELD_BITS):
        made += ((fields >> bit) & (2**FIELD_BITS - 1)) << LOW_BITS
    return made


def make_matrix(
    key: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Make a matrix of bell-shaped numbers: the same bits wherever this runs."""
    import torch

    out = torch.empty(rows, columns, dtype=dtype, device=device)
    for start in range(0, rows, BLOCK_ROWS):
        block = range(start, min(rows, start + BLOCK_ROWS))
        made = _round_to(dtype, make_bell_integers(key, block, columns, device))
        out[block.start : block.stop] = made
    return out


def _round_to(dtype: torch.dtype, made: Tensor) -> Tensor:
    """Round to nearest, by way of fp32 for what is narrower; int8 is rounded down."""
    import torch

    if dtype == torch.int8:
        return (made >> INT8_SHIFT).to(dtype)
    exact = made.double() * BELL_SCALE
    return exact if dtype == torch.float64 else exact.float().to(dtype)


def make_operands(task: DeviceTask, pair: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """
    Make the operands of a *pair*, which differ with the seed of the run.

    They are as deep as `view` has them, A by rows, and B as the library wants it.
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
class UnshiftedBench(ProductBench):
    """A bench whose operands are never moved: moved ones would be rounded otherwise."""

    def get_job(self, number: int) -> tuple[ProductJob, int]:
        """Say which job the product *number* is, and that it is not shifted."""
        return self.jobs[number % len(self.jobs)], 0


@dataclass(slots=True)
class LoadSchedule:
    """Says when it is enough; until then it switches the load on and off."""

    until: float
    """On the monotonic clock, like all that follows."""
    period: float = 0.0
    """Of the square wave, in seconds; 0 is steady load."""
    burst_products: int = 1
    """Products while the load is on."""
    drain_seconds: float = 0.0
    """Seconds for which the device is at work after it was told the last of them."""
    edges: int = 0
    """How often the load was switched on."""
    _since: int = field(default=0, repr=False)

    @classmethod
    def plan_wave(cls, seconds: float, period: float, pace: float, batch_size: int) -> LoadSchedule:
        """Plan bursts of products that take *pace* seconds each, *page* ahead."""
        burst = max(batch_size, round(DUTY_CYCLE * period / pace))
        return cls(time.monotonic() + seconds, period, burst, batch_size * pace)

    def __call__(self, products: int) -> bool:
        """Let the load be off if a burst is over, and say whether it is enough."""
        now = time.monotonic()
        if self.period and products - self._since >= self.burst_products:
            edge = find_next_edge(now + self.drain_seconds, self.period)
            if edge >= self.until:
                return True
            time.sleep(edge - now)
            self.edges += 1
            self._since = products
        return time.monotonic() >= self.until

    def describe(self) -> str:
        """Say what kind of load it was."""
        return f"load steps every {self.period * 1e3:g} ms" if self.period else "steady"


@dataclass(frozen=True, slots=True)
class StressResult:
    """What one part or core did, with one type of operands."""

    where: str
    digest: str
    """Of its first products."""
    hunts: tuple[HuntResult, ...]
    edges: int = 0
    corruption: Finding | None = None

    @property
    def products(self) -> int:
        """How many were compared."""
        return sum(bag.products for bag in self.hunts)

    @property
    def seconds(self) -> float:
        """How long that took."""
        return sum(bag.seconds for bag in self.hunts)

    @property
    def mismatched_words(self) -> int:
        """Words of 64 bits that were wrong."""
        return sum(wrong.words for bag in self.hunts for wrong in bag.wrong)


def stress(
    ctx: Context, device: torch.device, seconds: float, seams: ProductSeams = HARDWARE_SEAMS
) -> Iterator[CheckItem]:
    """
    Compare products of normal numbers with the first of their kind, for *seconds*.

    All types that the device has units for have their turn; on a CPU, all cores work
    at the same time, or as many as can, and those left out come in another run.
    """
    on_cpu = ctx.device.kind == "cpu"
    families = list_families(device)
    spells: list[StressResult] = []
    for family in families:
        shape = SLOW_SHAPE if family.name in SLOW_DTYPES else GPU_SHAPE
        shape = CPU_SHAPE if on_cpu else shape
        task = DeviceTask(ctx, family, shape, device, seams, ctx.seed)
        done: list[StressResult] = []
        with use_float32_precision(family.precision):
            for one in stress_device(task, seconds / len(families)):
                done.append(one)
                if one.corruption:  # a part that errs may not live to tell of it later
                    yield one.corruption
        spells += done
        yield from (report_cores if on_cpu else report_gpu)(task, done)
    yield from sum_by_part(spells)


def stress_device(task: DeviceTask, seconds: float) -> Iterator[StressResult]:
    """Stress the GPU, or each core of the CPU by itself."""
    pairs = [make_operands(task, pair, task.device) for pair in range(OPERAND_PAIRS)]
    if task.ctx.device.kind != "cpu":
        yield stress_part(task, pairs, seconds, task.ctx.device.part)
        return
    cores = pick_cores(cpu.read_cores().allowed, MAX_CORES, task.ctx.rotation)
    work = partial(stress_core, task, pairs, seconds)
    yield from run_on_each(cores, work)


def stress_core(
    task: DeviceTask, pairs: Sequence[tuple[Tensor, Tensor]], seconds: float, core: int
) -> StressResult:
    """Stress one core of the CPU."""
    return stress_part(task, pairs, seconds, f"cpu{core}")


def stress_part(
    task: DeviceTask, pairs: Sequence[tuple[Tensor, Tensor]], seconds: float, where: str
) -> StressResult:
    """Stress the part or core *where*, by steady load and then by square waves."""
    bench, odd = prepare_bench(task, pairs, where)
    first = " ".join(f"{job.digest:#018x}" for job in bench.jobs)
    if odd:
        made = HuntResult(FIRST_PRODUCTS * len(pairs), 0.0, (odd[0].wrong,))
        return StressResult(where, first, (made,), corruption=odd[0].make_finding(bench))
    load = LoadSchedule(time.monotonic() + STEADY_SHARE * seconds)
    bags, edges = [hunt(bench, load)], 0
    pace = bags[0].seconds / bags[0].products
    share = (1 - STEADY_SHARE) * seconds / len(PERIOD_SECONDS)
    for period in PERIOD_SECONDS:
        if bags[-1].wrong:
            break
        load = LoadSchedule.plan_wave(share, period, pace, bench.batch_size)
        bags.append(hunt(bench, load))
        edges += load.edges
    found = None
    if wrong := bags[-1].wrong:
        against = f"its {OWN_REFERENCE}, which it made again alike"
        found = make_stress_finding(bench, wrong[0], load.describe(), against)
    return StressResult(where, first, tuple(bags), edges, found)


@dataclass(frozen=True, slots=True)
class UnstableProduct:
    """One of the first products, which was not made alike again."""

    wrong: WrongProduct
    others_agree: bool
    """Whether the other two are alike."""

    def make_finding(self, bench: ProductBench) -> Finding:
        """Say of it what it was compared with."""
        others = "alike" if self.others_agree else "different each time"
        against = f"the same product made twice more, {others}"
        return make_stress_finding(bench, self.wrong, "before the load", against)


def prepare_bench(
    task: DeviceTask, pairs: Sequence[tuple[Tensor, Tensor]], where: str
) -> tuple[ProductBench, list[UnstableProduct]]:
    """
    Make the first products, and a bench that compares the later ones with them.

    Each is made twice, and if the two differ a third time, so that a fault in the very
    first is not taken for the truth that all later ones contradict.
    """
    jobs: list[ProductJob] = []
    odd: list[UnstableProduct] = []
    for pair, (a, b) in enumerate(pairs):
        first, second = (_make_product(task, a, b) for _ in range(FIRST_PRODUCTS))
        if _count_unequal(first, second):
            third = _make_product(task, a, b)
            wrong, other = (first, second) if _count_unequal(first, third) else (second, first)
            words_wrong = _count_unequal(wrong, third)
            agreed = not _count_unequal(other, third)
            odd.append(UnstableProduct(WrongProduct(pair, words_wrong, wrong), agreed))
            first = third
        remake = partial(make_operands, task, pair, HOST_DEVICE)
        name, kept = f"{PLAN_NAME} {pair}", compute_digest(first.cpu())
        jobs.append(ProductJob(name, a, b, first, kept, remake, task.draw))
    outputs = [task.make_output() for _ in range(count_outputs(len(jobs), task.device))]
    name, seed = task.family.name, task.ctx.seed
    bench = UnshiftedBench(where, name, tuple(jobs), tuple(outputs), seed, task.seams)
    return bench, odd


def _make_product(task: DeviceTask, a: Tensor, b: Tensor) -> Tensor:
    product = task.make_output()
    poison(product)
    task.seams.multiply(*view_shifted(a, b, 0), product)
    return product


def _count_unequal(one: Tensor, other: Tensor) -> int:
    """Count the words in which two products differ."""
    return int((view_words(one) != view_words(other)).sum())


def make_stress_finding(
    bench: ProductBench, wrong: WrongProduct, load: str, against: str
) -> Finding:
    """Say of a *wrong* product what it was compared with, and under what load."""
    found = investigate_corruption(bench, wrong)
    text = f"{found.text}; random normal numbers, {load}, compared with {against}"
    evidence = {**found.evidence, "reference": OWN_REFERENCE, "load": load}
    return replace(found, text=text, evidence=evidence)


def report_gpu(task: DeviceTask, spells: Sequence[StressResult]) -> Iterator[CheckItem]:
    """Yield what a GPU did with one type, and its answer for the vote."""
    for one in spells:
        yield Coverage(one.where, f"{task.family.name}: {describe_stress(task, spells)}")
        yield make_answer(task, one, name_vote_group(task))


def name_vote_group(task: DeviceTask) -> str:
    """Say which GPUs must give the same bits, with which software, to what question."""
    import torch

    where = task.ctx.device.part
    facts = next((p.facts for p in task.ctx.inventory.parts if p.id == where), {})
    shape = f"{task.shape.size} x {task.shape.depth}, draw {task.draw}"
    units = ""
    if task.device.type == "cuda":
        properties = torch.cuda.get_device_properties(task.device)
        units = f"{properties.multi_processor_count} SMs"
    known = (
        facts.get("name", ""),
        facts.get("compute_capability", ""),
        units,
        f"driver {facts.get('driver', '')}",
        f"torch {torch.__version__}",
        shape,
    )
    return ", ".join(known)


def make_answer(task: DeviceTask, one: StressResult, group: str) -> Finding:
    """Put the first products of *one* part to the vote of its *group*."""
    name = task.family.name
    text = f"{name}: its first products of random normal numbers"
    evidence = {"group": group, "name": name, "digest": one.digest}
    return Finding("answer", one.where, text, evidence)


def report_cores(task: DeviceTask, spells: Sequence[StressResult]) -> Iterator[CheckItem]:
    """Yield what the cores did with one type; if they differ, their answers too."""
    differ = len({one.digest for one in spells}) > 1
    cores = format_ranges([int(one.where.removeprefix("cpu")) for one in spells])
    alike = "not all gave" if differ else "all gave"
    yield Coverage(
        task.ctx.device.part,
        f"{task.family.name} on cores {cores}, which {alike} the same first products: "
        f"{describe_stress(task, spells)}",
    )
    if differ:
        yield from (make_answer(task, one, CORES_GROUP) for one in spells)


def describe_stress(task: DeviceTask, spells: Sequence[StressResult]) -> str:
    """Say in words what was exercised, and how."""
    products = sum(one.products for one in spells)
    size, depth = task.shape.size, task.shape.depth
    seconds = sum(one.seconds for one in spells)
    edges = sum(one.edges for one in spells)
    bursts = ", ".join(f"{DUTY_CYCLE * period * 1e3:g}" for period in PERIOD_SECONDS)
    return (
        f"{products} products of {size} x {depth} x {size} random normal numbers "
        f"({products * task.shape.operations:.3g} operations) compared bit by bit with "
        f"the first ones in {seconds:.1f} s; load switched on {edges} times, for "
        f"{bursts} ms"
    )


def sum_by_part(spells: Sequence[StressResult]) -> Iterator[Measurement]:
    """Add up, for each part or core, what was done with all types."""
    for where in dict.fromkeys(one.where for one in spells):
        mine = [one for one in spells if one.where == where]
        products = sum(one.products for one in mine)
        mismatched = sum(one.mismatched_words for one in mine)
        yield Measurement("stress.products", products, "", where)
        yield Measurement("stress.mismatched", mismatched, "", where)
