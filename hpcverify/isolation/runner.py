"""
An isolation from its first round to its end: plan, test by Slurm jobs, judge, write down.

The plan is made anew from the journal when an isolation is resumed: the same seed and
outcomes give the same rounds.

The jobs of a round run side by side. A job is pinned to its nodes and gives way to users' jobs
(hpcverify/slurm/submit.py). Only nodes that are idle now are taken, or those of the
reservation that was named. A busy node is waited for; then it is gone, and its group is
tested without it. What a job that was preempted, lost or never started leaves is no
outcome, and the search plans it again.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryFile

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.errors import ActionError, SlurmError, StoreError
from hpcverify.isolation.group_tests import (
    TWO,
    GroupOutcome,
    GroupPurpose,
    GroupTest,
    Outcomes,
    Round,
    name_members,
)
from hpcverify.isolation.journal import (
    ConcludedIsolation,
    EndedJob,
    Journal,
    JudgedRound,
    PlannedRound,
    SubmittedJob,
    read_run,
)
from hpcverify.isolation.judge import PeerReference
from hpcverify.isolation.stages import Isolation, isolate, try_pairs
from hpcverify.plan.hostlist import fold
from hpcverify.records.collectives import SECRET_VARIABLE, CollectiveRun
from hpcverify.records.documents import write_bytes
from hpcverify.slurm import Host, Job
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import TIMEOUT_S
from hpcverify.slurm.idle import explain_not_idle
from hpcverify.slurm.submit import (
    JOB_NAME_PREFIX,
    Ending,
    GroupJobSpec,
    JobStep,
    classify_ending,
    describe_ending,
    submit,
)
from hpcverify.units import format_count

USUAL_TEST_MINUTES = 1.0
"""The time of a test, until some were measured: start and end of a job, and torch on each rank."""
MAX_TESTS, MAX_TESTS_PER_NODE = 300, 4
"""The limits without a budget: three times as many tests as it takes to find ten nodes of 232."""

OUTBOX_NAME = ".isolate"
"""In the spool; no node can have this name."""
POLL_S = 1.0
MAX_SUBMISSION_S = TIMEOUT_S
"""So long after it was begun, a submission may still take effect."""
MAX_ARRIVAL_S = 10.0
"""How long after its job a document may appear in a folder that is read anew."""
MAX_AWAY_S = 600.0
"""How long to wait for a Slurm that does not answer."""
LOST_STATES = frozenset({"DOWN", "ERROR", "FUTURE"})
LOST_FLAGS = frozenset({"DRAIN", "FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED"})
"""With these a node does not come back while it is waited for. UNKNOWN is not one of them: every
node is, from a restart of slurmctld until its slurmd registers."""
WHOLE_PURPOSES = frozenset(
    {GroupPurpose.PAIR, GroupPurpose.PAIRS, GroupPurpose.SEND, GroupPurpose.CONTROL}
)
"""Tests that say nothing without one of their members."""

JOB_MINUTES = 5
"""The time limit of a test: torch starts on a cold node within one or two."""
GPU_SIZES, CPU_SIZES = ("64K", "1G"), ("64K", "4M")
"""Sizes that are sent: one that latency decides, and one that bandwidth does."""
TEST_SECONDS = 4.0
"""What the measurement takes, without the start: of each operation and size at least five
steps, and on a GPU that sends 40 GB/s more than twenty of the larger size."""
OPERATION = "all_reduce"
SEND_OPERATION = "broadcast"
"""From the first of two nodes to the second, one way. All tests of two nodes measure it, so
that there is something to compare with."""

PURPOSE_NAMES = {
    GroupPurpose.GROUP: "groups",
    GroupPurpose.PAIRS: "pairs",
    GroupPurpose.HALF: "halves of groups that failed",
    GroupPurpose.PAIR: "suspects with a partner",
    GroupPurpose.REST: "all others",
    GroupPurpose.WHOLE: "repeated",
    GroupPurpose.BETWEEN: "between groups",
    GroupPurpose.SEND: "one way",
    GroupPurpose.INSIDE: "nodes alone",
    GroupPurpose.CONTROL: "controls",
}
"""What an operator reads of a round."""


class VersionError(StoreError):
    """Another version has begun an isolation, and would go on in another way."""


class Interrupted(Exception):  # noqa: N818 - control flow: the state is kept
    """A person, or the system, has ended us."""


class GroupJobSettings(Struct, frozen=True, kw_only=True):
    """What all jobs of an isolation have in common."""

    partition: str
    reservation: str = ""
    user: str = ""
    program: str = ""
    options: tuple[str, ...] = ()


class _Slot(Struct, kw_only=True):
    """A job of the round, before, while and after it is there."""

    tests: tuple[int, ...]
    nodes: tuple[str, ...]
    name: str = ""
    """Empty: not submitted yet."""
    job: int = 0
    attempt: int = 0
    since: float = 0.0
    """When it was submitted, or began to wait for its nodes."""


@dataclass
class IsolationRunner:
    """Carries out the isolation that *journal* has, from where it is."""

    journal: Journal
    slurm: Slurm
    settings: GroupJobSettings
    spool: Path
    owner: int
    at_once: int
    """The most jobs at a time."""
    say: Callable[[str], None]
    stop: Callable[[], bool]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    gone: dict[str, str] = field(default_factory=dict[str, str])
    end_reason: str = ""
    """Why it ended before its time, if it did."""
    _reference: PeerReference = field(default_factory=PeerReference)
    _away_since: float = 0.0
    _refusal: str = ""

    def __post_init__(self) -> None:
        """Name what it leaves in the spool and in Slurm."""
        self._outbox = self.spool / OUTBOX_NAME / self.journal.order.id
        self._prefix = f"{JOB_NAME_PREFIX}isolate-{self.journal.order.id}-"

    def run(self) -> Isolation:
        """Test until the cause is known, or the budget is spent."""
        self._make_outbox()
        self._reference.recall(self.journal.order.usual)
        order, random = self.journal.order, Random(self.journal.order.seed)
        nodes, switches, limits = order.nodes, order.switches, {"inside": order.inside}
        paired = set(chain.from_iterable(order.pairs))
        spare = [node for node in nodes if node not in paired]
        plan = (
            try_pairs(order.pairs, spare, switches, random, gone=self.gone, **limits)
            if order.pairs
            else isolate(nodes, switches, random, gone=self.gone, **limits)
        )
        number = 1
        try:
            tests = next(plan)
            while True:
                outcomes = self._find_outcomes(number, tests)
                tests = plan.send(outcomes)
                number += 1
        except StopIteration as end:
            isolation: Isolation = end.value
        return isolation

    def conclude(self) -> None:
        """Write down that this is the end, once all that follows from it is done."""
        if self.journal.concluded is None:
            ended = ConcludedIsolation(at=self.clock(), end_reason=self.end_reason)
            self.journal.append(ended)
        with suppress(OSError):  # what matters was kept
            for path in self._outbox.iterdir():
                path.unlink()
            self._outbox.rmdir()
            self._outbox.parent.rmdir()  # unless another isolation uses it

    def _make_outbox(self) -> None:
        """Make the folder for the documents, which only the jobs' user can write to."""
        try:
            for folder in (self._outbox.parent, self._outbox):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    if os.geteuid() == 0:
                        os.chown(folder, self.owner, -1, follow_symlinks=False)
                status = folder.lstat()
                ours = stat.S_ISDIR(status.st_mode) and status.st_uid in {os.geteuid(), self.owner}
                if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise StoreError(  # the documents there could be those of another user
                        f"{folder} was created by another program (owner {status.st_uid}, mode "
                        f"{stat.S_IMODE(status.st_mode):04o}). Fix: remove it"
                    )
        except OSError as exc:
            raise StoreError(f"{self._outbox} cannot be made: {exc.strerror}") from exc

    def _find_outcomes(self, number: int, tests: Round) -> Outcomes:
        if not self.end_reason and number > len(self.journal.rounds):
            ended = self.journal.concluded
            self.end_reason = ended.end_reason if ended else self._explain_end(tests)
            if not self.end_reason:
                self.journal.append(PlannedRound(number=number, tests=tests))
        if self.end_reason:
            return None
        record = self.journal.rounds[number - 1]
        if record.tests != tests:
            raise VersionError(
                f"{self.journal.folder} was begun by another version, which plans other tests: "
                "begin a new isolation"
            )
        if not record.judged:
            return self._test_and_judge(number, tests)
        self.gone.update(record.judged.gone)
        outcomes = [judgement.outcome for judgement in record.judged.judgements]
        self._reference.learn(tests, self._read_runs(number), outcomes)
        return outcomes

    def _explain_end(self, tests: Round) -> str:
        """Say why another round, of these *tests*, is too much; empty if it is not."""
        order, rounds = self.journal.order, self.journal.rounds
        if not order.budget:
            most = MAX_TESTS + MAX_TESTS_PER_NODE * len(order.nodes)
            done = sum(len(record.tests) for record in rounds)
            if done + len(tests) <= most:
                return ""
            return (
                f"{done} tests did not separate the causes, and the limit without --budget is "
                f"{most}. Fix: check what all nodes share, or start again with --budget"
            )
        jobs = [job for record in rounds for job in record.ended if job.node_minutes]
        took = [job.node_minutes / len(job.nodes) for job in jobs] or [USUAL_TEST_MINUTES]
        # Both directions of a pair are in its job.
        needed = sum(map(len, {frozenset(test.members) for test in tests})) * mean(took)
        spent = self.journal.node_minutes
        if spent + needed <= order.budget:
            return ""
        return (
            f"the budget of {order.budget:g} node-minutes: {spent:.0f} are spent, and the next "
            f"round would take about {needed:.0f}"
        )

    def _test_and_judge(self, number: int, tests: Round) -> list[GroupOutcome]:
        nodes = {node for test in tests for node in test.members}
        purposes = Counter(PURPOSE_NAMES[test.purpose] for test in tests)
        counts = ", ".join(f"{name}: {count}" for name, count in purposes.items())
        self.say(
            f"round {number}: {format_count(len(tests), 'test')} of "
            f"{format_count(len(nodes), 'node')} ({counts})"
        )
        before = set(self.gone)
        self._test(number, tests)
        runs = self._read_runs(number)
        judgements = self._reference.judge_round(tests, runs)
        for place, _, job in self.journal.list_documents(number):
            if job.reason and runs[place] is None:
                judgements[place] = replace(judgements[place], reason=job.reason)
        gone = {node: why for node, why in self.gone.items() if node not in before}
        self.journal.append(JudgedRound(number=number, judgements=tuple(judgements), gone=gone))
        for test, judgement in zip(tests, judgements, strict=True):
            if judgement.outcome is GroupOutcome.FAILED:
                self.say(f"  failed: {name_members(test.members)}: {judgement.reason}")
        return [judgement.outcome for judgement in judgements]

    def _read_runs(self, number: int) -> list[CollectiveRun | None]:
        return [
            read_run(self.journal.folder / name) if name else None
            for _, name, _ in self.journal.list_documents(number)
        ]

    # The jobs of a round

    def _test(self, number: int, tests: Round) -> None:
        """Test round *number*, or what is left of it, until each test has an `EndedJob`."""
        ended = {place for place, _, _ in self.journal.list_documents(number)}
        left = [slot for slot in _make_slots(tests) if ended.isdisjoint(slot.tests)]
        running = self._adopt(number, left)
        waiting = [slot for slot in left if not slot.name]
        has_to_submit = bool(waiting)
        if running:
            self.say(f"{len(running)} jobs of round {number} are still known")
        while waiting or running:
            if self.stop():
                known = self.slurm.list_jobs(self._prefix)
                self.slurm.cancel(*(job.id for job in known.values() if not job.end))
                raise Interrupted
            try:
                if running:
                    wanted = [slot.job for slot in running if slot.job]
                    known = self.slurm.list_jobs(self._prefix, wanted)
                    ours = {slot.name for slot in running}
                    strays = [j.id for j in known.values() if j.name not in ours and not j.end]
                    self.slurm.cancel(*strays)
                    jobs = {job.name: job for job in known.values()}
                    running = [
                        slot
                        for slot in running
                        if not self._end_if_over(number, slot, jobs.get(slot.name))
                    ]
                waiting = self._submit(number, tests, waiting, running)
                self._away_since = 0.0
            except SlurmError as exc:  # it may be away for a while: what runs goes on
                if not self._away_since:
                    self._away_since = self.clock()
                    self.say(f"{exc}; waiting for it")
                if self.clock() - self._away_since > MAX_AWAY_S:
                    raise
            if waiting or running:
                self.sleep(POLL_S)
        has_run = any(job.nodes for job in self.journal.rounds[number - 1].ended)
        if self._refusal and has_to_submit and not has_run:
            raise ActionError(f"no test could be submitted: {self._refusal}")

    def _adopt(self, number: int, slots: Sequence[_Slot]) -> list[_Slot]:
        """Find the jobs of *slots* that a process before us submitted, by their names."""
        begun: dict[tuple[int, ...], list[SubmittedJob]] = {}
        for submitted in self.journal.rounds[number - 1].submitted:
            begun.setdefault(submitted.tests, []).append(submitted)
        last = [begun[slot.tests][-1] for slot in slots if slot.tests in begun]
        known = self._find_submitted(last) if last else {}
        adopted: list[_Slot] = []
        for slot in slots:
            slot.attempt = len(begun.get(slot.tests, ()))
            mine = begun[slot.tests][-1] if slot.attempt else None
            if mine and (mine.name in known or self._left_all(mine)):
                slot.name, slot.nodes, slot.since = mine.name, mine.nodes, self.clock()
                slot.job = known[mine.name].id if mine.name in known else 0
                adopted.append(slot)
        return adopted

    def _find_submitted(self, wanted: Sequence[SubmittedJob]) -> dict[str, Job]:
        """Find the jobs *wanted* by name; wait for submissions that were interrupted."""
        is_reported = False
        while True:
            known = {job.name: job for job in self.slurm.list_jobs(self._prefix).values()}
            missing = (job for job in wanted if job.name not in known)
            ages = [self.clock() - job.at for job in missing if not self._left_all(job)]
            if not any(0 <= age < MAX_SUBMISSION_S for age in ages):
                return known
            if not is_reported:
                self.say("waiting for Slurm to list a job whose submission was interrupted")
                is_reported = True
            if self.stop():
                raise Interrupted
            self.sleep(POLL_S)

    def _left_all(self, job: SubmittedJob) -> bool:
        return all(path.exists() for path in self._list_outputs(job.name, job.tests))

    def _list_outputs(self, job: str, tests: Sequence[int]) -> list[Path]:
        return [self._outbox / f"{job}.{index}.json" for index in range(len(tests))]

    def _end_if_over(self, number: int, slot: _Slot, job: Job | None) -> bool:
        paths = self._list_outputs(slot.name, slot.tests)
        if job is None or job.end:
            # Have the folder read anew: an NFS client may believe for a minute that a file is
            # not there (acdirmax, nfs(5)), unless it has itself changed the folder since. A job
            # has renamed its documents before it ends.
            with suppress(OSError), TemporaryFile(dir=self._outbox):
                pass
        documents = [path for path in paths if read_run(path, slot.nodes) is not None]
        is_whole = len(documents) == len(paths)
        now = self.clock()
        ending = classify_ending(job, document=is_whole, now=now, max_arrival=MAX_ARRIVAL_S)
        if ending is Ending.PENDING and now - slot.since > self.journal.order.wait:
            ending = Ending.NEVER_STARTED
        if not ending.is_over:
            return False
        minutes = 0.0
        if job is not None:
            if not job.end:
                self.slurm.cancel(job.id)
            if job.start:
                minutes = max(0.0, (job.end or self.clock()) - job.start) / 60
        if ending is not Ending.FINISHED:  # ranks that were ended are missed by the others
            documents = []
        for path in documents:
            write_bytes(self.journal.folder / path.name, path.read_bytes())
        reason = ""
        if not documents:
            described = describe_ending(ending, fold(slot.nodes), job)
            reason = f"{name_members(slot.nodes)}: {described}"
            self.say(reason)
        self.journal.append(
            EndedJob(
                round=number,
                tests=slot.tests,
                documents=tuple(path.name if path in documents else "" for path in paths),
                name=slot.name,
                job=slot.job,
                nodes=slot.nodes,
                reason=reason,
                node_minutes=minutes * len(slot.nodes),
            )
        )
        return True

    def _submit(
        self, number: int, tests: Round, waiting: Sequence[_Slot], running: list[_Slot]
    ) -> list[_Slot]:
        """Submit those whose nodes are idle, into *running*; return those that still wait."""
        room = self.at_once - len(running)
        if room <= 0 or not waiting:
            return list(waiting)
        names = sorted({node for slot in waiting for node in slot.nodes})
        try:
            hosts: Mapping[str, Host] = self.slurm.list_hosts(*names)
        except SlurmError:  # Slurm is away, or does not know one of the names
            hosts = self.slurm.list_hosts()
        left: list[_Slot] = []
        for slot in waiting:
            busy = self._list_busy(slot, hosts)
            slot.nodes = tuple(node for node in slot.nodes if node not in self.gone)
            slot.since = (slot.since or self.clock()) if busy else 0.0
            test, count = tests[slot.tests[0]], len(slot.nodes)
            if test.purpose in WHOLE_PURPOSES:
                has_enough = count == len(test.members)
            else:
                has_enough = count > 1 or (test.purpose is GroupPurpose.INSIDE and count == 1)
            if not has_enough:
                lost = ", ".join(f"{n} {self.gone[n]}" for n in test.members if n in self.gone)
                self.journal.append(EndedJob(round=number, tests=slot.tests, reason=lost))
            elif busy or room <= 0:
                left.append(slot)
            else:
                room -= 1
                gpus = min(hosts[node].gpus for node in slot.nodes)
                if self._submit_one(number, [tests[at] for at in slot.tests], slot, gpus):
                    running.append(slot)
        return left

    def _list_busy(self, slot: _Slot, hosts: Mapping[str, Host]) -> list[str]:
        order = self.journal.order
        is_late = bool(slot.since) and self.clock() - slot.since > order.wait
        busy: list[str] = []
        for node in slot.nodes:
            if node in self.gone:
                continue
            if host := hosts.get(node):
                why = explain_not_idle(host, reserved=bool(order.reservation))
                is_lost = host.state in LOST_STATES or not LOST_FLAGS.isdisjoint(host.flags)
            else:
                why, is_lost = "is not in Slurm any more", True
            if why and (is_lost or is_late):
                self.gone[node] = why
                self.say(f"{node} {why}, so later tests leave it out")
            elif why:
                busy.append(node)
        return busy

    def _submit_one(self, number: int, tests: Sequence[GroupTest], slot: _Slot, gpus: int) -> bool:
        slot.name = f"{self._prefix}r{number}t{slot.tests[0]}a{slot.attempt}"
        spec = build_job_spec(
            slot.name,
            slot.nodes,
            zip(tests, self._list_outputs(slot.name, slot.tests), strict=True),
            self.settings,
            gpus=gpus,
            start_within=self.journal.order.wait + POLL_S,
        )
        self.journal.append(
            SubmittedJob(
                round=number, tests=slot.tests, name=slot.name, nodes=slot.nodes, at=self.clock()
            )
        )
        try:
            slot.job = submit(spec, self.slurm)
        except SlurmError as exc:
            known = self.slurm.list_jobs(self._prefix)  # if it answers, the error is this job's
            there = [job.id for job in known.values() if job.name == slot.name]
            if not there:
                self._refusal = str(exc)
                self.say(f"{name_members(slot.nodes)}: {exc}")
                self.journal.append(EndedJob(round=number, tests=slot.tests, reason=str(exc)))
                return False
            slot.job = there[0]
        slot.since = self.clock()
        return True


