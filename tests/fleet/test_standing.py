"""What stands for a while is one event when it begins, and one when it ends."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from hpcverify.errors import ActionError
from hpcverify.events.event import Event, EventKind
from hpcverify.fleet.claim import Claim, build_claim_path, write_claim
from hpcverify.fleet.event_audit import verify_ledger
from hpcverify.fleet.event_log import SPARE_HEARTBEATS, NewEvent
from hpcverify.fleet.standing import (
    MAX_NODE_REFUSALS,
    beat_daily,
    follow_configuration,
    follow_refusals,
)
from hpcverify.fleet.states import DAY_S
from hpcverify.plan.config import Events, Suppression, load_site
from hpcverify.records.spool import Refusal
from tests.fleet.builders import NOW, Room, make_wrong_word


def list_events(room: Room, *kinds: EventKind) -> list[Event]:
    lines = room.ledger.read_lines(0, 10_000)
    events = [msgspec.json.decode(line, type=Event) for _, line in lines]
    return [event for event in events if event.kind in kinds]


def describe(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind.value, event.change.subject if event.change else "") for event in events]


def test_a_file_of_the_site_is_an_event_when_it_comes_changes_or_goes(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, suites = tmp_path / "site.toml", tmp_path / "suites"
    monkeypatch.setenv("HPCVERIFY_CONFIG", str(path))
    suites.mkdir()
    (suites / "own.toml").write_text('summary = "mine"\n')
    texts = ["", "", "[fleet]\nat_once = 4\n"]
    for text in texts:
        path.write_text(text)
        follow_configuration(room.ledger, load_site())
    (suites / "own.toml").unlink()
    follow_configuration(room.ledger, load_site())

    events = list_events(room, EventKind.CONFIGURATION_LOADED)
    digests = ["", *(hashlib.sha256(text.encode()).hexdigest() for text in texts[1:])]
    changes = [event.change for event in events if event.change]
    assert [change.subject for change in changes] == [
        *(str(path), str(suites / "own.toml"), str(path), str(suites / "own.toml"))
    ]
    assert [(change.before, change.after) for change in changes[::2]] == [
        *((digests[0], digests[1]), (digests[1], digests[2]))
    ]
    assert changes[-1].after == ""


def test_a_suppression_is_an_event_when_it_begins_is_used_and_is_over(room: Room) -> None:
    day = datetime.fromtimestamp(NOW, UTC).date()
    entry = Suppression(check="sdc", nodes="n[1-2]", until=day, reason="a known bug", by="ada")
    kinds = (EventKind.SUPPRESSION_BEGUN, EventKind.SUPPRESSION_USED, EventKind.SUPPRESSION_ENDED)

    def collect(suppress: tuple[Suppression, ...]) -> None:
        controller = room.controller
        controller.site = replace(controller.site, suppress=suppress)
        controller.reconcile()

    for _ in range(2):
        room.finds("n1", make_wrong_word())
        collect((entry,))
    room.now += 2 * DAY_S
    collect((entry,))

    events = list_events(room, *kinds)
    assert [event.kind for event in events] == [*kinds]
    assert (events[0].text, events[1].node) == ("by ada: a known bug", "n1")


def test_a_document_is_refused_once_for_its_reason_until_one_is_accepted(room: Room) -> None:
    ledger = room.ledger
    refusal = Refusal("n1", "'a.json': it is not a regular file", aside=True)
    again = Refusal("n1", "'b.json': it is not a regular file", aside=True)

    follow_refusals(ledger, [refusal, again], set())
    follow_refusals(ledger, [again], set())
    follow_refusals(ledger, [], {"n1"})
    follow_refusals(ledger, [refusal], set())

    events = list_events(room, EventKind.DOCUMENT_REFUSED)
    assert [(event.node, event.text) for event in events] == [
        ("n1", "it is not a regular file")
    ] * 2


def test_a_node_that_invents_reasons_has_no_more_than_so_many_events(room: Room) -> None:
    for number in range(50):
        follow_refusals(room.ledger, [Refusal("n1", f"'a': {number}", aside=True)], set())
    assert len(list_events(room, EventKind.DOCUMENT_REFUSED)) == MAX_NODE_REFUSALS


def test_a_controller_that_is_refused_the_spool_says_so_once(room: Room) -> None:
    path = build_claim_path(room.folder / "spool")
    other = Claim(ledger="other", host="ctl9", since=NOW, cycle=NOW)
    write_claim(path, other, first=True)
    for _ in range(3):
        with pytest.raises(ActionError, match="another controller"), room.controller.hold_lock():
            pass

    (event,) = list_events(room, EventKind.CLAIM_REFUSED)
    assert "ctl9" in event.text
    assert event.actor.host == gethostname()


def test_a_heartbeat_comes_once_a_day_and_says_who_is_where(room: Room) -> None:
    room.collect(4)

    (event,) = list_events(room, EventKind.HEARTBEAT)
    assert "4 nodes: 4 unverified" in event.text
    assert event.oldest == 1


KEEP_DAYS = 30


def beat(room: Room, *steps: float) -> None:
    """Let so many days go by, one after the other, with an event and what is due in each."""
    ledger, site = room.ledger, replace(room.controller.site, events=Events(keep_days=KEEP_DAYS))
    for step in steps:
        room.now += step * DAY_S
        ledger.record_event(NewEvent(kind=EventKind.NIGHT_JUDGED))
        beat_daily(ledger, site, room.now)


def read_oldest(room: Room) -> int:
    return room.ledger.read_lines(0, 1)[0][0]


def test_events_are_pruned_by_the_days_that_the_controller_saw(room: Room) -> None:
    beat(room, *[1] * 50)

    oldest = list_events(room, *EventKind)[0]
    kept_days = round((room.now - oldest.time.timestamp()) / DAY_S)
    assert KEEP_DAYS <= kept_days <= KEEP_DAYS + SPARE_HEARTBEATS
    assert list_events(room, EventKind.HEARTBEAT)[-1].oldest == oldest.number
    assert verify_ledger(room.ledger).wrong == 0


JUMPS = (
    [400, 1, 0.1, -401.1],
    [400, -400, 400, -400, 400, -400],
    [-400, 1, 399],
    [*[0.02, 400, -400] * 15],
    [40_000, 1, 1, 1, -40_003],
)


@pytest.mark.parametrize("jumps", JUMPS)
def test_a_clock_that_jumps_for_some_days_prunes_nothing_that_is_to_be_kept(
    room: Room, jumps: list[float]
) -> None:
    beat(room, *[1] * 28)
    beat(room, *jumps)
    assert read_oldest(room) == 1
    beat(room, *[1] * 12)
    assert read_oldest(room) > 1


def test_events_that_a_reader_has_not_got_are_not_pruned(room: Room) -> None:
    room.ledger.move_cursor("slow", 5)
    beat(room, *[1] * 40)
    assert read_oldest(room) == 6
    assert verify_ledger(room.ledger).wrong == 0


def test_the_cycle_goes_on_if_the_file_cannot_be_written_and_says_so(room: Room) -> None:
    controller: Any = room.controller
    (controller.state / "events.jsonl").mkdir()

    with controller.hold_lock():
        controller.reconcile()

    (malfunction,) = room.ledger.list_malfunctions()
    assert malfunction.name == "events.jsonl"
    (reader,) = room.ledger.list_readers()
    assert (reader.name, reader.pending) == ("file", room.ledger.read_chain_end().number)
    assert reader.oldest > NOW
    (controller.state / "events.jsonl").rmdir()
    with room.controller.hold_lock():
        room.controller.reconcile()
    assert room.ledger.list_malfunctions() == []
    assert len(list_events(room, EventKind.MALFUNCTION_BEGUN, EventKind.MALFUNCTION_ENDED)) == 2
