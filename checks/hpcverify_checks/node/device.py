"""The torch device of a worker's part, and torch's settings on it."""

from __future__ import annotations

import os
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify.telemetry.cuda_errors import DRIVER_TOO_OLD, find_cuda_error
from hpcverify.telemetry.memory import read_free_bytes
from hpcverify.telemetry.vendors import AMD, NVIDIA, matches_torch_ids, write_torch_ids
from hpcverify_checks.node.cores import bind_near_gpu, report_left_out_cores, use_all_cores
from hpcverify_checks.node.dtypes import AMD_DTYPES, DTYPES, OTHER_AMD_DTYPES
from hpcverify_checks.node.fixes import write_fix
from hpcverify_checks.node.gpu_source import name_vendor
from hpcverify_checks.node.timing import make_product_step
from hpcverify_checks.node.torch_build import (
    ALL_BUILDS,
    require_kernels,
    require_torch,
    write_torch_fix,
)

if TYPE_CHECKING:
    import torch

CUBLAS_WORKSPACE_NAME = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACES = (":4096:8", ":16:8")
"""The two settings with which cuBLAS gives the same bits each time, whatever the streams
(its guide, "Results reproducibility"). The first is the default here: it is larger, and as
large as torch's own on Hopper."""

OVERRIDES = (
    "PYTORCH_*ALLOC_CONF",
    "PYTORCH_NO_*_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_*",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_ENABLE_*COREDUMP*",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "HSA_CU_MASK",
    "ROC_GLOBAL_CU_MASK",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "CUBLAS_EMULAT*",
    "ONEDNN_*",
    "DNNL_*",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ATEN_CPU_CAPABILITY",
    "ROCBLAS_INTERNAL_FP16_ALT_IMPL",
    "HIPBLASLT_ALLOW_TF32",
    "OMP_PROC_BIND",
    "OMP_PLACES",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "KMP_HW_SUBSET",
    "OMP_THREAD_LIMIT",
    "OMP_DYNAMIC",
    "OMP_MAX_ACTIVE_LEVELS",
)
"""Environment variables that make torch, the driver or a library work differently from what
the limits are for: with another allocator, one kernel after the other, other units or
instructions, fewer bits, a share of a GPU, or fewer cores than we ask for. They are read when
a library loads, CUDA starts or a product is first computed. Those of OpenMP bind the thread
that loads it, so that it sees one core, or keep it from using more than one."""

_removed_overrides: set[str] = set()
"""Those that this process was given and ignores."""


def remove_overrides(environ: MutableMapping[str, str]) -> list[str]:
    """
    Remove all `OVERRIDES` from *environ*, and give cuBLAS a reproducible workspace.

    Returns the names of those that were set otherwise.
    """
    names = [n for n in environ if any(fnmatchcase(n, o) for o in OVERRIDES)]
    for name in names:
        del environ[name]
    workspace = environ.setdefault(CUBLAS_WORKSPACE_NAME, CUBLAS_WORKSPACES[0])
    if workspace not in CUBLAS_WORKSPACES:
        environ[CUBLAS_WORKSPACE_NAME] = CUBLAS_WORKSPACES[0]
        names.append(CUBLAS_WORKSPACE_NAME)
    return names


def report_overrides(ctx: hv.Context) -> Iterator[hv.Coverage | hv.Finding]:
    """Report which settings were ignored, and which cores may not be used, if any."""
    yield from report_left_out_cores(ctx)
    if _removed_overrides:
        names = ", ".join(sorted(_removed_overrides))
        yield hv.Coverage(ctx.device.part, f"set in the environment and ignored: {names}")


PROBE_SIZE, PROBE_COUNT = 128, 5
MAX_SLOWDOWN = 8.0
"""A type may take this many times as long as fp32. With units for it a product takes up to
twice as long; with a reference kernel 17 to 30 times (AMD Zen 5, oneDNN as of torch 2.13),
elsewhere up to thousands of times."""


