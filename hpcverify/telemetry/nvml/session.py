"""A session with NVML: starting it, and finding the GPUs that it lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from hpcverify import breadcrumb
from hpcverify.model import Finding
from hpcverify.telemetry import pci
from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import UNWELL_CODES, Gpu, code_of
from hpcverify.telemetry.nvml.watchdog import call_each

UNLISTED_CODES: Mapping[int, str] = {
    **UNWELL_CODES,
    nv.NVML_ERROR_NO_PERMISSION: "partial_view",
    nv.NVML_ERROR_OPERATING_SYSTEM: "partial_view",
    nv.NVML_ERROR_NOT_FOUND: "gpu_missing",
    nv.NVML_ERROR_UNKNOWN: "gpu_missing",
}
"""Why a GPU has no handle. A driver that could not start a GPU says Unknown."""


START_FAILURE_CODES: Mapping[int, str] = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "driver_not_loaded",
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
    nv.NVML_ERROR_GPU_NOT_FOUND: "driver_not_loaded",
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
}
"""Why NVML does not start."""

START_FIXES = {
    "driver_not_loaded": "load the driver (modprobe nvidia; the kernel log says why "
    "it did not), or install it",
    "driver_mismatch": "reboot, or unload and load the kernel module (rmmod nvidia, "
    "modprobe nvidia): the driver was upgraded under way",
    "nvml_failed": "see what nvidia-smi and the kernel log say",
}


SPECIFIC_START_FIXES: Mapping[int, str] = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "install the driver with its libnvidia-ml.so.1; in a "
    "container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    nv.NVML_ERROR_NO_PERMISSION: "run as root, or let this user open /dev/nvidiactl and "
    "/dev/nvidia* (their modes, and the device cgroup)",
    # nvidia-docker issue 1730: "systemctl daemon-reload" takes the GPUs from a container.
    nv.NVML_ERROR_UNKNOWN: "in a container, start it again, since it may have lost the GPUs; else "
    "see what nvidia-smi and the kernel log report",
}
"""Fixes that only one return code calls for."""


class DeviceList(Struct, frozen=True):
    """The GPUs by index, and a finding for each index that has no handle."""

    gpus: tuple[Gpu, ...]
    unlisted_findings: tuple[Finding, ...]
    driver: str


def start_nvml(timeout: float) -> DeviceList:
    """
    Start NVML for as long as this process lives, and list the GPUs.

    Waits no longer than *timeout* seconds for each call.

    Raises:
        NotStartedError: NVML does not start, or does not return.

    """
    try:
        start = call_each(["nvmlInit"], _init_nvml, timeout)
    except nv.NVMLError as err:
        code = START_FAILURE_CODES.get(code_of(err), "nvml_failed")
        fix = SPECIFIC_START_FIXES.get(code_of(err), START_FIXES.get(code, ""))
        raise NotStartedError(code, f"NVML does not start ({err}): {fix}") from err
    if start.timed_out:
        raise NotStartedError(
            "gpu_hung",
            f"NVML does not start (nvmlInit has not returned within {timeout:g} s): "
            "see the kernel log, and reboot",
        )
    ((_, (count, driver)),) = start.answers
    handles = call_each(range(count), _find_gpu, timeout, timeout / 2)
    gpus = [gpu for _, gpu in handles.answers]
    hanging = (
        Finding(
            "gpu_hung",
            "node",
            f"GPU with NVML index {index}: nvmlDeviceGetHandleByIndex or what follows "
            "it does not return",
            {"nvml_index": str(index)},
        )
        for index in (*(left.item for left in handles.timed_out), *handles.unasked)
    )
    return DeviceList(
        gpus=tuple(gpu for gpu in gpus if isinstance(gpu, Gpu)),
        unlisted_findings=(*(gpu for gpu in gpus if isinstance(gpu, Finding)), *hanging),
        driver=driver,
    )


def _init_nvml(name: str) -> tuple[int, str]:
    breadcrumb.leave(name)
    nv.nvmlInit()
    return int(nv.nvmlDeviceGetCount()), str(nv.nvmlSystemGetDriverVersion())


def _read_name(handle: Any) -> str:
    try:
        return str(nv.nvmlDeviceGetName(handle))
    except (nv.NVMLError, UnicodeDecodeError):  # the survey asks again, and says so
        return ""


def _find_gpu(index: int) -> Gpu | Finding:
    breadcrumb.leave(f"nvmlDeviceGetHandleByIndex({index})")
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nv.nvmlDeviceGetUUID(handle))
        address = pci.normalize_address(str(nv.nvmlDeviceGetPciInfo(handle).busId))
        return Gpu(index, uuid, address, handle, _read_name(handle))
    except UnicodeDecodeError as err:
        text = f"GPU with NVML index {index} gives garbage for its UUID: {err}"
        return Finding("gpu_unreadable", "node", text, {"nvml_index": str(index)})
    except nv.NVMLError as err:
        code = UNLISTED_CODES.get(code_of(err), "gpu_unreadable")
        text = f"GPU with NVML index {index}: {err}"
        return Finding(code, "node", text, {"nvml_index": str(index)})
