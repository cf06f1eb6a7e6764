"""What the ledger counts grows with what it writes, and is not written twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.fleet.counters import MAX_COUNTED_GAP_S
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.metrics.text import BucketCounts, LabelValues

WELL = Node(name="n1", state=State.HEALTHY)
SUSPECT = replace(WELL, state=State.SUSPECT, reason="gemm: slow", checks=("gemm",))
BAD = replace(SUSPECT, state=State.QUARANTINED, enforced=True)
START = 1_800_000_000.0


class Clock:
    """A clock that a test sets."""

    now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Ledger:
    return Ledger(tmp_path, clock)


def follow(ledger: Ledger, clock: Clock, *steps: tuple[float, Node]) -> None:
    """Write what a node becomes, each so many seconds after the step before."""
    for seconds, node in steps:
        clock.now += seconds
        ledger.put(node, node.state.value)


def test_each_transition_is_counted_by_the_states_before_and_after(
    ledger: Ledger, clock: Clock
) -> None:
    follow(ledger, clock, (0, WELL), (1, SUSPECT), (1, BAD), (1, WELL), (1, SUSPECT))

    assert ledger.read_counter("hpcverify_transitions_total") == {
        ("unverified", "healthy"): 1,
        ("healthy", "suspect"): 2,
        ("suspect", "quarantined"): 1,
        ("quarantined", "healthy"): 1,
    }


def test_a_node_that_stays_in_its_state_makes_no_transition(ledger: Ledger, clock: Clock) -> None:
    observed = replace(BAD, enforced=False)
    follow(ledger, clock, (0, observed), (1, BAD), (1, replace(BAD, reason="slower still")))
    assert ledger.read_counter("hpcverify_transitions_total") == {("unverified", "quarantined"): 1}


def test_a_node_that_is_forgotten_keeps_its_share_of_the_counters(
    ledger: Ledger, clock: Clock
) -> None:
    follow(ledger, clock, (0, WELL), (1, SUSPECT))
    ledger.forget("n1", "ann", "gone")
    assert ledger.read_counter("hpcverify_transitions_total")["suspect", "forgotten"] == 1
    assert ledger.read_counter("hpcverify_outages_total") == {("own run",): 1}


def test_what_may_happen_and_never_did_is_0(ledger: Ledger) -> None:
    possible: list[LabelValues] = [("others",), ("person",)]
    held = ledger.read_histogram("hpcverify_time_to_hold_seconds", possible)
    assert ledger.read_counter("hpcverify_outages_total", possible) == dict.fromkeys(possible, 0)
    assert held == dict.fromkeys(possible, BucketCounts({}, 0.0))


def test_an_outage_is_observed_from_its_beginning(ledger: Ledger, clock: Clock) -> None:
    follow(ledger, clock, (0, SUSPECT), (100, BAD), (5000, replace(BAD, reason="worse")))
    follow(ledger, clock, (900, WELL))
    to_hold = ledger.read_histogram("hpcverify_time_to_hold_seconds")
    to_return = ledger.read_histogram("hpcverify_time_to_return_seconds")

    assert ledger.read_counter("hpcverify_outages_total") == {("own run",): 1}
    assert ledger.read_counter("hpcverify_failures_total") == {("own run",): 1}
    assert to_hold == {("own run",): BucketCounts({600.0: 1}, 100.0)}
    assert to_return == {("own run",): BucketCounts({3 * 3600.0: 1}, 6000.0)}


def test_a_suspicion_that_a_rerun_clears_is_no_failure_and_holds_nothing(
    ledger: Ledger, clock: Clock
) -> None:
    follow(ledger, clock, (0, SUSPECT), (60, WELL))
    assert ledger.read_counter("hpcverify_failures_total") == {}
    assert ledger.read_histogram("hpcverify_time_to_hold_seconds") == {}
    counts = ledger.read_histogram("hpcverify_time_to_return_seconds")["own run",].counts
    assert sum(counts.values()) == 1


def test_node_seconds_are_counted_between_two_cycles(ledger: Ledger, clock: Clock) -> None:
    ledger.count_node_seconds({"healthy": 3}, {"drain": 0})
    clock.now += 600
    ledger.count_node_seconds({"healthy": 2, "quarantined": 1}, {"drain": 1})

    assert ledger.read_counter("hpcverify_node_seconds_total") == {
        ("healthy",): 1200,
        ("quarantined",): 600,
    }
    assert ledger.read_counter("hpcverify_held_node_seconds_total") == {("drain",): 600}


@pytest.mark.parametrize("seconds", [-3600.0, 0.0, MAX_COUNTED_GAP_S + 1])
def test_time_that_no_controller_saw_is_not_counted(
    ledger: Ledger, clock: Clock, seconds: float
) -> None:
    ledger.count_node_seconds({"healthy": 3}, {})
    clock.now += seconds
    ledger.count_node_seconds({"healthy": 3}, {})
    clock.now += 10
    ledger.count_node_seconds({"healthy": 3}, {})

    assert ledger.read_counter("hpcverify_node_seconds_total") == {("healthy",): 30}


def test_a_counter_outlives_its_program(ledger: Ledger, clock: Clock, tmp_path: Path) -> None:
    follow(ledger, clock, (0, SUSPECT))
    again = Ledger(tmp_path, clock)
    follow(again, clock, (1, WELL), (1, SUSPECT))
    assert again.read_counter("hpcverify_outages_total") == {("own run",): 2}
