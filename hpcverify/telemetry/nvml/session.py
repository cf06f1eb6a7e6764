"""A session with NVML: starting it, and finding the GPUs that it lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pynvml as nv

from hpcverify import trail
from hpcverify.model import Finding
from hpcverify.telemetry import pci
from hpcverify.telemetry.nvml.interview import UNWELL, Gpu, code_of
from hpcverify.telemetry.nvml.patience import Round

NOT_LISTED: Mapping[int, str] = {
    **UNWELL,
    nv.NVML_ERROR_NO_PERMISSION: "partial_view",
    nv.NVML_ERROR_OPERATING_SYSTEM: "partial_view",
    nv.NVML_ERROR_NOT_FOUND: "gpu_missing",
    nv.NVML_ERROR_UNKNOWN: "gpu_missing",
}
"""Why a GPU has no handle. A driver that could not start a GPU says Unknown."""


class NoAnswerError(Exception):
    """NVML itself, and not a call on one GPU, does not return."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The GPUs by index, and a finding for each index that has no handle."""

    gpus: tuple[Gpu, ...]
    nameless: tuple[Finding, ...]
    driver: str


def begin(patience: float) -> Listing:
    """
    Start NVML for as long as this process lives, and list the GPUs.

    Waits no longer than *patience* seconds for each call.

    Raises:
        pynvml.NVMLError: NVML does not start.
        NoAnswerError: it does not return.

    """
    start = Round(["nvmlInit"], _start, patience)
    if start.left:
        raise NoAnswerError(f"nvmlInit has not returned for {patience:g} s")
    ((_, (count, driver)),) = start.answers
    handles = Round(range(count), _at, patience)
    found = [gpu for _, gpu in handles.answers]
    hanging = (
        Finding(
            "gpu_hung",
            "node",
            f"GPU with NVML index {index}: nvmlDeviceGetHandleByIndex or what follows "
            f"it has not returned for {patience:g} s",
        )
        for index in handles.left
    )
    return Listing(
        gpus=tuple(gpu for gpu in found if isinstance(gpu, Gpu)),
        nameless=(*(gpu for gpu in found if isinstance(gpu, Finding)), *hanging),
        driver=driver,
    )


def _start(name: str) -> tuple[int, str]:
    trail.leave(name)
    nv.nvmlInit()
    return int(nv.nvmlDeviceGetCount()), str(nv.nvmlSystemGetDriverVersion())


def _at(index: int) -> Gpu | Finding:
    """Find the GPU at *index*, or say why it has no handle."""
    trail.leave(f"nvmlDeviceGetHandleByIndex({index})")
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nv.nvmlDeviceGetUUID(handle))
        address = pci.normal(str(nv.nvmlDeviceGetPciInfo(handle).busId))
        return Gpu(index, uuid, address, handle)
    except nv.NVMLError as err:
        code = NOT_LISTED.get(code_of(err), "gpu_unreadable")
        return Finding(code, "node", f"GPU with NVML index {index}: {err}")
