"""The rows that terminal, page and JSON share: what comes first, and what is shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpcverify.fleet.states import DAY_S, Node, State
from hpcverify.insight.node_names import fold_names, make_natural_key, name_block
from hpcverify.insight.overview import (
    DEFAULT_OVERDUE_S,
    Overview,
    build_overview,
    choose_page_results,
    count_outcomes,
)
from hpcverify.model import Remedy, Verdict
from hpcverify.selection.places import find_rack
from hpcverify.units import format_time_since
from tests.reports.fleets import NOW, bad, said, well


def of(*nodes: Node, **changes: float) -> Overview:
    return build_overview({n.name: n for n in nodes}, (), (), now=NOW, **changes)  # type: ignore[arg-type]


def test_what_needs_attention_comes_first_and_then_the_longest_unverified() -> None:
    states = (State.HEALTHY, State.REPEAT_OFFENDER, State.SUSPECT, State.QUARANTINED)
    nodes = [Node(name=state, state=state, last_pass_at=NOW) for state in states]
    some = [well("n2"), replace(well("n1"), last_pass_at=NOW - DAY_S), Node(name="new")]

    assert [row.node.name for row in of(*nodes, *some).rows] == [
        *("repeat offender", "quarantined", "suspect"),
        *("new", "n1", "n2", "healthy"),
    ]


def test_a_healthy_node_that_failed_a_check_since_is_above_the_others() -> None:
    failed = bad("n9", "xid", Verdict.FAIL, Remedy.REBOOT, "Xid 79")
    nodes = {n: well(n) for n in ("n1", "n9")}
    held = {"n5": replace(well("n5"), state=State.HELD)}
    first, *_ = build_overview(nodes | held, (), [failed], now=NOW).rows
    assert (first.node.name, first.attention, first.why) == ("n9", True, "xid: gpu-3: Xid 79")


def test_who_holds_a_node_explains_it_whatever_its_state() -> None:
    node = Node(name="n1", state=State.QUARANTINED, reason="ours", foreign="theirs")
    (row,) = of(node).rows
    assert (row.state, row.why) == ("held by others", "theirs")


@pytest.mark.parametrize("enforced", [True, False])
@pytest.mark.parametrize("state", State)
def test_only_what_failed_and_is_not_acted_on_is_observed_only(
    state: State, *, enforced: bool
) -> None:
    (row,) = of(Node(name="n1", state=state, enforced=enforced)).rows
    failed = state in (State.SUSPECT, State.QUARANTINED, State.REPEAT_OFFENDER)
    assert ("observed only" in row.state_label) == (failed and not enforced)


@pytest.mark.parametrize(
    ("days", "ago", "overdue"),
    [
        (0, DEFAULT_OVERDUE_S - 1, False),
        (0, DEFAULT_OVERDUE_S + 1, True),
        (2, DAY_S, False),
        (2, 3 * DAY_S, True),
    ],
)
def test_overdue_is_what_the_site_says_or_else_a_week(
    days: float, ago: float, *, overdue: bool
) -> None:
    (row,) = of(replace(well("n1"), last_pass_at=NOW - ago), overdue_days=days).rows
    assert row.overdue is overdue


def test_the_newest_word_of_a_check_counts_whatever_suite_it_was_in() -> None:
    old = bad("n1", "ecc", Verdict.FAIL, Remedy.REPLACE, "before the repair")
    new = said("n1", "ecc", suite="prolog", started=datetime(2026, 11, 22, tzinfo=UTC))

    for order_of_runs in ((old, new), (new, old)):
        (row,) = build_overview({"n1": well("n1")}, (), order_of_runs, now=NOW).rows
        assert [one.verdict for one in row.said] == [Verdict.PASS]
        assert not row.attention


def test_pages_are_worth_a_link_if_they_say_most_or_something_bad() -> None:
    runs = [
        *(said("n1", check) for check in "abc"),
        said("n1", "d", suite="prolog"),
        said("n1", "e", suite="epilog", verdict=Verdict.WARN),
    ]
    (row,) = build_overview({"n1": well("n1")}, (), runs, now=NOW).rows

    assert [one.suite for one in choose_page_results(row)] == ["idle", "epilog"]


def test_a_clock_that_went_back_makes_no_negative_age() -> None:
    assert (format_time_since(NOW + 5, NOW), format_time_since(0, NOW)) == ("under 1 min", "never")


@given(st.integers(0, 10**30))
def test_names_are_ordered_as_people_count(number: int) -> None:
    assert (
        make_natural_key(f"n{number}") < make_natural_key(f"n{number + 1}") < make_natural_key("o")
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu-r001-n07", "gpu-r001"),
        ("rack2node11.site", "rack2"),
        ("n0123", "n01xx"),
        ("n5", "nxx"),
        ("login", "login"),
    ],
)
def test_a_block_is_a_rack_or_a_hundred_nodes_whose_names_have_none(
    name: str, expected: str
) -> None:
    assert (name_block(name), find_rack(name)) == (expected, expected if name[0] in "gr" else "")


def test_what_came_of_a_node_is_the_worst_of_its_run_and_its_checks() -> None:
    warned = bad("n1", "ecc", Verdict.WARN, Remedy.INSPECT, "hot")
    skipped = said("n2", "xid", verdict=Verdict.SKIP)
    nodes = {
        "n1": well("n1"),
        "n2": well("n2"),
        "n3": Node(name="n3"),
        "n4": replace(well("n4"), verdict="error"),
        "n5": replace(well("n5"), state=State.SUSPECT),
    }
    shown = build_overview(nodes, (), [warned, skipped], now=NOW)

    assert {row.node.name: row.outcome for row in shown.rows} == {
        "n1": Verdict.WARN,
        "n2": Verdict.PASS,
        "n3": None,
        "n4": Verdict.ERROR,
        "n5": Verdict.FAIL,
    }
    assert count_outcomes(shown.rows) == (
        "1 failed, 1 could not be judged, 1 with warnings, 1 passed, 1 without a run"
    )


@pytest.mark.parametrize(
    ("ago", "passed", "counted"),
    [(DAY_S, 0, 1), (8 * DAY_S, 0, 0), (DAY_S, 2 * DAY_S, 1), (2 * DAY_S, DAY_S, 0)],
    ids=["lately", "long ago", "after the full pass", "before the full pass"],
)
def test_failed_runs_count_for_a_week_and_until_a_full_pass(
    ago: float, passed: float, counted: int
) -> None:
    node = replace(well("n1"), last_pass_at=NOW - passed if passed else 0)
    failures = [("n1", NOW - ago)]
    (row,) = build_overview({"n1": node}, (), (), now=NOW, failures=failures).rows
    assert (row.failures, row.failed) == (counted, NOW - ago if counted else 0)


def test_host_lists_are_folded_unless_a_name_is_none() -> None:
    assert fold_names(["n2", "n10", "n1"]) == "n[1-2,10]"
    assert fold_names(["n1", '"<b>']) == '"<b>,n1'
