"""
Events of a log, by the tables of faults: grouped, counted, and reported once per part and code.

The checks of the kernel log and of a BMC's event log use this one engine. Each of them reads its
log, finds the row of a line or an entry, and decides whether a fault has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

import hpcverify.check as hv
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.telemetry.kernel_log import format_moment
from hpcverify.units import format_count

MAX_LINE_CHARACTERS = 240
"""How much of a line a message quotes; the evidence has all of it."""

Row_co = TypeVar("Row_co", bound=KnownFault, covariant=True)


class LogEvent(Struct, Generic[Row_co], frozen=True, kw_only=True):
    """One line or entry of a log, at *time* (seconds since 1970), and the row that explains it."""

    row: Row_co
    text: str
    time: float | None
    details: Mapping[str, str] = {}
    """What the text names besides the part, as evidence."""

    @property
    def quotation(self) -> dict[str, str]:
        """The text as evidence, by what it is called."""
        return {"line": self.text}


Event = TypeVar("Event", bound=LogEvent[KnownFault])


def group_events(
    events: Iterable[Event], find_part: Callable[[Event], str]
) -> dict[tuple[str, str], list[Event]]:
    """Group *events* by the id of the part, which *find_part* finds, and by code."""
    groups: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        groups.setdefault((find_part(event), event.row.code), []).append(event)
    return groups


def count_errors(group: Iterable[LogEvent[KnownFault]]) -> int:
    """Count the errors that *group* reports: a text may report several, as ``count``."""
    counts = (
        [int(value) for name, value in event.details.items() if name.partition("_")[0] == "count"]
        for event in group
    )
    return sum(sum(numbers) if numbers else 1 for numbers in counts)


def make_finding(
    part_id: str,
    group: Sequence[LogEvent[KnownFault]],
    suffix: str,
    count: str,
    *,
    fix: bool = True,
) -> hv.Finding:
    """
    Report the events of *group*, all of one code, as one finding on a part.

    *suffix* is added to the code, and *count* stands behind the meaning; *fix* says whether
    the text ends in the fix.
    """
    first, last = group[0], group[-1]
    row = first.row
    text = f"{row.meaning}{count}: {first.text[:MAX_LINE_CHARACTERS]}"
    if row.fix and fix:  # many lines of the kernel end in a full stop
        text = f"{text.rstrip('.')}: {row.fix}"
    evidence = {
        **first.quotation,
        "first": format_moment(first.time),
        "last": format_moment(last.time),
        **row.evidence,
        **first.details,
        "count": str(count_errors(group)),
    }
    if last.text != first.text:
        evidence |= {f"last {name}": text for name, text in last.quotation.items()}
    return hv.Finding(row.code + suffix, part_id, text, evidence)


def format_span(group: Sequence[LogEvent[KnownFault]]) -> str:
    """Print when the first and the last of *group* came."""
    begin, end = format_moment(group[0].time), format_moment(group[-1].time)
    return f"{begin} to {end}" if end != begin else begin


def report_older(
    events: Iterable[Event], find_part: Callable[[Event], str]
) -> Iterator[hv.Finding]:
    """List *events* from long before the first run, by part: they may be mended by now."""
    parts: dict[str, list[Event]] = {}
    for event in events:
        parts.setdefault(find_part(event), []).append(event)
    for part_id, group in parts.items():
        worst = max(group, key=lambda event: event.row.verdict)
        first, last = format_moment(group[0].time), format_moment(group[-1].time)
        text = (
            f"{format_count(len(group), 'line')} from {first} to {last}, logged before the first "
            f"run; the worst: {worst.row.meaning}: {worst.text[:MAX_LINE_CHARACTERS]}"
        )
        yield hv.Finding("before_first_run", part_id, text, {"line": worst.text})
