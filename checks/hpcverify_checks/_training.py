"""
Training steps, replayed from the same state and compared bit by bit.

A replay is some steps of forward, backward and AdamW from the same parameters with the
same batches. Of every step it leaves digests: of the batch, the loss, each group of
gradients and the parameters. They are computed where the tensors are, and the host
looks at them once, when the replay is over. The batch has two: one is taken on the
host, before the device has seen it.

Several ranks train on the same data, so that all must come to the same gradients. They
sum them in a type so wide that the sum of equal values is exact in any order, and each
compares the sum with its own gradients, times the ranks. It goes on with its own: what
one rank computes wrongly must not make the others look wrong, too.

What differs is told before any rank waits for another: a part that errs is often lost
next, and its peers with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpcverify_checks._bits import digested, integers, integers_of, mixed, words
from hpcverify_checks._collective import (
    Group,
    Reduce,
    all_reduce,
    elapsed,
    joined,
    least,
    mark,
)
from hpcverify_checks._torch import float32_as, threads_as
from hpcverify_checks._transformer import (
    Layout,
    Multiply,
    Shape,
    Transformer,
    initial,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

RERUNS = 3
"""After a replay that differs: to tell persistent from intermittent."""
LEAST_REPLAYS = 2
"""Compared with the first, however short the time."""
RATE, DECAY, EPSILON = 1e-3, 1e-2, 1e-8
BETAS = (0.9, 0.999)
"""What torch.optim.AdamW has by default."""
BINS = 2**12
WIDER = {"bfloat16": "float32", "float32": "float64"}
"""Holds the sum of n equal values exactly, up to 2^16 and 2^29 of them. In the type
itself three times a value is rounded, and eight times it may come out wrong."""
KEYS = 2**16
"""Keys of the hash for one seed: one for the parameters, one for each step's batch."""

HOST, BEGINNING = "batch on the host", "initial parameters"
BATCH, SCATTER = "batch", "scatter of gradients"
"""Of what rounds nothing, as copies and sums of integers."""
GRADIENTS = "gradients of "
WRONG_SUMS = "wrong sums"
"""Is 0 in every replay, where digests need only be the same."""
INPUT, COMPUTE, COMMUNICATION = "input", "compute", "communication"


class Training(Group, frozen=True):
    """What all ranks of a training have in common."""

    shape: Shape
    dtype: str
    """Of weights, activations and gradients, as torch calls it."""
    steps: int
    """In a replay."""
    seconds: float
    seed: int
    threads: int
    """On a CPU, for each rank: sums are split between them, and rounded otherwise."""
    alike: bool
    """Whether all ranks compute on the same kind of part."""


Feed = Callable[[Training, int], "Tensor"]
"""Makes the batch of a step, on the host: int64 tokens, batch x (sequence + 1)."""


def feed(job: Training, step: int) -> Tensor:
    """Draw the batch of *step* from the seed: the same on every rank."""
    shape = job.shape
    rows, bound = range(shape.batch), shape.vocabulary
    drawn = integers(job.seed * KEYS + step, rows, shape.sequence + 1, bound, "cpu")
    return drawn % shape.vocabulary


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices, or batches of them."""
    return a @ b


def on_device(batch: Tensor, device: torch.device) -> Tensor:
    """Start copying *batch* to *device*; the host does not wait."""
    return batch.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Seams:
    """What feeds, copies, multiplies and sums; tests put faulty ones here."""

    feed: Feed = feed
    copy: Callable[[Tensor, torch.device], Tensor] = on_device
    multiply: Multiply = matmul
    reduce: Reduce = all_reduce


HARDWARE = Seams()

Record = dict[str, int]
"""What a replay left: 64-bit digests by what they are of, in the order of computing."""
Times = dict[str, float]
"""The seconds of one step by phase."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Times the phases of steps where they run; waits for nothing."""

    device: torch.device
    marks: list[tuple[int, str, Any, Any]] = field(default_factory=list)

    @contextmanager
    def phase(self, step: int, name: str) -> Generator[None]:
        """Count what is done meanwhile to the phase *name* of *step*."""
        before = mark(self.device)
        yield
        self.marks.append((step, name, before, mark(self.device)))

    def times(self) -> list[Times]:
        """Add up the phases of each step, all of which must be over."""
        steps: dict[int, Times] = {}
        for step, name, before, after in self.marks:
            times = steps.setdefault(step, {})
            times[name] = times.get(name, 0.0) + elapsed(before, after)
        return list(steps.values())


