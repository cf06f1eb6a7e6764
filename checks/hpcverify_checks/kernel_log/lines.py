"""
Read what the kernel says of faults: the table ``lines.csv``, and the lines that it names.

Its columns: *code* of the finding; *kind* of the part, or ``job`` for what a user's program
provokes and ``site`` for what is set up or lies outside; our *verdict*, whether it is *conclusive*,
and the *remedy*; *often*, the count in one look from which a line that is only listed warns;
*ends*, the code of the trouble that this line ends; *markers*, literals of which a line has
one; the *pattern* of the whole line, by the format strings of the kernel in *source*, with
named groups for the part; its *meaning*, and the *fix*; *look_alikes*, which are no fault.

The first row that fits speaks for a line. In a pattern ``{pci}``, ``{disk}``, ``{nvme}`` and
``{mlx5}`` stand for `FRAGMENTS`. A group is ``disk``, or ``disk_`` and more where a pattern
has several.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.check import LISTED, FindingRule, Remedy, Verdict
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify_checks.common.kernel_log import begins_with_process

TABLE_PATH = Path(__file__).with_name("lines.csv")
OFTEN_SUFFIX, OVER_SUFFIX = "_often", "_over"
"""Added to a code: of a listed line that came often, and of a trouble that has ended."""
JOB_KIND = "job"
"""The kind of what a user's program provokes: it accuses nobody."""

# As text: on a healthy node none of them is ever compiled.
PCI_FRAGMENT = r"(?P<pci@>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])"
FRAGMENTS = {
    "pci": PCI_FRAGMENT,
    "disk": r"(?P<disk@>(?!loop|z?ram\d|fd\d|sr\d|nbd|rbd|dm-\d+-snap)[\w!-]+)",
    "nvme": rf"(?:(?P<disk@>nvme\d+)|{PCI_FRAGMENT})",
    "mlx5": rf"(?:mlx5_core {PCI_FRAGMENT}(?: (?P<nic@>[\w-]+))?(?: \(\w+\))?: )?"
    r"(?:\w+:\d+:\(pid \d+\): )?",
}
"""What patterns have in common. Images in files, memory and empty drives are no disks."""
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


class LineRow(Struct, frozen=True, kw_only=True):
    """One row of the table."""

    code: str
    kind: str
    verdict: Verdict
    conclusive: bool
    remedy: Remedy
    often: int | None
    ends: str
    markers: tuple[str, ...]
    pattern: str
    meaning: str
    fix: str
    source: str
    look_alikes: str


class KernelEvent(Struct, frozen=True, kw_only=True):
    """One line about a fault; *part* is what it names: a kind of `PART_GROUPS`, and a name."""

    row: LineRow
    part: tuple[str, str]
    text: str
    time: float | None
    details: Mapping[str, str]


@cache
def load_rows() -> Mapping[str, LineRow]:
    """Read the table, by code."""
    text = TABLE_PATH.read_text(encoding="utf-8")
    values = [
        {
            **line,
            "conclusive": line["hard"] == "yes",
            "often": line["often"] or None,
            "markers": line["markers"].split("|"),
            "pattern": _expand(line["pattern"]),
        }
        for line in csv.DictReader(text.splitlines())
    ]
    return {row.code: row for row in msgspec.convert(values, list[LineRow], strict=False)}


def _expand(pattern: str) -> str:
    """Put the fragments in, and number their groups."""
    for name, fragment in FRAGMENTS.items():
        first, *rest = pattern.split(f"{{{name}}}")
        parts = [fragment.replace("@", f"_{name}{i}") + text for i, text in enumerate(rest)]
        pattern = first + "".join(parts)
    return pattern


@cache
def list_markers() -> tuple[bytes, ...]:
    """List the literals of which a line that matters has one."""
    rows = (marker for row in load_rows().values() for marker in row.markers)
    return tuple({marker.encode(): None for marker in (*rows, *RECORD_MARKERS)})


@cache
def _list_pairs() -> tuple[tuple[str, LineRow], ...]:
    """List each marker with its row, in the order of the table."""
    return tuple((marker, row) for row in load_rows().values() for marker in row.markers)


def build_finding_rules() -> dict[str, FindingRule]:
    """
    Make the rule of every code.

    What came often warns. A trouble that has ended since is listed, and so is a line that
    only ends one.
    """
    rules: dict[str, FindingRule] = {}
    for row in load_rows().values():
        remedy = row.remedy if row.verdict is not Verdict.PASS else Remedy.NONE
        rules[row.code] = FindingRule(row.verdict, remedy, conclusive=row.conclusive)
        if row.often:
            rules[row.code + OFTEN_SUFFIX] = FindingRule(Verdict.WARN, row.remedy)
        if row.ends:
            rules[row.ends + OVER_SUFFIX] = LISTED
    return rules


def read_events(messages: Sequence[KernelMessage]) -> Iterator[KernelEvent]:
    """Read *messages*; each gives one event at most."""
    everything = "\n".join(message.text for message in messages)  # of many, most logs have few
    pairs = [(marker, row) for marker, row in _list_pairs() if marker in everything]
    records = _find_records(messages) if RECORD_MARKERS[-1] in everything else {}
    for index, message in enumerate(messages):
        for marker, row in pairs:
            if marker in message.text and (match := _match(row, message.text)):
                yield _make_event(row, match, message, records.get(index, {}))
                break


def _find_records(messages: Sequence[KernelMessage]) -> dict[int, dict[str, str]]:
    """Find what the lines of each record say, by the index of its first."""
    found: dict[int, dict[str, str]] = {}
    pending: dict[str, dict[str, str]] = {}
    for index in reversed(range(len(messages))):
        if match := re.match(RECORD_PATTERN, messages[index].text):
            groups = {name: value for name, value in match.groupdict().items() if value}
            number = groups.pop("number")
            if groups.pop("head", None):  # the number starts anew with each boot
                found[index] = pending.pop(number, {})
            else:
                pending[number] = pending.get(number, {}) | groups
    return found


def _match(row: LineRow, text: str) -> re.Match[str] | None:
    match = re.search(row.pattern, text)
    if match and row.kind != JOB_KIND and begins_with_process(text):
        return None
    return match


def _make_event(
    row: LineRow, match: re.Match[str], message: KernelMessage, record: Mapping[str, str]
) -> KernelEvent:
    said = {name: value for name, value in match.groupdict().items() if value}
    groups: dict[str, str] = {**said, **record}
    part = ("node", "node")
    for name, value in groups.items():
        kind = name.partition("_")[0]
        if kind in PART_GROUPS:
            part = (kind, value)
            break
    return KernelEvent(row=row, part=part, text=message.text, time=message.time, details=groups)
