"""
The selftest of the hunt: faults are injected into it, and it says what became of each.

Every type of operands that the part multiplies has its turn, with operands, proofs,
comparison and canaries as in a run, only smaller. Every bit of the output is flipped,
and held at 0 and at 1. Then come the faults that no single bit describes, those of
memory, and those of the comparison, upon which the hunt must not pass but declare
itself broken.

What cannot be found is derived and not listed: a fault that holds a bit where every
right product has it changes nothing. Two trials must find nothing, and are kept
because they are the reason for two pieces of the check.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from hpcverify.check import Context, Trial, Unable
from hpcverify.model import Cause
from hpcverify_checks import _injections as faults
from hpcverify_checks._benches import (
    Library,
    Outcome,
    Task,
    concluded,
    families_of,
    prepare,
)
from hpcverify_checks._bits import integers_of, words
from hpcverify_checks._cores import listed
from hpcverify_checks._exact import Shape, view
from hpcverify_checks._families import Family
from hpcverify_checks._hunt import Bag, Bench, Job, Seams, hunt
from hpcverify_checks._kernels import comparison_for
from hpcverify_checks._torch import float32_as, torch_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks._injections import Blindness, Fault, Harm

SHAPE = Shape(size=128, depth=128)
PRODUCTS = 32
"""In a trial: every output of a GPU's ring is written several times."""
CALL = 7
RARELY = faults.ALWAYS[6::5]
"""Every fifth product, which is one of each plan in turn: nothing has five plans."""

COMPUTE, MEMORY = "found: compute", "found: memory"
NOTHING, BROKEN = "nothing found", "checker broken"
"""What can become of a fault."""

Injection = Callable[[Bench], AbstractContextManager[Bench]]
"""Gives a bench that has a fault, for as long as the block runs."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One type of operands, made ready to try faults on."""

    task: Task
    bench: Bench
    references: tuple[Tensor, ...]
    """The right products, on the host."""
    biased: frozenset[str]
    """The plans with a bias."""

    @property
    def width(self) -> int:
        """Bits of an output."""
        return 8 * self.references[0].element_size()

    def shows(self, harm: Harm) -> bool:
        """Whether *harm* changes any of the right products."""
        for right in self.references:
            product = right.clone()
            harm(product)
            if bool((words(product) != words(right)).any()):
                return True
        return False

    @property
    def low(self) -> int:
        """The lowest bit that can be seen to be stuck, at 0 and at 1."""
        return next(
            bit
            for bit in range(self.width)
            if all(self.shows(faults.stick(bit, at=at)) for at in (0, 1))
        )


@dataclass(frozen=True, slots=True)
class Case:
    """A *fault*, how to inject it, and what must become of it."""

    fault: str
    inject: Injection
    expected: str = COMPUTE
    why: str = ""
    """There is nothing to find."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A *fault* of one bit, tried on every bit of the output in these *calls*."""

    fault: str
    harm: Callable[[int], Harm]
    calls: Sequence[int] = faults.ALWAYS


SWEEPS = (
    Sweep("each output bit flipped once", faults.flip, (CALL,)),
    Sweep("each output bit stuck at 0", partial(faults.stick, at=0)),
    Sweep("each output bit stuck at 1", partial(faults.stick, at=1)),
)


def selftest(ctx: Context) -> Iterator[Trial]:
    """Try all faults with every type of operands of the part."""
    device = torch_device(ctx)
    for family in families_of(device):
        yield from trials(ctx, family, device)


def trials(ctx: Context, family: Family, device: torch.device) -> Iterator[Trial]:
    """Try all faults with one type of operands."""
    with float32_as(family.precision):
        seams = Seams(compare=comparison_for(device))
        stage = staged(Task(ctx, family, SHAPE, device, seams))
        for case in cases(stage):
            yield _trial(stage, case.fault, case.expected, *attempt(stage, case))
        for sweep in SWEEPS:
            yield _trial(stage, sweep.fault, COMPUTE, *swept(stage, sweep))


