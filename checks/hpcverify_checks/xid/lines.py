"""
Read what NVIDIA's drivers write to the kernel log: Xids, SXids, lost GPUs; ``xids.csv``.

The columns of the table besides those of all tables: *xid* and NVIDIA's *mnemonic*; *kind*:
``app`` if a program can cause it, ``context`` if it only accompanies another one, ``gpu`` or
``driver``; what *nvidia* and *others* do about it, and their *disagreement*; *when*, for an Xid
with several meanings: the recovery action of 154, which is judged as in `recovery`, or what a
line about NVLink must say; *pattern* of a line that is not an Xid, with ``{address}`` for that of
the device. The first row whose pattern fits speaks for the line; it fits from the beginning,
since the driver also quotes what a program says of itself. For an ``app`` Xid the verdict is that
on a single one, and the remedy is that of repeated ones.

The forms that drivers have used: ``NVRM: Xid (PCI:0000:b3:00): 79, pid=…, name=…,
GPU has …``, without ``PCI:``, with a function or a MIG instance behind the address;
``nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 …``, followed by
two more lines with the same number. A GPU that has fallen off the bus is Xid 79 and,
with it or alone, ``NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.`` (older
drivers: ``NVRM: GPU at 0000:b3:00.0 has …``). A driver that is just loading writes
no Xid but one message of three lines (NVIDIA/NVSentinel issue 155), which syslog may
split into three. No other message is read beyond its first line: where the kernel quotes a
user, such as the options of a mount, the user may have written the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.telemetry import fault_table, pci
from hpcverify.telemetry.fault_table import KnownFault
from hpcverify.telemetry.kernel_log import KernelMessage
from hpcverify.telemetry.xids import ADDRESS_PATTERN, XID_PATTERN
from hpcverify_checks.node.kernel_log import begins_with_users_words
from hpcverify_checks.node.log_events import LogEvent

REPEATED_SUFFIX, UNDER_LOAD_SUFFIX = "_repeated", "_under_load"
"""Added to the code of an ``app`` Xid that came again, or came under our load."""
LINE_MARKERS = (
    b"Xid (",
    b"RmInitAdapter failed",
    b"NVIDIA probe routine failed",
    b"fallen off the bus",
    b"The NVIDIA GPU ",
    b"NV_ERR_RESET_REQUIRED",
)
"""Only lines with one of these matter."""

# As text: on a healthy node none of them is ever compiled.
LOST_PATTERN = (
    rf"NVRM: (?:GPU (?:at )?(?:PCI:)?{ADDRESS_PATTERN}:? (?:GPU )?has )?fallen off the bus"
)
LOST_OPENING_PATTERN = rf"NVRM: The NVIDIA GPU {ADDRESS_PATTERN}"
"""The first of three lines, which names the GPU; the last says it is lost."""
LINE_END_PATTERN = r"\n|\\x0a|#012"
"""What separates the lines of a message, as journald, /dev/kmsg and rsyslog write it."""

PROCESS_PATTERN = r"pid='?(?P<pid>\d+)'?, name=(?P<process>[^,]*)"
UNIT_PATTERN = r"\(GPC (\d+), TPC (\d+)(?:, SM (\d+))?\)"
FUNCTION_PATTERN = r"[Ff]unction (\d+) \((\w+)"
ACTION_PATTERN = r"recovery action changed from .*\bto 0x([0-9A-Fa-f]+)"
NVLINK_FAULT_PATTERN = (
    r"(?P<unit>\w+)(?:/(?P<also>\w+))?\s+(?P<weight>Fatal|Nonfatal)\s+\S+\s+\S+\s+"
    r"Link\s+(?P<link>-?\d+)\s+\((?P<info>0x[0-9a-f]+)\s+(?P<status>0x[0-9a-f]+)"
)
SUBCODE_SHIFT_MASK = 20, 0x3F
"""Bits 25 to 20 of the first word, by all patterns of NVIDIA's sheet on 144 to 150.
The bits of the unit moved between R570 and R575, but the line names the unit too."""

QUIET_SECONDS = 10.0
"""One fault writes many lines within a second; later lines are another fault."""


class XidRow(KnownFault, frozen=True, kw_only=True):
    """One row of the table."""

    xid: int | None = None
    mnemonic: str = ""
    kind: str
    nvidia: str = ""
    others: str = ""
    disagreement: str = ""
    when: tuple[str, ...] = ()
    pattern: str = ""

    @property
    def evidence(self) -> dict[str, str]:
        """The columns that say what NVIDIA and others make of the Xid."""
        names = ("mnemonic", "nvidia", "others", "disagreement")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    @property
    def rules(self) -> dict[str, hv.FindingRule]:
        """
        The rule of each suffix.

        An Xid that a program can cause is most likely the job's, so a single one is listed. If
        it comes again from another process on the same GPU, or while our own known-good kernels
        run, somebody should look; if our kernels cause it again, the GPU fails. The next run
        begins after these lines, so a FAIL is conclusive.
        """
        rules = super().rules
        if self.kind == "app":
            remedy = max(self.remedy, hv.Remedy.INSPECT, key=list(hv.Remedy).index)
            warning = hv.FindingRule(hv.Verdict.WARN, remedy)
            rules |= {REPEATED_SUFFIX: warning, UNDER_LOAD_SUFFIX: warning}
            rules[UNDER_LOAD_SUFFIX + REPEATED_SUFFIX] = hv.FindingRule(hv.Verdict.FAIL, remedy)
        return rules


ROWS = fault_table.index_rows(Path(__file__).with_name("xids.csv"), XidRow)
PATTERN_ROWS = tuple(
    replace(row, pattern=row.pattern.replace("{address}", ADDRESS_PATTERN))
    for row in ROWS.values()
    if row.pattern
)
ROWS_BY_SIGN = {(row.xid, sign): row for row in ROWS.values() for sign in row.when}


class XidEvent(LogEvent[XidRow], frozen=True, kw_only=True):
    """One line about an error; *address* is that of the PCI device, or "node"."""

    xid: int | None
    address: str


def find_row(xid: int, *signs: str) -> XidRow:
    """Find the row of *xid* by the first of *signs* in the table, or else by number."""
    known = (ROWS_BY_SIGN[xid, sign] for sign in signs if (xid, sign) in ROWS_BY_SIGN)
    return next(known, ROWS.get(f"xid_{xid}", ROWS["xid_unknown"]))


def read_events(messages: Sequence[KernelMessage]) -> list[XidEvent]:
    """
    Read *messages*.

    A lost GPU that an Xid reports as well counts once, and only the last recovery action
    of a GPU holds.
    """
    events = _drop_repeated_losses([*_parse_messages(messages)])
    last = {event.address: event for event in events if event.xid == RECOVERY_ACTION_XID}
    return [e for e in events if e.xid != RECOVERY_ACTION_XID or e is last[e.address]]


FALLEN_OFF_XID = 79
"""The Xid of a GPU that no longer answers on the bus."""
RECOVERY_ACTION_XID = 154
"""The Xid with the recovery action that the driver asks for."""
NVLINK5_XIDS = range(144, 151)
GSP_XIDS = (119, 120)


def _parse_messages(messages: Sequence[KernelMessage]) -> Iterator[XidEvent]:
    opening: re.Match[str] | None = None
    for message in messages:
        if begins_with_users_words(message.text):
            continue
        yield from _parse_message(message)
        # The driver writes one message in several lines; of others the first counts.
        lines = [line.strip() for line in re.split(LINE_END_PATTERN, message.text)]
        for line in lines if re.match(LOST_OPENING_PATTERN, lines[0]) else lines[:1]:
            if match := re.match(LOST_OPENING_PATTERN, line):
                opening = match
            elif match := re.match(LOST_PATTERN, line):
                yield _make_loss_event(message, match, opening)
                opening = None


def _make_loss_event(
    message: KernelMessage, match: re.Match[str], opening: re.Match[str] | None
) -> XidEvent:
    # As the Xid reports it; *opening* names the GPU if *match* does not.
    address = match["address"]
    if address is None and opening is not None:
        address = opening["address"]
        if opening[0] not in message.text:
            message = replace(message, text=f"{opening[0]} {message.text}")
    return _make_event(message, find_row(FALLEN_OFF_XID), address, FALLEN_OFF_XID)


def _drop_repeated_losses(events: Sequence[XidEvent]) -> list[XidEvent]:
    # An Xid at the same time reports the same loss.
    xids = [e for e in events if e.xid == FALLEN_OFF_XID and re.match(XID_PATTERN, e.text)]
    return [
        e
        for e in events
        if e.xid != FALLEN_OFF_XID
        or e in xids
        or not any(
            e.address == other.address
            and (e.time is None or other.time is None or abs(e.time - other.time) <= QUIET_SECONDS)
            for other in xids
        )
    ]


def _parse_message(message: KernelMessage) -> Iterator[XidEvent]:
    if match := re.match(XID_PATTERN, message.text):
        xid, rest = int(match["xid"]), match["rest"]
        row = find_row(xid, *_list_signs(xid, rest))
        yield _make_event(message, row, match["address"], xid, dict(_parse_details(xid, rest)))
        return
    for row in PATTERN_ROWS:
        if match := re.match(row.pattern, message.text):
            groups = match.groupdict()
            yield _make_event(message, row, groups.pop("address", None), details=groups)
            return


def _make_event(
    message: KernelMessage,
    row: XidRow,
    address: str | None,
    xid: int | None = None,
    details: Mapping[str, str | None] | None = None,
) -> XidEvent:
    return XidEvent(
        row=row,
        xid=xid,
        address=pci.normalize_address(f"{address}.0") if address else "node",
        text=message.text,
        time=message.time,
        details={name: value for name, value in (details or {}).items() if value},
    )


def _list_signs(xid: int, rest: str) -> Iterator[str]:
    """
    List the signs by which `find_row` knows what *xid* means here, the surest first.

    A recovery action goes by its number: its text changed from "Node Reboot Required" to
    "OS Reboot" in R610. An NVLink 5 fault goes by unit and status as in NVIDIA's sheet,
    unless the line itself says it is fatal; what is not in the sheet, such as several
    bits at once, goes by the severity in the line.
    """
    if xid == RECOVERY_ACTION_XID and (action := re.search(ACTION_PATTERN, rest)):
        yield str(int(action[1], 16))
    if xid in NVLINK5_XIDS and (fault := re.search(NVLINK_FAULT_PATTERN, rest)):
        status, shift = int(fault["status"], 16), SUBCODE_SHIFT_MASK
        subcode = int(fault["info"], 16) >> shift[0] & shift[1]
        for unit in filter(None, (fault["also"], fault["unit"])):
            if fault["weight"] == "Nonfatal":
                yield f"{unit} {status:#x}"
            yield f"{unit} sub {subcode}"
        yield fault["weight"]


def _parse_details(xid: int, rest: str) -> Iterator[tuple[str, str | None]]:
    if who := re.search(PROCESS_PATTERN, rest):
        yield from who.groupdict().items()
    if units := re.search(UNIT_PATTERN, rest):
        names = zip(("GPC", "TPC", "SM"), units.groups(), strict=True)
        yield "unit", " ".join(f"{n} {v}" for n, v in names if v)
    if xid in GSP_XIDS and (call := re.search(FUNCTION_PATTERN, rest)):
        yield "function", f"{call[1]} {call[2]}"
    if xid in NVLINK5_XIDS and (fault := re.search(NVLINK_FAULT_PATTERN, rest)):
        yield from fault.groupdict().items()


def count_occasions(times: Sequence[float]) -> int:
    """Count occasions, each of which may leave several lines close together."""
    return 1 + sum(b - a > QUIET_SECONDS for a, b in pairwise(sorted(times)))


def recurs(group: Sequence[XidEvent]) -> bool:
    """Whether it came on several occasions, and from more than one process."""
    known = [e for e in group if "pid" in e.details and e.time is not None]
    processes = {(e.details["pid"], e.details["process"]) for e in known}
    times = [e.time for e in known if e.time is not None]
    return len(processes) > 1 and count_occasions(times) > 1
