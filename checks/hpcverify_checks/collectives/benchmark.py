"""
Collectives of each kind and size, timed step by step, with every result verified.

Each step has data of its own, which is made before and compared after, outside the timed
section. Before a step all ranks meet, so that no rank's time includes another's work; the
time of a step is that of its slowest rank. On a CPU the data of a few steps are made at
once, and one step more is taken before them and not timed: a process that has just computed
is served last and has other things in its caches, and its next step would be slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from hpcverify.check import operation as breadcrumb
from hpcverify.units import GIB, KIB, MIB
from hpcverify_checks.collectives.operations import OPERATIONS, SUM, Operation
from hpcverify_checks.common.progress import waiting
from hpcverify_checks.common.rendezvous import (
    RankGroup,
    await_ranks,
    read_free_bytes,
    reduce_minimum,
)
from hpcverify_checks.common.step_data import (
    CHUNK_WORDS,
    WORD_BYTES,
    StepData,
    StepMismatch,
    Words,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CPU_SIZES = (4 * KIB, MIB, 64 * MIB)
GPU_SIZES = (MIB, 256 * MIB, 4 * GIB)
"""From what waits for the network to what fills it."""
WARM_UPS = 5
MIN_STEPS, MAX_STEPS = 5, 500
STEPS_IN_FLIGHT = 16
"""Steps that a GPU is given ahead, so that it never waits for the host, and the host can
still look out for lost ranks: it must not fill the GPU's queue, for there it would wait."""
MEMORY_FACTOR = 2
"""Memory needed for each byte of a message: what is sent and received."""
BATCH_BYTES = 128 * MIB
"""On a CPU: messages that are made at once, of as many steps as fit, or of one."""
UNTIMED = 2**20
"""Added to the number of a step for data of the one before it that is not timed: even, so that
both have the same type."""
TEMPORARY_BYTES = 512 * MIB
"""For the tables, for the chunks that are made and compared, and for batches."""


class CollectiveJob(RankGroup, frozen=True):
    """What the ranks have in common."""

    operations: tuple[str, ...]
    sizes: tuple[int, ...]
    """In bytes, as nccl-tests counts them; if empty, those of the part."""
    seconds: float
    """For all operations and sizes together."""
    seed: int = 0
    """Of the data."""
    timeline: bool = True
    """Whether equal steps and transfers follow, which tell who is slow."""


class StepTimes(Struct, frozen=True):
    """
    What one rank measured of one operation and size.

    Times are seconds on the rank's own monotonic clock, one a step.
    """

    operation: str
    size: int
    ready: tuple[float, ...]
    """When the rank had its data, before all met."""
    begin: tuple[float, ...]
    end: tuple[float, ...]
    checked: int
    """Results verified, those of the warm-up included."""
    wrong: StepMismatch | None = None


