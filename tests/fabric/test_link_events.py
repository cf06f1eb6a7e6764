"""A link that failed is one event, and one when a test over it passes again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hpcverify.events.event import Event
from hpcverify.fabric.link_events import record_links
from hpcverify.fleet.ledger import Ledger
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.group_tests import Members
from hpcverify.isolation.journal import IsolationOrder

SWITCHES = {"n1": "leaf1", "n2": "leaf2", "n3": "leaf2"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def make_order(*pairs: Members) -> IsolationOrder:
    return IsolationOrder(
        id="i1",
        at=0.0,
        version="1",
        nodes=("n1", "n2", "n3"),
        switches=SWITCHES,
        seed="00",
        inside=True,
        wait=0.0,
        pairs=pairs,
    )


def make_answer(*links: Members, switches: Members = (), end_reason: str = "") -> IsolationAnswer:
    return IsolationAnswer(
        id="i1",
        links=links,
        switches=switches,
        passed=3,
        rounds=1,
        tests=3,
        node_minutes=1.0,
        end_reason=end_reason,
    )


def list_events(ledger: Ledger) -> list[tuple[str, str]]:
    events = [msgspec.json.decode(line, type=Event) for _, line in ledger.read_lines(0, 100)]
    return [(event.kind.value, event.change.subject if event.change else "") for event in events]


def test_a_link_and_a_switch_fail_once_and_recover_once(ledger: Ledger) -> None:
    faulty = make_answer(("n1", "n2"), switches=("leaf2",))
    for answer in (faulty, faulty, make_answer(), make_answer()):
        record_links(ledger, make_order(), answer)

    assert list_events(ledger) == [
        *(("link.failed", "leaf2"), ("link.failed", "n1 - n2")),
        *(("link.recovered", "leaf2"), ("link.recovered", "n1 - n2")),
    ]


@pytest.mark.parametrize(
    ("pairs", "end_reason", "recovers"),
    [
        ((("n2", "n1"),), "", True),
        ((("n1", "n3"),), "", False),
        ((("n1", "n2"),), "out of budget", False),
    ],
)
def test_a_link_recovers_only_if_a_test_over_it_came_to_its_end(
    ledger: Ledger, pairs: tuple[Members, ...], end_reason: str, *, recovers: bool
) -> None:
    record_links(ledger, make_order(), make_answer(("n1", "n2")))

    record_links(ledger, make_order(*pairs), make_answer(end_reason=end_reason))

    assert ("link.recovered" in {kind for kind, _ in list_events(ledger)}) is recovers


def test_a_link_between_switches_recovers_if_a_pair_across_them_passes(ledger: Ledger) -> None:
    record_links(ledger, make_order(), make_answer(("leaf1", "leaf2")))

    record_links(ledger, make_order(("n1", "n3")), make_answer())

    assert list_events(ledger)[-1] == ("link.recovered", "leaf1 - leaf2")
