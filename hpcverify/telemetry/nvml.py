"""
NVIDIA GPUs, through NVML: the one module that calls it.

NVML answers call by call and GPU by GPU, so nothing here gives up on a node for
one GPU's sake. An answer that this GPU, driver or user cannot have (not supported,
function not found, no permission) is an absent reading. One that means that the
GPU is unwell (lost, reset required, corrupted InfoROM) is a finding. GPUs are
compared with the PCI bus, which knows of them without any driver.

A call into a driver in trouble may never return, so this belongs into a process
with a deadline: the workers, not the engine.

Names are the current ones of NVML 13 (nvml.h); throttled time comes from the
cumulative counters of `nvmlDeviceGetFieldValues`, in ns, because samples of the
event reasons miss what is shorter than their period.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pynvml as nv

from hpcverify.model import Device, Finding, Part
from hpcverify.telemetry import pci, sysfs
from hpcverify.telemetry.reading import Reading

UNWELL: Mapping[int, str] = {
    nv.NVML_ERROR_GPU_IS_LOST: "gpu_lost",
    nv.NVML_ERROR_RESET_REQUIRED: "gpu_reset_required",
    nv.NVML_ERROR_CORRUPTED_INFOROM: "gpu_inforom_corrupted",
}
"""Answers that say that the GPU itself is in trouble, as codes of findings."""

NOT_LISTED: Mapping[int, str] = {
    **UNWELL,
    nv.NVML_ERROR_INSUFFICIENT_POWER: "gpu_unpowered",
    nv.NVML_ERROR_NO_PERMISSION: "partial_view",
    nv.NVML_ERROR_OPERATING_SYSTEM: "partial_view",
    nv.NVML_ERROR_NOT_FOUND: "gpu_missing",
    nv.NVML_ERROR_UNKNOWN: "gpu_missing",
}
"""Why a GPU has no handle. A driver that could not start a GPU says Unknown."""

NO_DRIVER: Mapping[int, str] = {
    nv.NVML_ERROR_LIBRARY_NOT_FOUND: "driver_not_loaded",
    nv.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
    nv.NVML_ERROR_GPU_NOT_FOUND: "driver_not_loaded",
    nv.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "driver_mismatch",
}
"""Why NVML does not start."""

FIXES = {
    "driver_not_loaded": "load the driver (modprobe nvidia; the kernel log says why "
    "it did not), or install it",
    "driver_mismatch": "reboot, or unload and load the kernel module (rmmod nvidia, "
    "modprobe nvidia): the driver was upgraded under way",
    "nvml_failed": "see what nvidia-smi and the kernel log say",
}


CUDA_DEVICE = re.compile(r"\s*(\d+|GPU-|MIG-)")
"""How a valid entry of CUDA_VISIBLE_DEVICES begins."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that NVML lists; *index* and *handle* hold for this session only."""

    index: int
    uuid: str
    address: str
    handle: Any

    @property
    def label(self) -> str:
        """What a person calls it."""
        return f"GPU {self.index} (…{self.uuid[-4:]})"


@dataclass(frozen=True, slots=True)
class Survey:
    """The GPUs of a node, those that can be computed on, and what is amiss."""

    parts: tuple[Part, ...] = ()
    devices: tuple[Device, ...] = ()
    problems: tuple[Finding, ...] = ()


@contextmanager
def session() -> Generator[None, None, None]:
    """Keep NVML initialised; raises `pynvml.NVMLError` if it does not start."""
    nv.nvmlInit()
    try:
        yield
    finally:
        nv.nvmlShutdown()


