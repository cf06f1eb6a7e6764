"""Events in the journal of systemd: one datagram each, at a socket that is there."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.events.event import EventKind, Severity, StateChange
from hpcverify.events.journal import (
    CUT_NOTE,
    MESSAGE_IDS,
    PRIORITIES,
    JournalError,
    build_datagram,
    send_events,
)
from tests.events.examples import EXAMPLES, FINDING, make_event, make_finding_event
from tests.waiting import PATIENCE_S

TEXTS = ("one line", "two\nlines", "Zoë: ⚠ süß", "=\n=\n", "ends with a newline\n")
LARGEST = 2**20
JOURNALD = """
mount -t tmpfs none /run
mkdir -p /run/systemd/journal /run/systemd/journald.conf.d /run/log/journal
printf '[Journal]\\nStorage=volatile\\nReadKMsg=no\\nRateLimitBurst=0\\n' \\
    >/run/systemd/journald.conf.d/test.conf
/usr/lib/systemd/systemd-journald &
tries=0
until [ -S /run/systemd/journal/socket ] && [ -S /run/systemd/journal/io.systemd.journal ]; do
    [ $((tries += 1)) -lt 600 ]
    sleep 0.1
done
"$@" >&2
journalctl --sync
journalctl --directory /run/log/journal --output json SYSLOG_IDENTIFIER=hpcverify
"""
"""Run a command beside a journald of its own, then print what that has of us."""
SENDER = """
import sys, msgspec
from hpcverify.events.event import Event
from hpcverify.events.journal import send_events
events = msgspec.json.decode(sys.argv[1], type=tuple[Event, ...])
assert [*send_events(events)] == [event.number for event in events]
"""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        receiver.settimeout(PATIENCE_S)
        yield receiver


def parse_datagram(datagram: bytes) -> dict[str, str]:
    """Read a datagram by the rules of the protocol."""
    fields: dict[str, str] = {}
    while datagram:
        line, _, datagram = datagram.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(datagram[:8], "little")
            value, newline, datagram = (
                datagram[8 : 8 + size],
                datagram[8 + size : 9 + size],
                datagram[9 + size :],
            )
            assert newline == b"\n"
        assert name.decode() not in fields
        fields[name.decode()] = value.decode()
    return fields


def test_every_event_is_a_datagram_of_fields_that_journald_takes() -> None:
    for event in EXAMPLES:
        fields = parse_datagram(build_datagram(event))
        assert fields["MESSAGE"], event.kind
        assert fields["SYSLOG_IDENTIFIER"] == "hpcverify"
        assert [name for name in fields if not re.fullmatch("[A-Z][A-Z_0-9]{,63}", name)] == []


def test_the_fields_name_node_kind_number_and_finding() -> None:
    fields = parse_datagram(build_datagram(make_finding_event(EventKind.FINDING_OPENED)))

    assert fields["HPCVERIFY_NODE"] == "n7"
    assert fields["HPCVERIFY_KIND"] == "finding.opened"
    assert fields["HPCVERIFY_EVENT"] == "7"
    assert fields["HPCVERIFY_FINDING"] == FINDING.uid
    assert fields["HPCVERIFY_VERDICT"] == "fail"


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_arrives_whole_however_many_lines_it_has(text: str) -> None:
    datagram = build_datagram(make_event(EventKind.HEARTBEAT, text=text))
    assert parse_datagram(datagram)["MESSAGE"] == text


def test_what_others_wrote_gives_a_terminal_of_journalctl_no_orders() -> None:
    text = "\x1b[2J\x9b31m\u202e\u2028"
    datagram = build_datagram(make_event(EventKind.HEARTBEAT, text=text, node=text))
    assert all(c.isprintable() for c in parse_datagram(datagram)["MESSAGE"])
    assert parse_datagram(datagram)["HPCVERIFY_NODE"].isprintable()


def test_an_event_without_a_node_has_no_field_for_it() -> None:
    assert "HPCVERIFY_NODE" not in parse_datagram(build_datagram(make_event(EventKind.HEARTBEAT)))


def test_each_kind_has_an_id_of_its_own() -> None:
    assert len({*MESSAGE_IDS.values()}) == len(EventKind)
    for kind, message_id in MESSAGE_IDS.items():
        assert parse_datagram(build_datagram(make_event(kind)))["MESSAGE_ID"] == message_id
        assert len(message_id) == 32


def test_the_graver_an_event_the_more_urgent_its_priority() -> None:
    assert [PRIORITIES[severity] for severity in Severity] == [6, 5, 4, 3, 2]


def test_events_arrive_in_order_and_each_number_is_yielded_once_it_was_taken(
    journal: socket.socket,
) -> None:
    events = [make_event(EventKind.HEARTBEAT, number) for number in (1, 2, 3)]
    for number in send_events(events, Path(journal.getsockname())):
        assert parse_datagram(journal.recv(LARGEST))["HPCVERIFY_EVENT"] == str(number)

    assert [*send_events([], Path(journal.getsockname()))] == []


def test_of_an_event_too_large_for_a_datagram_what_is_long_arrives_cut_and_says_so(
    journal: socket.socket,
) -> None:
    nodes = StateChange(subject="n⚠" * 2**21, before="", after="active" * 2**21)
    event = make_finding_event(EventKind.FINDING_OPENED, text="x" * 2**22, change=nodes)
    assert [*send_events([event], Path(journal.getsockname()))] == [7]

    fields = parse_datagram(journal.recv(LARGEST))
    whole = parse_datagram(build_datagram(event))
    cut = {"MESSAGE", "HPCVERIFY_SUBJECT", "HPCVERIFY_AFTER"}
    assert {name for name in whole if fields[name] != whole[name]} == cut
    assert all(fields[name] == whole[name][:1000] + CUT_NOTE for name in cut)


def test_without_a_journal_no_event_counts_as_taken(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"absent: No such file.*journal = false"):
        next(send_events([make_event(EventKind.HEARTBEAT)], tmp_path / "absent"))


def test_a_journal_that_does_not_answer_takes_no_event(journal: socket.socket) -> None:
    address = Path(journal.getsockname())
    journal.close()
    taken: list[int] = []
    with pytest.raises(JournalError, match="systemd-journald"):
        taken.extend(send_events([make_event(EventKind.HEARTBEAT)], address))

    assert taken == []


@pytest.mark.needs("root", "/lib/systemd/systemd-journald")
def test_journald_has_every_event_with_its_text_and_its_fields() -> None:
    lines = (make_event(EventKind.HEARTBEAT, text=text) for text in TEXTS)
    sent = tuple(replace(event, number=n) for n, event in enumerate((*EXAMPLES, *lines), start=1))
    apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    send = (sys.executable, "-c", SENDER, msgspec.json.encode(sent).decode())
    done = subprocess.run(
        [*apart, "sh", "-euc", JOURNALD, "sh", *send], text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in done.stdout.splitlines()]

    assert [int(entry["HPCVERIFY_EVENT"]) for entry in entries] == [e.number for e in sent]
    for entry, event in zip(entries, sent, strict=True):
        fields = parse_datagram(build_datagram(event))
        assert {name: entry.get(name) for name in fields} == fields
