"""
Read what NVIDIA's drivers write to the kernel log: Xids, SXids, GPUs that are lost.

The forms that drivers have used: ``NVRM: Xid (PCI:0000:b3:00): 79, pid=…, name=…,
GPU has …``, without ``PCI:``, with a function or a MIG instance behind the address;
``nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …``, which two
more lines with the same number follow. That a GPU has fallen off the bus is Xid 79 and,
beside it or alone, ``NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.`` (older
drivers: ``NVRM: GPU at 0000:b3:00.0 has …``). A driver that is being loaded writes no
Xid but one message of three lines (NVIDIA/NVSentinel issue 155), of which syslog may
make three.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.telemetry import pci
from hpcverify.telemetry.kernel_log import Message
from hpcverify_checks._xid_policy import Row, row_of, rows

WORDS = (
    b"Xid (",
    b"RmInitAdapter failed",
    b"NVIDIA probe routine failed",
    b"fallen off the bus",
    b"The NVIDIA GPU ",
)
"""A line without one of these is none of ours."""

# As text: where nothing is amiss, none of them is ever made into a pattern.
ADDRESS = r"(?P<address>(?:[0-9A-Fa-f]{4,8}:)[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
XID = rf"NVRM: Xid \((?:PCI:)?{ADDRESS}[^)]*\): (?P<xid>\d+)\b,? ?(?P<rest>.*)"
SXID = rf"nvidia-nvswitch\d+: SXid \((?:PCI:)?{ADDRESS}\): (?P<xid>\d+), ?(?P<rest>.*)"
NOT_STARTED = (
    rf"NVRM: (?:GPU {ADDRESS}: )?.*(?:RmInitAdapter failed|NVIDIA probe routine failed)"
)
LOST = rf"NVRM: (?:GPU (?:at )?(?:PCI:)?{ADDRESS}:? (?:GPU )?has )?fallen off the bus"
LOST_OPENING = rf"NVRM: The NVIDIA GPU {ADDRESS}"
"""The first of three lines, which names the GPU; the last says that it is lost."""
LINE_END = r"\n|\\x0a|#012"
"""Between the lines of a message, as journald, /dev/kmsg and rsyslog write it."""
SXID_DETAILS = ("Severity ", "Data ")
"""How the lines begin that follow the one about an SXid."""

WHO = r"pid='?(?P<pid>\d+)'?, name=(?P<process>[^,]*)"
UNITS = r"\(GPC (\d+), TPC (\d+)(?:, SM (\d+))?\)"
FUNCTION = r"[Ff]unction (\d+) \((\w+)"
ACTION = r"recovery action changed from .*\bto 0x([0-9A-Fa-f]+)"
FAULT = (
    r"(?P<unit>\w+)(?:/(?P<also>\w+))?\s+(?P<weight>Fatal|Nonfatal)\s+\S+\s+\S+\s+"
    r"Link\s+(?P<link>-?\d+)\s+\((?P<info>0x[0-9a-f]+)\s+(?P<status>0x[0-9a-f]+)"
)
SUBCODE = 20, 0x3F
"""Bits 25 to 20 of the first word, by all patterns of NVIDIA's sheet on 144 to 150.
The bits of the unit moved between R570 and R575, but the line names the unit too."""

QUIET_S = 10.0
"""One fault writes many lines within a second; what comes later is another one."""


class Event(Struct, frozen=True, kw_only=True):
    """One line that tells of an error; *where* is a PCI address, or "node"."""

    row: Row
    xid: int | None
    where: str
    text: str
    time: float | None
    details: Mapping[str, str]


def events(messages: Sequence[Message]) -> list[Event]:
    """
    Read *messages*.

    A loss of a GPU that an Xid tells of too counts once, and of the recovery actions of
    a GPU only the last one holds.
    """
    found = _without_repeated_losses([*_read(messages)])
    last = {event.where: event for event in found if event.xid == RECOVERY}
    return [e for e in found if e.xid != RECOVERY or e is last[e.where]]


FALLEN_OFF = 79
"""The Xid that says that a GPU does not answer on the bus any more."""
RECOVERY = 154
"""The Xid that says what the driver wants done about a GPU."""
NVLINK5 = range(144, 151)
GSP = (119, 120)


def _read(messages: Sequence[Message]) -> Iterator[Event]:
    opening: re.Match[str] | None = None
    for message in messages:
        yield from _events(message)
        for line in map(str.strip, re.split(LINE_END, message.text)):
            if match := re.match(LOST_OPENING, line):
                opening = match
            elif match := re.match(LOST, line):
                yield _loss(message, match, opening)
                opening = None


def _loss(
    message: Message, match: re.Match[str], opening: re.Match[str] | None
) -> Event:
    """Tell of a lost GPU as the Xid does; *opening* names it if *match* does not."""
    address = match["address"]
    if address is None and opening is not None:
        address = opening["address"]
        if opening[0] not in message.text:
            message = replace(message, text=f"{opening[0]} {message.text}")
    return _event(message, row_of(FALLEN_OFF), address, FALLEN_OFF)


def _without_repeated_losses(found: Sequence[Event]) -> list[Event]:
    """Leave out lines about the loss of a GPU that an Xid told of at the same time."""
    told = [e for e in found if e.xid == FALLEN_OFF and re.match(XID, e.text)]
    return [
        e
        for e in found
        if e.xid != FALLEN_OFF
        or e in told
        or not any(e.where == t.where and _are_near(e, t) for t in told)
    ]


def _are_near(one: Event, other: Event) -> bool:
    if one.time is None or other.time is None:
        return True
    return abs(one.time - other.time) <= QUIET_S


def _events(message: Message) -> Iterator[Event]:
    text = message.text
    if match := re.match(XID, text):
        yield _xid(message, match)
    elif text.startswith("NVRM: Xid"):
        yield _event(message, rows()["xid_unparsed"])
    elif match := re.match(SXID, text):
        if not match["rest"].startswith(SXID_DETAILS):
            yield _sxid(message, match)
    elif match := re.match(NOT_STARTED, text):
        yield _event(message, rows()["init_failed"], match["address"])


def _event(
    message: Message,
    row: Row,
    address: str | None = None,
    xid: int | None = None,
    details: Mapping[str, str] | None = None,
) -> Event:
    return Event(
        row=row,
        xid=xid,
        where=pci.normal(f"{address}.0") if address else "node",
        text=message.text,
        time=message.time,
        details=details or {},
    )


def _sxid(message: Message, match: re.Match[str]) -> Event:
    weight = match["rest"].partition(",")[0]
    codes = {"Fatal": "sxid_fatal", "Non-fatal": "sxid_nonfatal"}
    row = rows()[codes.get(weight, "sxid_unknown")]
    return _event(message, row, match["address"], details={"sxid": match["xid"]})


def _xid(message: Message, match: re.Match[str]) -> Event:
    xid, rest = int(match["xid"]), match["rest"]
    details = {k: v for k, v in _details(xid, rest) if v}
    row = row_of(xid, *_signs(xid, rest))
    return _event(message, row, match["address"], xid, details)


def _signs(xid: int, rest: str) -> Iterator[str]:
    """
    Say by what `row_of` can tell apart what *xid* means here, the surest first.

    A recovery action goes by its number: the words changed from "Node Reboot
    Required" to "OS Reboot" in R610. A fault of NVLink 5 goes by unit and status as
    in NVIDIA's sheet, unless the line itself says that it is fatal; what is not in
    the sheet, as several bits at once, goes by the line's word.
    """
    if xid == RECOVERY and (action := re.search(ACTION, rest)):
        yield str(int(action[1], 16))
    if xid in NVLINK5 and (fault := re.search(FAULT, rest)):
        status, shift = int(fault["status"], 16), SUBCODE
        subcode = int(fault["info"], 16) >> shift[0] & shift[1]
        for unit in filter(None, (fault["also"], fault["unit"])):
            if fault["weight"] == "Nonfatal":
                yield f"{unit} {status:#x}"
            yield f"{unit} sub {subcode}"
        yield fault["weight"]


def _details(xid: int, rest: str) -> Iterator[tuple[str, str]]:
    if who := re.search(WHO, rest):
        yield from who.groupdict().items()
    if units := re.search(UNITS, rest):
        names = zip(("GPC", "TPC", "SM"), units.groups(), strict=True)
        yield "unit", " ".join(f"{n} {v}" for n, v in names if v)
    if xid in GSP and (call := re.search(FUNCTION, rest)):
        yield "function", f"{call[1]} {call[2]}"
    if xid in NVLINK5 and (fault := re.search(FAULT, rest)):
        yield from fault.groupdict().items()


def occasions(times: Sequence[float]) -> int:
    """Count how often something happened that leaves several traces each time."""
    return 1 + sum(b - a > QUIET_S for a, b in pairwise(sorted(times)))


def recurs(group: Sequence[Event]) -> bool:
    """Say whether it came on several occasions, and not always by one process."""
    known = [e for e in group if "pid" in e.details and e.time is not None]
    processes = {(e.details["pid"], e.details["process"]) for e in known}
    times = [e.time for e in known if e.time is not None]
    return len(processes) > 1 and occasions(times) > 1