def staged(task: Task) -> Stage:
    """Make ready what *task* needs."""
    jobs = prepare(task).jobs
    plans = task.family.plans(task.shape.depth)
    return Stage(
        task,
        task.bench(task.ctx.device.part, jobs),
        tuple(job.reference.cpu() for job in jobs),
        frozenset(plan.name for plan in plans if plan.bias),
    )


def _trial(stage: Stage, fault: str, expected: str, outcome: str, detail: str) -> Trial:
    return Trial(
        fault=f"{stage.task.family.name}: {fault}",
        where=stage.bench.where,
        expected=expected,
        outcome=outcome,
        detail=detail,
    )


def attempt(stage: Stage, case: Case) -> tuple[str, str]:
    """Hunt with the fault of *case*; say what became of it, and the details."""
    with case.inject(stage.bench) as bench:
        try:
            bag = _hunted(bench)
        except Unable as exc:
            if exc.cause is not Cause.CHECKER:
                raise
            return BROKEN, str(exc)
        outcome = concluded(bench, bag.wrong, bag.products, bag.seconds)
    return _judged(outcome, case.why or f"in {outcome.products} products")


def _hunted(bench: Bench) -> Bag:
    return hunt(bench, lambda products: products >= PRODUCTS)


def _judged(outcome: Outcome, otherwise: str) -> tuple[str, str]:
    if outcome.corruption is None:
        return NOTHING, otherwise
    place = outcome.corruption.evidence["place"]
    found = MEMORY if place.startswith("memory") else COMPUTE
    return found, outcome.corruption.text


def swept(stage: Stage, sweep: Sweep) -> tuple[str, str]:
    """Try the fault of *sweep* on every bit; say what was missed, and excepted."""
    bits = range(stage.width)
    excepted = tuple(bit for bit in bits if not stage.shows(sweep.harm(bit)))
    missed = tuple(bit for bit in bits if not _is_named(stage, sweep, bit))
    outcome = COMPUTE if missed == excepted else f"missed: {listed(missed) or 'none'}"
    found = f"{len(bits) - len(missed)} of {len(bits)} bits"
    if not excepted:
        return outcome, found
    return outcome, f"{found}; {listed(excepted)} are so in every right product"


def _is_named(stage: Stage, sweep: Sweep, bit: int) -> bool:
    """Whether the fault of *bit* is found, and the product kept that shows it alone."""
    import torch

    fault = faults.sometimes(faults.harmed(sweep.harm(bit)), sweep.calls)
    with at_seam(fault)(stage.bench) as bench:
        wrong = _hunted(bench).wrong
    if not wrong:
        return False
    right = bench.turn(wrong[0].number)[0].reference
    xor = integers_of(wrong[0].output) ^ integers_of(right)
    return set(torch.unique(xor).tolist()) == {0, faults.mask(bit, right)}


def cases(stage: Stage) -> Iterator[Case]:
    """List the faults that no sweep over the bits describes."""
    yield Case("none", nullcontext, NOTHING)
    yield from _units(stage.low)
    yield Case("a bit stuck at 1 from the first product", _from_the_start(stage))
    if stage.references[0].is_floating_point():
        yield Case("one element is NaN", _once_harmed(faults.spoiled))
    if stage.shows(faults.negated_zeros):
        yield Case("-0 in place of 0", at_seam(faults.harmed(faults.negated_zeros)))
    yield from MEMORIES
    yield from COMPARISONS
    yield from _kept(stage)


def _units(low: int) -> Iterator[Case]:
    """List faults of units; *low* is a bit that changes."""
    for at in (0, 1):
        stuck = faults.harmed(faults.stick(low, at=at))
        seam = at_seam(faults.sometimes(stuck, RARELY))
        yield Case(f"a bit stuck at {at} in every fifth product", seam)
    yield Case("the same bit of two elements flipped", _once_harmed(faults.paired(0)))
    warp = _once_harmed(faults.warp_periodic(0))
    yield Case("a bit of every eighth element flipped", warp)
    yield Case("two tiles swapped", _once_harmed(faults.swapped))
    yield Case("a tile written twice, over another", _once_harmed(faults.duplicated))
    yield Case("a tile never written", at_seam(faults.unwritten))


