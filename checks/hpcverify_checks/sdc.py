"""
Look for silent data corruption: products that must be right to the last bit.

The operands are integers whose product is known exactly (see `_exact`), so a single
changed bit in any output is found in the product in which it happens, and a healthy
part cannot be accused. The reference is proven on the host and is not just the part's
own first answer, with which a stuck unit would agree for ever. Several plans take
turns in one output buffer, so that a tile which is not written shows, and the operands
move through the lanes from one product to the next. The part itself compares, without
waiting for the host; a canary, one flipped bit, proves again and again that the
comparison is awake. On a mismatch digests tell changed memory from wrong arithmetic,
and three repetitions tell persistent from intermittent.

Integers toggle fewer wires than random numbers and draw less power, and only the path
of a matrix product is exercised: what is reported is what was covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from hpcverify.check import Check, Context, Metric, Params, Placement, Rule, Unable
from hpcverify.model import (
    Cause,
    Covered,
    Found,
    Measurement,
    Remedy,
    Ruling,
    Verdict,
)
from hpcverify.telemetry import cpu
from hpcverify_checks._cores import listed, on_each, turn
from hpcverify_checks._exact import (
    UNIVERSAL,
    Operands,
    Plan,
    Shape,
    certificate,
    constant_bits,
    digest,
    double_plans,
    exact_product,
    operands,
    single_plans,
    view,
    words,
    wrong_rows,
)
from hpcverify_checks._hunt import (
    HARDWARE,
    Bench,
    Job,
    Mismatch,
    Outcome,
    Seams,
    corrupted,
    hunt,
)
from hpcverify_checks._torch import (
    dtypes_of,
    float32_as,
    require_memory,
    torch_device,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CPU_SHAPE = Shape(size=512, depth=2048)
GPU_SHAPE = Shape(size=4096, depth=8192)
"""Deep, because the cost of the comparison does not grow with the depth."""
GPU_MEMORY = 4 * 2**30
"""Bytes for the fp64 plans, the largest, with their references and temporaries."""
AT_ONCE = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""
LEAST_SECONDS = 1.0
"""For one wave of cores: with less for each, some wait for the node's next run."""
RULE_OF_THREE = 3.0
"""No event in a time T excludes, at 95 %, a Poisson rate above 3 / T."""


class SdcParams(Params, frozen=True):
    """How long to look in all (seconds), and at products of what shape."""

    seconds: float = 15.0
    size: int = 0
    """Rows and columns of the product; 0 takes the default of the part."""
    depth: int = 0
    """The inner dimension, likewise."""


@dataclass(frozen=True, slots=True)
class Family:
    """A type of operands, the plans that are exact with it, and the output's type."""

    dtype: str
    plans: Callable[[int], tuple[Plan, ...]]
    output: str = "float32"
    precision: str = "highest"


FAMILIES = {
    "bf16": Family("bfloat16", single_plans),
    "fp16": Family("float16", single_plans),
    "tf32": Family("float32", single_plans, precision="high"),
    "fp32": Family("float32", single_plans),
    "fp64": Family("float64", double_plans, output="float64"),
}
ON_CPU = frozenset({"fp32", "fp64"})
"""On a CPU torch rounds products of 16-bit operands to 16 bits, and does not promise
to do so only once: no reference for them would be certain."""


@dataclass(frozen=True, slots=True)
class Task:
    """One type of operands with which to examine one device."""

    ctx: Context
    name: str
    shape: Shape
    device: torch.device
    seams: Seams = HARDWARE

    @property
    def family(self) -> Family:
        """What belongs to the name."""
        return FAMILIES[self.name]

    def bench(self, where: str, jobs: tuple[Job, ...]) -> Bench:
        """Make an output buffer for the part or core *where*."""
        import torch

        dtype = getattr(torch, self.family.output)
        out = torch.empty(
            self.shape.size, self.shape.size, dtype=dtype, device=self.device
        )
        return Bench(where, self.name, jobs, out, self.ctx.seed, self.seams)


def measure(
    ctx: Context, params: SdcParams, seams: Seams = HARDWARE
) -> Iterator[Found]:
    """Hunt with each type of operands in turn, on the GPU or on the CPU's cores."""
    device = torch_device(ctx)
    on_cpu = device.type == "cpu"
    if not on_cpu:
        require_memory(device, GPU_MEMORY)
    names = FAMILIES.keys() & (ON_CPU if on_cpu else dtypes_of(device))
    usual = CPU_SHAPE if on_cpu else GPU_SHAPE
    shape = Shape(params.size or usual.size, params.depth or usual.depth)
    outcomes: list[Outcome] = []
    for name in sorted(names):
        task = Task(ctx, name, shape, device, seams)
        covered, found = explored(task, params.seconds / len(names))
        yield covered
        outcomes += found
    yield from summed(outcomes, shape)


def explored(task: Task, seconds: float) -> tuple[Covered, list[Outcome]]:
    """Prepare and hunt with one type; its operands are let go of on return."""
    with float32_as(task.family.precision):
        jobs, found = prepare(task)
        found += examine(task, jobs, seconds)
    return Covered(task.ctx.device.part, coverage(task, jobs, found)), found


def prepare(task: Task) -> tuple[tuple[Job, ...], list[Outcome]]:
    """Make the jobs, and say whether a product was wrong already then."""
    plans = task.family.plans(task.shape.depth)
    made = [_job(task, plan) for plan in plans]
    jobs = tuple(job for job, _ in made)
    wrong = [Mismatch(i, *row) for i, (_, row) in enumerate(made) if row[0]]
    if not wrong:
        return jobs, []
    bench = task.bench(task.ctx.device.part, jobs)
    return jobs, [corrupted(bench, wrong, len(jobs), 0.0)]


