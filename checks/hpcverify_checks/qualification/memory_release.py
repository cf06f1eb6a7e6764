"""
Measure how long the driver takes to free the memory of a process that was killed.

A process of its own takes most of the memory, works on it, and is killed. The times until
it is gone and until its memory is free again say how long to wait for a worker that overran.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from hpcverify.check import (
    Cause,
    Check,
    CheckItem,
    Context,
    Coverage,
    Measurement,
    Metric,
    Params,
    Placement,
    Remedy,
    Unable,
    operation,
)
from hpcverify.telemetry.vendors import NVIDIA
from hpcverify.units import GIB, MIB
from hpcverify_checks.common.device import (
    find_gpu_index,
    find_torch_device,
    list_torch_ids,
    name_torch_vendor,
)
from hpcverify_checks.common.fixes import write_fix
from hpcverify_checks.qualification import require_gpu

if TYPE_CHECKING:
    from collections.abc import Generator

    import torch

CHUNK_BYTES = GIB
READY_LINE = b"ready\n"
SLACK_BYTES = 64 * MIB
"""Memory that may stay in use: the driver's own bookkeeping changes a little."""
USUAL_SECONDS = 20.0
"""The usual time to start torch and CUDA, take most of the memory, and free all of it."""
POLL_SECONDS = 0.005
"""Between looks: the resolution of what is measured."""


class MemoryReleaseParams(Params, frozen=True):
    """How much memory to take, and how long to wait."""

    share: Annotated[float, Meta(gt=0, le=1)] = 0.8
    """The share of what is free."""
    start_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """The time for the process to start and to take the memory."""
    patience_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """The time for the memory to be free again."""


def estimate(_ctx: Context, _params: MemoryReleaseParams) -> float:
    """Assume so much for the start of a process and its end."""
    return USUAL_SECONDS


def measure(ctx: Context, params: MemoryReleaseParams) -> Iterator[CheckItem]:
    """Yield the seconds until the process is gone, and until its memory is free."""
    require_gpu(ctx)
    gpu = ctx.inventory.find_part(ctx.device.part)
    if gpu and "compute_mode" in gpu.facts:
        text = f"its compute mode is {gpu.facts['compute_mode']}, and this takes two processes"
        fix = write_fix("compute_mode", NVIDIA, ctx.device.part)  # AMD's have no such mode
        raise Unable(text, Cause.MISCONFIGURED, fix=fix)
    device = find_torch_device(ctx)
    before = read_free_bytes(device)
    with (
        start_holder(ctx, int(params.share * before)) as holder,
        operation("waiting for the memory of a process", ctx.device),
    ):
        wait_for_ready(holder, params.start_seconds)
        held = before - read_free_bytes(device)
        holder.kill()
        began = perf_counter()
        gone = wait_until(lambda: holder.poll() is not None, began, params.patience_seconds)
        free = wait_until(
            lambda: read_free_bytes(device) >= before - SLACK_BYTES,
            began,
            params.patience_seconds,
        )
    yield Measurement("release.process", gone, "s", ctx.device.part)
    yield Measurement("release.memory", free, "s", ctx.device.part)
    yield Coverage(ctx.device.part, f"a process that held {held / GIB:.1f} GiB was killed at work")


def read_free_bytes(device: torch.device) -> int:
    """Read how much of the GPU's memory is free."""
    import torch

    return torch.cuda.mem_get_info(device)[0]


@contextmanager
def start_holder(ctx: Context, size: int) -> Generator[subprocess.Popen[bytes]]:
    """Start a process that holds *size* bytes of the GPU of *ctx* until it is killed."""
    command = [sys.executable, "-P", "-m", __name__, ctx.device.part, str(size)]
    with subprocess.Popen(  # noqa: S603 - our own module
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as holder:
        try:
            yield holder
        finally:
            holder.kill()


def wait_for_ready(holder: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until *holder* has the memory; raise `Unable` if it ends or takes too long."""
    import select

    assert holder.stdout is not None  # noqa: S101 - narrows the type
    there, _, _ = select.select([holder.stdout], [], [], seconds)
    if not there or holder.stdout.readline() != READY_LINE:
        raise Unable(
            "the process that was to take the GPU's memory did not: see the worker's log",
            Cause.CRASHED if there else Cause.TIMEOUT,
            Remedy.RERUN,
        )


def wait_until(holds: Callable[[], bool], began: float, seconds: float) -> float:
    """Return the seconds since *began* at which *holds* was true; `Unable` if it never is."""
    while not holds():
        if perf_counter() - began > seconds:
            raise Unable(
                f"the memory of a killed process was not free after {seconds:g} s: "
                f"{write_fix('free_memory', name_torch_vendor())}",
                Cause.TIMEOUT,
                Remedy.RERUN,
            )
        sleep(POLL_SECONDS)
    return perf_counter() - began


def hold_memory(part: str, size: int) -> None:
    """Hold *size* bytes of the GPU *part*, and work on them until this process is killed."""
    import torch

    device = torch.device("cuda", find_gpu_index(part, list_torch_ids()))
    sizes = [CHUNK_BYTES] * (size // CHUNK_BYTES) + [size % CHUNK_BYTES]
    chunks = [torch.zeros(s, dtype=torch.uint8, device=device) for s in sizes if s]
    torch.cuda.synchronize(device)
    sys.stdout.buffer.write(READY_LINE)
    sys.stdout.buffer.flush()
    while True:
        for chunk in chunks:
            chunk.bitwise_not_()
        torch.cuda.synchronize(device)


CHECK = Check(
    summary="how long the driver takes to free the memory of a killed process",
    measure=measure,
    params=MemoryReleaseParams,
    metrics={
        "release.process": Metric("s", "high", "from the kill to the end of the process"),
        "release.memory": Metric("s", "high", "from the kill until its memory is free"),
    },
    applies=require_gpu,
    estimate=estimate,
    placement=Placement.DEVICES_ALONE,
    timeout=180.0,
)

if __name__ == "__main__":
    hold_memory(sys.argv[1], int(sys.argv[2]))
