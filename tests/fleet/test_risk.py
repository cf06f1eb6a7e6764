"""What of the ledger makes the risk of a node."""

from __future__ import annotations

from typing import Any

from hpcverify.fleet.outages import NodeOutage, OutageCause
from hpcverify.fleet.risk import HISTORY_S, rank_fleet
from hpcverify.fleet.states import DAY_S, Node
from hpcverify.selection.ranking import NodeRisk

NOW = 1_800_000_000.0
BEGAN = NOW - 100 * DAY_S
NODES = [Node(name=f"n{i}", first_seen_at=BEGAN) for i in range(50)]


def make_outage(node: str, ago: float, days: float = 0.5, **changes: Any) -> NodeOutage:
    """Make an outage that began *ago* days before now."""
    began = NOW - ago * DAY_S
    usual: dict[str, Any] = {
        "node": node,
        "began": began,
        "ended": began + days * DAY_S if days else 0.0,
        "cause": OutageCause.OTHERS,
        "reason": "bad GPU",
    }
    return NodeOutage(**{**usual, **changes})


def rank(*outages: NodeOutage, nodes: list[Node] = NODES) -> list[str]:
    """Name the nodes in service whose risk is above the others', the highest first."""
    scores = rank_fleet(nodes, outages, {}, BEGAN, NOW).scores
    return sorted((n for n in scores if scores[n] > 1.01), key=lambda name: -scores[name])


def test_who_was_out_lately_comes_before_who_was_out_long_ago() -> None:
    assert rank(make_outage("n7", 60), make_outage("n3", 3)) == ["n3", "n7"]


def test_a_node_that_is_out_has_no_score() -> None:
    scores = rank_fleet(NODES, [make_outage("n7", 3, days=0)], {}, BEGAN, NOW).scores
    assert "n7" not in scores
    assert len(scores) == 49


def test_what_was_planned_says_nothing_of_a_node() -> None:
    for reason in ("POWERED_DOWN, no reason given", "maintenance: new firmware", "MAINT"):
        assert rank(make_outage("n7", 3, reason=reason)) == []


def test_a_fault_in_the_words_of_an_administrator_counts() -> None:
    for reason in ("power supply dead", "reserved for RMA", "firmware update: NVLink errors"):
        assert rank(make_outage("n7", 3, reason=reason)) == ["n7"], reason


def test_a_site_has_words_of_its_own_for_planned_work() -> None:
    outage = make_outage("n7", 3, reason="Hackathon of team 4")
    words = ("hackathon*",)
    scores = rank_fleet(NODES, [outage], {}, BEGAN, NOW, planned_reasons=words).scores
    assert rank(outage) == ["n7"]
    assert set(scores.values()) == {1.0}


def test_what_a_verification_found_is_not_planned_whatever_it_says() -> None:
    found = make_outage("n7", 3, reason="driver 580.1", cause=OutageCause.VERIFICATION)
    assert rank(found) == ["n7"]


def test_what_is_dated_ahead_of_the_clock_is_not_known_yet() -> None:
    assert rank(make_outage("n7", -3)) == []


def test_an_outage_of_years_ago_is_left_out() -> None:
    assert rank_fleet(NODES, [make_outage("n7", 3)], {}, NOW - 10 * HISTORY_S, NOW).scores["n7"] > 2


def test_nodes_at_the_switch_of_one_that_failed_have_a_higher_risk() -> None:
    switches = {f"n{i}": f"leaf{i // 10}" for i in range(50)}
    outages = [make_outage("n1", 1), make_outage("n2", 2)]
    scores = rank_fleet(NODES, outages, switches, BEGAN, NOW).scores
    assert min(scores[f"n{i}"] for i in range(10)) > max(scores[f"n{i}"] for i in range(10, 50))


def test_a_clock_that_was_wrong_spoils_neither_the_risk_nor_its_reasons() -> None:
    ahead = [make_outage("n1", 5, days=days) for days in (40, 4000)]
    backwards = make_outage("n2", 5, days=-50)
    unborn = Node(name="n9", first_seen_at=NOW + 90 * DAY_S)

    for outage in (*ahead, backwards):
        ranking = rank_fleet([*NODES[:9], unborn], [outage], {}, BEGAN, NOW)
        assert ranking.explain(outage.node).score > 2
        assert ranking.explain("n9").score > 0


def test_a_node_that_is_out_is_explained_as_one_of_which_nothing_is_known() -> None:
    """A suspect is the first in each plan that is explained."""
    ranking = rank_fleet(NODES, [make_outage("n7", 3, days=0)], {}, BEGAN, NOW)
    assert ranking.explain("n7") == NodeRisk(1.0)
