"""The sections on whom to verify next, and on what that is worth."""

from __future__ import annotations

from msgspec.structs import replace

from hpcverify_reports.outlook import build_next, build_reliability
from tests.reports import fleets

OUTLOOK = fleets.foresee(None)


def test_a_node_that_is_due_has_its_risk_and_why_it_is_next() -> None:
    section = build_next(OUTLOOK, {fleets.name_of(5): "nodes/n/idle.html"})
    suspect, returned, *_ = section.rows

    assert suspect.cells == ("1.0x", "", "suspect: nvlink: GPU 0 link 7 is down")
    assert (returned.name, returned.page) == (fleets.name_of(5), "nodes/n/idle.html")
    assert returned.cells[:2] == ("9.3x", "came back 26 h ago; 3 outages in 90 days")
    assert "50 are needed to fit weights to" in section.intro[1]


def test_all_that_are_due_are_counted_though_not_all_are_listed() -> None:
    section = build_next(replace(OUTLOOK, due_count=900), {})

    assert section.count == 900
    assert section.more == "and 892 more: hpcverify report --fleet --format json"


def test_a_fleet_of_which_nobody_is_due_says_so() -> None:
    section = build_next(replace(OUTLOOK, due=(), due_count=0), {})

    assert section.intro == (
        "No node is due: all were verified lately, are being verified or are held.",
    )
    assert not section.rows


def test_what_it_is_worth_has_intervals_and_what_is_assumed() -> None:
    section = build_reliability(OUTLOOK.reliability)

    assert section.facts[1] == ("MTBF of a node", "250 days (192 to 333)")
    assert (section.head, section.columns[1]) == ("Nodes", "MTBF")
    assert [row.name for row in section.rows] == ["1", "4", "16", "64"]
    assert "95.7 % (95.0-96.3)" in section.rows[-1].cells
    assert any("5 min to write a checkpoint" in note for note in section.notes)


def test_without_a_history_there_is_no_figure() -> None:
    few = replace(OUTLOOK.reliability.reliability, outages=1, failure_rate=None, share_out=None)
    section = build_reliability(replace(OUTLOOK.reliability, reliability=few, jobs=()))

    assert section.intro[0].startswith("No history yet: 1 failure of 64 nodes")
    assert not section.rows + section.facts + section.notes
