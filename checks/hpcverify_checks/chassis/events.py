"""
Read the event log of a BMC: the table ``events.csv``, and which entries are new.

Its columns besides those of all tables: *subject*, a pattern of the type of the sensor, and
*pattern* of what happened, by the words of IPMI 2.0 in *source*. The first row that fits speaks
for an entry; a row without a pattern is chosen here.

The log is only ever read. An entry is new if it stands behind the last one that was read, by
its number and its words: the clock of a BMC may be wrong, or start at zero with its firmware.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpcverify.check import Finding, Remedy, Verdict
from hpcverify.telemetry import fault_table
from hpcverify.telemetry.chassis import (
    Chassis,
    ChassisEvent,
    EventLog,
    RedundancyState,
    SensorHealth,
)
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.units import DAY_SECONDS
from hpcverify_checks.common.log_events import LogEvent, format_span, group_events, make_finding

INLET_CODE = "inlet_event"
"""The code of a temperature of the room, which is not a fault of the node."""
UNNAMED_CODE = "event_critical"
"""The code of an entry that the BMC calls critical and that no pattern fits."""


class EventRow(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    subject: str = ""
    pattern: str = ""


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
        return _select_after_clear(events, mark)
    return _select_last_day(log, "this is the log of another BMC than in the last run")


def _find_last(events: Sequence[ChassisEvent], last: ChassisEvent) -> int | None:
    """Find the entry that was *last*, by number and time: another ipmitool words it anew."""
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


def _select_after_clear(events: Sequence[ChassisEvent], mark: LogMark) -> LogPart:
    """Select all but what is dated a day and more before *mark*: it was there, and misread."""
    then = mark.last.time if mark.last else None
    old = [e.time is not None and then is not None and e.time < then - DAY_SECONDS for e in events]
    new = tuple(e for e, is_old in zip(events, old, strict=True) if not is_old)
    older = tuple(e for e, is_old in zip(events, old, strict=True) if is_old)
    return LogPart(new, older, "the log was cleared, or has gone round, since the last run")


def _select_last_day(log: EventLog, note: str) -> LogPart:
    recent = [_is_recent(event, log.clock) for event in log.events]
    # Behind an entry of the last day all are of the last day, even those without a time.
    first = recent.index(True) if True in recent else len(recent)
    return LogPart(log.events[first:], log.events[:first], note)


def _is_recent(event: ChassisEvent, clock: float | None) -> bool:
    if event.time is None or clock is None:
        return False
    return -DAY_SECONDS < clock - event.time < DAY_SECONDS


def make_mark(log: EventLog) -> LogMark:
    """Make the mark from which the next run reads on."""
    return LogMark(log.identity, log.events[-1] if log.events else None, log.is_full)


def find_row(event: ChassisEvent) -> EventRow | None:
    """Find the row whose pattern fits *event*."""
    for row in ROWS.values():
        if (
            row.pattern
            and re.fullmatch(row.subject, event.subject, re.IGNORECASE)
            and re.search(row.pattern, event.text, re.IGNORECASE)
        ):
            return row
    return None


def report_events(events: Sequence[ChassisEvent], chassis: Chassis) -> Iterator[Finding]:
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
        # What is to be replaced has a name, if only a number: nobody replaces a node.
        unknown = event.sensor if row and row.remedy is Remedy.REPLACE else "node"
        if row and row.verdict is Verdict.FAIL and event.sensor in inlets:
            row = ROWS[INLET_CODE]
        elif row is None and event.severity is SensorHealth.CRITICAL:
            row = ROWS[UNNAMED_CODE]
        if row:
            part_id, text = event.part or unknown, quote(event)
            yield LogEntry(row=row, part_id=part_id, event=event, text=text, time=event.time)


def _list_states(chassis: Chassis) -> dict[str, bool]:
    """Say of each sensor and group that can be read whether it is well."""
    known = (s for s in chassis.sensors if s.health is not SensorHealth.UNKNOWN)
    groups = (g for g in chassis.redundancy if g.state is not RedundancyState.UNKNOWN)
    return {
        **{s.name: s.health in (SensorHealth.OK, SensorHealth.ABSENT) for s in known},
        **{g.name: g.state is RedundancyState.FULL for g in groups},
    }


def _is_unresolved(group: Sequence[LogEntry], states: Mapping[str, bool]) -> bool | None:
    """
    Say whether a fault of *group* still stands; None if its sensors report it now.

    It is over if the log takes it back, or if its sensor reads well.
    """
    last = {(e.event.sensor, e.event.text): e.event for e in group}
    open_events = [event for event in last.values() if event.asserted is not False]
    if any(event.sensor not in states for event in open_events):
        return True
    return False if all(states[event.sensor] for event in open_events) else None


def _report_group(part_id: str, group: Sequence[LogEntry], *, stands: bool | None) -> Finding:
    row = group[0].row
    suffix = row.choose_suffix(len(group), ended=row.lasting and not stands)
    is_well = suffix == fault_table.OVER_SUFFIX and stands is False
    entries = "1 entry" if len(group) == 1 else f"{len(group)} entries"
    count = f"{', and is well again' if is_well else ''} ({entries}, {format_span(group)})"
    return make_finding(part_id, group, suffix, count, fix=not is_well)


def quote(event: ChassisEvent) -> str:
    """Write *event* as ipmitool does: the sensor with its type, and what happened."""
    named = event.sensor if event.subject in event.sensor else f"{event.subject} {event.sensor}"
    return f"{named}: {event.text}"
