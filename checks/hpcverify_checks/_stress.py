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
from hpcverify.model import Covered, Finding, Found, Measurement
from hpcverify.telemetry import cpu
from hpcverify_checks._benches import Task, families_of
from hpcverify_checks._bits import digest, hashed, words
from hpcverify_checks._cores import listed, on_each, turn
from hpcverify_checks._exact import HOST, PAD, Shape, view
from hpcverify_checks._hunt import (
    HARDWARE,
    Bag,
    Bench,
    Job,
    Seams,
    Wrong,
    hunt,
    outputs_for,
    poison,
)
from hpcverify_checks._mismatch import corruption
from hpcverify_checks._soak import next_edge
from hpcverify_checks._torch import float32_as
from hpcverify_checks._vote import CORES, OWN

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CPU_SHAPE = Shape(size=384, depth=512)
"""A few milliseconds on one core, so that a burst holds several."""
GPU_SHAPE = Shape(size=4096, depth=8192)
SLOW_SHAPE = Shape(size=4096, depth=2048)
"""For the types without tensor cores, so that a product takes a few milliseconds."""
SLOW = frozenset({"fp32", "fp64"})
AT_ONCE = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""
ALIKE = 2
"""First products of a pair that must have the same bits."""
PAIRS = 2
"""Of operands, which take turns: a tile that is not written shows."""
STEADY_SHARE = 0.5
PERIODS = (0.01, 0.04, 0.1)
"""Of the square waves, in seconds."""
DUTY = 0.5
"""The share of a period in which the load is on: bursts of 5, 20 and 50 ms."""
PLAN = "normal"

