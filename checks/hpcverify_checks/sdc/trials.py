"""
The selftest of the hunt: it injects faults and reports which of them were found.

Every type of operands that the part multiplies gets its turn, with operands, proofs,
comparison and canaries as in a run, only smaller. Every bit of the output is flipped,
and stuck at 0 and at 1. Then come faults that no single bit describes, faults of memory,
and faults of the comparison, after which the hunt must report itself broken.

Which faults cannot be found is computed, not listed: a stuck bit changes nothing if
every correct product has it at that value. Two trials must find nothing: they show why
two pieces of the check exist.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpcverify.check import CHECKER_BROKEN, FOUND_NOTHING, Cause, Context, Trial, Unable
from hpcverify_checks.common.bits import view_integers, view_words
from hpcverify_checks.common.cores import format_ranges
from hpcverify_checks.common.device import find_torch_device, use_float32_precision
from hpcverify_checks.common.dtypes import Family
from hpcverify_checks.common.exact import Shape, view_shifted
from hpcverify_checks.common.kernels import load_comparison
from hpcverify_checks.common.product_loop import (
    HuntResult,
    ProductBench,
    ProductJob,
    ProductSeams,
    hunt,
)
from hpcverify_checks.common.vote import ProductFault
from hpcverify_checks.sdc import faults
from hpcverify_checks.sdc.offsets import try_offsets
from hpcverify_checks.sdc.prepare import (
    DeviceTask,
    References,
    list_families,
    make_part_result,
    prepare,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks.sdc.faults import CompareFault, MultiplyFault, OutputFault

TRIAL_SHAPE = Shape(size=128, depth=128)
TRIAL_PRODUCTS = 88
"""Every output of a GPU's ring is written several times."""
FAULTY_CALL = 7
RARE_CALLS = faults.ALL_CALLS[6::11]
"""Every eleventh product, which hits each plan in turn: no type has eleven plans."""

FOUND_COMPUTE, FOUND_MEMORY = "found: compute", "found: memory"

Injection = Callable[[ProductBench], AbstractContextManager[ProductBench]]
"""Makes a bench that has a fault while the block runs."""


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """One type of operands, ready to try faults on."""

    task: DeviceTask
    bench: ProductBench
    references: tuple[Tensor, ...]
    """The right products, on the host."""
    filling: frozenset[str]
    """The plans that set the lowest bits: those with a bias, and the sparse one."""

    @property
    def output_bits(self) -> int:
        """Bits of an output element."""
        return 8 * self.references[0].element_size()

    def can_show(self, harm: OutputFault) -> bool:
        """Whether *harm* changes any of the correct products."""
        for right in self.references:
            product = right.clone()
            harm(product)
            if bool((view_words(product) != view_words(right)).any()):
                return True
        return False

    @property
    def lowest_bit(self) -> int:
        """The lowest bit that can be seen to be stuck, at 0 and at 1."""
        return next(
            bit
            for bit in range(self.output_bits)
            if all(self.can_show(faults.stick(bit, at=at)) for at in (0, 1))
        )


@dataclass(frozen=True, slots=True)
class FaultCase:
    """A *fault*, how to inject it, and the *expected* outcome."""

    fault: str
    inject: Injection
    expected: str = FOUND_COMPUTE
    why: str = ""
    """Why there is nothing to find."""


@dataclass(frozen=True, slots=True)
class BitSweep:
    """A *fault* of one bit, tried on every bit of the output in these *calls*."""

    fault: str
    make_fault: Callable[[int], OutputFault]
    calls: Sequence[int] = faults.ALL_CALLS


BIT_SWEEPS = (
    BitSweep("each output bit flipped once", faults.flip, (FAULTY_CALL,)),
    BitSweep("each output bit stuck at 0", partial(faults.stick, at=0)),
    BitSweep("each output bit stuck at 1", partial(faults.stick, at=1)),
)


def selftest(ctx: Context) -> Iterator[Trial]:
    """Try all faults with every type of operands of the part."""
    device = find_torch_device(ctx)
    for family in list_families(device):
        yield from run_trials(ctx, family, device)


def run_trials(ctx: Context, family: Family, device: torch.device) -> Iterator[Trial]:
    """Try all faults with one type of operands."""
    with use_float32_precision(family.precision):
        seams = ProductSeams(compare=load_comparison(device)[0])
        (trial,) = try_offsets([DeviceTask(ctx, family, TRIAL_SHAPE, device, seams)])
        task = trial.task
        if not task.shifts:  # no product of this type is to be had here
            return
        stage = set_up_trials(task)
        for case in list_cases(stage):
            yield _make_trial(stage, case.fault, case.expected, *try_fault(stage, case))
        for sweep in BIT_SWEEPS:
            yield _make_trial(stage, sweep.fault, FOUND_COMPUTE, *sweep_bits(stage, sweep))


