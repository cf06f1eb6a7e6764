"""Nodes that were admitted together are tested with each other before they are in service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.errors import ConfigError, SlurmError
from hpcverify.fabric.admission import MAX_WAIT_S, BatchTester
from hpcverify.fabric.leftovers import remove_leftovers
from hpcverify.fleet.ledger import LedgerChange
from hpcverify.fleet.states import Hold, Node, State, awaits_batch
from hpcverify.fleet.transitions import Decision, Purpose, admit
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.journal import IsolationOrder, create_journal, resume_journal
from hpcverify.model import FABRIC_SUITE, Source
from hpcverify.plan.config import Fabric
from tests.fabric.test_links import Site16, make_site
from tests.fleet.paper import PaperNode
from tests.isolation.paper import PaperCluster, TestJob
from tests.isolation.stand_in import SimulatedCluster

BATCH = "n[1-8]"
NAMES = [f"n{number}" for number in range(1, 9)]


@pytest.fixture
def site(tmp_path: Path) -> Site16:
    """Make a site whose nodes n1 to n8 were admitted together, and have passed their suite."""
    return make_batch(tmp_path)


def make_batch(folder: Path) -> Site16:
    folder.mkdir(exist_ok=True)
    site = make_site(folder)
    for name in NAMES:
        put(site, name, suite=FABRIC_SUITE, last_pass_at=site.slurm.now)
    site.controller.reconcile()
    assert site.slurm.reserved == set(NAMES)
    return site


def put(site: Site16, name: str, *, batch: str = BATCH, suite: str, last_pass_at: float) -> None:
    """Put a node into the ledger that is being admitted with *batch*."""
    decision = Decision(by="ann", reason="new", at=site.slurm.now, last_ticket=0)
    node = admit(Node(name=name), decision, suite=suite, batch=batch).node
    made = replace(node, suite=suite, last_pass_at=last_pass_at)
    site.ledger.put(made, "admit")


def finish(site: Site16, *only: str, stop: Callable[[], bool] = lambda: False) -> list[str]:
    """Do what a sweep does for admissions; name the nodes that are accused."""
    answers = run(site, *only, stop=stop)
    return [one.node for answer in answers for one in answer.faulty]


def run(
    site: Site16, *only: str, stop: Callable[[], bool] = lambda: False
) -> list[IsolationAnswer]:
    tester = BatchTester(site.controller, None, stop, site.slurm.sleep)
    answers = list(tester.test_ready(only))
    site.controller.reconcile()
    return answers


def states(site: Site16) -> dict[State, set[str]]:
    found: dict[State, set[str]] = {}
    for name in NAMES:
        found.setdefault(site.ledger.read_node(name).state, set()).add(name)
    return found


def test_nodes_that_pass_with_each_other_go_into_service(site: Site16) -> None:
    assert run(site) == []

    assert states(site) == {State.HEALTHY: set(NAMES)}
    assert site.slurm.reserved == set()
    assert site.slurm.shared == {}
    assert {node for job in site.jobs for node in job.nodes} == set(NAMES)


def test_a_batch_waits_for_nodes_that_slurm_has_not_heard_of_since_it_started(
    site: Site16,
) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n3",))
    site.slurm.nodes["n3"].state = "UNKNOWN"

    assert finish(site) == []
    assert states(site) == {State.VERIFYING: set(NAMES)}
    assert site.slurm.reserved == set(NAMES)

    site.slurm.nodes["n3"].state = "IDLE"
    assert finish(site) == ["n3"]
    assert states(site) == {State.SUSPECT: {"n3"}, State.HEALTHY: set(NAMES) - {"n3"}}


def test_their_jobs_are_in_one_reservation_of_all_which_ends_by_itself(site: Site16) -> None:
    seen: list[tuple[dict[str, str], set[str]]] = []

    def look(slurm: PaperCluster, _job: TestJob) -> None:
        seen.append((dict(slurm.shared), set(slurm.reserved)))

    site.slurm.meddle = look
    run(site)

    (shared, own), *_ = seen
    assert list(shared.values()) == [",".join(NAMES)]
    assert own == set(NAMES), "each keeps its own"
    created = [line for line in site.slurm.told if "create" in line and "hpcverify-fabric" in line]
    assert len(created) == 1
    assert "duration=240" in created[0]


def test_one_that_fails_between_nodes_is_a_suspect_and_stays_out_and_the_others_go_in(
    site: Site16,
) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n3",))

    assert finish(site) == ["n3"]

    assert states(site) == {State.SUSPECT: {"n3"}, State.HEALTHY: set(NAMES) - {"n3"}}
    suspect = site.ledger.read_node("n3")
    assert (suspect.desired_hold, suspect.checks) == (Hold.RESERVATION, ("collectives",))
    assert site.slurm.reserved == {"n3"}
    assert site.ledger.list_open_tickets() == [], "no suite of its own could clear it"
    (fault,) = site.ledger.list_outer_faults("n3")
    assert (suspect.suite, suspect.run, fault.source) == (FABRIC_SUITE, "", Source.FABRIC)
    assert fault.evidence["failed"]
    site.slurm.cluster = SimulatedCluster()
    assert run(site) == []
    assert site.ledger.read_node("n3").state is State.SUSPECT


@pytest.mark.parametrize("bad", [(), ("n3",)])
def test_what_an_admission_found_of_a_node_does_not_depend_on_its_folder(
    site: Site16, bad: tuple[str, ...]
) -> None:
    site.slurm.cluster = SimulatedCluster(bad=bad)
    folder = site.folder / "spool" / "n3"
    folder.mkdir()
    folder.chmod(0o777)

    for _ in range(2):  # left over alone, it would be admitted without a test
        run(site)
        assert states(site).get(State.SUSPECT, set()) == set(bad)
        assert states(site)[State.HEALTHY] == set(NAMES) - set(bad)
        assert site.slurm.reserved == set(bad)
    assert site.ledger.list_open_tickets() == []


@pytest.mark.system
def test_what_an_admission_named_stays_out_however_many_fail(tmp_path: Path) -> None:
    """Three of eight, drawn anew each time: the tests of some draws name nobody for certain."""
    bad = {"n2", "n3", "n6"}
    named: list[set[str]] = []
    for draw in range(20):
        site = make_batch(tmp_path / f"{draw}")
        site.slurm.cluster, site.slurm.topology = SimulatedCluster(bad=tuple(sorted(bad))), ""
        accused = set(finish(site))
        site.controller.reconcile()

        assert accused <= bad
        assert states(site).get(State.SUSPECT, set()) == accused
        assert site.slurm.reserved == accused
        assert site.controller.find_doubts() == {}
        named.append(accused)
    assert bad in named


def test_a_doubt_of_the_same_check_by_other_runs_lets_nobody_in(site: Site16) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n3",))
    doubted = {"collectives": True}
    for name in ("n9", "n10", "n11", "n12"):
        ticket = site.ledger.issue_ticket(name, Purpose.SWEEP, "idle")
        site.ledger.record_judgments(
            [
                LedgerChange(
                    node=site.ledger.read_node(name),
                    run=name,
                    outcomes=doubted,
                    what="verified",
                    detail="",
                    ticket=ticket.number,
                )
            ]
        )
    assert set(site.controller.find_doubts()) == {"collectives"}

    assert finish(site) == ["n3"]

    assert states(site)[State.SUSPECT] == {"n3"}
    assert site.slurm.reserved == {"n3"}


def test_a_slow_link_is_told_and_keeps_nobody_out(site: Site16) -> None:
    site.slurm.cluster = SimulatedCluster(links=(("n1", "n5"), ("n5", "n1")))

    answers = run(site)

    assert not any(answer.faulty for answer in answers)
    assert states(site) == {State.HEALTHY: set(NAMES)}


def test_a_batch_waits_for_those_that_have_not_passed_but_not_for_ever(site: Site16) -> None:
    put(site, "n9", suite="burnin", last_pass_at=0)
    assert run(site) == []
    assert states(site) == {State.VERIFYING: set(NAMES)}
    assert all("fabric" not in job.name and job.nodes == ["n9"] for job in site.jobs)

    site.slurm.now += MAX_WAIT_S + 1
    run(site)

    assert states(site) == {State.HEALTHY: set(NAMES)}
    assert site.ledger.read_node("n9").state is State.VERIFYING


def test_one_that_comes_late_and_alone_goes_in_without(site: Site16) -> None:
    for name in NAMES[1:]:
        site.ledger.put(Node(name=name), "quarantined, say")

    assert run(site) == []

    node = site.ledger.read_node("n1")
    assert node.state is State.HEALTHY
    assert node.reason.endswith("not tested with its batch: no other node of its kind has passed")
    assert site.jobs == []


def test_a_node_that_goes_down_meanwhile_keeps_nobody(site: Site16) -> None:
    def break_down(slurm: PaperCluster, _job: TestJob) -> None:
        slurm.nodes["n2"].state = "DOWN"

    site.slurm.meddle = break_down
    (answer,) = run(site)

    assert answer.untested == {"n2": "is down"}
    assert states(site) == {State.HEALTHY: set(NAMES)}
    reason = site.ledger.read_node("n2").reason
    assert reason == "passed by itself; not tested with its batch: is down"


def test_what_a_person_decides_during_the_tests_stands(site: Site16) -> None:
    def hold(slurm: PaperCluster, _job: TestJob) -> None:
        site.ledger.put(
            Node(name="n2", state=State.HELD, enforced=True, by="ann", reason="mine"), "hold"
        )
        slurm.meddle = lambda *_: None

    site.slurm.meddle = hold
    run(site)

    assert states(site) == {State.HELD: {"n2"}, State.HEALTHY: set(NAMES) - {"n2"}}


def test_a_site_that_tries_no_links_lets_them_in(site: Site16) -> None:
    site.fabric = Fabric()
    run(site)

    assert states(site) == {State.HEALTHY: set(NAMES)}
    assert site.jobs == []


def test_an_interrupted_sweep_leaves_all_of_it_to_the_next(site: Site16) -> None:
    stopped: list[bool] = []
    site.slurm.meddle = lambda *_: stopped.append(True)
    assert run(site, stop=partial(bool, stopped)) == []
    assert states(site) == {State.VERIFYING: set(NAMES)}
    assert site.slurm.shared == {}

    site.slurm.meddle = lambda *_: None
    assert run(site) == []
    assert states(site) == {State.HEALTHY: set(NAMES)}


LEFT = "20261122-133330-710a4a"


def leave_batch(site: Site16, isolation: str, hostlist: str) -> Path:
    """Leave the reservation and the journal of a batch, as a sweep that is killed; return this."""
    site.slurm.shared[f"hpcverify-fabric-{isolation}"] = hostlist
    return begin_journal(site, isolation)


def begin_journal(site: Site16, isolation: str) -> Path:
    """Write the first line of the journal of a batch, as one does before its reservation."""
    order = IsolationOrder(
        id=isolation,
        at=site.slurm.now,
        version="1",
        nodes=("n1", "n2"),
        seed="1",
        inside=False,
        wait=60.0,
        reservation=f"hpcverify-fabric-{isolation}",
    )
    journal = create_journal(site.folder / "state", order)
    journal.close()
    return journal.folder


def test_what_a_killed_sweep_left_is_removed(site: Site16) -> None:
    journal = leave_batch(site, LEFT, "n1,n2")
    run(site)

    assert site.slurm.shared == {}
    assert not journal.exists()


def test_a_batch_without_its_reservation_is_forgotten(site: Site16) -> None:
    """Its sweep was killed just before it was made, or just after it was removed."""
    journal = begin_journal(site, LEFT)
    remove_leftovers(site.controller)

    assert not journal.exists()
    with pytest.raises(ConfigError):
        resume_journal(site.folder / "state")


def test_the_journal_of_a_batch_is_there_before_its_reservation(site: Site16) -> None:
    order, found = site.slurm._told, list[bool]()

    def look(command: Sequence[str]) -> str:
        for word in command:
            if word.startswith("reservationname=hpcverify-fabric-"):
                isolation = word.removeprefix("reservationname=hpcverify-fabric-")
                found.append((site.folder / "state" / "isolations" / isolation).exists())
        return order(command)

    site.slurm._told = look  # type: ignore[method-assign]
    run(site)

    assert found == [True, True], "made, and removed"


def test_a_reservation_that_only_looks_like_ours_is_left_alone(site: Site16) -> None:
    journal = leave_batch(site, LEFT, "n1")
    theirs = {
        "hpcverify-fabric-": "n1",
        "hpcverify-fabric-..": "n2",
        "hpcverify-fabric-upgrade": "n3",
        "hpcverify-fabric-20261122-133330-ffffff": "n4",
    }
    site.slurm.shared |= theirs
    remove_leftovers(site.controller)

    assert site.slurm.shared == theirs
    assert not journal.exists()


def test_a_node_may_be_called_like_the_reservation_of_a_batch(site: Site16) -> None:
    site.slurm.nodes["fabric-7"] = PaperNode()
    failed = Node(
        name="fabric-7", state=State.SUSPECT, enforced=True, checks=("gemm",), suite="burnin"
    )
    site.ledger.put(failed, "suspect")
    site.controller.reconcile()
    assert "fabric-7" in site.slurm.reserved
    remove_leftovers(site.controller)
    site.controller.reconcile()

    assert "fabric-7" in site.slurm.reserved
    assert site.ledger.read_node("fabric-7").state is State.SUSPECT


def test_a_collect_removes_what_a_killed_sweep_left_of_nodes_that_were_released(
    site: Site16,
) -> None:
    leave_batch(site, LEFT, "n1,n2")
    name = f"hpcverify-isolate-{LEFT}-r1t0a0"
    site.slurm.tests[7] = TestJob(7, name, ["n1", "n2"], [], site.slurm.now)
    for node in NAMES:
        site.ledger.put(Node(name=node), "released by force")

    remove_leftovers(site.controller)

    assert site.slurm.shared == {}
    assert site.slurm.tests[7].state == "CANCELLED"


def test_a_collect_leaves_a_sweep_alone_that_is_testing_a_batch(site: Site16) -> None:
    seen: list[int] = []

    def collect(slurm: PaperCluster, job: TestJob) -> None:
        remove_leftovers(site.controller)
        seen.append(len(slurm.shared))
        assert job.state == "RUNNING"

    site.slurm.meddle = collect
    assert run(site) == []

    assert set(seen) == {1}
    assert states(site) == {State.HEALTHY: set(NAMES)}


def test_a_reservation_that_cannot_be_removed_is_reported_and_keeps_no_other(
    site: Site16,
) -> None:
    stuck = leave_batch(site, LEFT, "n1")
    leave_batch(site, "20261122-133330-710a4b", "n2")
    order = site.slurm._told

    def refuse(command: Sequence[str]) -> str:
        if f"reservationname=hpcverify-fabric-{LEFT}" in command:
            raise SlurmError("scontrol: Access/permission denied")
        return order(command)

    site.slurm._told = refuse  # type: ignore[method-assign]
    remove_leftovers(site.controller)

    assert set(site.slurm.shared) == {f"hpcverify-fabric-{LEFT}"}
    assert stuck.exists(), "the next collect tries again"
    assert any(f"hpcverify-fabric-{LEFT}: scontrol: Access" in line for line in site.said)


def test_a_job_that_cannot_be_cancelled_keeps_its_reservation_and_ends_no_cycle(
    site: Site16,
) -> None:
    stuck = leave_batch(site, LEFT, "n1")
    site.slurm.tests[7] = TestJob(7, f"hpcverify-isolate-{LEFT}-r1t0a0", ["n1"], [], site.slurm.now)
    order = site.slurm._told

    def refuse(command: Sequence[str]) -> str:
        if command[0] == "scancel":
            raise SlurmError("scancel: Access/permission denied")
        return order(command)

    site.slurm._told = refuse  # type: ignore[method-assign]
    remove_leftovers(site.controller)

    assert set(site.slurm.shared) == {f"hpcverify-fabric-{LEFT}"}
    assert stuck.exists(), "the next collect tries again"
    assert any(f"hpcverify-fabric-{LEFT}: scancel: Access" in line for line in site.said)


def test_a_sweep_of_other_nodes_leaves_them_alone(site: Site16) -> None:
    run(site, "n1", "n2")

    assert states(site) == {State.VERIFYING: set(NAMES)}


def test_no_suite_is_ordered_for_one_that_waits(site: Site16) -> None:
    controller = site.controller
    controller.reconcile()
    plan = controller.plan(controller.slurm.list_hosts(), only=NAMES)

    assert site.ledger.list_open_tickets() == []
    assert plan.chosen == ()
    assert all(awaits_batch(site.ledger.read_node(name)) for name in NAMES)
