"""What came in is judged together, each once, before anybody is acted on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.fleet.intake import Intake, JudgedRun
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, State
from hpcverify.model import Cause, Result, Run, Verdict
from hpcverify.plan.config import Quarantine, Site
from hpcverify.records.store import Store
from tests.doubles import a_result, a_run
from tests.fleet.builders import make_wrong_word

NOW = 1_800_000_000.0
BELIEVING = Quarantine(enforce=("*",), check_share=1)
"""No check is in doubt, however widely it fails."""
GOOD = a_result("gemm")
BAD = make_wrong_word("gemm")
SOFT = make_wrong_word("gemm", conclusive=False)
"""A rerun may take it back."""


@dataclass
class Room:
    """An intake with all that it needs."""

    state: Path
    policy: Quarantine = BELIEVING
    number: Iterator[int] = field(default_factory=itertools.count)
    now: float = NOW

    @property
    def ledger(self) -> Ledger:
        """Open the ledger, as another process would."""
        return Ledger(self.state, lambda: self.now)

    def run(self, node: str, *results: Result, **changes: Any) -> Run:
        """Make the run of a ticket of its own."""
        ticket = self.ledger.issue_ticket(node, "sweep", "quick")
        made = a_run(
            id=f"20260101-000000-{next(self.number):06x}",
            node=node,
            token=ticket.token,
            results=results,
            verdict=max(result.verdict for result in results),
        )
        return replace(made, **changes)

    def take(self, *runs: Run, eligible: int = 4) -> list[JudgedRun]:
        site = Site(quarantine=self.policy)
        store = Store(self.state)
        return Intake(site, store, self.ledger, lambda: self.now).take_in(runs, eligible)

    def held(self) -> set[str]:
        nodes = self.ledger.list_nodes().values()
        return {node.name for node in nodes if node.desired_hold is not Hold.NONE}

    def is_now(self, node: str) -> tuple[State, Hold]:
        found = self.ledger.read_node(node)
        return found.state, found.desired_hold


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_what_fails_is_held_and_what_passes_is_healthy(room: Room) -> None:
    room.take(room.run("n1", BAD), room.run("n2", GOOD))
    assert room.held() == {"n1"}
    assert room.ledger.read_node("n2").state is State.HEALTHY
    assert room.ledger.read_trip_reason() == ""


def test_too_many_at_once_trip_the_breaker_before_anybody_is_held(room: Room) -> None:
    room.take(*(room.run(node, BAD) for node in ("n1", "n2", "n3")))
    assert room.held() == set()
    assert room.ledger.read_trip_reason().startswith("3 of 4 nodes")
    assert room.ledger.list_newly_held(0) == set()
    assert {n.state for n in room.ledger.list_nodes().values()} == {State.QUARANTINED}


def test_too_many_one_after_another_trip_it_as_well(room: Room) -> None:
    for node in ("n1", "n2", "n3"):
        room.take(room.run(node, BAD))
    assert room.held() == {"n1", "n2"}  # who was held before stays so
    assert room.ledger.read_trip_reason().startswith("3 of 4 nodes")


def test_suspects_count_as_held_for_they_are(room: Room) -> None:
    runs = (room.run(node, SOFT) for node in ("n1", "n2", "n3"))
    room.take(*runs)
    assert room.held() == set()
    assert {n.state for n in room.ledger.list_nodes().values()} == {State.SUSPECT}


def test_while_it_is_tripped_nobody_is_newly_held_and_passes_count(room: Room) -> None:
    room.take(room.run("n1", BAD))
    room.ledger.trip("a person said so")
    room.take(room.run("n2", BAD), room.run("n3", GOOD))
    assert (room.held(), room.ledger.read_node("n3").last_pass_at) == ({"n1"}, NOW)
    assert "quarantined (observed)" in {e.what for e in room.ledger.read_audit("n2")}


KEPT = (State.SUSPECT, Hold.RESERVATION)
OUT = (State.QUARANTINED, Hold.DRAIN)


def test_while_it_is_tripped_a_suspect_that_fails_again_is_held_no_harder(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")

    room.take(again := room.run("n1", make_wrong_word("sdc")))

    assert room.is_now("n1") == KEPT
    node = room.ledger.read_node("n1")
    assert "held no harder than before: the breaker tripped: 3 of 4 nodes" in node.full_reason
    assert (node.run, node.checks) == (again.id, ("gemm", "sdc"))
    # Nothing moved since its last verification: no rerun is due at once.
    assert room.ledger.read_last_ticket_number() > node.not_before_ticket


def test_once_it_is_reset_what_is_found_from_then_on_counts(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")
    room.take(room.run("n1", SOFT))
    room.ledger.reset("ada", "image 41")
    assert room.is_now("n1") == KEPT

    room.take(room.run("n1", SOFT))

    assert room.is_now("n1") == OUT


def test_while_it_is_tripped_a_suspect_that_passes_is_let_go(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")
    room.take(room.run("n1", GOOD))
    assert room.is_now("n1") == (State.HEALTHY, Hold.NONE)


def test_who_trips_it_by_failing_again_is_held_no_harder(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    others = [room.run(node, BAD) for node in ("n2", "n3")]
    room.take(room.run("n1", SOFT), *others)
    assert room.ledger.read_trip_reason()
    assert (room.is_now("n1"), room.held()) == (KEPT, {"n1"})


def test_a_ticket_counts_once_though_two_runs_came_with_it_together(room: Room) -> None:
    run = room.run("n1", SOFT)
    copy = replace(run, id="20260101-000000-ffffff")
    room.take(run, copy)
    assert room.is_now("n1") == (State.SUSPECT, Hold.RESERVATION)


def test_a_second_failure_in_the_same_batch_holds_nobody_while_tripped(room: Room) -> None:
    room.ledger.trip("3 of 4 nodes")
    room.take(*(room.run("n1", SOFT) for _ in range(2)))
    assert room.is_now("n1") == (State.QUARANTINED, Hold.NONE)


def test_while_it_is_tripped_a_repaired_node_that_fails_stays_in_our_reservation(
    room: Room,
) -> None:
    repaired = Node(name="n1", state=State.VERIFYING, by="ada", enforced=True)
    room.ledger.put(replace(repaired, suite="quick", checks=("sdc",)), "repair")
    room.ledger.trip("3 of 4 nodes")

    room.take(room.run("n1", SOFT))

    assert room.is_now("n1") == (State.VERIFYING, Hold.RESERVATION)
    node = room.ledger.read_node("n1")
    assert (node.by, node.checks) == ("ada", ("sdc", "gemm"))
    room.take(room.run("n1", GOOD, a_result("sdc")))
    assert room.is_now("n1") == (State.HEALTHY, Hold.NONE)


def test_hard_evidence_waits_for_the_brakes_and_no_rerun_takes_it_back(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")
    for found in (BAD, GOOD, GOOD):
        room.take(room.run("n1", found))
        assert room.is_now("n1") == KEPT
    assert room.ledger.read_node("n1").full_reason.count("held no harder") == 1
    room.ledger.reset("ada", "image 41")

    room.take(room.run("n1", GOOD))

    assert room.is_now("n1") == OUT
    assert "quarantined" in {e.what for e in room.ledger.read_audit("n1")}


def test_hard_evidence_of_a_check_in_doubt_is_acted_on_once_nobody_doubts_it(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    room.take(room.run("n1", SOFT), room.run("n2", BAD), eligible=100)
    room.take(room.run("n3", BAD), room.run("n4", BAD), eligible=100)
    room.take(room.run("n1", BAD), eligible=100)
    room.take(room.run("n1", GOOD), eligible=100)
    assert room.is_now("n1") == KEPT  # 3 of 4 nodes failed it

    room.take(*(room.run(f"n{i}", GOOD) for i in range(10, 20)), eligible=100)
    room.take(room.run("n1", GOOD), eligible=100)

    assert room.is_now("n1") == OUT


def test_a_node_that_was_kept_free_for_its_turn_and_fails_is_newly_held(room: Room) -> None:
    turn = Node(name="", state=State.VERIFYING, enforced=True, suite="quick")
    for node in ("n1", "n2", "n3"):
        room.ledger.put(replace(turn, name=node), "kept free")

    room.take(*(room.run(node, BAD) for node in ("n1", "n2", "n3")))

    assert room.ledger.read_trip_reason().startswith("3 of 4 nodes")
    assert {room.is_now(node) for node in ("n1", "n2", "n3")} == {KEPT}


def test_while_it_is_tripped_nobody_is_held_for_an_error_and_afterwards_is(room: Room) -> None:
    room.policy = replace(BELIEVING, drain_errors=(Cause.MISCONFIGURED,))
    unclear = replace(GOOD, verdict=Verdict.ERROR, cause=Cause.MISCONFIGURED)
    room.ledger.trip("3 of 4 nodes")

    room.take(room.run("n1", unclear))
    assert room.is_now("n1") == (State.UNVERIFIED, Hold.NONE)
    room.ledger.reset("ada", "image 41")
    room.take(room.run("n1", unclear))

    assert room.is_now("n1") == (State.HELD, Hold.DRAIN)


def test_holds_of_a_clock_that_was_ahead_trip_nothing(room: Room) -> None:
    room.now = NOW + 1e8
    room.take(room.run("n1", BAD), room.run("n2", BAD))
    room.now = NOW
    room.take(room.run("n3", BAD))
    assert (room.ledger.read_trip_reason(), room.is_now("n3")) == ("", OUT)


def test_a_reset_by_a_clock_that_was_ahead_does_not_switch_the_breaker_off(room: Room) -> None:
    room.now = NOW + 1e8
    room.take(room.run("n1", BAD), room.run("n2", BAD))
    room.ledger.trip("3 of 4 nodes")
    room.ledger.reset("ada", "image 41")
    room.now = NOW

    for node in ("n3", "n4", "n5"):
        room.take(room.run(node, BAD))

    assert room.is_now("n4") == OUT
    assert room.ledger.read_trip_reason().startswith("3 of 4 nodes")


def test_what_a_check_said_by_a_clock_that_was_ahead_doubts_nothing(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    room.now = NOW + 1e8
    room.take(room.run("n1", BAD), room.run("n2", BAD), eligible=100)
    room.now = NOW

    room.take(room.run("n3", BAD), eligible=100)

    assert room.is_now("n3") == OUT


def test_many_that_pass_make_the_bad_ones_no_fewer(room: Room) -> None:
    runs = [room.run(f"n{i}", BAD if i < 3 else GOOD) for i in range(30)]
    room.take(*runs, eligible=30)
    assert (room.held(), room.ledger.read_trip_reason()) == ({"n0", "n1", "n2"}, "")


def test_a_check_that_fails_widely_holds_nobody_and_says_why(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    runs = [room.run(f"n{i}", BAD if i < 4 else GOOD) for i in range(10)]
    room.take(*runs, eligible=100)
    assert (room.held(), room.ledger.read_trip_reason()) == (set(), "")
    assert "gemm fails on 4 of the 10 nodes" in room.ledger.read_node("n1").full_reason


def test_another_check_that_fails_beside_a_doubted_one_is_believed(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    runs = [room.run(f"n{i}", BAD) for i in range(3)]
    room.take(*runs, room.run("n9", BAD, make_wrong_word("sdc")), eligible=100)
    assert room.held() == {"n9"}


def test_a_suspect_whose_check_is_in_doubt_is_held_no_harder(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    room.take(room.run("n1", SOFT), room.run("n2", BAD), eligible=100)
    room.take(room.run("n3", BAD), eligible=100)

    room.take(room.run("n1", SOFT), eligible=100)

    assert (room.is_now("n1"), room.is_now("n2")) == (KEPT, OUT)
    assert "gemm fails on 3 of the 3 nodes" in room.ledger.read_node("n1").full_reason
    room.take(*(room.run(f"n{i}", GOOD) for i in range(10, 20)), eligible=100)
    room.take(room.run("n1", SOFT), eligible=100)
    assert room.is_now("n1") == OUT  # nobody doubts it any more


def test_a_suspect_that_fails_another_check_than_those_in_doubt_is_held_harder(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    room.take(room.run("n1", SOFT), room.run("n2", BAD), eligible=100)
    room.take(room.run("n3", BAD), eligible=100)
    room.take(room.run("n1", SOFT, make_wrong_word("sdc", conclusive=False)), eligible=100)
    assert room.is_now("n1") == OUT


def test_what_a_check_said_in_earlier_batches_counts_for_the_doubt(room: Room) -> None:
    room.policy = Quarantine(enforce=("*",))
    for node in ("n1", "n2", "n3"):
        room.take(room.run(node, BAD), eligible=100)
    assert room.held() == {"n1", "n2"}


def test_runs_of_one_node_are_judged_in_sequence(room: Room) -> None:
    first, second = (room.run("n1", SOFT) for _ in range(2))

    suspect, quarantined = room.take(first, second)

    assert (suspect.before.state, suspect.after.state) == (State.UNVERIFIED, State.SUSPECT)
    assert quarantined.before == suspect.after
    assert quarantined.after.state is State.QUARANTINED
    assert room.ledger.read_node("n1") == quarantined.after


def test_a_run_that_comes_again_is_judged_no_more(room: Room) -> None:
    run = room.run("n1", BAD)
    room.take(run)
    room.ledger.put(Node(name="n1"), "released", actor="ada")
    assert (room.take(run, run), room.ledger.read_node("n1")) == ([], Node(name="n1"))


def test_a_run_that_was_kept_and_not_judged_is_judged_the_next_time(room: Room) -> None:
    run = room.run("n1", BAD)
    Store(room.state).save(replace(run, token=""))  # it was killed here
    assert (len(room.take(run)), room.held()) == (1, {"n1"})


def test_the_token_is_not_kept_with_the_run(room: Room) -> None:
    run = room.run("n1", GOOD)
    room.take(run)
    kept = Store(room.state).get_document_path(run.id).read_text()
    assert run.token
    assert run.token not in kept


def test_a_ticket_is_good_for_one_run(room: Room) -> None:
    run = room.run("n1", GOOD)
    room.take(run)
    other = replace(run, id="20260101-000000-ffffff", results=(BAD,))

    room.take(replace(other, verdict=Verdict.FAIL))

    assert room.ledger.read_node("n1").state is State.SUSPECT
    assert room.held() == set()


def test_what_nobody_ordered_sways_no_breaker_and_no_doubt(room: Room) -> None:
    runs = (room.run(f"n{i}", BAD, token="forged") for i in range(9))  # noqa: S106 - nobody's
    room.take(*runs, eligible=9)
    assert (room.held(), room.ledger.read_trip_reason()) == (set(), "")
    assert room.ledger.read_outcomes(0) == {}


def test_a_repeat_offender_is_made_of_the_quarantines_that_the_log_knows(room: Room) -> None:
    became: list[State] = []
    for _ in range(3):
        room.take(room.run("n1", BAD))
        became.append(room.ledger.read_node("n1").state)
        room.ledger.put(Node(name="n1"), "released", actor="ada")

    assert became == [State.QUARANTINED, State.QUARANTINED, State.REPEAT_OFFENDER]


def test_quarantines_by_a_clock_that_was_ahead_make_no_repeat_offender(room: Room) -> None:
    for now in (NOW + 1e8, NOW + 1e8, NOW):
        room.now = now
        room.take(room.run("n1", BAD))
        became = room.ledger.read_node("n1").state
        room.ledger.put(Node(name="n1"), "released", actor="ada")

    assert became is State.QUARANTINED
