"""Which nodes have a high risk, and what is said of them."""

from __future__ import annotations

from math import inf

import pytest

from hpcverify.reliability.outages import Outage
from hpcverify.selection.outages import make_history
from hpcverify.selection.places import locate_nodes
from hpcverify.selection.ranking import NodeRisk, RiskRanking

NAMES = [f"r{i // 10}n{i % 10}" for i in range(100)]


def rank(now: float, *outages: Outage) -> RiskRanking:
    """Rank ten racks with ten nodes each."""
    ranking = RiskRanking(make_history(locate_nodes(dict.fromkeys(NAMES, 0.0)), outages))
    ranking.advance(now)
    return ranking


def test_without_a_past_all_have_the_same_risk_and_nothing_is_said_of_them() -> None:
    ranking = rank(100)
    assert (set(ranking.scores.values()), ranking.explain("r0n0").reasons) == ({1.0}, ())


def test_who_came_back_is_the_riskiest_and_its_neighbours_are_next() -> None:
    ranking = rank(100, Outage("r3n3", 80, 81), Outage("r3n3", 97, 98))
    by_risk = sorted(NAMES, key=lambda name: -ranking.scores[name])
    assert (by_risk[0], {name[:2] for name in by_risk[1:10]}) == ("r3n3", {"r3"})
    assert ranking.explain("r3n3").score > 5
    assert ranking.explain("r3n3").reasons[:2] == ("came back 2 days ago", "2 outages in 30 days")


def test_a_neighbour_that_failed_is_named() -> None:
    outages = [Outage(f"r3n{i}", 98.5 + i / 100, 99.5) for i in range(3)]
    assert rank(100, *outages).explain("r3n9").reasons == ("neighbour r3n2 failed 35 h ago",)


def test_a_score_is_times_the_mean_of_the_nodes_in_service() -> None:
    ranking = rank(100, Outage("r3n3", 97, 98), Outage("r4n4", 99))
    assert "r4n4" not in ranking.scores
    assert sum(ranking.scores.values()) / 99 == pytest.approx(1)


def test_a_node_that_is_out_of_service_has_no_risk_to_explain() -> None:
    ranking = rank(100.0, Outage("r4n4", 99.0, inf))
    assert "r4n4" not in ranking.scores
    assert ranking.explain("r4n4") == NodeRisk(score=1.0)
