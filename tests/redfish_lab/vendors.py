"""
Reduced resources of three vendors' BMCs, each in the shape that its documents and captures show.

HPE iLO 5 (a ProLiant with GPUs: all supplies have one name, GPUs are devices of ``Oem``), Dell
iDRAC 9 (Thermal and Power, members with paths) and OpenBMC on an NVIDIA HGX node (subsystems,
GPUs as processors, leak detectors). Each fault is what such a BMC shows of a part that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.redfish_lab.resources import OK, Tree, make_collection, make_link

CRITICAL = {"State": "Enabled", "Health": "Critical"}
OFFLINE = {"State": "UnavailableOffline", "Health": "Critical"}
CLOCK = "2026-11-22T02:00:00Z"


@dataclass
class VendorBmc:
    """A BMC's *tree*; *parts* are its parts by kind, as the tree and a person name them."""

    tree: Tree
    log: str
    parts: Mapping[str, tuple[dict[str, Any], str]]
    members: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def get(self, path: str) -> Mapping[str, Any] | None:
        """Answer as a Redfish service does."""
        return self.tree.get(path.removeprefix("/redfish/v1").strip("/"))

    def log_entry(self, **entry: Any) -> None:
        """Add an entry to the event log, an hour before the BMC's time."""
        number = str(len(self.members) + 1)
        when = f"2026-11-22T01:00:{len(self.members):02}Z"
        self.members.append({"Id": number, "Created": when, "Severity": "Critical", **entry})
        self.tree[self.log] = {"Members": self.members}


