"""Benches for the hunt: operands on a device, and products that the host has proven."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify_checks.exact.bits import compute_digest
from hpcverify_checks.exact.families import CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks.exact.investigation import investigate_corruption
from hpcverify_checks.exact.mismatch import count_unequal
from hpcverify_checks.exact.product_loop import (
    ProductBench,
    ProductJob,
    ProductTask,
    ShouldStop,
    WrongProduct,
    hunt,
    poison,
)
from hpcverify_checks.exact.products import HOST_DEVICE, PlannedOperands, ProductProof, view_shifted
from hpcverify_checks.exact.vote import UNWITNESSED_CODE
from hpcverify_checks.node.cores import format_ranges, pick_cores, run_on_each
from hpcverify_checks.node.device import list_native_dtypes
from hpcverify_checks.sdc.digests import find_shipped

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")


def list_families(device: torch.device) -> list[Family]:
    """List the types of operands that *device* has units for."""
    known = CPU_FAMILIES if device.type == "cpu" else FAMILIES
    native = list_native_dtypes(device)
    return [family for name, family in known.items() if name in native]


MAX_REPAIRED_ROWS = 512
"""Rows of a wrong product that the host computes, to say what they should be."""
WITNESS_CORES, MAX_WITNESS_CORES = 2, 5
"""Cores of the host that must each find a product wrong before a part fails, and those that
are asked which is wrong if these do not agree."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of a hunt on one part or core."""

    part_id: str
    products: int = 0
    seconds: float = 0.0
    """The time of the GPU, or the core's time for this thread."""
    mismatched_words: int = 0
    """Words of 64 bits."""
    corruption: hv.Finding | None = None
    data: frozenset[tuple[str, int]] = frozenset()
    """Which plans were multiplied, at which shift: all else repeats these."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A correct product, on the device where others are compared with it."""

    product: Tensor
    digest: int
    """Taken on the host."""
    certificate: int


References = dict[PlannedOperands, Reference]
"""Shared by several types of operands on one device."""


@dataclass(frozen=True, slots=True)
class DeviceTask(ProductTask):
    """One type of operands with which to test one device."""

    family: Family
    references: References = field(default_factory=References)

    @property
    def first_core(self) -> int:
        """The core that makes the first products on a CPU: a different one in each run."""
        return pick_cores(cpu.read_cores().allowed, 1, self.ctx.rotation)[0]

    @property
    def first_where(self) -> str:
        """The part or core that makes the first products and fails if they are wrong."""
        on_cpu = self.device.type == "cpu"
        return f"cpu{self.first_core}" if on_cpu else self.ctx.device.part

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Do *work* where the first products are made: on a CPU, pinned to a core."""
        if self.device.type != "cpu":
            return work()
        (done,) = run_on_each((self.first_core,), lambda _: work())
        return done

    def start_at(self, turn: int) -> DeviceTask:
        """Go through the same shifts, but begin with the one of this *turn*."""
        first = turn % len(self.shifts)
        return replace(self, shifts=(*self.shifts[first:], *self.shifts[:first]))

    def hunt(
        self, part_id: str, jobs: tuple[ProductJob, ...], should_stop: ShouldStop
    ) -> PartResult:
        """Hunt on the part or core *part_id*."""
        bench = self.make_bench(part_id, jobs)
        with self.stalls.time_batches(self.device) as note:
            bag = hunt(bench, should_stop, note)
        return make_part_result(bench, bag.wrong, bag.products, bag.seconds)


def make_part_result(
    bench: ProductBench, wrong: Sequence[WrongProduct], products: int, seconds: float
) -> PartResult:
    """Sum up a hunt over so many *products*, and investigate the first *wrong* one."""
    mismatched = sum(product.words for product in wrong)
    corruption = investigate_corruption(bench, wrong[0]) if wrong else None
    distinct = min(products, len(bench.jobs) * len(bench.shifts))
    places = (bench.get_job(number) for number in range(distinct))
    data = frozenset((job.name, shift) for job, shift in places)
    return PartResult(bench.part_id, products, seconds, mismatched, corruption, data)


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan on the device of a task."""

    name: str
    job: ProductJob | None = None
    """None if its product could not be repaired."""
    text: str = ""
    """What it exercises."""
    failure: PartResult | None = None
    """What was wrong with its first product."""