def survey(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Survey:
    """List the GPUs that NVML or the PCI bus below *root* knows of."""
    addresses = pci.nvidia_gpus(root)
    try:
        with session():
            return _look(addresses, root, environ)
    except nv.NVMLError as err:
        return _without_driver(err, addresses, root)


def _code(err: Any) -> int:
    """Read the return code that an `NVMLError` stands for."""
    return int(err.value)


def _without_driver(err: Any, addresses: Sequence[str], root: Path) -> Survey:
    code = NO_DRIVER.get(_code(err), "nvml_failed")
    if not addresses and code == "driver_not_loaded":
        return Survey()
    text = f"NVML does not start ({err}), the PCI bus has {len(addresses)} NVIDIA GPUs"
    return Survey(
        parts=tuple(_bare(address, root) for address in addresses),
        problems=(Finding(code, "node", f"{text}: {FIXES[code]}"),),
    )


def _bare(address: str, root: Path) -> Part:
    """Describe a GPU of which only the PCI bus knows."""
    facts = sysfs.known(pci_address=address, pci_device_id=pci.device_id(address, root))
    return Part("gpu", address, f"GPU at {address}", facts)


def _look(addresses: Sequence[str], root: Path, environ: Mapping[str, str]) -> Survey:
    listed, nameless = enumerate_gpus()
    unlisted = sorted(set(addresses) - {gpu.address for gpu in listed})
    problems = [_why_unlisted(address, root, environ) for address in unlisted]
    if not unlisted:
        problems += nameless
    problems += _hidden_from_cuda(len(listed), environ)
    parts = [_bare(address, root) for address in unlisted]
    devices: list[Device] = []
    driver = str(nv.nvmlSystemGetDriverVersion())
    for gpu in listed:
        facts, trouble = _describe(gpu, driver)
        parts.append(Part("gpu", gpu.uuid, gpu.label, facts))
        problems += trouble
        if not trouble:
            devices.append(Device("cuda", gpu.uuid, gpu.label))
    return Survey(tuple(parts), tuple(devices), tuple(problems))


def enumerate_gpus() -> tuple[list[Gpu], list[Finding]]:
    """List the GPUs by index, and a finding for each index that has no handle."""
    listed: list[Gpu] = []
    nameless: list[Finding] = []
    for index in range(nv.nvmlDeviceGetCount()):
        try:
            handle = nv.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nv.nvmlDeviceGetUUID(handle))
            address = pci.normal(str(nv.nvmlDeviceGetPciInfo(handle).busId))
            listed.append(Gpu(index, uuid, address, handle))
        except nv.NVMLError as err:
            code = NOT_LISTED.get(_code(err), "gpu_unreadable")
            nameless.append(
                Finding(code, "node", f"GPU with NVML index {index}: {err}")
            )
    return listed, nameless


def _why_unlisted(address: str, root: Path, environ: Mapping[str, str]) -> Finding:
    """Ask for the GPU at *address* by name, to hear why it was not listed."""
    try:
        nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByPciBusId(address))
    except nv.NVMLError as err:
        code, why = NOT_LISTED.get(_code(err), "gpu_unreadable"), str(err)
    else:
        code, why = "gpu_unreadable", "NVML has it by address and not by index"
    hidden = _hidden(address, root, environ) if code == "gpu_missing" else ""
    if hidden:
        code, why = "partial_view", hidden
    text = f"the PCI bus has a GPU at {address} that NVML does not list: {why}"
    return Finding(code, address, text)


def _hidden(address: str, root: Path, environ: Mapping[str, str]) -> str:
    """Say what hides the GPU at *address* from this process, if anything does."""
    visible = environ.get("NVIDIA_VISIBLE_DEVICES", "all")
    if visible != "all":
        return f"NVIDIA_VISIBLE_DEVICES is {visible!r}"
    card = root / "proc/driver/nvidia/gpus" / address / "information"
    lines = (sysfs.text(card) or "").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    minor = fields.get("Device Minor", "").strip()
    node = root / f"dev/nvidia{minor}"
    if not minor:  # no driver ever took it
        return ""
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        return f"/dev/nvidia{minor} is not here: a container that lacks it?"
    except PermissionError:
        return f"/dev/nvidia{minor} may not be opened: a device cgroup?"
    except OSError:  # the driver tried and failed: that is the GPU's fault
        return ""
    return ""


def _hidden_from_cuda(listed: int, environ: Mapping[str, str]) -> list[Finding]:
    """CUDA, unlike NVML, takes the first valid entries of a variable and no more."""
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return []
    visible = len(list(takewhile(CUDA_DEVICE.match, value.split(","))))
    if visible >= listed:
        return []
    text = f"CUDA_VISIBLE_DEVICES={value} shows {visible} of {listed} GPUs: unset it"
    return [Finding("partial_view", "node", text)]


def _describe(gpu: Gpu, driver: str) -> tuple[dict[str, str], list[Finding]]:
    """Read what stays the same from run to run, and why it cannot be used."""
    facts = {"pci_address": gpu.address, "driver": driver}
    try:
        facts |= _facts(gpu)
        mig = ask(nv.nvmlDeviceGetMigMode, gpu.handle)
    except nv.NVMLError as err:
        text = f"{gpu.label}: NVML says {err}"
        return facts, [Finding(UNWELL[_code(err)], gpu.uuid, text)]
    if mig and mig[0]:
        text = f"{gpu.label} is cut into MIG instances: nvidia-smi -mig 0 to verify it"
        return facts, [Finding("partial_view", gpu.uuid, text)]
    return facts, []


