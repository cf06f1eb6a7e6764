"""
An all-reduce between ranks: timed, with every sum verified.

What ranks contribute differs at each step, fills every bit and has a sum that is known
exactly (see `step_data`). Before each sum a rank also compares its own share, by tables
that it was not made of: a share that is wrong in one GPU's memory makes the sums of all
ranks wrong. How ranks meet, and what they do when one is lost, is in `rendezvous`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpcverify.check import operation
from hpcverify_checks.common.device import use_threads
from hpcverify_checks.common.rendezvous import (
    RankGroup,
    await_ranks,
    join_group,
    read_free_bytes,
    reduce_minimum,
)
from hpcverify_checks.common.step_data import (
    CHUNK_WORDS,
    WORD_BYTES,
    StepData,
    StepMismatch,
    Weights,
    Words,
    estimate_memory,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WARM_UPS = 5
MIN_STEPS, MAX_STEPS = 10, 2000
STEPS_IN_FLIGHT = 16
"""Steps that a GPU is given ahead, so that it never waits for the host, and the host can
still look out for lost ranks: it must not fill the GPU's queue, for there it would wait."""

Reduce = Callable[["Tensor"], object]
"""Sums a tensor over all ranks, in place; tests inject faulty ones."""


class AllreduceJob(RankGroup, frozen=True):
    """What the ranks of one all-reduce have in common."""

    sizes: tuple[int, ...]
    """Of the messages, in bytes."""
    seconds: float
    """For all sizes together."""
    seed: int = 0
    """Of the data."""


class MessageTimes(Struct, frozen=True):
    """What one rank measured at one size: the time of each step, in seconds."""

    size: int
    times: tuple[float, ...]
    checked: int
    """Results verified, those of the warm-up included."""
    wrong: StepMismatch | None = None
    """Of the sums."""
    wrong_share: StepMismatch | None = None
    """Of what this rank was about to contribute, as it found it in its own memory."""


def all_reduce(tensor: Tensor) -> None:
    """
    Sum *tensor* over all ranks, in place.

    A GPU's stream waits for the sum, and not the host: `await_ranks` is for that.
    """
    import torch.distributed as dist

    work: Any = dist.all_reduce(tensor, async_op=True)
    if tensor.device.type == "cuda":
        work.synchronize()
    else:
        work.wait()


@contextmanager
def use_thread_share(group: RankGroup) -> Generator[None]:
    """Compute with this rank's share of the threads, so that ranks do not spin for cores."""
    import torch

    with use_threads(max(1, torch.get_num_threads() // group.world)):
        yield


def run_rank(rank: int, order: str) -> Iterator[bytes]:
    """Be a rank on the CPU, in a process of its own: `rank_main` calls this."""
    import torch

    job, device = msgspec.json.decode(order, type=AllreduceJob), torch.device("cpu")
    with use_thread_share(job), join_group(job, rank, device):
        yield msgspec.json.encode(list(reduce_messages(job, rank, device, all_reduce)))


def reduce_messages(
    job: AllreduceJob, rank: int, device: torch.device, reduce: Reduce
) -> Iterator[MessageTimes]:
    """Reduce messages of each size that fits, all ranks in step."""
    import torch

    everyone = reduce_minimum(job, read_free_bytes(device), device)
    for size in job.sizes:
        if size + estimate_memory(size) <= everyone:
            benchmark = MessageBenchmark(job, rank, size, device, reduce)
            with operation(f"the all-reduce of {size} bytes over {job.world} ranks"):
                timed = benchmark.measure(job.seconds / len(job.sizes))
            yield timed
        if device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class MessageBenchmark:
    """Messages of one size, reduced again and again."""

    job: AllreduceJob
    rank: int
    size: int
    device: torch.device
    reduce: Reduce

    def measure(self, seconds: float) -> MessageTimes:
        """Warm up, agree on how many steps fit into *seconds*, time and verify them."""
        buffers = self.allocate()
        start = perf_counter()
        warm = self.run_steps(range(WARM_UPS), buffers)
        fit = int(seconds * WARM_UPS / (perf_counter() - start))
        count = reduce_minimum(self.job, min(max(fit, MIN_STEPS), MAX_STEPS), self.device)
        timed = self.run_steps(range(WARM_UPS, WARM_UPS + count), buffers)
        wrong, wrong_share = warm.wrong or timed.wrong, warm.wrong_share or timed.wrong_share
        return MessageTimes(self.size, timed.times, WARM_UPS + count, wrong, wrong_share)

    def allocate(self) -> ReduceBuffers:
        """Allocate a message, and the tables that it is made of and compared with."""
        import torch

        count = max(1, self.size // WORD_BYTES)
        made, known = (Words.make(self.job.seed, count, self.device) for _ in range(2))
        return ReduceBuffers(made, known, torch.empty(count, dtype=torch.int32, device=self.device))

    def run_steps(self, steps: range, buffers: ReduceBuffers) -> MessageTimes:
        """Time these *steps*, each with its own data, and verify shares and sums."""
        import torch

        log = torch.zeros(2, len(steps), 4, dtype=torch.int64, device=self.device)
        marks: list[tuple[Any, Any]] = []
        for place, step in enumerate(steps):
            if place % STEPS_IN_FLIGHT == 0:
                await_ranks(self.job, self.device)
            data = self._choose_data(step)
            share = data.weigh_share(self.rank)
            buffers.made.fill(buffers.message, data, share)
            buffers.verify(data, share, log[1, place])
            # Else a step's time would include a peer's verification of the last step.
            all_reduce(torch.zeros(1, device=self.device))
            before = record_event(self.device)
            self.reduce(data.view_values(buffers.message))
            marks.append((before, record_event(self.device)))
            if len(buffers.message) > CHUNK_WORDS:  # else its verification would fill the queue
                await_ranks(self.job, self.device)
            buffers.verify(data, data.weigh_sum(), log[0, place])
        await_ranks(self.job, self.device)
        sums, shares = log.tolist()
        times = tuple(compute_elapsed(before, after) for before, after in marks)
        return MessageTimes(
            self.size,
            times,
            len(steps),
            self._find_wrong(sums, steps, StepData.weigh_sum),
            self._find_wrong(shares, steps, self._weigh_own),
        )

    def _choose_data(self, step: int) -> StepData:
        return StepData.make_for_sum(self.job.seed, step, self.job.world)

    def _weigh_own(self, data: StepData) -> Weights:
        return data.weigh_share(self.rank)

    def _find_wrong(
        self, rows: Sequence[Sequence[int]], steps: range, weigh: Callable[[StepData], Weights]
    ) -> StepMismatch | None:
        for step, (count, index, found, _) in zip(steps, rows, strict=True):
            if count:
                data = self._choose_data(step)
                right, hint = data.compute_word(weigh(data), index), data.explain_word(found, index)
                return data.make_mismatch(count, index, found, right, hint=hint)
        return None


@dataclass(frozen=True, slots=True)
class ReduceBuffers:
    """A message, what it is made of, and what it is compared with: both may change in memory."""

    made: Words
    known: Words
    message: Tensor
    """int32, whatever it stands for."""

    def verify(self, data: StepData, weights: Weights, row: Tensor) -> None:
        """Hold the message against what it must be, and note it in *row*, without waiting."""
        self.known.compare(self.message, data, (weights, 0, 0), row)


def record_event(device: torch.device) -> Any:
    """Record the time: the host's, or an event in a GPU's stream of work."""
    import torch

    if device.type == "cpu":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def compute_elapsed(before: Any, after: Any) -> float:
    """Compute the seconds between two of `record_event`."""
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1e3
