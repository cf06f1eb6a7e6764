"""
NCCL by gloo: sums of tensors on GPUs that are not there.

Where gloo says that a peer is lost, NCCL waits until its time is up; then its watchdog
ends the process, as it does unless the environment tells it otherwise.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

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


def install(tag_of: Callable[[Tensor], Gpu | None]) -> None:
    """Put it in the place of torch's; *tag_of* tells on which GPU a tensor is."""
    timeouts: list[timedelta] = []
    init, reduce = dist.init_process_group, dist.all_reduce

    def init_process_group(
        backend: str, *args: Any, device_id: Any = None, timeout: Any = None, **kwargs: Any
    ) -> None:
        timeouts.clear()
        if backend == "nccl":
            assert device_id is not None, "an eager start needs its device"
            find_gpu(device_id).require_alive()
            timeouts.append(timeout)
            backend = "gloo"
        init(backend, *args, **{"timeout": timeout, **kwargs})

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        gpu = tag_of(tensor)
        if not timeouts:
            return reduce(tensor, *args, **kwargs)
        assert gpu is not None, "No backend type associated with device type cpu"
        gpu.require_alive()
        begun = time.monotonic()
        for _ in strike("nccl_hang", gpu.index):
            time.sleep(HANG_SECONDS)
        try:
            result = reduce(tensor, *args, **kwargs)
        except RuntimeError as exc:
            _give_up(timeouts[0].total_seconds() - (time.monotonic() - begun), exc)
        if tensor.numel() >= SUMMED_ELEMENTS:
            for _ in strike("sum", gpu.index):
                tensor.view(-1)[5] += 1
        world = dist.get_world_size()
        moved = 2 * (world - 1) / world * tensor.nbytes
        gpu.start_kernel(START_SECONDS + moved / BYTES_PER_SECOND)
        return result

    setattr(dist, "init_process_group", init_process_group)  # noqa: B010 - torch's is typed
    setattr(dist, "all_reduce", all_reduce)  # noqa: B010 - likewise


def _give_up(left: float, exc: RuntimeError) -> NoReturn:
    time.sleep(max(0.0, left))
    sys.stderr.write(
        "[rank?]:[E] ProcessGroupNCCL.cpp: [PG ID 0] Process group watchdog thread terminated "
        "with exception: Watchdog caught collective operation timeout: "
        f"WorkNCCL(OpType=ALLREDUCE) ran for {max(0.0, left) * 1e3:.0f} milliseconds before "
        f"timing out. (stand-in: {exc})\n"
    )
    sys.stderr.flush()
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.abort()