def _facts(gpu: Gpu) -> dict[str, str]:
    h = gpu.handle
    memory = ask(nv.nvmlDeviceGetMemoryInfo, h)
    capability = ask(nv.nvmlDeviceGetCudaComputeCapability, h)
    ids = ask(nv.nvmlDeviceGetPciInfo, h)
    return sysfs.known(
        name=ask(nv.nvmlDeviceGetName, h),
        serial=ask(nv.nvmlDeviceGetSerial, h),
        board=ask(nv.nvmlDeviceGetBoardPartNumber, h),
        pci_device_id=_device_id(ids.pciDeviceId) if ids else None,
        vbios=ask(nv.nvmlDeviceGetVbiosVersion, h),
        memory=f"{memory.total / 2**30:.0f} GiB" if memory else None,
        compute_capability=".".join(map(str, capability)) if capability else None,
    )


def _device_id(device_and_vendor: int) -> str:
    """Take the device out of NVML's 0x233010de: ``2330``."""
    return f"{device_and_vendor >> 16:04x}"


def ask(call: Callable[..., Any], *args: object) -> Any:
    """
    Call NVML; None if this GPU, driver or user cannot have the answer.

    Raises:
        pynvml.NVMLError: the GPU is unwell; its code is one of `UNWELL`.

    """
    try:
        return call(*args)
    except nv.NVMLError as err:
        if _code(err) in UNWELL:
            raise
        return None


def holders() -> list[tuple[str, int]]:
    """
    List who holds which GPU, as (UUID, process id); empty without a driver.

    In a container NVML gives the host's process ids.
    """
    try:
        with session():
            return [
                (gpu.uuid, process.pid)
                for gpu in enumerate_gpus()[0]
                for process in _processes(gpu)
            ]
    except nv.NVMLError:
        return []


def _processes(gpu: Gpu) -> list[Any]:
    # The versioned names: without a version pynvml raises an error of another
    # family on a driver that is too old.
    lists = (
        nv.nvmlDeviceGetComputeRunningProcesses_v3,
        nv.nvmlDeviceGetGraphicsRunningProcesses_v3,
    )
    try:
        return [process for call in lists for process in ask(call, gpu.handle) or ()]
    except nv.NVMLError:  # it is unwell, and nobody computes on it
        return []


def invalid_inforoms() -> Iterator[tuple[str, str]]:
    """Check the InfoROM's checksums; yield (UUID, error) of those that do not hold."""
    with session():
        for gpu in enumerate_gpus()[0]:
            try:
                ask(nv.nvmlDeviceValidateInforom, gpu.handle)
            except nv.NVMLError as err:
                if _code(err) == nv.NVML_ERROR_CORRUPTED_INFOROM:
                    yield gpu.uuid, str(err)


NS = 1e-9
FIELDS: Mapping[int, tuple[str, str, float]] = {
    nv.NVML_FI_DEV_MEMORY_TEMP: ("temperature.memory", "°C", 1),
    nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP: (
        "throttled.sw_power_cap",
        "s",
        NS,
    ),
    nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST: ("throttled.sync_boost", "s", NS),
    nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN: (
        "throttled.sw_thermal",
        "s",
        NS,
    ),
    nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: (
        "throttled.hw_thermal",
        "s",
        NS,
    ),
    nv.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: (
        "throttled.hw_power_brake",
        "s",
        NS,
    ),
    nv.NVML_FI_DEV_ECC_CURRENT: ("ecc.mode", "", 1),
    nv.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: ("ecc.corrected", "", 1),
    nv.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: ("ecc.uncorrected", "", 1),
    nv.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: ("ecc.corrected.lifetime", "", 1),
    nv.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: ("ecc.uncorrected.lifetime", "", 1),
    nv.NVML_FI_DEV_RETIRED_SBE: ("retired.single_bit", "", 1),
    nv.NVML_FI_DEV_RETIRED_DBE: ("retired.double_bit", "", 1),
    nv.NVML_FI_DEV_RETIRED_PENDING: ("retired.pending", "", 1),
    nv.NVML_FI_DEV_REMAPPED_COR: ("remap.correctable", "", 1),
    nv.NVML_FI_DEV_REMAPPED_UNC: ("remap.uncorrectable", "", 1),
    nv.NVML_FI_DEV_REMAPPED_PENDING: ("remap.pending", "", 1),
    nv.NVML_FI_DEV_REMAPPED_FAILURE: ("remap.failed", "", 1),
}
"""The fields that are read in one call: name, unit, and factor to the unit."""