@dataclass(frozen=True, slots=True)
class PreparedJobs:
    """The jobs of a task, and what was already wrong in their first products."""

    jobs: tuple[ProductJob, ...]
    failures: tuple[PartResult, ...] = ()


def prepare(task: DeviceTask) -> PreparedJobs:
    """Put all plans of *task* on its device, and prove a product of each."""
    made = tuple(prepare_each(task))
    return PreparedJobs(
        tuple(plan.job for plan in made if plan.job),
        tuple(plan.failure for plan in made if plan.failure),
    )


def prepare_each(task: DeviceTask) -> Iterator[PreparedPlan]:
    """
    Put the plans of *task* on its device one by one, and prove a product of each.

    They begin with another one in each run, for whoever has no time for all of them.

    The host repairs a wrong product. Where that would take more than seconds, the plan
    is left out of the hunt; only the first such plan is investigated, which is enough
    to fail the part.
    """
    is_reported = False
    every = task.family.list_operands(task.shape, task.draw)
    first = task.ctx.rotation % len(every)
    for made in (*every[first:], *every[:first]):
        failure = None
        begin = partial(hv.operation, f"the first {task.family.name} products", task.ctx.device)
        with begin():
            job = _make_unproven_job(task, made)
        if made not in task.references:
            reference = job.reference
            with begin():
                host = reference.cpu()
            proof = prove_product(made, host, task.ctx.seed)
            if is_reported and len(proof.wrong_rows) > MAX_REPAIRED_ROWS:
                failure = PartResult(task.first_where, 1, 0.0, len(proof.wrong_rows))
            elif proof.wrong_rows:
                if not is_reported:
                    _require_witnesses(made, host, proof, task.ctx)
                copied = host
                host, proof = _repair_rows(made, host, proof, task.ctx.seed)
                reference = host.to(task.device)
                failure, is_reported = report_first_product(task, job, copied, host), True
            if proof.wrong_rows:
                yield PreparedPlan(made.name, failure=failure)
                continue
            task.references[made] = Reference(reference, compute_digest(host), proof.certificate)
        known = task.references[made]
        proven = replace(job, reference=known.product, digest=known.digest)
        text = made.describe(known.certificate, known.product)
        yield PreparedPlan(made.name, proven, text, failure)


def _make_unproven_job(task: DeviceTask, made: PlannedOperands) -> ProductJob:
    """Store the operands of *made*, and compute their first product if it is needed."""
    import torch

    dtype = getattr(torch, task.family.operand)
    stored = partial(made.store, dtype, by_columns=task.family.by_columns)
    a, b = stored(task.device)
    first = task.make_output()
    if made not in task.references:
        poison(first)
        task.run_on_first(partial(task.seams.multiply, *view_shifted(a, b, task.shifts[0]), first))
    return ProductJob(made.name, a, b, first, 0, partial(stored, HOST_DEVICE), made.draw)


def report_first_product(
    task: DeviceTask, job: ProductJob, copied: Tensor, right: Tensor
) -> PartResult:
    """
    Report the wrong first product of the part, which should have been *right*.

    If a GPU has it right in its memory, it was changed on its way to the host, where it was
    *copied*. If another core of the host finds that right, the first one erred.
    """
    product = job.reference
    reference = right.to(task.device)
    judged = replace(job, reference=reference, digest=compute_digest(right))
    wrong = WrongProduct(0, count_unequal(product, reference), product)
    if not wrong.words and task.device.type != HOST_DEVICE:
        cores = pick_cores(cpu.read_cores().allowed, WITNESS_CORES, task.ctx.rotation)
        if judged.digest in run_on_each(cores, lambda _: compute_digest(copied)):
            text = (
                f"the copy of the first product of plan {job.name} on the host was taken for "
                "wrong, and is right: a core of the host erred: run cpu_units and host_memory"
            )
            finding = hv.Finding(UNWITNESSED_CODE, task.first_where, text)
            return PartResult(task.first_where, 1, corruption=finding)
        text = (
            f"the first product of plan {job.name} is right in the GPU's memory, and was wrong "
            "when it had been copied to the host"
        )
        finding = hv.Finding("miscopied", task.first_where, text)
        return PartResult(task.first_where, 1, corruption=finding)
    _require_host(wrong.words > 0, f"the host disproves a right product of plan {job.name}")
    bench = task.make_bench(task.first_where, (judged,))
    return task.run_on_first(partial(make_part_result, bench, [wrong], 1, 0.0))


