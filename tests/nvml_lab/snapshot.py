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
    stories = msgspec.json.decode(
        Path(sys.argv[2]).read_bytes(), type=dict[str, list[str]]
    )
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


def look(h: Any) -> dict[str, Any]:
    """Ask everything once."""

    def ask(call: Callable[..., Any], *args: object) -> Any:
        try:
            return call(h, *args)
        except nv.NVMLError as err:
            untyped: Any = err
            if untyped.value == nv.NVML_ERROR_NOT_SUPPORTED:
                return None
            raise

    def field(number: int, scope: int = 0) -> float | None:
        [value] = nv.nvmlDeviceGetFieldValues(h, [(number, scope)])
        kinds = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
        found = getattr(value.value, kinds[value.valueType])
        return float(found) if value.nvmlReturn == nv.NVML_SUCCESS else None

    capability = nv.nvmlDeviceGetCudaComputeCapability(h)
    fabric = nv.c_nvmlGpuFabricInfo_v3_t()
    has_fabric = ask(nv.nvmlDeviceGetGpuFabricInfoV, byref(fabric)) is not None
    sram = nv.c_nvmlEccSramErrorStatus_v1_t()
    memory: Any = nv.nvmlDeviceGetMemoryInfo(h)
    pci: Any = nv.nvmlDeviceGetPciInfo(h)
    return {
        "gpus": nv.nvmlDeviceGetCount(),
        "facts": {
            "name": nv.nvmlDeviceGetName(h),
            "pci_device_id": f"{pci.pciDeviceId >> 16:04x}",
            "compute_capability": ".".join(map(str, capability)),
            "memory": f"{memory.total / 2**30:.0f} GiB",
        },
        "remap": ask(nv.nvmlDeviceGetRemappedRows),
        "histogram": ask(nv.nvmlDeviceGetRowRemapperHistogram) is not None,
        "retired": field(nv.NVML_FI_DEV_RETIRED_SBE),
        "sram": ask(nv.nvmlDeviceGetSramEccErrorStatus, byref(sram)) is not None,
        "ecc": ask(nv.nvmlDeviceGetTotalEccErrors, 0, 0),
        "margin": ask(nv.nvmlDeviceGetMarginTemperature),
        "threshold": ask(nv.nvmlDeviceGetTemperatureThreshold, 1),
        "slowdown_margin": field(nv.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT),
        "memory_temperature": field(nv.NVML_FI_DEV_MEMORY_TEMP),
        "mig": ask(nv.nvmlDeviceGetMigMode),
        "links": field(nv.NVML_FI_DEV_NVLINK_LINK_COUNT),
        "link_state": field(nv.NVML_FI_DEV_NVLINK_GET_STATE, 3),
        "link_speed": field(nv.NVML_FI_DEV_NVLINK_GET_SPEED, 3),
        "link_replay": field(nv.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 3),
        "link_symbol_ber": field(nv.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, 3),
        "link_discards": field(nv.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, 3),
        "link_recoveries": field(nv.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, 3),
        "fabric": fabric.state if has_fabric else None,
        "c2c": field(nv.NVML_FI_DEV_C2C_LINK_COUNT),
        "unrepairable": ask(nv.nvmlDeviceGetUnrepairableMemoryFlag_v1),
        "recovery": field(nv.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        "width": ask(nv.nvmlDeviceGetCurrPcieLinkWidth),
        "wish": ask(nv.nvmlDeviceGetApplicationsClock, nv.NVML_CLOCK_SM),
        "default": ask(nv.nvmlDeviceGetDefaultApplicationsClock, nv.NVML_CLOCK_SM),
    }


main()
