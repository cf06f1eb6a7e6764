"""journald gets each event of the ledger once, from the day on which the site asks for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcverify.events.event import EventKind
from hpcverify.events.journal import JournalError
from hpcverify.fleet.event_journal import JOURNAL_READER, JournalStream
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.ledger import Ledger
from hpcverify.plan.config import Events
from tests.events.test_journal import LARGEST, parse_datagram


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "socket"))
        receiver.settimeout(0)
        yield receiver


def add_event(ledger: Ledger) -> None:
    ledger.record_event(NewEvent(kind=EventKind.HEARTBEAT))


def make_stream(ledger: Ledger, *, journal: bool = True) -> JournalStream:
    return JournalStream(Events(journal=journal), ledger, ledger.path.parent / "socket")


def receive_numbers(journal: socket.socket) -> list[int]:
    numbers: list[int] = []
    while True:
        try:
            fields = parse_datagram(journal.recv(LARGEST))
        except BlockingIOError:
            return numbers
        numbers.append(int(fields["HPCVERIFY_EVENT"]))


def test_each_event_is_sent_once_and_none_from_before_the_setting(
    ledger: Ledger, journal: socket.socket
) -> None:
    add_event(ledger)
    stream = make_stream(ledger)
    stream.drain()
    assert receive_numbers(journal) == []

    for number in (2, 3):
        add_event(ledger)
        stream.drain()
        stream.drain()
        assert receive_numbers(journal) == [number]


def test_events_wait_for_a_journald_that_is_down(ledger: Ledger, journal: socket.socket) -> None:
    stream = make_stream(ledger)
    stream.drain()
    address = ledger.path.parent / "socket"
    journal.close()
    add_event(ledger)
    with pytest.raises(JournalError):
        stream.drain()

    address.unlink()
    with pytest.raises(JournalError, match="No such file"):
        stream.drain()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as again:
        again.bind(str(address))
        again.settimeout(0)
        stream.drain()
        assert receive_numbers(again) == [1]


def test_nothing_is_sent_or_kept_for_a_site_that_does_not_ask(
    ledger: Ledger, journal: socket.socket
) -> None:
    make_stream(ledger).drain()
    add_event(ledger)
    make_stream(ledger, journal=False).drain()
    assert receive_numbers(journal) == []
    assert JOURNAL_READER not in ledger.read_cursors()
