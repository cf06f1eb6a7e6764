"""
Reads the sensors and the event log of a BMC in band, with FreeIPMI.

``ipmi-sensors -vv --output-sensor-state`` prints one block per sensor: its entity, thresholds,
reading, the states it can log and those it shows, and what FreeIPMI calls that (Nominal, Warning
or Critical). ``ipmi-sel -vv --output-event-state`` prints one line per entry of the log. Times
are read as UTC and compared only with the BMC's own clock. FreeIPMI keeps a copy of the sensor
records (SDR); it goes into a private folder that is removed again.

A BMC may be slow (seconds on a KCS interface without interrupts) or answer nothing for ever.
So the first request is the smallest, with a short deadline of its own: it separates a BMC that
hangs from one that has many sensors.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify.processes import CompletedTool, ToolRunner
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.chassis import (
    Bmc,
    Chassis,
    ChassisEvent,
    ChassisSensor,
    Defect,
    EventLog,
    Redundancy,
    RedundancyState,
    SensorHealth,
    SensorKind,
    Thresholds,
    measures_room,
)

DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
"""The names of the device of Linux's driver, in this order."""
HELLO_SECONDS = 15.0
"""How long the first request may take."""
PACKAGE = "freeipmi-tools"
FIX = "Fix: bmc-device --cold-reset, or disconnect power; see dmesg for ipmi"
BOARD_SERIAL = "sys/class/dmi/id/board_serial"
NO_IDENTITY = re.compile(r"[0fF\W]*|.*unknown.*|to be filled.*|default.*", re.IGNORECASE)
"""What firmware gives for a GUID or a serial number that was never set."""

KINDS = {
    "Temperature": SensorKind.TEMPERATURE,
    "Voltage": SensorKind.VOLTAGE,
    "Current": SensorKind.CURRENT,
    "Fan": SensorKind.FAN,
    "Cooling Device": SensorKind.FAN,
    "Processor": SensorKind.PROCESSOR,
    "Power Supply": SensorKind.POWER_SUPPLY,
    "Memory": SensorKind.MEMORY,
    "Drive Slot": SensorKind.DRIVE,
    "Battery": SensorKind.BATTERY,
}
"""By the type of the sensor as FreeIPMI names it (IPMI 2.0, table 42-3)."""
GROUP_KINDS = KINDS | {"Power Unit": SensorKind.POWER_SUPPLY}
"""The parts that a sensor of redundancy is about."""
UNIT_KINDS = {
    "RPM": SensorKind.FAN,
    "W": SensorKind.POWER,
    "A": SensorKind.CURRENT,
    "V": SensorKind.VOLTAGE,
    "°C": SensorKind.TEMPERATURE,
}
"""The unit is surer than the type: some power supplies give watts as a "Power Supply", and a
battery its volts. A supply of HPE has watts beside its states: it is the supply."""
UNSURE_KINDS = (SensorKind.POWER_SUPPLY, SensorKind.FAN, SensorKind.OTHER)
POWER_SUPPLY_ENTITY, BATTERY_ENTITY = 10, 40
"""IPMI 2.0, table 43-13."""
INLET_ENTITIES = (39, 55, 64)
"""External environment, and air inlet by its old and new number."""
SUPPLY_NAME = re.compile(r"(?:\b|_)(?:PSU?|PWS|Power Supply)[ _-]?(\d+)(?!\d*V)", re.IGNORECASE)
BATTERY_NAME = re.compile(r"bat(?:t|$|_|\d)|cmos|vbat|3v battery", re.IGNORECASE)
LEAK_NAME = re.compile(r"(?:\b|_)leak", re.IGNORECASE)
"""Of a leak detector, which has no type in the standard: vendors use "Cooling Device" or OEM."""

