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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify_checks.exact.bits import view_integers, view_words
from hpcverify_checks.exact.families import Family
from hpcverify_checks.exact.kernels import load_comparison
from hpcverify_checks.exact.product_loop import (
    HuntResult,
    ProductBench,
    ProductJob,
    ProductSeams,
    hunt,
)
from hpcverify_checks.exact.products import Shape, view_shifted
from hpcverify_checks.exact.vote import ProductFault
from hpcverify_checks.node.cores import format_ranges
from hpcverify_checks.node.device import find_torch_device, use_float32_precision
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
    """A *fault*, the bench that has it, and the *expected* outcome."""

    fault: str
    bench: ProductBench
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


def selftest(ctx: hv.Context) -> Iterator[hv.Trial]:
    """Try all faults with every type of operands of the part."""
    device = find_torch_device(ctx)
    for family in list_families(device):
        yield from run_trials(ctx, family, device)


def run_trials(ctx: hv.Context, family: Family, device: torch.device) -> Iterator[hv.Trial]:
    """Try all faults with one type of operands."""
    with use_float32_precision(family.precision):
        seams = ProductSeams(compare=load_comparison(device)[0])
        (trial,) = try_offsets([DeviceTask(ctx, family, TRIAL_SHAPE, device, seams)])
        task = trial.task
        if not task.shifts:  # no product of this type is to be had here
            return
        stage, part_id = set_up_trials(task), ctx.device.part

        def make_trial(fault: str, expected: str, found: tuple[str, str]) -> hv.Trial:
            outcome, detail = found
            return hv.Trial(
                fault=f"{family.name}: {fault}",
                part_id=part_id,
                expected=expected,
                outcome=outcome,
                detail=detail,
            )

        for case in list_cases(stage):
            yield make_trial(case.fault, case.expected, try_fault(case))
        for sweep in BIT_SWEEPS:
            yield make_trial(sweep.fault, FOUND_COMPUTE, sweep_bits(stage, sweep))


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


def try_fault(case: FaultCase) -> tuple[str, str]:
    """Hunt with the fault of *case*; return the outcome and the details."""
    try:
        hunted = _hunt_trial(case.bench)
    except hv.Unable as exc:
        if exc.cause is not hv.Cause.CHECKER:
            raise
        return hv.CHECKER_BROKEN, str(exc)
    fault = make_part_result(case.bench, hunted.wrong, hunted.products, hunted.seconds).corruption
    if fault is None:
        return hv.FOUND_NOTHING, case.why or f"in {hunted.products} products"
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
    bench = inject(stage.bench, fault)
    wrong = _hunt_trial(bench).wrong
    if not wrong:
        return False
    right = bench.get_job(wrong[0].number)[0].reference
    xor = view_integers(wrong[0].output) ^ view_integers(right)
    return set(torch.unique(xor).tolist()) == {0, faults.make_bit_mask(bit, right)}


def inject(bench: ProductBench, fault: MultiplyFault) -> ProductBench:
    """Let *bench* multiply with a *fault*."""
    return replace(bench, seams=replace(bench.seams, multiply=fault(bench.seams.multiply)))


def list_cases(stage: TrialSetup) -> Iterator[FaultCase]:
    """List the faults that no sweep over the bits describes; each is there until the next one."""
    bench, low = stage.bench, stage.lowest_bit
    yield FaultCase("none", bench, hv.FOUND_NOTHING)
    for at in (0, 1):
        stuck = faults.make_multiply_fault(faults.stick(low, at=at))
        rare = inject(bench, faults.limit_to_calls(stuck, RARE_CALLS))
        yield FaultCase(f"a bit stuck at {at} in every eleventh product", rare)
    for fault, harm in SINGLE_HARMS.items():
        if harm is not faults.put_nan or stage.references[0].is_floating_point():
            once = faults.limit_to_calls(faults.make_multiply_fault(harm), (FAULTY_CALL,))
            yield FaultCase(fault, inject(bench, once))
    yield FaultCase("a tile never written", inject(bench, faults.skip_tile))
    # Before there are references: the host must disprove them.
    faulty = inject(bench, stuck)
    task = replace(stage.task, seams=faulty.seams, references=References())
    made = replace(faulty, jobs=prepare(task).jobs)
    yield FaultCase("a bit stuck at 1 from the first product", made)
    if stage.can_show(faults.negate_zeros):
        signs = faults.make_multiply_fault(faults.negate_zeros)
        yield FaultCase("-0 in place of 0", inject(bench, signs))
    job = bench.jobs[1]
    places = ("operand A", job.a), ("operand B", job.b), ("the reference", job.reference)
    for place, tensor in places:
        with faults.corrupt_memory(tensor):
            yield FaultCase(f"an element of {place} changed", bench, FOUND_MEMORY)
    for blind, blindness in BLIND_COMPARISONS.items():
        seams = replace(bench.seams, compare=blindness(bench.seams.compare))
        yield FaultCase(f"a comparison {blind}", replace(bench, seams=seams), hv.CHECKER_BROKEN)
    yield from _list_control_cases(stage, faulty)


SINGLE_HARMS: Mapping[str, OutputFault] = {
    "the same bit of two elements flipped": faults.flip_pair(0),
    "a bit of every eighth element flipped": faults.flip_periodic(0),
    "two tiles swapped": faults.swap_tiles,
    "a tile written twice, over another": faults.duplicate_tile,
    "one element is NaN": faults.put_nan,
}
"""What is done to one product."""
BLIND_COMPARISONS: Mapping[str, CompareFault] = {
    "that sees nothing": faults.ignore_all,
    "blind in 1 of 32 lanes": faults.ignore_lane,
    "blind to one bit": faults.ignore_low_bit,
    "that loses single hits": faults.drop_single_hits,
}


def _list_control_cases(stage: TrialSetup, stuck: ProductBench) -> Iterator[FaultCase]:
    jobs: list[ProductJob] = []
    for job in stuck.jobs:  # the part's own first answers for references
        own = job.reference.new_empty(job.reference.shape)
        stuck.seams.multiply(*view_shifted(job.a, job.b, stuck.shifts[0]), own)
        jobs.append(replace(job, reference=own))
    yield FaultCase(
        "control, no proof: a stuck bit passes",
        replace(stuck, jobs=tuple(jobs)),
        hv.FOUND_NOTHING,
        "as it must: what errs alike each time agrees with its own first answer, "
        "which is why the host proves it",
    )
    if stage.filling:  # leave out the plans that set the lowest bits
        short = tuple(job for job in stage.bench.jobs if job.name not in stage.filling)
        zero = faults.make_multiply_fault(faults.stick(0, at=0))
        yield FaultCase(
            "control, short sums: bit 0 stuck at 0 passes",
            replace(inject(stage.bench, zero), jobs=short),
            hv.FOUND_NOTHING,
            "as it must: sums that are short of the accumulator never set it, which is "
            "why other plans add 2^n or round",
        )
