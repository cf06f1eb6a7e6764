"""
Collectives between ranks: timed step by step, with every result verified.

What ranks contribute differs at each step, fills every bit and has a result that is known
exactly (see `step_data`). It is made before and compared after, outside the timed section.
A job may ask each rank to compare its own share as well, before it is sent, by tables that
it was not made of: a share that is wrong in one GPU's memory makes the sums of all ranks
wrong. How ranks meet, and what they do when one is lost, is in `rendezvous`.

Before a step all ranks meet, so that no rank's time includes another's work. On a CPU the
data of a few steps are made at once, and the first of these steps is not timed: a process
that has just computed is served last and has other things in its caches.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

import hpcverify.check as hv
from hpcverify.records.collectives import CollectiveTiming
from hpcverify.stats import find_percentile
from hpcverify.units import GIGA, MIB
from hpcverify_checks.node.device import read_gpu_free_bytes, use_threads
from hpcverify_checks.node.stalls import OWN_WORK
from hpcverify_checks.node.timing import StepClock
from hpcverify_checks.ranks.operations import ALL_REDUCE, OPERATIONS, SUM, Operation, Segment
from hpcverify_checks.ranks.peers import start_peers
from hpcverify_checks.ranks.process_group import await_ranks, join_group, reduce_minimum
from hpcverify_checks.ranks.progress import wait_for_ranks
from hpcverify_checks.ranks.rendezvous import RankGroup
from hpcverify_checks.ranks.step_data import (
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
STEPS_IN_FLIGHT = 16
"""Steps that a GPU is given ahead, so that it never waits for the host, and the host can
still look out for lost ranks: it must not fill the GPU's queue, for there it would wait."""
UNTIMED = {"cpu": 1, "cuda": 0}
"""Steps at the beginning of a batch that are not timed, by the type of device."""
BATCH_BYTES = 128 * MIB
"""On a CPU the steps of a batch are as many as have messages of this size together."""