HEALTH = {
    "Nominal": SensorHealth.OK,
    "Warning": SensorHealth.WARNING,
    "Critical": SensorHealth.CRITICAL,
}
"""By the state as FreeIPMI interprets it (freeipmi_interpret_sensor.conf(5))."""
BAD_HEALTH = (SensorHealth.WARNING, SensorHealth.CRITICAL)
DEFECTS: tuple[tuple[str, SensorHealth, Defect], ...] = (
    # A supply whose cable is out shows both states: the feed comes first.
    ("input lost", SensorHealth.CRITICAL, Defect.INPUT_LOST),
    ("Failure detected|battery failed|Drive Fault", SensorHealth.CRITICAL, Defect.FAILED),
    ("transition to (?:Critical|Non-recoverable)", SensorHealth.CRITICAL, Defect.NONE),
    ("Predictive Failure deasserted", SensorHealth.OK, Defect.NONE),
    ("^Predictive Failure", SensorHealth.WARNING, Defect.PREDICTED),
    ("out-of-range, but present", SensorHealth.WARNING, Defect.INPUT_WRONG),
    ("Configuration error", SensorHealth.WARNING, Defect.MISMATCHED),
    ("battery low", SensorHealth.WARNING, Defect.LOW),
    ("In Critical Array|Rebuild/Remap Aborted", SensorHealth.WARNING, Defect.NONE),
    ("transition to (?:Non-critical|Degraded)|Install Error", SensorHealth.WARNING, Defect.NONE),
    (r"in standby|^State (?:As|Deas)serted", SensorHealth.OK, Defect.NONE),
)
"""What a state means, by a pattern, the worst first, for the kinds in `STATEFUL`, where FreeIPMI
knows only that a state is critical, or calls one critical that is not: an expected failure, a
supply in standby, or "State Asserted", whose sense is the vendor's (a Cisco supply asserts
``AC_OK``). All other states mean what FreeIPMI calls them."""
LEAKS = (
    (
        "transition to (?:Critical|Non-recoverable)|Failure detected",
        *(SensorHealth.CRITICAL, Defect.NONE),
    ),
    (
        "State Asserted|Limit Exceeded|Non-critical|Degraded|Predictive Failure$",
        *(SensorHealth.WARNING, Defect.NONE),
    ),
)
"""The same of a leak detector. Its "State Asserted" is a leak for most vendors, but not all."""
STATEFUL = frozenset(
    {SensorKind.FAN, SensorKind.POWER_SUPPLY, SensorKind.BATTERY, SensorKind.DRIVE}
    | {SensorKind.LEAK}
)
PRESENT = "Presence|(?:Device|Entity) Present|Device Inserted"
ABSENT = "Device Removed|(?:Device|Entity) Absent|Not Installed"
UNREAD = ("N/A", "Unknown")
"""In place of the states of a sensor that cannot be read."""
REDUNDANCY = (
    ("Fully Redundant", RedundancyState.FULL),
    ("Redundancy Lost", RedundancyState.LOST),
    ("Non-redundant", RedundancyState.LOST),
    ("Redundancy Degraded", RedundancyState.DEGRADED),
)

EVENT = re.compile(
    r"(?P<id>\d+),(?P<when>[^,]*,[^,]*),(?P<name>.*),(?P<type>[^,]*),(?:Nominal|Warning|Critical|N/A),"
    r"(?P<way>(?:A|Dea)ssertion Event|N/A),(?P<text>.*)"
)
PANIC = re.compile(r"\(Record Type = F0h\) = 20h [0-9A-F]{2}h ((?:[0-9A-F]{2}h ?)+)")
"""A record that Linux wrote: its own address, a number, and the reason of the panic."""


def find_device(root: Path) -> Path | None:
    """Find the device by which a BMC is asked; None if the kernel has none."""
    return next((root / name for name in DEVICES if (root / name).exists()), None)


def read_chassis(device: Path, root: Path, tool: ToolRunner, patience: float) -> Chassis:
    """Ask the BMC behind *device* for its sensors and its log, within *patience* seconds."""
    with tempfile.TemporaryDirectory(prefix="hpcverify-sdr-") as cache:
        ask = _Asker(device, cache, tool, patience)
        done = ask("bmc-info", "--get-device-id", hello=min(patience, HELLO_SECONDS))
        about = _parse_fields(done)
        if "Firmware Revision" not in about:
            reason = f"{ask.name} does not respond ({_quote(done)}). {FIX}"
            raise Unable(reason, Cause.HUNG, Remedy.INSPECT)
        guid = ask("bmc-info", "--get-system-guid").stdout.decode(errors="replace").strip()
        serial = sysfs.read_text(root / BOARD_SERIAL) or ""
        identity = " ".join(text for text in (guid, serial) if not NO_IDENTITY.fullmatch(text))
        log = _read_log(ask, identity)  # before the sensors, which show what has ended
        listed = ask("ipmi-sensors", "-vv", "--output-sensor-state", *ask.cache_options)
    sensors, redundancy = parse_sensors(listed.stdout.decode("latin-1"))
    if not sensors and listed.returncode:
        reason = f"{ask.name} does not list its sensors ({_quote(listed)}). Fix: run ipmi-sensors"
        raise Unable(reason, Cause.UNMEASURED, Remedy.INSPECT)
    return Chassis(
        bmc=Bmc(
            name=ask.name,
            firmware=about.get("Firmware Revision", ""),
            maker=about.get("Manufacturer ID", "").partition(" (")[0],
            product=about.get("Product ID", ""),
        ),
        sensors=tuple(sensor for sensor, _ in sensors),
        redundancy=redundancy,
        log=replace(log, events=name_sources(log.events, sensors)),
    )


