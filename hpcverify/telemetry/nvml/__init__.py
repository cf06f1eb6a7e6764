"""
NVIDIA GPUs, through NVML: the one room that calls it.

NVML answers call by call and GPU by GPU, so nothing here gives up on a node for one
GPU's sake, nor on a GPU for one call's sake: a GPU that fell off the bus still
answers some calls, and what is said of it must not depend on which one comes first.
So every question is asked to its end, and `GpuQuery` sorts what is no answer:

- not supported, unknown to this driver, no permission: listed, and nothing more;
- lost, reset required, corrupted InfoROM, no power: the GPU is unwell;
- a call that does not return: the GPU hangs, and is asked again when it has returned;
- anything else: tried once more, and then it could not be read.

A call into a driver in trouble may never return, so all this belongs into a worker,
and within it into a thread that can be left behind (`visit`). Names are the
current ones of NVML 13 (nvml.h).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcverify.telemetry.nvml.poll import NvmlSource


@cache
def get_source() -> NvmlSource:
    """Give this process's session with NVML, which remembers who hangs."""
    from hpcverify.telemetry.nvml.poll import NvmlSource  # noqa: PLC0415 - 30 ms, for nothing without a GPU

    return NvmlSource()