def set_up_trials(task: DeviceTask) -> TrialSetup:
    """Prepare the trials of *task*."""
    jobs = prepare(task).jobs
    plans = task.family.make_plans(task.shape.depth)
    filling = {plan.name for plan in plans if plan.bias}
    if filling:
        filling |= {plan.name for plan in task.family.list_sparse()}
    return TrialSetup(
        task,
        task.make_bench(task.ctx.device.part, jobs),
        tuple(job.reference.cpu() for job in jobs),
        frozenset(filling),
    )


def _make_trial(stage: TrialSetup, fault: str, expected: str, outcome: str, detail: str) -> Trial:
    return Trial(
        fault=f"{stage.task.family.name}: {fault}",
        part_id=stage.bench.part_id,
        expected=expected,
        outcome=outcome,
        detail=detail,
    )


def try_fault(stage: TrialSetup, case: FaultCase) -> tuple[str, str]:
    """Hunt with the fault of *case*; return the outcome and the details."""
    with case.inject(stage.bench) as bench:
        try:
            hunted = _hunt_trial(bench)
        except Unable as exc:
            if exc.cause is not Cause.CHECKER:
                raise
            return CHECKER_BROKEN, str(exc)
        fault = make_part_result(bench, hunted.wrong, hunted.products, hunted.seconds).corruption
    if fault is None:
        return FOUND_NOTHING, case.why or f"in {hunted.products} products"
    return FOUND_MEMORY if fault.data_as(ProductFault).in_memory else FOUND_COMPUTE, fault.text


def _hunt_trial(bench: ProductBench) -> HuntResult:
    return hunt(bench, lambda products: products >= TRIAL_PRODUCTS)


def sweep_bits(stage: TrialSetup, sweep: BitSweep) -> tuple[str, str]:
    """Try the fault of *sweep* on every bit; report those missed, and the exceptions."""
    bits = range(stage.output_bits)
    excepted = tuple(bit for bit in bits if not stage.can_show(sweep.make_fault(bit)))
    missed = tuple(bit for bit in bits if not _is_isolated(stage, sweep, bit))
    outcome = FOUND_COMPUTE if missed == excepted else f"missed: {format_ranges(missed) or 'none'}"
    share = f"{len(bits) - len(missed)} of {len(bits)} bits"
    if not excepted:
        return outcome, share
    return outcome, f"{share}; {format_ranges(excepted)} are so in every right product"


def _is_isolated(stage: TrialSetup, sweep: BitSweep, bit: int) -> bool:
    """Whether the fault of *bit* is found, in a product that differs in nothing else."""
    import torch

    fault = faults.limit_to_calls(faults.make_multiply_fault(sweep.make_fault(bit)), sweep.calls)
    with inject_multiply(fault)(stage.bench) as bench:
        wrong = _hunt_trial(bench).wrong
    if not wrong:
        return False
    right = bench.get_job(wrong[0].number)[0].reference
    xor = view_integers(wrong[0].output) ^ view_integers(right)
    return set(torch.unique(xor).tolist()) == {0, faults.make_bit_mask(bit, right)}


def list_cases(stage: TrialSetup) -> Iterator[FaultCase]:
    """List the faults that no sweep over the bits describes."""
    yield FaultCase("none", nullcontext, FOUND_NOTHING)
    yield from _list_unit_cases(stage.lowest_bit)
    yield FaultCase("a bit stuck at 1 from the first product", _inject_from_start(stage))
    if stage.references[0].is_floating_point():
        yield FaultCase("one element is NaN", _inject_once(faults.put_nan))
    if stage.can_show(faults.negate_zeros):
        yield FaultCase(
            "-0 in place of 0", inject_multiply(faults.make_multiply_fault(faults.negate_zeros))
        )
    yield from MEMORY_CASES
    yield from COMPARE_CASES
    yield from _list_control_cases(stage)


def _list_unit_cases(low: int) -> Iterator[FaultCase]:
    for at in (0, 1):
        stuck = faults.make_multiply_fault(faults.stick(low, at=at))
        seam = inject_multiply(faults.limit_to_calls(stuck, RARE_CALLS))
        yield FaultCase(f"a bit stuck at {at} in every eleventh product", seam)
    yield FaultCase("the same bit of two elements flipped", _inject_once(faults.flip_pair(0)))
    warp = _inject_once(faults.flip_periodic(0))
    yield FaultCase("a bit of every eighth element flipped", warp)
    yield FaultCase("two tiles swapped", _inject_once(faults.swap_tiles))
    yield FaultCase("a tile written twice, over another", _inject_once(faults.duplicate_tile))
    yield FaultCase("a tile never written", inject_multiply(faults.skip_tile))


