"""Cores of the host: those near a GPU, and work on each from a thread pinned to it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

import hpcverify.check as hv
from hpcverify.telemetry import aer, cpu

T = TypeVar("T")
MAX_CORES = 64
"""Cores at a time: past this, Python's lock is busier than the cores are."""


def use_all_cores(root: Path = Path("/")) -> None:
    """
    As root, let this thread use every core that is online and in its cpuset.

    Whoever verifies a node means all of it: a mask of taskset, of a service or of an OpenMP
    that was loaded before us is widened. A user keeps to the mask, which may be all that
    keeps a job to its own cores. The kernel takes away what the cpuset does not allow.
    """
    if os.geteuid() == 0:
        with suppress(OSError):  # in a sandbox: `report_left_out_cores` says what is missing
            os.sched_setaffinity(0, cpu.read_cores(root).online)


def report_left_out_cores(ctx: hv.Context, root: Path = Path("/")) -> Iterator[hv.Finding]:
    """Report the cores that are online and may not be used, so that even a PASS says so."""
    cores = cpu.read_cores(root)
    left = sorted(set(cores.online) - set(cores.allowed))
    if left and ctx.device.kind == "cpu":
        text = (
            f"tested on {len(cores.online) - len(left)} of {len(cores.online)} online cores: the "
            f"cpuset or affinity of this process excludes {format_ranges(left)}"
        )
        yield hv.Finding(hv.CORES_LEFT_OUT_CODE, ctx.device.part, text)


def list_near_cores(ctx: hv.Context, part: str, root: Path = Path("/")) -> frozenset[int]:
    """List the cores on the same socket as the GPU *part* that we may use; none if unknown."""
    gpu = ctx.inventory.find_part(part)
    address = gpu.facts.get("pci_address", "") if gpu else ""
    return aer.list_local_cpus(address, root) & os.sched_getaffinity(0)


def bind_near_gpu(ctx: hv.Context, root: Path = Path("/")) -> int:
    """
    Keep this thread, and those that it starts, to the cores near the GPU of *ctx*.

    Where none of them is known and allowed, nothing changes. Returns how many cores this
    GPU's worker may keep busy: its share, since each GPU near them has a worker.
    """
    near = list_near_cores(ctx, ctx.device.part, root)
    if near:
        with suppress(PermissionError):  # in a sandbox: all cores then serve each GPU
            os.sched_setaffinity(0, near)
    gpus = [d.part for d in ctx.inventory.devices if d.kind == "cuda"]
    sharing = [gpu for gpu in gpus if not near or near & list_near_cores(ctx, gpu, root)]
    return max(1, len(os.sched_getaffinity(0)) // max(1, len(sharing)))


def pick_cores(cores: Sequence[int], fit: int, rotation: int) -> tuple[int, ...]:
    """Choose *fit* of *cores*; each *rotation* chooses others, until all had a turn."""
    if fit >= len(cores):
        return tuple(cores)
    start = rotation * fit % len(cores)
    return tuple(sorted((*cores, *cores)[start : start + fit]))


def list_other_cores(part_id: str) -> list[int]:
    """
    List the cores that can bear witness to what the part or core *part_id* did.

    Those of other physical cores come first: the threads of a core share its units. Where
    there is no other, the core itself is all there is.
    """
    mine = sorted(os.sched_getaffinity(os.getpid()))  # of the main thread: this one may be pinned
    physical = cpu.map_cores()
    own = next((physical.get(core) for core in mine if f"cpu{core}" == part_id), None)
    others = [core for core in mine if f"cpu{core}" != part_id]
    return sorted(others, key=lambda c: own is not None and physical.get(c) == own) or mine


def run_on_each(cores: Sequence[int], work: Callable[[int], T]) -> Iterator[T]:
    """
    Run ``work(core)`` on all *cores* at the same time, and yield the result of each.

    If one of them raises, its exception is raised after the others' results; so is `Unable`
    if we may not use a core any more.

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

    try:
        os.sched_setaffinity(0, {core})
    except PermissionError as exc:
        reason = "the seccomp profile of this container forbids sched_setaffinity"
        raise hv.Unable(
            reason, hv.Cause.DENIED, fix="allow it, or run outside the container"
        ) from exc
    except OSError as exc:
        raise hv.Unable(
            f"core {core} may not be used any more ({exc.strerror}): it went offline, or the "
            "cpuset of the job was changed meanwhile; run it again",
            hv.Cause.PARTIAL_VIEW,
            hv.Remedy.RERUN,
        ) from exc
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
