"""Benches for the hunt: operands on a device, and products that the host has proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from hpcverify.check import Context, Unable
from hpcverify.model import Cause, Finding, Remedy
from hpcverify_checks._bits import digest, words
from hpcverify_checks._exact import HOST, Operands, Plan, Shape, prove, view
from hpcverify_checks._families import CPU_FAMILIES, FAMILIES, Family
from hpcverify_checks._hunt import (
    HARDWARE,
    Bench,
    Enough,
    Job,
    Seams,
    Wrong,
    hunt,
    outputs_for,
)
from hpcverify_checks._mismatch import corruption
from hpcverify_checks._torch import dtypes_of
from hpcverify_checks._universal import known

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def families_of(device: torch.device) -> list[Family]:
    """List the types of operands that *device* has units for."""
    known = CPU_FAMILIES if device.type == "cpu" else FAMILIES
    native = dtypes_of(device)
    return [family for name, family in known.items() if name in native]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a hunt on one part or core came to."""

    where: str
    products: int = 0
    seconds: float = 0.0
    mismatched: int = 0
    """Words of 64 bits."""
    corruption: Finding | None = None


@dataclass(frozen=True, slots=True)
class Reference:
    """A product that is right, where it is compared with."""

    product: Tensor
    digest: int
    """Taken on the host."""
    certificate: int


@dataclass(frozen=True, slots=True)
class Library:
    """The references that several types of operands share on one device."""

    shelf: dict[tuple[Plan, Shape], Reference] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One type of operands with which to examine one device."""

    ctx: Context
    family: Family
    shape: Shape
    device: torch.device
    seams: Seams = HARDWARE
    draw: int = 0
    library: Library = field(default_factory=Library)

    def output(self) -> Tensor:
        """Make room for one product."""
        import torch

        return torch.empty(
            self.shape.size,
            self.shape.size,
            dtype=getattr(torch, self.family.output),
            device=self.device,
        )

    def bench(self, where: str, jobs: tuple[Job, ...]) -> Bench:
        """Make outputs for the part or core *where*."""
        outputs = [self.output() for _ in range(outputs_for(len(jobs), self.device))]
        return Bench(
            where, self.family.name, jobs, tuple(outputs), self.ctx.seed, self.seams
        )

    def hunt(self, where: str, jobs: tuple[Job, ...], enough: Enough) -> Outcome:
        """Hunt on the part or core *where*."""
        bench = self.bench(where, jobs)
        bag = hunt(bench, enough)
        return concluded(bench, bag.wrong, bag.products, bag.seconds)


def concluded(
    bench: Bench, wrong: Sequence[Wrong], products: int, seconds: float
) -> Outcome:
    """Say what came of so many *products*, and look into the first *wrong* one."""
    mismatched = sum(one.words for one in wrong)
    found = corruption(bench, wrong[0]) if wrong else None
    return Outcome(bench.where, products, seconds, mismatched, found)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The jobs of a task, with what was wrong already when they were made."""

    jobs: tuple[Job, ...]
    certificates: tuple[int, ...]
    found: tuple[Outcome, ...] = ()


def prepare(task: Task) -> Prepared:
    """Put all plans of *task* on its device, and prove a product of each."""
    made = [_job(task, plan) for plan in task.family.plans(task.shape.depth)]
    jobs = tuple(job for job, _, _ in made)
    certificates = tuple(reference.certificate for _, reference, _ in made)
    wrong = [
        Wrong(number, int((words(first) != words(reference.product)).sum()), first)
        for number, (_, reference, first) in enumerate(made)
        if first is not None
    ]
    if not wrong:
        return Prepared(jobs, certificates)
    bench = task.bench(task.ctx.device.part, jobs)
    return Prepared(jobs, certificates, (concluded(bench, wrong, len(jobs), 0.0),))


def _job(task: Task, plan: Plan) -> tuple[Job, Reference, Tensor | None]:
    """Put one plan on the device; its first product comes too if it was wrong."""
    import torch

    made = Operands(plan, task.shape, task.draw)
    dtype = getattr(torch, task.family.operand)
    stored = partial(made.stored, dtype, by_columns=task.family.by_columns)
    a, b = stored(task.device)
    reference, wrong = task.library.shelf.get((plan, task.shape)), None
    if reference is None:
        first = task.output()
        task.seams.multiply(*view(a, b, 0), first)
        reference, right = _referred(task, made, first)
        wrong = None if right else first
    job = Job(
        plan.name,
        a,
        b,
        reference.product,
        reference.digest,
        partial(stored, HOST),
        task.draw,
    )
    return job, reference, wrong


def _referred(task: Task, made: Operands, first: Tensor) -> tuple[Reference, bool]:
    """Make a reference of the *first* product, and say whether that was right."""
    import torch

    product, certificate = proven(made, first.cpu(), task.ctx.seed)
    right = torch.equal(words(product), words(first.cpu()))
    kept = first.clone() if right else product.to(task.device)
    reference = Reference(kept, digest(product), certificate)
    task.library.shelf[made.plan, made.shape] = reference
    return reference, right


def proven(made: Operands, product: Tensor, seed: int) -> tuple[Tensor, int]:
    """
    Give *product* back, on the host, with wrong rows put right, and the certificate.

    Where the digest of the right product is shipped, it proves the product by itself;
    else Freivalds' check does.

    Raises:
        Unable: The host cannot prove its own product, or contradicts the digest
            that holds everywhere: then it is the host that computes wrongly. Or the
            plan is not exact with these operands.

    """
    shipped, name = known(made), made.plan.name
    if shipped and digest(product) == shipped[1]:
        return product, shipped[0]
    proof = prove(made, product, seed)
    if proof.wrong_rows:
        rows = list(proof.wrong_rows)
        product = product.clone()
        product[rows] = made.exact_rows(rows).to(product.dtype)
        proof = prove(made, product, seed)
    _require(not proof.wrong_rows, f"the host disproves its own product of plan {name}")
    _require(proof.certificate <= made.plan.limit, f"plan {name} is inexact")
    _require(
        not shipped or digest(product) == shipped[1],
        f"the proven product of plan {name} contradicts its digest",
    )
    return product, proof.certificate


def _require(sound: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not sound:
        raise Unable(
            f"{otherwise}: the check itself is unsound here",
            Cause.CHECKER,
            Remedy.FIX_CHECKER,
        )
