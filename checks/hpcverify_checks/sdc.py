"""
Look for silent data corruption: products that must be right to the last bit.

The operands are integers whose product is known exactly (see `_exact`), so a single
changed bit in any output is found in the product in which it happens, and a healthy
part cannot be accused. The reference is proven on the host and is not just the part's
own first answer, with which a stuck unit would agree for ever. Several plans take
turns in the same outputs, so that a tile which is not written shows, and the operands
move through the lanes from one product to the next. The part itself compares, without
waiting for the host; canaries prove that the comparison is awake (see `_hunt`). On a
mismatch memory is told from arithmetic, and three repetitions tell persistent from
intermittent (see `_mismatch`).

Integers toggle fewer wires than random numbers and draw less power. So a second part
of the time goes to random numbers under square-wave load, compared with the part's
own first answer and with those of the other parts (`_stress`, `_vote`), and a third
to copies (`_copies`). A CPU is examined core by core, alone and all at once.

No test of this kind covers all of a part: what is reported is what was covered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import log2
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from hpcverify.check import (
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Rule,
    Unable,
    Watch,
)
from hpcverify.model import (
    Cause,
    Covered,
    Finding,
    Found,
    Measurement,
    Remedy,
    Ruling,
    Verdict,
)
from hpcverify.telemetry import cpu
from hpcverify_checks._benches import (
    Library,
    Outcome,
    Ready,
    Task,
    families_of,
    readied,
)
from hpcverify_checks._copies import copies
from hpcverify_checks._cores import listed, on_each, turn
from hpcverify_checks._exact import PAD, SHIFT_STEP, SHIFTS, Shape, constant_bits
from hpcverify_checks._families import CPU_DEPTH, DEEP, Family
from hpcverify_checks._hunt import Blind, Job, Seams
from hpcverify_checks._kernels import comparison_for
from hpcverify_checks._stats import excluded
from hpcverify_checks._stress import stress
from hpcverify_checks._torch import (
    float32_as,
    overrides_told,
    require_memory,
    threads_as,
    torch_device,
    unused_units,
)
from hpcverify_checks._trials import selftest
from hpcverify_checks._vote import reconcile

if TYPE_CHECKING:
    import torch

CPU_SIZE, GPU_SIZE = 512, 4096
GPU_MEMORY = 10 * 2**30
"""Bytes for the fp32 plans, the largest, with their references and temporaries."""
GPU_TOTAL = 12 * 2**30
"""Of a GPU that is large enough for them: a smaller one gets smaller products."""
LARGEST = 2**14
EXACT_SHARE, STRESS_SHARE, COPY_SHARE = 0.6, 0.3, 0.1
"""Of the time."""
LEAST_SHARE = 0.25
"""Of the time for a type: so much is hunted however long it took to prepare."""
STEP = 16
"""What sizes and depths are multiples of, for the sake of one-byte operands."""
AT_ONCE = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""
WAVE_SECONDS, ALONE_SECONDS = 1.0, 0.1
"""For many cores, and for one: with less for each, some wait for the next run."""


class SdcParams(Params, frozen=True):
    """How long to look in all (seconds), and at what products."""

    seconds: Annotated[float, Meta(gt=0)] = 20.0
    size: Annotated[int, Meta(ge=0, le=LARGEST, multiple_of=STEP)] = 0
    """Rows and columns of the product; 0 takes the default of the part."""
    depth: Annotated[int, Meta(ge=0, le=DEEP, multiple_of=STEP)] = 0
    """The inner dimension, likewise, and no more than is exact with a type."""
    fresh: bool = False
    """Whether to draw operands that no run has had; else they are those whose
    products ship with hpcverify."""


def measure(
    ctx: Context, params: SdcParams, seams: Seams | None = None
) -> Iterator[Found]:
    """Examine the device with exact products, with random ones, and with copies."""
    device = torch_device(ctx)
    yield from overrides_told(ctx)
    seams = seams or Seams(compare=comparison_for(device))
    with threads_as(threads_for(ctx)):
        try:
            yield from exact(ctx, device, params, seams)
            yield from stress(ctx, device, STRESS_SHARE * params.seconds, seams)
        except Blind as exc:
            yield Finding("blind", exc.where, str(exc))
            raise
        yield from copies(ctx, device, COPY_SHARE * params.seconds)


def threads_for(ctx: Context) -> int:
    """
    Say how many threads of the host make operands and proofs.

    Each GPU's worker has its share. The CPU's has one: on a busy node several would
    spin while they wait for each other, a hundred times as long as one takes.
    """
    import torch

    if ctx.device.kind == "cpu":
        return 1
    return max(1, torch.get_num_threads() // len(ctx.peers))


def exact(
    ctx: Context, device: torch.device, params: SdcParams, seams: Seams
) -> Iterator[Found]:
    """Hunt with each type of operands in turn, on the GPU or on the CPU's cores."""
    chosen, library = families_of(device), Library()
    done: list[Done] = []
    for family in chosen:
        shape = shape_of(family, device, params)
        draw = ctx.seed if params.fresh else 0
        task = Task(ctx, family, shape, device, seams, draw, library)
        done.append(Done(task))
        # At once: a part that errs may not live to tell of it later.
        for outcome in explored(done[-1], EXACT_SHARE * params.seconds / len(chosen)):
            done[-1].outcomes.append(outcome)
            if outcome.corruption:
                yield outcome.corruption
        yield Covered(ctx.device.part, done[-1].said())
    for unused in unused_units(device):
        yield Covered(ctx.device.part, unused.text)
    yield from summed(done)