def _inject_once(harm: faults.OutputFault) -> Injection:
    return inject_multiply(faults.limit_to_calls(faults.make_multiply_fault(harm), (FAULTY_CALL,)))


def _replace_seams(bench: ProductBench, **seams: Any) -> AbstractContextManager[ProductBench]:
    return nullcontext(replace(bench, seams=replace(bench.seams, **seams)))


def inject_multiply(fault: MultiplyFault) -> Injection:
    """Multiply with a *fault*."""

    def inject(bench: ProductBench) -> AbstractContextManager[ProductBench]:
        return _replace_seams(bench, multiply=fault(bench.seams.multiply))

    return inject


def _inject_memory(tensor: Callable[[ProductJob], Tensor]) -> Injection:
    @contextmanager
    def inject(bench: ProductBench) -> Generator[ProductBench]:
        with faults.corrupt_memory(tensor(bench.jobs[1])):
            yield bench

    return inject


MEMORY_CASES = (
    FaultCase("an element of operand A changed", _inject_memory(lambda job: job.a), FOUND_MEMORY),
    FaultCase("an element of operand B changed", _inject_memory(lambda job: job.b), FOUND_MEMORY),
    FaultCase(
        "an element of the reference changed",
        _inject_memory(lambda job: job.reference),
        FOUND_MEMORY,
    ),
)


def _inject_compare(blindness: CompareFault) -> Injection:
    def inject(bench: ProductBench) -> AbstractContextManager[ProductBench]:
        return _replace_seams(bench, compare=blindness(bench.seams.compare))

    return inject


COMPARE_CASES = (
    FaultCase("a comparison that sees nothing", _inject_compare(faults.ignore_all), CHECKER_BROKEN),
    FaultCase(
        "a comparison blind in 1 of 32 lanes", _inject_compare(faults.ignore_lane), CHECKER_BROKEN
    ),
    FaultCase(
        "a comparison blind to one bit", _inject_compare(faults.ignore_low_bit), CHECKER_BROKEN
    ),
    FaultCase(
        "a comparison that loses single hits",
        _inject_compare(faults.drop_single_hits),
        CHECKER_BROKEN,
    ),
)


def _inject_from_start(stage: TrialSetup) -> Injection:
    """Inject a stuck bit before there are references: the host must disprove them."""
    stuck = faults.make_multiply_fault(faults.stick(stage.lowest_bit, at=1))

    def inject(bench: ProductBench) -> AbstractContextManager[ProductBench]:
        with inject_multiply(stuck)(bench) as faulty:
            task = replace(stage.task, seams=faulty.seams, references=References())
        return nullcontext(replace(faulty, jobs=prepare(task).jobs))

    return inject


def _list_control_cases(stage: TrialSetup) -> Iterator[FaultCase]:
    stuck = faults.make_multiply_fault(faults.stick(stage.lowest_bit, at=1))
    yield FaultCase(
        "control, no proof: a stuck bit passes",
        _inject_unproven(stuck),
        FOUND_NOTHING,
        "as it must: what errs alike each time agrees with its own first answer, "
        "which is why the host proves it",
    )
    if stage.filling:
        yield FaultCase(
            "control, short sums: bit 0 stuck at 0 passes",
            _inject_short(stage),
            FOUND_NOTHING,
            "as it must: sums that are short of the accumulator never set it, which is "
            "why other plans add 2^n or round",
        )


def _inject_unproven(fault: MultiplyFault) -> Injection:
    """Take the part's own first answers for references."""

    def inject(bench: ProductBench) -> AbstractContextManager[ProductBench]:
        with inject_multiply(fault)(bench) as faulty:
            jobs = tuple(_trust_first_product(faulty, job) for job in bench.jobs)
        return nullcontext(replace(faulty, jobs=jobs))

    return inject


def _trust_first_product(bench: ProductBench, job: ProductJob) -> ProductJob:
    own = job.reference.new_empty(job.reference.shape)
    bench.seams.multiply(*view_shifted(job.a, job.b, bench.shifts[0]), own)
    return replace(job, reference=own)


def _inject_short(stage: TrialSetup) -> Injection:
    """Leave out the plans that set the lowest bits."""

    def inject(bench: ProductBench) -> AbstractContextManager[ProductBench]:
        jobs = tuple(job for job in bench.jobs if job.name not in stage.filling)
        fault = faults.make_multiply_fault(faults.stick(0, at=0))
        return inject_multiply(fault)(replace(bench, jobs=jobs))

    return inject
