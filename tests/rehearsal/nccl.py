"""
NCCL by gloo: sums and other collectives of tensors on GPUs that are not there.

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
COLLECTIVES = (
    *("all_reduce", "broadcast", "all_to_all_single"),
    *("all_gather_single", "all_gather_into_tensor"),
    *("reduce_scatter_single", "reduce_scatter_tensor"),
)
"""Of torch, by all names that they have had."""
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
        self.gpu.require_alive()
        return self.end <= CLOCK.read()

    def synchronize(self) -> None:
        """Have the stream wait, and not the host: here a stream does all in order."""

    def wait(self) -> bool:
        self.gpu.wait(self.end)
        return True


@dataclass(slots=True)
class Library:
    """What stands in the place of torch's functions."""

    tag_of: Callable[[Tensor], Gpu | None]
    """On which GPU a tensor is."""
    init: Callable[..., None] = dist.init_process_group
    destroy: Callable[[], None] = dist.destroy_process_group
    exchange: Callable[[list[Any]], list[Any]] = dist.batch_isend_irecv
    group: Group | None = None
    """None: it is one of gloo."""

    def init_process_group(
        self,
        backend: str,
        *args: Any,
        device_id: Any = None,
        timeout: timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        self.group = None
        if backend == "nccl":
            assert device_id is not None, "an eager start needs its device"
            assert timeout is not None
            self.group = _begin_group(find_gpu(device_id), timeout.total_seconds())
            backend = "gloo"
        patience = None if timeout is None else timeout / read_haste()  # gloo's own clock is real
        self.init(backend, *args, **{"timeout": patience, **kwargs})

    def wrap(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Take the place of *collective*, whose first argument is the tensor that it leaves."""

        def begin(tensor: Tensor, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
            if self.group is None:
                return collective(tensor, *args, **{"async_op": async_op, **kwargs})
            work = self.take(self.group, partial(collective, tensor, *args, **kwargs), tensor)
            # One that was not begun as async_op has no work, and so no end to its wait.
            return work if async_op else None

        return begin

    def batch_isend_irecv(self, operations: list[Any]) -> list[Any]:
        """Send and receive; the last of *operations* receives."""
        if self.group is None:
            return self.exchange(operations)
        act = partial(self._exchange, operations)
        return [self.take(self.group, act, operations[-1].tensor)]

    def _exchange(self, operations: list[Any]) -> None:
        for work in self.exchange(operations):
            work.wait()

    def take(self, group: Group, act: Callable[[], object], tensor: Tensor) -> Work:
        """Take a collective that leaves *tensor*, by gloo."""
        gpu = self.tag_of(tensor)
        assert gpu is not None, "No backend type associated with device type cpu"
        gpu.require_alive()
        for _ in strike("nccl_hang", gpu.index):
            time.sleep(HANG_SECONDS)
        end = _sum(group, gpu, act)
        if math.isfinite(end):
            end = _work_on(gpu, tensor)
        elif group.watched:
            _abort_process(group)
        return Work(gpu, end)

    def abort(self, _group: Any = None) -> None:
        self.group = None
        self.destroy()


def install(tag_of: Callable[[Tensor], Gpu | None]) -> None:
    """Put it in the place of torch's; *tag_of* tells on which GPU a tensor is."""
    library = Library(tag_of)
    changes = {
        name: library.wrap(getattr(dist, name)) for name in COLLECTIVES if hasattr(dist, name)
    }
    changes |= {
        "init_process_group": library.init_process_group,
        "batch_isend_irecv": library.batch_isend_irecv,
    }
    for name, function in changes.items():  # torch's are typed
        setattr(dist, name, function)
    setattr(distributed_c10d, "_abort_process_group", library.abort)  # noqa: B010 - likewise


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
