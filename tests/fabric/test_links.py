"""A sweep tries links between idle nodes, and only an isolation names a node."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hpcverify.errors import ActionError, SlurmError
from hpcverify.fabric.isolations import read_places
from hpcverify.fabric.leftovers import remove_leftovers
from hpcverify.fabric.links import carry_out_pairs, count_jobs_at_once, plan_fabric, try_links
from hpcverify.fleet.controller import Controller
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Node, State
from hpcverify.insight.overview import build_overview, describe_links
from hpcverify.isolation.answer import IsolationAnswer
from hpcverify.isolation.journal import (
    JOURNAL_NAME,
    list_isolations,
    list_unfinished,
    resume_journal,
)
from hpcverify.isolation.links import count_coverage
from hpcverify.plan.config import Fabric, Fleet, Quarantine, Site
from hpcverify.slurm import Host
from tests.fleet.builders import make_controller
from tests.fleet.paper import ME, PaperNode
from tests.isolation.paper import PaperCluster, TestJob, kill_at
from tests.isolation.stand_in import SimulatedCluster

DAY = 86400.0
WEEK = 7 * DAY
TREE = """\
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-16] Switches=leaf[0-3]
SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-4]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[9-12]
SwitchName=leaf3 Level=0 LinkSpeed=1 Nodes=n[13-16]
"""


@dataclass
class Site16:
    """A controller of 16 nodes at four switches, on paper, which sweeps their links."""

    folder: Path
    slurm: PaperCluster
    fabric: Fabric = field(default_factory=lambda: Fabric(period_days=7))
    fleet: dict[str, Any] = field(default_factory=lambda: {"share": 1.0})
    said: list[str] = field(default_factory=list[str])
    quarantine: Quarantine = field(default_factory=lambda: Quarantine(enforce=("*",)))

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "state", lambda: self.slurm.now)

    @property
    def controller(self) -> Controller:
        spool = self.folder / "spool"
        spool.mkdir(exist_ok=True)
        site = Site(
            fleet=Fleet(spool=str(spool), user=ME, **self.fleet),
            quarantine=self.quarantine,
            fabric=self.fabric,
        )
        state, slurm = self.folder / "state", self.slurm
        return make_controller(state, site, slurm, lambda: slurm.now, self.said.append)

    def sweep(self, *only: str, limit: int | None = None) -> list[IsolationAnswer]:
        controller = self.controller
        return list(try_links(controller, only, limit, lambda: False, self.slurm.sleep))

    def plan(self) -> list[set[str]]:
        controller = self.controller
        found = plan_fabric(controller, controller.slurm.list_hosts())
        return [set(pair.nodes) for pair in found.links.pairs]

    @property
    def jobs(self) -> list[TestJob]:
        return list(self.slurm.tests.values())

    def tried(self) -> tuple[int, int]:
        """Count the nodes and the pairs of switches that were tried in the last week."""
        found = count_coverage(self.ledger.read_links(), self.slurm.now - WEEK)
        return found.nodes_tried, found.switch_pairs_tried


@pytest.fixture
def site(tmp_path: Path) -> Site16:
    """Make a site whose nodes are all idle and well."""
    return make_site(tmp_path)


def make_site(folder: Path) -> Site16:
    names = [f"n{number}" for number in range(1, 17)]
    slurm = PaperCluster(nodes={name: PaperNode() for name in names}, topology=TREE)
    slurm.now = time.time()  # ids are made by the clock of the system
    slurm.clock = lambda: slurm.now
    return Site16(folder, slurm)


def test_all_links_of_idle_nodes_are_tried_in_one_sweep(site: Site16) -> None:
    assert site.sweep() == []

    assert site.tried()[0] == 16
    assert len(site.jobs) == 8
    assert all(len(job.nodes) == 2 for job in site.jobs)
    assert site.said[-1] == "links: 8 pairs of nodes: 8 passed"


def test_what_is_between_switches_and_fitted_into_no_pair_is_tried_next_time(site: Site16) -> None:
    site.sweep()
    site.sweep()

    assert site.tried() == (16, 6)


def test_links_that_were_tried_are_not_due_before_a_third_of_the_period(site: Site16) -> None:
    site.sweep()
    site.sweep()
    site.slurm.now += 2 * DAY
    assert site.plan() == []

    site.slurm.now += DAY
    assert len(site.plan()) == 8


def test_a_sweep_that_finds_nothing_leaves_nothing(site: Site16) -> None:
    site.sweep()

    assert list_isolations(site.folder / "state") == []
    assert list((site.folder / "spool").iterdir()) == []


def test_a_bad_node_is_named_by_an_isolation_and_becomes_a_suspect(site: Site16) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n7",))

    (answer,) = site.sweep()
    site.controller.reconcile()

    assert [one.node for one in answer.faulty] == ["n7"]
    states = {node.name: node.state for node in site.ledger.list_nodes().values()}
    assert {name for name, state in states.items() if state is not State.UNVERIFIED} == {"n7"}
    assert states["n7"] is State.SUSPECT
    assert site.tried()[0] == 16


def test_a_faulty_node_becomes_a_suspect_though_its_folder_is_not_to_be_trusted(
    site: Site16,
) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n7",))
    folder = site.folder / "spool" / "n7"
    folder.mkdir(parents=True)
    folder.chmod(0o777)

    (answer,) = site.sweep()
    site.controller.reconcile()

    assert [one.node for one in answer.faulty] == ["n7"]
    assert site.ledger.read_node("n7").state is State.SUSPECT
    assert [line for line in site.said if line.startswith("n7: ")]
    assert list(list_unfinished(site.folder / "state")) == []


@pytest.mark.parametrize("damage", [b"", b"\0" * 4096, b"{}\n", b"\xff\n{}\n", b"[" * 100_000])
def test_a_damaged_journal_is_left_alone_and_links_are_tried_anew(
    site: Site16, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    kill_at(site.sweep, 2, monkeypatch)
    (path,) = (site.folder / "state").glob(f"*/*/{JOURNAL_NAME}")
    path.write_bytes(damage)

    assert site.sweep() == []

    assert site.tried()[0] == 16


def test_a_slow_link_accuses_no_node(site: Site16) -> None:
    first = sorted(site.plan()[0])
    site.slurm.cluster = SimulatedCluster(links=((first[0], first[1]), (first[1], first[0])))
    answers = site.sweep()
    site.controller.reconcile()

    assert [one.faulty for one in answers] in ([], [()])
    assert {node.state for node in site.ledger.list_nodes().values()} == {State.UNVERIFIED}


def test_a_pair_that_gave_way_to_a_user_stays_due(site: Site16) -> None:
    taken: list[str] = []

    def preempt_first(slurm: PaperCluster, job: TestJob) -> None:
        if not taken:
            taken.extend(job.nodes)
            slurm.preempt(job, *job.nodes)

    site.slurm.meddle = preempt_first
    assert site.sweep() == []
    assert site.tried()[0] == 14
    for name in taken:
        site.slurm.nodes[name].state = "IDLE"

    # with each other, or with others: the way between their switches is due as well
    assert set(taken) <= set[str]().union(*site.plan())


def make_busy(site: Site16) -> None:
    site.slurm.nodes["n1"].state = "ALLOCATED"


def drain(site: Site16) -> None:
    site.slurm.nodes["n1"].drained = True


def suspect(site: Site16) -> None:
    site.ledger.put(Node(name="n1", state=State.SUSPECT), "failed")


def release_failed(site: Site16) -> None:
    site.ledger.put(Node(name="n1", checks=("gemm",)), "released")


def verify(site: Site16) -> None:
    site.ledger.issue_ticket("n1", "sweep", "idle")


@pytest.mark.parametrize("change", [make_busy, drain, suspect, release_failed, verify])
def test_who_is_busy_held_or_under_suspicion_is_in_no_pair(
    site: Site16, change: Callable[[Site16], None]
) -> None:
    change(site)

    paired = set[str]().union(*site.plan())
    assert "n1" not in paired
    assert len(paired) == 14  # and one of the others has no partner


def test_a_node_without_a_partner_is_told_and_stays_due(site: Site16) -> None:
    assert site.sweep("n3") == []

    assert site.said == ["n3: due, but no node of its kind is idle to try links with"]
    assert site.tried()[0] == 0


def test_no_more_nodes_are_tested_at_once_than_may_be_verified_at_once(site: Site16) -> None:
    most = 0

    def count(slurm: PaperCluster, _job: TestJob) -> None:
        nonlocal most
        running = [job for job in slurm.tests.values() if job.state == "RUNNING"]
        most = max(most, len({node for job in running for node in job.nodes}))

    site.slurm.meddle = count
    site.fleet = {"share": 1.0, "at_once": 5}
    site.sweep()

    assert most == 4
    assert site.tried()[0] == 16


@pytest.mark.parametrize(
    ("share", "at_once", "limit", "jobs"),
    [
        (1.0, 16, None, 8),
        (0.25, 16, None, 2),
        (0.01, 16, None, 1),
        (1.0, 4, None, 2),
        (1.0, 16, 6, 3),
    ],
)
def test_pairs_at_once_follow_the_limits_of_a_sweep(
    share: float, at_once: int, limit: int | None, jobs: int
) -> None:
    hosts = {
        f"n{i}": Host(name=f"n{i}", state="IDLE", partitions=("batch", "verify")) for i in range(16)
    }

    assert count_jobs_at_once(Fleet(share=share, at_once=at_once), hosts, limit) == jobs


def test_the_switches_of_the_site_file_go_before_those_of_slurm(site: Site16) -> None:
    site.fabric = Fabric(period_days=7, switches={"a": "n[1-8]", "b": "n[9-16]"})
    site.sweep()

    assert set(site.ledger.read_links().history.switches) == {("a", "b")}


def test_without_a_switch_the_rack_in_the_name_says_where_a_node_is(site: Site16) -> None:
    assert read_places(site.controller, ["n1", "n17", "r2c1"]) == {"n1": "leaf0", "r2c1": "r2"}


def test_nodes_tells_how_many_links_were_tried(site: Site16) -> None:
    site.sweep("n1", "n2", "n5", "n6")
    links = count_coverage(site.ledger.read_links(), site.slurm.now - WEEK)
    fleet = build_overview({}, [], [], now=site.slurm.now, links=links, link_days=7)

    assert describe_links(fleet) == "4 of 16 nodes, 1 of 6 pairs of switches in the last 7 days"
    assert describe_links(replace(fleet, links=None)) == ""


def be_slow(site: Site16) -> None:
    """Have each collective take twice as long as a week ago."""
    ledger = site.ledger
    usual = ledger.read_usual_speeds("0 GPUs")
    twice = [replace(speed, busbw=2 * speed.busbw) for speed in usual]
    ledger.record_pair_speeds("0 GPUs", twice * 200, site.slurm.now)


def test_a_single_pair_is_compared_with_what_pairs_usually_reach(site: Site16) -> None:
    site.sweep()
    site.slurm.now += 4 * DAY
    site.slurm.cluster = SimulatedCluster(bad=("n7",))

    for name in set(site.slurm.nodes) - {"n6", "n7", "n8", "n9", "n10", "n11"}:
        site.slurm.nodes[name].state = "ALLOCATED"
    (answer,) = site.sweep()

    assert [one.node for one in answer.faulty] == ["n7"]


@pytest.mark.parametrize("busy", [0, 8, 10, 12, 14])
def test_of_nodes_that_are_all_slower_than_usual_none_is_accused(site: Site16, busy: int) -> None:
    site.sweep()
    be_slow(site)
    site.slurm.now += 4 * DAY
    for name in list(site.slurm.nodes)[:busy]:
        site.slurm.nodes[name].state = "ALLOCATED"

    (answer,) = site.sweep()

    assert not answer.has_cause
    assert not answer.is_certain


def test_what_is_usual_is_learned_anew_once_most_pairs_are_slower(site: Site16) -> None:
    site.sweep()
    be_slow(site)
    site.slurm.now += 4 * DAY
    (answer,) = site.sweep()
    site.slurm.now += 4 * DAY

    assert answer.is_widespread
    assert site.sweep() == []


def count_speeds(site: Site16) -> int:
    with closing(sqlite3.connect(site.ledger.path)) as db:
        (count,) = db.execute("select count(*) from pair_speeds").fetchone()
    return int(count)


LINES = 20
"""Of the journal of a sweep of eight pairs that pass: the order, the round, two for each job,
the judgements, and the end."""


@pytest.mark.parametrize("number", [2, 3, 10, 18, 19, 20])
def test_what_a_sweep_has_left_when_it_was_killed_the_next_one_records_once(
    site: Site16, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(site.sweep, number, monkeypatch)
    assert site.tried()[0] == 0 or number > LINES - 2

    assert site.sweep() == []

    assert site.tried()[0] == 16
    first = site.jobs[0].name.rsplit("-", 1)[0]
    assert sum(job.name.startswith(first) for job in site.jobs) == 8, "each pair was tested once"
    assert count_speeds(site) == 2 * len(site.jobs)
    assert list(list_unfinished(site.folder / "state")) == []


def test_a_collect_cancels_the_jobs_of_links_that_a_killed_sweep_left(
    site: Site16, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(site.sweep, 10, monkeypatch)
    left = [job for job in site.jobs if job.state == "RUNNING"]
    assert left

    remove_leftovers(site.controller)

    assert {job.state for job in left} == {"CANCELLED"}
    assert site.sweep() == []
    assert site.tried()[0] == 16


def test_a_collect_leaves_links_alone_that_a_sweep_is_trying(site: Site16) -> None:
    site.slurm.meddle = lambda *_: remove_leftovers(site.controller)

    assert site.sweep() == []
    assert {job.state for job in site.jobs} == {"COMPLETED"}


def test_a_killed_sweep_can_be_resumed_by_hand_and_names_who_is_bad(
    site: Site16, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.slurm.cluster = SimulatedCluster(bad=("n7",))
    kill_at(site.sweep, LINES + 4, monkeypatch)
    controller = site.controller
    with closing(resume_journal(controller.state)) as journal:
        answer = carry_out_pairs(controller, journal, 8, lambda: False, site.slurm.sleep)

    assert answer is not None
    assert [one.node for one in answer.faulty] == ["n7"]
    assert site.tried()[0] == 16
    assert list(list_unfinished(controller.state)) == []


def test_what_another_version_began_is_ended_and_its_links_are_tried_anew(
    site: Site16, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(site.sweep, 10, monkeypatch)
    (path,) = (site.folder / "state" / "isolations").glob("*/*.jsonl")
    path.write_text(path.read_text().replace('"purpose":"pairs"', '"purpose":"group"'))
    site.slurm.sleep(60)

    assert site.sweep() == []

    assert site.tried()[0] == 16
    assert any("was begun by another version" in line for line in site.said)
    assert list(list_unfinished(site.folder / "state")) == []


@pytest.mark.parametrize("gone", ["n1", "n9"])
def test_a_sweep_goes_on_without_a_node_that_has_left_slurm_and_the_next_one_tries_links(
    site: Site16, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(site.sweep, 3, monkeypatch)
    del site.slurm.nodes[gone]
    site.slurm.sleep(60)
    began = site.slurm.now

    assert site.sweep() == []

    assert site.slurm.now - began < 600, "Slurm is not waited for"
    assert list(list_unfinished(site.folder / "state")) == []
    assert site.tried()[0] >= 14
    site.slurm.now += WEEK
    jobs = len(site.jobs)
    assert site.sweep() == []
    assert len(site.jobs) == jobs + 7


def test_an_isolation_that_takes_no_job_is_concluded_and_its_links_stay_due(
    site: Site16,
) -> None:
    def refuse(words: Sequence[str]) -> str:
        raise SlurmError(f"sbatch: {words[-1]}: Invalid account")

    submit = site.slurm._submit
    site.slurm._submit = refuse  # type: ignore[method-assign]
    with pytest.raises(ActionError, match="Invalid account"):
        site.sweep()
    assert list(list_unfinished(site.folder / "state")) == []
    site.slurm._submit = submit  # type: ignore[method-assign]

    assert site.sweep() == []
    assert site.tried()[0] == 16


def test_a_sweep_of_some_nodes_leaves_what_another_one_began_to_the_next(
    site: Site16, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at(site.sweep, 10, monkeypatch)
    site.slurm.sleep(60)

    site.sweep("n1", "n2")

    assert len(list(list_unfinished(site.folder / "state"))) == 1


def test_an_isolation_in_a_sweep_ends_with_its_budget_and_what_was_tested_counts(
    site: Site16,
) -> None:
    """Tests that take ten times as long as they should."""
    site.slurm.cluster = SimulatedCluster(bad=("n7",))
    site.slurm.job_s = 1200.0

    (answer,) = site.sweep()

    assert answer.end_reason.startswith("the budget of 332 node-minutes")
    assert answer.node_minutes < 332
    assert answer.faulty == ()
    tried, _ = site.tried()
    assert 0 < tried <= 14