def _job(task: Task, plan: Plan) -> tuple[Job, list[int]]:
    """Put one plan on the device; the row says how its first product differs."""
    import torch

    made = operands(plan, task.shape)
    _require(certificate(made.a, made.b) <= plan.limit, f"plan {plan.name} is inexact")
    stored = made.stored(getattr(torch, task.family.dtype))
    a, b = (operand.to(task.device) for operand in stored)
    first = task.bench("", ()).out
    task.seams.multiply(*view(a, b, 0), first)
    reference = proven(made, first, task.ctx.seed)
    row = torch.zeros(3, dtype=torch.int64, device=task.device)
    task.seams.compare(words(first), words(reference), row)
    digests = digest(stored[0]), digest(stored[1]), digest(reference)
    return Job(plan, a, b, reference, digests), row.tolist()


def proven(made: Operands, product: Tensor, seed: int) -> Tensor:
    """
    Give *product* back if the host can prove it, or else the host's own, proven.

    Raises:
        Unable: The host cannot prove its own product, or contradicts the digest
            that holds everywhere: then it is the host that computes wrongly.

    """
    if wrong_rows(made, product.cpu(), seed):
        product = exact_product(made, product.dtype).to(product.device)
        _require(
            not wrong_rows(made, product.cpu(), seed),
            f"the host disproves its own product of plan {made.plan.name}",
        )
    key = (made.plan.name, made.shape.size, made.shape.depth)
    _require(
        UNIVERSAL.get(key, (found := digest(product.cpu()))) == found,
        f"the proven product of plan {made.plan.name} contradicts its digest",
    )
    return product


def _require(sound: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not sound:
        raise Unable(
            f"{otherwise}: the check itself is unsound here",
            Cause.CHECKER,
            Remedy.FIX_CHECKER,
        )


def examine(task: Task, jobs: tuple[Job, ...], seconds: float) -> list[Outcome]:
    """Hunt for *seconds* on the GPU, or on the CPU's cores in waves."""
    if task.device.type != "cpu":
        bench = task.bench(task.ctx.device.part, jobs)
        return [hunt(bench, _deadline(seconds))]
    waves = _waves(cpu.cores().allowed, seconds, task.ctx.rotation)
    work = partial(_on_core, task, jobs, seconds / len(waves))
    return [outcome for wave in waves for outcome in on_each(wave, work)]


def _on_core(task: Task, jobs: tuple[Job, ...], seconds: float, core: int) -> Outcome:
    return hunt(task.bench(f"cpu{core}", jobs), _deadline(seconds))


def _deadline(seconds: float) -> Callable[[int], bool]:
    end = perf_counter() + seconds
    return lambda _: perf_counter() >= end


def _waves(
    cores: Sequence[int], seconds: float, rotation: int
) -> list[tuple[int, ...]]:
    fit = AT_ONCE * max(1, int(seconds / LEAST_SECONDS))
    chosen = turn(cores, fit, rotation)
    return [chosen[i : i + AT_ONCE] for i in range(0, len(chosen), AT_ONCE)]


def coverage(task: Task, jobs: Sequence[Job], outcomes: Sequence[Outcome]) -> str:
    """Say in a sentence what was exercised, and what no fault in it excludes."""
    products = sum(outcome.products for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    constant = constant_bits(job.reference.cpu() for job in jobs)
    size, depth = task.shape.size, task.shape.depth
    text = (
        f"{task.name}{_cores(task, outcomes)}: {products} products of {size} x {depth} "
        f"x {size} ({products * task.shape.operations:.3g} operations) compared bit by "
        f"bit in {seconds:.1f} s; output bits that no product changes: "
        f"{listed(constant) or 'none'}"
    )
    if any(outcome.mismatched for outcome in outcomes):
        return text
    rate = RULE_OF_THREE / seconds * 3600
    return f"{text}; more than {rate:.3g} wrong products an hour are excluded at 95 %"


def _cores(task: Task, outcomes: Sequence[Outcome]) -> str:
    if task.device.type != "cpu":
        return ""
    done = [int(o.where.removeprefix("cpu")) for o in outcomes if o.where != "cpu"]
    return f" on cores {listed(done)} of {listed(cpu.cores().allowed)}"


def summed(outcomes: Sequence[Outcome], shape: Shape) -> Iterator[Found]:
    """Add up, for each part or core, what was done with all types."""
    for where in dict.fromkeys(outcome.where for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.where == where]
        products = sum(o.products for o in mine)
        wrong = sum(o.mismatched for o in mine)
        yield Measurement("mismatched_words", wrong, "", where)
        yield Measurement("products", products, "", where)
        yield Measurement("checked_operations", products * shape.operations, "", where)
        yield from (o.corruption for o in mine if o.corruption)


CHECK = Check(
    summary="silent data corruption: products that must be right to the last bit",
    measure=measure,
    params=SdcParams,
    metrics={
        "mismatched_words": Metric(unit="", meaning="64-bit words that were wrong"),
        "products": Metric(unit="", meaning="products compared with a proven one"),
        "checked_operations": Metric(unit="", meaning="operations in those products"),
    },
    rules={
        "mismatched_words": Rule(
            high=0,
            remedy=Remedy.REPLACE,
            source="an exact product has one right answer",
        )
    },
    rulings={"corruption": Ruling(Verdict.FAIL, Remedy.REPLACE)},
    placement=Placement.DEVICES,
    timeout=600.0,
)
