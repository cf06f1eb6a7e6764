"""
What can be asked of a GPU: each question in as few calls as NVML allows.

Field values are read many in one call. Where a driver is too old for a field, the
call that it replaced is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from ctypes import byref
from typing import Any

from msgspec.structs import replace

from hpcverify.telemetry import gpus
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.query import GpuQuery
from hpcverify.telemetry.reading import Reading

MEMORY_FIELDS: Mapping[int, str] = {
    nv.NVML_FI_DEV_ECC_SBE_VOL_TOTAL: "ecc.corrected",
    nv.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: "ecc.uncorrected",
    nv.NVML_FI_DEV_ECC_SBE_AGG_TOTAL: "ecc.corrected.lifetime",
    nv.NVML_FI_DEV_ECC_DBE_AGG_TOTAL: "ecc.uncorrected.lifetime",
    nv.NVML_FI_DEV_ECC_SBE_VOL_DEV: "ecc.dram.corrected",
    nv.NVML_FI_DEV_ECC_DBE_VOL_DEV: "ecc.dram.uncorrected",
    nv.NVML_FI_DEV_RETIRED_SBE: "retired.single_bit",
    nv.NVML_FI_DEV_RETIRED_DBE: "retired.double_bit",
    nv.NVML_FI_DEV_RETIRED_PENDING: "retired.pending",
    nv.NVML_FI_DEV_REMAPPED_COR: "remap.correctable",
    nv.NVML_FI_DEV_REMAPPED_UNC: "remap.uncorrectable",
    nv.NVML_FI_DEV_REMAPPED_PENDING: "remap.pending",
    nv.NVML_FI_DEV_REMAPPED_FAILURE: "remap.failed",
    nv.NVML_FI_DEV_ACTIVE_BANK_REMAPPINGS: "remap.bank.active",
    nv.NVML_FI_DEV_PENDING_BANK_REMAPPING: "remap.bank.pending",
    nv.NVML_FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE: "remap.bank.exhausted",
}
BANK_LEVELS = ("max", "high", "partial", "low", "none")
"""How much room for remapped rows the banks of the memory have left."""


def read_memory_errors(gpu: GpuQuery) -> tuple[Reading, ...]:
    """Read the counters of memory errors, and what came of them."""
    values: dict[str, float | None] = dict(
        zip(("ecc.mode", "ecc.mode.pending"), _read_ecc_modes(gpu), strict=True)
    )
    values |= zip(MEMORY_FIELDS.values(), gpu.read_fields(list(MEMORY_FIELDS)), strict=True)
    values |= _read_sram_errors(gpu)
    histogram = gpu.ask(nv.nvmlDeviceGetRowRemapperHistogram)
    for bank in BANK_LEVELS if histogram else ():
        values[f"remap.banks.{bank}"] = float(getattr(histogram, bank))
    return tuple(
        Reading(name, value, "", gpu.gpu.uuid)
        for name, value in values.items()
        if value is not None
    )


def _read_ecc_modes(gpu: GpuQuery) -> tuple[int | None, int | None]:
    """Read the mode now and after the next reset; the fields of it may be unset."""
    current, pending = gpu.ask(nv.nvmlDeviceGetEccMode) or (None, None)
    gpu.modes = replace(gpu.modes, without_ecc=current == 0)
    return current, pending


def _read_sram_errors(gpu: GpuQuery) -> dict[str, float | None]:
    """Read the errors of SRAM, Ampere and later; before R550 only for root."""
    status: Any = nv.c_nvmlEccSramErrorStatus_v1_t()
    if gpu.ask(nv.nvmlDeviceGetSramEccErrorStatus, byref(status)) is None:
        return {}
    return {
        "ecc.sram.corrected": status.volatileCor,
        "ecc.sram.uncorrected": status.volatileUncParity + status.volatileUncSecDed,
        "ecc.sram.uncorrected.lifetime": status.aggregateUncParity + status.aggregateUncSecDed,
        "ecc.sram_threshold": status.bThresholdExceeded,
    }


def read_mig_modes(gpu: GpuQuery) -> tuple[int | None, int | None]:
    """Read the MIG mode now and after the next reset; in MIG mode there is no utilization."""
    current, pending = gpu.ask(nv.nvmlDeviceGetMigMode) or (None, None)
    gpu.modes = replace(gpu.modes, cut_up=bool(current))
    return current, pending


LINK_STATE = (nv.NVML_FI_DEV_NVLINK_GET_STATE, nv.NVML_FI_DEV_NVLINK_GET_SPEED)
LINK_ERRORS: Mapping[str, int] = {
    "replay": nv.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
    "recovery": nv.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
    "crc": nv.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    "receive": nv.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    "recovered": nv.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    "recovery_failed": nv.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    "effective": nv.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    "symbol": nv.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
}
OLD_LINK_ERRORS: Mapping[str, tuple[int, ...]] = {
    "replay": (nv.NVML_NVLINK_ERROR_DL_REPLAY,),
    "recovery": (nv.NVML_NVLINK_ERROR_DL_RECOVERY,),
    "crc": (nv.NVML_NVLINK_ERROR_DL_CRC_FLIT, nv.NVML_NVLINK_ERROR_DL_CRC_DATA),
}
"""The counters of `nvmlDeviceGetNvLinkErrorCounter`, before the fields."""
LINK_FIELDS = (*LINK_STATE, *LINK_ERRORS.values())
MEGA, GIGA = 1e6, 1e9


def read_linkage(gpu: GpuQuery) -> gpus.Linkage:
    """Read the state, the speed and the errors of every NVLink, and the fabric."""
    read_mig_modes(gpu)
    if gpu.modes.cut_up:
        return gpus.Linkage(mig=True)
    links = read_nvlinks(gpu)
    return gpus.Linkage(links=None if links is None else tuple(links), fabric=_read_fabric(gpu))


def read_nvlinks(gpu: GpuQuery) -> Iterator[gpus.NvLink] | None:
    """Read all links in one call; None if the GPU does not say how many it has."""
    (count,) = gpu.read_fields([nv.NVML_FI_DEV_NVLINK_LINK_COUNT])
    return None if count is None else _read_links(gpu, range(int(count)))


def _read_links(gpu: GpuQuery, numbers: range) -> Iterator[gpus.NvLink]:
    if not numbers:
        return
    values = gpu.read_fields([(field, link) for link in numbers for field in LINK_FIELDS])
    width = len(LINK_FIELDS)
    for link in numbers:
        state, speed, *errors = values[link * width : (link + 1) * width]
        if state is None:
            state = gpu.ask(nv.nvmlDeviceGetNvLinkState, link)
        counted = dict(zip(LINK_ERRORS, errors, strict=True))
        if all(value is None for value in errors):
            counted = _read_old_errors(gpu, link)
        yield gpus.NvLink(
            number=link,
            active=None if state is None else bool(state),
            speed_gbs=None if speed is None else speed * MEGA / GIGA,
            errors={k: int(v) for k, v in counted.items() if v is not None},
        )


def _read_old_errors(gpu: GpuQuery, link: int) -> dict[str, float | None]:
    def total(counters: Sequence[int]) -> float | None:
        counted = [gpu.ask(nv.nvmlDeviceGetNvLinkErrorCounter, link, c) for c in counters]
        return None if None in counted else sum(counted)

    return {kind: total(counters) for kind, counters in OLD_LINK_ERRORS.items()}


FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
FABRIC_SUMMARIES = {1: "healthy", 2: "unhealthy", 3: "limited"}
FABRIC_TROUBLE: Mapping[str, tuple[int, int, frozenset[int]]] = {
    "degraded_bandwidth": (0, 0x3, frozenset({1})),
    "route_recovery": (2, 0x3, frozenset({1})),
    "route_unhealthy": (4, 0x3, frozenset({1})),
    "access_timeout": (6, 0x3, frozenset({1})),
    "incorrect_configuration": (8, 0xF, frozenset(range(2, 16))),
    "partition": (12, 0x3, frozenset({2})),
    "manager": (14, 0x3, frozenset({2})),
}
"""Where each flag lies in the health mask: shift, width, and the values that are
trouble (nvml.h 13, NVML_GPU_FABRIC_HEALTH_MASK_*; 0 is always "not supported")."""


FABRIC_CALLS: tuple[tuple[Any, Any], ...] = (
    (nv.c_nvmlGpuFabricInfo_v3_t, nv.nvmlDeviceGetGpuFabricInfoV),
    (nv.c_nvmlGpuFabricInfo_v2_t, nv.nvmlDeviceGetGpuFabricInfoV),  # drivers before R570
    (nv.c_nvmlGpuFabricInfo_t, nv.nvmlDeviceGetGpuFabricInfo),  # before R550
)


def _read_fabric(gpu: GpuQuery) -> gpus.NvlinkFabric | None:
    answers = (
        (info, gpu.ask(call, byref(info))) for make, call in FABRIC_CALLS for info in [make()]
    )
    info: Any = next((info for info, code in answers if code is not None), None)
    if info is None or info.state not in FABRIC_STATES:
        return None
    uuid = bytes(info.clusterUuid).hex() if any(info.clusterUuid) else ""
    return gpus.NvlinkFabric(
        state=FABRIC_STATES[info.state],
        status="ok" if info.status == nv.NVML_SUCCESS else str(nv.NVMLError(info.status)),
        trouble=tuple(
            name
            for name, (shift, mask, bad) in FABRIC_TROUBLE.items()
            if (getattr(info, "healthMask", 0) >> shift) & mask in bad
        ),
        summary=FABRIC_SUMMARIES.get(getattr(info, "healthSummary", 0), ""),
        domain="-".join(filter(None, (uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))),
        clique=info.cliqueId,
    )


PCIE_COUNTERS: Mapping[str, int] = {
    "replays": nv.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    "replay_rollovers": nv.NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER,
    "recoveries": nv.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER,
    "correctable": nv.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS,
    "naks_received": nv.NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED,
    "receiver": nv.NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR,
    "bad_tlp": nv.NVML_FI_DEV_PCIE_COUNT_BAD_TLP,
    "naks_sent": nv.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT,
    "bad_dllp": nv.NVML_FI_DEV_PCIE_COUNT_BAD_DLLP,
    "non_fatal": nv.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR,
    "fatal": nv.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR,
    "unsupported": nv.NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ,
    "lcrc": nv.NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR,
    "lane": nv.NVML_FI_DEV_PCIE_COUNT_LANE_ERROR,
}


def read_pcie_link(gpu: GpuQuery) -> gpus.PcieLink:
    """Read the PCIe link and its counters."""
    counted = zip(PCIE_COUNTERS, gpu.read_fields(list(PCIE_COUNTERS.values())), strict=True)
    return gpus.PcieLink(
        address=gpu.gpu.address,
        generation=gpu.ask(nv.nvmlDeviceGetCurrPcieLinkGeneration),
        width=gpu.ask(nv.nvmlDeviceGetCurrPcieLinkWidth),
        max_generation=gpu.ask(nv.nvmlDeviceGetMaxPcieLinkGeneration),
        gpu_max_generation=gpu.ask(nv.nvmlDeviceGetGpuMaxPcieLinkGeneration),
        max_width=gpu.ask(nv.nvmlDeviceGetMaxPcieLinkWidth),
        counters={name: int(value) for name, value in counted if value is not None},
    )


DEFAULT_MODE = "default"
COMPUTE_MODES = (DEFAULT_MODE, "exclusive_thread", "prohibited", "exclusive_process")
MILLI = 1e-3


def read_setup(gpu: GpuQuery) -> gpus.Setup:
    """Read how the GPU is set up and who uses it."""
    mig = read_mig_modes(gpu)
    ecc = _read_ecc_modes(gpu)
    reasons = gpu.ask(nv.nvmlDeviceGetCurrentClocksEventReasons) or 0
    slowed_by = tuple(name for name in SLOWDOWN_REASONS if reasons & EVENT_REASON_BITS[name])
    memory = gpu.ask(nv.nvmlDeviceGetMemoryInfo, nv.nvmlMemory_v2)
    memory = memory or gpu.ask(nv.nvmlDeviceGetMemoryInfo)
    return gpus.Setup(
        persistence=_to_bool(gpu.ask(nv.nvmlDeviceGetPersistenceMode)),
        mig=_to_bool(mig[0]),
        mig_pending=_to_bool(mig[1]),
        compute_mode=read_compute_mode(gpu),
        ecc=_to_bool(ecc[0]),
        ecc_pending=_to_bool(ecc[1]),
        power_limit_w=scale(MILLI, gpu.ask(nv.nvmlDeviceGetPowerManagementLimit)),
        power_enforced_w=scale(MILLI, gpu.ask(nv.nvmlDeviceGetEnforcedPowerLimit)),
        power_default_w=scale(MILLI, gpu.ask(nv.nvmlDeviceGetPowerManagementDefaultLimit)),
        clock_max_mhz=gpu.ask(nv.nvmlDeviceGetMaxClockInfo, nv.NVML_CLOCK_SM),
        clock_applications_mhz=gpu.ask(nv.nvmlDeviceGetApplicationsClock, nv.NVML_CLOCK_SM),
        slowed_by=slowed_by,
        slowed_to=(
            scale(1.0, gpu.ask(nv.nvmlDeviceGetClockInfo, nv.NVML_CLOCK_SM)) if slowed_by else None,
            read_temperature(gpu) if slowed_by else None,
        ),
        memory_used=int(memory.used) if memory else None,
        processes=list_processes(gpu),
        firmware=_read_firmware(gpu),
        slowdown_counters=describe_slowdown_counters(gpu.gpu.driver),
    )


def read_compute_mode(gpu: GpuQuery) -> str | None:
    """Read how many processes may compute on the GPU, by the name of its mode."""
    mode = gpu.ask(nv.nvmlDeviceGetComputeMode)
    return None if mode is None else _name_number(COMPUTE_MODES, mode)


EVENT_REASON_BITS: Mapping[str, int] = {
    "idle": nv.nvmlClocksEventReasonGpuIdle,
    "applications_clocks": nv.nvmlClocksEventReasonApplicationsClocksSetting,
    "sw_power_cap": nv.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": nv.nvmlClocksEventReasonHwSlowdown,
    "sync_boost": nv.nvmlClocksEventReasonSyncBoost,
    "sw_thermal": nv.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": nv.nvmlClocksEventReasonHwThermalSlowdown,
    "hw_power_brake": nv.nvmlClocksEventReasonHwPowerBrakeSlowdown,
}
"""The bits of the event reasons, of which several may be set at once."""

SLOWDOWN_REASONS = ("hw_thermal", "sw_thermal", "hw_power_brake")
"""Reasons that no healthy GPU has; others come up for an instant, or under any load."""


FIRST_SLOWDOWN_COUNTERS: Mapping[tuple[int, int], int | None] = {
    (580, 82): 269,
    (575, 0): 251,
    (0, 0): None,
}
"""
The first of three fields with the time (ns) of software thermal, hardware thermal and power
brake slowdown, by the driver from which it counts: NVML_FI_DEV_CLOCKS_EVENT_REASON_* of
nvidia-ml-py 12.575.51, 13.580.65 and 13.580.82. Where they are 251 to 253, others have 269.
"""


def find_slowdown_counters(driver: str) -> tuple[int, ...]:
    """Find the fields of the three slowdowns that *driver*, as ``580.105.08``, counts."""
    parts = [int(word) if word.isdigit() else 0 for word in f"{driver}.0".split(".")]
    version = (parts[0], parts[1])
    first = next(field for since, field in FIRST_SLOWDOWN_COUNTERS.items() if version >= since)
    return () if first is None else (first, first + 1, first + 2)


def describe_slowdown_counters(driver: str) -> str:
    """Describe where the time of thermal and power brake slowdowns comes from."""
    fields = find_slowdown_counters(driver)
    return f"NVML fields {fields[0]} to {fields[-1]}" if fields else "samples of event reasons"


def read_temperature(gpu: GpuQuery) -> float | None:
    """Read the temperature of the chip, °C."""
    new = gpu.ask(nv.nvmlDeviceGetTemperatureV, nv.NVML_TEMPERATURE_GPU)
    if new is not None:
        return float(new)
    # Drivers before R570 know the old name only.
    old = gpu.ask(nv.nvmlDeviceGetTemperature, nv.NVML_TEMPERATURE_GPU)
    return None if old is None else float(old)


def _to_bool(value: float | None) -> bool | None:
    return None if value is None else bool(value)


def scale(factor: float, value: float | None) -> float | None:
    """Multiply *value*, if there is one."""
    return None if value is None else value * factor


MPS_SERVER = "nvidia-cuda-mps-server"


def list_processes(gpu: GpuQuery) -> tuple[gpus.Process, ...] | None:
    """List processes on the GPU, MPS clients apart from their server; None if unknown."""
    # The versioned names: without a version pynvml raises an error of another
    # family on a driver that is too old.
    computing = gpu.ask(nv.nvmlDeviceGetComputeRunningProcesses_v3)
    drawing = gpu.ask(nv.nvmlDeviceGetGraphicsRunningProcesses_v3)
    clients = gpu.ask(nv.nvmlDeviceGetMPSComputeRunningProcesses_v3)
    if computing is None and drawing is None:
        return None
    contexts: dict[int, Any] = {p.pid: p for p in (*(computing or ()), *(clients or ()))}
    waiting: set[int] = set()
    for pid in contexts if clients is not None else ():
        with suppress(nv.NVMLError, UnicodeDecodeError):  # it has ended, or is not to be seen
            if MPS_SERVER in str(nv.nvmlSystemGetProcessName(pid)):
                waiting.add(pid)
    listed = {p.pid: p for p in drawing or ()} | contexts
    return tuple(
        gpus.Process(pid=pid, memory=p.usedGpuMemory, computes=pid in contexts.keys() - waiting)
        for pid, p in listed.items()
    )


def _read_firmware(gpu: GpuQuery) -> dict[str, str]:
    gsp = gpu.ask(nv.nvmlDeviceGetGspFirmwareMode)
    versions = {
        "vbios": gpu.ask(nv.nvmlDeviceGetVbiosVersion),
        "inforom": gpu.ask(nv.nvmlDeviceGetInforomImageVersion),
        "gsp": None if gsp is None else ("on" if gsp[0] else "off"),
    }
    return {name: str(value) for name, value in versions.items() if value is not None}


RECOVERY_ACTIONS = (
    "none",
    "gpu_reset",
    "node_reboot",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "bus_reset",
    "system_reboot",
)
"""By number: NVML_GPU_RECOVERY_ACTION_*."""


def read_recovery(gpu: GpuQuery) -> gpus.Recovery:
    """Read what the driver wants done about the GPU, and check its InfoROM."""
    gpu.ask(nv.nvmlDeviceValidateInforom)  # that it is corrupt is a trouble of its own
    (action,) = gpu.read_fields([nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    repair = gpu.ask(nv.nvmlDeviceGetRepairStatus) or (None, None)
    return gpus.Recovery(
        action=None if action is None else _name_number(RECOVERY_ACTIONS, int(action)),
        channel_repair_pending=_to_bool(repair[0]),
        tpc_repair_pending=_to_bool(repair[1]),
        unrepairable_memory=_to_bool(gpu.ask(nv.nvmlDeviceGetUnrepairableMemoryFlag_v1)),
    )


def _name_number(names: Sequence[str], number: int) -> str:
    """Name what a driver gives a *number*; a later driver may have more than we have *names*."""
    return names[number] if 0 <= number < len(names) else f"unknown_{number}"
