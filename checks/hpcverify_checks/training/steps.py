"""
Training steps, replayed from the same state and compared bit by bit.

A replay is a few steps of forward, backward and AdamW from the same parameters with the
same batches. Every step yields digests: of the batch, the loss, each group of gradients
and the parameters. They are computed where the tensors are, and the host reads them
once, at the end of the replay. The batch has two digests: one is taken on the host,
before the batch is copied to the device.

Several ranks train on the same data, so all must compute the same gradients. They sum
them, each times a weight of its own that is new in every step, and each compares the sum
with its own gradients times the sum of the weights (see `gradient_sums`). It continues with
its own: one rank's error must not make the others look wrong.

A difference is reported before any rank waits for another: a faulty part often crashes
next, and takes its peers with it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify_checks.exact.bits import (
    digest_on_device,
    format_word,
    make_integers,
    mix_bits,
    view_integers,
    view_words,
)
from hpcverify_checks.exact.families import FAMILIES
from hpcverify_checks.exact.reruns import RERUN_COUNT, Reruns
from hpcverify_checks.node.device import use_float32_precision, use_threads
from hpcverify_checks.node.timing import StepClock
from hpcverify_checks.ranks.collective import all_reduce
from hpcverify_checks.ranks.process_group import await_ranks, join_group, reduce_minimum
from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.training.gradient_sums import GradientSum
from hpcverify_checks.training.shape import ModelShape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from hpcverify_checks.training.transformer import Transformer

MIN_REPLAYS = 2
"""At least this many are compared with the first, however short the time."""
LEARNING_RATE, WEIGHT_DECAY, EPSILON = 1e-3, 1e-2, 1e-8
BETAS = (0.9, 0.999)
"""The defaults of torch.optim.AdamW."""
BIN_COUNT = 2**12
KEYS_PER_SEED = 2**16
"""Keys of the hash for one seed: one for the parameters, one for each step's batch."""

HOST_BATCH, INITIAL_PARAMETERS = "batch on the host", "initial parameters"
DEVICE_BATCH, GRADIENT_SCATTER = "batch", "scatter of gradients"
"""Digests of copies and sums of integers, which round nothing."""
GRADIENTS_PREFIX = "gradients of "
NOT_FINITE = "gradients that are not finite"
"""Not a digest but a count: must be 0 in every replay."""
WRONG_SUMS = "wrong sums"
"""The same."""
INPUT, COMPUTE, COMMUNICATION = "input", "compute", "communication"


class TrainingJob(RankGroup, frozen=True):
    """What all ranks of a training have in common."""

    shape: ModelShape
    dtype: str
    """The type of weights, activations and gradients: bf16 or fp32."""
    steps: int
    """The steps of a replay."""
    seconds: float
    seed: int
    threads: int
    """Threads of a rank on a CPU: another number would split sums, and round them, differently."""
    alike: bool
    """Whether all ranks compute on the same kind of part."""


Reduce = Callable[["Tensor"], object]
"""Sums a tensor over all ranks, in place."""
Feed = Callable[[TrainingJob, int], "Tensor"]
"""Makes the batch of a step, on the host: int64 tokens, batch x (sequence + 1)."""


def draw_batch(job: TrainingJob, step: int) -> Tensor:
    """Draw the batch of *step* from the seed: the same on every rank."""
    shape = job.shape
    rows, bound = range(shape.batch), shape.vocabulary
    drawn = make_integers(job.seed * KEYS_PER_SEED + step, rows, shape.sequence + 1, bound, "cpu")
    return drawn % shape.vocabulary


def compute_initial_key(job: TrainingJob) -> int:
    """Compute the key of the initial parameters: that of no batch."""
    return (job.seed + 1) * KEYS_PER_SEED - 1


def copy_to_device(batch: Tensor, device: torch.device) -> Tensor:
    """Start copying *batch* to *device*; the host does not wait."""
    return batch.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class TrainingSeams:
    """What feeds, copies, sums and waits, and surrounds the model; tests put faulty ones here."""

    feed: Feed = draw_batch
    copy: Callable[[Tensor, torch.device], Tensor] = copy_to_device
    around: AbstractContextManager[object] = field(default_factory=nullcontext)
    reduce: Reduce = all_reduce
    wait: Callable[[RankGroup, torch.device], None] = await_ranks


HARDWARE = TrainingSeams()

DigestRecord = dict[str, int]
"""The 64-bit digests of a replay by name, in the order of computing."""
PhaseTimes = dict[str, float]
"""The seconds of one step by phase."""


