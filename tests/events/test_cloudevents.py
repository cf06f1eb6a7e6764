"""Events in the envelope of CloudEvents, as its SDK reads them."""

from __future__ import annotations

import json

import msgspec
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as ReadEvent

from hpcverify.events.cloudevents import convert_event
from hpcverify.events.event import Event, EventKind
from tests.events.examples import EXAMPLES, TIME, make_event, make_finding_event


def read(event: Event) -> ReadEvent:
    """Read *event* as the SDK does, which refuses what the specification forbids."""
    read_event = JSONFormat().read(ReadEvent, msgspec.json.encode(convert_event(event)))
    assert isinstance(read_event, ReadEvent)
    return read_event


def test_an_event_of_every_kind_arrives_whole() -> None:
    for event in EXAMPLES:
        assert msgspec.json.decode(json.dumps(read(event).get_data()), type=Event) == event


def test_the_envelope_says_what_happened_where_and_when() -> None:
    event = read(make_finding_event(EventKind.FINDING_OPENED))

    assert event.get_specversion() == "1.0"
    assert event.get_type() == "hpcverify.finding.opened"
    assert event.get_subject() == "n7"
    assert event.get_time() == TIME
    assert event.get_datacontenttype() == "application/json"
    assert event.get_dataschema() == "urn:hpcverify:event:1"


def test_an_event_of_the_fleet_has_no_subject() -> None:
    assert read(make_event(EventKind.HEARTBEAT)).get_subject() is None


def test_two_events_differ_in_their_id_and_a_second_delivery_does_not() -> None:
    first, again, second = (read(make_event(EventKind.HEARTBEAT, number)) for number in (7, 7, 8))

    assert first.get_source() == again.get_source() == second.get_source()
    assert first.get_id() == again.get_id() != second.get_id()
