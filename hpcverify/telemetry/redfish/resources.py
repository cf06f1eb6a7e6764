"""
What the resources of Redfish say of a chassis, as `hpcverify.telemetry.chassis` has it.

Two generations of the schema (DSP0268) are in use, often both on one BMC: ``Thermal`` and
``Power``, which hold all their parts, and since 2020.4 ``ThermalSubsystem`` and
``PowerSubsystem``, whose fans, supplies and sensors are resources of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from hpcverify.telemetry.chassis import (
    ChassisEvent,
    ChassisSensor,
    Defect,
    Redundancy,
    RedundancyState,
    SensorHealth,
    SensorKind,
    Thresholds,
    measures_room,
)

Resource = Mapping[str, Any]

HEALTH_BY_WORD = {
    "ok": SensorHealth.OK,
    "warning": SensorHealth.WARNING,
    "critical": SensorHealth.CRITICAL,
}
BAD_HEALTH = (SensorHealth.WARNING, SensorHealth.CRITICAL)
ABSENT_STATE = "absent"
WORKING_STATES = frozenset({"enabled", "standbyspare", ""})
"""States in which an OK is about the part; most sensors have no state at all."""
UNUSED_STATES = frozenset({"disabled", "deferring"})
"""States in which a bad health is not a fault: the part was taken out of use."""
OFFLINE_STATE = "unavailableoffline"
"""Of a part that is present and cannot be used: of a supply, one without input power."""
BAD_DIMM = re.compile("Degraded|MapOut|ExpectedButMissing|ConfigurationError|DoesNotMatch")
"""In ``DIMMStatus``, which HPE gives a DIMM that it took out of use, and then no Status."""
LOST_INPUT = re.compile(
    r"(?:input|\bac).*(?:lost|loss|fault|fail|error)|no ?(?:ac|input)", re.IGNORECASE
)
"""In the vendor's own state of a supply, such as HPE's ``PowerSupplyStatus``."""
INPUT_DEFECTS = {"LossOfInput": Defect.INPUT_LOST, "OutOfRange": Defect.INPUT_WRONG}
"""By `LineInputStatus` of PowerSupply, since 1.0."""
OLD_READINGS = {
    SensorKind.TEMPERATURE: ("ReadingCelsius", "°C"),
    SensorKind.VOLTAGE: ("ReadingVolts", "V"),
}
AMBIENT_CONTEXTS = frozenset({"Intake", "Room"})
"""Values of `PhysicalContext` for the air before the node."""
UNREDUNDANT_WORDS = frozenset({"NotRedundant"})
"""Values of `Mode` (old) and `RedundancyType` (new) for a group set up without."""
REDUNDANCY_BY_HEALTH = {
    SensorHealth.OK: RedundancyState.FULL,
    SensorHealth.WARNING: RedundancyState.DEGRADED,
    SensorHealth.CRITICAL: RedundancyState.LOST,
}
MIN_PARTS_FOR_REDUNDANCY = 2
MAX_SIZE = 1e12
"""Nothing of a chassis that is measured or counted is more."""
BARE_CODES = frozenset({"Assert", "Deassert"})
"""Values of `EntryCode` of LogEntry that say nothing of what happened."""
ENDED_CODES = frozenset(
    {"Deassert", "State Deasserted", "Limit Not Exceeded", "Performance Met"}
    | {"Predictive Failure deasserted", "Fully Redundant", "Transition to OK", "Informational"}
    | {f"Lower {level} going high" for level in ("Non-critical", "Critical", "Non-recoverable")}
    | {f"Upper {level} going low" for level in ("Non-critical", "Critical", "Non-recoverable")}
)
"""Values of `EntryCode` of LogEntry for something that is over."""
ENDED_WORDS = re.compile(
    r"\bde-?assert|\bcleared\b|is now (?:above\b.*\blower|below\b.*\bupper)", re.IGNORECASE
)
"""The same in a message: the registry SensorEvent has "is now below the 90 upper critical
threshold but remains outside of normal range"."""


def as_list(value: object) -> list[Any]:
    """Return *value* if it is a list, and an empty one if not."""
    return value if isinstance(value, list) else []