class PhaseTimer:
    """Times the phases of steps on their device, without waiting for it."""

    def __init__(self, device: torch.device) -> None:
        self._clock = StepClock(device)
        self._phases: list[tuple[int, str]] = []

    @contextmanager
    def time_phase(self, step: int, name: str) -> Generator[None]:
        """Count the block's time towards the phase *name* of *step*."""
        self._phases.append((step, name))
        self._clock.mark()
        yield
        self._clock.mark()

    def sum_phases(self) -> list[PhaseTimes]:
        """Add up the phases of each step; all work must be done."""
        steps: dict[int, PhaseTimes] = {}
        marks = self._clock.read()
        for (step, name), begin, end in zip(self._phases, marks[::2], marks[1::2], strict=True):
            times = steps.setdefault(step, {})
            times[name] = times.get(name, 0.0) + end - begin
        return list(steps.values())


@dataclass(frozen=True, slots=True)
class Trainer:
    """Parameters, gradients and moments, each flat, and the model that uses them."""

    job: TrainingJob
    device: torch.device
    seams: TrainingSeams
    model: Transformer
    groups: dict[str, slice]
    """The elements of each group of parameters in the flat tensors."""
    beginning: Tensor
    parameters: Tensor
    """fp32, as the optimizer keeps them."""
    working: Tensor
    """The same in the job's type: the model's weights are views of it."""
    gradients: Tensor
    moments: Tensor
    """First and second, one row each."""
    total: Tensor | None
    """The sum of all ranks' gradients, if there are several ranks."""
    rank: int
    sums: Iterator[int] = field(default_factory=count)
    """The number of the next sum, which is the same on all ranks."""

    @classmethod
    def build(
        cls, job: TrainingJob, device: torch.device, seams: TrainingSeams, rank: int = 0
    ) -> Trainer:
        """Allocate everything, and make the initial parameters."""
        import torch

        from hpcverify_checks.training.transformer import Transformer, find_groups, make_initial

        model, family = Transformer(job.shape), FAMILIES[job.dtype]
        beginning = make_initial(model, compute_initial_key(job), device)
        # Two tensors: autograd would take a change of a gradient for one of the weights.
        working = torch.zeros_like(beginning, dtype=getattr(torch, family.operand))
        gradients = torch.zeros_like(working)
        model.use(working, gradients)
        return cls(
            job=job,
            device=device,
            seams=seams,
            model=model,
            groups=find_groups(model),
            beginning=beginning,
            parameters=torch.empty_like(beginning),
            working=working,
            gradients=gradients,
            moments=torch.empty(2, len(beginning), device=device),
            total=gradients.to(getattr(torch, family.wider)) if job.world > 1 else None,
            rank=rank,
        )

    def replay(self, clock: PhaseTimer) -> dict[str, Tensor]:
        """Train from the initial parameters; return the digests of a `DigestRecord`."""
        self.parameters.copy_(self.beginning)
        self.moments.zero_()
        left = {INITIAL_PARAMETERS: digest_on_device(self.parameters)}
        for step in range(self.job.steps):
            digests = self._train_step(step, clock)
            left |= {f"step {step + 1}: {name}": value for name, value in digests}
        return left

    def _train_step(self, step: int, clock: PhaseTimer) -> Iterator[tuple[str, Tensor]]:
        with clock.time_phase(step, INPUT):
            drawn = self.seams.feed(self.job, step)
            # The digest covers what the device reads, so that this copy counts as the host's.
            drawn = drawn.pin_memory() if self.device.type == "cuda" else drawn
            batch = self.seams.copy(drawn, self.device)
        yield HOST_BATCH, digest_on_device(drawn)
        yield DEVICE_BATCH, digest_on_device(batch)
        with clock.time_phase(step, COMPUTE):
            self.working.copy_(self.parameters)
            self.gradients.zero_()
            with self.seams.around:
                loss: Tensor = self.model(batch)
            loss.backward()  # type: ignore[no-untyped-call]
        yield "loss", view_integers(loss.detach()).long()
        for group, part in reversed(self.groups.items()):
            yield f"{GRADIENTS_PREFIX}{group}", digest_on_device(self.gradients[part])
        yield NOT_FINITE, self._count_not_finite()
        scattering = self.groups["perceptron 0"]
        yield GRADIENT_SCATTER, digest_on_device(scatter_words(self.gradients[scattering]))
        if self.total is not None:
            wrong = self._sum_gradients(self.total, step, clock)
            self.seams.wait(self.job, self.device)
            if self.job.alike:
                yield WRONG_SUMS, wrong
        with clock.time_phase(step, COMPUTE):
            apply_adamw(self.parameters, self.gradients.float(), self.moments, step + 1)
        yield "parameters", digest_on_device(self.parameters)

    def _count_not_finite(self) -> Tensor:
        """Count them group by group, to save memory."""
        import torch

        count = torch.zeros((), dtype=torch.int64, device=self.device)
        for part in self.groups.values():
            count += torch.isfinite(self.gradients[part]).logical_not_().count_nonzero()
        return count

    def _sum_gradients(self, total: Tensor, step: int, clock: PhaseTimer) -> Tensor:
        """Sum the gradients as floats, and one group as integers; count what is wrong."""
        number, parts = next(self.sums), [*self.groups.values()]
        tensors = self.gradients, total
        made = GradientSum.draw(self.job, self.rank, self.job.seed, number, tensors)
        floats = made.fill_floats()
        with clock.time_phase(step, COMMUNICATION):
            self.seams.reduce(floats)
        wrong = made.count_wrong_floats(parts)
        part = parts[number % len(parts)]
        integers = made.fill_integers(part)
        self.seams.reduce(integers)
        return wrong + made.count_wrong_integers(integers, part)


