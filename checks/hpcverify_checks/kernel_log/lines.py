"""
Read what the kernel says of faults: the table ``lines.csv``, and the lines that it names.

Its columns besides those of all tables: *kind* of the part, or ``job`` for what a user's
program provokes and ``site`` for what is set up or lies outside; *ends*, the code of the
trouble that this line ends; *markers*, literals of which a line has one; the *pattern* of the
whole line, by the format strings of the kernel in *source*, with named groups for the part;
*look_alikes*, lines that look similar and report no fault.

The first row that fits speaks for a line. In a pattern ``{pci}``, ``{disk}``, ``{nvme}``,
``{mlx5}`` and ``{record}`` stand for `FRAGMENTS`. A group is ``disk``, or ``disk_`` and more where
a pattern has several. The group ``count`` is the number of errors that one line reports.

A record of the firmware (CPER) is many lines with one number. `read_events` reads each of its
sections as one line, in the form of which ``{record}`` is the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from hpcverify.telemetry import fault_table
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify_checks.node.kernel_log import begins_with_users_words, drop_process
from hpcverify_checks.node.log_events import LogEvent

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
    "record": r"(?:; fru_text: (?:(?P<dimm_fru>[^;]+)(?=; section_type: memory error)|[^;]+))?"
    r"(?:; section_type: (?P<section>[^;]+))?(?:; port_type: [^;]+)?"
    r"(?:; (?:device_id|agent_address): (?P<pci_record>[0-9a-f]{4,8}:[0-9a-f:]{5}\.[0-7]))?"
    r"(?:; error_type: (?P<error_type>[^;]+))?(?:; DIMM location: (?:not present\. "
    r"DMI handle: (?:0x0000|(?P<dimm_handle>0x[0-9a-f]+))|(?P<dimm_location>[^;]+)))?",
}
"""What patterns have in common. Images in files, memory and empty drives are not disks."""
RECORD_PATTERN = (
    r"\{(?P<number>\d+)\}\[Hardware Error\]: +(?:event severity: (?P<severity>\w+)"
    r"|(?:Error|section:) \d+, (?:type|severity): (?P<section_severity>\w+)"
    r"|(?P<name>fru_text|section_type|port_type|device_id|agent_address|error_type|DIMM location)"
    r": (?P<value>.+))"
)
"""
What is read of a record: ``event severity`` is its first line, and each section begins with its
own (drivers/firmware/efi/cper.c cper_estatus_print, cper_print_mem, cper_print_pcie; cper_cxl.c).
"""
SEVERITIES = ("corrected", "recoverable", "fatal")
PORT_DEPTHS = {"4": 1, "10": 1, "5": 2, "6": 3, "7": 4, "8": 4}
"""By ``port_type``, how far from the CPU: root port, switch and bridge; others are end points."""
END_POINT_DEPTH = 5
RECORD_MARKER = "[Hardware Error]: "
TEST_TEXT = r"^EDAC .*(?:FAKE ERROR|for EDAC testing only)"
"""drivers/edac/debugfs.c edac_fake_inject_write."""
INJECTION_PATTERN = (
    r"^Injecting memory failure (?:for|at) (?:pfn|page) (?P<target>0x[0-9a-f]+)"
    r"|^[\w-]+ \S+: aer_inject: Injecting errors \S+ into device (?P<device>\S+)"
    r"|^(?:mce: )?(?:Triggering MCE exception on|Starting machine check poll) CPU \d+"
)
"""
What announces an error that a tester injected, and whether it names its target.