FIELD_BITS = 8
"""Of a hash's fields, all of which are summed."""
LOW_BITS = 43
"""Uniform bits below that sum, so that a double just holds the whole: 53 bits."""
MIDDLE: int = (64 // FIELD_BITS) * (2**FIELD_BITS - 1) << (LOW_BITS - 1)
SCALE = 2.0**-51
"""Makes the standard deviation, which is 209 x 2^43, 0.8."""
INT8_SHIFT = 46
"""Makes it 26, and the largest magnitude 128."""
BLOCK = 512
"""Rows made at a time, so that 64-bit copies of large operands stay small."""


def bell(key: int, rows: range, columns: int, device: torch.device | str) -> Tensor:
    """Make these *rows* of a matrix of bell-shaped integers below 2^53, as int64."""
    fields = hashed(2 * key, rows, columns, device)
    low = hashed(2 * key + 1, rows, columns, device) & (2**LOW_BITS - 1)
    made: Tensor = low - MIDDLE
    for bit in range(0, 64, FIELD_BITS):
        made += ((fields >> bit) & (2**FIELD_BITS - 1)) << LOW_BITS
    return made


def matrix(
    key: int, rows: int, columns: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Make a matrix of bell-shaped numbers: the same bits wherever this runs."""
    import torch

    out = torch.empty(rows, columns, dtype=dtype, device=device)
    for start in range(0, rows, BLOCK):
        block = range(start, min(rows, start + BLOCK))
        made = _as(dtype, bell(key, block, columns, device))
        out[block.start : block.stop] = made
    return out


def _as(dtype: torch.dtype, made: Tensor) -> Tensor:
    """Round to nearest, by way of fp32 for what is narrower; int8 is rounded down."""
    import torch

    if dtype == torch.int8:
        return (made >> INT8_SHIFT).to(dtype)
    exact = made.double() * SCALE
    return exact if dtype == torch.float64 else exact.float().to(dtype)


def operands(
    task: Task, pair: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """
    Make the operands of a *pair*, which differ with the seed of the run.

    They are as deep as `view` has them, A by rows, and B as the library wants it.
    """
    import torch

    dtype = getattr(torch, task.family.operand)
    size, depth = task.shape.size, task.shape.depth + PAD
    key = 2 * (PAIRS * task.draw + pair)
    a = matrix(key, size, depth, dtype, device)
    if task.family.by_columns:
        return a, matrix(key + 1, size, depth, dtype, device).T
    return a, matrix(key + 1, depth, size, dtype, device)


@dataclass(frozen=True, slots=True)
class Still(Bench):
    """A bench whose operands are never moved: moved ones would be rounded otherwise."""

    def turn(self, number: int) -> tuple[Job, int]:
        """Say which job the product *number* is, and that it is not shifted."""
        return self.jobs[number % len(self.jobs)], 0


@dataclass(slots=True)
class Load:
    """Says when it is enough; until then it switches the load on and off."""

    until: float
    """On the monotonic clock, like all that follows."""
    period: float = 0.0
    """Of the square wave, in seconds; 0 is steady load."""
    burst: int = 1
    """Products while the load is on."""
    drain: float = 0.0
    """Seconds for which the device is at work after it was told the last of them."""
    edges: int = 0
    """How often the load was switched on."""
    _since: int = field(default=0, repr=False)

    @classmethod
    def wave(cls, seconds: float, period: float, pace: float, page: int) -> Load:
        """Plan bursts of products that take *pace* seconds each, *page* ahead."""
        burst = max(page, round(DUTY * period / pace))
        return cls(time.monotonic() + seconds, period, burst, page * pace)

    def __call__(self, products: int) -> bool:
        """Let the load be off if a burst is over, and say whether it is enough."""
        now = time.monotonic()
        if self.period and products - self._since >= self.burst:
            edge = next_edge(now + self.drain, self.period)
            if edge >= self.until:
                return True
            time.sleep(edge - now)
            self.edges += 1
            self._since = products
        return time.monotonic() >= self.until

    def text(self) -> str:
        """Say what kind of load it was."""
        return f"load steps every {self.period * 1e3:g} ms" if self.period else "steady"


@dataclass(frozen=True, slots=True)
class Spell:
    """What one part or core did, with one type of operands."""

    where: str
    digest: str
    """Of its first products."""
    bags: tuple[Bag, ...]
    edges: int = 0
    corruption: Finding | None = None

    @property
    def products(self) -> int:
        """How many were compared."""
        return sum(bag.products for bag in self.bags)

    @property
    def seconds(self) -> float:
        """How long that took."""
        return sum(bag.seconds for bag in self.bags)

    @property
    def mismatched(self) -> int:
        """Words of 64 bits that were wrong."""
        return sum(wrong.words for bag in self.bags for wrong in bag.wrong)


def stress(
    ctx: Context, device: torch.device, seconds: float, seams: Seams = HARDWARE
) -> Iterator[Found]:
    """
    Compare products of normal numbers with the first of their kind, for *seconds*.

    All types that the device has units for have their turn; on a CPU, all cores work
    at the same time, or as many as can, and those left out come in another run.
    """
    on_cpu = ctx.device.kind == "cpu"
    families = families_of(device)
    spells: list[Spell] = []
    for family in families:
        shape = SLOW_SHAPE if family.name in SLOW else GPU_SHAPE
        shape = CPU_SHAPE if on_cpu else shape
        task = Task(ctx, family, shape, device, seams, ctx.seed)
        done: list[Spell] = []
        with float32_as(family.precision):
            for one in at_work(task, seconds / len(families)):
                done.append(one)
                if one.corruption:  # a part that errs may not live to tell of it later
                    yield one.corruption
        spells += done
        yield from (of_cores if on_cpu else of_gpu)(task, done)
    yield from summed(spells)


def at_work(task: Task, seconds: float) -> Iterator[Spell]:
    """Stress the GPU, or each core of the CPU by itself."""
    pairs = [operands(task, pair, task.device) for pair in range(PAIRS)]
    if task.ctx.device.kind != "cpu":
        yield spell(task, pairs, seconds, task.ctx.device.part)
        return
    cores = turn(cpu.cores().allowed, AT_ONCE, task.ctx.rotation)
    work = partial(on_core, task, pairs, seconds)
    yield from on_each(cores, work)


def on_core(
    task: Task, pairs: Sequence[tuple[Tensor, Tensor]], seconds: float, core: int
) -> Spell:
    """Stress one core of the CPU."""
    return spell(task, pairs, seconds, f"cpu{core}")


def spell(
    task: Task, pairs: Sequence[tuple[Tensor, Tensor]], seconds: float, where: str
) -> Spell:
    """Stress the part or core *where*, by steady load and then by square waves."""
    bench, odd = prepared(task, pairs, where)
    first = " ".join(f"{job.digest:#018x}" for job in bench.jobs)
    if odd:
        made = Bag(ALIKE * len(pairs), 0.0, (odd[0].wrong,))
        return Spell(where, first, (made,), corruption=odd[0].accused(bench))
    load = Load(time.monotonic() + STEADY_SHARE * seconds)
    bags, edges = [hunt(bench, load)], 0
    pace = bags[0].seconds / bags[0].products
    share = (1 - STEADY_SHARE) * seconds / len(PERIODS)
    for period in PERIODS:
        if bags[-1].wrong:
            break
        load = Load.wave(share, period, pace, bench.page)
        bags.append(hunt(bench, load))
        edges += load.edges
    found = None
    if wrong := bags[-1].wrong:
        against = f"its {OWN}, which it made again alike"
        found = accused(bench, wrong[0], load.text(), against)
    return Spell(where, first, tuple(bags), edges, found)


@dataclass(frozen=True, slots=True)
class Odd:
    """One of the first products, which was not made alike again."""

    wrong: Wrong
    agreed: bool
    """Whether the other two are alike."""

    def accused(self, bench: Bench) -> Finding:
        """Say of it what it was compared with."""
        others = "alike" if self.agreed else "different each time"
        against = f"the same product made twice more, {others}"
        return accused(bench, self.wrong, "before the load", against)


def prepared(
    task: Task, pairs: Sequence[tuple[Tensor, Tensor]], where: str
) -> tuple[Bench, list[Odd]]:
    """
    Make the first products, and a bench that compares the later ones with them.

    Each is made twice, and if the two differ a third time, so that a fault in the very
    first is not taken for the truth that all later ones contradict.
    """
    jobs: list[Job] = []
    odd: list[Odd] = []
    for pair, (a, b) in enumerate(pairs):
        first, second = (_made(task, a, b) for _ in range(ALIKE))
        if _unequal(first, second):
            third = _made(task, a, b)
            wrong, other = (
                (first, second) if _unequal(first, third) else (second, first)
            )
            words_wrong = _unequal(wrong, third)
            agreed = not _unequal(other, third)
            odd.append(Odd(Wrong(pair, words_wrong, wrong), agreed))
            first = third
        remake = partial(operands, task, pair, HOST)
        name, kept = f"{PLAN} {pair}", digest(first.cpu())
        jobs.append(Job(name, a, b, first, kept, remake, task.draw))
    outputs = [task.output() for _ in range(outputs_for(len(jobs), task.device))]
    name, seed = task.family.name, task.ctx.seed
    bench = Still(where, name, tuple(jobs), tuple(outputs), seed, task.seams)
    return bench, odd


def _made(task: Task, a: Tensor, b: Tensor) -> Tensor:
    product = task.output()
    poison(product)
    task.seams.multiply(*view(a, b, 0), product)
    return product


def _unequal(one: Tensor, other: Tensor) -> int:
    """Count the words in which two products differ."""
    return int((words(one) != words(other)).sum())


def accused(bench: Bench, wrong: Wrong, load: str, against: str) -> Finding:
    """Say of a *wrong* product what it was compared with, and under what load."""
    found = corruption(bench, wrong)
    text = f"{found.text}; random normal numbers, {load}, compared with {against}"
    evidence = {**found.evidence, "reference": OWN, "load": load}
    return replace(found, text=text, evidence=evidence)


def of_gpu(task: Task, spells: Sequence[Spell]) -> Iterator[Found]:
    """Yield what a GPU did with one type, and its answer for the vote."""
    for one in spells:
        yield Covered(one.where, f"{task.family.name}: {said(task, spells)}")
        yield answer(task, one, group(task))


def group(task: Task) -> str:
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


def answer(task: Task, one: Spell, group: str) -> Finding:
    """Put the first products of *one* part to the vote of its *group*."""
    name = task.family.name
    text = f"{name}: its first products of random normal numbers"
    evidence = {"group": group, "name": name, "digest": one.digest}
    return Finding("answer", one.where, text, evidence)


def of_cores(task: Task, spells: Sequence[Spell]) -> Iterator[Found]:
    """Yield what the cores did with one type; if they differ, their answers too."""
    differ = len({one.digest for one in spells}) > 1
    cores = listed([int(one.where.removeprefix("cpu")) for one in spells])
    alike = "not all gave" if differ else "all gave"
    yield Covered(
        task.ctx.device.part,
        f"{task.family.name} on cores {cores}, which {alike} the same first products: "
        f"{said(task, spells)}",
    )
    if differ:
        yield from (answer(task, one, CORES) for one in spells)


def said(task: Task, spells: Sequence[Spell]) -> str:
    """Say in words what was exercised, and how."""
    products = sum(one.products for one in spells)
    size, depth = task.shape.size, task.shape.depth
    seconds = sum(one.seconds for one in spells)
    edges = sum(one.edges for one in spells)
    bursts = ", ".join(f"{DUTY * period * 1e3:g}" for period in PERIODS)
    return (
        f"{products} products of {size} x {depth} x {size} random normal numbers "
        f"({products * task.shape.operations:.3g} operations) compared bit by bit with "
        f"the first ones in {seconds:.1f} s; load switched on {edges} times, for "
        f"{bursts} ms"
    )


def summed(spells: Sequence[Spell]) -> Iterator[Measurement]:
    """Add up, for each part or core, what was done with all types."""
    for where in dict.fromkeys(one.where for one in spells):
        mine = [one for one in spells if one.where == where]
        products = sum(one.products for one in mine)
        mismatched = sum(one.mismatched for one in mine)
        yield Measurement("stress.products", products, "", where)
        yield Measurement("stress.mismatched", mismatched, "", where)