def find_torch_device(ctx: hv.Context) -> torch.device:
    """
    Find the torch device of the part of *ctx*.

    A GPU is found by its UUID, so that neither ``CUDA_VISIBLE_DEVICES`` nor CUDA's order
    matters; it becomes the current device. One of AMD is a CUDA device of torch's ROCm
    build, too. A GPU's own worker computes on the host on its share of the cores near it,
    every other worker on all cores that `use_all_cores` gets.
    """
    # Libraries read all of this once, when the first check of this worker multiplies.
    _removed_overrides.update(remove_overrides(os.environ))
    use_all_cores()
    is_own_gpu = ctx.device.kind == "cuda" and ctx.device in ctx.peers
    threads = bind_near_gpu(ctx) if is_own_gpu else 0  # before torch starts its threads
    mine = os.sched_getaffinity(0)
    require_torch()
    import torch

    with suppress(PermissionError):  # a sandbox, which lets nobody else bind us either
        os.sched_setaffinity(0, mine)  # an OpenMP that knew of a binding before us binds us here
    if ctx.device.kind == "cpu":
        return torch.device("cpu")
    device = _start_gpu(ctx)
    if is_own_gpu:
        torch.set_num_threads(min(threads, torch.get_num_threads()))
    return device


def _start_gpu(ctx: hv.Context) -> torch.device:
    """Start CUDA or ROCm, and make the GPU of *ctx* the current device."""
    import torch

    vendor, part = name_vendor(ctx), ctx.inventory.find_part(ctx.device.part)
    facts = part.facts if part else {}
    driver = facts.get("driver", "")
    platform = "ROCm" if vendor == AMD else "CUDA"
    if (torch.version.hip if vendor == AMD else torch.version.cuda) is None:
        base = torch.__version__.partition("+")[0]
        fix = f"install torch {base} from an index with ROCm builds: {ALL_BUILDS}"
        if vendor != AMD:
            fix = write_torch_fix(torch, facts.get("compute_capability", ""), driver)
        reason = f"torch {torch.__version__} is a build without {platform}"
        raise hv.Unable(reason, hv.Cause.MISSING, code="torch_without_platform", fix=fix)
    with hv.operation(f"the start of {platform}", ctx.device):
        try:
            # Reports why it cannot start, where a count would only be 0.
            torch.cuda.init()  # type: ignore[no-untyped-call]
        except RuntimeError as exc:
            error = find_cuda_error(str(exc))
            if vendor == AMD or error is None or error.code != DRIVER_TOO_OLD:
                raise
            reason = f"the NVIDIA driver {driver} is too old for torch {torch.__version__}"
            fix = write_torch_fix(torch, facts.get("compute_capability", ""), driver)
            raise hv.Unable(reason, error.cause, code=error.code, fix=fix) from exc
        seen = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ids = [write_torch_ids(properties, name_torch_vendor()) for properties in seen]
        device = torch.device("cuda", find_gpu_index(ctx.device.part, ids, vendor))
        torch.cuda.set_device(device)
    require_kernels(torch, torch.cuda.get_device_capability(device), driver)
    return device


def find_gpu_index(part: str, ids: Sequence[str], vendor: str = NVIDIA) -> int:
    """Find the GPU *part* among *ids*, as `write_torch_ids` writes those of each GPU."""
    for index, torch_ids in enumerate(ids):
        if matches_torch_ids(part, torch_ids):
            return index
    raise hv.Unable(
        f"torch sees {len(ids)} GPUs, and {part} is not one of them: "
        f"{write_fix('show_all', vendor)}",
        hv.Cause.PARTIAL_VIEW,
    )


def name_torch_vendor() -> str:
    """Name the vendor whose GPUs this build of torch computes on."""
    import torch

    return NVIDIA if torch.version.hip is None else AMD


def list_native_dtypes(device: torch.device) -> frozenset[str]:
    """List the types that *device* multiplies natively, rather than by emulation."""
    import torch

    if device.type == "cpu":
        native = cpu.list_native_dtypes(cpu.list_flags(cpu.read_cpuinfo()))
        return native - list_unused_dtypes(device).keys()
    if torch.version.hip is not None:
        return choose_amd_dtypes(read_amd_architecture(device))
    capability = torch.cuda.get_device_capability(device)
    return frozenset(name for name, dtype in DTYPES.items() if capability >= dtype.capability)


