"""
An all-reduce between ranks: timed, with every sum verified.

Rank r contributes 2^r times a pattern of small integers. So the sum is known exactly, in
any order. Before each sum a rank also compares its own share: a share that is wrong in
one GPU's memory makes the sums of all ranks wrong. How ranks meet, and what they do when
one is lost, is in `rendezvous`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpcverify.check import operation
from hpcverify_checks.common.device import use_threads
from hpcverify_checks.common.rendezvous import RankGroup, await_ranks, join_group, reduce_minimum

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ELEMENT_BYTES = 4
"""Bytes of a float32."""
PATTERN_PERIOD = 97
"""Prime, so that no chunk of a ring is like its neighbour."""
MAX_RANKS = 17
"""PATTERN_PERIOD x (2^ranks - 1) must stay below 2^24 to be exact in float32."""
WARM_UPS = 5
MIN_STEPS, MAX_STEPS = 10, 2000
STEPS_IN_FLIGHT = 16
"""Steps that a GPU is given ahead, so that it never waits for the host, and the host can
still look out for lost ranks: it must not fill the GPU's queue, for there it would wait."""
MEMORY_FACTOR = 4
"""Memory needed for each byte of a message: two buffers and temporaries."""

Reduce = Callable[["Tensor"], object]
"""Sums a tensor over all ranks, in place; tests inject faulty ones."""


class AllreduceJob(RankGroup, frozen=True):
    """What the ranks of one all-reduce have in common."""

    sizes: tuple[int, ...]
    """Of the messages, in bytes."""
    seconds: float
    """For all sizes together."""


class WrongElements(Struct, frozen=True):
    """The first step of a size with wrong elements: how many, and the first of them."""

    step: int
    """From 0, those of the warm-up included."""
    elements: int
    index: int
    found: float
    expected: float
    """By the host's own result."""


class MessageTimes(Struct, frozen=True):
    """What one rank measured at one size: the time of each step, in seconds."""

    size: int
    times: tuple[float, ...]
    checked: int
    """Results verified, those of the warm-up included."""
    wrong: WrongElements | None = None
    """Of the sums."""
    wrong_share: WrongElements | None = None
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

    everyone = reduce_minimum(job, _read_free_bytes(device), device)
    for size in job.sizes:
        if MEMORY_FACTOR * size <= everyone:
            benchmark = MessageBenchmark(job, rank, size, device, reduce)
            with operation(f"the all-reduce of {size} bytes over {job.world} ranks"):
                timed = benchmark.measure(job.seconds / len(job.sizes))
            yield timed
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _read_free_bytes(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class MessageBenchmark:
    """Messages of one size, reduced again and again."""

    group: RankGroup
    rank: int
    size: int
    device: torch.device
    reduce: Reduce

    def measure(self, seconds: float) -> MessageTimes:
        """Warm up, agree on how many steps fit into *seconds*, time and verify them."""
        import torch

        elements = max(1, self.size // ELEMENT_BYTES)
        period = torch.arange(1.0, PATTERN_PERIOD + 1, device=self.device)
        pattern = period.repeat(elements // PATTERN_PERIOD + 1)[:elements]
        buffers = ReduceBuffers(period, pattern, torch.empty_like(pattern))
        start = perf_counter()
        warm = self._run_steps(WARM_UPS, buffers)
        fit = int(seconds * WARM_UPS / (perf_counter() - start))
        count = reduce_minimum(self.group, min(max(fit, MIN_STEPS), MAX_STEPS), self.device)
        timed = self._run_steps(count, buffers, WARM_UPS)
        wrong, wrong_share = warm.wrong or timed.wrong, warm.wrong_share or timed.wrong_share
        return MessageTimes(self.size, timed.times, WARM_UPS + count, wrong, wrong_share)

    def _run_steps(self, count: int, buffers: ReduceBuffers, done: int = 0) -> MessageTimes:
        import torch

        log = torch.zeros(count, 2, 3, dtype=torch.float64, device=self.device)
        marks: list[tuple[Any, Any]] = []
        for step, row in enumerate(log):
            if step % STEPS_IN_FLIGHT == 0:
                await_ranks(self.group, self.device)
            torch.mul(buffers.pattern, self.share, out=buffers.message)
            buffers.verify(self.share, row[1])
            # Else a step's time would include a peer's verification of the last step.
            all_reduce(torch.zeros(1, device=self.device))
            before = record_event(self.device)
            self.reduce(buffers.message)
            marks.append((before, record_event(self.device)))
            buffers.verify(self.total, row[0])
        await_ranks(self.group, self.device)
        sums, shares = log.transpose(0, 1).tolist()
        times = tuple(compute_elapsed(before, after) for before, after in marks)
        return MessageTimes(
            self.size,
            times,
            count,
            find_wrong_elements(sums, self.total, done),
            find_wrong_elements(shares, self.share, done),
        )

    @property
    def share(self) -> float:
        """What this rank contributes, as a multiple of the pattern."""
        return 2.0**self.rank

    @property
    def total(self) -> float:
        """The correct sum, as a multiple of the pattern."""
        return 2.0**self.group.world - 1


def find_wrong_elements(
    rows: Sequence[Sequence[float]], factor: float, done: int
) -> WrongElements | None:
    """
    Find the first of *rows* (wrong elements, index and value of the first) with any.

    *factor* is the correct multiple of the pattern; *done* steps were before the first row.
    """
    wrong = (
        WrongElements(
            done + step, int(bad), int(first), value, (first % PATTERN_PERIOD + 1) * factor
        )
        for step, (bad, first, value) in enumerate(rows)
        if bad
    )
    return next(wrong, None)


@dataclass(frozen=True, slots=True)
class ReduceBuffers:
    """The pattern that every message is a multiple of, and the message."""

    period: Tensor
    """Of the pattern, from the beginning: so small that no wrong word is likely to be in it."""
    pattern: Tensor
    message: Tensor

    def verify(self, factor: float, row: Tensor) -> None:
        """
        Hold the message against *factor* times the pattern, without waiting.

        Writes the number of wrong elements, and index and value of the first, to *row*.
        Compares with the period and not with the pattern, which may have changed as well.
        """
        import torch

        right = self.period * factor
        whole = len(self.message) // PATTERN_PERIOD * PATTERN_PERIOD
        # Integers, so that any difference at all is an error; NaN differs from all.
        wrong = torch.empty_like(self.message, dtype=torch.bool)
        cycles = self.message[:whole].view(-1, PATTERN_PERIOD)
        torch.ne(cycles, right, out=wrong[:whole].view(-1, PATTERN_PERIOD))
        torch.ne(self.message[whole:], right[: len(self.message) - whole], out=wrong[whole:])
        first = wrong.view(torch.uint8).argmax()[None]
        row[0] = torch.count_nonzero(wrong)
        row[1] = first[0]
        row[2] = self.message.index_select(0, first)[0]


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
