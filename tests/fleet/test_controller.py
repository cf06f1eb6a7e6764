"""What a cycle makes of Slurm's answers: nobody is judged by what they leave out."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.fleet.holds_slurm import SlurmBackend
from hpcverify.fleet.states import Hold, Node, State
from hpcverify.fleet.transitions import Decision, admit
from hpcverify.insight.overview import build_overview
from tests.doubles import a_result
from tests.fleet.builders import Room, a_room, make_wrong_word
from tests.fleet.paper import PaperJob, PaperNode

DAY = 86400.0
THEIRS = "PSU swap | ticket 17"
MAINTENANCE = "maintenance on Monday"


BAD, GOOD = make_wrong_word(), a_result("sdc")


# -- what an answer does not say


def test_nodes_that_are_kept_free_for_their_turn_make_no_stranger_of_others(room: Room) -> None:
    room.fleet = {"overdue_days": 7}
    room.quarantine("n2")
    held = room.slurm.holds("n2")

    room.collect(times=3)
    assert [n.foreign for n in room.ledger.list_nodes().values()] == ["", "", "", ""]
    room.collect(after=8 * DAY)
    room.collect(times=2)

    known = room.ledger.list_nodes()
    assert [node.foreign for node in known.values()] == ["", "", "", ""]
    assert room.slurm.holds("n2") == held
    assert sum(node.is_reserved_overdue for node in known.values()) == 1  # two stay in service
    assert known["n2"].desired_hold is Hold.DRAIN


def test_a_node_that_slurm_has_not_heard_of_since_it_started_takes_nobodys_turn(room: Room) -> None:
    room.fleet = {"overdue_days": 7}
    room.collect(times=3)
    for name in ("n1", "n2"):
        room.slurm.nodes[name].state = "UNKNOWN"
    room.collect(after=8 * DAY)

    overdue = {name for name, node in room.ledger.list_nodes().items() if node.is_reserved_overdue}
    assert overdue == room.slurm.reserved == {"n3", "n4"}


def test_on_a_fresh_site_nobody_is_overdue(room: Room) -> None:
    room.fleet = {"overdue_days": 7}
    room.collect(times=2)
    assert room.slurm.reserved == set()
    (row, *_) = build_overview(room.ledger.list_nodes(), (), (), now=room.now).rows
    assert not row.overdue


def test_a_node_that_is_new_to_the_cluster_is_not_overdue(room: Room) -> None:
    room.collect()
    room.fleet = {"overdue_days": 7}
    room.now += 30 * DAY
    room.policy = {"share": 0.3}
    room.slurm.nodes = {"n9": PaperNode()}

    room.collect()

    assert room.slurm.reserved == set()


def test_a_clock_that_was_ahead_when_the_site_began_makes_nobody_overdue(room: Room) -> None:
    room.collect()
    room.now -= 400 * DAY
    room.fleet = {"overdue_days": 7}
    room.collect(times=2)
    assert room.slurm.reserved == set()


def test_a_node_that_one_answer_leaves_out_keeps_its_hold_and_its_reason(room: Room) -> None:
    room.quarantine("n2")
    before, held = room.node("n2"), room.slurm.holds("n2")

    room.slurm.omitted["nodes"] = [{"n2"}]
    room.collect()
    assert room.node("n2").desired_hold is Hold.DRAIN
    room.collect(times=2)

    assert replace(room.node("n2"), hold_confirmed_at=0.0) == replace(before, hold_confirmed_at=0.0)
    assert room.slurm.holds("n2") == held
    assert held[1].startswith("hpcverify[")


def test_a_node_is_shown_as_gone_after_an_hour_and_is_found_as_it_was(room: Room) -> None:
    room.quarantine("n2")
    away = room.slurm.nodes.pop("n2")

    def shown() -> str:
        rows = build_overview(room.ledger.list_nodes(), (), (), now=room.now).rows
        (row,) = (row for row in rows if row.node.name == "n2")
        return f"{row.state}: {row.why}"

    room.collect(times=6)
    assert shown() == "quarantined: sdc: CPU: a wrong word"
    room.collect(times=2)
    assert shown() == (
        "held by others: the scheduler no longer has this node; "
        "it was quarantined: sdc: CPU: a wrong word"
    )
    room.slurm.nodes["n2"] = away
    room.collect()

    assert shown() == "quarantined: sdc: CPU: a wrong word"
    assert room.slurm.nodes["n2"] == away


def test_one_answer_without_our_drain_is_not_enough_to_give_a_node_up(room: Room) -> None:
    room.quarantine("n2")
    room.collect(times=2)
    drained = room.slurm.nodes["n2"]
    controller = room.controller
    seen = {**controller.backend.read_holds()}

    class LiesOnce(SlurmBackend):
        """Answers once as if nobody held n2."""

        def read_holds(self) -> Any:
            if not lies:
                return super().read_holds()
            return {**seen, "n2": lies.pop()}

    lies = [replace(seen["n2"], drained=False, reason="", hold_id="")]
    controller.backend = LiesOnce(controller.slurm)
    controller.reconcile()

    assert room.node("n2").state is State.QUARANTINED
    assert room.slurm.nodes["n2"] == drained


def test_a_node_that_is_gone_between_two_answers_keeps_no_other_from_its_rerun(room: Room) -> None:
    for name in ("n1", "n2"):
        room.finds(name, make_wrong_word(conclusive=False))
    room.collect()
    for ticket in room.ledger.list_open_tickets():
        room.ledger.close_ticket(ticket, "cancelled")
    room.slurm.omitted["nodes"] = [set(), {"n1"}]

    room.collect(after=7200)

    assert [ticket.node for ticket in room.ledger.list_open_tickets()] == ["n2"]


def test_a_job_that_one_answer_leaves_out_is_not_given_up(room: Room) -> None:
    ticket = room.ledger.issue_ticket("n1", "sweep", "quick")
    name = f"hpcverify-{ticket.number}-n1"
    room.slurm.jobs[7] = PaperJob(7, name)
    room.ledger.record_job(ticket, 7)
    room.slurm.omitted["jobs"] = [{name}]

    room.collect()

    assert [t.number for t in room.ledger.list_open_tickets()] == [ticket.number]


def test_nodes_of_which_no_run_ever_came_are_known(room: Room) -> None:
    room.collect()
    known = room.ledger.list_nodes()
    assert sorted(known) == ["n1", "n2", "n3", "n4"]
    rows = build_overview(known, (), (), now=room.now).rows
    assert [(row.state_label, row.heard) for row in rows] == [("unverified", 0)] * 4


# -- what Slurm is asked


def test_a_drain_of_all_nodes_by_the_administrator_costs_no_question_per_node(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 1000)
    room.collect()
    calm = room.questions()

    room.slurm.drain(room.slurm.nodes, MAINTENANCE)
    assert room.questions() == calm
    assert {n.foreign for n in room.ledger.list_nodes().values()} == {MAINTENANCE}
    room.slurm.resume(*room.slurm.nodes)
    assert room.questions() == calm
    assert {n.foreign for n in room.ledger.list_nodes().values()} == {""}
    assert calm <= 5


def test_holds_that_somebody_lifts_cost_one_more_look_however_many_they_are(tmp_path: Path) -> None:
    room = a_room(tmp_path, 40)
    names = [f"n{i}" for i in range(1, 9)]
    room.policy = {"share": 1, "cap": 100}
    room.collect()
    room.quarantine(*names)
    room.collect()
    calm = room.questions()

    room.slurm.resume(*names)

    assert room.questions() <= calm + 3
    assert {room.node(name).state for name in names} == {State.UNVERIFIED}


# -- whose drain it is


def reason_of(room: Room, name: str) -> str:
    return room.slurm.nodes[name].reason


def test_who_adds_a_note_to_our_reason_has_taken_the_node_over(room: Room) -> None:
    room.quarantine("n2")
    noted = f"{reason_of(room, 'n2')} -- bob: RMA 99, do not touch"
    room.slurm.drain(["n2"], noted)

    room.collect(times=2)

    assert room.slurm.holds("n2") == (True, noted)
    assert (room.node("n2").foreign, room.node("n2").hold_id) == (noted, "")


def test_a_drain_with_a_former_reason_of_ours_is_the_administrators(room: Room) -> None:
    room.quarantine("n2")
    former = reason_of(room, "n2")
    room.slurm.resume("n2")
    room.collect()

    room.slurm.drain(["n2"], former)
    room.collect(times=2)

    assert (room.slurm.holds("n2"), room.node("n2").foreign) == ((True, former), former)


def test_a_former_reason_stays_theirs_while_we_verify_the_node(room: Room) -> None:
    room.quarantine("n2")
    former = reason_of(room, "n2")
    mended = replace(
        room.node("n2"), state=State.VERIFYING, by="ada", not_before_ticket=99, reason="new DIMM"
    )
    room.ledger.put(mended, "repair")
    room.collect()
    assert room.slurm.reserved == {"n2"}

    room.slurm.drain(["n2"], former)
    room.collect(times=2)

    assert (room.slurm.holds("n2"), room.node("n2").foreign) == ((True, former), former)


def test_a_node_whose_run_came_first_of_all_is_not_overdue_at_once(room: Room) -> None:
    room.finds("n2", BAD)
    room.collect()
    rows = build_overview(room.ledger.list_nodes(), [], [], now=room.now).rows
    assert [row.node.name for row in rows if row.overdue] == []


def test_a_former_reason_is_theirs_though_our_clock_was_ahead_when_we_resumed(room: Room) -> None:
    room.quarantine("n2")
    former = reason_of(room, "n2")
    room.collect()
    room.now += DAY
    room.ledger.put(replace(room.node("n2"), state=State.HEALTHY, not_before_ticket=99), "healthy")
    room.collect()
    assert not room.slurm.nodes["n2"].drained
    room.now -= DAY

    room.slurm.drain(["n2"], former)
    room.collect(times=2)

    assert (room.slurm.holds("n2"), room.node("n2").foreign) == ((True, former), former)


@pytest.mark.parametrize("state", [State.VERIFYING, State.HEALTHY])
def test_a_resume_that_slurm_forgot_is_made_again(room: Room, state: State) -> None:
    room.quarantine("n2")
    saved = dataclasses.replace(room.slurm.nodes["n2"])
    room.collect()
    by = "ada" if state is State.VERIFYING else ""
    room.ledger.put(replace(room.node("n2"), state=state, by=by, not_before_ticket=99), "repair")
    room.collect()
    assert not room.slurm.nodes["n2"].drained

    # slurmctld is killed before it wrote that down, and reads what it had.
    room.slurm.nodes["n2"], room.slurm.began = saved, room.now
    room.slurm.reserved.clear()
    room.collect(times=2)

    kept = {"n2"} if state is State.VERIFYING else set[str]()
    assert (room.slurm.holds("n2"), room.slurm.reserved) == ((False, ""), kept)
    assert (room.node("n2").state, room.node("n2").foreign) == (state, "")


@pytest.mark.parametrize(
    "appended",
    [
        " : reboot issued",
        " : reboot requested : reboot complete",
        " : Not responding : ResumeTimeout reached",
    ],
)
def test_what_slurm_itself_appends_to_our_reason_leaves_the_drain_ours(
    room: Room, appended: str
) -> None:
    room.quarantine("n2")
    before = room.node("n2")
    reason = f"{reason_of(room, 'n2')}{appended}"
    room.slurm.drain(["n2"], reason, by="slurm")

    room.collect(times=2)

    assert replace(room.node("n2"), hold_confirmed_at=0.0) == replace(before, hold_confirmed_at=0.0)
    assert room.slurm.holds("n2") == (True, reason)


def test_a_restart_of_slurmctld_is_nobodys_hold_and_loses_none_of_ours(room: Room) -> None:
    """Until its slurmd registers, each node is in the state UNKNOWN."""
    saved = dataclasses.replace(room.slurm.nodes["n2"])
    kept = {
        "n1": Node(name="n1", state=State.UNVERIFIED, checks=("gemm",), since=room.now),
        "n3": Node(name="n3", state=State.SUSPECT, enforced=True, checks=("gemm",)),
    }
    for node in kept.values():
        room.ledger.put(node, "so be it")
    room.quarantine("n2")
    outages = len(room.ledger.list_outages())
    before = {name: room.node(name) for name in kept}

    # It had not saved the drain of n2.
    room.slurm.nodes["n2"], room.slurm.began = saved, room.now
    for paper in room.slurm.nodes.values():
        paper.state = "UNKNOWN"
    room.now += 60
    room.collect(times=2)

    assert {name: room.node(name) for name in kept} == before
    assert [room.node(name).foreign for name in room.slurm.nodes] == [""] * 4
    assert len(room.ledger.list_outages()) == outages
    for paper in room.slurm.nodes.values():
        paper.state = "IDLE"
    room.collect(times=2)
    assert (room.node("n2").state, room.slurm.nodes["n2"].drained) == (State.QUARANTINED, True)
    assert (room.node("n1").returned_at, room.node("n1").reason) == ((), kept["n1"].reason)
    assert "n3" in room.slurm.reserved


# -- who comes back


def test_a_node_that_somebody_else_puts_back_keeps_what_it_failed_and_is_first(room: Room) -> None:
    for name in room.slurm.nodes:
        room.finds(name, GOOD)
    room.collect()
    room.quarantine("n2")
    room.slurm.resume("n2")

    room.collect(times=2)

    node = room.node("n2")
    assert (node.state, node.checks, node.conclusive) == (State.UNVERIFIED, ("sdc",), True)
    assert node.reason == (
        "returned to service by somebody else, not verified since: failed sdc; "
        "it was quarantined: sdc: CPU: a wrong word"
    )
    assert room.slurm.holds("n2") == (False, "")
    room.now += 20 * 3600
    assert room.chosen()[0] == "n2"
    room.finds("n2", GOOD)
    room.collect()
    assert (room.node("n2").state, room.node("n2").checks) == (State.HEALTHY, ())


@pytest.mark.parametrize(("asked", "ordered"), [("idle", "quick"), ("burnin", "burnin")])
def test_a_sweep_has_it_pass_what_it_failed_in_unless_a_person_names_a_suite(
    room: Room, asked: str, ordered: str
) -> None:
    room.quarantine("n2")
    room.slurm.resume("n2")
    room.collect()
    controller = room.controller

    ticket = controller.dispatcher.order_verification(controller.slurm.list_hosts()["n2"], asked)

    assert controller.site.fleet.suite == "idle"
    assert ticket.suite == ordered


def test_a_turn_that_it_is_kept_free_for_is_of_the_suite_that_it_failed_in(room: Room) -> None:
    room.fleet = {"overdue_days": 7}
    room.quarantine("n2")
    room.slurm.resume("n2")
    room.collect(times=2)
    assert room.node("n2").owed_checks == ("sdc",)

    room.collect(times=2, after=8 * DAY)

    assert room.node("n2").is_reserved_overdue
    suites = {t.node: t.suite for t in room.ledger.list_open_tickets()}
    assert suites == {"n1": "idle", "n2": "quick"}


def test_a_node_that_was_taken_over_and_then_let_go_is_not_acquitted(room: Room) -> None:
    room.quarantine("n2")
    room.slurm.drain(["n2"], THEIRS)
    room.collect()
    assert "took it over (PSU swap | ticket 17)" in room.node("n2").reason
    room.slurm.resume("n2")

    room.collect(times=2)

    node = room.node("n2")
    assert node.reason.startswith("returned to service by somebody else, not verified")
    assert len(node.returned_at) == 1
    assert room.chosen()[0] == "n2"


def test_a_site_may_have_it_kept_from_jobs_until_it_has_passed(room: Room) -> None:
    room.policy = {"verify_returned": True}
    room.quarantine("n2")
    room.slurm.resume("n2")

    room.collect()

    assert room.slurm.reserved == {"n2"}
    assert [t.node for t in room.ledger.list_open_tickets()] == ["n2"]
    room.finds("n2", GOOD)
    room.collect(times=2)
    assert (room.node("n2").state, room.slurm.reserved) == (State.HEALTHY, set())


def test_who_lifts_that_reservation_as_well_is_not_worked_against(room: Room) -> None:
    room.policy = {"verify_returned": True}
    room.quarantine("n2")
    room.slurm.resume("n2")
    room.collect()
    room.slurm.reserved.clear()

    room.collect(times=3)

    assert (room.slurm.reserved, room.node("n2").owed_checks) == (set(), ("sdc",))


def test_while_the_breaker_is_tripped_nobody_is_taken_back(room: Room) -> None:
    room.policy = {"verify_returned": True}
    room.quarantine("n2")
    room.ledger.trip("a person said so")
    room.slurm.resume("n2")

    room.collect(times=2)

    assert room.slurm.reserved == set()


def test_who_comes_back_twice_within_a_week_is_for_a_person_to_repair(room: Room) -> None:
    room.policy = {"repeat_quarantines": 9}
    for _ in range(2):
        room.quarantine("n2")
        room.slurm.resume("n2")
        room.collect()
    shown = build_overview(room.ledger.list_nodes(), (), (), now=room.now).rows[0]

    assert shown.node.name == "n2"
    assert shown.why.startswith("came back to service twice within 7 days: have a ")
    assert shown.attention
    room.quarantine("n2")
    assert "have a person repair it" in reason_of(room, "n2")
    later = build_overview(room.ledger.list_nodes(), (), (), now=room.now + 8 * DAY).rows[0]
    assert not later.why.startswith("came back")


# -- what is in doubt


def test_a_suspect_of_a_check_that_is_in_doubt_is_let_go_and_says_why(tmp_path: Path) -> None:
    room = a_room(tmp_path, 10)
    room.policy = {"check_share": 0.3, "share": 1}
    room.finds("n1", make_wrong_word(conclusive=False))
    room.collect()
    assert room.slurm.reserved == {"n1"}

    for name in ("n2", "n3"):
        room.finds(name, make_wrong_word(conclusive=False))
    room.collect(times=2)

    assert room.slurm.reserved == set()
    node = room.node("n1")
    assert (node.state, node.desired_hold) == (State.SUSPECT, Hold.NONE)
    assert node.full_reason == (
        "sdc: CPU: a wrong word (not acted on: sdc fails on 3 of the 3 nodes that ran it: "
        "suspect the check, the driver or the image)"
    )


def test_a_suspect_with_hard_evidence_is_kept_though_its_check_is_in_doubt(tmp_path: Path) -> None:
    room = a_room(tmp_path, 10)
    room.policy = {"check_share": 0.3, "share": 1}
    room.finds("n1", make_wrong_word(conclusive=False))
    room.collect()
    for name in ("n2", "n3"):
        room.finds(name, make_wrong_word())
    room.finds("n1", make_wrong_word())
    room.collect(times=2)

    assert room.slurm.reserved == {"n1"}
    assert "(not held more strictly: sdc fails on 3" in room.node("n1").full_reason


# -- jobs that nobody waits for


def let_wait(room: Room, *names: str) -> None:
    """Have a sweep order verifications whose jobs wait, as while their partition is down."""
    controller = room.controller
    hosts = controller.slurm.list_hosts()
    for name in names:
        controller.dispatcher.order_verification(hosts[name], "quick")


def find_waiting(room: Room) -> dict[str, list[bool]]:
    """Say whether the jobs of each open ticket ask for its node's reservation."""
    sent = [line for line in room.slurm.told if line.startswith("sbatch")]
    found: dict[str, list[bool]] = {}
    for ticket in room.ledger.list_open_tickets():
        (line,) = (one for one in sent if f"--job-name=hpcverify-{ticket.number}-" in one)
        found.setdefault(ticket.node, []).append(f"--reservation=hpcverify-{ticket.node}" in line)
    return found