def choose_amd_dtypes(architecture: str) -> frozenset[str]:
    """Choose the types for a GPU of AMD, as in ``gfx942``."""
    return AMD_DTYPES.get(architecture, OTHER_AMD_DTYPES)


def read_amd_architecture(device: torch.device) -> str:
    """Read the architecture of a GPU of AMD, as in ``gfx942``."""
    import torch

    # As in gfx942:sramecc+:xnack-
    name: str = torch.cuda.get_device_properties(device).gcnArchName
    return name.partition(":")[0]


@cache
def list_unused_dtypes(device: torch.device) -> Mapping[str, float]:
    """
    List the types that *device* has units for but torch multiplies without them, and how slowly.

    A library that does not know the CPU, or that a variable such as
    ``ONEDNN_MAX_CPU_ISA`` keeps from using its units, falls back to an extremely slow
    kernel. That says nothing about the part, and a check would take hours.
    """
    if device.type != "cpu":
        return {}
    native = cpu.list_native_dtypes(cpu.list_flags(cpu.read_cpuinfo()))
    with use_threads(1):
        return list_slow_dtypes(native - {"fp32", "fp64"}, _time_product)


def list_slow_dtypes(
    dtypes: Collection[str], seconds: Callable[[str], float]
) -> Mapping[str, float]:
    """List those of *dtypes* whose products take far more *seconds* than fp32's: how many times."""
    usual = seconds("fp32")
    ratios = {dtype: seconds(dtype) / usual for dtype in sorted(dtypes)}
    return {dtype: ratio for dtype, ratio in ratios.items() if ratio > MAX_SLOWDOWN}


def _time_product(dtype: str) -> float:
    """Time a small product of *dtype*: the best of a few, since the CPU may be busy."""
    import torch

    step, best = make_product_step(dtype, PROBE_SIZE, torch.device("cpu")), inf
    for _ in range(PROBE_COUNT):
        began = perf_counter()
        step()
        best = min(best, perf_counter() - began)
    return best


def report_left_out(ctx: hv.Context, device: torch.device) -> Iterator[hv.Coverage]:
    """Report which types the part may have units for and is not tested with, and why."""
    import torch

    for dtype, slowdown in list_unused_dtypes(device).items():
        text = (
            f"{dtype}: left out: the CPU has units for it, but torch does not use them (a product "
            f"takes {slowdown:.0f} times as long as in fp32)"
        )
        yield hv.Coverage(ctx.device.part, text)
    if device.type != "cpu" and torch.version.hip is not None:
        architecture = read_amd_architecture(device)
        missing = ", ".join(sorted(DTYPES.keys() - choose_amd_dtypes(architecture)))
        text = (
            f"{missing}: left out: not known to be exact with torch's ROCm build on {architecture}"
        )
        yield hv.Coverage(ctx.device.part, text)


def wait_for_device(*devices: torch.device) -> None:
    """Wait until each GPU among *devices* has finished its work."""
    import torch

    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def read_gpu_free_bytes(
    device: torch.device, read_host: Callable[[], int] = read_free_bytes
) -> int:
    """
    Read how much memory this process can get on the GPU, in bytes.

    CUDA counts the page cache of a GPU that shares the host's memory as used, and the kernel
    frees it on demand (DGX Spark, known issues: "Memory Reporting Differences").
    """
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    if torch.cuda.get_device_properties(device).is_integrated:
        return max(free, read_host())
    return free


def require_memory(device: torch.device, needed: int, memory: str = "GPU memory") -> None:
    """Raise `Unable` unless *needed* bytes of the GPU's *memory* are free."""
    free = read_gpu_free_bytes(device)
    if free < needed:
        raise hv.Unable(
            f"{free / 2**30:.1f} GiB of {memory} are free but {needed / 2**30:.1f} "
            f"are needed: {write_fix('free_memory', name_torch_vendor())}",
            hv.Cause.NO_SPACE,
        )


@contextmanager
def reserve_gpu_cores(ctx: hv.Context) -> Generator[None]:
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
