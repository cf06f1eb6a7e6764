"""The torch device of a worker's part, and torch's settings on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Generator, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

from hpcverify.check import Cause, Context, Coverage, Unable, operation
from hpcverify.processes import write_install_command
from hpcverify.telemetry import cpu
from hpcverify_checks.common.dtypes import FAMILIES
from hpcverify_checks.common.timing import make_product_step

if TYPE_CHECKING:
    import torch

CUBLAS_WORKSPACE = ":4096:8"
"""The larger of the two settings with which cuBLAS gives the same bits each time, whatever
the streams (its guide, "Results reproducibility"); torch's default on Hopper is as large."""

OVERRIDES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_EMULAT*",
    "ONEDNN_*",
    "DNNL_*",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ATEN_CPU_CAPABILITY",
)
"""Environment variables that make a library compute products differently from what a job
gets: with other units, other instructions, fewer bits. Libraries read them when they load
or first multiply."""

_removed_overrides: set[str] = set()
"""Those that were removed from this process."""


def remove_overrides(environ: MutableMapping[str, str]) -> list[str]:
    """Remove all `OVERRIDES` from *environ*, and return the names of those it had."""
    names = [n for n in environ if any(fnmatchcase(n, o) for o in OVERRIDES)]
    for name in names:
        del environ[name]
    return names


def report_overrides(ctx: Context) -> Iterator[Coverage]:
    """Report which `OVERRIDES` were ignored, if there were any."""
    if _removed_overrides:
        names = ", ".join(sorted(_removed_overrides))
        yield Coverage(ctx.device.part, f"set in the environment and ignored: {names}")


PROBE_SIZE, PROBE_COUNT = 128, 5
MAX_SLOWDOWN = 8.0
"""Times as long as fp32. With units for it a type takes up to twice as long; with a
reference kernel 17 to 30 times (AMD Zen 5, oneDNN as of torch 2.13), elsewhere up to
thousands of times."""


def find_torch_device(ctx: Context) -> torch.device:
    """
    Find the torch device of the part of *ctx*.

    A GPU is found by its UUID, so that neither ``CUDA_VISIBLE_DEVICES`` nor CUDA's order
    matters; it becomes the current device.
    """
    # Libraries read all of this once, when the first check of this worker multiplies.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
    _removed_overrides.update(remove_overrides(os.environ))
    try:
        import torch
    except ModuleNotFoundError as exc:
        fix = write_install_command("torch")
        raise Unable(f"torch is not installed: {fix}", Cause.MISSING) from exc
    if ctx.device.kind == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None:
        raise Unable(
            f"torch {torch.__version__} is a build without CUDA: pip install "
            f"--force-reinstall torch=={torch.__version__.partition('+')[0]} from an "
            "index with CUDA builds",
            Cause.MISSING,
        )
    with operation("the start of CUDA", ctx.device):
        seen = range(torch.cuda.device_count())
        uuids = [str(torch.cuda.get_device_properties(i).uuid) for i in seen]
        device = torch.device("cuda", find_gpu_index(ctx.device.part, uuids))
        torch.cuda.set_device(device)
    return device


def find_gpu_index(part: str, uuids: Sequence[str]) -> int:
    """Find the GPU *part* among *uuids*, which torch prints without NVML's prefix."""
    wanted = part.removeprefix("GPU-").lower()
    for index, uuid in enumerate(uuids):
        if uuid.removeprefix("GPU-").lower() == wanted:
            return index
    raise Unable(
        f"torch sees {len(uuids)} GPUs, and {part} is not one of them: unset "
        "CUDA_VISIBLE_DEVICES, or ask the scheduler for all GPUs of the node",
        Cause.PARTIAL_VIEW,
    )


def list_native_dtypes(device: torch.device) -> frozenset[str]:
    """List the types that *device* multiplies natively, rather than by emulation."""
    import torch

    if device.type == "cpu":
        native = cpu.list_native_dtypes(cpu.list_flags(cpu.read_cpuinfo()))
        return native - {unused.dtype for unused in list_unused_dtypes(device)}
    capability = torch.cuda.get_device_capability(device)
    return frozenset(name for name, family in FAMILIES.items() if capability >= family.capability)


@dataclass(frozen=True, slots=True)
class UnusedDtype:
    """A type that a CPU has units for, which its library does not use."""

    dtype: str
    slowdown: float
    """How many times as long as with fp32 a product takes."""

    @property
    def text(self) -> str:
        """The sentence that the type is left out, and why."""
        return (
            f"{self.dtype}: left out: the CPU has units for it, but torch does not use "
            f"them (a product takes {self.slowdown:.0f} times as long as in fp32)"
        )


def list_unused_dtypes(device: torch.device) -> tuple[UnusedDtype, ...]:
    """
    List the types that *device* has units for but torch multiplies without them.

    A library that does not know the CPU, or that a variable such as
    ``ONEDNN_MAX_CPU_ISA`` keeps from using its units, falls back to an extremely slow
    kernel. That says nothing about the part, and a check would take hours.
    """
    return _list_unused_by_cpu() if device.type == "cpu" else ()


@cache
def _list_unused_by_cpu() -> tuple[UnusedDtype, ...]:
    native = cpu.list_native_dtypes(cpu.list_flags(cpu.read_cpuinfo()))
    with use_threads(1):
        return list_slow_dtypes(native - {"fp32", "fp64"}, _time_product)


def list_slow_dtypes(
    dtypes: Collection[str], seconds: Callable[[str], float]
) -> tuple[UnusedDtype, ...]:
    """List those of *dtypes* whose products take far more *seconds* than fp32's."""
    usual = seconds("fp32")
    ratios = {dtype: seconds(dtype) / usual for dtype in sorted(dtypes)}
    return tuple(UnusedDtype(d, ratio) for d, ratio in ratios.items() if ratio > MAX_SLOWDOWN)


def _time_product(dtype: str) -> float:
    """Time a small product of *dtype*: the best of a few, since the CPU may be busy."""
    import torch

    step, best = make_product_step(dtype, PROBE_SIZE, torch.device("cpu")), inf
    for _ in range(PROBE_COUNT):
        began = perf_counter()
        step()
        best = min(best, perf_counter() - began)
    return best


def wait_for_device(*devices: torch.device) -> None:
    """Wait until each GPU among *devices* has finished its work."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def require_memory(device: torch.device, needed: int) -> None:
    """Raise `Unable` unless *needed* bytes of the GPU's memory are free."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    if free < needed:
        raise Unable(
            f"{free / 2**30:.1f} GiB of GPU memory are free but {needed / 2**30:.1f} "
            "are needed: end the processes that nvidia-smi lists",
            Cause.NO_SPACE,
        )


@contextmanager
def reserve_gpu_cores(ctx: Context) -> Generator[None]:
    """Leave a core for each GPU's worker while the host's CPU is loaded at the same time."""
    import torch

    gpus = sum(device.kind == "cuda" for device in ctx.inventory.devices)
    spared = gpus if ctx.device.kind == "cpu" else 0
    with use_threads(max(1, torch.get_num_threads() - spared)):
        yield


@contextmanager
def use_threads(count: int) -> Generator[None]:
    """Compute with *count* threads while the block runs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def use_float32_precision(precision: str) -> Generator[None]:
    """Let products of float32 use TF32 ("high") or not ("highest") while the block runs."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
