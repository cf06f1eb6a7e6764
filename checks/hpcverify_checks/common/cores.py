"""Work on one core at a time, or on many at once, each from a thread pinned to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TypeVar

T = TypeVar("T")
MAX_CORES = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""


def pick_cores(cores: Sequence[int], fit: int, rotation: int) -> tuple[int, ...]:
    """Choose *fit* of *cores*; each *rotation* chooses others, until all had a turn."""
    if fit >= len(cores):
        return tuple(cores)
    start = rotation * fit % len(cores)
    return tuple(sorted((*cores, *cores)[start : start + fit]))


def run_on_each(cores: Sequence[int], work: Callable[[int], T]) -> Iterator[T]:
    """
    Run ``work(core)`` on all *cores* at the same time, and yield the result of each.

    If one of them raises, its exception is raised after the others' results.

    Each gets a new thread that is pinned before torch computes in it: the main thread's
    OpenMP threads inherited its affinity, and it must stay unpinned.
    """
    import torch

    threads = torch.get_num_threads()
    try:
        with ExitStack() as stack:
            started = [
                stack.enter_context(ThreadPoolExecutor(1)).submit(_run_pinned, core, work)
                for core in cores
            ]
    finally:
        torch.set_num_threads(threads)
    raised = [exc for exc in (future.exception() for future in started) if exc]
    yield from (future.result() for future in started if not future.exception())
    if raised:
        raise raised[0]


def _run_pinned(core: int, work: Callable[[int], T]) -> T:
    import torch

    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    return work(core)


def format_ranges(cores: Sequence[int]) -> str:
    """Print *cores* as the kernel does: 0-3,8."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else f"{r[0]}" for r in runs)