def test_a_job_that_waits_is_cancelled_and_ordered_anew_once_its_node_is_admitted(
    room: Room,
) -> None:
    room.collect()
    let_wait(room, "n1", "n2")
    assert find_waiting(room) == {"n1": [False], "n2": [False]}
    last = room.ledger.read_last_ticket_number()
    decision = Decision(by="ann", reason="new", at=room.now, last_ticket=last)
    room.ledger.put(admit(room.node("n2"), decision, suite="quick").node, "admit")

    room.collect()

    assert find_waiting(room) == {"n1": [False], "n2": [True]}
    assert [job.state for job in room.slurm.jobs.values()] == ["PENDING", "CANCELLED", "PENDING"]


def test_a_job_that_waits_is_cancelled_and_ordered_anew_once_its_node_is_overdue(
    room: Room,
) -> None:
    room.fleet = {"overdue_days": 7}
    room.collect()
    room.now += 8 * DAY
    let_wait(room, "n1")

    room.collect(times=2)

    assert room.node("n1").is_reserved_overdue
    assert find_waiting(room)["n1"] == [True]


def test_a_job_in_the_reservation_of_its_node_goes_on(room: Room) -> None:
    room.finds("n1", make_wrong_word(conclusive=False))
    room.collect()
    (rerun,) = room.ledger.list_open_tickets()
    room.collect(times=3, after=60)
    assert room.ledger.list_open_tickets() == [rerun]


