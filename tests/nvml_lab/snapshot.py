"""
Asks GPU 0 of one scenario after the other what tells parts apart; prints JSON.

As arguments: the root of the node, and a file with the scenarios by name. What NVML
does not support is None.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from ctypes import byref
from pathlib import Path
from typing import Any

import msgspec
import pynvml as nv


def main() -> None:
    """Become each node in turn."""
    stories = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=dict[str, list[str]])
    scenario = Path(os.environ["NVML_LAB_SCENARIO"])
    seen: dict[str, dict[str, Any]] = {}
    for name, lines in stories.items():
        new = scenario.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(scenario)
        nv.nvmlInit()
        seen[name] = look(nv.nvmlDeviceGetHandleByIndex(0))
        nv.nvmlShutdown()
    sys.stdout.write(msgspec.json.encode(seen).decode())


def ask(h: Any, call: Callable[..., Any], *args: object) -> Any:
    try:
        return call(h, *args)
    except nv.NVMLError as err:
        untyped: Any = err
        if untyped.value == nv.NVML_ERROR_NOT_SUPPORTED:
            return None
        raise


def field(h: Any, number: int, scope: int = 0) -> float | None:
    """Read a field of the GPU, or of its link *scope*."""
    [value] = nv.nvmlDeviceGetFieldValues(h, [(number, scope)])
    kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    found = getattr(value.value, kinds[value.valueType])
    return float(found) if value.nvmlReturn == nv.NVML_SUCCESS else None


def look(h: Any) -> dict[str, Any]:
    return {"facts": facts(h), **memory(h), **heat(h), **links(h), **others(h)}


def facts(h: Any) -> dict[str, str]:
    """Read what the inventory tells of a GPU."""
    total: Any = nv.nvmlDeviceGetMemoryInfo(h)
    pci: Any = nv.nvmlDeviceGetPciInfo(h)
    return {
        "name": str(nv.nvmlDeviceGetName(h)),
        "pci_device_id": f"{pci.pciDeviceId >> 16:04x}",
        "compute_capability": ".".join(map(str, nv.nvmlDeviceGetCudaComputeCapability(h))),
        "memory": f"{total.total / 2**30:.0f} GiB",
    }


def memory(h: Any) -> dict[str, Any]:
    """Read what comes of bad memory."""
    sram = nv.c_nvmlEccSramErrorStatus_v1_t()
    return {
        "remap": ask(h, nv.nvmlDeviceGetRemappedRows),
        "histogram": ask(h, nv.nvmlDeviceGetRowRemapperHistogram) is not None,
        "retired": field(h, nv.NVML_FI_DEV_RETIRED_SBE),
        "sram": ask(h, nv.nvmlDeviceGetSramEccErrorStatus, byref(sram)) is not None,
        "ecc": ask(h, nv.nvmlDeviceGetTotalEccErrors, 0, 0),
        "unrepairable": ask(h, nv.nvmlDeviceGetUnrepairableMemoryFlag_v1),
    }


def heat(h: Any) -> dict[str, Any]:
    """Read how far it is to the limits, both ways to tell that."""
    return {
        "margin": ask(h, nv.nvmlDeviceGetMarginTemperature),
        "threshold": ask(h, nv.nvmlDeviceGetTemperatureThreshold, 1),
        "slowdown_margin": field(h, nv.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
        "memory_temperature": field(h, nv.NVML_FI_DEV_MEMORY_TEMP),
    }


def links(h: Any) -> dict[str, Any]:
    """Read one NVLink, and the fabric."""
    fabric = nv.c_nvmlGpuFabricInfo_v3_t()
    has_fabric = ask(h, nv.nvmlDeviceGetGpuFabricInfoV, byref(fabric)) is not None
    return {
        "links": field(h, nv.NVML_FI_DEV_NVLINK_LINK_COUNT),
        "link_state": field(h, nv.NVML_FI_DEV_NVLINK_GET_STATE, 3),
        "link_speed": field(h, nv.NVML_FI_DEV_NVLINK_GET_SPEED, 3),
        "link_replay": field(h, nv.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 3),
        "link_symbol_ber": field(h, nv.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, 3),
        "link_discards": field(h, nv.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, 3),
        "link_recoveries": field(h, nv.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 3),
        "fabric": fabric.state if has_fabric else None,
        "c2c": field(h, nv.NVML_FI_DEV_C2C_LINK_COUNT),
    }


def others(h: Any) -> dict[str, Any]:
    """Read what else not all parts have."""
    return {
        "mig": ask(h, nv.nvmlDeviceGetMigMode),
        "recovery": field(h, nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        "wish": ask(h, nv.nvmlDeviceGetApplicationsClock, nv.NVML_CLOCK_SM),
        "default": ask(h, nv.nvmlDeviceGetDefaultApplicationsClock, nv.NVML_CLOCK_SM),
    }


main()
