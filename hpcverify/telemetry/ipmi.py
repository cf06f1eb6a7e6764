"""
What the BMC says of its chassis, asked in band with ipmitool.

The sensors come from ``ipmitool -v sdr list all``: one reading gives states, values and
thresholds. The log comes from ``ipmitool -c sel list``, which asks for no sensor again; its
times are read as UTC and compared with the BMC's own clock only. The verbose form of the log
is no use: ipmitool 1.8.19 prints the date twice there and no time.

A BMC may be slow (seconds on a KCS interface without interrupts) or answer nothing for ever.
So the first request is the smallest, with a short deadline of its own: it tells a BMC that
hangs from one that has much to say.
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
)

DEVICES = ("dev/ipmi0", "dev/ipmi/0", "dev/ipmidev/0")
"""Where ipmitool looks, in this order."""
HELLO_SECONDS = 15.0
"""How long the first request may take: ipmitool itself waits that long for the driver."""
PACKAGE = "ipmitool"
BOARD_SERIAL = "sys/class/dmi/id/board_serial"
NO_IDENTITY = re.compile(r"[0fF\W]*|.*unknown.*|to be filled.*|default.*", re.IGNORECASE)
"""What firmware gives for a GUID or a serial number that nobody set."""

KINDS = {
    "Temperature": SensorKind.TEMPERATURE,
    "Voltage": SensorKind.VOLTAGE,
    "Current": SensorKind.CURRENT,
    "Fan": SensorKind.FAN,
    "Cooling Device": SensorKind.FAN,
    "Processor": SensorKind.PROCESSOR,
    "Power Supply": SensorKind.POWER_SUPPLY,
    "Memory": SensorKind.MEMORY,
    "Drive Slot / Bay": SensorKind.DRIVE,
    "Drive Slot": SensorKind.DRIVE,
    "Battery": SensorKind.BATTERY,
}
"""By the type of the sensor as ipmitool names it (IPMI 2.0, table 42-3)."""
GROUP_KINDS = KINDS | {"Power Unit": SensorKind.POWER_SUPPLY}
"""What a sensor of redundancy speaks of."""
UNIT_KINDS = {
    "RPM": SensorKind.FAN,
    "W": SensorKind.POWER,
    "A": SensorKind.CURRENT,
    "V": SensorKind.VOLTAGE,
    "°C": SensorKind.TEMPERATURE,
}
"""What a value says more surely than the type: some power supplies give watts as a "Power
Supply", and a battery its volts."""
UNITS = {
    "degrees C": "°C",
    "RPM": "RPM",
    "percent": "%",
    "Volts": "V",
    "Amps": "A",
    "Watts": "W",
    "unspecified": "",
}
POWER_SUPPLY_ENTITY, BATTERY_ENTITY = 10, 40
"""IPMI 2.0, table 43-13."""
INLET_ENTITIES = (39, 55, 64)
"""External environment, and air inlet by its old and new number."""
SUPPLY_NAME = re.compile(r"(?:\b|_)(?:PSU?|PWS|Power Supply)[ _-]?(\d+)(?!\d*V)", re.IGNORECASE)
INLET_NAME = re.compile(r"(?:\b|_)(?:inlet|ambient|intake)(?:\b|_)|^(?:inlet|amb)", re.IGNORECASE)
INSIDE_NAME = re.compile(r"dimm|cpu|gpu|psu?\d|nic|hdd|nvme|pci|mlb|^mb|outlet", re.IGNORECASE)
"""What else an "inlet" or an "ambient" may belong to, which is no air of the room."""
BATTERY_NAME = re.compile(r"bat(?:t|$|_|\d)|cmos|vbat|3v battery", re.IGNORECASE)

