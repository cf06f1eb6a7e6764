"""What keeps an error of ours, or of a rollout, from taking the fleet out of service."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify import gate
from hpcverify.fleet.states import DAY_S, HOUR_S, Caveat, Hold, State
from hpcverify.model import Cause, Fact, Verdict
from tests.doubles import a_result
from tests.fleet.builders import Room, a_room, make_wrong_word

BAD, GOOD = make_wrong_word(), a_result("sdc")
SLOW = make_wrong_word(conclusive=False)
CLOSED: dict[str, Any] = {"fail_closed": ("sdc",)}
OLD, NEW = ({"hpcverify": "0.1.0", "torch": version} for version in ("2.6", "2.7"))


def list_drained(room: Room) -> set[str]:
    return {name for name, node in room.slurm.nodes.items() if node.drained}


def list_refusing(room: Room, name: str) -> tuple[str, ...]:
    """List the checks whose failure may refuse a job on a node."""
    found = gate.read(room.folder / "spool" / gate.GATE_NAME / name, room.now)
    assert found is not None
    return found.checks


def refuse(room: Room, names: Iterable[str]) -> None:
    """Have the prologs of nodes find the same, refuse a job, and Slurm drain the nodes."""
    for name in names:
        room.finds(name, BAD, hook=True, suite="prolog")
        room.slurm.drain([name], "Prolog error", by="slurm")


def pass_night(room: Room, bad: Collection[str], *, new: Collection[str] = ()) -> None:
    """Verify the *bad* nodes in service twice, and some others; those *new* have another torch."""
    room.now += DAY_S - 2 * HOUR_S
    others = [name for name in room.slurm.nodes if name not in bad][-14:]
    for names in ((*bad, *others), bad):
        for name in (name for name in names if name not in list_drained(room)):
            result = SLOW if name in bad else GOOD
            room.finds(name, result, versions=NEW if name in new else OLD)
        room.collect(after=HOUR_S)


# -- prologs that refuse jobs


def test_a_finding_that_all_prologs_have_at_once_drains_nobody_before_or_after_a_reset(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    room.collect()
    refuse(room, room.slurm.nodes)
    room.collect()

    assert room.ledger.read_trip_reason().startswith("12 of 12 nodes")
    assert list_drained(room) == set()
    room.ledger.reset("ada", "it was the driver")
    room.collect(3)
    assert (list_drained(room), room.ledger.read_trip_reason()) == (set(), "")
    assert {room.node(name).state for name in room.slurm.nodes} == {State.SUSPECT}
    log = [entry.what for entry in room.ledger.read_audit(limit=1000)]
    assert (log.count("undid hook drain"), log.count("breaker reset")) == (12, 1)


def test_two_nodes_whose_prologs_refused_a_job_are_quarantined(tmp_path: Path) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    refuse(room, ("n1", "n2"))
    room.collect()
    assert {name for name in list_drained(room) if room.node(name).hold_id} == {"n1", "n2"}


@pytest.mark.parametrize("hours", [-3, 3])
@pytest.mark.parametrize("count", [1, 12])
def test_a_prolog_error_of_another_time_is_left_alone(
    tmp_path: Path, hours: float, count: int
) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    room.collect()
    refuse(room, list(room.slurm.nodes)[2 : 2 + count])
    room.slurm.nodes["n3"].at += hours * HOUR_S
    room.collect()
    assert list_drained(room) == {"n3"}
    assert room.node("n3").foreign == "Prolog error"


def test_a_drain_of_somebody_else_is_not_undone(tmp_path: Path) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    room.collect()
    refuse(room, room.slurm.nodes)
    room.slurm.drain(["n3"], "Prolog error", by="jane")
    room.slurm.drain(["n4"], "PSU swap", by="jane")
    room.collect()
    assert list_drained(room) == {"n3", "n4"}


def test_a_prolog_error_for_a_check_that_is_in_doubt_is_undone(tmp_path: Path) -> None:
    room = a_room(tmp_path, 12)
    room.policy = {**CLOSED, "check_share": 0.3}
    for name in ("n1", "n2", "n3"):
        room.finds(name, SLOW)
    room.collect()
    refuse(room, ("n4", "n5"))
    room.collect()
    assert (list_drained(room), room.ledger.read_trip_reason()) == (set(), "")
    assert room.node("n4").state is State.SUSPECT


@pytest.mark.parametrize(("check", "conclusive"), [("gemm", True), ("sdc", False)])
def test_a_prolog_error_beside_a_run_that_refuses_no_job_is_left_alone(
    tmp_path: Path, check: str, *, conclusive: bool
) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    room.finds("n3", BAD, hook=True, suite="prolog")
    room.ledger.trip("3 of 4 nodes")
    room.collect(after=HOUR_S)
    room.finds("n3", make_wrong_word(check, conclusive=conclusive), hook=True, suite="health")
    room.slurm.drain(["n3"], "Prolog error", by="slurm")
    room.collect(2, after=60)
    assert list_drained(room) == {"n3"}
    assert room.node("n3").foreign == "Prolog error"


def test_what_cannot_be_written_or_removed_in_the_spool_keeps_no_place_free(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 12)
    room.policy = CLOSED
    room.collect()
    gates = tmp_path / "spool" / "gate"
    (gates / "n9").unlink()
    for folder in (gates / "n9", gates / ".places" / "n8"):  # as who is root on a node can
        (folder / "x").mkdir(parents=True)
    room.quarantine("n1", "n2")
    room.collect()
    assert [path.name for path in (gates / ".places").iterdir()] == ["n8"]
    assert [line.endswith(": remove it") for line in room.said if ".places" in line] == [True] * 2


# -- how many are out at all


@pytest.mark.parametrize(("count", "a_night", "most"), [(40, 2, 8), (12, 1, 4)])
def test_failures_that_come_slowly_take_no_more_than_a_share_of_the_fleet_out(
    tmp_path: Path, count: int, a_night: int, most: int
) -> None:
    room = a_room(tmp_path, count)
    room.policy = {"check_share": 0.3}
    names = list(room.slurm.nodes)
    for night in range(1, 7):
        pass_night(room, names[: night * a_night])
        if night == 5:  # it starts nothing anew
            room.ledger.reset("ada", "again")
    assert len(list_drained(room)) <= most
    assert "would be out of service for failures; at most" in room.ledger.read_trip_reason()
    assert room.node(names[6 * a_night - 1]).caveat is Caveat.SPARED


def test_nodes_that_cannot_be_judged_take_no_more_than_a_share_of_the_fleet_out(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 12)
    room.policy = {"drain_errors": ("crashed",)}
    for name in room.slurm.nodes:
        room.finds(name, a_result("sdc", verdict=Verdict.ERROR, cause=Cause.CRASHED))
        room.collect(after=DAY_S)
    assert list_drained(room) == {"n1", "n2", "n3", "n4"}
    assert room.ledger.read_trip_reason().startswith("5 of 12 nodes would be out")


def test_nodes_that_have_left_slurm_are_no_longer_out(tmp_path: Path) -> None:
    room = a_room(tmp_path, 12)
    for names in (("n1", "n2"), ("n3", "n4"), ("n5", "n6")):
        room.quarantine(*names)
        for name in names:
            del room.slurm.nodes[name]
        room.collect(2, after=DAY_S)
    assert room.ledger.read_trip_reason() == ""


def test_a_check_that_fails_on_the_nodes_of_a_rollout_alone_is_doubted(tmp_path: Path) -> None:
    room = a_room(tmp_path, 20)
    room.policy = {"check_share": 0.3}
    names = list(room.slurm.nodes)
    for name in names:
        room.finds(name, GOOD, versions=OLD)
    for night in range(1, 4):
        pass_night(room, new := names[: 2 * night], new=new)

    assert list_drained(room) == {"n1", "n2"}
    assert room.ledger.read_trip_reason() == ""
    why = room.controller.find_doubts()["sdc"].why
    assert why.startswith("sdc fails on 6 of 6 nodes of a rollout, and on 0 of 14 others")
    assert why.endswith("suspect hpcverify's torch 2.7, not the nodes")
    room.ledger.reset("ada", "the nodes that are out still count")
    pass_night(room, ("n3",), new=("n3",))
    assert list_drained(room) == {"n1", "n2"}
    assert "sdc" in room.controller.find_doubts()
    for name in names[2:6]:
        room.finds(name, GOOD, versions=NEW)
    room.collect()
    assert room.controller.find_doubts() == {}


@pytest.mark.parametrize(
    ("versions", "held"), [(OLD, True), (NEW, False), ({"hpcverify": "0.1.0"}, False)]
)
@pytest.mark.parametrize("hook", [False, True])
def test_a_rollout_excuses_the_nodes_with_the_change_and_those_that_report_no_version(
    tmp_path: Path, versions: dict[str, str], *, hook: bool, held: bool
) -> None:
    room = a_room(tmp_path, 40)
    room.policy = {"check_share": 0.3, **CLOSED}
    *names, sick = room.slurm.nodes
    for name in names:
        room.finds(name, GOOD, versions=OLD)
    room.finds(sick, GOOD, versions=versions)
    room.collect()
    for _ in range(2):
        for name in names[:3]:
            room.finds(name, SLOW, versions=NEW)
        if hook:  # with conclusive evidence, which a verification is to confirm
            room.finds(sick, BAD, hook=True, suite="prolog", versions=versions)
        else:
            room.finds(sick, SLOW, versions=versions)
        room.collect(after=HOUR_S)
    assert list_drained(room) | room.slurm.reserved == ({sick} if held else set())
    assert room.controller.find_doubts()["sdc"].unchanged == ((sick,) if held else ())
    room.collect(3)
    assert list_drained(room) | room.slurm.reserved == ({sick} if held else set())
    assert list_refusing(room, sick) == (("sdc",) if held else ())
    assert list_refusing(room, names[0]) == ()


@pytest.mark.parametrize("hook", [False, True])
def test_a_run_that_reports_no_version_beside_the_failure_excuses_nothing(
    tmp_path: Path, *, hook: bool
) -> None:
    room = a_room(tmp_path, 40)
    room.policy = {"check_share": 0.3}
    *names, sick = room.slurm.nodes
    for name in (*names, sick):
        room.finds(name, GOOD, versions=OLD)
    room.collect()
    for _ in range(2):
        for name in names[:3]:
            room.finds(name, SLOW, versions=NEW)
        room.finds(sick, SLOW, versions=OLD)
        room.now += 60
        suite = "prolog" if hook else "quick"
        room.finds(sick, a_result("xid"), hook=hook, suite=suite, versions={"hpcverify": "0.1.0"})
        room.collect(after=HOUR_S)
    assert list_drained(room) == {sick}


def test_a_rollback_excuses_the_nodes_that_went_back_and_not_those_that_never_left(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 40)
    room.policy = {"check_share": 0.3}
    *names, sick = room.slurm.nodes
    for name in (*names, sick):
        room.finds(name, GOOD, versions=NEW if name in names[:3] else OLD)
    room.collect(after=20 * DAY_S)
    for _ in range(2):
        for name in (*names[:3], sick):
            room.finds(name, SLOW, versions=OLD)
        room.collect(after=HOUR_S)
    assert "suspect hpcverify's torch 2.6" in room.controller.find_doubts()["sdc"].why
    assert list_drained(room) == {sick}


def test_two_bad_nodes_that_have_something_new_are_quarantined(tmp_path: Path) -> None:
    room = a_room(tmp_path, 20)
    room.policy = {"check_share": 0.3}
    for name in room.slurm.nodes:
        room.finds(name, GOOD, versions=OLD)
    for _ in range(2):
        pass_night(room, ("n1", "n2"), new=("n1", "n2"))
    assert (list_drained(room), room.controller.find_doubts()) == ({"n1", "n2"}, {})


def test_three_bad_nodes_of_a_rollout_that_others_pass_are_quarantined(tmp_path: Path) -> None:
    room = a_room(tmp_path, 24)
    room.policy = {"check_share": 0.3}
    names = list(room.slurm.nodes)
    for name in names:
        room.finds(name, GOOD, versions=OLD)
    pass_night(room, (bad := ("n1", "n2", "n3")), new=names[:18])
    assert (list_drained(room), room.controller.find_doubts()) == ({*bad}, {})


def test_what_all_pass_again_after_a_rollout_is_not_doubted_for_the_nodes_that_are_out(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 24)
    room.policy = {"check_share": 0.3}
    names = list(room.slurm.nodes)
    for name in names:
        room.finds(name, GOOD, versions=OLD)
    pass_night(room, (bad := ("n1", "n2", "n3")), new=names[:18])
    for versions in (NEW, {**NEW, "torch": "2.8"}):
        room.now += 15 * DAY_S
        for name in names[3:]:
            room.finds(name, GOOD, versions=versions)
        room.collect()
        assert (list_drained(room), room.controller.find_doubts()) == ({*bad}, {})


def test_a_check_is_doubted_though_others_passed_it_before_they_got_what_is_new(
    tmp_path: Path,
) -> None:
    room = a_room(tmp_path, 24)
    room.policy = {"check_share": 0.3}
    names = list(room.slurm.nodes)
    for hook, versions in ((False, OLD), (True, NEW)):
        for name in names:
            room.finds(name, GOOD, versions=versions, hook=hook)
        room.collect(2)
    for _ in range(2):
        for name in names[:3]:
            room.finds(name, SLOW, versions=NEW)
        room.collect()
    assert list_drained(room) == set()
    assert "sdc fails on 3 of 3 nodes of a rollout" in room.controller.find_doubts()["sdc"].why


def test_a_fault_that_leaves_each_node_with_fewer_parts_is_no_rollout(tmp_path: Path) -> None:
    room = a_room(tmp_path, 20)
    room.policy = {"check_share": 0.3}
    whole, lost = (
        replace(result, facts=(Fact("NVLinks up", links, "GPU-1"),))
        for result, links in ((GOOD, "18"), (SLOW, "17"))
    )
    for name in room.slurm.nodes:
        room.finds(name, whole)
    room.collect()
    for name in (bad := ("n1", "n2", "n3")):
        room.now += 2 * DAY_S
        for _ in range(2):
            room.finds(name, lost)
            room.collect()
    assert (list_drained(room), room.controller.find_doubts()) == ({*bad}, {})


# -- nodes that are never idle


@pytest.fixture
def busy(room: Room) -> Room:
    """Have a hook of n1, which is never idle, find what no rerun can take back."""
    room.collect()
    room.finds("n1", BAD, hook=True)
    room.collect()
    return room


def test_conclusive_evidence_of_a_hook_keeps_new_jobs_off_in_the_same_cycle(busy: Room) -> None:
    assert busy.slurm.reserved == {"n1"}
    assert busy.node("n1").full_reason.endswith("(reserved until it is verified)")
    assert len(busy.ledger.list_open_tickets()) == 1


@pytest.mark.parametrize(
    ("result", "state", "hold"),
    [
        (GOOD, State.HEALTHY, Hold.NONE),  # the document was forged, say
        (BAD, State.QUARANTINED, Hold.DRAIN),
        (SLOW, State.QUARANTINED, Hold.DRAIN),
        (make_wrong_word("gemm", conclusive=False), State.SUSPECT, Hold.RESERVATION),
        (a_result("sdc", verdict=Verdict.ERROR, cause=Cause.CRASHED), State.SUSPECT, Hold.NONE),
    ],
)
def test_only_a_verification_holds_it_and_there_is_one(
    busy: Room, result: Any, state: State, hold: Hold
) -> None:
    (ticket,) = busy.ledger.list_open_tickets()
    busy.finds("n1", result)
    busy.ledger.close_ticket(ticket, "finished")
    busy.collect(2)
    node = busy.node("n1")
    assert (node.state, node.desired_hold) == (state, hold)
    assert busy.slurm.reserved == ({"n1"} if hold is Hold.RESERVATION else set())


def test_no_more_are_reserved_for_evidence_than_may_be_held(tmp_path: Path) -> None:
    room = a_room(tmp_path, 12)
    for name in room.slurm.nodes:
        room.finds(name, BAD, hook=True)
    room.collect(3)
    assert len(room.slurm.reserved) == 2
    assert list_drained(room) == set()


@pytest.mark.parametrize(("count", "reserved"), [(4, 1), (8, 2)])
def test_reserved_ones_leave_half_of_a_small_fleet_in_service_or_are_one_at_a_time(
    tmp_path: Path, count: int, reserved: int
) -> None:
    room = a_room(tmp_path, count)
    room.quarantine("n1", "n2")
    for name in list(room.slurm.nodes)[2:]:
        room.finds(name, BAD, hook=True)
    room.collect(3)
    assert (len(list_drained(room)), len(room.slurm.reserved)) == (2, reserved)


@pytest.mark.parametrize("policy", [{"enforce": ()}, {"enforce": ("gemm",)}])
def test_a_site_that_does_not_enforce_the_check_reserves_nobody(
    room: Room, policy: dict[str, Any]
) -> None:
    room.policy = policy
    room.finds("n1", BAD, hook=True)
    room.collect(2)
    assert room.slurm.reserved == set()