class _Asker:
    """Runs the tools of FreeIPMI in a fixed language and time zone, until a deadline."""

    def __init__(self, device: Path, cache: str, tool: ToolRunner, patience: float) -> None:
        # Without the driver's name FreeIPMI probes the ports of other interfaces.
        self.driver = ("--driver-type=OPENIPMI", f"--driver-device={device}")
        self.cache_options = (f"--sdr-cache-directory={cache}", "--quiet-cache")
        self.name, self.tool, self.patience = f"the BMC at {device}", tool, patience
        self.deadline = time.monotonic() + patience

    def __call__(self, program: str, *words: str, hello: float = 0.0) -> CompletedTool:
        """Run *program* until the deadline, or for *hello* seconds if it is the first request."""
        env = os.environ | {"LC_ALL": "C", "TZ": "UTC"}
        left = hello or max(1.0, self.deadline - time.monotonic())
        try:
            return self.tool(
                [program, *self.driver, *words], timeout=left, env=env, package=PACKAGE
            )
        except Unable as exc:
            if exc.cause is not Cause.TIMEOUT:
                raise
            if hello:
                reason = f"{self.name} did not respond within {hello:g} s. {FIX}"
                raise Unable(reason, Cause.HUNG, Remedy.INSPECT) from exc
            reason = (
                f"{self.name} did not complete {program} {words[0]} within {self.patience:g} s. "
                "Fix: "
                "measure how long this takes by hand, and set params.chassis.patience"
            )
            raise Unable(reason, Cause.TIMEOUT) from exc


def _parse_fields(done: CompletedTool) -> dict[str, str]:
    lines = done.stdout.decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _read_log(ask: _Asker, identity: str) -> EventLog:
    done = ask("ipmi-sel", "--info")
    about = _parse_fields(done)
    entries = _parse_count(about.get("Number of log entries", ""))
    free = _parse_count(about.get("Free space remaining", ""))
    if entries is None:
        return EventLog(identity=identity, unread_reason=_quote(done))
    form = ("--output-event-state", "--comma-separated-output", "--entity-sensor-names")
    listed = ask("ipmi-sel", "-vv", "--no-header-output", *form, *ask.cache_options)
    events = tuple(parse_events(listed.stdout.decode("latin-1")))
    if len(events) < entries:  # an entry that is left out would look like a cleared log
        return EventLog(
            identity=identity, unread_reason=f"only {len(events)} of {entries} entries were read"
        )
    clock = _parse_fields(ask("bmc-device", "--get-sel-time")).get("SEL Time", "")
    return EventLog(
        identity=identity,
        events=events,
        clock=parse_moment(clock),
        is_full=free == 0 or about.get("Events dropped due to lack of space") == "Yes",
    )


def _quote(done: CompletedTool) -> str:
    message = done.stderr.decode(errors="replace").strip()
    return message.rpartition("\n")[2] or "no error message"


def _parse_count(text: str) -> int | None:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def parse_moment(text: str) -> float | None:
    """Parse a date and time in UTC; None for a clock that counts from the start of the BMC."""
    for form in ("%b-%d-%Y,%H:%M:%S", "%m/%d/%Y - %H:%M:%S"):
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    return None