LEVELS = {
    "Non-Critical": SensorHealth.WARNING,
    "Critical": SensorHealth.CRITICAL,
    "Non-Recoverable": SensorHealth.CRITICAL,
}
"""By what follows "Lower" or "Upper" in the status of a sensor with thresholds."""
DEFECTS: tuple[tuple[str, SensorHealth, Defect], ...] = (
    # A supply whose cable is out says both: the feed comes first.
    (r"AC lost", SensorHealth.CRITICAL, Defect.INPUT_LOST),
    ("Failure detected", SensorHealth.CRITICAL, Defect.FAILED),
    (r"^Failed$", SensorHealth.CRITICAL, Defect.FAILED),
    ("Drive Fault", SensorHealth.CRITICAL, Defect.FAILED),
    ("In Failed Array", SensorHealth.CRITICAL, Defect.NONE),
    ("Transition to Critical", SensorHealth.CRITICAL, Defect.NONE),
    ("Transition to Non-recoverable", SensorHealth.CRITICAL, Defect.NONE),
    ("Predictive Failure Deasserted", SensorHealth.OK, Defect.NONE),
    ("Predictive failure", SensorHealth.WARNING, Defect.PREDICTED),
    ("out-of-range", SensorHealth.WARNING, Defect.INPUT_WRONG),
    ("Config Error", SensorHealth.WARNING, Defect.MISMATCHED),
    (r"^Low$", SensorHealth.WARNING, Defect.LOW),
    ("In Critical Array", SensorHealth.WARNING, Defect.NONE),
    ("Transition to Non-critical", SensorHealth.WARNING, Defect.NONE),
    ("Transition to Degraded", SensorHealth.WARNING, Defect.NONE),
    ("Install Error", SensorHealth.WARNING, Defect.NONE),
)
"""What a state says, by a pattern, the worst first, for the kinds in `STATEFUL`. "State
Asserted" is left out: its sense is the vendor's (a Cisco supply asserts ``AC_OK``)."""
STATEFUL = frozenset(
    {SensorKind.FAN, SensorKind.POWER_SUPPLY, SensorKind.BATTERY, SensorKind.DRIVE}
)
PRESENT = "Presence detected|Device Present|Drive Present"
ABSENT = "Device Absent|Device Removed|Not Installed"
UNREADABLE = ("No Reading", "Disabled", "Not Readable", "Not Reading")
REDUNDANCY = (
    ("Fully Redundant", RedundancyState.FULL),
    ("Redundancy Lost", RedundancyState.LOST),
    ("Non-Redundant", RedundancyState.LOST),
    ("Redundancy Degraded", RedundancyState.DEGRADED),
)

HEAD = re.compile(r"^Sensor ID +: (?P<name>.*) \(0x(?P<number>[0-9a-f]+)\)$", re.MULTILINE)
FIELD = re.compile(r"^ *([\w -]+(?: \(\w+\))?) *: ?(.*)$")
READING = re.compile(r"^(-?\d+(?:\.\d+)?)(?: \(\+/- [^)]*\))? (\D.*)$")
DIRECTION = re.compile(r"^(?P<text>.*),(?P<way>Asserted|Deasserted)(?:,(?P<more>.*))?$")
SOURCE = re.compile(r"^(?P<subject>.*?) #0x(?P<number>[0-9a-f]+)$")
PRE_INIT = "Pre-Init"
PANIC = (",Linux kernel panic: ", ",OS Critical Stop,Run-time critical stop: ")
"""What ipmitool makes of a record that Linux wrote, and what the standard calls that."""
STANDARD_COLUMNS = 4
"""The columns of a record before its description: id, date, time, source."""


def find_device(root: Path) -> Path | None:
    """Find the device by which a BMC is asked; None if the kernel has none."""
    return next((root / name for name in DEVICES if (root / name).exists()), None)


def read_chassis(device: Path, root: Path, tool: ToolRunner, patience: float) -> Chassis:
    """
    Ask the BMC behind *device* for all that it knows, within *patience* seconds.

    Raises:
        Unable: ipmitool is not installed (MISSING), the BMC does not answer (HUNG), takes
            longer than *patience* (TIMEOUT), or does not list its sensors (UNMEASURED).

    """
    name = f"the BMC at {device}"
    deadline = time.monotonic() + patience
    about = _greet(name, tool, min(patience, HELLO_SECONDS))
    ask = _Asker(name, tool, deadline, patience)
    guid = _parse_fields(ask("mc", "guid").stdout.decode(errors="replace")).get("System GUID", "")
    serial = sysfs.read_text(root / BOARD_SERIAL) or ""
    identity = " ".join(text for text in (guid, serial) if not NO_IDENTITY.fullmatch(text))
    log = _read_log(ask, identity)
    listed = ask("-v", "sdr", "list", "all")
    sensors, redundancy = parse_sensors(listed.stdout.decode("latin-1"))
    if not sensors and listed.returncode:
        reason = f"{name} does not list its sensors ({_quote(listed)}): see ipmitool sdr list"
        raise Unable(reason, Cause.UNMEASURED, Remedy.INSPECT)
    return Chassis(
        bmc=Bmc(
            name=name,
            firmware=about.get("Firmware Revision", ""),
            maker=about.get("Manufacturer Name", ""),
            product=about.get("Product Name", ""),
        ),
        sensors=tuple(sensor for sensor, _ in sensors),
        redundancy=redundancy,
        log=replace(log, events=name_sources(log.events, sensors)),
    )


