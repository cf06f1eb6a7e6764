"""
Calls everything that the double has, as the real bindings call it; prints JSON.

As arguments: the root of the node, and a file with scenarios by name. Of each call and
scenario it says ``ok`` or which error came; a layout that the double got wrong would
end the process, or be noticed by the bindings.
"""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pynvml as nv

HANDLES = re.compile(r"nvmlDevice(GetCount|GetHandleBy|RegisterEvents)")
"""Calls on the node, whose first argument is no GPU."""
ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        (
            *("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"),
            *("nvmlDeviceGetMaxCustomerBoostClock", "nvmlDeviceGetRetiredPages"),
            *("nvmlDeviceGetViolationStatus", "nvmlDeviceGetPcieThroughput"),
            *("nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion"),
            *("nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetInforomVersion"),
            *("nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetProcessUtilization"),
            "nvmlDeviceGetMigDeviceHandleByIndex",
        ),
        (0,),
    ),
    **dict.fromkeys(
        (
            *("nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetClockInfo"),
            *("nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetApplicationsClock"),
            "nvmlDeviceGetDefaultApplicationsClock",
        ),
        (1,),
    ),
    "nvmlDeviceGetClock": (1, 2),
    "nvmlDeviceGetTotalEccErrors": (1, 0),
    "nvmlDeviceGetDetailedEccErrors": (1, 1),
    "nvmlDeviceGetMemoryErrorCounter": (1, 0, 2),
    "nvmlDeviceGetNvLinkErrorCounter": (0, 0),
    "nvmlDeviceGetNvLinkUtilizationCounter": (0, 0),
    "nvmlDeviceGetFieldValues": (list(range(1, nv.NVML_FI_MAX)),),
}
STRUCTS: Mapping[str, Any] = {
    "nvmlDeviceGetGpuFabricInfo": nv.c_nvmlGpuFabricInfo_t,
    "nvmlDeviceGetGpuFabricInfoV": nv.c_nvmlGpuFabricInfo_v3_t,
    "nvmlDeviceGetSramEccErrorStatus": nv.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlDeviceGetRemappedRows_v2": nv.c_nvmlRemappedRowsInfo_v2_t,
}


def names() -> list[str]:
    """List the calls on a GPU that both the bindings and the double have."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    bound = re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"', inspect.getsource(nv))
    asked = (n for n in set(bound) if re.match("nvmlDevice(Get|Is|Validate)", n))
    return sorted(n for n in asked if not HANDLES.match(n) and hasattr(library, n))


def outcome(name: str, handle: Any) -> str:
    """Call *name*, by the wrapper of that version or of the newest."""
    plain = re.sub(r"_v\d$", "", name)
    wrapper = getattr(nv, name, None) or getattr(nv, plain)
    arguments = ARGUMENTS.get(plain, ())
    if name in STRUCTS:
        arguments = (ctypes.byref(STRUCTS[name]()),)
    if plain == "nvmlDeviceGetP2PStatus":
        arguments = (handle, 2)
    try:
        wrapper(handle, *arguments)
    except nv.NVMLError as err:
        return type(err).__name__.removeprefix("NVMLError_")
    return "ok"


def main() -> None:
    """Print the outcome of each call, by scenario."""
    stories = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=dict[str, list[str]])
    scenario = Path(os.environ["NVML_LAB_SCENARIO"])
    calls = names()
    found: dict[str, dict[str, str]] = {}
    for story, lines in stories.items():
        new = scenario.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.replace(scenario)
        nv.nvmlInit()
        handle = nv.nvmlDeviceGetHandleByIndex(0)
        found[story] = {name: outcome(name, handle) for name in calls}
        nv.nvmlShutdown()
    sys.stdout.write(msgspec.json.encode(found).decode())


main()