mm/hwpoison-inject.c, mm/madvise.c; drivers/pci/pcie/aer_inject.c; arch/x86/kernel/cpu/mce/inject.c.
"""
INJECTION_MARKERS = ("Injecting ", "Triggering MCE exception", "Starting machine check poll")
MACHINE_CHECK_PATTERN = r"\[Hardware Error\]|[Mm]achine [Cc]heck"
INJECTION_SECONDS = 10.0
"""How long after an injection a line about its target is taken for its effect."""
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
    """One line about a fault; *part* is what it names: a kind of `PART_GROUPS`, and its names."""

    part: tuple[str, ...]


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
    {
        marker.encode(): None
        for marker in (*(m for m, _ in MARKED_ROWS), *INJECTION_MARKERS, RECORD_MARKER)
    }
)
"""Only lines with one of these matter."""


def read_events(messages: Sequence[KernelMessage]) -> Iterator[LineEvent]:
    """Read *messages*; each line or section of a record gives one event at most."""
    messages = _join_records([*_drop_injected(messages)])
    everything = "\n".join(message.text for message in messages)  # of many, most logs have few
    pairs = [(marker, row) for marker, row in MARKED_ROWS if marker in everything]
    for message in messages:
        for row in (row for marker, row in pairs if marker in message.text):
            text = drop_process(message.text)
            match = re.search(row.pattern, text)
            is_users = row.kind != JOB_KIND and begins_with_users_words(text)
            if match and not (is_users or re.search(TEST_TEXT, text)):
                yield _make_event(row, match, message)
                break


def _join_records(messages: Sequence[KernelMessage]) -> list[KernelMessage]:
    """Put each section of a record where the record begins, as one message."""
    records: dict[int, list[dict[str, str]]] = {}
    current: dict[str, list[dict[str, str]]] = {}  # the number starts anew with each boot
    for index, message in enumerate(messages):
        is_record = RECORD_MARKER in message.text and not begins_with_users_words(message.text)
        if not (match := is_record and re.match(RECORD_PATTERN, message.text)):
            continue
        if match["severity"]:
            records[index] = current[match["number"]] = [{"severity": match["severity"]}]
        elif sections := current.get(match["number"]):
            if match["section_severity"]:
                sections.append({"severity": match["section_severity"]})
            else:
                sections[-1][match["name"]] = match["value"].strip().replace(";", ",")
    joined: list[KernelMessage] = []
    for index, message in enumerate(messages):
        for severity, *texts in _describe_sections(records.get(index, [])):
            head = re.sub(r"(?<=event severity: )\w+", severity, message.text)
            joined.append(replace(message, text="; ".join((head.strip(), *texts))))
        if index not in records:
            joined.append(message)
    return joined


def _describe_sections(sections: Sequence[dict[str, str]]) -> Iterator[tuple[str, ...]]:
    """
    Yield the severity and the lines of each section; of several PCIe devices, the deepest.

    A port reports what the device behind it did.
    """
    known = [s for s in sections if len(s) > 1 and s["severity"] in SEVERITIES]
    if not known:
        yield from ((s["severity"],) for s in sections[:1])
    devices = [s for s in known if "device_id" in s or "agent_address" in s]
    deepest = max(devices, key=_rank_device, default=None)
    for section in known:
        if section not in devices or section is deepest:
            severity, *lines = section.items()
            yield severity[1], *(f"{name}: {value}" for name, value in lines)


def _rank_device(section: Mapping[str, str]) -> tuple[int, int]:
    port = section.get("port_type", "").partition(",")[0]
    return SEVERITIES.index(section["severity"]), PORT_DEPTHS.get(port, END_POINT_DEPTH)


def _drop_injected(messages: Sequence[KernelMessage]) -> Iterator[KernelMessage]:
    injected: list[tuple[float, str]] = []
    for message in messages:
        when, text = message.time or 0.0, message.text
        announces = any(marker in text for marker in INJECTION_MARKERS)
        announces = announces and not begins_with_users_words(text)
        if match := announces and re.search(INJECTION_PATTERN, text):
            target = match["target"] or match["device"]
            pattern = rf"{re.escape(target)}\b" if target else MACHINE_CHECK_PATTERN
            injected.append((when, pattern))
        elif not any(
            0 <= when - began <= INJECTION_SECONDS and re.search(pattern, text)
            for began, pattern in injected
        ):
            yield message


def _make_event(row: LineRow, match: re.Match[str], message: KernelMessage) -> LineEvent:
    groups = {name: value for name, value in match.groupdict().items() if value}
    parts = [(name.partition("_")[0], value) for name, value in groups.items()]
    kind = next((kind for kind, _ in parts if kind in PART_GROUPS), "node")
    names = [value for other, value in parts if other == kind] or ["node"]
    return LineEvent(
        row=row, part=(kind, *names), text=message.text, time=message.time, details=groups
    )
