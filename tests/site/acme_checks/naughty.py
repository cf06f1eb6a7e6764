"""Misbehave in the way that the parameters name, after measuring something."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import cast

from hpcverify.check import (
    Cause,
    Check,
    CheckItem,
    Context,
    Measurement,
    Metric,
    Params,
    Placement,
    Skip,
    Unable,
    operation,
)


class NaughtyParams(Params, frozen=True):
    """How to misbehave, and on what path."""

    way: str = "raise"
    path: str = ""


def measure(ctx: Context, params: NaughtyParams) -> Iterator[CheckItem]:
    """Measure, write a scratch file, and then misbehave."""
    yield Measurement("before", 1.0)
    (ctx.scratch / "file").write_bytes(bytes(2**20))
    if params.way == "other_unit":
        yield Measurement("after", 1.0, "s")
    if params.way == "wrong_type":
        yield Measurement("after", 1.0, part_id=cast("str", 7))
    if params.way == "no_finding":
        yield cast("CheckItem", None)
    if params.way in AT_WORK:
        doing, what = AT_WORK[params.way]
        with operation(doing, ctx.device):
            what(params.path)
    WAYS[params.way](params.path)
    yield Measurement("after", 1.0)


def fail_to_raise(_path: str) -> None:
    """Raise what no check should."""
    raise ZeroDivisionError("a bug")


def skip(_path: str) -> None:
    """Skip."""
    raise Skip("there is no such part")


def unable(_path: str) -> None:
    """Need what is not there."""
    raise Unable("frob is not installed: apt-get install frob", Cause.MISSING)


def segfault(_path: str) -> None:
    """Read address zero."""
    ctypes.string_at(0)


def abort_after(text: str) -> None:
    """Print *text*, and end as a thread of a library makes a process end."""
    write(text)
    os.abort()


def write(text: str) -> None:
    """Print *text*, as a library that complains and goes on."""
    sys.stderr.write(text)
    sys.stderr.flush()


def leave_child(path: str) -> None:
    """Start a child that outlives us, and wait for ever."""
    child = subprocess.Popen(["sleep", "3600"])
    with open(path, "w") as file:  # noqa: PTH123 - as careless checks do
        file.write(str(child.pid))
    wait("")


def wait(_path: str) -> None:
    """Take for ever."""
    time.sleep(3600)


def stat(path: str) -> None:
    """Ask a file system that does not answer."""
    os.stat(path)  # noqa: PTH116 - nothing but the call


def no_memory(_path: str) -> None:
    """Ask for more memory than any node has."""
    bytes(2**62)


def raise_runtime_error(text: str) -> None:
    """Raise *text* as torch raises what a library told it."""
    raise RuntimeError(text)


def raise_accelerator_error(text: str) -> None:
    """Raise *text* as torch raises an error of CUDA."""
    import torch  # noqa: PLC0415 - as checks do

    raise torch.AcceleratorError(text)


def run_out_of_gpu_memory(text: str) -> None:
    """Raise *text* as torch's allocator does."""
    import torch  # noqa: PLC0415 - as checks do

    raise torch.OutOfMemoryError(text)


WAYS: Mapping[str, Callable[[str], None]] = {
    "raise": fail_to_raise,
    "skip": skip,
    "unable": unable,
    "segfault": segfault,
    "abort_after": abort_after,
    "write": write,
    "leave_child": leave_child,
    "wait": wait,
    "stat": stat,
    "no_memory": no_memory,
    "runtime_error": raise_runtime_error,
    "accelerator_error": raise_accelerator_error,
    "out_of_gpu_memory": run_out_of_gpu_memory,
    "stop": lambda _path: signal.raise_signal(signal.SIGSTOP),
    "exit": lambda _path: os._exit(7),
    "nothing": lambda _path: None,
}

AT_WORK: Mapping[str, tuple[str, Callable[[str], None]]] = {
    "hang": ("hanging", wait),
    "crash_at_work": ("crashing", segfault),
    "raise_at_work": ("raising", fail_to_raise),
}
"""The same in an operation: its name, and what happens in it."""

CHECK = Check(
    summary="misbehaves on purpose",
    measure=measure,
    params=NaughtyParams,
    metrics={
        "before": Metric(unit="", worse="neither", meaning="measured before it misbehaves"),
        "after": Metric(unit="", worse="neither", meaning="measured only if it did not"),
    },
    placement=Placement.NODE,
    timeout=60.0,
)
