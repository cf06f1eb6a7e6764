"""A ranking is worth what it would have hit, on a real fleet and on made-up ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import FleetHistory, FleetNode, make_history
from hpcverify.selection.ranking import RiskRanking
from tests.selection.backtest import WeekOutcome, backtest, split_quarters, summarize
from tests.selection.fleets import (
    HAZARDS,
    INFINITE_HBD,
    INFINITE_HBD_DAYS,
    INFINITE_HBD_NODES,
    name_silent,
    read_fleet,
    simulate_fleet,
)

FLEET = [FleetNode(f"n{i}") for i in range(20)]


def pick(*names: str) -> Mapping[str, float]:
    """Score *names* above the others."""
    return dict.fromkeys(names, 1.0)


def by_risk(history: FleetHistory, end: float, first_day: float = 0.0) -> list[WeekOutcome]:
    """Pick by the ranking."""
    ranking = RiskRanking(history)

    def policy(day: float, _names: Sequence[str]) -> Mapping[str, float]:
        ranking.advance(day)
        return ranking.scores

    return backtest(history, policy, end, first_day=first_day)


def test_what_falls_on_picked_nodes_is_a_hit() -> None:
    history = make_history(FLEET, [Outage("n1", 1, 2), Outage("n1", 3, 4), Outage("n2", 5, 6)])
    (week,) = backtest(history, lambda _day, _names: pick("n1", "n9"), 7)
    assert (week.outages, week.hit) == (3, 2)
    assert week.by_chance == pytest.approx(0.3)


def test_equal_scores_are_picked_by_chance() -> None:
    history = make_history(FLEET, [Outage("n1", 1, 2), Outage("n2", 5, 6)])
    weeks = backtest(history, lambda _day, _names: {}, 7)
    assert summarize(weeks).lift == pytest.approx(1)


def test_a_node_that_is_out_can_neither_be_picked_nor_count() -> None:
    history = make_history(FLEET, [Outage("n1", 1, 8), Outage("n1", 9, 10), Outage("n2", 11)])
    seen: list[Sequence[str]] = []

    def policy(_day: float, names: Sequence[str]) -> Mapping[str, float]:
        seen.append(names)
        return pick("n1")

    weeks = backtest(history, policy, 14)

    assert "n1" in seen[0]
    assert "n1" not in seen[1]
    assert [week.outages for week in weeks] == [1, 1]


def test_weeks_belong_to_the_quarter_in_which_they_began() -> None:
    history = make_history(FLEET, [Outage("n1", day, day + 1) for day in (1.0, 8.0, 15.0, 22.0)])
    quarters = split_quarters(backtest(history, lambda _d, _n: pick("n1"), 28), 28)
    assert [quarter.outages for quarter in quarters] == [1, 1, 1, 1]


@pytest.mark.system
def test_on_a_real_fleet_a_tenth_of_the_nodes_holds_2_4_times_the_outages_of_chance() -> None:
    history = read_fleet(INFINITE_HBD, INFINITE_HBD_NODES)

    weeks = [
        week
        for day in range(7)
        for week in by_risk(history, INFINITE_HBD_DAYS, first_day=float(day))
    ]

    assert len(history.nodes) == INFINITE_HBD_NODES
    assert summarize(weeks).lift >= 2.4
    assert all(q.lift > 1 for q in split_quarters(weeks, INFINITE_HBD_DAYS))


@pytest.mark.system
@pytest.mark.parametrize(
    ("hazard", "whole", "later"),
    [("wear-out, repaired as new", 1.1, 1.3), ("safe returns", 1.1, 1.1), ("place", 2.0, 2.0)],
)
def test_whatever_goes_with_outages_on_a_fleet_is_learned_from_its_past(
    hazard: str, whole: float, later: float
) -> None:
    weeks = by_risk(simulate_fleet(HAZARDS[hazard], 1, count=200, days=450), 450)
    assert summarize(weeks).lift > whole
    assert summarize(week for week in weeks if week.day > 225).lift > later


def test_where_nothing_goes_with_outages_the_ranking_is_chance() -> None:
    weeks = by_risk(simulate_fleet(HAZARDS["no signal"], 2, count=200, days=450), 450)
    hits = summarize(weeks)
    # Of these outages a tenth is hit, give or take three standard deviations.
    assert hits.share == pytest.approx(0.1, abs=3 * (0.1 * 0.9 / hits.outages) ** 0.5)


def test_nodes_without_a_fault_get_free_places_of_the_same_racks() -> None:
    silent = name_silent(["r1n1", "r2n2", "r2n3"])
    assert ({next(silent) for _ in range(3)}, next(silent)) == ({"r1n2", "r1n3", "r2n1"}, "silent1")
