"""
The resources of a healthy node's BMC, in both generations of the schema (DSP0268).

The structure is that of DMTF's public mockups (DSP2043): one chassis with three fans, two
power supplies and two temperatures, one system, one manager, and the event log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

Tree = dict[str, dict[str, Any]]
"""Resources by their path below ``/redfish/v1/``; the root's is empty."""

OK = {"State": "Enabled", "Health": "OK"}
CHASSIS, SYSTEM, MANAGER = "Chassis/1U", "Systems/1", "Managers/BMC"
ENTRIES = f"{SYSTEM}/LogServices/SEL/Entries"
CLOCK = "2026-11-22T02:00:00Z"


def make_link(path: str) -> dict[str, str]:
    return {"@odata.id": f"/redfish/v1/{path}"}


def make_collection(path: str, names: Iterable[str]) -> Tree:
    links = [make_link(f"{path}/{name}") for name in names]
    return {path: {**make_link(path), "Members": links, "Members@odata.count": len(links)}}


def make_entry(number: int, message: str, **more: Any) -> dict[str, Any]:
    """Make an entry of the event log, some minutes after midnight."""
    return {
        **make_link(f"{ENTRIES}/{number}"),
        "Id": str(number),
        "Name": f"Log Entry {number}",
        "EntryType": "SEL",
        "Created": f"2026-11-22T00:{number // 60 % 60:02}:{number % 60:02}Z",
        "Severity": "OK",
        "Message": message,
        **more,
    }


def set_entries(tree: Tree, entries: list[dict[str, Any]]) -> None:
    """Let the event log of *tree* hold *entries*."""
    count = len(entries)
    tree[ENTRIES] = {**make_link(ENTRIES), "Members": entries, "Members@odata.count": count}


def _make_common() -> Tree:
    tree: Tree = {
        "": {
            "Id": "RootService",
            "RedfishVersion": "1.15.0",
            "Systems": make_link("Systems"),
            "Chassis": make_link("Chassis"),
            "Managers": make_link("Managers"),
            "SessionService": make_link("SessionService"),
            "Links": {"Sessions": make_link("SessionService/Sessions")},
        },
        CHASSIS: {"Id": "1U", "Name": "Chassis", "SerialNumber": "437XR1138R2", "Status": OK},
        SYSTEM: {
            "Id": "1",
            "Manufacturer": "Contoso",
            "Model": "3500RX",
            "BiosVersion": "P79 v1.45",
            "PowerState": "On",
            "Status": OK,
            "ProcessorSummary": {"Count": 2, "Status": OK},
            "MemorySummary": {"TotalSystemMemoryGiB": 96, "Status": OK},
            "Bios": make_link(f"{SYSTEM}/Bios"),
            "LogServices": make_link(f"{SYSTEM}/LogServices"),
        },
        f"{SYSTEM}/Bios": {"Attributes": {"ProcTurboMode": "Enabled", "AdminPassword": ""}},
        f"{SYSTEM}/LogServices/SEL": {"Id": "SEL", "Entries": make_link(ENTRIES)},
        MANAGER: {
            "Id": "BMC",
            "UUID": "58893887-8974-2487-2389-841168418919",
            "FirmwareVersion": "1.45.455b66-rev4",
            "DateTime": CLOCK,
            "Status": OK,
        },
    }
    for path, names in (
        ("Chassis", ["1U"]),
        ("Systems", ["1"]),
        ("Managers", ["BMC"]),
        (f"{SYSTEM}/LogServices", ["SEL"]),
    ):
        tree |= make_collection(path, names)
    set_entries(tree, [make_entry(1, "Log area reset/cleared", SensorType="System Event")])
    return tree


