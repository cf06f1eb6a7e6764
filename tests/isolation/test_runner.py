"""Isolations from their order to their answer, on a Slurm on paper."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from hpcverify.errors import ActionError, SlurmError, StoreError
from hpcverify.isolation import runner
from hpcverify.isolation.answer import IsolationAnswer, describe_answer
from hpcverify.isolation.group_tests import GroupPurpose
from hpcverify.isolation.journal import read_run, resume_journal
from hpcverify.isolation.runner import MAX_ARRIVAL_S, Interrupted
from tests.isolation.paper import Killed, PaperCluster, TestJob, kill_at, make_paper
from tests.isolation.stand_in import SimulatedCluster

HEALTHY = SimulatedCluster()


def list_faulty(answer: IsolationAnswer) -> list[str]:
    return sorted(one.node for one in answer.faulty)


@pytest.mark.parametrize("size", [4, 6, 9, 16, 40])
def test_a_bad_node_is_accused_with_its_evidence_and_all_others_are_cleared(
    tmp_path: Path, size: int
) -> None:
    answer = make_paper(tmp_path, size, SimulatedCluster(bad=("n3",))).run()

    (accused,) = answer.faulty
    assert (accused.node, answer.passed, answer.is_certain) == ("n3", size - 1, True)
    pairs = [one for one in accused.failed if one.purpose is GroupPurpose.PAIR]
    assert len({one.partners for one in pairs}) >= 2
    assert all("n3" not in one.partners for one in accused.failed)
    assert set(accused.directions) <= {"sends", "receives"}


def test_five_bad_nodes_of_232_are_found_through_jobs_in_seconds(tmp_path: Path) -> None:
    bad = sorted(Random("five").sample([f"n{n}" for n in range(1, 233)], 5))
    paper = make_paper(tmp_path, 232, SimulatedCluster(bad=tuple(bad)), at_once=32)
    answer = paper.run()
    assert (list_faulty(answer), answer.passed) == (bad, 227)
    assert not (tmp_path / "spool" / ".isolate").exists()


@pytest.mark.parametrize("way", ["senders", "receivers"])
def test_a_node_that_is_slow_one_way_gets_that_direction(tmp_path: Path, way: str) -> None:
    cluster = SimulatedCluster(**{way: ("n5",)})  # type: ignore[arg-type]
    answer = make_paper(tmp_path, 16, cluster).run()
    expected = {"senders": "sends", "receivers": "receives"}[way]
    assert [(one.node, one.directions) for one in answer.faulty] == [("n5", (expected,))]


def test_a_node_that_fails_alone_is_accused_alone(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 9, SimulatedCluster(inside=("n4",)), inside=True).run()
    (accused,) = answer.faulty
    assert accused.is_alone
    assert "fails alone" in "\n".join(describe_answer(answer))


def test_a_rank_that_is_missing_accuses_its_node_and_no_partner(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 16, SimulatedCluster(missing=("n4",))).run()
    assert list_faulty(answer) == ["n4"]
    assert "no response from n4" in answer.faulty[0].summary


def test_a_link_names_no_node(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 12, SimulatedCluster(links=(("n2", "n7"),))).run()
    assert (answer.faulty, answer.links) == ((), (("n2", "n7"),))
    assert answer.has_cause


def test_what_fails_only_together_is_nobodys_fault(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 20, SimulatedCluster(largest=8)).run()
    assert (answer.faulty, answer.links, answer.switches) == ((), (), ())
    assert answer.together
    assert not answer.is_certain
    assert "no single node is the cause" in "\n".join(describe_answer(answer))


def test_a_healthy_cluster_has_nobody_to_blame(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 64, HEALTHY).run()
    assert (answer.passed, answer.rounds, answer.is_certain) == (64, 2, True)
    assert "no fault found" in "\n".join(describe_answer(answer))


def test_a_preempted_test_is_planned_again_and_accuses_nobody(tmp_path: Path) -> None:
    """Its user's job ends before the node has been waited for too long."""
    paper = make_paper(tmp_path, 16, HEALTHY)

    def meddle(slurm: PaperCluster, job: TestJob) -> None:
        if job.id == 2:
            slurm.preempt(job, job.nodes[0])
        if job.id == 4:
            slurm.nodes[slurm.tests[2].nodes[0]].state = "IDLE"

    paper.slurm.meddle = meddle

    answer = paper.run()

    assert (answer.faulty, answer.passed) == ((), 16)
    assert any("gave way to a user's job" in line for line in paper.said)