def parse_events(listed: str) -> Iterator[ChassisEvent]:
    """Parse the lines of ``ipmi-sel``, the oldest entry first."""
    for line in listed.splitlines():
        match = EVENT.fullmatch(line)
        if not match:
            continue
        name, kind, text = match["name"], match["type"], match["text"]
        panic = PANIC.search(text)
        if panic:
            words = bytes.fromhex(panic[1].replace("h", "")).split(b"\0")[0]
            name = kind = "OS Critical Stop"
            text = f"Run-time critical stop: {words.decode('latin-1')}"
        elif name.startswith("Sensor #"):  # one that has no record
            name = f"{kind} {name.partition(' ')[2].partition(' (')[0]}"
        what, *values = (part.strip() for part in text.split(" ; "))
        yield ChassisEvent(
            id=match["id"],
            time=parse_moment(match["when"]),
            sensor=name,
            subject=kind,
            text="; ".join((what.replace(" - ", " "), *values)),
            asserted=None if match["way"] == "N/A" else match["way"] == "Assertion Event",
        )


def name_sources(
    events: Sequence[ChassisEvent], sensors: Sequence[tuple[ChassisSensor, str]]
) -> tuple[ChassisEvent, ...]:
    """Set the sensor and the part of *events*, whose sensors FreeIPMI prefixes with the entity."""
    names = {
        event.sensor: [s for s, ending in sensors if f" {event.sensor}".endswith(f" {ending}")]
        or [s for s, ending in sensors if event.sensor.endswith(f" {ending.partition(' ')[2]}")]
        for event in events
    }
    return tuple(
        replace(
            event,
            sensor=found[0].name,
            part=found[0].part,
            # The standard has no type for it.
            subject="Leak Detector" if found[0].kind is SensorKind.LEAK else event.subject,
        )
        if len(found := names[event.sensor]) == 1
        else event
        for event in events
    )


class SensorRecord(Struct, frozen=True, kw_only=True):
    """One block that FreeIPMI printed: a record of the SDR with its reading."""

    name: str
    type: str
    entity: tuple[int, int]
    fields: dict[str, str]
    states: tuple[str, ...]
    supported: tuple[str, ...]
    """The states that it can show, as far as they may be logged."""

    @property
    def has_thresholds(self) -> bool:
        """Whether its health is about its value (IPMI 2.0, table 42-1), and not about states."""
        return self.fields.get("Event/Reading Type Code") == "1h"


def parse_sensors(
    printed: str,
) -> tuple[list[tuple[ChassisSensor, str]], tuple[Redundancy, ...]]:
    """Parse ``ipmi-sensors -vv --output-sensor-state``: sensors with their names in the log."""
    records = [r for block in re.split(r"\n\s*\n", printed) if (r := _parse_record(block))]
    names = Counter(record.name for record in records)
    sensors: list[tuple[ChassisSensor, str]] = []
    groups: list[Redundancy] = []
    for record in records:
        number, instance = record.entity
        # Dell calls all its supplies ``Status``.
        twin = f"{record.name} (entity {number}.{instance})"
        unique = record if names[record.name] == 1 else replace(record, name=twin)
        state = next((s for word, s in REDUNDANCY if _says(unique.states, word)), None)
        kind = GROUP_KINDS.get(unique.type, SensorKind.OTHER)
        if state and kind in (SensorKind.FAN, SensorKind.POWER_SUPPLY):
            states = ", ".join(unique.states)
            groups.append(Redundancy(name=unique.name, kind=kind, state=state, said=states))
        sensors.append((_make_sensor(unique), f"{instance} {record.name}"))
    return sensors, tuple(groups)


def _parse_record(block: str) -> SensorRecord | None:
    """Parse one block; None for a record of something else than a sensor that can be read."""
    pairs = [line.partition(": ")[::2] for line in block.splitlines()]
    fields = {name: value.strip() for name, value in pairs}
    if not {"ID String", "Sensor Type", "Sensor State"} <= fields.keys():
        return None
    numbers = (fields.get("Entity ID", ""), fields.get("Entity Instance", ""))
    entity, instance = (int(m[1]) if (m := re.search(r"(\d+)\)?$", n)) else 0 for n in numbers)
    states, supported = (
        tuple(value.strip(" '") for name, value in pairs if name == field)
        for field in ("Sensor Event", "Assertion Event Enabled")
    )
    return SensorRecord(
        name=fields["ID String"],
        type=fields["Sensor Type"].partition(" (")[0],
        entity=(entity, instance),
        fields=fields,
        states=tuple(state for state in states if state not in ("OK", *UNREAD)),
        supported=supported,
    )


