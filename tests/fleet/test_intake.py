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
from hpcverify.plan.hostlist import expand
from hpcverify.records.store import Store
from tests.doubles import a_result, a_run
from tests.fleet.builders import make_wrong_word
from tests.tables import read_table

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


@dataclass(frozen=True)
class Story:
    """
    A row of ``intake.csv``: what came in, step by step, and who is held in the end.

    A step is the runs of a batch (``n1:bad n2:good``), something that happens in between, or
    what must be true by then (``n1 is kept``). *tripped* is how the breaker's reason begins.
    """

    claim: str
    policy: str
    eligible: int
    steps: str
    held: str = ""
    tripped: str = ""


POLICIES = {
    "believing": BELIEVING,
    "doubting": Quarantine(enforce=("*",)),
    "draining": replace(BELIEVING, drain_errors=(Cause.MISCONFIGURED,)),
}
RESULTS = {
    "good": GOOD,
    "bad": BAD,
    "soft": SOFT,
    "sdc": make_wrong_word("sdc"),
    "soft-sdc": make_wrong_word("sdc", conclusive=False),
    "unclear": replace(GOOD, verdict=Verdict.ERROR, cause=Cause.MISCONFIGURED),
}
KEPT = (State.SUSPECT, Hold.RESERVATION)
OUT = (State.QUARANTINED, Hold.DRAIN)
HOLDS = {"kept": KEPT, "out": OUT, "held": (State.HELD, Hold.DRAIN)}


def take_step(room: Room, step: str, eligible: int) -> None:
    match step.split():
        case ["trip"]:
            room.ledger.trip("3 of 4 nodes")
        case ["reset"]:
            room.ledger.reset("ada", "image 41")
        case ["clock", ahead]:
            room.now = NOW + float(ahead)
        case ["free", nodes]:
            turn = Node(name="", state=State.VERIFYING, enforced=True, suite="quick")
            for node in expand(nodes):
                room.ledger.put(replace(turn, name=node), "kept free")
        case [nodes, "is", word]:
            expected = HOLDS[word] if word in HOLDS else (State(word), Hold.NONE)
            assert {room.is_now(node) for node in expand(nodes)} == {expected}, step
        case [node, "because", *why]:
            assert " ".join(why) in room.ledger.read_node(node).full_reason
        case runs:
            found = [
                (node, r) for n, _, r in (w.partition(":") for w in runs) for node in expand(n)
            ]
            made = [room.run(node, *(RESULTS[word] for word in r.split("+"))) for node, r in found]
            room.take(*made, eligible=eligible)


STORIES = read_table(Path(__file__).with_name("intake.csv"), Story)


@pytest.mark.parametrize("row", STORIES, ids=lambda row: row.claim)
def test_intake(room: Room, row: Story) -> None:
    room.policy = POLICIES[row.policy]
    for step in row.steps.split(" | "):
        take_step(room, step, row.eligible)
    assert room.held() == ({*expand(row.held)} if row.held else set())
    tripped = room.ledger.read_trip_reason()
    assert (tripped.startswith(row.tripped), bool(tripped)) == (True, bool(row.tripped))


def test_too_many_at_once_trip_the_breaker_before_anybody_is_held(room: Room) -> None:
    room.take(*(room.run(node, BAD) for node in ("n1", "n2", "n3")))
    assert room.held() == set()
    assert room.ledger.read_trip_reason().startswith("3 of 4 nodes")
    assert room.ledger.list_newly_held(0) == set()
    assert {n.state for n in room.ledger.list_nodes().values()} == {State.QUARANTINED}


def test_while_it_is_tripped_nobody_is_newly_held_and_passes_count(room: Room) -> None:
    room.take(room.run("n1", BAD))
    room.ledger.trip("a person said so")
    room.take(room.run("n2", BAD), room.run("n3", GOOD))
    assert (room.held(), room.ledger.read_node("n3").last_pass_at) == ({"n1"}, NOW)
    assert "quarantined (observed)" in {e.what for e in room.ledger.read_audit("n2")}


def test_while_it_is_tripped_a_suspect_that_fails_again_is_held_no_harder(room: Room) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")

    room.take(again := room.run("n1", make_wrong_word("sdc")))

    assert room.is_now("n1") == KEPT
    node = room.ledger.read_node("n1")
    assert "not held more strictly: the breaker tripped: 3 of 4 nodes" in node.full_reason
    assert (node.run, node.checks) == (again.id, ("gemm", "sdc"))
    # Nothing moved since its last verification: no rerun is due at once.
    assert room.ledger.read_last_ticket_number() > node.not_before_ticket


def test_a_ticket_counts_once_though_two_runs_came_with_it_together(room: Room) -> None:
    run = room.run("n1", SOFT)
    copy = replace(run, id="20260101-000000-ffffff")
    room.take(run, copy)
    assert room.is_now("n1") == (State.SUSPECT, Hold.RESERVATION)


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


def test_hard_evidence_waits_for_the_brakes_until_a_reset_asks_for_a_new_finding(
    room: Room,
) -> None:
    room.take(room.run("n1", SOFT))
    room.ledger.trip("3 of 4 nodes")
    for found in (BAD, GOOD, GOOD):
        room.take(room.run("n1", found))
        assert room.is_now("n1") == KEPT
    assert room.ledger.read_node("n1").full_reason.count("not held more strictly") == 1
    room.ledger.reset("ada", "image 41")

    room.take(room.run("n1", GOOD))
    assert room.is_now("n1") == (State.HEALTHY, Hold.NONE)

    room.take(room.run("n1", BAD))
    assert room.is_now("n1") == OUT
    assert "quarantined" in {e.what for e in room.ledger.read_audit("n1")}


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