def measure_collectives(job: CollectiveJob, rank: int, device: torch.device) -> Iterator[StepTimes]:
    """Take each operation at each size that fits, all ranks in step."""
    import torch

    room = reduce_minimum(job, read_free_bytes(device) - TEMPORARY_BYTES, device)
    sizes = job.sizes or (CPU_SIZES if device.type == "cpu" else GPU_SIZES)
    share = job.seconds / (len(job.operations) * len(sizes))
    for size in sizes:
        if MEMORY_FACTOR * size > room:
            continue
        words = max(1, size // WORD_BYTES // job.world) * job.world
        rows = Words.make(job.seed, words, device)
        for name in job.operations:
            benchmark = CollectiveBenchmark(job, rank, device, OPERATIONS[name], rows, size)
            with breadcrumb(f"{name} of {size} bytes over {job.world} ranks"):
                timed = benchmark.measure(share)
            yield timed
        del rows
        if device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class CollectiveBenchmark:
    """One operation of one size, again and again."""

    job: CollectiveJob
    rank: int
    device: torch.device
    operation: Operation
    rows: Words
    size: int

    def measure(self, seconds: float) -> StepTimes:
        """Warm up, agree on how many steps fit into *seconds*, time and verify them."""
        buffers = self.allocate()
        first = self.run_steps(range(1), buffers)
        fit = self._agree_on_steps(seconds, first)
        warm_ups = min(WARM_UPS, fit)
        warm = self.run_steps(range(1, warm_ups), buffers)
        count = max(MIN_STEPS, self._agree_on_steps(seconds, warm if warm.end else first))
        timed = self.run_steps(range(warm_ups, warm_ups + count), buffers)
        return StepTimes(
            self.operation.name,
            self.size,
            timed.ready,
            timed.begin,
            timed.end,
            warm_ups + count,
            first.wrong or warm.wrong or timed.wrong,
        )

    def allocate(self) -> list[tuple[Tensor, Tensor]]:
        """
        Allocate what is sent and what is received, maybe the same, for a batch of steps.

        On a CPU the first is for the step that is not timed.
        """
        import torch

        lengths = self.operation.measure_lengths(self.rows.count, self.job.world)
        fit = BATCH_BYTES // self.size if self.device.type == "cpu" else 1
        pairs: list[tuple[Tensor, Tensor]] = []
        untimed = self.device.type == "cpu"
        for _ in range(min(max(1, fit), STEPS_IN_FLIGHT) + untimed):
            sent, got = (torch.zeros(n, dtype=torch.int32, device=self.device) for n in lengths)
            pairs.append((sent, sent) if self.operation.in_place else (sent, got))
        return pairs

    def _agree_on_steps(self, seconds: float, warm: StepTimes) -> int:
        """Agree on how many steps fit into *seconds*, by the last one, with its verification."""
        fit = int(seconds / max(warm.end[-1] - warm.ready[0], 1e-6) * len(warm.end))
        return reduce_minimum(self.job, min(max(fit, 1), MAX_STEPS), self.device)

    def run_steps(self, steps: range, buffers: Sequence[tuple[Tensor, Tensor]]) -> StepTimes:
        """Time these *steps*, each with its own data, and verify their results."""
        import torch

        log = torch.zeros(len(steps), 4, dtype=torch.int64, device=self.device)
        clock = StepClock(self.device)
        untimed: tuple[Tensor, Tensor] | None = None
        if self.device.type == "cpu":
            untimed, *buffers = buffers
        meeting = torch.zeros(1, device=self.device)
        for first in range(0, len(steps), len(buffers)):
            batch = steps[first : first + len(buffers)]
            work = [(step, *pair) for step, pair in zip(batch, buffers, strict=False)]
            if untimed is not None:
                work.append((UNTIMED + batch[0], *untimed))
            for step, send, _ in work:
                self._fill(send, step)
            if first % STEPS_IN_FLIGHT < len(buffers):
                await_ranks(self.job, self.device)
            views = [
                (
                    self._choose_data(step).view_values(send),
                    self._choose_data(step).view_values(got),
                )
                for step, send, got in work
            ]
            if untimed is not None:
                finish(self.operation.begin(*views.pop()), self.device)
            for sent, got in views:
                clock.mark()
                # Else a step's time would include what a peer did before it.
                finish(ALL_REDUCE.begin(meeting, meeting), self.device)
                clock.mark()
                finish(self.operation.begin(sent, got), self.device)
                clock.mark()
            if self.rows.count > CHUNK_WORDS:  # else its verification would fill a GPU's queue
                await_ranks(self.job, self.device)
            for step, _, receive in work:
                self._compare(receive, step, log[step % UNTIMED - steps.start])
        await_ranks(self.job, self.device)
        ready, begin, end = (tuple(clock.read()[first::3]) for first in range(3))
        return StepTimes(
            self.operation.name,
            self.size,
            ready,
            begin,
            end,
            len(steps),
            self._find_wrong(log.tolist(), steps),
        )

    def _fill(self, send: Tensor, step: int) -> None:
        data = self._choose_data(step)
        start = self.operation.find_send_start(self.rows.count, self.rank, self.job.world)
        self.rows.fill(send, data, data.weigh_share(self.rank), start)

    def _choose_data(self, step: int) -> StepData:
        if self.operation.reduces:
            return StepData.make_for_sum(self.job.seed, step, self.job.world)
        return StepData(self.job.seed, step, self.job.world, floats=False)

    def _compare(self, receive: Tensor, step: int, row: Tensor) -> None:
        data, at = self._choose_data(step), 0
        for piece in self.operation.list_pieces(self.rows.count, self.rank, self.job.world):
            whole = data.weigh_sum() if piece.source == SUM else data.weigh_share(piece.source)
            part = receive[at : at + piece.length]
            self.rows.compare(part, data, (whole, piece.start, at), row)
            at += piece.length

    def _find_wrong(self, rows: Sequence[Sequence[int]], steps: range) -> StepMismatch | None:
        for step, row in zip(steps, rows, strict=True):
            if row[0]:
                return self._choose_data(step).make_mismatch(*row)
        return None


ALL_REDUCE = OPERATIONS["all_reduce"]


def finish(works: Sequence[Any], device: torch.device) -> None:
    """Wait for *works*: on a GPU its stream waits, and not the host."""
    with waiting():
        for work in works:
            if device.type == "cuda":
                work.synchronize()
            else:
                work.wait()


class StepClock:
    """Marks of time: the host's, or events in a GPU's stream of work."""

    def __init__(self, device: torch.device) -> None:
        """Note the host's time and, on a GPU, an event of the same time."""
        self._marks: list[Any] = []
        self._device = device
        if device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)
            self.mark()
            self._marks[0].synchronize()
        self._began = perf_counter()

    def mark(self) -> None:
        """Note the time."""
        if self._device.type == "cpu":
            self._marks.append(perf_counter())
            return
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def read(self) -> list[float]:
        """Give the time of each mark, in seconds of the host's clock, once all is done."""
        if self._device.type == "cpu":
            return self._marks
        first, *others = self._marks
        return [self._began + first.elapsed_time(one) / 1e3 for one in others]
