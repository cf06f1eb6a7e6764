"""A Slurm on paper whose jobs are tests of a simulated cluster, and a clock that never waits."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from hpcverify.isolation.answer import IsolationAnswer, build_answer
from hpcverify.isolation.journal import (
    Entry,
    IsolationOrder,
    Journal,
    create_journal,
    make_isolation_id,
)
from hpcverify.isolation.runner import GroupJobSettings, IsolationRunner
from hpcverify.slurm.client import Slurm
from tests.fleet.paper import PaperNode, PaperSlurm
from tests.isolation.stand_in import SimulatedCluster, make_run, parse_arguments

JOB_S = 30
"""What a test takes, from start to end."""


@dataclass
class TestJob:
    """A job, and what its script runs."""

    __test__ = False
    id: int
    name: str
    nodes: list[str]
    steps: list[tuple[list[str], list[str]]]
    """Of each: the nodes in the order of ranks, and the program's arguments."""
    start: float
    state: str = "RUNNING"
    end: float = 0
    preempted: float = 0


@dataclass
class PaperCluster(PaperSlurm):
    """Runs each job for `job_s` of its clock, and then writes its documents."""

    cluster: SimulatedCluster = field(default_factory=SimulatedCluster)
    tests: dict[int, TestJob] = field(default_factory=dict[int, TestJob])
    now: float = 1_700_000_000.0
    job_s: float = JOB_S
    meddle: Callable[[PaperCluster, TestJob], None] = lambda *_: None
    """Is called with each job that was submitted."""
    arriving: list[tuple[float, TestJob]] = field(default_factory=list[tuple[float, TestJob]])
    """Jobs that Slurm takes in at some time: whoever submitted them is no more."""
    written: Callable[[Path], object] = lambda _: None
    """Is called with each document."""

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for at, job in list(self.arriving):
            if at <= self.now:
                self.arriving.remove((at, job))
                job.start = self.now
                self.tests[job.id] = job
        for job in self.tests.values():
            if job.state == "RUNNING" and self.now - job.start >= self.job_s:
                job.state, job.end = "COMPLETED", self.now
                self.write_documents(job)

    def preempt(self, job: TestJob, *nodes: str) -> None:
        """Give *nodes* to a user's job."""
        job.state, job.end, job.preempted = "PREEMPTED", self.now, self.now
        for node in nodes:
            self.nodes[node].state = "ALLOCATED"

    def write_documents(self, job: TestJob) -> None:
        """Write what the ranks of *job* leave."""
        for order, arguments in job.steps:
            asked = parse_arguments(arguments)
            run = make_run(self.cluster, order, asked.operation)
            Path(asked.out).write_bytes(msgspec.json.encode(run))
            self.written(Path(asked.out))

    def _show_jobs(self) -> str:
        rows = [
            (
                *(job.id, job.state, ",".join(job.nodes), int(job.start), int(job.end)),
                *(int(job.preempted) or "N/A", "0:0", "None", job.name),
            )
            for job in self.tests.values()
        ]
        return "".join("|".join(map(str, row)) + "|\n" for row in rows)

    def _told(self, command: Sequence[str]) -> str:
        words = list(command)
        if words[:1] == ["sbatch"]:
            return self._submit(words)
        if words[:1] == ["scancel"]:
            for number in map(int, words[1:]):
                if not self.tests[number].end:
                    self.tests[number].state, self.tests[number].end = "CANCELLED", self.now
            return ""
        return super()._told(words)

    def _submit(self, words: Sequence[str]) -> str:
        options = dict(word[2:].split("=", 1) for word in words if "=" in word)
        nodes = options["nodelist"].split(",")
        busy = {n for j in self.tests.values() if j.state == "RUNNING" for n in j.nodes}
        assert busy.isdisjoint(nodes), "two jobs of a round share a node"
        assert {"no-requeue", "exclusive", "parsable"} <= {word[2:] for word in words}
        number = len(self.tests) + len(self.arriving) + 1
        steps = [
            _read_step(line, nodes)
            for line in Path(words[-1]).read_text().splitlines()
            if re.match(r"(exec )?srun ", line)
        ]
        job = TestJob(number, options["job-name"], nodes, steps, self.now)
        self.tests[number] = job
        self.meddle(self, job)
        return f"{number}\n"


def _read_step(line: str, nodes: Sequence[str]) -> tuple[list[str], list[str]]:
    words = shlex.split(line)
    at = words.index("$program")
    named = [w.split("=", 1)[1] for w in words[:at] if w.startswith("--nodelist=")]
    order = list(dict.fromkeys(named[0].split(","))) if named else list(nodes)
    return order, words[at + 1 :]


@dataclass
class PaperIsolation:
    """An isolation on a cluster on paper, in *folder*."""

    folder: Path
    slurm: PaperCluster
    nodes: tuple[str, ...]
    switches: dict[str, str] = field(default_factory=dict[str, str])
    inside: bool = False
    budget: float = 0.0
    wait: float = 300.0
    at_once: int = 1000
    stop: Callable[[], bool] = lambda: False
    said: list[str] = field(default_factory=list[str])

    def order(self) -> IsolationOrder:
        """Order what is to be tested."""
        return IsolationOrder(
            id=make_isolation_id(),
            at=self.slurm.now,
            version="test",
            nodes=self.nodes,
            switches=self.switches,
            seed="a test",
            inside=self.inside,
            budget=self.budget,
            wait=self.wait,
        )

    def run(self, journal: Journal | None = None) -> IsolationAnswer:
        """Carry it out, or go on with the *journal* of one that was killed."""
        journal = journal or create_journal(self.folder, self.order())
        try:
            spool = self.folder / "spool"
            spool.mkdir(parents=True, exist_ok=True)
            runner = IsolationRunner(
                journal=journal,
                slurm=Slurm(run=self.slurm),
                settings=GroupJobSettings(partition="verify"),
                spool=spool,
                owner=0,
                at_once=self.at_once,
                say=self.said.append,
                stop=self.stop,
                clock=lambda: self.slurm.now,
                sleep=self.slurm.sleep,
            )
            found = runner.run()
            answer = build_answer(journal, found, runner.gone, runner.end_reason)
            runner.conclude()
            return answer
        finally:
            journal.close()


def make_paper(
    folder: Path, count: int, cluster: SimulatedCluster, **changes: object
) -> PaperIsolation:
    """Make an isolation of *count* idle nodes, n1 and on."""
    names = [f"n{number}" for number in range(1, count + 1)]
    slurm = PaperCluster(nodes={name: PaperNode() for name in names}, cluster=cluster)
    made = PaperIsolation(folder, slurm, tuple(names))
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Killed(BaseException):
    """Stands for SIGKILL: nothing that we wrote catches it."""


def kill_at(run: Callable[[], object], number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill *run* at its line of that *number* in the journal, before or after it is there."""
    append, count = Journal.append, 0

    def dying(self: Journal, entry: Entry) -> None:
        nonlocal count
        count += 1
        if count == number and number % 2:
            raise Killed
        append(self, entry)
        if count == number:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", dying)
        with pytest.raises(Killed):
            run()