def _says(states: Sequence[str], pattern: str) -> bool:
    return any(re.search(pattern, state, re.IGNORECASE) for state in states)


def _make_sensor(record: SensorRecord) -> ChassisSensor:
    value, unit = _read_value(record, "Sensor Reading")
    kind = _find_kind(record, unit)
    health, defect = _find_health(record, kind, value)
    if kind is SensorKind.FAN and health in BAD_HEALTH and not record.has_thresholds:
        value, unit = None, ""  # it is the fan that is unhealthy, not its speed
    part, match = record.name, SUPPLY_NAME.search(record.name)
    entity, instance = record.entity
    if match and (entity == POWER_SUPPLY_ENTITY or kind is SensorKind.POWER_SUPPLY):
        part = f"PSU {int(match[1])}"
    elif entity == POWER_SUPPLY_ENTITY:
        part = f"PSU {instance}"
    return ChassisSensor(
        name=record.name,
        part=part,
        kind=kind,
        health=health,
        defect=defect,
        said=", ".join(record.states) or record.fields["Sensor State"],
        value=value,
        unit=unit,
        thresholds=Thresholds(
            low_critical=_read_threshold(record, "Lower Critical", "Lower Non-Recoverable"),
            low_warning=_read_threshold(record, "Lower Non-Critical"),
            high_warning=_read_threshold(record, "Upper Non-Critical"),
            high_critical=_read_threshold(record, "Upper Critical", "Upper Non-Recoverable"),
        ),
        is_ambient=kind is SensorKind.TEMPERATURE
        and measures_room(record.name, is_inlet=record.entity[0] in INLET_ENTITIES),
    )


def _read_value(record: SensorRecord, name: str) -> tuple[float | None, str]:
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?) (\S+)", record.fields.get(name, ""), re.ASCII)
    if not match:
        return None, ""
    return float(match[1]), "°C" if match[2] == "C" else match[2]


def _read_threshold(record: SensorRecord, *names: str) -> float | None:
    values = (_read_value(record, f"{name} Threshold")[0] for name in names)
    return next((value for value in values if value is not None), None)


def _find_kind(record: SensorRecord, unit: str) -> SensorKind:
    kind = KINDS.get(record.type, SensorKind.OTHER)
    if _says((*record.states, *record.supported), "Redundan"):
        return SensorKind.OTHER  # it is about a group
    if LEAK_NAME.search(record.name) and not unit:
        return SensorKind.LEAK
    is_battery = record.entity[0] == BATTERY_ENTITY or BATTERY_NAME.search(record.name)
    if kind is SensorKind.VOLTAGE and is_battery:
        return SensorKind.BATTERY
    if record.has_thresholds and kind in UNSURE_KINDS:
        return UNIT_KINDS.get(unit, kind)
    return kind


def _find_health(
    record: SensorRecord, kind: SensorKind, value: float | None
) -> tuple[SensorHealth, Defect]:
    health = HEALTH.get(record.fields["Sensor State"], SensorHealth.UNKNOWN)
    crossed = re.findall(r"(Lower|Upper) (\S+) Threshold", " ".join(record.states))
    if crossed:  # FreeIPMI calls a sensor beyond a threshold that is not critical nominal
        critical = any(level != "Non-Critical" for _, level in crossed)
        side = Defect.LOW if crossed[0][0] == "Lower" else Defect.HIGH
        return SensorHealth.CRITICAL if critical else SensorHealth.WARNING, side
    if record.has_thresholds:
        return SensorHealth.UNKNOWN if value is None else health, Defect.NONE
    for pattern, meant, defect in LEAKS if kind is SensorKind.LEAK else DEFECTS:
        if kind in STATEFUL and _says(record.states, pattern):
            return meant, defect
    is_unread = record.fields.get("Sensor Event", "").strip("'") in UNREAD
    if kind not in STATEFUL or is_unread:
        return SensorHealth.UNKNOWN, Defect.NONE
    shows_presence = _says(record.supported, PRESENT) and not record.states
    if not _says(record.states, PRESENT) and (shows_presence or _says(record.states, ABSENT)):
        return SensorHealth.ABSENT, Defect.NONE
    return SensorHealth.OK if health is SensorHealth.UNKNOWN else health, Defect.NONE
