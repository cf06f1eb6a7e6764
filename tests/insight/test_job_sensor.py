"""What users' jobs say of a node makes it a suspect, holds nobody, and counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcverify.fleet.evidence import FaultReport
from hpcverify.fleet.notify import build_message
from hpcverify.fleet.states import Hold, State
from hpcverify.insight.job_sensor import find_suspicions, take_suspicions
from hpcverify.insight.overview import (
    choose_page_results,
    describe_outer_result,
    read_outer_results,
    read_overview,
)
from hpcverify.model import Verdict
from hpcverify.plan.config import Fleet, Quarantine, Site
from hpcverify.slurm.accounting import UserJob
from tests.fleet.builders import Ticking, make_controller
from tests.fleet.paper import ME, PaperNode, PaperSlurm

NOW = 1_800_000_000
NODES = [f"n{number}" for number in range(1, 31)]


class Sensor(Ticking):
    """A controller whose Slurm keeps accounts, and the time."""

    def __init__(self, folder: Path) -> None:
        """Make it, with thirty idle nodes."""
        self.now = float(NOW)
        self.slurm = PaperSlurm({name: PaperNode() for name in NODES})
        self.said: list[str] = []
        spool = folder / "spool"
        spool.mkdir()
        site = Site(fleet=Fleet(spool=str(spool), user=ME), quarantine=Quarantine(enforce=("*",)))
        self.controller = make_controller(
            folder / "state", site, self.slurm, self.clock, self.said.append
        )

    def sweep(self) -> dict[str, State]:
        """Begin a sweep: look at the jobs, then take a cycle; give what is no longer new."""
        with self.controller.hold_lock():
            take_suspicions(self.controller)
            self.controller.reconcile()
        nodes = self.controller.ledger.list_nodes()
        return {name: n.state for name, n in nodes.items() if n.state is not State.UNVERIFIED}


@pytest.fixture
def sensor(tmp_path: Path) -> Sensor:
    """Give a controller whose Slurm keeps accounts."""
    return Sensor(tmp_path)


def build_job(user: int, node: str, state: str = "COMPLETED", seconds: int = 60) -> UserJob:
    start = NOW - 3600
    return UserJob(
        user=user, partition="batch", state=state, start=start, end=start + seconds, nodes=(node,)
    )


def print_jobs(jobs: list[UserJob]) -> str:
    rows = (
        (str(j.user), j.partition, j.state, str(j.start), str(j.end), ",".join(j.nodes))
        for j in jobs
    )
    return "".join(f"{'|'.join(row)}\n" for row in rows)


GOOD = [build_job(user, node) for user in range(6) for node in NODES[user::3]]
HOLE = [build_job(user, "n5", "FAILED", seconds=20) for user in range(6)]


def find(jobs: list[UserJob], avoided: dict[str, set[int]] | None = None) -> list[tuple[str, str]]:
    found = find_suspicions(jobs, avoided or {}, len(NODES), NOW)
    return [(one.node, one.faults[0].code) for one in found if isinstance(one, FaultReport)]


def test_a_black_hole_becomes_a_suspect_in_service_that_is_verified_first(sensor: Sensor) -> None:
    sensor.slurm.ended = print_jobs(GOOD + HOLE)

    assert sensor.sweep() == {"n5": State.SUSPECT}
    node = sensor.controller.ledger.read_node("n5")
    assert node.desired_hold is Hold.NONE
    assert "jobs of 4 of 6 users died within 10 min" in node.reason
    assert sensor.controller.plan(sensor.controller.slurm.list_hosts()).chosen[0].node == "n5"


def test_what_jobs_say_is_shown_with_its_source_and_date_and_told_to_the_site(
    sensor: Sensor,
) -> None:
    sensor.slurm.ended = print_jobs(GOOD + HOLE)
    with sensor.controller.hold_lock():
        take_suspicions(sensor.controller)

    ledger, state = sensor.controller.ledger, sensor.controller.state
    (said,) = map(describe_outer_result, read_outer_results(state, "n5"))
    assert said.startswith("15 Jan, jobs: jobs of 4 of 6 users died within 10 min")
    assert read_outer_results(state, "n6") == read_outer_results(state / "none", "n5") == []
    overview = read_overview(ledger, sensor.controller.store)
    (row,) = (row for row in overview.rows if row.node.name == "n5")
    assert (row.notice, row.worst) == (said, Verdict.FAIL)
    assert choose_page_results(row) == ()
    (pending,) = ledger.list_pending_transitions(9)
    (part,) = build_message(pending, None, ledger.list_outer_faults("n5")).parts
    assert (part.id, part.faults[0].code) == ("node", "black_hole")


def test_the_same_jobs_make_it_a_suspect_once(sensor: Sensor) -> None:
    sensor.slurm.ended = print_jobs(GOOD + HOLE)
    sensor.sweep()
    cleared = sensor.controller.ledger.read_node("n5")
    healthy = type(cleared)(name="n5", state=State.HEALTHY, since=sensor.clock())
    sensor.controller.ledger.put(healthy, "healthy")

    assert sensor.sweep() == {"n5": State.HEALTHY}
    overview = read_overview(sensor.controller.ledger, sensor.controller.store)
    row = next(row for row in overview.rows if row.node.name == "n5")
    assert row.worst is Verdict.PASS


def test_without_accounting_nobody_is_suspected(sensor: Sensor) -> None:
    assert sensor.sweep() == {}


def test_accounting_that_does_not_answer_is_said_and_stops_nothing(sensor: Sensor) -> None:
    sensor.slurm.ended = "sacct: no such column\n"
    sensor.slurm.avoided = "1|n3\n2|n3\n3|n3\n4|n[1-\n"
    assert sensor.sweep() == {"n3": State.SUSPECT}
    assert sensor.said[0].startswith("users' jobs are not looked at: sacct printed")


def test_jobs_that_are_hidden_are_no_calm(sensor: Sensor) -> None:
    sensor.slurm.ended = "1000|verify|COMPLETED|100|200|n1\n"
    sensor.sweep()
    assert sensor.said == []

    sensor.slurm.nodes["n4"].state = "ALLOCATED"
    sensor.sweep()
    assert sensor.said[0].startswith(
        "users' jobs are not looked at: sacct shows none, though some run on 1 node. PrivateData"
    )

    sensor.said.clear()
    sensor.slurm.ended += "1001|batch|RUNNING|100|Unknown|n4\n"
    sensor.sweep()
    assert sensor.said == []


def test_jobs_from_before_a_node_passed_are_not_held_against_it() -> None:
    failed = [*GOOD, *HOLE, build_job(1, "n9", "NODE_FAIL", seconds=3000)]
    late = [build_job(3, "n5", "FAILED", seconds=300)]
    passed = {"n5": NOW - 3600.0 + 100, "n9": float(NOW)}
    assert find([*failed, *late]) == [("n5", "black_hole"), ("n9", "node_fail")]
    assert not list(find_suspicions([*failed, *late], {}, len(NODES), NOW, passed))


def test_no_user_is_named_in_what_is_kept(sensor: Sensor) -> None:
    sensor.slurm.ended = print_jobs(
        [build_job(987_000 + job.user, job.nodes[0], job.state) for job in GOOD + HOLE]
    )
    sensor.sweep()

    kept = [path for path in sensor.controller.state.rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if b"98700" in path.read_bytes()]


def test_a_job_on_one_node_that_slurm_ended_as_node_fail_names_that_node() -> None:
    assert find([*GOOD, build_job(1, "n9", "NODE_FAIL", seconds=9000)]) == [("n9", "node_fail")]


def test_nodes_that_fail_together_are_not_suspected_but_what_they_share_is() -> None:
    lost = [build_job(7, name, "NODE_FAIL", seconds=9000) for name in NODES[:8]]
    alone = build_job(7, "n20", "NODE_FAIL", seconds=40_000)
    found = list(find_suspicions([*GOOD, *lost, alone], {}, len(NODES), NOW))

    (said,) = [one for one in found if isinstance(one, str)]
    assert said.startswith("Slurm ended jobs as NODE_FAIL on 8 nodes within 60 min of others")
    assert [one.node for one in found if isinstance(one, FaultReport)] == ["n20"]


def test_a_job_that_a_person_cancelled_died_of_nothing() -> None:
    assert find(GOOD + [build_job(user, "n5", "CANCELLED", seconds=20) for user in range(6)]) == []


def test_a_job_that_failed_late_died_of_its_own() -> None:
    assert find(GOOD + [build_job(user, "n5", "FAILED", seconds=7200) for user in range(6)]) == []


def test_partitions_are_judged_apart() -> None:
    """Users try out what does not work yet on the nodes that are there for it."""
    debug = [
        UserJob(user=user, partition="debug", state="FAILED", start=NOW, end=NOW + 9, nodes=(node,))
        for user in range(6)
        for node in ("d1", "d2")
    ]

    assert find(GOOD + debug) == []


def test_a_node_that_several_users_avoid_is_suspected() -> None:
    assert find(GOOD, {"n3": {1, 2, 3}, "n4": {1, 2}}) == [("n3", "avoided")]


def test_a_kind_of_nodes_that_users_avoid_is_no_fault_of_theirs() -> None:
    assert find(GOOD, {name: {1, 2, 3} for name in NODES[:10]}) == []


def test_what_was_found_again_is_the_same_report() -> None:
    found = list(find_suspicions(GOOD + HOLE, {}, 30, NOW))
    assert found == list(find_suspicions(HOLE + GOOD, {}, 30, NOW + 50))
    assert len(found) == 1