class _Asker:
    """Runs ipmitool in a fixed language and time zone, until a deadline."""

    def __init__(self, name: str, tool: ToolRunner, deadline: float, patience: float) -> None:
        self.name, self.tool, self.deadline, self.patience = name, tool, deadline, patience

    def __call__(self, *words: str) -> CompletedTool:
        left = max(1.0, self.deadline - time.monotonic())
        try:
            return _run(self.tool, words, left)
        except Unable as exc:
            if exc.cause is not Cause.TIMEOUT:
                raise
            reason = (
                f"{self.name} answers, but not all that was asked within {self.patience:g} s "
                f"(ipmitool {' '.join(words)}): see how long that takes by hand, and set "
                "params.chassis.patience"
            )
            raise Unable(reason, Cause.TIMEOUT) from exc


def _run(tool: ToolRunner, words: Sequence[str], seconds: float) -> CompletedTool:
    env = os.environ | {"LC_ALL": "C", "TZ": "UTC"}
    return tool(["ipmitool", *words], timeout=seconds, env=env, package=PACKAGE)


def _greet(name: str, tool: ToolRunner, seconds: float) -> dict[str, str]:
    """
    Ask for the least there is.

    Raises:
        Unable: as in `read_chassis`.

    """
    fix = "see dmesg for ipmi; restart it by its network (ipmitool mc reset cold), or pull power"
    try:
        done = _run(tool, ("mc", "info"), seconds)
    except Unable as exc:
        if exc.cause is not Cause.TIMEOUT:
            raise
        reason = f"{name} has not answered within {seconds:g} s: {fix}"
        raise Unable(reason, Cause.HUNG, Remedy.INSPECT) from exc
    about = _parse_fields(done.stdout.decode(errors="replace"))
    if "Firmware Revision" not in about:
        reason = f"{name} does not answer ({_quote(done)}): {fix}"
        raise Unable(reason, Cause.HUNG, Remedy.INSPECT)
    return about


