"""
Read the event log of a BMC: the table ``events.csv``, and which entries are new.

Its columns: *code* of the finding; *subject*, a pattern of the type of the sensor, and
*pattern* of what happened, by the words of IPMI 2.0 in *source*; our *verdict*, whether it is
*conclusive*, and the *remedy*; *often*, the count in one look from which what is only listed warns;
*lasting*, for a state that ends, which the sensor shows too: once it has ended it is listed;
its *meaning*, and the *fix*. The first row that fits speaks for an entry.

The log is only ever read. An entry is new if it stands behind the last one that was read, by
its number and its words: the clock of a BMC may be wrong, or start at zero with its firmware.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import LISTED, Finding, FindingRule, Remedy, Verdict
from hpcverify.telemetry.chassis import (
    Chassis,
    ChassisEvent,
    EventLog,
    RedundancyState,
    SensorHealth,
)
from hpcverify.telemetry.kernel_log import format_moment
from hpcverify.units import DAY_SECONDS

TABLE_PATH = Path(__file__).with_name("events.csv")
OFTEN_SUFFIX, OVER_SUFFIX = "_often", "_over"
"""Added to a code: of what is only listed and came often, and of a state that has ended."""
INLET_CODE = "inlet_event"
"""For a temperature of the room, which is no fault of the node."""
UNNAMED_CODE = "event_critical"
"""For an entry that the BMC calls critical and that no row speaks for."""

UNTABLED = {
    INLET_CODE: ("the air at the inlet was too hot, which is the room's", "cool the room"),
    UNNAMED_CODE: ("the BMC logged what it calls critical", "see its own page for what it means"),
}
"""What these two mean, and the fix."""


class EventRow(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    code: str
    subject: str
    pattern: str
    verdict: Verdict
    conclusive: bool
    remedy: Remedy
    often: int | None
    lasting: bool
    meaning: str
    fix: str
    source: str


class LogMark(Struct, frozen=True):
    """Where the reading of a log ended."""

    identity: str
    last: ChassisEvent | None
    """None if it was empty."""
    was_full: bool = False


class LogPart(Struct, frozen=True):
    """The entries of a log since a mark, and those before it that nobody has told yet."""

    new: tuple[ChassisEvent, ...]
    older: tuple[ChassisEvent, ...] = ()
    note: str = ""
    """Why the mark was of no use, if so."""


@cache
def load_rows() -> Mapping[str, EventRow]:
    """Read the table, by code."""
    text = TABLE_PATH.read_text(encoding="utf-8")
    values = [
        {
            **line,
            "conclusive": line["hard"] == "yes",
            "often": line["often"] or None,
            "lasting": line["lasting"] == "yes",
        }
        for line in csv.DictReader(text.splitlines())
    ]
    return {row.code: row for row in msgspec.convert(values, list[EventRow], strict=False)}


def build_finding_rules() -> dict[str, FindingRule]:
    """Make the rule of every code."""
    rules: dict[str, FindingRule] = {}
    for row in load_rows().values():
        remedy = row.remedy if row.verdict is not Verdict.PASS else Remedy.NONE
        rules[row.code] = FindingRule(row.verdict, remedy, conclusive=row.conclusive)
        if row.often:
            rules[row.code + OFTEN_SUFFIX] = FindingRule(Verdict.WARN, row.remedy)
        if row.lasting:
            rules[row.code + OVER_SUFFIX] = LISTED
    return rules


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
    like = [i for i in places if events[i].time == last.time]
    # A BMC that drops the oldest entry may number the others anew.
    return next((i for i in like if events[i].id == last.id), like[0] if like else None)


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
    """Find the row that speaks for *event*."""
    for row in load_rows().values():
        if re.fullmatch(row.subject, event.subject, re.IGNORECASE) and re.search(
            row.pattern, event.text, re.IGNORECASE
        ):
            return row
    return None


def report_events(events: Sequence[ChassisEvent], chassis: Chassis) -> Iterator[Finding]:
    """Report the new *events*, like ones of one part together; *chassis* says what still stands."""
    inlets = {sensor.name for sensor in chassis.sensors if sensor.is_ambient}
    groups: dict[tuple[str, str], list[ChassisEvent]] = {}
    for event in events:
        row = find_row(event)
        # What is to be replaced has a name, if only a number: nobody replaces a node.
        unknown = event.sensor if row and row.remedy is Remedy.REPLACE else "node"
        part_id = event.part or unknown
        if row is not None:
            is_rooms = event.sensor in inlets and row.verdict is Verdict.FAIL
            groups.setdefault((part_id, INLET_CODE if is_rooms else row.code), []).append(event)
        elif event.severity is SensorHealth.CRITICAL:
            groups.setdefault((part_id, UNNAMED_CODE), []).append(event)
    states = _list_states(chassis)
    for (part_id, code), found in groups.items():
        begun = [event for event in found if event.asserted is not False]
        if begun:
            yield _report_group(part_id, code, begun, stands=_find_standing(found, states))


def _list_states(chassis: Chassis) -> dict[str, bool]:
    """Say of each sensor and group that can be read whether it is well."""
    known = (s for s in chassis.sensors if s.health is not SensorHealth.UNKNOWN)
    groups = (g for g in chassis.redundancy if g.state is not RedundancyState.UNKNOWN)
    return {
        **{s.name: s.health in (SensorHealth.OK, SensorHealth.ABSENT) for s in known},
        **{g.name: g.state is RedundancyState.FULL for g in groups},
    }


def _find_standing(found: Sequence[ChassisEvent], states: Mapping[str, bool]) -> bool | None:
    """
    Say whether something of *found* still stands; None if the sensors tell, and tell it now.

    It is over if the log takes it back, or if its sensor reads well.
    """
    last = {(event.sensor, event.text): event for event in found}
    open_events = [event for event in last.values() if event.asserted is not False]
    if any(event.sensor not in states for event in open_events):
        return True
    return False if all(states[event.sensor] for event in open_events) else None


def _report_group(
    part_id: str, code: str, found: Sequence[ChassisEvent], *, stands: bool | None
) -> Finding:
    first, last = found[0], found[-1]
    row = load_rows().get(code)
    suffix = OVER_SUFFIX if row and row.lasting and not stands else ""
    often = bool(row and row.often and len(found) >= row.often)
    if row and often and (suffix or row.verdict is Verdict.PASS):
        suffix = OFTEN_SUFFIX
    meaning, fix = (row.meaning, row.fix) if row else UNTABLED[code]
    begin, end = _format_time(first), _format_time(last)
    span = f"{begin} to {end}" if end != begin else begin
    count = "1 entry" if len(found) == 1 else f"{len(found)} entries"
    ended = suffix == OVER_SUFFIX and stands is False
    text = f"{meaning}{', and is well again' if ended else ''} ({count}, {span}): {quote(first)}"
    evidence = {
        "entry": f"{first.id}: {quote(first)}",
        "count": str(len(found)),
        "first": begin,
        "last": end,
        **({"source": row.source} if row else {}),
    }
    return Finding(
        code + suffix, part_id, f"{text}: {fix}" if fix and not ended else text, evidence
    )


def _format_time(event: ChassisEvent) -> str:
    return format_moment(event.time) if event.time else "at a time not known"


def quote(event: ChassisEvent) -> str:
    """Write *event* as ipmitool does: the sensor with its type, and what happened."""
    named = event.sensor if event.subject in event.sensor else f"{event.subject} {event.sensor}"
    return f"{named}: {event.text}"