def apply_adamw(parameters: Tensor, gradients: Tensor, moments: Tensor, step: int) -> None:
    """Do *step* (from 1) of AdamW (Loshchilov and Hutter, 2019) as torch does."""
    first, second = moments
    parameters.mul_(1 - LEARNING_RATE * WEIGHT_DECAY)
    first.lerp_(gradients, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradients, gradients, value=1 - BETAS[1])
    corrections = 1 - BETAS[0] ** step, 1 - BETAS[1] ** step
    root = (second.sqrt() / corrections[1] ** 0.5).add_(EPSILON)
    parameters.addcdiv_(first, root, value=-LEARNING_RATE / corrections[0])


def scatter_words(tensor: Tensor) -> Tensor:
    """
    Add up the words of *tensor* in bins chosen by their hash.

    A GPU does this with atomic operations in an unknown order; integers modulo 2^64 give
    the same sums in every order.
    """
    import torch

    source = view_words(tensor)
    bins = torch.zeros(BIN_COUNT, dtype=torch.int64, device=tensor.device)
    with set_determinism(required=False):  # else torch would sort them first
        return bins.scatter_add_(0, mix_bits(source.clone()) & (BIN_COUNT - 1), source)


@contextmanager
def set_determinism(*, required: bool) -> Generator[None]:
    """
    Make torch refuse nondeterministic operations, or not, while the block runs.

    Turns off that torch then fills new tensors: nothing here reads what it has not
    written, and the fill would count in the time of a step.
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
    """How a replay differed from the first one, and whether it did so again."""

    replay: int
    """0 is the first, which then differed from all others."""
    what: str
    """The name of the first digest that differed."""
    expected: int
    found: int
    count: int
    gradients: tuple[str, ...] = ()
    """The gradients of the replay that differed, as `digest_gradients` gives them."""
    reruns: Reruns | None = None
    """None before there were any."""

    def to_evidence(self) -> dict[str, str]:
        """Convert the first digest that differed to a finding's evidence."""
        expected, found = map(format_word, (self.expected, self.found))
        return {"what": self.what, "expected": expected, "found": found}


class WrongSum(Struct, frozen=True):
    """The first sum over the ranks that was wrong, and in how many elements."""

    replay: int
    step: int
    """Counted from 1."""
    elements: int


class TrainingOutcome(Struct, frozen=True):
    """What a rank has found and measured so far."""

    first: DigestRecord
    """The first replay, which also warms up and is not timed."""
    replays: int
    """How many were compared with the first."""
    seconds: float
    steps: tuple[PhaseTimes, ...]
    difference: Difference | None = None
    wrong_sum: WrongSum | None = None

    @property
    def digest(self) -> str:
        """The digest of the first replay, without the sums: those are of all ranks."""
        own = {k: v for k, v in self.first.items() if not k.endswith(WRONG_SUMS)}
        return digest_record(own)

    @property
    def batches(self) -> str:
        """The digest of the batches that the host made for the first replay."""
        return digest_record({k: v for k, v in self.first.items() if k.endswith(HOST_BATCH)})


def digest_record(record: DigestRecord) -> str:
    """Make one short digest of all digests of a *record*."""
    return blake2b(msgspec.json.encode(record), digest_size=8).hexdigest()


def digest_gradients(record: DigestRecord) -> tuple[str, ...]:
    """Digest the gradients of each step: where these are equal, their sum must be exact."""
    steps: dict[str, DigestRecord] = {}
    for name, value in record.items():
        step, _, what = name.partition(": ")
        if what.startswith(GRADIENTS_PREFIX):
            steps.setdefault(step, {})[name] = value
    return tuple(map(digest_record, steps.values()))


