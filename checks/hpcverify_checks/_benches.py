"""Benches for the hunt: operands on a device, and products that the host has proven."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from hpcverify.check import Context, Unable
from hpcverify.model import Cause, Finding, Remedy
from hpcverify.telemetry import cpu
from hpcverify_checks._bits import digest, words
from hpcverify_checks._cores import listed, on_each, turn
from hpcverify_checks._exact import HOST, Operands, Plan, Proof, Shape, prove, view
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
    poison,
)
from hpcverify_checks._mismatch import corruption
from hpcverify_checks._torch import dtypes_of
from hpcverify_checks._universal import known

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")


def families_of(device: torch.device) -> list[Family]:
    """List the types of operands that *device* has units for."""
    known = CPU_FAMILIES if device.type == "cpu" else FAMILIES
    native = dtypes_of(device)
    return [family for name, family in known.items() if name in native]


MENDED = 512
"""Rows of a wrong product that the host computes, to say what they should be."""
WITNESSES = 2
"""Cores of the host that must each find a product wrong before a part is accused."""


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

    @property
    def core(self) -> int:
        """The core that makes the first products on a CPU: another one in each run."""
        return turn(cpu.cores().allowed, 1, self.ctx.rotation)[0]

    @property
    def first_where(self) -> str:
        """The part or core that makes the first products, and answers for them."""
        on_cpu = self.device.type == "cpu"
        return f"cpu{self.core}" if on_cpu else self.ctx.device.part

    def at_first(self, work: Callable[[], T]) -> T:
        """Do *work* where the first products are made: on a CPU, pinned to a core."""
        if self.device.type != "cpu":
            return work()
        (done,) = on_each((self.core,), lambda _: work())
        return done

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
    made = list(readied(task))
    ready = [item for item in made if isinstance(item, Ready)]
    return Prepared(
        tuple(item.job for item in ready),
        tuple(item.certificate for item in ready),
        tuple(item for item in made if isinstance(item, Outcome)),
    )


@dataclass(frozen=True, slots=True)
class Ready:
    """A job whose product is proven, and what bounds its partial sums."""

    job: Job
    certificate: int


def readied(task: Task) -> Iterator[Ready | Outcome]:
    """
    Put the plans of *task* on its device one by one, and prove a product of each.

    A wrong product is put right by the host. Where more of it is wrong than that is
    done in seconds, its plan is left out of the hunt, and only the first such plan
    is looked into: the part is accused by then.

    Raises:
        Unable: The host contradicts itself, and nobody can be accused.

    """
    accused = False
    for plan in task.family.plans(task.shape.depth):
        made = Operands(plan, task.shape, task.draw)
        job = _unproven(task, made)
        reference = task.library.shelf.get((plan, task.shape))
        if reference is None:
            host = job.reference.cpu()
            proof = proven(made, host, task.ctx.seed)
            rows = len(proof.wrong_rows)
            if rows > MENDED and accused:
                yield Outcome(task.first_where, 1, 0.0, rows)
                continue
            if rows:
                if not accused:
                    _require_witnesses(made, host, proof, task.ctx)
                host, again = _mended(made, host, proof, task.ctx.seed)
                yield _disproved(task, job, host)
                accused = True
                if again.wrong_rows:
                    continue
                proof, job = again, replace(job, reference=host.to(task.device))
            kept = Reference(job.reference, digest(host), proof.certificate)
            reference = task.library.shelf[plan, task.shape] = kept
        yield Ready(
            replace(job, reference=reference.product, digest=reference.digest),
            reference.certificate,
        )


def _unproven(task: Task, made: Operands) -> Job:
    """Store the operands of *made*, with their first product, if it is wanted."""
    import torch

    dtype = getattr(torch, task.family.operand)
    stored = partial(made.stored, dtype, by_columns=task.family.by_columns)
    a, b = stored(task.device)
    first = task.output()
    if (made.plan, made.shape) not in task.library.shelf:
        poison(first)
        task.at_first(partial(task.seams.multiply, *view(a, b, 0), first))
    return Job(made.plan.name, a, b, first, 0, partial(stored, HOST), made.draw)


def _disproved(task: Task, job: Job, right: Tensor) -> Outcome:
    """
    Accuse the part of its first product, which should have been *right*.

    Raises:
        Unable: It is: the host has disproved what it computes the same way itself.

    """
    found = job.reference
    reference = right.to(task.device)
    judged = replace(job, reference=reference, digest=digest(right))
    wrong = Wrong(0, int((words(found) != words(reference)).sum()), found)
    _require(wrong.words > 0, f"the host disproves a right product of plan {job.name}")
    bench = task.bench(task.first_where, (judged,))
    return task.at_first(partial(concluded, bench, [wrong], 1, 0.0))


def _require_witnesses(
    made: Operands, product: Tensor, proof: Proof, ctx: Context
) -> None:
    """
    Prove *product* again, on cores of the host that each do so by themselves.

    Raises:
        Unable: One of them finds other rows wrong than *proof* says.

    """
    cores = turn(cpu.cores().allowed, WITNESSES, ctx.rotation)
    again = on_each(cores, lambda core: prove(made, product, ctx.seed + 1 + core))
    _require(
        all(other.wrong_rows == proof.wrong_rows for other in again),
        f"cores {listed(cores)} of the host do not agree on whether the product of "
        f"plan {made.plan.name} is right",
    )


def proven(made: Operands, product: Tensor, seed: int) -> Proof:
    """
    Prove *product*, on the host: name the rows that are wrong.

    Where the digest of the right product is shipped, it proves the product by itself;
    else Freivalds' check does.

    Raises:
        Unable: The plan is not exact with these operands, or the digest that holds
            everywhere is contradicted: then it is the host that computes wrongly. Or
            the product has zeros with a sign, which may be how the unit rounds.

    """
    shipped = known(made)
    if shipped and digest(product) == shipped[1]:
        return Proof((), shipped[0])
    proof = prove(made, product, seed)
    if not proof.wrong_rows:
        name = made.plan.name
        _require(not proof.negative_zeros, f"plan {name} has zeros with a minus sign")
        _require(proof.certificate <= made.plan.limit, f"plan {name} is inexact")
        _require(not shipped, f"the product of plan {name} contradicts its digest")
    return proof


def _mended(
    made: Operands, product: Tensor, proof: Proof, seed: int
) -> tuple[Tensor, Proof]:
    """
    Put the first wrong rows of *product* right, and prove that.

    Raises:
        Unable: The host disproves what it has computed itself.

    """
    rows = list(proof.wrong_rows[:MENDED])
    right = product.clone()
    right[rows] = made.exact_rows(rows).to(product.dtype)
    again = prove(made, right, seed + 1)
    contradicted = set(again.wrong_rows) & set(rows)
    name = made.plan.name
    _require(not contradicted, f"the host disproves its own product of plan {name}")
    return right, again


def _require(sound: bool, otherwise: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not sound:
        raise Unable(
            f"{otherwise}: the check itself is unsound here",
            Cause.CHECKER,
            Remedy.FIX_CHECKER,
        )
