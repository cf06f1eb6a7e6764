"""List the versions of everything between a check and the GPU, and how the GPUs are wired."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import hpcverify.check as hv
from hpcverify.processes import run_tool
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.device import find_torch_device

TOPOLOGY_SECONDS = 30.0
UNDERLINE_PATTERN = re.compile(r"\x1b\[[0-9;]*m")
"""nvidia-smi underlines the head of its table, wherever it prints."""


def estimate(_ctx: hv.Context, _params: hv.Params) -> float:
    """Assume as much as ``nvidia-smi`` may take."""
    return TOPOLOGY_SECONDS


def measure(ctx: hv.Context, params: hv.Params) -> Iterator[hv.CheckItem]:
    """Yield the versions, and the wiring as ``nvidia-smi topo`` draws it."""
    gpu_source.require_gpus(ctx)
    find_torch_device(ctx)  # says how to install torch where it is missing
    versions = list_versions()
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    yield hv.Finding("versions", "node", text, versions)
    if shutil.which("nvidia-smi"):
        drawn = run_tool(["nvidia-smi", "topo", "-m"], timeout=TOPOLOGY_SECONDS)
        wiring = UNDERLINE_PATTERN.sub("", drawn.stdout.decode(errors="replace")).strip("\n")
        yield hv.Finding(
            "topology", "node", "the wiring, by nvidia-smi topo -m", {"topology": wiring}
        )


def list_versions() -> dict[str, str]:
    """List the versions that torch knows of, and the architectures that it has kernels for."""
    import torch

    versions = {
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda,
        "ROCm of torch": torch.version.hip,
        "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "NCCL": torch.version.cuda and _find_nccl_version(),
        "Triton": find_version("triton"),
        "kernels for": " ".join(torch.cuda.get_arch_list()),
    }
    return {name: str(version) for name, version in versions.items() if version}


def _find_nccl_version() -> str:
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]


def find_version(package: str) -> str:
    """Find the version of *package*; empty if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


CHECK = hv.Check(
    summary="versions of driver, CUDA, torch, NCCL and Triton; the wiring of the GPUs",
    measure=measure,
    metrics={},
    finding_rules=hv.listed("versions", "topology"),
    estimate=estimate,
    placement=hv.Placement.NODE,
    timeout=120.0,
)
