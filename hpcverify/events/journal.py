"""
Events for journald, by its native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL).

Each event is one datagram of fields, so that ``journalctl HPCVERIFY_NODE=n7`` finds those of
a node, and a MESSAGE_ID those of one kind.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from uuid import UUID, uuid5

from hpcverify.errors import ActionError
from hpcverify.events.event import Event, EventKind, Severity, summarize_event
from hpcverify.summary.printable import make_printable

JOURNAL_SOCKET = Path("/run/systemd/journal/socket")
KIND_NAMESPACE = UUID("6da44e05-930e-4794-9996-8fc0c95cf51f")
"""What the ids of kinds are derived from; sites have these ids in their rules."""
MESSAGE_IDS = {kind: uuid5(KIND_NAMESPACE, kind).hex for kind in EventKind}
PRIORITIES = {
    Severity.INFORMATIONAL: 6,
    Severity.LOW: 5,
    Severity.MEDIUM: 4,
    Severity.HIGH: 3,
    Severity.CRITICAL: 2,
}
"""The levels of syslog (RFC 5424): info, notice, warning, err and crit."""
MAX_CUT_CHARACTERS = 1000
"""What is left of each field of an event that is too large for a datagram: 100 KB in all."""
CUT_NOTE = " … (cut: hpcverify fleet events has all of it)"
SEND_TIMEOUT_S = 5.0
"""How long journald may take to make room for one event."""


class JournalError(ActionError):
    """journald did not take an event; it can be sent again."""


def send_events(events: Iterable[Event], address: Path = JOURNAL_SOCKET) -> Iterator[int]:
    """
    Send *events* to journald, and yield the number of each once it was taken.

    Of an event that is too large for a datagram, long fields are cut.

    Raises:
        JournalError: journald does not take this event now, or there is none.

    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(SEND_TIMEOUT_S)
        try:
            sender.connect(str(address))
        except OSError as exc:
            hint = "see systemctl status systemd-journald, or set journal = false under [events]"
            raise JournalError(f"journald: {address}: {exc.strerror or exc}; {hint}") from exc
        for event in events:
            _send_event(sender, event)
            yield event.number


def _send_event(sender: socket.socket, event: Event) -> None:
    try:
        try:
            sender.send(build_datagram(event))
        except OSError as exc:
            if exc.errno != errno.EMSGSIZE:
                raise
            sender.send(build_datagram(event, MAX_CUT_CHARACTERS))
    except OSError as exc:
        why = exc.strerror or f"no room within {SEND_TIMEOUT_S:g} s"
        raise JournalError(f"journald did not take event {event.number}: {why}") from exc


def build_datagram(event: Event, longest: int | None = None) -> bytes:
    """Build the datagram of *event*; what is longer than *longest* characters is cut."""
    return b"".join(
        _encode_field(name, value if value == value[:longest] else value[:longest] + CUT_NOTE)
        for name, value in _list_fields(event)
    )


def _list_fields(event: Event) -> Iterator[tuple[str, str]]:
    yield "MESSAGE", summarize_event(event)
    yield "MESSAGE_ID", MESSAGE_IDS[event.kind]
    yield "PRIORITY", str(PRIORITIES[event.severity])
    yield "SYSLOG_IDENTIFIER", "hpcverify"
    values = {
        "KIND": event.kind,
        "EVENT": str(event.number),
        "EVENT_ID": event.id,
        "TIME": event.time.isoformat(),
        "SEVERITY": event.severity,
        "ACTOR": event.actor.name,
        "NODE": event.node,
        "WHAT": event.what,
    }
    if event.change:
        values |= {"SUBJECT": event.change.subject, "RUN": event.change.run}
        values |= {"BEFORE": event.change.before, "AFTER": event.change.after}
    if event.finding:
        values |= {"FINDING": event.finding.uid, "CHECK": event.finding.check}
        values |= {"PART": event.finding.part, "CODE": event.finding.code}
        values |= {"VERDICT": event.finding.verdict.value, "REMEDY": event.finding.remedy}
    if event.run:
        values |= {
            "RUN": event.run.id,
            "SUITE": event.run.suite,
            "VERDICT": event.run.verdict.value,
        }
    if event.command:
        values |= {"COMMAND": event.command.name, "OUTCOME": event.command.outcome}
    yield from ((f"HPCVERIFY_{name}", value) for name, value in values.items() if value)


def _encode_field(name: str, value: str) -> bytes:
    """Encode a field in a line, or behind its length (64 bits, little endian) if it has lines."""
    data = make_printable(value).encode()
    if b"\n" not in data:
        return b"%s=%s\n" % (name.encode(), data)
    return b"%s\n%s%s\n" % (name.encode(), len(data).to_bytes(8, "little"), data)