def get_text(resource: Resource, *names: str) -> str:
    """Return the first text of *names*; iDRAC 8 writes ``[{"Member": "Battery"}]`` for some."""
    for name in names:
        value = resource.get(name)
        if isinstance(value, list):
            members = [item.get("Member") if isinstance(item, dict) else item for item in value]
            value = " ".join(member for member in members if isinstance(member, str))
        if isinstance(value, str) and value.strip():
            return " ".join(value.split())
    return ""


def get_number(resource: Resource, *names: str) -> float | None:
    """Return the first of the properties *names* that is a number of a credible size."""
    for name in names:
        value = resource.get(name)
        # JSON has whole numbers of any length, which no float holds.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_SIZE:
            return float(value)
    return None


def get_inner(resource: Resource, *names: str) -> Resource:
    """Go down the properties *names*; an empty resource if one of them is none."""
    for name in names:
        value = resource.get(name)
        resource = value if isinstance(value, dict) else {}
    return resource


def get_link(resource: Resource, *names: str) -> str:
    """Return the path that the property *names* links to; empty if it does not."""
    return get_text(get_inner(resource, *names), "@odata.id")


def read_state(resource: Resource) -> str:
    """Read the State of *resource*, in lower case: BMCs differ in theirs."""
    return get_text(get_inner(resource, "Status"), "State").casefold()


def parse_health(word: str) -> SensorHealth:
    """Parse a value of Health or of a severity, in any case."""
    return HEALTH_BY_WORD.get(word.casefold(), SensorHealth.UNKNOWN)


def read_health(resource: Resource) -> SensorHealth:
    """Read the Status of *resource*; without a Health, a bad one of what is in it is a warning."""
    status, state = get_inner(resource, "Status"), read_state(resource)
    health = parse_health(get_text(status, "Health"))
    if (
        not get_text(status, "Health")
        and parse_health(get_text(status, "HealthRollup")) in BAD_HEALTH
    ):
        health = SensorHealth.WARNING
    if state == ABSENT_STATE:
        return SensorHealth.ABSENT
    if state in UNUSED_STATES or (health is SensorHealth.OK and state not in WORKING_STATES):
        return SensorHealth.UNKNOWN
    return health


def list_vendors(resource: Resource) -> list[Resource]:
    """List the vendors' own blocks of *resource*."""
    return [block for block in get_inner(resource, "Oem").values() if isinstance(block, dict)]


def describe_status(resource: Resource) -> str:
    """Write the Status of *resource* in its own words."""
    status = get_inner(resource, "Status")
    words = (get_text(status, "Health", "HealthRollup"), get_text(status, "State"))
    return ", ".join(dict.fromkeys(word for word in words if word))


def find_label(resource: Resource, kind: SensorKind) -> str:
    """Find what a person calls the part: the label at its bay goes before its name."""
    label = get_text(get_inner(resource, "Location", "PartLocation"), "ServiceLabel")
    if kind is SensorKind.POWER_SUPPLY and not label:  # HPE calls all HpeServerPowerSupply
        bays = (get_number(vendor, "BayNumber") for vendor in list_vendors(resource))
        label = next((f"PSU {bay:g}" for bay in bays if bay is not None), "")
    return label or get_text(resource, "Name", "FanName", "MemberId", "Id") or kind.value


def read_old_fan(fan: Resource) -> ChassisSensor:
    """Read a member of `Fans` of Thermal."""
    return _build_fan(
        fan,
        get_number(fan, "Reading", "ReadingRPM"),
        "%" if get_text(fan, "ReadingUnits") == "Percent" else "RPM",
        _read_thresholds(fan),
    )


def read_new_fan(fan: Resource) -> ChassisSensor:
    """Read a Fan."""
    speed = get_inner(fan, "SpeedPercent")
    rpm = get_number(speed, "SpeedRPM")
    if rpm is not None:
        return _build_fan(fan, rpm, "RPM", Thresholds())
    return _build_fan(fan, get_number(speed, "Reading"), "%", Thresholds())


def _build_fan(
    fan: Resource, speed: float | None, unit: str, thresholds: Thresholds
) -> ChassisSensor:
    sensor = _build_sensor(fan, SensorKind.FAN, value=speed, unit=unit, thresholds=thresholds)
    unlimited = thresholds.low_critical is None and thresholds.low_warning is None
    if speed is None or not unlimited or sensor.health not in BAD_HEALTH:
        return sensor
    # It is the fan that is unhealthy, and no threshold says that its speed is why.
    text = f"{sensor.said}, at {speed:g} {unit}"
    return replace(sensor, value=None, unit="", said=text)