VALUE_OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""The member of the union `nvmlValue_t` by `nvmlValueType_t`."""

EVENTS: Mapping[str, int] = {
    "sw_power_cap": nv.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": nv.nvmlClocksEventReasonHwSlowdown,
    "sw_thermal": nv.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": nv.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": nv.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""The bits of the event reasons, of which several may be set at once."""


class NvmlReader:
    """Reads all GPUs; NVML stays initialised between two readings."""

    def __init__(self) -> None:
        """Wait with NVML until the first reading."""
        self._gpus: list[Gpu] | None = None

    def read(self) -> Iterator[Reading]:
        """Yield what each GPU answers; one that is unwell yields just that."""
        try:
            gpus = self._started()
        except nv.NVMLError:  # nothing to read, and the next round tries again
            return
        for gpu in gpus:
            yield from _readings(gpu)

    def _started(self) -> list[Gpu]:
        if self._gpus is None:
            nv.nvmlInit()
            self._gpus, _ = enumerate_gpus()
        return self._gpus

    def close(self) -> None:
        """Shut NVML down, if it was started."""
        if self._gpus is not None:
            self._gpus = None
            ask(nv.nvmlShutdown)


def _readings(gpu: Gpu) -> list[Reading]:
    """Read *gpu*; if it turns out to be unwell, say which way and nothing else."""
    try:
        return [
            Reading(name, unit, gpu.uuid, float(value))
            for name, unit, value in (*_calls(gpu.handle), *_fields(gpu.handle))
            if value is not None
        ]
    except nv.NVMLError as err:
        return [Reading(UNWELL[_code(err)], "", gpu.uuid, 1.0)]


def _calls(h: Any) -> Iterator[tuple[str, str, float | None]]:
    celsius = _temperature(h)
    yield "temperature", "°C", celsius
    yield "temperature.headroom", "°C", _headroom(h, celsius)
    yield "clock", "MHz", ask(nv.nvmlDeviceGetClockInfo, h, nv.NVML_CLOCK_SM)
    yield "power", "W", _times(1e-3, ask(nv.nvmlDeviceGetPowerUsage, h))
    usage = ask(nv.nvmlDeviceGetUtilizationRates, h)
    yield "utilization", "ratio", _times(0.01, usage.gpu if usage else None)
    reasons = ask(nv.nvmlDeviceGetCurrentClocksEventReasons, h)
    for name, bit in EVENTS.items():
        value = None if reasons is None else float(bool(reasons & bit))
        yield f"event.{name}", "", value
    yield "ecc.sram_threshold", "", _sram_threshold(h)


def _times(factor: float, value: float | None) -> float | None:
    return None if value is None else value * factor


def _temperature(h: Any) -> float | None:
    new = ask(nv.nvmlDeviceGetTemperatureV, h, nv.NVML_TEMPERATURE_GPU)
    if new is not None:
        return float(new)
    # Drivers before R570 know the old name only.
    old = ask(nv.nvmlDeviceGetTemperature, h, nv.NVML_TEMPERATURE_GPU)
    return None if old is None else float(old)


def _headroom(h: Any, celsius: float | None) -> float | None:
    """Say how far it is to slowdown, in °C: as the GPU says, or by its threshold."""
    margin = ask(nv.nvmlDeviceGetMarginTemperature, h)
    if margin is not None:
        return float(margin)
    limit = ask(
        nv.nvmlDeviceGetTemperatureThreshold, h, nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    )
    return None if limit is None or celsius is None else limit - celsius


def _sram_threshold(h: Any) -> float | None:
    """Say whether SRAM errors passed NVIDIA's limit for replacement; root only."""
    status = nv.c_nvmlEccSramErrorStatus_v1_t()
    if ask(nv.nvmlDeviceGetSramEccErrorStatus, h, byref(status)) is None:
        return None
    return float(status.bThresholdExceeded)


def _fields(h: Any) -> Iterator[tuple[str, str, float | None]]:
    """Read the `FIELDS`, of which each has a return code of its own."""
    for answer in ask(nv.nvmlDeviceGetFieldValues, h, list(FIELDS)) or ():
        name, unit, factor = FIELDS[answer.fieldId]
        if answer.nvmlReturn in UNWELL:
            raise nv.NVMLError(answer.nvmlReturn)
        if answer.nvmlReturn == nv.NVML_SUCCESS:
            kind = VALUE_OF_TYPE[answer.valueType]
            yield name, unit, float(getattr(answer.value, kind)) * factor
