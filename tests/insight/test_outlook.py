"""What the ledger says of what is to come: who is due, why, and what came before."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import DAY_S, HOUR_S, Node, State
from hpcverify.insight.outlook import MAX_DUE, read_node_outlook, read_outlook
from hpcverify.plan.config import Fleet, Site
from hpcverify.units import convert_time

NOW = 1_800_000_000.0
SITE = Site(fleet=Fleet(fresh_hours=24))


def well(name: str, hours: float) -> Node:
    """Make a node that passed so many hours ago."""
    return Node(name=name, state=State.HEALTHY, last_pass_at=NOW - hours * HOUR_S)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Know of a node that is fresh, two that are due, a suspect, and one that is held."""
    ledger = Ledger(tmp_path, lambda: NOW - 3 * DAY_S)
    failed = replace(well("n3", 40), state=State.QUARANTINED, reason="fan", enforced=True)
    for node in (well("n1", 2), well("n2", 30), failed):
        ledger.put(node, "seen")
    ledger.clock = lambda: NOW - 2 * DAY_S
    ledger.put(well("n3", 30), "released")
    ledger.put(Node(name="n4", state=State.SUSPECT, reason="gemm: slow"), "suspect")
    ledger.put(Node(name="n5", foreign="bad fan (root)"), "held")
    ledger.clock = lambda: NOW
    return ledger


@pytest.mark.usefixtures("ledger")
def test_who_is_due_comes_in_the_order_of_a_sweep_with_risk_and_reasons(tmp_path: Path) -> None:
    told = read_outlook(tmp_path, SITE, lambda: NOW)
    assert ([each.node for each in told.due], told.due_count) == (["n4", "n3", "n2"], 3)
    assert told.due[0].why == "suspect: gemm: slow"
    assert "came back 2 days ago" in told.due[1].risk.reasons
    assert told.due[1].risk.score > told.due[2].risk.score


def test_of_very_many_that_are_due_the_first_are_explained_and_all_counted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, lambda: NOW)
    for place in range(MAX_DUE + 5):
        ledger.put(well(f"n{place}", 30), "seen")
    told = read_outlook(tmp_path, SITE, lambda: NOW)
    assert (len(told.due), told.due_count) == (MAX_DUE, MAX_DUE + 5)


def test_a_fleet_without_a_past_has_no_judgement_and_no_forecast(tmp_path: Path) -> None:
    told = read_outlook(tmp_path, SITE, lambda: NOW)
    assert (told.due, told.judgement, told.reliability.reliability.failure_rate) == ((), None, None)


def test_a_node_is_told_with_its_outages_the_newest_first(ledger: Ledger) -> None:
    told = read_node_outlook(ledger, SITE.fleet, "n3")
    assert told.risk is not None
    assert [(one.reason, one.began, one.ended) for one in told.outages] == [
        ("fan", convert_time(NOW - 3 * DAY_S), convert_time(NOW - 2 * DAY_S))
    ]


def test_a_node_that_is_out_of_service_has_no_risk(ledger: Ledger) -> None:
    assert read_node_outlook(ledger, SITE.fleet, "n5").risk is None
