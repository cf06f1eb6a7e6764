"""
What the resources of Redfish say of a chassis, as `hpcverify.telemetry.chassis` has it.

Two generations of the schema (DSP0268) are in use, often both on one BMC: ``Thermal`` and
``Power``, which hold all their parts, and since 2020.4 ``ThermalSubsystem`` and
``PowerSubsystem``, whose fans, supplies and sensors are resources of their own.
"""

from __future__ import annotations

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
)
from hpcverify.telemetry.redfish.client import as_list

Resource = Mapping[str, Any]

HEALTH_BY_WORD = {
    "OK": SensorHealth.OK,
    "Warning": SensorHealth.WARNING,
    "Critical": SensorHealth.CRITICAL,
}
BAD_HEALTH = (SensorHealth.WARNING, SensorHealth.CRITICAL)
ABSENT_STATE = "Absent"
WORKING_STATES = frozenset({"Enabled", "StandbySpare", ""})
"""In which an OK says something of the part; most sensors have no state at all."""
INPUT_DEFECTS = {"LossOfInput": Defect.INPUT_LOST, "OutOfRange": Defect.INPUT_WRONG}
"""By `LineInputStatus` of PowerSupply, since 1.0."""
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
)
"""Values of `EntryCode` of LogEntry for something that is over."""


def get_text(resource: Resource, *names: str) -> str:
    """Return the first of the properties *names* that is a text and not empty."""
    for name in names:
        value = resource.get(name)
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


def read_health(resource: Resource) -> SensorHealth:
    """Say what the Status of *resource* means."""
    status = get_inner(resource, "Status")
    state = get_text(status, "State")
    health = HEALTH_BY_WORD.get(get_text(status, "Health"), SensorHealth.UNKNOWN)
    if state == ABSENT_STATE:
        return SensorHealth.ABSENT
    if health is SensorHealth.OK and state not in WORKING_STATES:
        return SensorHealth.UNKNOWN
    return health


def describe_status(resource: Resource) -> str:
    """Write the Status of *resource* in its own words."""
    status = get_inner(resource, "Status")
    words = (get_text(status, "Health"), get_text(status, "State"))
    return ", ".join(dict.fromkeys(word for word in words if word))


def find_label(resource: Resource, kind: SensorKind) -> str:
    """Find what a person calls the part: the label at its bay goes before its name."""
    label = get_text(get_inner(resource, "Location", "PartLocation"), "ServiceLabel")
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


def read_old_temperature(one: Resource) -> ChassisSensor:
    """Read a member of `Temperatures` of Thermal."""
    return _build_sensor(
        one,
        SensorKind.TEMPERATURE,
        value=get_number(one, "ReadingCelsius"),
        unit="°C",
        thresholds=_read_thresholds(one),
    )


def read_temperature_sensor(one: Resource) -> ChassisSensor:
    """Read a Sensor that measures a temperature."""
    limits = get_inner(one, "Thresholds")
    return _build_sensor(
        one,
        SensorKind.TEMPERATURE,
        value=get_number(one, "Reading"),
        unit="°C",
        thresholds=Thresholds(
            low_critical=get_number(get_inner(limits, "LowerCritical"), "Reading"),
            low_warning=get_number(get_inner(limits, "LowerCaution"), "Reading"),
            high_warning=get_number(get_inner(limits, "UpperCaution"), "Reading"),
            high_critical=get_number(get_inner(limits, "UpperCritical"), "Reading"),
        ),
    )


def read_voltage(one: Resource) -> ChassisSensor:
    """Read a member of `Voltages` of Power."""
    return _build_sensor(
        one,
        SensorKind.VOLTAGE,
        value=get_number(one, "ReadingVolts"),
        unit="V",
        thresholds=_read_thresholds(one),
    )


def read_supply(supply: Resource) -> ChassisSensor:
    """Read a member of `PowerSupplies` of Power, or a PowerSupply: they say it alike."""
    health = read_health(supply)
    defect = INPUT_DEFECTS.get(get_text(supply, "LineInputStatus"), Defect.NONE)
    # The old schema has no word for it: a bay that complains, and a cable without power.
    if health in BAD_HEALTH and not defect:
        lost = get_number(supply, "LineInputVoltage") == 0
        defect = Defect.INPUT_LOST if lost else Defect.NONE
    return _build_sensor(supply, SensorKind.POWER_SUPPLY, defect=defect)


def read_battery(battery: Resource) -> ChassisSensor:
    """Read a Battery."""
    return _build_sensor(battery, SensorKind.BATTERY)


def read_summaries(system: Resource) -> Iterator[ChassisSensor]:
    """Yield what a ComputerSystem says of all its processors, and of its memory."""
    for name, label, kind in (
        ("ProcessorSummary", "processors", SensorKind.PROCESSOR),
        ("MemorySummary", "memory", SensorKind.MEMORY),
    ):
        summary = get_inner(system, name)
        if get_inner(summary, "Status"):
            yield _build_sensor({"Name": label, **summary}, kind)


def read_redundancy(group: Resource, kind: SensorKind, number: int) -> Redundancy:
    """Read a group of either generation; *number* tells those without a name apart."""
    name = get_text(group, "Name") or f"{kind.value} redundancy {number}"
    members = as_list(group.get("RedundancySet")) or as_list(group.get("RedundancyGroup"))
    is_off = (
        group.get("RedundancyEnabled") is False
        or get_text(get_inner(group, "Status"), "State") == "Disabled"
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
    """Read a LogEntry of the log called *log*; *parts* are what it may be about, by path."""
    code = get_text(entry, "EntryCode").replace(" - ", " ")
    message = get_text(entry, "Message", "MessageId")
    asserted = code not in ENDED_CODES if code else None
    if entry.get("Resolved") is True:
        asserted = False
    origin = parts.get(get_link(entry, "Links", "OriginOfCondition"))
    return ChassisEvent(
        id=f"{log}/{get_text(entry, 'Id', '@odata.id')}",
        time=parse_time(get_text(entry, "EventTimestamp", "Created")),
        sensor=origin.name if origin else "",
        part=origin.part if origin else "",
        subject=get_text(entry, "SensorType"),
        text=f"{code}: {message}" if code and code not in BARE_CODES else message,
        asserted=asserted,
        severity=HEALTH_BY_WORD.get(
            get_text(entry, "Severity", "MessageSeverity"), SensorHealth.UNKNOWN
        ),
    )


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
    return ChassisSensor(
        name=get_text(resource, "Name", "FanName", "Id") or kind.value,
        part=find_label(resource, kind),
        kind=kind,
        health=read_health(resource),
        defect=defect,
        said=describe_status(resource),
        value=value,
        unit="" if value is None else unit,
        thresholds=thresholds or Thresholds(),
        is_ambient=get_text(resource, "PhysicalContext") in AMBIENT_CONTEXTS,
    )


def _read_thresholds(one: Resource) -> Thresholds:
    return Thresholds(
        low_critical=get_number(one, "LowerThresholdCritical"),
        low_warning=get_number(one, "LowerThresholdNonCritical"),
        high_warning=get_number(one, "UpperThresholdNonCritical"),
        high_critical=get_number(one, "UpperThresholdCritical"),
    )
