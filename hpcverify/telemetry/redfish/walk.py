"""
Reads the resources of a BMC about the parts of its node.

A resource that a BMC cannot show (HTTP 500, no JSON) is reported, and the others are read. Many
BMCs show the same parts in both generations of the schema: fans and power supplies count as the
newer one has them, which tells a cable from a supply; temperatures as the older one has them,
which is one request and not one for each sensor. The health of processors, memory, drives and
leak detectors comes from their own resources.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpcverify.plan.bmc import BmcAccess
from hpcverify.telemetry.chassis import (
    Bmc,
    Chassis,
    ChassisEvent,
    ChassisSensor,
    EventLog,
    Redundancy,
    SensorKind,
)
from hpcverify.telemetry.redfish import resources
from hpcverify.telemetry.redfish.client import (
    SERVICE_ROOT,
    Service,
    Unreadable,
    list_members,
    visit_bmc,
)
from hpcverify.telemetry.redfish.event_log import list_newest_entries
from hpcverify.telemetry.redfish.resources import (
    ABSENT_STATE,
    BAD_HEALTH,
    Resource,
    as_list,
    get_inner,
    get_link,
    get_number,
    get_text,
    list_vendors,
    normalize_path,
    parse_time,
    read_health,
    read_state,
)

OTHER_LOGS = re.compile(
    "audit|crash|debug|dump|hostlogger|iel|journal|lclog|postcode|security|^sl$", re.IGNORECASE
)
"""The names of logs of something else than events of the hardware, such as of logins."""
ON_STATES = frozenset({"on", ""})
"""Values of PowerState, in lower case; a system without one says nothing of it."""
DPU_TYPE = "DPU"
"""The SystemType of a card with a computer of its own, which is on and off when it likes."""
TOLD_OF_OFF_NODE = frozenset({SensorKind.POWER_SUPPLY, SensorKind.BATTERY, SensorKind.LEAK})
"""The parts that work while a node is switched off."""
FULL_LOG_POLICY = "NeverOverWrites"
OWN_SETTING = re.compile(
    "password|serial|asset|tag|uuid|mac|addr|name|iscsi|date|time|cert|hash|boot", re.IGNORECASE
)
"""In the names of BIOS attributes that are secret, or one node's own."""
MAX_SETTINGS = 1000
"""BIOS attributes: three times as many as most have."""
MAX_FACT_CHARS = 100


class ChassisReading(Struct, frozen=True, kw_only=True):
    """A chassis, and how well it could be read."""

    chassis: Chassis
    notes: tuple[str, ...] = ()
    """What a reader should know, such as that the node is switched off."""
    unreadable: tuple[str, ...] = ()
    """Resources that the BMC has and could not show."""
    facts: Mapping[str, str] = {}
    """Settings of the BIOS, without what is secret or one node's own."""


def read_chassis(access: BmcAccess) -> ChassisReading:
    """Read all that the BMC at *access* says of its node."""
    return visit_bmc(access, partial(read_service, address=access.address))


def read_service(service: Service, address: str) -> ChassisReading:
    """Read all resources of *service*, which is at *address*."""
    walk = _Walk(service)
    walk.read()
    return walk.build(address)