def _parse_fields(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _read_log(ask: _Asker, identity: str) -> EventLog:
    done = ask("sel", "info")
    about = _parse_fields(done.stdout.decode(errors="replace"))
    if "Entries" not in about:
        return EventLog(identity=identity, unread_reason=_quote(done))
    entries, free = (_parse_count(about.get(key, "")) for key in ("Entries", "Free Space"))
    listed = ask("-c", "sel", "list").stdout.decode("latin-1") if entries else ""
    count = len(listed.splitlines())
    if count < (entries or 0):  # an entry that is left out would look like a cleared log
        return EventLog(identity=identity, unread_reason=f"{count} of {entries} entries came")
    return EventLog(
        identity=identity,
        events=tuple(parse_events(listed)),
        clock=parse_moment(ask("sel", "time", "get").stdout.decode(errors="replace").strip()),
        is_full=free == 0 or about.get("Overflow") == "true",
    )


def _quote(done: CompletedTool) -> str:
    """Quote the last line that ipmitool complained with."""
    message = done.stderr.decode(errors="replace").strip()
    return message.rpartition("\n")[2] or "ipmitool says nothing"


def _parse_count(text: str) -> int | None:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else None


def parse_moment(text: str) -> float | None:
    """Parse a date and time in UTC; None for a clock that counts from the start of the BMC."""
    match = re.match(r"(\d\d)/(\d\d)/(\d{2,4}) (\d\d):(\d\d):(\d\d)\b", text)
    if not match:
        return None
    month, day, year, *hms = map(int, match.groups())
    full_year = year + 2000 if year < 100 else year  # noqa: PLR2004 - two digits, since 1.8.19
    try:
        return float(calendar.timegm((full_year, month, day, *hms)))
    except ValueError:
        return None


def parse_events(listed: str) -> Iterator[ChassisEvent]:
    """Parse what ``ipmitool -c sel list`` printed, the oldest entry first."""
    for line in listed.replace(*PANIC).splitlines():
        columns = line.split(",", STANDARD_COLUMNS)
        if len(columns) <= STANDARD_COLUMNS or not re.fullmatch(r" *[0-9a-f]+", columns[0]):
            continue
        number, date, clock, source, rest = columns
        moment = None if PRE_INIT in date else parse_moment(f"{date} {clock}")
        match = DIRECTION.match(rest)
        known = SOURCE.match(source)
        more = match["more"] if match else None
        text = (match["text"] if match else rest).strip().removesuffix("()").strip()
        yield ChassisEvent(
            id=number.strip(),
            time=moment,
            sensor=source,
            subject=known["subject"] if known else source,
            text=f"{text}, {more}" if more else text,
            asserted=match["way"] == "Asserted" if match else None,
        )


def name_sources(
    events: Sequence[ChassisEvent], sensors: Sequence[tuple[ChassisSensor, str]]
) -> tuple[ChassisEvent, ...]:
    """Name the sensor and the part of each of *events* that one of *sensors* logged."""
    known = {source: sensor for sensor, source in sensors}
    return tuple(
        replace(event, sensor=sensor.name, part=sensor.part)
        if (sensor := known.get(event.sensor))
        else event
        for event in events
    )


def parse_sensors(
    printed: str,
) -> tuple[list[tuple[ChassisSensor, str]], tuple[Redundancy, ...]]:
    """
    Parse what ``ipmitool -v sdr list all`` printed.

    Each sensor comes with what the event log calls it, such as ``Power Supply #0x52``.
    """
    records = list(_split_records(printed))
    names = Counter(record.name for record in records)
    sensors: list[tuple[ChassisSensor, str]] = []
    groups: list[Redundancy] = []
    for record in records:
        unique = record if names[record.name] == 1 else _rename(record)
        state = next((s for word, s in REDUNDANCY if _says(unique.states, word)), None)
        kind = GROUP_KINDS.get(unique.type, SensorKind.OTHER)
        if state and kind in (SensorKind.FAN, SensorKind.POWER_SUPPLY):
            states = ", ".join(unique.states)
            groups.append(Redundancy(name=unique.name, kind=kind, state=state, said=states))
        sensors.append((_make_sensor(unique), f"{unique.type} #0x{unique.number}"))
    return sensors, tuple(groups)


class SensorRecord(Struct, frozen=True, kw_only=True):
    """One record of the SDR with its reading, in the words of ipmitool."""

    name: str
    number: str
    type: str
    entity: tuple[int, int]
    reading: str
    status: str
    states: tuple[str, ...]
    supported: tuple[str, ...]
    """The states that it can show, as far as they may be logged."""
    fields: Mapping[str, str]


def _rename(record: SensorRecord) -> SensorRecord:
    """Tell it from its namesakes: Dell calls all its supplies ``Status``."""
    number, instance = record.entity
    return replace(record, name=f"{record.name} (entity {number}.{instance})")


def _split_records(printed: str) -> Iterator[SensorRecord]:
    heads = list(HEAD.finditer(printed))
    ends = [head.start() for head in heads[1:]] + [len(printed)]
    for head, end in zip(heads, ends, strict=True):
        fields, states, supported = _parse_record(printed[head.end() : end])
        kind = next((v for k, v in fields.items() if k.startswith("Sensor Type")), "")
        if "Sensor Reading" not in fields or not kind:
            continue  # one that only logs events has nothing to read
        entity = re.match(r"(\d+)\.(\d+)", fields.get("Entity ID", ""))
        yield SensorRecord(
            name=head["name"].strip(),
            number=head["number"].rjust(2, "0"),
            type=kind.partition(" (0x")[0].strip(),
            entity=(int(entity[1]), int(entity[2])) if entity else (0, 0),
            reading=fields["Sensor Reading"],
            status=fields.get("Status", ""),
            states=states,
            supported=supported,
            fields=fields,
        )


def _parse_record(text: str) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Give the fields of a record, the states it shows, and those it can show."""
    fields: dict[str, str] = {}
    states: list[str] = []
    supported: list[str] = []
    last = ""
    for line in text.splitlines():
        bracketed = re.fullmatch(r" +\[(.*)\]", line)
        match = FIELD.match(line)
        if bracketed:
            (states if last == "States Asserted" else supported).append(bracketed[1])
        elif match:
            last = match[1].strip()
            fields[last] = match[2].strip()
    return fields, tuple(states), tuple(supported)


def _says(states: Sequence[str], pattern: str) -> bool:
    return any(re.search(pattern, state, re.IGNORECASE) for state in states)


def _make_sensor(record: SensorRecord) -> ChassisSensor:
    value, unit = _parse_reading(record.reading)
    kind = _find_kind(record, unit if value is not None else "")
    health, defect = _find_health(record, kind)
    return ChassisSensor(
        name=record.name,
        part=_name_part(record, kind),
        kind=kind,
        health=health,
        defect=defect,
        said=", ".join(record.states) or record.status or record.reading,
        value=value,
        unit=unit,
        thresholds=Thresholds(
            low_critical=_read_threshold(record, "Lower critical", "Lower non-recoverable"),
            low_warning=_read_threshold(record, "Lower non-critical"),
            high_warning=_read_threshold(record, "Upper non-critical"),
            high_critical=_read_threshold(record, "Upper critical", "Upper non-recoverable"),
        ),
        is_ambient=kind is SensorKind.TEMPERATURE and _is_inlet(record),
    )


def _parse_reading(reading: str) -> tuple[float | None, str]:
    match = READING.match(reading)
    if not match:  # states as hexadecimal digits
        return None, ""
    return float(match[1]), UNITS.get(match[2].strip(), match[2].strip())


def _find_kind(record: SensorRecord, unit: str) -> SensorKind:
    kind = KINDS.get(record.type, SensorKind.OTHER)
    if _says((*record.states, *record.supported), "Redundan"):
        return SensorKind.OTHER  # it speaks of a group
    is_battery = record.entity[0] == BATTERY_ENTITY or BATTERY_NAME.search(record.name)
    if kind is SensorKind.VOLTAGE and is_battery:
        return SensorKind.BATTERY
    if kind in (SensorKind.POWER_SUPPLY, SensorKind.FAN, SensorKind.OTHER):
        return UNIT_KINDS.get(unit, kind)
    return kind


def _find_health(record: SensorRecord, kind: SensorKind) -> tuple[SensorHealth, Defect]:
    if record.reading in UNREADABLE:
        return SensorHealth.UNKNOWN, Defect.NONE
    if record.status:
        side, _, level = record.status.partition(" ")
        low_or_high = Defect.LOW if side == "Lower" else Defect.HIGH
        return (LEVELS[level], low_or_high) if level in LEVELS else (SensorHealth.OK, Defect.NONE)
    if kind not in STATEFUL:
        return SensorHealth.UNKNOWN, Defect.NONE
    for pattern, health, defect in DEFECTS:
        if _says(record.states, pattern):
            return health, defect
    return SensorHealth.ABSENT if _is_absent(record) else SensorHealth.OK, Defect.NONE


def _is_absent(record: SensorRecord) -> bool:
    """Say whether nothing is plugged in, as far as the sensor can tell."""
    if _says(record.states, PRESENT):
        return False
    tells = _says(record.supported, PRESENT) and not record.states
    return tells or _says(record.states, ABSENT)


def _read_threshold(record: SensorRecord, *names: str) -> float | None:
    """Read the first of the thresholds *names* that the sensor has."""
    known = (record.fields[name] for name in names if name in record.fields)
    return next((float(text) for text in known if re.fullmatch(r"-?\d+(?:\.\d+)?", text)), None)


def _name_part(record: SensorRecord, kind: SensorKind) -> str:
    entity, instance = record.entity
    match = SUPPLY_NAME.search(record.name)
    if match and (entity == POWER_SUPPLY_ENTITY or kind is SensorKind.POWER_SUPPLY):
        return f"PSU {int(match[1])}"
    return f"PSU {instance}" if entity == POWER_SUPPLY_ENTITY else record.name


def _is_inlet(record: SensorRecord) -> bool:
    if INSIDE_NAME.search(record.name):
        return False
    return record.entity[0] in INLET_ENTITIES or bool(INLET_NAME.search(record.name))
