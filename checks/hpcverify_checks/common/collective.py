"""
Ranks that meet through files, and an all-reduce: timed, with every sum verified.

Rank r contributes 2^r times a pattern of small integers. So the sum is known exactly, in
any order, and a wrong one shows whose share is missing or doubled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from hpcverify.check import Cause, Remedy, Unable, operation
from hpcverify_checks.common.device import use_threads

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

POLL_SECONDS = 0.02
MEMORY_FACTOR = 4
"""Memory needed for each byte of a message: two buffers and temporaries."""

Reduce = Callable[["Tensor"], object]
"""Sums a tensor over all ranks, in place; tests inject faulty ones."""


class RankGroup(Struct, frozen=True):
    """What ranks need to know to meet, whatever they do together."""

    folder: str
    """Where they meet; its owner removes it."""
    world: int
    backend: str
    timeout: float
    """Seconds after which a peer that does not answer counts as lost."""


class AllreduceJob(RankGroup, frozen=True):
    """What the ranks of one all-reduce have in common."""

    sizes: tuple[int, ...]
    """Of the messages, in bytes."""
    seconds: float
    """For all sizes together."""


class WrongReduction(Struct, frozen=True):
    """The first wrong sum of a size, and how many of its elements were wrong."""

    step: int
    elements: int
    index: int
    found: float
    expected: float


class MessageTimes(Struct, frozen=True):
    """What one rank measured at one size: the time of each step, in seconds."""

    size: int
    times: tuple[float, ...]
    checked: int
    """Results verified, those of the warm-up included."""
    wrong: WrongReduction | None = None


def all_reduce(tensor: Tensor) -> None:
    """Sum *tensor* over all ranks, in place."""
    import torch.distributed as dist

    dist.all_reduce(tensor)


def file_of(group: RankGroup, name: str) -> Path:
    """Give the path of a file that all ranks of *group* can see."""
    return Path(group.folder) / name


def exchange_messages(group: RankGroup, rank: int, name: str, message: bytes = b"") -> list[bytes]:
    """
    Send *message* about *name* to all ranks of *group*; return the message of each.

    Uses files, so that no process group need exist yet.

    Raises:
        Unable: a rank sent nothing in time; the reason names it.

    """
    new = file_of(group, f"{name}{rank}.new")
    new.write_bytes(message)
    new.replace(file_of(group, f"{name}{rank}"))  # no reader sees half of it
    paths = [file_of(group, f"{name}{r}") for r in range(group.world)]
    deadline = monotonic() + group.timeout
    while missing := [r for r, path in enumerate(paths) if not path.exists()]:
        if monotonic() > deadline:
            raise _build_timeout(group, missing)
        sleep(POLL_SECONDS)
    return [path.read_bytes() for path in paths]


def _build_timeout(group: RankGroup, missing: Collection[int] = ()) -> Unable:
    names = ", ".join(map(str, missing))
    return Unable(
        f"one of {group.world} ranks did not start or answer within {group.timeout:g} s"
        + (f": no sign of rank {names}" if names else ""),
        Cause.TIMEOUT,
        Remedy.RERUN,
    )


@contextmanager
def join_group(group: RankGroup, rank: int, device: torch.device) -> Generator[None]:
    """
    Be *rank* of the *group* while the block runs.

    All ranks meet before any of them calls a library: NCCL cannot be interrupted once it
    waits for a rank that never comes.

    Raises:
        Unable: A peer did not start or answer in time.

    """
    import torch.distributed as dist

    exchange_messages(group, rank, "here")
    meeting = str(file_of(group, "rendezvous"))
    # Public and documented, but torch does not list it as exported.
    store = dist.FileStore(meeting, group.world)  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]
    with ExitStack() as stack:
        stack.enter_context(_convert_timeouts(group))
        with _use_loopback(), _reset_group_count():
            dist.init_process_group(
                group.backend,
                store=store,
                rank=rank,
                world_size=group.world,
                timeout=timedelta(seconds=group.timeout),
                device_id=device if device.type == "cuda" else None,
            )
        stack.callback(dist.destroy_process_group)
        yield


@contextmanager
def _reset_group_count() -> Generator[None]:
    """
    Make torch forget a group that could not be made.

    It numbers groups, ranks meet by the number, and the count only resets when a group
    ends: after a group that never began, this process would be alone in every later one.
    """
    import torch.distributed as dist

    try:
        yield
    except RuntimeError:
        if not dist.is_initialized():
            store = dist.HashStore()  # type: ignore[attr-defined]  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.destroy_process_group()
        raise


@contextmanager
def _convert_timeouts(group: RankGroup) -> Generator[None]:
    """Turn the timeout errors of gloo and torch into `Unable`."""
    try:
        yield
    except RuntimeError as exc:
        if not any(word in str(exc).lower() for word in ("timeout", "timed out")):
            raise
        raise _build_timeout(group) from exc


@contextmanager
def use_thread_share(group: RankGroup) -> Generator[None]:
    """Compute with this rank's share of the threads, so that ranks do not spin for cores."""
    import torch

    with use_threads(max(1, torch.get_num_threads() // group.world)):
        yield


@contextmanager
def _use_loopback() -> Generator[None]:
    """Make the ranks of one node meet on its loopback, whatever its name resolves to."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    added = [name for name in names if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "lo"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


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

    everyone = reduce_minimum(_read_free_bytes(device), device)
    for size in job.sizes:
        if MEMORY_FACTOR * size <= everyone:
            benchmark = MessageBenchmark(job.world, rank, size, device, reduce)
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


def reduce_minimum(value: int, device: torch.device) -> int:
    """Find the smallest *value* of all ranks, so that they all decide the same."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(value, dtype=torch.int64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
    return int(tensor)


@dataclass(frozen=True, slots=True)
class MessageBenchmark:
    """Messages of one size, reduced again and again."""

    world: int
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
        buffers = ReduceBuffers(pattern, torch.empty_like(pattern))
        start = perf_counter()
        warm = self._run_steps(WARM_UPS, buffers)
        fit = int(seconds * WARM_UPS / (perf_counter() - start))
        count = reduce_minimum(min(max(fit, MIN_STEPS), MAX_STEPS), self.device)
        timed = self._run_steps(count, buffers)
        wrong = warm.wrong or timed.wrong
        return MessageTimes(self.size, timed.times, WARM_UPS + count, wrong)

    def _run_steps(self, count: int, buffers: ReduceBuffers) -> MessageTimes:
        import torch
        import torch.distributed as dist

        log = torch.zeros(count, 3, dtype=torch.float64, device=self.device)
        marks: list[tuple[Any, Any]] = []
        for row in log:
            torch.mul(buffers.pattern, 2.0**self.rank, out=buffers.message)
            # Else a step's time would include a peer's verification of the last step.
            dist.all_reduce(torch.zeros(1, device=self.device))
            before = record_event(self.device)
            self.reduce(buffers.message)
            marks.append((before, record_event(self.device)))
            buffers.verify(self.total, row)
        rows = log.tolist()  # waits for the last step
        wrong = (
            WrongReduction(
                step, int(bad), int(first), value, (first % PATTERN_PERIOD + 1) * self.total
            )
            for step, (bad, first, value) in enumerate(rows)
            if bad
        )
        times = tuple(compute_elapsed(before, after) for before, after in marks)
        return MessageTimes(self.size, times, count, next(wrong, None))

    @property
    def total(self) -> float:
        """The correct sum, as a multiple of the pattern."""
        return 2.0**self.world - 1


@dataclass(frozen=True, slots=True)
class ReduceBuffers:
    """The pattern that every message is a multiple of, and the message."""

    pattern: Tensor
    message: Tensor

    def verify(self, total: float, row: Tensor) -> None:
        """Write the number of wrong elements, and the first, to *row*, without waiting."""
        import torch

        self.message.sub_(self.pattern, alpha=total)
        # Integers, so that any difference at all is an error; NaN differs from zero.
        first = (self.message != 0).view(torch.uint8).argmax()[None]
        row[0] = torch.count_nonzero(self.message)
        row[1] = first[0]
        off = self.message.index_select(0, first)
        row[2] = (off.double() + total * self.pattern.index_select(0, first))[0]


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