def _add(tree: Tree, path: str, resources: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the collection at *path* of *resources*, each with its path."""
    listed = list(resources)
    tree |= make_collection(path, [resource["Id"] for resource in listed])
    for resource in listed:
        place = f"{path}/{resource['Id']}"
        tree[place] = resource
        resource.update(make_link(place))
    return listed


def _part(name: str, **more: Any) -> dict[str, Any]:
    return {"Id": name.replace(" ", ""), "Name": name, "Status": dict(OK), **more}


def _make_root(system: str, chassis: str, log: str) -> Tree:
    tree: Tree = {"": {name: make_link(name) for name in ("Systems", "Chassis", "Managers")}}
    _add(tree, "Systems", [_part(system, PowerState="On", Status={**OK, "HealthRollup": "OK"})])
    _add(tree, "Chassis", [_part(chassis)])
    _add(tree, "Managers", [_part("BMC", DateTime=CLOCK, UUID="0a5b-1")])
    place = f"Systems/{system}"
    for name in ("Processors", "Memory", "Storage", "LogServices"):
        tree[place][name] = make_link(f"{place}/{name}")
    entries = f"{place}/LogServices/{log}/Entries"
    _add(tree, f"{place}/LogServices", [{"Id": log, "Entries": make_link(entries)}])
    tree[entries] = {"Members": []}
    return tree


def _add_storage(tree: Tree, system: str, drives: list[dict[str, Any]]) -> None:
    place = f"{system}/Storage"
    _add(tree, f"{place}/1/Drives", drives)
    links = [make_link(f"{place}/1/Drives/{drive['Id']}") for drive in drives]
    controllers = [{"Name": "RAID", "Status": dict(OK)}]
    _add(tree, place, [{"Id": "1", "Drives": links, "StorageControllers": controllers}])


def make_ilo5() -> VendorBmc:
    """Make an iLO 5: as a ProLiant XL675d Gen10 Plus shows its parts."""
    tree = _make_root("1", "1", "IML")
    chassis, system = "Chassis/1", "Systems/1"
    fans: list[dict[str, Any]] = [
        {**make_link(f"{chassis}/Thermal/#Fans/{n}"), "MemberId": str(n), "Name": f"Fan {n + 1}"}
        | {"Reading": 26, "ReadingUnits": "Percent", "Status": dict(OK)}
        for n in range(3)
    ]
    supplies: list[dict[str, Any]] = [
        {**make_link(f"{chassis}/Power/#PowerSupplies/{n}"), "Name": "HpeServerPowerSupply"}
        | {"MemberId": str(n), "LineInputVoltage": 208, "Status": dict(OK)}
        | {"Oem": {"Hpe": {"BayNumber": n + 1, "PowerSupplyStatus": {"State": "Ok"}}}}
        for n in range(2)
    ]
    empty = {"MemberId": "2", "Status": {"State": "Absent", "Health": "Warning"}}
    tree[f"{chassis}/Thermal"] = {"Fans": fans, "Temperatures": []}
    tree[f"{chassis}/Power"] = {
        "PowerSupplies": [*supplies, {**empty, "Name": "HpeServerPowerSupply"}]
    }
    devices: list[dict[str, Any]] = [
        {"Id": str(n), "DeviceType": "GPU", "Name": "NVIDIA A100", "Status": dict(OK)}
        | {"Location": f"PCI-E Slot {n}"}
        for n in (1, 2)
    ]
    array = {"Id": "3", "DeviceType": "Smart Storage", "Name": "P408i", "Status": dict(CRITICAL)}
    _add(tree, f"{chassis}/Devices", [*devices, array])
    tree[chassis] |= {name: make_link(f"{chassis}/{name}") for name in ("Thermal", "Power")}
    tree[chassis]["Oem"] = {"Hpe": {"Links": {"Devices": make_link(f"{chassis}/Devices")}}}
    cpus = _add(
        *(tree, f"{system}/Processors"),
        [{"Id": n, "Name": "Processors", "Socket": f"Proc {n}", "Status": dict(OK)} for n in "12"],
    )
    dimms = _add(
        *(tree, f"{system}/Memory"),
        [_part(f"proc1dimm{n}", DeviceLocator=f"PROC 1 DIMM {n}") for n in (1, 2)],
    )
    dimms[0]["Status"] = {"State": "Absent", "Health": "OK"}
    bay = {"PartLocation": {"ServiceLabel": "Slot=25:Port=1I:Box=3:Bay=4"}}
    drives: list[dict[str, Any]] = [
        {
            "Id": "0",
            "Name": "960GB SSD",
            "Model": "VK0",
            "PhysicalLocation": bay,
            "Status": dict(OK),
        },
        # The record of a bay in which the controller can identify no drive.
        {"Id": "3", "Name": "", "Model": None, "SerialNumber": None, "Status": dict(OFFLINE)},
    ]
    _add_storage(tree, system, drives)
    parts = {
        "supply": (supplies[1], "PSU 2"),
        "fan": (fans[1], "Fan 2"),
        "dimm": (dimms[1], "PROC 1 DIMM 2"),
        "cpu": (cpus[1], "Proc 2"),
        "drive": (drives[0], "960GB SSD at Slot=25:Port=1I:Box=3:Bay=4"),
        "gpu": (devices[1], "NVIDIA A100 at PCI-E Slot 2"),
    }
    return VendorBmc(tree, f"{system}/LogServices/IML/Entries", parts)


def make_idrac9() -> VendorBmc:
    """Make an iDRAC 9: as a PowerEdge with GPUs shows its parts."""
    tree = _make_root("System.Embedded.1", "System.Embedded.1", "Sel")
    chassis, system = "Chassis/System.Embedded.1", "Systems/System.Embedded.1"
    fans: list[dict[str, Any]] = [
        {**make_link(f"{chassis}/Sensors/Fans/0x17%7C%7CFan.Embedded.{n}"), "Name": f"Fan {n}"}
        | {"Reading": 9000, "ReadingUnits": "RPM", "LowerThresholdCritical": 480}
        | {"Status": dict(OK)}
        for n in (1, 2, 3)
    ]
    supplies: list[dict[str, Any]] = [
        {**make_link(f"{chassis}/Power/PowerSupplies/PSU.Slot.{n}"), "MemberId": f"PSU.Slot.{n}"}
        | {"Name": f"PS{n} Status", "LineInputVoltage": 230, "Status": dict(OK)}
        for n in (1, 2)
    ]
    tree[f"{chassis}/Thermal"] = {"Fans": fans, "Temperatures": []}
    tree[f"{chassis}/Power"] = {"PowerSupplies": supplies}
    tree[chassis] |= {name: make_link(f"{chassis}/{name}") for name in ("Thermal", "Power")}
    processors: list[dict[str, Any]] = [
        {"Id": f"CPU.Socket.{n}", "Name": f"CPU {n}", "Socket": f"CPU.Socket.{n}"}
        | {"ProcessorType": "CPU", "Status": dict(OK)}
        for n in (1, 2)
    ]
    gpus: list[dict[str, Any]] = [
        {"Id": f"Video.Slot.{n}-1", "Name": f"Video.Slot.{n}-1", "ProcessorType": "GPU"}
        | {"Status": dict(OK)}
        for n in (21, 22)
    ]
    _add(tree, f"{system}/Processors", [*processors, *gpus])
    dimms: list[dict[str, Any]] = [
        {"Id": f"DIMM.Socket.{n}", "Name": f"DIMM {n}", "DeviceLocator": f"DIMM {n}"}
        | {"Status": dict(OK)}
        for n in ("A1", "B2")
    ]
    _add(tree, f"{system}/Memory", dimms)
    drives: list[dict[str, Any]] = [
        {"Id": f"Disk.Bay.{n}", "Name": f"SSD {n}", "Model": "PM9A3", "FailurePredicted": False}
        | {"Status": dict(OK)}
        for n in (0, 1)
    ]
    _add_storage(tree, system, drives)
    parts = {
        "supply": (supplies[1], "PS2 Status"),
        "fan": (fans[1], "Fan 2"),
        "dimm": (dimms[1], "DIMM B2"),
        "cpu": (processors[1], "CPU.Socket.2"),
        "drive": (drives[1], "SSD 1"),
        "gpu": (gpus[1], "Video.Slot.22-1"),
    }
    return VendorBmc(tree, f"{system}/LogServices/Sel/Entries", parts)


def make_openbmc() -> VendorBmc:
    """Make an OpenBMC of an NVIDIA node with GPUs and cold plates."""
    tree = _make_root("System_0", "Chassis_0", "EventLog")
    chassis, system = "Chassis/Chassis_0", "Systems/System_0"
    thermal, power = f"{chassis}/ThermalSubsystem", f"{chassis}/PowerSubsystem"
    fans = _add(
        *(tree, f"{thermal}/Fans"),
        [_part(f"FAN_{n}", SpeedPercent={"Reading": 45, "SpeedRPM": 9000}) for n in (1, 2, 3)],
    )
    leaks = _add(
        *(tree, f"{thermal}/LeakDetection/LeakDetectors"),
        [_part(f"LeakDetector_{n}_ColdPlate", DetectorState="OK") for n in (0, 1)],
    )
    tree[f"{thermal}/LeakDetection"] = {
        "LeakDetectors": make_link(f"{thermal}/LeakDetection/LeakDetectors")
    }
    tree[thermal] = {n: make_link(f"{thermal}/{n}") for n in ("Fans", "LeakDetection")}
    supplies = _add(tree, f"{power}/PowerSupplies", [_part(f"PSU_{n}") for n in (1, 2)])
    tree[power] = {"PowerSupplies": make_link(f"{power}/PowerSupplies")}
    names = ("ThermalSubsystem", "PowerSubsystem")
    tree[chassis] |= {name: make_link(f"{chassis}/{name}") for name in names}
    gpus = [_part(f"GPU_{n}", ProcessorType="GPU") for n in (0, 1)]
    cpus = [_part(f"CPU_{n}", ProcessorType="CPU") for n in (0, 1)]
    _add(tree, f"{system}/Processors", [*gpus, *cpus])
    dimms = _add(tree, f"{system}/Memory", [_part(f"DIMM_{n}") for n in (0, 1)])
    drives = [_part(f"NVMe_{n}", Model="PM9A3") for n in (0, 1)]
    _add_storage(tree, system, drives)
    parts = {
        "supply": (supplies[1], "PSU_2"),
        "fan": (fans[1], "FAN_2"),
        "dimm": (dimms[1], "DIMM_1"),
        "cpu": (cpus[1], "CPU_1"),
        "drive": (drives[1], "NVMe_1"),
        "gpu": (gpus[1], "GPU_1"),
        "leak": (leaks[1], "LeakDetector_1_ColdPlate"),
    }
    return VendorBmc(tree, f"{system}/LogServices/EventLog/Entries", parts)


VENDORS: Mapping[str, Callable[[], VendorBmc]] = {
    "HPE iLO 5": make_ilo5,
    "Dell iDRAC 9": make_idrac9,
    "OpenBMC": make_openbmc,
}