@dataclass(frozen=True, slots=True)
class Trainer:
    """Parameters, gradients and moments, each flat, and the model that uses them."""

    job: Training
    device: torch.device
    seams: Seams
    layout: Layout
    model: Transformer
    beginning: Tensor
    parameters: Tensor
    """fp32, as the optimizer keeps them."""
    working: Tensor
    """The same in the type of the job: what the model's weights are views of."""
    gradients: Tensor
    moments: Tensor
    """First and second, one row each."""
    total: Tensor | None
    """The gradients of all ranks together, if there are several."""

    @classmethod
    def made(cls, job: Training, device: torch.device, seams: Seams) -> Trainer:
        """Allocate everything, and make the parameters to begin with."""
        import torch

        layout, dtype = Layout(job.shape), getattr(torch, job.dtype)
        beginning = initial(layout, (job.seed + 1) * KEYS - 1, device)
        # Two tensors: autograd would take a gradient's change for one of the weights.
        working = torch.zeros(layout.size, dtype=dtype, device=device)
        gradients = torch.zeros_like(working)
        weights = leaves(layout, working, gradients)
        wide = getattr(torch, WIDER[job.dtype])
        square = torch.ones(2 * (job.shape.sequence,), device=device)
        return cls(
            job=job,
            device=device,
            seams=seams,
            layout=layout,
            model=Transformer(
                job.shape, weights, seams.multiply, square.triu(1).bool()
            ),
            beginning=beginning,
            parameters=torch.empty_like(beginning),
            working=working,
            gradients=gradients,
            moments=torch.empty(2, layout.size, device=device),
            total=gradients.to(wide) if job.world > 1 else None,
        )

    def replay(self, clock: Clock) -> dict[str, Tensor]:
        """Train from the beginning, and leave what a `Record` is made of."""
        self.parameters.copy_(self.beginning)
        self.moments.zero_()
        left = {BEGINNING: digested(self.parameters)}
        for step in range(self.job.steps):
            found = self._step(step, clock)
            left |= {f"step {step + 1}: {name}": value for name, value in found}
        return left

    def _step(self, step: int, clock: Clock) -> Iterator[tuple[str, Tensor]]:
        with clock.phase(step, INPUT):
            drawn = self.seams.feed(self.job, step)
            # What the device reads: a copy that went wrong before is the host's.
            drawn = drawn.pin_memory() if self.device.type == "cuda" else drawn
            batch = self.seams.copy(drawn, self.device)
        yield HOST, digested(drawn)
        yield BATCH, digested(batch)
        with clock.phase(step, COMPUTE):
            loss = self._backward(batch)
        yield "loss", integers_of(loss).long()
        for group, part in reversed(self.layout.groups.items()):
            yield f"{GRADIENTS}{group}", digested(self.gradients[part])
        scattering = self.layout.groups["perceptron 0"]
        yield SCATTER, digested(scattered(self.gradients[scattering]))
        if self.total is not None:
            with clock.phase(step, COMMUNICATION):
                self.total.copy_(self.gradients)
                self.seams.reduce(self.total)
            if self.job.alike:
                yield WRONG_SUMS, self._wrong_sums(self.total)
        with clock.phase(step, COMPUTE):
            adamw(self.parameters, self.gradients.float(), self.moments, step + 1)
        yield "parameters", digested(self.parameters)

    def _backward(self, batch: Tensor) -> Tensor:
        """Leave the gradients of the loss, which is given back."""
        self.working.copy_(self.parameters)
        self.gradients.zero_()
        loss = self.model.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _wrong_sums(self, total: Tensor) -> Tensor:
        """Count the elements of *total* that are not this rank's, times the ranks."""
        import torch

        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for part in self.layout.groups.values():  # for the sake of memory
            expected = self.gradients[part].to(total.dtype) * self.job.world
            wrong += torch.count_nonzero(total[part] != expected)
        return wrong