def _require_witnesses(
    made: PlannedOperands, product: Tensor, proof: ProductProof, ctx: hv.Context
) -> None:
    """Prove *product* again, on several cores of the host independently."""
    allowed = cpu.read_cores().allowed

    def ask(count: int, seed: int) -> dict[int, tuple[int, ...]]:
        cores = pick_cores(allowed, count, ctx.rotation)
        proofs = run_on_each(cores, lambda core: made.prove(product, seed + core))
        return {core: p.wrong_rows for core, p in zip(cores, proofs, strict=True)}

    if set(ask(WITNESS_CORES, ctx.seed + 1).values()) != {proof.wrong_rows}:
        answers = ask(MAX_WITNESS_CORES, ctx.seed + 1 + len(allowed))
        differ = describe_dissent(answers)
        _require_host(False, f"whether the product of plan {made.name} is right: {differ}")  # noqa: FBT003 - it reads as an assertion


def describe_dissent(answers: Mapping[int, tuple[int, ...]]) -> str:
    """Describe which cores differ in their *answers* from most of the others, if any do."""
    (most, count), *_ = Counter(answers.values()).most_common(1)
    others = [core for core, rows in answers.items() if rows != most]
    if not others:
        return "cores of the host did not agree, and now they do"
    if 2 * count <= len(answers):
        return f"cores {format_ranges([*answers])} of the host do not agree"
    agreed = format_ranges([core for core in answers if core not in others])
    return f"core {format_ranges(others)} of the host does not agree with cores {agreed}"


def prove_product(made: PlannedOperands, product: Tensor, seed: int) -> ProductProof:
    """
    Prove *product* on the host, or list its wrong rows.

    A shipped digest of the correct product is proof enough; without one the operands'
    own proof decides.
    """
    shipped = find_shipped(made)
    if shipped and compute_digest(product) == shipped[1]:
        return ProductProof((), shipped[0])
    proof = made.prove(product, seed)
    if not proof.wrong_rows:
        name = made.name
        if proof.certificate > made.limit:
            # On more than one: this thread may have been on the first of them.
            cores = pick_cores(cpu.read_cores().allowed, WITNESS_CORES, seed)
            again = {*run_on_each(cores, lambda _: made.prove(product, seed))}
            _require_host(again == {proof}, f"two proofs of plan {name} are not the same")
        _require(proof.certificate <= made.limit, f"plan {name} is inexact")
        if shipped:
            cores = pick_cores(cpu.read_cores().allowed, WITNESS_CORES, seed)
            digests = [*run_on_each(cores, lambda _: compute_digest(product))]
            _require_host(shipped[1] not in digests, f"the digest of plan {name} was wrong once")
        _require(not shipped, f"the product of plan {name} contradicts its digest")
    return proof


def _repair_rows(
    made: PlannedOperands, product: Tensor, proof: ProductProof, seed: int
) -> tuple[Tensor, ProductProof]:
    """Repair the first wrong rows of *product*, and prove the result."""
    rows = list(proof.wrong_rows[:MAX_REPAIRED_ROWS])
    right = product.clone()
    right[rows] = made.compute_rows(rows, product.dtype)
    again = made.prove(right, seed + 1)
    contradicted = set(again.wrong_rows) & set(rows)
    name = made.name
    _require_host(not contradicted, f"the host disproves its own product of plan {name}")
    return right, again


def _require(sound: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not sound:
        raise hv.Unable(
            f"{otherwise}: the check itself is unsound here",
            hv.Cause.CHECKER,
            hv.Remedy.FIX_CHECKER,
        )


def _require_host(sound: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not sound:
        raise hv.Unable(
            f"{otherwise}: a core of the host or its memory errs, so nothing can be proven here: "
            "run cpu_units and host_memory",
            hv.Cause.CHECKER,
            hv.Remedy.INSPECT,
        )