def test_a_node_that_stays_busy_is_left_out_and_its_group_is_tested_without_it(
    tmp_path: Path,
) -> None:
    paper = make_paper(tmp_path, 16, SimulatedCluster(bad=("n9",)), wait=60.0)
    paper.slurm.nodes["n2"].state = "ALLOCATED"
    answer = paper.run()
    assert (list_faulty(answer), answer.untested, answer.passed) == (["n9"], {"n2": "is busy"}, 14)
    assert not any("n2" in job.nodes for job in paper.slurm.tests.values())


def test_a_node_that_leaves_slurm_is_left_out_at_once_and_its_group_is_tested_without_it(
    tmp_path: Path,
) -> None:
    paper = make_paper(tmp_path, 16, SimulatedCluster(bad=("n9",)))
    del paper.slurm.nodes["n2"]
    began = paper.slurm.now

    answer = paper.run()

    assert (list_faulty(answer), answer.untested) == (["n9"], {"n2": "is not in Slurm any more"})
    assert answer.passed == 14
    assert paper.slurm.tests[1].start == began, "Slurm is not waited for"


def test_one_answer_that_leaves_a_node_out_does_not_lose_it(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 6, HEALTHY)
    paper.slurm.omitted["nodes"] = [{"n2"}]
    answer = paper.run()
    assert (answer.passed, answer.untested) == (6, {})


def test_a_restart_of_slurm_loses_no_node(tmp_path: Path) -> None:
    """Each node is UNKNOWN until its slurmd registers."""
    paper = make_paper(tmp_path, 16, SimulatedCluster(bad=("n9",)))
    restarted: list[float] = []

    def restart(slurm: PaperCluster, _: TestJob) -> None:
        if not restarted:
            restarted.append(slurm.now)
            for node in slurm.nodes.values():
                node.state = "UNKNOWN"

    def sleep(seconds: float) -> None:
        PaperCluster.sleep(paper.slurm, seconds)
        if restarted and paper.slurm.now - restarted[0] > 40:
            for node in paper.slurm.nodes.values():
                node.state = "IDLE"

    paper.slurm.meddle, paper.slurm.sleep = restart, sleep  # type: ignore[method-assign]

    answer = paper.run()

    assert restarted
    assert list_faulty(answer) == ["n9"]
    assert (answer.passed, answer.untested) == (15, {})


def test_a_node_that_goes_down_during_a_test_accuses_nobody(tmp_path: Path) -> None:
    """Its job left a document in which its rank is missing: it was killed."""
    paper = make_paper(tmp_path, 16, SimulatedCluster(missing=("n9",)))

    def meddle(slurm: PaperCluster, job: TestJob) -> None:
        if "n9" in job.nodes:
            slurm.write_documents(job)
            job.state, job.end = "NODE_FAIL", slurm.now
            slurm.nodes["n9"].state = "DOWN"

    paper.slurm.meddle = meddle

    answer = paper.run()

    assert (answer.faulty, answer.untested, answer.passed) == ((), {"n9": "is down"}, 15)


def test_a_job_that_never_starts_is_cancelled_and_accuses_nobody(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 6, HEALTHY, wait=60.0)

    def meddle(_: PaperCluster, job: TestJob) -> None:
        if "n1" in job.nodes:
            job.state, job.start = "PENDING", 0

    paper.slurm.meddle = meddle

    answer = paper.run()

    assert answer.faulty == ()
    assert "n1" in answer.untested
    pending = [job.state for job in paper.slurm.tests.values() if "n1" in job.nodes]
    assert pending
    assert set(pending) == {"CANCELLED"}


def test_a_job_that_ended_without_a_document_is_not_waited_for_long(tmp_path: Path) -> None:
    """Of a dead node that is tested five times, it would be minutes."""
    paper = make_paper(tmp_path, 6, HEALTHY)

    def meddle(slurm: PaperCluster, job: TestJob) -> None:
        if "n1" in job.nodes:
            job.state, job.end = "FAILED", slurm.now

    paper.slurm.meddle = meddle

    answer = paper.run()

    starts = [job.start for job in paper.slurm.tests.values() if "n1" in job.nodes]
    waits = [later - one for one, later in pairwise(starts)]
    assert answer.faulty == ()
    assert "n1" in answer.untested
    assert len(waits) >= 4
    assert max(waits) <= MAX_ARRIVAL_S + paper.slurm.job_s