def leaves(
    layout: Layout, working: Tensor, gradients: Tensor
) -> dict[tuple[str, str], Tensor]:
    """Make weights that autograd knows, with their gradients in *gradients*."""
    views = layout.views(gradients)
    weights = layout.views(working)
    for key, weight in weights.items():
        weight.requires_grad_()
        weight.grad = views[key]
    return weights


def adamw(parameters: Tensor, gradients: Tensor, moments: Tensor, step: int) -> None:
    """Take *step* (from 1) of AdamW (Loshchilov and Hutter, 2019) as torch does."""
    first, second = moments
    parameters.mul_(1 - RATE * DECAY)
    first.lerp_(gradients, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradients, gradients, value=1 - BETAS[1])
    corrections = 1 - BETAS[0] ** step, 1 - BETAS[1] ** step
    root = (second.sqrt() / corrections[1] ** 0.5).add_(EPSILON)
    parameters.addcdiv_(first, root, value=-RATE / corrections[0])


def scattered(tensor: Tensor) -> Tensor:
    """
    Add the words of *tensor* up in bins that they choose themselves.

    A GPU does so by atomic operations, in an order that nobody knows: with integers
    modulo 2^64 every order gives the same.
    """
    import torch

    source = words(tensor)
    bins = torch.zeros(BINS, dtype=torch.int64, device=tensor.device)
    with determinism(required=False):  # which would sort them first, not add
        return bins.scatter_add_(0, mixed(source.clone()) & (BINS - 1), source)


@contextmanager
def determinism(*, required: bool) -> Generator[None]:
    """
    Have torch refuse what it does not do the same way each time, or not, for a while.

    New tensors are not filled first, as torch then does by default: nothing here reads
    what it has not written, and the time of a step would hold it.
    """
    import torch
    from torch.utils import deterministic

    settings: Any = deterministic  # whose attribute no type checker sees
    before = torch.get_deterministic_debug_mode()
    filled = settings.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error" if required else "default")
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        settings.fill_uninitialized_memory = filled


class Difference(Struct, frozen=True):
    """How a replay differed from the first one, and how many after it did."""

    replay: int
    """0 is the first, which then differed from all others."""
    what: str
    """The first of the digests that differed."""
    expected: int
    found: int
    digests: int
    """How many of all differed."""
    gradients: tuple[str, ...] = ()
    """Of the replay that differed, as `gradients_of` gives them."""
    again: int | None = None
    """Of `RERUNS` more; None as long as there was none."""


class WrongSum(Struct, frozen=True):
    """The first sum over the ranks that was wrong, and in how many elements."""

    replay: int
    what: str
    elements: int


class Outcome(Struct, frozen=True):
    """What a rank found and measured, so far or in all."""

    first: Record
    """The first replay, which also warms up and is not timed."""
    replays: int
    """Compared with the first."""
    seconds: float
    steps: tuple[Times, ...]
    difference: Difference | None = None
    wrong_sum: WrongSum | None = None

    @property
    def digest(self) -> str:
        """Digest the first replay, the sums left out: they are not this rank's."""
        own = {k: v for k, v in self.first.items() if not k.endswith(WRONG_SUMS)}
        return brief(own)

    @property
    def batches(self) -> str:
        """Digest what the host fed to the first replay."""
        return brief({k: v for k, v in self.first.items() if k.endswith(HOST)})


def brief(record: Record) -> str:
    """Make one short digest of those of a *record*."""
    return blake2b(msgspec.json.encode(record), digest_size=8).hexdigest()


def gradients_of(record: Record) -> tuple[str, ...]:
    """Digest the gradients of each step: equal where their sum has to be exact."""
    steps: dict[str, Record] = {}
    for name, value in record.items():
        step, _, what = name.partition(": ")
        if what.startswith(GRADIENTS):
            steps.setdefault(step, {})[name] = value
    return tuple(map(brief, steps.values()))


