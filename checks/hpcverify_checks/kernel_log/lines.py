"""
Read what the kernel says of faults: the table ``lines.csv``, and the lines that it names.

Its columns besides those of all tables: *kind* of the part, or ``job`` for what a user's
program provokes and ``site`` for what is set up or lies outside; *ends*, the code of the
trouble that this line ends; *markers*, literals of which a line has one; the *pattern* of the
whole line, by the format strings of the kernel in *source*, with named groups for the part;
*look_alikes*, lines that look similar and report no fault.

The first row that fits speaks for a line. In a pattern ``{pci}``, ``{disk}``, ``{nvme}`` and
``{mlx5}`` stand for `FRAGMENTS`. A group is ``disk``, or ``disk_`` and more where a pattern
has several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from hpcverify.telemetry import fault_table
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify_checks.common.kernel_log import begins_with_users_words
from hpcverify_checks.common.log_events import LogEvent

JOB_KIND = "job"
"""The kind of what a user's program provokes: it is never a fault of the node."""

# As text: on a healthy node none of them is ever compiled.
PCI_FRAGMENT = r"(?P<pci@>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
FRAGMENTS = {
    "pci": PCI_FRAGMENT,
    "disk": r"(?P<disk@>(?!loop|z?ram\d|fd\d|sr\d|nbd|rbd|dm-\d+-snap)[\w!-]+)",
    "nvme": rf"(?:(?P<disk@>nvme\d+)|{PCI_FRAGMENT})",
    "mlx5": rf"(?:mlx5_core {PCI_FRAGMENT}(?: (?P<nic@>[\w-]+))?(?: \(\w+\))?: )?"
    r"(?:\w+:\d+:\(pid \d+\): )?",
}
"""What patterns have in common. Images in files, memory and empty drives are not disks."""
RECORD_MARKERS = ("device_id: ", "DIMM location: ", "section_type: ")
RECORD_PATTERN = (
    r"\{(?P<number>\d+)\}\[Hardware Error\]: +(?P<head>event severity: )?"
    r"(?:device_id: (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
    r"|DIMM location: (?!not present)(?P<dimm>.+)|section_type: (?P<section>.+))?"
)
"""
A record of the firmware: many lines with one number, of which the first has the severity.

The part stands further down (drivers/firmware/efi/cper.c, cper_print_pcie, cper_print_mem).
"""
PART_GROUPS = ("pci", "disk", "dimm", "nic", "server")
"""The groups of a pattern that name a part; the others are details."""


class LineRow(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    kind: str
    ends: str = ""
    markers: tuple[str, ...]
    pattern: str
    look_alikes: str = ""


class LineEvent(LogEvent[LineRow], frozen=True, kw_only=True):
    """One line about a fault; *part* is what it names: a kind of `PART_GROUPS`, and a name."""

    part: tuple[str, str]


def _expand(pattern: str) -> str:
    """Put the fragments in, and number their groups."""
    for name, fragment in FRAGMENTS.items():
        first, *rest = pattern.split(f"{{{name}}}")
        parts = [fragment.replace("@", f"_{name}{i}") + text for i, text in enumerate(rest)]
        pattern = first + "".join(parts)
    return pattern


ROWS = {
    row.code: replace(row, pattern=_expand(row.pattern))
    for row in fault_table.load_rows(Path(__file__).with_name("lines.csv"), LineRow)
}
MARKED_ROWS = tuple((marker, row) for row in ROWS.values() for marker in row.markers)
"""Each marker with its row, in the order of the table."""
LINE_MARKERS = tuple(
    {marker.encode(): None for marker in (*(m for m, _ in MARKED_ROWS), *RECORD_MARKERS)}
)
"""Only lines with one of these matter."""


def read_events(messages: Sequence[KernelMessage]) -> Iterator[LineEvent]:
    """Read *messages*; each gives one event at most."""
    everything = "\n".join(message.text for message in messages)  # of many, most logs have few
    pairs = [(marker, row) for marker, row in MARKED_ROWS if marker in everything]
    records = _find_records(messages) if RECORD_MARKERS[-1] in everything else {}
    for index, message in enumerate(messages):
        for marker, row in pairs:
            if marker in message.text and (match := _match(row, message.text)):
                yield _make_event(row, match, message, records.get(index, {}))
                break


def _find_records(messages: Sequence[KernelMessage]) -> dict[int, dict[str, str]]:
    """Find what the lines of each record say, by the index of its first."""
    records: dict[int, dict[str, str]] = {}
    pending: dict[str, dict[str, str]] = {}
    for index in reversed(range(len(messages))):
        if match := re.match(RECORD_PATTERN, messages[index].text):
            groups = {name: value for name, value in match.groupdict().items() if value}
            number = groups.pop("number")
            if groups.pop("head", None):  # the number starts anew with each boot
                records[index] = pending.pop(number, {})
            else:
                pending[number] = pending.get(number, {}) | groups
    return records


def _match(row: LineRow, text: str) -> re.Match[str] | None:
    match = re.search(row.pattern, text)
    if match and row.kind != JOB_KIND and begins_with_users_words(text):
        return None
    return match


def _make_event(
    row: LineRow, match: re.Match[str], message: KernelMessage, record: Mapping[str, str]
) -> LineEvent:
    named = {name: value for name, value in match.groupdict().items() if value}
    groups: dict[str, str] = {**named, **record}
    part = ("node", "node")
    for name, value in groups.items():
        kind = name.partition("_")[0]
        if kind in PART_GROUPS:
            part = (kind, value)
            break
    return LineEvent(row=row, part=part, text=message.text, time=message.time, details=groups)