class CollectiveJob(RankGroup, frozen=True):
    """What the ranks of a measurement have in common."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """Message sizes in bytes, as nccl-tests counts them."""
    seconds: float
    """The time for all operations and sizes together."""
    seed: int = 0
    """The seed of the data."""
    timeline: bool = True
    """Whether the program `collectives` then takes equal steps and transfers, which show who
    is slow."""
    min_steps: int = 5
    max_steps: int = 500
    """The bounds of the steps that are timed for each operation and size."""
    compare_shares: bool = False
    """Whether each rank also compares what it is about to send."""


class StepTimes(Struct, frozen=True):
    """What one rank measured of one operation and size."""

    operation: str
    size: int
    times: tuple[float, ...]
    """The time of each step, in seconds, without warm-ups."""
    checked: int
    """Steps that were verified, those that are not timed included."""
    wrong: StepMismatch | None = None
    """The first step with a wrong result."""
    wrong_share: StepMismatch | None = None
    """The first step in which what this rank was about to send was wrong, in its own memory."""


def all_reduce(tensor: Tensor) -> None:
    """
    Sum *tensor* over all ranks, in place.

    A GPU's stream waits for the sum, and not the host: `await_ranks` is for that.
    """
    with OWN_WORK.pause(tensor.device):
        finish(ALL_REDUCE.begin(tensor, tensor), tensor.device)


def finish(works: Sequence[Any], device: torch.device) -> None:
    """Wait for *works*: on a GPU its stream waits, and not the host."""
    with wait_for_ranks():
        for work in works:
            if device.type == "cuda":
                work.synchronize()
            else:
                work.wait()


@contextmanager
def use_thread_share(group: RankGroup) -> Generator[None]:
    """Compute with this rank's share of the threads, so that ranks do not spin for cores."""
    import torch

    with use_threads(max(1, torch.get_num_threads() // group.world)):
        yield


def measure_processes(
    job: CollectiveJob, operations: Mapping[str, Operation] = OPERATIONS
) -> Iterator[tuple[int, list[StepTimes]]]:
    """Measure with processes of this node as ranks; give each rank and what it measured."""
    import torch

    with start_peers(job, __name__) as peers:
        with use_thread_share(job):
            own = measure_rank(job, 0, torch.device("cpu"), operations)
        yield 0, own
        for peer in peers:
            yield peer.rank, peer.wait_for_result(list[StepTimes])


def run_rank(rank: int, order: str) -> Iterator[bytes]:
    """Be a rank on the CPU, in a process of its own: `rank_main` calls this."""
    import torch

    job = msgspec.json.decode(order, type=CollectiveJob)
    with use_thread_share(job):
        yield msgspec.json.encode(measure_rank(job, rank, torch.device("cpu")))


def measure_rank(
    job: CollectiveJob,
    rank: int,
    device: torch.device,
    operations: Mapping[str, Operation] = OPERATIONS,
) -> list[StepTimes]:
    """
    Join the group as *rank*, and take each operation at each size that fits.

    Tests inject faulty *operations*.

    Raises:
        LostRanks: a peer failed, or did not start or answer in time.

    """
    with join_group(job, rank, device):
        return list(measure_collectives(job, rank, device, operations))


def measure_collectives(
    job: CollectiveJob,
    rank: int,
    device: torch.device,
    operations: Mapping[str, Operation] = OPERATIONS,
) -> Iterator[StepTimes]:
    """Take each operation at each size that fits, all ranks in step."""
    import torch

    chosen = [operations[name] for name in job.operations]
    tensors = 1 if all(operation.in_place for operation in chosen) else 2
    room = reduce_minimum(job, read_free_bytes(device), device)
    for size in job.sizes:
        messages = tensors * size * count_buffers(size, device)
        if messages + estimate_memory(size) <= room:
            yield from _measure_size(job, rank, device, chosen, size)
        if device.type == "cuda":
            torch.cuda.empty_cache()


def read_free_bytes(device: torch.device) -> int:
    """Read how much memory is free for messages, in bytes."""
    if device.type == "cuda":
        return read_gpu_free_bytes(device)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _measure_size(
    job: CollectiveJob, rank: int, device: torch.device, operations: Sequence[Operation], size: int
) -> Iterator[StepTimes]:
    words = max(1, size // WORD_BYTES // job.world) * job.world
    made = Words.make(job.seed, words, device)
    known = Words.make(job.seed, words, device) if job.compare_shares else made
    for operation in operations:
        benchmark = CollectiveBenchmark(job, rank, device, operation, size, made, known)
        name = operation.name.replace("_", "-")
        with hv.operation(f"the {name} of {size} bytes over {job.world} ranks"):
            timed = benchmark.measure(job.seconds / (len(operations) * len(job.sizes)))
        yield timed


def count_buffers(size: int, device: torch.device) -> int:
    """Count the steps of *size* bytes whose messages are in memory at once."""
    if device.type != "cpu":
        return 1
    return UNTIMED["cpu"] + min(max(1, BATCH_BYTES // size), STEPS_IN_FLIGHT)


@dataclass(frozen=True, slots=True)
class CollectiveBenchmark:
    """One operation of one size, again and again."""

    job: CollectiveJob
    rank: int
    device: torch.device
    operation: Operation
    size: int
    made: Words
    """The tables that messages are made of."""
    known: Words
    """The tables that they are compared with: either may change in memory."""

    def measure(self, seconds: float) -> StepTimes:
        """Warm up, agree on how many steps fit into *seconds*, time and verify them."""
        buffers, runs, steps = self.allocate(), list[StepTimes](), 0
        fit = WARM_UPS
        for count in (1, 1, WARM_UPS - 2):  # the very first connects the ranks, so it says little
            if count > max(fit, 1):
                break
            start = perf_counter()
            runs.append(self.run_steps(steps, count, buffers))
            fit = int(seconds * count / (perf_counter() - start))
            fit = reduce_minimum(self.job, min(fit, self.job.max_steps), self.device)
            steps += runs[-1].checked
        runs.append(self.run_steps(steps, max(fit, self.job.min_steps), buffers))
        return StepTimes(
            self.operation.name,
            self.size,
            runs[-1].times,
            sum(run.checked for run in runs),
            next((run.wrong for run in runs if run.wrong), None),
            next((run.wrong_share for run in runs if run.wrong_share), None),
        )

    def allocate(self) -> list[tuple[Tensor, Tensor]]:
        """Allocate what is sent and what is received, maybe the same, for a batch of steps."""
        import torch

        received_words = sum(segment.length for segment in self._list_received())
        lengths = self._find_sent().length, received_words
        pairs: list[tuple[Tensor, Tensor]] = []
        for _ in range(count_buffers(self.size, self.device)):
            sent, received = (
                torch.zeros(n, dtype=torch.int32, device=self.device) for n in lengths
            )
            pairs.append((sent, sent) if self.operation.in_place else (sent, received))
        return pairs

    def run_steps(
        self, first: int, count: int, buffers: Sequence[tuple[Tensor, Tensor]]
    ) -> StepTimes:
        """Take steps from number *first* on until *count* are timed, and verify all of them."""
        import torch

        # The first steps of each batch are not timed.
        untimed, batches, total, left = UNTIMED[self.device.type], list[range](), 0, count
        while left > 0:
            timed = min(left, len(buffers) - untimed)
            batches.append(range(first + total, first + total + untimed + timed))
            total, left = total + untimed + timed, left - timed
        sent_segment, received_segments = self._find_sent(), self._list_received()
        log = torch.zeros(2, total, 4, dtype=torch.int64, device=self.device)
        clock, meeting = StepClock(self.device), torch.zeros(1, device=self.device)
        for batch in batches:
            if (batch.start - first) % STEPS_IN_FLIGHT < len(batch):
                await_ranks(self.job, self.device)
            work = [
                (self._choose_data(step), *pair) for step, pair in zip(batch, buffers, strict=False)
            ]
            for data, sent, _ in work:
                self.made.fill(sent, data, data.weigh_share(self.rank), sent_segment.start)
                if self.job.compare_shares:
                    self._compare(sent, data, [sent_segment], log[0, data.step - first])
            with OWN_WORK.pause(self.device):
                self._time_batch(work, clock, meeting)
            if self.made.count > CHUNK_WORDS:  # else its verification would fill a GPU's queue
                await_ranks(self.job, self.device)
            for data, _, received in work:
                self._compare(received, data, received_segments, log[1, data.step - first])
        await_ranks(self.job, self.device)
        marks = clock.read()
        shares, results = log.tolist()
        return StepTimes(
            self.operation.name,
            self.size,
            tuple(end - begin for begin, end in zip(marks[::2], marks[1::2], strict=True)),
            total,
            self._find_wrong(results, first, received_segments),
            self._find_wrong(shares, first, [sent_segment]),
        )

    def _time_batch(
        self, work: Sequence[tuple[StepData, Tensor, Tensor]], clock: StepClock, meeting: Tensor
    ) -> None:
        views = [
            (data.view_values(sent), data.view_values(received)) for data, sent, received in work
        ]
        untimed = UNTIMED[self.device.type]
        for sent, received in views[:untimed]:
            finish(self.operation.begin(sent, received), self.device)
        for sent, received in views[untimed:]:
            # Else a step's time would include what a peer did before it.
            finish(ALL_REDUCE.begin(meeting, meeting), self.device)
            clock.mark()
            finish(self.operation.begin(sent, received), self.device)
            clock.mark()

    def _choose_data(self, step: int) -> StepData:
        if self.operation.reduces:
            return StepData.make_for_sum(self.job.seed, step, self.job.world)
        return StepData(self.job.seed, step, self.job.world, floats=False)

    def _find_sent(self) -> Segment:
        return self.operation.find_sent(self.made.count, self.rank, self.job.world)

    def _list_received(self) -> list[Segment]:
        return self.operation.list_received(self.made.count, self.rank, self.job.world)

    def _compare(
        self, message: Tensor, data: StepData, segments: Sequence[Segment], row: Tensor
    ) -> None:
        """Compare a message with what it must be, and note it in *row*, without waiting."""
        at = 0
        for segment in segments:
            part = message[at : at + segment.length]
            self.known.compare(part, data, (weigh(data, segment), segment.start, at), row)
            at += segment.length

    def _find_wrong(
        self, rows: Sequence[Sequence[int]], first: int, segments: Sequence[Segment]
    ) -> StepMismatch | None:
        """Find the first wrong step; the host computes what it should have had."""
        for step, (count, index, word, _) in enumerate(rows, first):
            if count:
                data = self._choose_data(step)
                starts = accumulate((segment.length for segment in segments), initial=0)
                *_, (segment, at) = (
                    pair for pair in zip(segments, starts, strict=False) if pair[1] <= index
                )
                place = segment.start + index - at
                right = data.compute_word(weigh(data, segment), place)
                hint = data.explain_word(word, place) if self.operation.reduces else ""
                return data.make_mismatch(count, index, word, right, hint=hint)
        return None


def weigh(data: StepData, segment: Segment) -> Weights:
    """Weigh the words of a *segment*: those of a rank, or of the sum."""
    return data.weigh_sum() if segment.source == SUM else data.weigh_share(segment.source)


def compute_timing(times: Sequence[StepTimes], world: int) -> CollectiveTiming:
    """
    Compute percentiles and bandwidths of what ranks measured of one operation and size.

    Each step takes as long as the slowest of these ranks, of *world* in all.
    """
    operation, size = times[0].operation, times[0].size
    steps = [max(step) for step in zip(*(rank.times for rank in times), strict=True)]
    p50, p95, p99 = (find_percentile(steps, share) for share in (0.5, 0.95, 0.99))
    algbw = size / p50 / GIGA
    busbw = algbw * OPERATIONS[operation].compute_factor(world)
    return CollectiveTiming(operation, size, len(steps), p50, p95, p99, algbw, busbw)
