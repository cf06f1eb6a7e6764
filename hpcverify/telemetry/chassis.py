"""
What the service processor (BMC) of a node says of its chassis, whatever it was asked by.

Fans, power supplies, temperatures, batteries, the redundancy of groups, and the event log.
`ipmi` reads it in band, and `redfish` from another machine. All values are as the BMC gives
them: what they mean for the node is for a check to say.
"""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct


class SensorKind(StrEnum):
    """What a sensor looks at."""

    FAN = "fan"
    TEMPERATURE = "temperature"
    POWER_SUPPLY = "power supply"
    BATTERY = "battery"
    VOLTAGE = "voltage"
    CURRENT = "current"
    POWER = "power"
    PROCESSOR = "processor"
    MEMORY = "memory"
    DRIVE = "drive"
    GPU = "gpu"
    LEAK = "leak detector"
    CONTROLLER = "storage controller"
    SUMMARY = "overall health"
    """What a BMC makes of several parts together, such as a whole chassis."""
    OTHER = "other"


class SensorHealth(StrEnum):
    """What the BMC says of a sensor, or of what it looks at."""

    OK = "ok"
    WARNING = "warning"
    """Beyond a threshold that is not critical, or expected to fail."""
    CRITICAL = "critical"
    """Beyond a critical threshold, or failed."""
    ABSENT = "absent"
    """An empty bay or slot: nothing is plugged in."""
    UNKNOWN = "unknown"
    """The sensor gives no reading, as many do while their part is off; or its states say
    nothing of health."""


class Defect(StrEnum):
    """What is wrong with a part, where the BMC says so and not only that something is."""

    NONE = ""
    FAILED = "failed"
    PREDICTED = "predicted"
    """It works, and expects its own failure."""
    INPUT_LOST = "input lost"
    INPUT_WRONG = "input out of range"
    MISMATCHED = "mismatched"
    """A power supply of another model than its siblings, or set up wrongly."""
    LOW = "low"
    """Below a low threshold, or a battery that runs down."""
    HIGH = "high"


INLET_NAME = re.compile(r"(?:\b|_)(?:inlet|ambient|intake)(?:\b|_)|^(?:inlet|amb)", re.IGNORECASE)
INSIDE_NAME = re.compile(
    r"dimm|cpu|gpu|psu?\d|nic|hdd|nvme|pci|mlb|^mb|outlet|(?:\b|_)vr|m2|ocp|^\d+-board",
    re.IGNORECASE,
)
"""Other places of an "inlet" or an "ambient" than the air of the room."""


def measures_room(name: str, *, is_inlet: bool) -> bool:
    """Return whether the temperature *name* is of the room; its name is surer than *is_inlet*."""
    return not INSIDE_NAME.search(name) and (is_inlet or bool(INLET_NAME.search(name)))


class Thresholds(Struct, frozen=True):
    """The thresholds of a sensor, in its own unit; None where it has none."""

    low_critical: float | None = None
    low_warning: float | None = None
    high_warning: float | None = None
    high_critical: float | None = None


class ChassisSensor(Struct, frozen=True, kw_only=True):
    """One sensor as it is now, or one part such as a power supply."""

    name: str
    """The name that the BMC uses, such as ``PSU2 Status``, and unique: the source makes it so."""
    part: str
    """The part that it belongs to, as a person calls it, such as ``PSU 2``. Several
    sensors may belong to one; with no better name it is that of the sensor."""
    kind: SensorKind
    health: SensorHealth
    defect: Defect = Defect.NONE
    said: str = ""
    value: float | None = None
    unit: str = ""
    """One of ``°C``, ``RPM``, ``%``, ``V``, ``A``, ``W``, or as the BMC writes it."""
    thresholds: Thresholds = Thresholds()
    is_ambient: bool = False
    """Whether it measures the air of the room at the inlet, and not the node."""
    is_present: bool = False
    """Whether the BMC gives it a state other than absent, such as standby, whatever its health."""

    @property
    def is_there(self) -> bool:
        """Whether the BMC shows that it is plugged in."""
        unclear = (SensorHealth.ABSENT, SensorHealth.UNKNOWN)
        return self.is_present or self.health not in unclear


class RedundancyState(StrEnum):
    """How much of a group may still fail."""

    FULL = "full"
    DEGRADED = "degraded"
    """Still redundant, with less than there was."""
    LOST = "lost"
    """The next failure stops the node, or there is too little already."""
    DISABLED = "disabled"
    """Set up without redundancy, or too few parts are plugged in for any."""
    UNKNOWN = "unknown"


class Redundancy(Struct, frozen=True, kw_only=True):
    """Whether a group of fans or power supplies can lose one."""

    name: str
    kind: SensorKind
    state: RedundancyState
    said: str = ""


class ChassisEvent(Struct, frozen=True, kw_only=True):
    """One entry of the event log, with the time of the BMC's clock."""

    id: str
    """The id of the entry: not in order, and used again once the log was cleared."""
    time: float | None
    """Seconds since 1970 by the clock of the BMC; None if that was not set."""
    sensor: str
    """The name of the sensor, or what the BMC calls the source."""
    part: str = ""
    """The part, as in `ChassisSensor.part`, where that is known."""
    subject: str = ""
    """The type of the sensor by IPMI 2.0, table 42-3, such as ``Power Supply``, or the vendor's
    class of the entry."""
    message_id: str = ""
    """The id of the message in a registry of Redfish, such as ``IDRAC.2.8.PSU0003``."""
    text: str = ""
    asserted: bool | None = True
    """False where this entry says that it is over; None if it does not say."""
    severity: SensorHealth = SensorHealth.UNKNOWN
    """What the BMC itself makes of it, where it says so."""


class EventLog(Struct, frozen=True, kw_only=True):
    """The event log of a BMC, the oldest entry first."""

    identity: str
    """The BMC or board that keeps it; another one has another log. Empty if unknown."""
    events: tuple[ChassisEvent, ...] = ()
    clock: float | None = None
    """What the clock of the BMC said when the log was read, in seconds since 1970."""
    capacity: int | None = None
    is_full: bool = False
    unread_reason: str = ""
    """Why there are no events, if they could not be read."""
    is_reported: bool = False
    """Whether somebody else reports these events, so that they are only passed over."""


class Bmc(Struct, frozen=True, kw_only=True):
    """The service processor itself."""

    name: str
    """What a person looks for, such as ``the BMC at /dev/ipmi0`` or its host name."""
    firmware: str = ""
    maker: str = ""
    product: str = ""


class Chassis(Struct, frozen=True, kw_only=True):
    """All that one BMC said, at one time."""

    bmc: Bmc
    sensors: tuple[ChassisSensor, ...] = ()
    redundancy: tuple[Redundancy, ...] = ()
    log: EventLog
    is_partial: bool = False
    """Whether parts are left out that could not be read now, as of a node that is switched
    off: what is not here may be there."""