def shape_of(family: Family, device: torch.device, params: SdcParams) -> Shape:
    """Choose the shape of the products, and never one too deep to be exact."""
    if device.type == "cpu":
        usual = Shape(CPU_SIZE, CPU_DEPTH)
    else:
        usual = Shape(size_for(device), family.depth)
    depth = params.depth or usual.depth
    if depth < PAD:
        raise Unable(
            f"sdc: depth {depth} is too small: give {PAD} or more",
            Cause.MISCONFIGURED,
        )
    return Shape(params.size or usual.size, min(family.depth, depth))


def size_for(device: torch.device) -> int:
    """Choose the size of products on a GPU: smaller where there is little memory."""
    import torch

    _, total = torch.cuda.mem_get_info(device)
    size = GPU_SIZE if total >= GPU_TOTAL else GPU_SIZE // 2
    require_memory(device, GPU_MEMORY * size // GPU_SIZE)
    return size


@dataclass(frozen=True, slots=True)
class Done:
    """What is done with one type of operands, and what comes of it."""

    task: Task
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    exercised: list[str] = field(default_factory=list[str])
    """The plans, and the bits in which no fault that holds them could show."""

    def said(self) -> str:
        """Say in a sentence what was exercised, and what no fault in it excludes."""
        products = sum(outcome.products for outcome in self.outcomes)
        size, depth = self.task.shape.size, self.task.shape.depth
        text = (
            f"{self.task.family.name}{_cores(self.task, self.outcomes)}: {products} "
            f"products of {size} x {depth} x {size} "
            f"({products * self.task.shape.operations:.3g} operations) compared bit "
            f"by bit in {sum(self.seconds()):.1f} {_unit(self.task)}; "
            f"{'; '.join((_data(self.task), *self.exercised))}"
        )
        least = min(self.seconds(), default=0.0)
        if any(outcome.mismatched for outcome in self.outcomes) or not least:
            return text
        each = "on each core " if self.task.device.type == "cpu" else ""
        rate = f"more than {excluded(least):,.0f} wrong products an hour"
        return f"{text}; {each}{rate} are excluded at 95 %"

    def seconds(self) -> list[float]:
        """Give the time for which each part or core was examined."""
        times: dict[str, float] = {}
        for outcome in self.outcomes:
            times[outcome.where] = times.get(outcome.where, 0.0) + outcome.seconds
        return [seconds for seconds in times.values() if seconds]


def _unit(task: Task) -> str:
    return "core-seconds" if task.device.type == "cpu" else "GPU-seconds"


def _plans(ready: Sequence[Ready]) -> str:
    plans = (f"{r.job.name} (sums to 2^{log2(r.certificate):.2f})" for r in ready)
    return f"plans {', '.join(plans)}"


def _data(task: Task) -> str:
    kind = f"drawn afresh ({task.draw})" if task.draw else "those of every run"
    return f"data {kind}, at {SHIFTS} offsets of {SHIFT_STEP} lanes"


def _cores(task: Task, outcomes: Sequence[Outcome]) -> str:
    if task.device.type != "cpu":
        return ""
    wheres = {o.where.removeprefix("cpu") for o in outcomes} - {""}
    done = listed(sorted(map(int, wheres)))
    return f" on cores {done} of {listed(cpu.cores().allowed)}"


def _constant(jobs: Sequence[Job]) -> str:
    names = {
        "output": constant_bits(job.reference for job in jobs),
        "A": constant_bits(job.a for job in jobs),
        "B": constant_bits(job.b for job in jobs),
    }
    bits = ", ".join(f"{name} {listed(bits) or 'none'}" for name, bits in names.items())
    return f"bits that no product changes: {bits}"


def explored(done: Done, seconds: float) -> Iterator[Outcome]:
    """
    Prepare and hunt with one type; its operands are let go of at the end.

    To prepare takes its time out of the *seconds*.
    """
    task, ready = done.task, list[Ready]()
    began = perf_counter()
    with float32_as(task.family.precision):
        for item in readied(task):
            if isinstance(item, Outcome):
                yield item
            else:
                ready.append(item)
        jobs = tuple(item.job for item in ready)
        if not jobs:
            return
        done.exercised.extend((_plans(ready), _constant(jobs)))
        spent = perf_counter() - began
        yield from examined(task, jobs, seconds, hunting_time(seconds, spent))


def hunting_time(seconds: float, spent: float) -> float:
    """Say how much of the *seconds* for a type is left once some were *spent*."""
    return max(seconds - spent, LEAST_SHARE * seconds)


def examined(
    task: Task, jobs: tuple[Job, ...], seconds: float, left: float
) -> Iterator[Outcome]:
    """
    Hunt on the GPU; on the CPU on each core alone, and all at once.

    As many cores have a turn as fit into *seconds*, and share what is *left* of them.
    """
    if task.device.type != "cpu":
        yield task.hunt(task.ctx.device.part, jobs, _deadline(left))
        return
    cores, half = cpu.cores().allowed, seconds / 2
    alone = [(core,) for core in turn(cores, _fit(half, ALONE_SECONDS), _turn(task))]
    chosen = turn(cores, AT_ONCE * _fit(half, WAVE_SECONDS), _turn(task))
    waves = [chosen[i : i + AT_ONCE] for i in range(0, len(chosen), AT_ONCE)]
    for load, groups in (("alone", alone), ("all at once", waves)):
        for group in groups:
            work = partial(_on_core, task, jobs, left / 2 / len(groups))
            for outcome in on_each(group, work):
                yield under(load, outcome)


def under(load: str, outcome: Outcome) -> Outcome:
    """Say under what load cores were examined, where one was wrong."""
    found = outcome.corruption
    if found is None:
        return outcome
    told = msgspec.structs.replace(
        found,
        text=f"{found.text}, cores {load}",
        evidence={**found.evidence, "load": f"cores {load}"},
    )
    return dataclasses.replace(outcome, corruption=told)


def _fit(seconds: float, least: float) -> int:
    return max(1, int(seconds / least))


def _turn(task: Task) -> int:
    return task.ctx.rotation


def _on_core(task: Task, jobs: tuple[Job, ...], seconds: float, core: int) -> Outcome:
    return task.hunt(f"cpu{core}", jobs, _deadline(seconds))


def _deadline(seconds: float) -> Callable[[int], bool]:
    end = perf_counter() + seconds
    return lambda _: perf_counter() >= end


def summed(done: Sequence[Done]) -> Iterator[Found]:
    """Add up, for each part or core, what was done with all types."""
    every = [(d.task.shape, outcome) for d in done for outcome in d.outcomes]
    for where in dict.fromkeys(outcome.where for _, outcome in every):
        mine = [(shape, outcome) for shape, outcome in every if outcome.where == where]
        wrong = sum(o.mismatched for _, o in mine)
        operations = sum(o.products * shape.operations for shape, o in mine)
        yield Measurement("mismatched_words", wrong, "", where)
        yield Measurement("products", sum(o.products for _, o in mine), "", where)
        yield Measurement("checked_operations", operations, "", where)


def observe(watch: Watch, ctx: Context, _params: SdcParams) -> Iterator[Found]:
    """Say how warm the device was meanwhile: many faults show only when it is hot."""
    for where, samples in watch.series("temperature"):
        if where == ctx.device.part and samples:
            low, high = (f(s.value for s in samples) for f in (min, max))
            yield Covered(where, f"at {low:.0f} to {high:.0f} °C")


CHECK = Check(
    summary="silent data corruption: products that must be right to the last bit",
    measure=measure,
    params=SdcParams,
    metrics={
        "mismatched_words": Metric(unit="", meaning="64-bit words that were wrong"),
        "products": Metric(unit="", meaning="products compared with a proven one"),
        "checked_operations": Metric(unit="", meaning="operations in those products"),
        "disputed_words": Metric(
            unit="", meaning="words in which all parts agree against the proof"
        ),
        "stress.mismatched": Metric(
            unit="", meaning="words that differed from the part's own first answer"
        ),
        "stress.disputed": Metric(
            unit="", meaning="words in which all parts agree against their first answer"
        ),
        "stress.products": Metric(unit="", meaning="products compared with that"),
        "copied_bytes": Metric(unit="B", meaning="copied and compared"),
        "copied_wrong_words": Metric(unit="", meaning="64-bit words copied wrongly"),
    },
    rules={
        "mismatched_words": Rule(
            high=0,
            remedy=Remedy.REPLACE,
            optional=True,  # where all parts agree, the words are disputed instead
            hard=True,
            source="an exact product has one right answer",
        ),
        "products": Rule(
            low=1, otherwise=Verdict.ERROR, source="nothing compared, nothing known"
        ),
        "stress.mismatched": Rule(
            high=0,
            remedy=Remedy.REPLACE,
            optional=True,
            hard=True,
            source="the same product of the same part has the same bits",
        ),
        "copied_wrong_words": Rule(
            high=0, remedy=Remedy.REPLACE, hard=True, source="a copy is the same"
        ),
    },
    rulings={
        "corruption": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "miscopied": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "outvoted": Ruling(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "dissent": Ruling(Verdict.WARN, Remedy.RERUN),
        "disagreement": Ruling(Verdict.ERROR, Remedy.RERUN, Cause.NOISY),
        "blind": Ruling(Verdict.ERROR, Remedy.FIX_CHECKER, Cause.CHECKER),
        "inexact": Ruling(Verdict.ERROR, Remedy.FIX_CHECKER, Cause.CHECKER),
        "answer": Ruling(Verdict.PASS, Remedy.NONE),
    },
    placement=Placement.DEVICES,
    timeout=600.0,
    observe=observe,
    reconcile=reconcile,
    selftest=selftest,
)