class _Walk(Struct):
    """What was found so far."""

    service: Service
    bmc: Resource = {}
    system: Resource = {}
    bios: Resource = {}
    is_on: bool = True
    parts: dict[str, ChassisSensor] = field(default_factory=dict[str, ChassisSensor])
    """The sensors by path, as `normalize_path` writes it, where only one has that path."""
    shared_paths: set[str] = field(default_factory=set[str])
    names: Counter[str] = field(default_factory=Counter[str])
    notes: list[str] = field(default_factory=list[str])
    sensors: list[ChassisSensor] = field(default_factory=list[ChassisSensor])
    groups: list[Redundancy] = field(default_factory=list[Redundancy])
    events: list[ChassisEvent] = field(default_factory=list[ChassisEvent])
    capacity: int | None = None
    is_full: bool = False
    log_problems: list[str] = field(default_factory=list[str])
    unreadable: list[str] = field(default_factory=list[str])

    def read(self) -> None:
        """Read the chassis, the systems and the managers of a BMC."""
        root = self.service.get(SERVICE_ROOT) or {}
        systems = self._list_parts(get_link(root, "Systems"))
        managers = self._list_parts(get_link(root, "Managers"))
        hosts = [s for s in systems if get_text(s, "SystemType") != DPU_TYPE] or systems
        self.system, self.bmc = (members[0] if members else {} for members in (hosts, managers))
        states = {get_text(host, "PowerState").casefold() for host in hosts} - {""}
        self.is_on = not states or not states.isdisjoint(ON_STATES)
        for part in self._list_parts(get_link(root, "Chassis")):
            if read_state(part) != ABSENT_STATE:
                self._read_cooling(part)
                self._read_power(part)
                # An iLO has no Processor for its GPUs.
                links = (get_link(vendor, "Links", "Devices") for vendor in list_vendors(part))
                devices = self._list_parts(next(filter(None, links), ""))
                self._add(
                    [d for d in devices if get_text(d, "DeviceType") == "GPU"],
                    resources.read_hpe_gpu,
                )
                self._add_summaries(part, "chassis")
        for system in systems:
            if get_text(system, "PowerState").casefold() in ON_STATES:
                self._read_system(system)
            self._add_summaries(system, "system")
        with suppress(Unreadable):  # it says nothing of the chassis
            path = get_link(self.system, "Bios")
            self.bios = (self.service.get(path) if path else None) or {}
        for owner in (*systems, *managers):
            for log in self._list_parts(get_link(owner, "LogServices")):
                self._read_log(log)

    def build(self, address: str) -> ChassisReading:
        """Put together what was found."""
        off = "the node is off, so only power supplies, leak detectors and the log were read"
        settings = islice(get_inner(self.bios, "Attributes").items(), MAX_SETTINGS)
        facts = {
            f"BIOS setting {name}"[:MAX_FACT_CHARS]: str(value)[:MAX_FACT_CHARS]
            for name, value in settings
            if isinstance(value, str | int | float) and not OWN_SETTING.search(name)
        }
        log = EventLog(
            identity=get_text(self.bmc, "UUID", "SerialNumber", "Id"),
            events=tuple(_drop_copies(self.events)),
            clock=parse_time(get_text(self.bmc, "DateTime")),
            capacity=self.capacity,
            is_full=self.is_full,
            unread_reason="; ".join(self.log_problems),
        )
        chassis = Chassis(
            bmc=Bmc(
                name=f"the BMC at {address}",
                firmware=get_text(self.bmc, "FirmwareVersion"),
                maker=get_text(self.system, "Manufacturer"),
                product=get_text(self.system, "Model"),
            ),
            sensors=tuple(s for s in self.sensors if self.is_on or s.kind in TOLD_OF_OFF_NODE),
            redundancy=tuple(g for g in self.groups if self.is_on or g.kind in TOLD_OF_OFF_NODE),
            log=log,
            is_partial=not self.is_on or bool(self.unreadable),
        )
        return ChassisReading(
            chassis=chassis,
            notes=(*self.notes, *(() if self.is_on else (off,))),
            unreadable=tuple(dict.fromkeys(self.unreadable)),
            facts=facts,
        )

    def _get(self, path: str) -> Resource:
        try:
            return (self.service.get(path) if path else None) or {}
        except Unreadable as exc:
            self.unreadable.append(str(exc))
            return {}

    def _list_parts(self, path: str) -> list[Resource]:
        """List the members of a collection, each as it is at its own place."""
        try:
            links = [get_text(member, "@odata.id") for member in list_members(self.service, path)]
        except Unreadable as exc:
            self.unreadable.append(str(exc))
            return []
        return [part for link in dict.fromkeys(links) if (part := self._get(link))]

    def _read_cooling(self, one: Resource) -> None:
        new = self._get(get_link(one, "ThermalSubsystem"))
        old = self._get(get_link(one, "Thermal"))
        fans = self._list_parts(get_link(new, "Fans"))
        if not self._add(fans, resources.read_new_fan):
            self._add(old.get("Fans"), resources.read_old_fan)
        if not self._add(
            old.get("Temperatures"), partial(resources.read_old_sensor, kind=SensorKind.TEMPERATURE)
        ):
            metrics = self._get(get_link(new, "ThermalMetrics"))  # lists only temperatures
            listed = as_list(metrics.get("TemperatureReadingsCelsius"))
            links = [
                get_text(entry, "DataSourceUri") for entry in listed if isinstance(entry, dict)
            ]
            heat = [self._get(link) for link in dict.fromkeys(links)]
            self._add(heat, resources.read_temperature_sensor)
        self._add_groups(new.get("FanRedundancy") or old.get("Redundancy"), SensorKind.FAN)
        self._read_leaks(one, new)

    def _read_leaks(self, one: Resource, thermal: Resource) -> None:
        """Read the leak detectors; BMCs without any may answer HTTP 500 to that question."""
        path = get_link(thermal, "LeakDetection")
        try:
            found = (self.service.get(path) if path else None) or {}
            links = [
                get_text(member, "@odata.id")
                for owner in (found, one)
                for member in list_members(self.service, get_link(owner, "LeakDetectors"))
            ]
            alarms = list_members(self.service, get_link(one, "Oem", "Alarms"))  # of HPE Cray EX
            links += [path for alarm in alarms if "Leak" in (path := get_text(alarm, "@odata.id"))]
            detectors = [self.service.get(link) or {} for link in dict.fromkeys(links)]
        except Unreadable as exc:
            self.notes.append(f"the leak detectors cannot be read ({exc})")
            return
        self._add(detectors, resources.read_leak_detector)

    def _read_system(self, system: Resource) -> None:
        self._add(self._list_parts(get_link(system, "Processors")), resources.read_processor)
        self._add(self._list_parts(get_link(system, "Memory")), resources.read_memory)
        drives: list[Resource] = []
        for storage in self._list_parts(get_link(system, "Storage")):
            links = [get_text(one, "@odata.id") for one in as_list(storage.get("Drives"))]
            own = [self._get(link) for link in dict.fromkeys(links)]
            controllers = self._list_parts(get_link(storage, "Controllers"))
            self._add(controllers or storage.get("StorageControllers"), resources.read_controller)
            if not any(read_health(part) in BAD_HEALTH for part in (*own, *controllers)):
                self._add([storage], resources.read_storage)  # else these explain its health
            drives += own
        drives += self._list_hpe_drives(system)
        for storage in [] if drives else self._list_parts(get_link(system, "SimpleStorage")):
            drives += as_list(storage.get("Devices"))
        # A drive may have two records; a shared serial number must not hide a bad drive.
        listed = enumerate(drive for drive in drives if isinstance(drive, dict))
        by_serial = {(get_text(d, "SerialNumber") or str(n), read_health(d)): d for n, d in listed}
        self._add(list(by_serial.values()), resources.read_drive)

    def _list_hpe_drives(self, system: Resource) -> list[Resource]:
        """List the drives behind array controllers of HPE, which Storage may not have."""
        links = (get_link(vendor, "Links", "SmartStorage") for vendor in list_vendors(system))
        smart = self._get(next(filter(None, links), ""))
        arrays = self._list_parts(get_link(smart, "Links", "ArrayControllers"))
        self._add(arrays, resources.read_controller)
        paths = [get_link(array, "Links", "PhysicalDrives") for array in arrays]
        return [drive for path in paths for drive in self._list_parts(path)]

    def _read_power(self, one: Resource) -> None:
        new = self._get(get_link(one, "PowerSubsystem"))
        old = self._get(get_link(one, "Power"))
        bays = self._list_parts(get_link(new, "PowerSupplies"))
        self._add(bays or old.get("PowerSupplies"), resources.read_supply)
        self._add(old.get("Voltages"), partial(resources.read_old_sensor, kind=SensorKind.VOLTAGE))
        self._add(self._list_parts(get_link(new, "Batteries")), resources.read_battery)
        groups = new.get("PowerSupplyRedundancy") or old.get("Redundancy")
        self._add_groups(groups, SensorKind.POWER_SUPPLY)

    def _add(self, found: object, read: Callable[[Resource], ChassisSensor]) -> bool:
        """Add the sensors of the resources *found*; return whether there are any."""
        whole = [item for item in as_list(found) if isinstance(item, dict) and item]
        sensors = [read(resource) for resource in whole]
        names = Counter(sensor.name for sensor in sensors)
        labels = Counter(sensor.part for sensor in sensors)
        for place, (resource, sensor) in enumerate(zip(whole, sensors, strict=True), 1):
            # HPE calls all power supplies alike, and all processors.
            name = f"{sensor.name} {place}" if names[sensor.name] > 1 else sensor.name
            part = f"{sensor.part} {place}" if labels[sensor.part] > 1 else sensor.part
            own = replace(sensor, name=self._make_unique(name), part=part)
            self.sensors.append(own)
            path = normalize_path(get_text(resource, "@odata.id"))
            if path in self.parts:
                self.shared_paths.add(path)
            if path:
                self.parts[path] = own
        for path in self.shared_paths:
            self.parts.pop(path, None)
        return bool(whole)

    def _add_summaries(self, owner: Resource, kind: str) -> None:
        for sensor in resources.read_summaries(owner, kind):
            self.sensors.append(replace(sensor, name=self._make_unique(sensor.name)))

    def _make_unique(self, name: str) -> str:
        """Add a number to a name that was there before: two chassis may call their fans alike."""
        self.names[name] += 1
        return name if self.names[name] == 1 else f"{name} ({self.names[name]})"

    def _add_groups(self, groups: object, kind: SensorKind) -> None:
        whole = [group for group in as_list(groups) if isinstance(group, dict)]
        read = [resources.read_redundancy(group, kind, n) for n, group in enumerate(whole, 1)]
        self.groups += [replace(group, name=self._make_unique(group.name)) for group in read]

    def _read_log(self, log: Resource) -> None:
        name = get_text(log, "Id") or "log"
        if OTHER_LOGS.search(name):
            return
        try:
            entries = list_newest_entries(self.service, get_link(log, "Entries"))
        except Unreadable as exc:
            self.log_problems.append(str(exc))
            return
        self.events += [resources.read_event(entry, name, self.parts) for entry in entries]
        capacity = get_number(log, "MaxNumberOfRecords")
        if capacity and get_text(log, "OverWritePolicy") == FULL_LOG_POLICY:
            self.capacity = int(capacity)
            self.is_full |= len(entries) >= capacity


def _drop_copies(events: Iterable[ChassisEvent]) -> Iterator[ChassisEvent]:
    """Yield the events, the oldest first: a system and its manager may show the same log."""
    seen: set[tuple[Any, ...]] = set()
    for candidate in sorted(events, key=lambda event: event.time or 0.0):
        key = (
            (candidate.time, candidate.text, candidate.sensor)
            if candidate.time
            else (candidate.id,)
        )
        if key not in seen:
            seen.add(key)
            yield candidate