def read_old_sensor(one: Resource, kind: SensorKind) -> ChassisSensor:
    """Read a member of `Temperatures` of Thermal, or of `Voltages` of Power."""
    name, unit = OLD_READINGS[kind]
    value, thresholds = get_number(one, name), _read_thresholds(one)
    return _build_sensor(one, kind, value=value, unit=unit, thresholds=thresholds)


def read_temperature_sensor(one: Resource) -> ChassisSensor:
    """Read a Sensor that measures a temperature."""
    limits = get_inner(one, "Thresholds")

    def read(*names: str) -> float | None:
        readings = (get_number(get_inner(limits, name), "Reading") for name in names)
        return next((reading for reading in readings if reading is not None), None)

    return _build_sensor(
        one,
        SensorKind.TEMPERATURE,
        value=get_number(one, "Reading"),
        unit="°C",
        thresholds=Thresholds(
            low_critical=read("LowerCritical", "LowerFatal"),
            low_warning=read("LowerCaution"),
            high_warning=read("UpperCaution"),
            high_critical=read("UpperCritical", "UpperFatal"),
        ),
    )


def read_supply(supply: Resource) -> ChassisSensor:
    """
    Read a member of `PowerSupplies` of Power, or a PowerSupply: both have the same properties.

    A supply without input power is not broken: its feed is. The old schema has no word for it,
    and BMCs show a voltage of zero, or an offline supply that they complain of.
    """
    sensor = _build_sensor(supply, SensorKind.POWER_SUPPLY)
    state = read_state(supply)
    defect = INPUT_DEFECTS.get(get_text(supply, "LineInputStatus"), Defect.NONE)
    if sensor.health in BAD_HEALTH and not defect:
        volts = supply.get("LineInputVoltage", "none is measured")
        states = (get_inner(vendor, "PowerSupplyStatus") for vendor in list_vendors(supply))
        is_lost = any(LOST_INPUT.search(get_text(own, "State")) for own in states)
        is_silent = volts == 0 or (volts is None and state not in WORKING_STATES)
        if is_silent or is_lost or state == OFFLINE_STATE:
            defect = Defect.INPUT_LOST
    said = describe_status(supply)
    if defect and sensor.health in (SensorHealth.OK, SensorHealth.UNKNOWN) and sensor.is_there:
        said = f"{said}, LineInputStatus {supply['LineInputStatus']}"
        return replace(sensor, defect=defect, said=said, health=SensorHealth.WARNING)
    if state == OFFLINE_STATE and sensor.health is SensorHealth.UNKNOWN:
        return replace(sensor, health=SensorHealth.WARNING)
    return replace(sensor, defect=defect)


def read_battery(battery: Resource) -> ChassisSensor:
    """Read a Battery."""
    return _build_sensor(battery, SensorKind.BATTERY)


def read_leak_detector(detector: Resource) -> ChassisSensor:
    """Read a LeakDetector, or an Alarm of HPE Cray EX; a broken detector is a warning."""
    sensor = _build_sensor(detector, SensorKind.LEAK)
    word = get_text(detector, "DetectorState")
    if get_text(detector, "AlarmState") == "Triggered":
        word = get_text(detector, "Severity")
    found, works = parse_health(word), read_state(detector) in WORKING_STATES
    if works and found in BAD_HEALTH:
        critical = SensorHealth.CRITICAL in (found, sensor.health)
        health = SensorHealth.CRITICAL if critical else SensorHealth.WARNING
        return replace(sensor, health=health, said=f"detector state {word}")
    if sensor.health is SensorHealth.CRITICAL and (found is SensorHealth.OK or not works):
        said = f"{sensor.said}, detector state {word or 'unknown'}"
        return replace(sensor, health=SensorHealth.WARNING, said=said)
    return sensor


def read_processor(processor: Resource) -> ChassisSensor:
    """Read a Processor, which may be a GPU."""
    is_gpu = get_text(processor, "ProcessorType") in ("GPU", "Accelerator")
    kind = SensorKind.GPU if is_gpu else SensorKind.PROCESSOR
    name = get_text(processor, "Name" if is_gpu else "Socket", "Name", "Id") or kind.value
    return _build_sensor({**processor, "Name": name}, kind)