def test_no_more_jobs_run_at_once_than_allowed(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 64, HEALTHY, at_once=3)
    most = 0

    def meddle(slurm: PaperCluster, _: TestJob) -> None:
        nonlocal most
        most = max(most, sum(job.state == "RUNNING" for job in slurm.tests.values()))

    paper.slurm.meddle = meddle

    assert paper.run().passed == 64
    assert most == 3


def test_a_budget_ends_it_with_what_is_known(tmp_path: Path) -> None:
    bad = SimulatedCluster(bad=("n3", "n50"))
    full = make_paper(tmp_path, 64, bad).run()
    paper = make_paper(tmp_path, 64, bad, budget=full.node_minutes / 2)

    answer = paper.run()

    assert answer.node_minutes <= full.node_minutes / 2
    assert answer.end_reason.startswith("the budget of")
    assert not answer.is_certain
    assert set(list_faulty(answer)) <= {"n3", "n50"}
    assert {"n3", "n50"} <= {*answer.untested, *list_faulty(answer)}


def test_without_a_budget_it_stops_after_so_many_tests_and_blames_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "MAX_TESTS", 10)
    monkeypatch.setattr(runner, "MAX_TESTS_PER_NODE", 0)

    answer = make_paper(tmp_path, 64, SimulatedCluster(bad=("n3", "n50"))).run()

    assert answer.tests <= 10
    assert "without --budget" in answer.end_reason
    assert not answer.is_certain
    assert list_faulty(answer) == []


def test_nodes_of_another_version_are_not_accused(tmp_path: Path) -> None:
    answer = make_paper(tmp_path, 64, SimulatedCluster(newer=("n3", "n40", "n41"))).run()
    named = {node for group in answer.intermittent for node in group}
    assert (named, answer.faulty, answer.passed) == ({"n3", "n40", "n41"}, (), 61)


def test_of_no_submission_that_works_slurms_reason_is_told(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 6, HEALTHY)

    def refuse(slurm: PaperCluster, job: TestJob) -> None:
        del slurm.tests[job.id]
        raise SlurmError("sbatch: Invalid account")

    paper.slurm.meddle = refuse

    with pytest.raises(ActionError, match="Invalid account"):
        paper.run()