def make_old_tree() -> Tree:
    """Make a BMC that has Thermal and Power."""
    tree = deepcopy(_make_common())
    for name in ("Thermal", "Power"):
        tree[CHASSIS][name] = make_link(f"{CHASSIS}/{name}")
    fans = [
        {"Name": f"Fan {n}", "MemberId": str(n), "Reading": 8000 + n, "ReadingUnits": "RPM"}
        | {"LowerThresholdCritical": 1000, "Status": dict(OK)}
        for n in (1, 2, 3)
    ]
    tree[f"{CHASSIS}/Thermal"] = {
        "Fans": fans,
        "Temperatures": [
            {"Name": "CPU1 Temp", "ReadingCelsius": 41, "PhysicalContext": "CPU"}
            | {"UpperThresholdNonCritical": 85, "UpperThresholdCritical": 95, "Status": dict(OK)},
            {"Name": "Inlet Temp", "ReadingCelsius": 22, "PhysicalContext": "Intake"}
            | {"UpperThresholdCritical": 42, "Status": dict(OK)},
            {"Name": "CPU2 Temp", "PhysicalContext": "CPU", "Status": {"State": "Absent"}},
        ],
        "Redundancy": [
            {"Name": "System Fans", "Mode": "N+m", "MinNumNeeded": 2, "Status": dict(OK)}
            | {"RedundancySet": [make_link(f"{CHASSIS}/Thermal#/Fans/{n}") for n in (0, 1, 2)]}
        ],
    }
    bays = (0, 1)
    tree[f"{CHASSIS}/Power"] = {
        "Voltages": [{"Name": "VRM1 Voltage", "ReadingVolts": 12.0, "Status": dict(OK)}],
        "PowerSupplies": [
            {"Name": f"PSU {n + 1}", "LineInputVoltage": 230, "Status": dict(OK)} for n in bays
        ],
        "Redundancy": [
            {"Name": "PSU Redundancy", "Mode": "N+m", "Status": dict(OK)}
            | {"RedundancySet": [make_link(f"{CHASSIS}/Power#/PowerSupplies/{n}") for n in bays]}
        ],
    }
    return tree


def make_new_tree() -> Tree:
    """Make a BMC that has ThermalSubsystem and PowerSubsystem."""
    tree = deepcopy(_make_common())
    thermal, power = f"{CHASSIS}/ThermalSubsystem", f"{CHASSIS}/PowerSubsystem"
    tree[CHASSIS] |= {"ThermalSubsystem": make_link(thermal), "PowerSubsystem": make_link(power)}
    fans, bays = [f"Bay{n}" for n in (1, 2, 3)], ["Bay1", "Bay2"]
    tree |= make_collection(f"{thermal}/Fans", fans)
    tree |= make_collection(f"{power}/PowerSupplies", bays)
    for number, name in enumerate(fans, 1):
        tree[f"{thermal}/Fans/{name}"] = {
            "Name": f"Fan {number}",
            "SpeedPercent": {"Reading": 45, "SpeedRPM": 8000 + number},
            "Status": dict(OK),
        }
    for number, name in enumerate(bays, 1):
        tree[f"{power}/PowerSupplies/{name}"] = {
            "Name": f"Power Supply Bay {number}",
            "LineInputStatus": "Normal",
            "Location": {"PartLocation": {"ServiceLabel": f"PSU {number}"}},
            "Status": dict(OK),
        }
    tree[thermal] = {
        "Fans": make_link(f"{thermal}/Fans"),
        "ThermalMetrics": make_link(f"{thermal}/ThermalMetrics"),
        "FanRedundancy": [_make_group("NPlusM", f"{thermal}/Fans", fans)],
    }
    sensors = {"CPU1": (41, "CPU"), "Inlet": (22, "Intake")}
    paths = {name: f"{CHASSIS}/Sensors/{name}" for name in sensors}
    tree[f"{thermal}/ThermalMetrics"] = {
        "TemperatureReadingsCelsius": [
            {"Reading": sensors[name][0], "DataSourceUri": make_link(path)["@odata.id"]}
            for name, path in paths.items()
        ]
    }
    for name, (reading, context) in sensors.items():
        tree[paths[name]] = {
            "Name": f"{name} Temp",
            "Reading": reading,
            "ReadingUnits": "Cel",
            "PhysicalContext": context,
            "Thresholds": {"UpperCritical": {"Reading": 95}, "UpperCaution": {"Reading": 85}},
            "Status": dict(OK),
        }
    tree[power] = {
        "PowerSupplies": make_link(f"{power}/PowerSupplies"),
        "PowerSupplyRedundancy": [_make_group("Failover", f"{power}/PowerSupplies", bays)],
    }
    return tree


def _make_group(kind: str, path: str, names: Iterable[str]) -> Mapping[str, Any]:
    members = [make_link(f"{path}/{name}") for name in names]
    return {"RedundancyType": kind, "RedundancyGroup": members, "Status": dict(OK)}