def read_hpe_gpu(device: Resource) -> ChassisSensor:
    """Read an HpeServerDevice that is a GPU; all have the name of their model."""
    name = f"{get_text(device, 'Name', 'Id')} at {get_text(device, 'Location')}"
    return _build_sensor({**device, "Name": name.removesuffix(" at ")}, SensorKind.GPU)


def read_memory(memory: Resource) -> ChassisSensor:
    """Read a Memory, by the name that is printed at its slot."""
    name = get_text(memory, "DeviceLocator", "Name", "Id") or SensorKind.MEMORY.value
    sensor = _build_sensor({**memory, "Name": name}, SensorKind.MEMORY)
    own = next((get_text(v, "DIMMStatus") for v in (*list_vendors(memory), memory)), "")
    if sensor.health is SensorHealth.UNKNOWN and BAD_DIMM.search(own):
        return replace(sensor, health=SensorHealth.WARNING, said=own)
    return sensor


def read_drive(drive: Resource) -> ChassisSensor:
    """Read a Drive, or a device of SimpleStorage; a record without a drive is an empty bay."""
    place = get_inner(drive, "PhysicalLocation", "PartLocation")
    bay = get_text(place, "ServiceLabel") or get_text(drive, "Location")
    name = get_text(drive, "Name", "Id") or SensorKind.DRIVE.value
    sensor = _build_sensor({**drive, "Name": f"{name} at {bay}" if bay else name}, SensorKind.DRIVE)
    is_known = any(drive.get(key) for key in ("Model", "SerialNumber", "CapacityBytes"))
    if read_state(drive) == OFFLINE_STATE and not is_known:
        return replace(sensor, health=SensorHealth.ABSENT)
    predicted = drive.get("FailurePredicted") is True
    predicted |= get_text(drive, "StatusIndicator") in ("PredictiveFailureAnalysis", "Fail")
    if predicted and sensor.health in (SensorHealth.OK, SensorHealth.UNKNOWN) and sensor.is_there:
        said = f"{sensor.said}, failure predicted".lstrip(", ")
        return replace(sensor, health=SensorHealth.WARNING, defect=Defect.PREDICTED, said=said)
    return sensor


def read_controller(controller: Resource) -> ChassisSensor:
    """Read a StorageController; a battery that failed may show in its `CacheSummary` alone."""
    sensor = _build_sensor(controller, SensorKind.CONTROLLER)
    cache = get_inner(controller, "CacheSummary")
    if read_health(cache) in BAD_HEALTH and sensor.health not in BAD_HEALTH:
        said = f"{describe_status(cache)} for its cache"
        return replace(sensor, health=SensorHealth.WARNING, said=said)
    return sensor


def read_storage(storage: Resource) -> ChassisSensor:
    """Read the Storage around controllers and drives, with its volumes."""
    name = f"storage {get_text(storage, 'Id', 'Name')}".strip()
    return _build_sensor({"Name": name, "Status": _merge_rollup(storage)}, SensorKind.CONTROLLER)


def read_summaries(resource: Resource, kind: str) -> Iterator[ChassisSensor]:
    """Yield the Status of *resource*, a *kind* such as system, and of its processors and memory."""
    own = f"{kind} {get_text(resource, 'Id', 'Name')}".strip()
    for name, label in (("", own), ("ProcessorSummary", "processors"), ("MemorySummary", "memory")):
        summary = get_inner(resource, name) if name else resource
        if status := _merge_rollup(summary):
            yield _build_sensor({"Name": label, "Status": status}, SensorKind.SUMMARY)


def _merge_rollup(resource: Resource) -> Resource:
    """Return the Status of *resource* with the worse of its Health and its HealthRollup."""
    status = get_inner(resource, "Status")
    words = [get_text(status, name) for name in ("Health", "HealthRollup")]
    ranks = {health: rank for rank, health in enumerate(HEALTH_BY_WORD.values())}
    worst = max(words, key=lambda word: ranks.get(parse_health(word), -1))
    return {**status, "Health": worst} if status else {}