def _once_harmed(harm: faults.Harm) -> Injection:
    return at_seam(faults.sometimes(faults.harmed(harm), (CALL,)))


def at_seam(fault: Fault) -> Injection:
    """Multiply with a *fault*."""

    def inject(bench: Bench) -> AbstractContextManager[Bench]:
        multiply = fault(bench.seams.multiply)
        return nullcontext(
            replace(bench, seams=replace(bench.seams, multiply=multiply))
        )

    return inject


def _in_place(tensor: Callable[[Job], Tensor]) -> Injection:
    @contextmanager
    def inject(bench: Bench) -> Generator[Bench]:
        with faults.in_memory(tensor(bench.jobs[1])):
            yield bench

    return inject


MEMORIES = (
    Case("an element of operand A changed", _in_place(lambda job: job.a), MEMORY),
    Case("an element of operand B changed", _in_place(lambda job: job.b), MEMORY),
    Case(
        "an element of the reference changed",
        _in_place(lambda job: job.reference),
        MEMORY,
    ),
)


def _seeing(blindness: Blindness) -> Injection:
    def inject(bench: Bench) -> AbstractContextManager[Bench]:
        compare = blindness(bench.seams.compare)
        return nullcontext(replace(bench, seams=replace(bench.seams, compare=compare)))

    return inject


COMPARISONS = (
    Case("a comparison that sees nothing", _seeing(faults.blind), BROKEN),
    Case(
        "a comparison blind in 1 of 32 lanes", _seeing(faults.blind_in_a_lane), BROKEN
    ),
    Case("a comparison blind to one bit", _seeing(faults.blind_to_a_bit), BROKEN),
    Case("a comparison that loses single hits", _seeing(faults.blind_to_one), BROKEN),
)


def _from_the_start(stage: Stage) -> Injection:
    """Have a stuck bit before there are references: the host must disprove them."""
    stuck = faults.harmed(faults.stick(stage.low, at=1))

    def inject(bench: Bench) -> AbstractContextManager[Bench]:
        with at_seam(stuck)(bench) as faulty:
            task = replace(stage.task, seams=faulty.seams, library=Library())
        return nullcontext(replace(faulty, jobs=prepare(task).jobs))

    return inject


def _kept(stage: Stage) -> Iterator[Case]:
    """List what is missed without two pieces of the check: the reason for them."""
    stuck = faults.harmed(faults.stick(stage.low, at=1))
    yield Case(
        "control, no proof: a stuck bit passes",
        _self_made(stuck),
        NOTHING,
        "as it must: what errs alike each time agrees with its own first answer, "
        "which is why the host proves it",
    )
    if stage.biased:
        yield Case(
            "control, no bias: bit 0 stuck at 0 passes",
            _unbiased(stage),
            NOTHING,
            "as it must: sums that are short of the accumulator never set it, which is "
            "why other plans add 2^n",
        )


def _self_made(fault: Fault) -> Injection:
    """Take the part's own first answers for references."""

    def inject(bench: Bench) -> AbstractContextManager[Bench]:
        with at_seam(fault)(bench) as faulty:
            jobs = tuple(_believed(faulty, job) for job in bench.jobs)
        return nullcontext(replace(faulty, jobs=jobs))

    return inject


def _believed(bench: Bench, job: Job) -> Job:
    import torch

    own = torch.empty_like(job.reference)
    bench.seams.multiply(*view(job.a, job.b, 0), own)
    return replace(job, reference=own)


def _unbiased(stage: Stage) -> Injection:
    """Leave out the plans that have a bias."""

    def inject(bench: Bench) -> AbstractContextManager[Bench]:
        jobs = tuple(job for job in bench.jobs if job.name not in stage.biased)
        fault = faults.harmed(faults.stick(0, at=0))
        return at_seam(fault)(replace(bench, jobs=jobs))

    return inject
