"""A session with NVML: starting it, and finding the GPUs that it lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from msgspec import Struct

from hpcverify import breadcrumb
from hpcverify.model import Finding
from hpcverify.telemetry import pci
from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import (
    DRIVER_CODES,
    DRIVER_FIXES,
    UNWELL_CODES,
    Gpu,
    code_of,
)
from hpcverify.telemetry.visit import Visit

UNLISTED_CODES: Mapping[int, str] = {
    **UNWELL_CODES,
    **DRIVER_CODES,
    nv.NVML_ERROR_NO_PERMISSION: "partial_view",
    nv.NVML_ERROR_OPERATING_SYSTEM: "partial_view",
    nv.NVML_ERROR_NOT_FOUND: "gpu_missing",
    nv.NVML_ERROR_UNKNOWN: "gpu_missing",
}
"""Why a GPU has no handle. A driver that could not start a GPU says Unknown."""


START_FAILURE_CODES: Mapping[int, str] = {
    **DRIVER_CODES,
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "driver_not_loaded",
    nv.NVML_ERROR_GPU_NOT_FOUND: "driver_not_loaded",
}

START_FIXES = {**DRIVER_FIXES, "nvml_failed": "see nvidia-smi and the kernel log"}

GPU_START_SECONDS = 30.0
"""Seconds for a GPU to initialise: 1 to 4 without persistence mode (NVIDIA, Driver
Persistence; 30 s for 8 A100 in Azure/aks-gpu#105)."""
FIRST_GPU_SHARE = 2
"""The first GPU gets so many times as long, since the driver loads firmware as well."""
INIT_SHARE = 1.2
"""As long as nvmlInit gets: 36 s."""


SPECIFIC_START_FIXES: Mapping[int, str] = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "install the driver with its libnvidia-ml.so.1; in a "
    "container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    nv.NVML_ERROR_NO_PERMISSION: "run as root, or let this user open /dev/nvidiactl and "
    "/dev/nvidia* (their modes, and the device cgroup)",
    # nvidia-docker issue 1730: "systemctl daemon-reload" takes the GPUs from a container.
    nv.NVML_ERROR_UNKNOWN: "restart the container, which may have lost the GPUs; outside a "
    "container, see nvidia-smi and the kernel log",
}


class DeviceList(Struct, frozen=True):
    """The GPUs by index, and a finding for each index that has no handle."""

    gpus: tuple[Gpu, ...]
    unlisted_findings: tuple[Finding, ...]
    driver: str


class Session:
    """
    NVML, started once for as long as this process lives.

    The first handle of a GPU initialises it if nothing else keeps it initialised (nvml.h,
    nvmlDeviceGetHandleByIndex): 1 to 4 s each without persistence mode. A GPU that takes
    longer than *gpu_seconds* is reported, and is listed as soon as its handle has come.
    """

    def __init__(self, gpu_seconds: float = GPU_START_SECONDS) -> None:
        """Start nothing yet."""
        self._gpu_seconds = gpu_seconds
        self._init: Visit[tuple[int, str]] | None = None
        self._visits: dict[int, Visit[Gpu | Finding]] = {}

    def list_devices(self) -> DeviceList:
        """List the GPUs; the first call starts NVML, and every GPU in turn."""
        count, driver = self._start()
        for index in range(len(self._visits), count):
            visit = Visit(partial(_find_gpu, index, driver))
            self._visits[index] = visit
            visit.ends_within(self._gpu_seconds * (FIRST_GPU_SHARE if index == 0 else 1))
        late = list(self.list_late())  # once: a GPU may answer while the others are explained
        found = [
            self._explain_late(i, late) if i in late else v.take() for i, v in self._visits.items()
        ]
        return DeviceList(
            gpus=tuple(gpu for gpu in found if isinstance(gpu, Gpu)),
            unlisted_findings=tuple(gpu for gpu in found if isinstance(gpu, Finding)),
            driver=driver,
        )

    def _start(self) -> tuple[int, str]:
        limit = self._gpu_seconds * INIT_SHARE
        if self._init is None:
            self._init = Visit(_init_nvml)
            self._init.ends_within(limit)
        if not self._init.ends_within(0):
            raise NotStartedError(
                "gpu_hung",
                f"NVML does not start (nvmlInit did not return within {limit:g} s). Fix: "
                "reboot; see the kernel log",
            )
        try:
            return self._init.take()
        except nv.NVMLError as err:
            self._init = None  # the next call tries again
            code = START_FAILURE_CODES.get(code_of(err), "nvml_failed")
            fix = SPECIFIC_START_FIXES.get(code_of(err), START_FIXES.get(code, ""))
            raise NotStartedError(code, f"NVML does not start ({err}). Fix: {fix}") from err

    def list_late(self) -> dict[int, float]:
        """List the GPUs that still initialise: NVML index, and when that began."""
        return {i: visit.began for i, visit in self._visits.items() if not visit.ends_within(0)}

    def _explain_late(self, index: int, late: Sequence[int]) -> Finding:
        """Report a GPU without handle; one that may only wait behind another is not blamed."""
        seconds = self._gpu_seconds * (FIRST_GPU_SHARE if index == 0 else 1)
        text = (
            f"GPU with NVML index {index} did not initialise within {seconds:g} s "
            "(nvmlDeviceGetHandleByIndex). Fix: nvidia-smi -pm 1, so that not every program "
            "initialises it"
        )
        code = "gpu_hung"
        if index != late[0] and not any(i > index and i not in late for i in self._visits):
            code = "gpu_blocked"
            text = (
                f"GPU with NVML index {index} is not initialised: the driver still initialises "
                f"the GPU with index {late[0]}"
            )
        return Finding(code, "node", text, {"nvml_index": str(index)})


def _init_nvml() -> tuple[int, str]:
    breadcrumb.leave("nvmlInit")
    nv.nvmlInit()
    return int(nv.nvmlDeviceGetCount()), str(nv.nvmlSystemGetDriverVersion())


def _find_gpu(index: int, driver: str) -> Gpu | Finding:
    breadcrumb.leave(f"nvmlDeviceGetHandleByIndex({index})")
    try:
        handle = nv.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nv.nvmlDeviceGetUUID(handle))
        address = pci.normalize_address(str(nv.nvmlDeviceGetPciInfo(handle).busId))
        name = ""
        with suppress(nv.NVMLError, UnicodeDecodeError):  # the survey asks again, and says so
            name = str(nv.nvmlDeviceGetName(handle))
        return Gpu(index, uuid, address, handle, name, driver)
    except UnicodeDecodeError as err:
        text = f"GPU with NVML index {index} returns an invalid UUID: {err}"
        return Finding("gpu_unreadable", "node", text, {"nvml_index": str(index)})
    except nv.NVMLError as err:
        code = UNLISTED_CODES.get(code_of(err), "gpu_unreadable")
        fix = DRIVER_FIXES.get(code)
        text = ". Fix: ".join(filter(None, (f"GPU with NVML index {index}: {err}", fix)))
        return Finding(code, "node", text, {"nvml_index": str(index)})