def train(
    job: TrainingJob, rank: int, device: torch.device, seams: TrainingSeams = HARDWARE
) -> Iterator[TrainingOutcome]:
    """
    Run *rank* of *job* until its time is up, or something differs on any rank.

    Yields the outcome so far whenever it has something new, and the final one.
    """
    with ExitStack() as stack:
        stack.enter_context(set_determinism(required=True))
        stack.enter_context(use_float32_precision("highest"))
        stack.enter_context(use_threads(job.threads))
        if job.world > 1:
            stack.enter_context(join_group(job, rank, device))
        yield from replay_and_compare(Trainer.build(job, device, seams, rank))


def replay_and_compare(trainer: Trainer) -> Iterator[TrainingOutcome]:
    """Replay and compare until the time is up, or something differs on any rank."""
    first, _ = run_replay(trainer)
    wrong, steps, number = find_wrong_sum(first, 0), list[PhaseTimes](), 0
    yield TrainingOutcome(first, 0, 0.0, (), None, wrong)
    start = perf_counter()
    while True:
        number += 1
        record, times = run_replay(trainer)
        steps += times
        difference = compare_replay(first, record, number)
        wrong = wrong or find_wrong_sum(record, number)
        seconds = perf_counter() - start
        sound = difference is None and wrong is None
        if not sound:  # report it first: a peer, and this rank with it, may crash next
            yield TrainingOutcome(first, number, seconds, tuple(steps), difference, wrong)
        early = seconds < trainer.job.seconds or number < MIN_REPLAYS
        if not _agree_all(trainer, sound and early):
            break
    if not _agree_all(trainer, difference is None):
        again = [run_replay(trainer)[0] for _ in range(RERUN_COUNT)]
        if difference is not None:
            first, difference = resolve_difference(first, record, difference, again)
    seconds = perf_counter() - start
    yield TrainingOutcome(first, number, seconds, tuple(steps), difference, wrong)


def _agree_all(trainer: Trainer, own: bool) -> bool:  # noqa: FBT001 - this rank's answer
    """Whether all ranks agree: they must all do the same next."""
    return own if trainer.job.world == 1 else bool(reduce_minimum(trainer.job, own, trainer.device))


def run_replay(trainer: Trainer) -> tuple[DigestRecord, list[PhaseTimes]]:
    """Do one replay, and read its digests from the device all at once."""
    import torch

    clock = PhaseTimer(trainer.device)
    with hv.operation(f"a replay of {trainer.job.steps} training steps"):
        digests = trainer.replay(clock)
        there = [name for name, value in digests.items() if value.device == trainer.device]
        values: list[int] = torch.stack([digests[name] for name in there]).tolist()
    read = dict(zip(there, values, strict=True))
    record = {n: read[n] if n in read else int(value) for n, value in digests.items()}
    return record, clock.sum_phases()


def resolve_difference(
    first: DigestRecord,
    record: DigestRecord,
    difference: Difference,
    again: Sequence[DigestRecord],
) -> tuple[DigestRecord, Difference]:
    """
    Decide from some reruns which replay is right, and what differs from it.

    If the *first* is unlike all others, and those are alike, it was the first that went
    wrong, once, and not every one after it.
    """
    alike = all(compare_replay(record, other, 0) is None for other in again)
    odd = compare_replay(record, first, 0)
    if difference.replay == 1 and alike and odd is not None:
        return record, msgspec.structs.replace(odd, reruns=Reruns(0))
    count = sum(compare_replay(first, other, 0) is not None for other in again)
    return first, msgspec.structs.replace(difference, reruns=Reruns(count))


def compare_replay(first: DigestRecord, record: DigestRecord, number: int) -> Difference | None:
    """Compare the replay *number* with the *first* one."""
    unequal = [n for n, v in record.items() if v != first[n] and not n.endswith(WRONG_SUMS)]
    if not unequal:
        return None
    what = unequal[0]
    gradients = digest_gradients(record)
    return Difference(number, what, first[what], record[what], len(unequal), gradients)


def find_wrong_sum(record: DigestRecord, number: int) -> WrongSum | None:
    """Find the first wrong sum of the replay *number*."""
    counts = [value for name, value in record.items() if name.endswith(WRONG_SUMS)]
    return next((WrongSum(number, i + 1, n) for i, n in enumerate(counts) if n), None)


def run_rank(rank: int, order: str) -> Iterator[bytes]:
    """Run a rank on the CPU, in a process of its own: `rank_main` calls this."""
    import torch

    job = msgspec.json.decode(order, type=TrainingJob)
    yield from map(msgspec.json.encode, train(job, rank, torch.device("cpu")))