def test_a_job_of_ours_whose_ticket_is_closed_is_ended(room: Room) -> None:
    tickets = [room.ledger.issue_ticket("n1", "sweep", "quick") for _ in range(4)]
    for number, ticket in enumerate(tickets, 7):
        name = f"hpcverify-{ticket.number}-n1"
        room.slurm.jobs[number] = PaperJob(number, name)
    for number, ticket in enumerate(tickets[:2], 7):
        room.ledger.record_job(ticket, number)
    room.ledger.record_job(tickets[2], 700)  # the name is another controller's
    room.ledger.close_ticket(tickets[0], "vanished")
    room.ledger.close_ticket(tickets[2], "vanished")
    room.ledger.close_ticket(tickets[3], "vanished")  # its submission took effect late
    room.slurm.jobs[50] = PaperJob(50, "hpcverify-999-n1")

    room.collect()

    ended = {job.id for job in room.slurm.jobs.values() if job.end}
    assert ended == {7, 10}
    assert json.dumps(room.slurm.told) == '["scancel 7 10"]'


def test_an_ended_job_that_a_lost_ledger_gave_the_same_name_closes_no_ticket(room: Room) -> None:
    ticket = room.ledger.issue_ticket("n1", "sweep", "quick")
    name = f"hpcverify-{ticket.number}-n1"
    room.ledger.record_job(ticket, 9)
    room.slurm.jobs[9] = PaperJob(9, name)
    room.slurm.jobs[3] = PaperJob(3, name, state="COMPLETED", end=1)

    room.collect(times=2)

    assert [t.number for t in room.ledger.list_open_tickets()] == [ticket.number]


# -- what is kept of runs


def test_the_index_gives_back_the_room_of_the_runs_that_went(room: Room) -> None:
    for _ in range(3):
        room.finds("n1", GOOD)
        room.collect()
    index = room.folder / "state/store.sqlite"
    with closing(sqlite3.connect(index)) as db, db:
        db.execute("update runs set inventory = zeroblob(?)", (10 * 2**20,))
    full = index.stat().st_size

    room.fleet = {"keep_runs": 1}
    room.finds("n1", GOOD)
    room.collect()

    assert index.stat().st_size < full / 2
