"""
NCCL by gloo: sums of tensors on GPUs that are not there.

A sum is done when it is begun, since a CPU does at once what a GPU has only been told to.
If a peer is lost, or this GPU hangs, the sum never ends: a work that was begun with
``async_op=True`` can be asked, and any other waits. Without
``TORCH_NCCL_BLOCKING_WAIT=1`` torch's watchdog then ends the process.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from tests.rehearsal.clock import CLOCK, read_haste
from tests.rehearsal.faults import strike
from tests.rehearsal.gpu import Gpu, find_gpu

if TYPE_CHECKING:
    from torch import Tensor

START_SECONDS = 20e-6
"""Of a sum, however small."""
BYTES_PER_SECOND = 350e9
SUMMED_ELEMENTS = 1000
"""From so many on, a sum can be spoilt."""
HANG_SECONDS = 3600.0
NO_START = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.29.3\nncclUnhandledCudaError: Call "
    "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
"""What a rank says that finds no memory for NCCL; the others wait for it."""


@dataclass(slots=True)
class Group:
    """The group of this process, if it is one of NCCL's."""

    patience: float
    """Seconds."""
    watched: bool
    """Whether torch's watchdog looks after it."""
    broken: str = ""
    """What gloo said when a peer was lost."""


@dataclass(frozen=True, slots=True)
class Work:
    """A sum that was begun: as `torch.distributed.Work`."""

    gpu: Gpu
    end: float
    """On the clock of the GPUs."""

    def is_completed(self) -> bool:
        """Say whether it is done."""
        self.gpu.require_alive()
        return self.end <= CLOCK.read()

    def synchronize(self) -> None:
        """Have the stream wait, and not the host: here a stream does all in order."""

    def wait(self) -> bool:
        """Wait until it is done."""
        self.gpu.wait(self.end)
        return True


def install(tag_of: Callable[[Tensor], Gpu | None]) -> None:
    """Put it in the place of torch's; *tag_of* tells on which GPU a tensor is."""
    groups: list[Group] = []
    init, reduce = dist.init_process_group, dist.all_reduce
    destroy = dist.destroy_process_group

    def init_process_group(
        backend: str,
        *args: Any,
        device_id: Any = None,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        groups.clear()
        if backend == "nccl":
            assert device_id is not None, "an eager start needs its device"
            assert timeout is not None
            groups.append(_begin_group(find_gpu(device_id), timeout.total_seconds()))
            backend = "gloo"
        patience = None if timeout is None else timeout / read_haste()  # gloo's own clock is real
        init(backend, *args, **{"timeout": patience, **kwargs})

    def all_reduce(tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        gpu = tag_of(tensor)
        if not groups:
            return reduce(tensor, *args, **{"async_op": async_op, **kwargs})
        assert gpu is not None, "No backend type associated with device type cpu"
        gpu.require_alive()
        for _ in strike("nccl_hang", gpu.index):
            time.sleep(HANG_SECONDS)
        end = _sum(groups[0], gpu, partial(reduce, tensor, *args, **kwargs))
        if math.isfinite(end):
            end = _work_on(gpu, tensor)
        elif groups[0].watched:
            _abort_process(groups[0])
        # One that was not begun as async_op has no work, and so no end to its wait.
        return Work(gpu, end) if async_op else None

    def abort(_group: Any = None) -> None:
        groups.clear()
        destroy()

    setattr(dist, "init_process_group", init_process_group)  # noqa: B010 - torch's is typed
    setattr(dist, "all_reduce", all_reduce)  # noqa: B010 - likewise
    setattr(distributed_c10d, "_abort_process_group", abort)  # noqa: B010 - likewise


def _begin_group(gpu: Gpu, patience: float) -> Group:
    """Read the environment as torch does, and change it as torch does."""
    gpu.require_alive()
    for _ in strike("nccl_start", gpu.index):
        raise dist.DistBackendError(NO_START)
    if torch.are_deterministic_algorithms_enabled():
        os.environ.setdefault("NCCL_ALGO", "^NVLS")
    return Group(patience, os.environ.get("TORCH_NCCL_BLOCKING_WAIT") != "1")


def _sum(group: Group, gpu: Gpu, reduce: Callable[[], object]) -> float:
    """Sum with all ranks; give the end: never, if one is lost or this GPU does not get there."""
    if math.isinf(gpu.current.end) or group.broken:
        return math.inf
    begun = time.monotonic()
    try:
        reduce()
    except RuntimeError as exc:
        group.broken = str(exc)
        if group.watched:
            time.sleep(max(0.0, group.patience - (time.monotonic() - begun)))
        return math.inf
    return gpu.current.end


def _work_on(gpu: Gpu, tensor: Tensor) -> float:
    """Let the GPU take its time, and meet its faults; give the end."""
    if tensor.numel() >= SUMMED_ELEMENTS:
        for _ in strike("sum", gpu.index):
            tensor.view(-1)[5] += 1
    world = dist.get_world_size()
    gpu.start_kernel(START_SECONDS + 2 * (world - 1) / world * tensor.nbytes / BYTES_PER_SECOND)
    return gpu.current.end


def _abort_process(group: Group) -> NoReturn:
    sys.stderr.write(
        "[rank?]:[E] ProcessGroupNCCL.cpp: [PG ID 0] Process group watchdog thread terminated "
        "with exception: Watchdog caught collective operation timeout: "
        f"WorkNCCL(OpType=ALLREDUCE) ran for {group.patience * 1e3:.0f} milliseconds before "
        f"timing out. (stand-in: {group.broken})\n"
    )
    sys.stderr.flush()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()