def train(
    job: Training, rank: int, device: torch.device, seams: Seams = HARDWARE
) -> Iterator[Outcome]:
    """
    Be *rank* of *job* until its time is over, or something differs anywhere.

    Yields the outcome so far whenever there is something new in it, and the last one.
    """
    with ExitStack() as stack:
        stack.enter_context(determinism(required=True))
        stack.enter_context(float32_as("highest"))
        stack.enter_context(threads_as(job.threads))
        if job.world > 1:
            stack.enter_context(joined(job, rank, device))
        yield from replayed(Trainer.made(job, device, seams))


def replayed(trainer: Trainer) -> Iterator[Outcome]:
    """Replay and compare until the time is over, or something differs."""
    first, _ = look(trainer)
    wrong, steps, number = wrong_sum(first, 0), list[Times](), 0
    yield Outcome(first, 0, 0.0, (), None, wrong)
    start = perf_counter()
    while True:
        number += 1
        record, times = look(trainer)
        steps += times
        found = difference(first, record, number)
        wrong = wrong or wrong_sum(record, number)
        seconds = perf_counter() - start
        sound = found is None and wrong is None
        if not sound:  # a peer may be lost in what comes now, and this rank with it
            yield Outcome(first, number, seconds, tuple(steps), found, wrong)
        early = seconds < trainer.job.seconds or number < LEAST_REPLAYS
        if not _all(trainer, sound and early):
            break
    if not _all(trainer, found is None):
        again = [look(trainer)[0] for _ in range(RERUNS)]
        if found is not None:
            first, found = settled(first, record, found, again)
    seconds = perf_counter() - start
    yield Outcome(first, number, seconds, tuple(steps), found, wrong)


def _all(trainer: Trainer, each: bool) -> bool:  # noqa: FBT001 - what each rank says
    """Whether *each* rank says so, for all of them must do the same."""
    if trainer.job.world == 1:
        return each
    return bool(least(each, trainer.device))


def look(trainer: Trainer) -> tuple[Record, list[Times]]:
    """Do one replay, and wait for what it left: the host's one look."""
    import torch

    clock = Clock(trainer.device)
    left = trainer.replay(clock)
    there = [name for name, value in left.items() if value.device == trainer.device]
    values: list[int] = torch.stack([left[name] for name in there]).tolist()
    read = dict(zip(there, values, strict=True))
    host = {name: int(left[name]) for name in left.keys() - read.keys()}
    known = read | host
    return {name: known[name] for name in left}, clock.times()


def settled(
    first: Record, record: Record, found: Difference, again: Sequence[Record]
) -> tuple[Record, Difference]:
    """
    Say which replay is right, and what differs from it, after some more were made.

    Where the *first* is like none of them and all others are alike, it was the first
    that went wrong, once, and not all that came after it.
    """
    alike = all(difference(record, other, 0) is None for other in again)
    odd = difference(record, first, 0)
    if found.replay == 1 and alike and odd is not None:
        return record, msgspec.structs.replace(odd, again=0)
    count = sum(difference(first, other, 0) is not None for other in again)
    return first, msgspec.structs.replace(found, again=count)


def difference(first: Record, record: Record, number: int) -> Difference | None:
    """Compare the replay *number* with the *first* one."""
    unequal = [
        name
        for name, value in record.items()
        if value != first[name] and not name.endswith(WRONG_SUMS)
    ]
    if not unequal:
        return None
    what = unequal[0]
    expected, found, steps = first[what], record[what], gradients_of(record)
    return Difference(number, what, expected, found, len(unequal), steps)


def wrong_sum(record: Record, number: int) -> WrongSum | None:
    """Find the first wrong sum of the replay *number*."""
    for name, value in record.items():
        if name.endswith(WRONG_SUMS) and value:
            return WrongSum(number, name, value)
    return None


def as_rank(rank: int, order: str) -> Iterator[bytes]:
    """Be a rank on the CPU, in a process of its own: `_rank` calls this."""
    import torch

    job = msgspec.json.decode(order, type=Training)
    yield from map(msgspec.json.encode, train(job, rank, torch.device("cpu")))
