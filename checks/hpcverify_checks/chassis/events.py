"""
Read the event log of a BMC: the table ``events.csv``, and which entries are new.

Its columns besides those of all tables: *kind*, the parts whose sensor may show that it has
ended; *subject* and *pattern*, the type of the sensor and what happened in the words of IPMI 2.0
as in *source*; *ids*, vendors' message ids that have no words in them; *words*, vendors' own
words for the part and for what happened, of entries to which the BMC gives the *severity*. A
message id goes before all words, then the first row that fits counts.

The log is only ever read. An entry is new if it stands behind the last one that was read, by
its number and its words: the clock of a BMC may be wrong, or start at zero with its firmware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf, nan
from pathlib import Path

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry import fault_table
from hpcverify.telemetry.chassis import (
    Chassis,
    ChassisEvent,
    EventLog,
    RedundancyState,
    SensorHealth,
    SensorKind,
)
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.units import DAY_SECONDS
from hpcverify_checks.node.log_events import LogEvent, format_span, group_events, make_finding

INLET_CODE = "inlet_event"
"""The code of a temperature of the room, which is not a fault of the node."""
UNNAMED_CODE = "event_critical"
"""The code of an entry that the BMC calls critical and that no pattern fits."""
PARTS: Mapping[SensorKind, tuple[str, str]] = {
    SensorKind.POWER_SUPPLY: (
        "suppl|psu|power",
        r"(?:power ?supply|psu|\bps|supply)(?: unit| \(psu\))*[ _#-]*(\d+)|\bbay (\d+)",
    ),
    SensorKind.FAN: ("fan|cool", r"(\w*fan[ _#]*(?:module )?\w*\d\w*)"),
    SensorKind.TEMPERATURE: ("temp|thermal", ""),
    SensorKind.VOLTAGE: ("volt", ""),
    SensorKind.BATTERY: ("batter", ""),
    SensorKind.PROCESSOR: ("cpu|processor", r"((?:cpu|processor|proc)[ _#]*\d+)"),
    SensorKind.MEMORY: (
        "memory|dimm",
        r"(proc \d+ dimm \d+|(?:p\d-)?dimm[ _#-]*[a-z]*\d+\w*|(?:processor \d+, )?memory module \d+)",  # noqa: E501 - one pattern
    ),
    SensorKind.DRIVE: (
        "drive|disk|ssd",
        r"(box[ :]*\d+, ?bay[ :]*\d+|(?:drive|disk|ssd|nvme|bay)[ _#:]*\d[\w:-]*)",
    ),
    SensorKind.GPU: ("gpu", r"(gpu[ _#]*(?:sxm[ _])?\d+)"),
    SensorKind.LEAK: ("leak", r"(\w*leak\w*\d\w*)"),
}
"""Patterns of the words for the parts of a kind, and of the name of one of them in an entry."""
REPLACEABLE = (
    *(SensorKind.POWER_SUPPLY, SensorKind.FAN, SensorKind.DRIVE, SensorKind.BATTERY),
    *(SensorKind.GPU, SensorKind.LEAK),
)
"""Parts of which an entry gets a part of its own even if it does not name one."""
OVER = (
    r"operating (?:normally|properly)|restored|recovered|regained|returned to|within .*range"
    r"|(?:now|are|fully) redundant|\bok\b|no longer|cleared|corrected"
    r"|\blow(?:er)?\b.*going high|\b(?:high|upper)\b.*going low"
)
"""A pattern of the words of an entry that reports the end of a fault."""


class EventRow(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    kind: tuple[str, ...] = ()
    subject: str = ""
    pattern: str = ""
    ids: str = ""
    words: str = ""
    severity: str = ""


ROWS = fault_table.index_rows(Path(__file__).with_name("events.csv"), EventRow)


class LogEntry(LogEvent[EventRow], frozen=True, kw_only=True):
    """One entry that reports a fault of a part, or the end of one."""

    part_id: str
    event: ChassisEvent

    @property
    def quotation(self) -> dict[str, str]:
        """The number and the words of the entry."""
        return {"entry": f"{self.event.id}: {self.text}"}


class LogMark(Struct, frozen=True):
    """Where the reading of a log ended."""

    identity: str
    last: ChassisEvent | None
    """None if it was empty."""
    was_full: bool = False


class LogPart(Struct, frozen=True):
    """The entries of a log since a mark, and those before it that were never reported."""

    new: tuple[ChassisEvent, ...]
    older: tuple[ChassisEvent, ...] = ()
    note: str = ""
    """Why the mark could not be used, if so."""


def select_new(log: EventLog, mark: LogMark | None) -> LogPart:
    """
    Select what was logged since *mark*.

    Without a mark, that is the last day by the clock of the BMC: what is older may have been
    mended since. If the entry of the mark is gone, the log was cleared or has gone round, and
    all that it holds came later; unless it is the log of another BMC, as after a board was
    replaced, which is read as for the first time.
    """
    events = log.events
    if mark is None:
        return _select_last_day(log, "")
    if mark.last is None and mark.identity == log.identity:
        return LogPart(events)
    place = _find_last(events, mark.last) if mark.last else None
    if place is not None:
        return LogPart(events[place + 1 :])
    if log.identity and log.identity == mark.identity:
        # What is dated a day and more before the mark was there, and misread.
        then = (mark.last.time if mark.last else None) or -inf
        old = [e.time is not None and e.time < then - DAY_SECONDS for e in events]
        new, older = (
            tuple(e for e, is_old in zip(events, old, strict=True) if is_old is wanted)
            for wanted in (False, True)
        )
        return LogPart(new, older, "the log was cleared, or has gone round, since the last run")
    return _select_last_day(log, "this is the log of another BMC than in the last run")


def _find_last(events: Sequence[ChassisEvent], last: ChassisEvent) -> int | None:
    """Find the entry that was *last*, by number and time: another version words it anew."""
    places = range(len(events) - 1, -1, -1)
    if last.time is None:
        key = (last.id, None, last.subject, last.text)
        return next((i for i in places if _identify(events[i]) == key), None)
    candidates = [i for i in places if events[i].time == last.time]
    # A BMC that drops the oldest entry may number the others anew.
    numbered = (i for i in candidates if events[i].id == last.id)
    return next(numbered, candidates[0] if candidates else None)


def _identify(event: ChassisEvent) -> tuple[object, ...]:
    return event.id, event.time, event.subject, event.text


def _select_last_day(log: EventLog, note: str) -> LogPart:
    now = nan if log.clock is None else log.clock
    recent = [abs(now - (nan if e.time is None else e.time)) < DAY_SECONDS for e in log.events]
    # Behind an entry of the last day all are of the last day, even those without a time.
    first = recent.index(True) if True in recent else len(recent)
    return LogPart(log.events[first:], log.events[:first], note)


def make_mark(log: EventLog) -> LogMark:
    """Make the mark from which the next run reads on."""
    return LogMark(log.identity, log.events[-1] if log.events else None, log.is_full)


def find_row(event: ChassisEvent) -> EventRow | None:
    """Find the row that fits *event*."""
    code, everything = event.message_id.rpartition(".")[2], _join_words(event)
    for row in ROWS.values():
        if row.ids and re.fullmatch(row.ids, code):
            return row
    for row in ROWS.values():
        is_standard = re.fullmatch(row.subject, event.subject, re.IGNORECASE)
        if row.pattern and is_standard and re.search(row.pattern, event.text, re.IGNORECASE):
            return row
        is_fine = event.severity is SensorHealth.OK and event.asserted
        is_severe = row.severity in ("", event.severity.value) and not is_fine
        if row.words and is_severe and re.search(row.words, everything, re.IGNORECASE):
            return row
    return None


def _join_words(event: ChassisEvent) -> str:
    """Join all words of *event*; those of an id are apart: ``Power Supply Failed``."""
    code = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", event.message_id)
    return f"{event.subject} {code} {event.text}"  # a sensor may be called "PSU 1 Failure"


def report_events(events: Sequence[ChassisEvent], chassis: Chassis) -> Iterator[hv.Finding]:
    """Report the new *events* by part and code; *chassis* says which faults still stand."""
    groups = group_events(_read_entries(events, chassis), lambda entry: entry.part_id)
    states = _list_states(chassis)
    for (part_id, _), group in groups.items():
        begun = [entry for entry in group if entry.event.asserted is not False]
        if begun:
            yield _report_group(part_id, begun, stands=_is_unresolved(group, states))


def _read_entries(events: Sequence[ChassisEvent], chassis: Chassis) -> Iterator[LogEntry]:
    inlets = {sensor.name for sensor in chassis.sensors if sensor.is_ambient}
    for event in events:
        row = find_row(event)
        if row and row.verdict is hv.Verdict.FAIL and event.sensor in inlets:
            row = ROWS[INLET_CODE]
        elif row is None and event.asserted is False:
            yield from (_make_entry(event, ended) for ended in _list_ended(event))
        elif row is None and event.severity is SensorHealth.CRITICAL:
            row = ROWS[UNNAMED_CODE]
        if row:
            yield _make_entry(event, row)


def _list_ended(event: ChassisEvent) -> list[EventRow]:
    """List the rows of the faults whose end *event* reports in words of its own."""
    text = _join_words(event)
    if not re.search(OVER, text, re.IGNORECASE):
        return []
    kinds = {
        kind.value for kind, (word, _) in PARTS.items() if re.search(word, text, re.IGNORECASE)
    }
    return [row for row in ROWS.values() if row.lasting and not kinds.isdisjoint(row.kind)]


def _make_entry(event: ChassisEvent, row: EventRow) -> LogEntry:
    part_id = event.part or _name_part(event, row)
    return LogEntry(row=row, part_id=part_id, event=event, text=quote(event), time=event.time)


def _name_part(event: ChassisEvent, row: EventRow) -> str:
    """
    Name the part of an *event* that no sensor logged, by the words of the event.

    It is a part of its own: a name that a sensor has too may mean another part.
    """
    text = event.text.replace(event.message_id, "")  # PSU0003 is not a supply
    for kind in row.kind:
        pattern = PARTS.get(SensorKind(kind), ("", ""))[1]
        found = re.search(pattern, text, re.IGNORECASE) if pattern else None
        if found and (number := next((group for group in found.groups() if group), "")):
            return f"PSU {number}" if kind == SensorKind.POWER_SUPPLY else number
    if len(row.kind) == 1 and SensorKind(row.kind[0]) in REPLACEABLE:
        return event.sensor or event.subject or row.kind[0]
    return "node"


def _list_states(chassis: Chassis) -> dict[str, tuple[str, bool]]:
    """List the kind of each sensor and group that can be read, and whether it is healthy."""
    known = (s for s in chassis.sensors if s.health is not SensorHealth.UNKNOWN)
    groups = (g for g in chassis.redundancy if g.state is not RedundancyState.UNKNOWN)
    healthy = (SensorHealth.OK, SensorHealth.ABSENT)
    return {
        **{s.name: (s.kind.value, s.health in healthy) for s in known},
        **{g.name: (g.kind.value, g.state is RedundancyState.FULL) for g in groups},
    }


def _is_unresolved(
    group: Sequence[LogEntry], states: Mapping[str, tuple[str, bool]]
) -> bool | None:
    """
    Return whether a fault of *group* still stands; None if its sensors report it now.

    It is over if the log takes it back, or if a sensor of its own kind is healthy.
    """
    begun: dict[tuple[str, str], ChassisEvent] = {}
    for event in (entry.event for entry in group):
        key = (event.sensor, event.text.partition(";")[0])
        if event.asserted is not False:
            begun[key] = event
        elif key in begun:
            del begun[key]
        elif not event.sensor:  # vendors report an end in other words
            begun.clear()
    own = [states.get(event.sensor, ("", False)) for event in begun.values()]
    if any(kind not in group[0].row.kind for kind, _ in own):
        return True
    return False if all(is_healthy for _, is_healthy in own) else None


def _report_group(part_id: str, group: Sequence[LogEntry], *, stands: bool | None) -> hv.Finding:
    row = group[0].row
    suffix = row.choose_suffix(len(group), ended=row.lasting and not stands)
    is_well = suffix == fault_table.OVER_SUFFIX and stands is False
    entries = "1 entry" if len(group) == 1 else f"{len(group)} entries"
    count = f"{', and is well again' if is_well else ''} ({entries}, {format_span(group)})"
    return make_finding(part_id, group, suffix, count, fix=not is_well)


def quote(event: ChassisEvent) -> str:
    """Write *event*: the sensor with its type, as far as the BMC names them, and what happened."""
    is_named = event.subject.casefold() in event.sensor.casefold()
    words = (event.sensor,) if is_named else (event.subject, event.sensor)
    named = " ".join(word for word in words if word)
    return f"{named}: {event.text}" if named else event.text