def read_redundancy(group: Resource, kind: SensorKind, number: int) -> Redundancy:
    """Read a group of either generation; *number* tells those without a name apart."""
    name = get_text(group, "Name") or f"{kind.value} redundancy {number}"
    members = as_list(group.get("RedundancySet")) or as_list(group.get("RedundancyGroup"))
    is_off = (
        group.get("RedundancyEnabled") is False
        or read_state(group) in UNUSED_STATES
        or get_text(group, "Mode", "RedundancyType") in UNREDUNDANT_WORDS
        or len(members) < MIN_PARTS_FOR_REDUNDANCY
    )
    state = REDUNDANCY_BY_HEALTH.get(read_health(group), RedundancyState.UNKNOWN)
    return Redundancy(
        name=name,
        kind=kind,
        state=RedundancyState.DISABLED if is_off else state,
        said=describe_status(group),
    )


def read_event(entry: Resource, log: str, parts: Mapping[str, ChassisSensor]) -> ChassisEvent:
    """Read a LogEntry of the log called *log*; *parts* are the sensors, by `normalize_path`."""
    code = get_text(entry, "EntryCode").replace(" - ", " ")
    message_id = get_text(entry, "MessageId")
    arguments = [str(item) for item in as_list(entry.get("MessageArgs"))]
    message = get_text(entry, "Message") or " ".join([message_id, *arguments])
    severity = parse_health(get_text(entry, "Severity", "MessageSeverity"))
    vendors = list_vendors(entry)
    is_over = entry.get("Resolved") is True or any(v.get("Repaired") is True for v in vendors)
    # An entry without a code of its own is of the severity OK when it is about the end.
    is_over = is_over or (code in ENDED_CODES if code else severity is SensorHealth.OK)
    is_over = is_over or bool(ENDED_WORDS.search(message))
    path = get_link(entry, "Links", "OriginOfCondition") or get_link(entry, "OriginOfCondition")
    origin = parts.get(normalize_path(path)) if path else None
    return ChassisEvent(
        id=f"{log}/{get_text(entry, 'Id', '@odata.id')}",
        time=parse_time(get_text(entry, "EventTimestamp", "Created")),
        sensor=origin.name if origin else "",
        part=origin.part if origin else "",
        subject=get_text(entry, "SensorType")
        or " ".join(get_text(vendor, "ClassDescription") for vendor in vendors),
        message_id=message_id,
        text=f"{code}: {message}" if code and code not in BARE_CODES else message,
        asserted=False if is_over else True if code else None,
        severity=severity,
    )


def normalize_path(path: str) -> str:
    """Make two ways to write one path equal, as ``Power/#Fans/0/`` and ``Power#/Fans/0``."""
    single = re.sub("/+", "/", path)
    return single.replace("/#", "#").replace("#/", "#").rstrip("/").casefold()


def parse_time(text: str) -> float | None:
    """Read a time of Redfish (ISO 8601) as seconds since 1970; None if it is none."""
    with suppress(ValueError, OverflowError):
        when = datetime.fromisoformat(text)
        if when.tzinfo is not None and when.year > 1970:  # noqa: PLR2004 - a clock never set
            return when.timestamp()
    return None


def _build_sensor(
    resource: Resource,
    kind: SensorKind,
    *,
    value: float | None = None,
    unit: str = "",
    thresholds: Thresholds | None = None,
    defect: Defect = Defect.NONE,
) -> ChassisSensor:
    name = get_text(resource, "Name", "FanName", "Id") or kind.value
    return ChassisSensor(
        name=name,
        part=find_label(resource, kind),
        kind=kind,
        health=read_health(resource),
        defect=defect,
        said=describe_status(resource),
        value=value,
        unit="" if value is None else unit,
        thresholds=thresholds or Thresholds(),
        is_ambient=kind is SensorKind.TEMPERATURE
        and measures_room(name, is_inlet=get_text(resource, "PhysicalContext") in AMBIENT_CONTEXTS),
        is_present=read_state(resource) not in ("", ABSENT_STATE),
    )


def _read_thresholds(one: Resource) -> Thresholds:
    return Thresholds(
        low_critical=get_number(one, "LowerThresholdCritical", "LowerThresholdFatal"),
        low_warning=get_number(one, "LowerThresholdNonCritical"),
        high_warning=get_number(one, "UpperThresholdNonCritical"),
        high_critical=get_number(one, "UpperThresholdCritical", "UpperThresholdFatal"),
    )