def _make_slots(tests: Round) -> list[_Slot]:
    slots: dict[frozenset[str], _Slot] = {}
    for place, test in enumerate(tests):
        members = frozenset(test.members)
        if test.purpose is GroupPurpose.SEND and members in slots:
            slots[members].tests += (place,)
        else:
            slots[members] = _Slot(tests=(place,), nodes=test.members)
    return list(slots.values())


def build_job_spec(
    name: str,
    nodes: tuple[str, ...],
    tests: Iterable[tuple[GroupTest, Path]],
    settings: GroupJobSettings,
    *,
    gpus: int,
    start_within: float,
) -> GroupJobSpec:
    """Build the job of *tests*, a step for each document, with a rank for each of *gpus*."""
    sizes = [word for size in (GPU_SIZES if gpus else CPU_SIZES) for word in ("--size", size)]
    steps: list[JobStep] = []
    for test, document in tests:
        operations = (OPERATION, SEND_OPERATION) if len(nodes) == TWO else (OPERATION,)
        more: tuple[str, ...] = ("--algorithm", "ring")
        order: tuple[str, ...] = ()
        if test.purpose is GroupPurpose.SEND:
            operations, order = (SEND_OPERATION,), test.members
            more = (*more, "--address", order[0])
        elif test.purpose is GroupPurpose.INSIDE:
            more = ("--alone",)
        chosen = [word for operation in operations for word in ("--operation", operation)]
        seconds = ("--time", f"{TEST_SECONDS:g}s", "--no-stragglers")
        arguments = ("fabric", "test", "-o", str(document), *chosen, *sizes, *seconds, *more)
        steps.append(JobStep(arguments=arguments, order=order))
    return GroupJobSpec(
        nodes=nodes,
        gpus=gpus,
        name=name,
        minutes=JOB_MINUTES,
        deadline_hours=start_within / 3600,
        partition=settings.partition,
        reservation=settings.reservation,
        user=settings.user,
        program=settings.program,
        options=settings.options,
        environment={SECRET_VARIABLE: secrets.token_hex(32)},
        steps=tuple(steps),
    )