@pytest.mark.system
@pytest.mark.parametrize("number", range(2, 30))
def test_killed_at_any_line_it_goes_on_and_comes_to_the_same(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no test is submitted twice whose job is still known."""
    cluster = SimulatedCluster(bad=("n3",))
    whole = make_paper(tmp_path / "whole", 9, cluster).run()
    paper = make_paper(tmp_path / "killed", 9, cluster)
    kill_at(paper.run, number, monkeypatch)

    answer = paper.run(resume_journal(paper.folder))

    assert list_faulty(answer) == list_faulty(whole) == ["n3"]
    assert (answer.rounds, answer.tests, answer.passed) == (whole.rounds, whole.tests, 8)
    names = [job.name for job in paper.slurm.tests.values()]
    assert len(names) == len(set(names))
    assert len({name.rsplit("a", 1)[0] for name in names}) == len(names), "submitted twice"


Death = Callable[[PaperCluster, TestJob], object]


def die_before(slurm: PaperCluster, job: TestJob) -> None:
    """Die before Slurm has the job: it never will."""
    del slurm.tests[job.id]


def die_meanwhile(slurm: PaperCluster, job: TestJob) -> None:
    """Die with the request under way: Slurm has the job only some seconds later."""
    slurm.arriving.append((slurm.now + 5, slurm.tests.pop(job.id)))


def die_after(_slurm: PaperCluster, _job: TestJob) -> None:
    """Die once Slurm has the job, and before we know its number."""


@pytest.mark.system
@pytest.mark.parametrize("death", [die_before, die_meanwhile, die_after])
@pytest.mark.parametrize("number", range(1, 10))
def test_killed_at_any_submission_no_test_is_submitted_twice(
    tmp_path: Path, number: int, death: Death
) -> None:
    paper = make_paper(tmp_path, 9, SimulatedCluster(bad=("n3",)))

    def die(slurm: PaperCluster, job: TestJob) -> None:
        if job.id == number:
            death(slurm, job)
            raise Killed

    paper.slurm.meddle = die
    with pytest.raises(Killed):
        paper.run()
    paper.slurm.meddle = lambda *_: None

    assert list_faulty(paper.run(resume_journal(paper.folder))) == ["n3"]
    assert not paper.slurm.arriving
    tests = [job.name.rsplit("a", 1)[0] for job in paper.slurm.tests.values()]
    assert len(tests) == len(set(tests))


class Chaos:
    """Users' jobs, lost jobs and time limits, drawn by lot, in the way of the tests."""

    def __init__(self, seed: int, share: float) -> None:
        """Meddle with this *share* of the jobs."""
        self.random = Random(f"chaos {seed}")
        self.share = share
        self.taken: list[str] = []

    def meddle(self, slurm: PaperCluster, job: TestJob) -> None:
        """End a job before its time; a user's job keeps one of its nodes for a while."""
        for name in self.taken:
            slurm.nodes[name].state = "IDLE"
        self.taken.clear()
        if self.random.random() < self.share:
            how = self.random.choice(["PREEMPTED", "TIMEOUT", "CANCELLED", "NODE_FAIL"])
            slurm.write_documents(job)  # in which the ranks that were ended are missed
            slurm.preempt(job)
            job.state = how
            self.taken = [self.random.choice(job.nodes)]
            for name in self.taken:
                slurm.nodes[name].state = "ALLOCATED"


@pytest.mark.parametrize("seed", range(6))
def test_tests_that_give_way_are_repeated_and_nobody_is_blamed_for_them(
    tmp_path: Path, seed: int
) -> None:
    """A fifth of the jobs is ended, and the controller killed again and again."""
    random = Random(f"who {seed}")
    bad = f"n{random.randint(1, 12)}"
    paper = make_paper(tmp_path, 12, SimulatedCluster(missing=(bad,)), wait=120.0)
    chaos, lives = Chaos(seed, 0.2), 4

    def meddle(slurm: PaperCluster, job: TestJob) -> None:
        nonlocal lives
        chaos.meddle(slurm, job)
        if lives and random.random() < 0.05:
            lives -= 1
            raise Killed

    paper.slurm.meddle = meddle
    journal = None
    while True:
        try:
            answer = paper.run(journal)
        except Killed:
            journal = resume_journal(paper.folder)
        else:
            break

    assert list_faulty(answer) == [bad]
    assert not any((answer.links, answer.switches, answer.together, answer.is_widespread))
    accused = answer.faulty[0]
    assert all(one.reason == f"no response from {bad}" for one in accused.failed)
    assert len([one for one in accused.failed if one.purpose is GroupPurpose.PAIR]) >= 4
    ended = [job for job in paper.slurm.tests.values() if job.state != "COMPLETED"]
    assert ended, "something came between"


def test_an_interrupted_one_cancels_its_jobs_and_can_be_resumed(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 16, SimulatedCluster(bad=("n3",)))
    paper.stop = lambda: len(paper.slurm.tests) > 6

    with pytest.raises(Interrupted):
        paper.run()

    assert not any(job.state == "RUNNING" for job in paper.slurm.tests.values())
    paper.stop = lambda: False
    assert list_faulty(paper.run(resume_journal(tmp_path))) == ["n3"]


def test_a_journal_of_other_tests_is_refused(tmp_path: Path) -> None:
    paper = make_paper(tmp_path, 16, HEALTHY)
    paper.stop = lambda: bool(paper.slurm.tests)
    with pytest.raises(Interrupted):
        paper.run()
    (path,) = (tmp_path / "isolations").glob("*/*.jsonl")
    path.write_text(path.read_text().replace('"a test"', '"another"'))

    with pytest.raises(StoreError, match="begun by another version"):
        paper.run(resume_journal(tmp_path))


Damage = Callable[[Path], object]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("nonsense"),
        lambda path: path.write_text('{"id": 1}'),
        lambda path: path.write_text(path.read_text().replace('"n1"', '"n99"')),
        lambda path: path.write_text(path.read_text().replace('"missing":[]', '"missing":[77]')),
        lambda path: (path.rename(f"{path}.real"), path.symlink_to(f"{path}.real")),
    ],
)
def test_a_document_that_is_not_what_it_should_be_counts_as_none(
    tmp_path: Path, damage: Damage
) -> None:
    """A node that takes part may be broken, or somebody's."""
    paper = make_paper(tmp_path, 9, HEALTHY, wait=10.0)
    paper.slurm.written = lambda path: damage(path) if '"n1"' in path.read_text() else None
    answer = paper.run()
    assert answer.faulty == ()
    assert "n1" in answer.untested


@pytest.mark.parametrize("content", [b"\xff{", b'{"more":' + b"[" * 100_000])
def test_a_document_that_a_broken_node_wrote_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "one.json").write_bytes(content)
    assert read_run(tmp_path / "one.json") is None
