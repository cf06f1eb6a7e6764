"""
The tests of a round, as Slurm jobs side by side.

A job is pinned to its nodes and gives way to anybody (hpcverify/slurm/submit.py). Only
nodes that are idle now are taken, or those of the reservation that was named. A busy node
is waited for; then it is gone, and its group is tested without it. What a job that was
preempted, lost or never started leaves is no outcome, and the search plans it again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile

from msgspec import Struct

from hpcverify.errors import ActionError, SlurmError, StoreError
from hpcverify.isolation.group_jobs import (
    GroupJob,
    GroupJobSettings,
    build_job_spec,
    name_document,
    read_run,
)
from hpcverify.isolation.group_tests import GroupPurpose, GroupTest, name_members
from hpcverify.isolation.journal import EndedJob, Journal, SubmittedJob, list_documents
from hpcverify.plan.hostlist import fold
from hpcverify.records.collectives import CollectiveRun
from hpcverify.records.documents import write_bytes
from hpcverify.slurm import Host, Job
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.command import TIMEOUT_S
from hpcverify.slurm.idle import explain_not_idle
from hpcverify.slurm.submit import (
    JOB_NAME_PREFIX,
    Ending,
    classify_ending,
    describe_ending,
    submit,
)

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
MISSING = "is not in Slurm any more"
WHOLE_PURPOSES = frozenset(
    {GroupPurpose.PAIR, GroupPurpose.PAIRS, GroupPurpose.SEND, GroupPurpose.CONTROL}
)
"""Tests that say nothing without one of their members."""


class Interrupted(Exception):  # noqa: N818 - control flow: the state is kept
    """A person, or the system, has ended us."""


class TestEnd(Struct, frozen=True):
    """What a test left."""

    __test__ = False
    run: CollectiveRun | None
    reason: str = ""
    """Why there is none."""
    nodes: tuple[str, ...] = ()
    """Those that it ran on."""


class _Slot(Struct, kw_only=True):
    """A job of the round, before, while and after it is there."""

    tests: tuple[int, ...]
    """Their places in the round."""
    nodes: tuple[str, ...]
    name: str = ""
    """Empty: not submitted yet."""
    job: int = 0
    attempt: int = 0
    since: float = 0.0
    """When it was submitted, or began to wait for its nodes."""


@dataclass
class RoundTester:
    """Tests rounds of the isolation that *journal* has, and keeps what comes of them."""

    journal: Journal
    slurm: Slurm
    settings: GroupJobSettings
    spool: Path
    owner: int
    """The user whose jobs write into the spool."""
    at_once: int
    """The most jobs at a time."""
    say: Callable[[str], None]
    stop: Callable[[], bool]
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    gone: dict[str, str] = field(default_factory=dict[str, str])
    """Nodes that cannot be tested any more, and why."""
    _away_since: float = 0.0
    _refusal: str = ""

    @property
    def outbox(self) -> Path:
        """Where the jobs leave their documents."""
        return self.spool / OUTBOX_NAME / self.journal.order.id

    @property
    def prefix(self) -> str:
        """What the names of all its jobs begin with."""
        return f"{JOB_NAME_PREFIX}isolate-{self.journal.order.id}-"

    def prepare(self) -> None:
        """
        Make the folder for the documents, which only the jobs' user can write to.

        Raises:
            StoreError: it cannot be made, or somebody else made it.

        """
        try:
            for folder in (self.outbox.parent, self.outbox):
                with suppress(FileExistsError):
                    folder.mkdir(mode=0o700)
                    if os.geteuid() == 0:
                        os.chown(folder, self.owner, -1, follow_symlinks=False)
                self._refuse_strangers(folder)
        except OSError as exc:
            raise StoreError(f"{self.outbox} cannot be made: {exc.strerror}") from exc

    def _refuse_strangers(self, folder: Path) -> None:
        """Refuse a folder that another user made: its documents could be theirs."""
        status = folder.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid in {os.geteuid(), self.owner}
        if not ours or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StoreError(
                f"{folder} was not made by us (owner {status.st_uid}, mode "
                f"{stat.S_IMODE(status.st_mode):04o}): find out who made it, and remove it"
            )

    def clean_up(self) -> None:
        """Remove the folder again: what matters was kept."""
        with suppress(OSError):
            for path in self.outbox.iterdir():
                path.unlink()
            self.outbox.rmdir()
        with suppress(OSError):  # another isolation may use it
            self.outbox.parent.rmdir()

    def test_round(self, number: int, tests: Sequence[GroupTest]) -> list[TestEnd]:
        """
        Test round *number*, or what is left of it, and return what came of each test.

        Raises:
            Interrupted: the jobs are cancelled, and the rest is still to be tested.
            ActionError: no job could be submitted.
            SlurmError: Slurm does not answer any more.

        """
        ended = {place for place, _, _ in list_documents(self.journal, number)}
        slots = [s for s in _make_slots(tests) if ended.isdisjoint(s.tests)]
        adopted = self._adopt(number, slots)
        waiting = [slot for slot in slots if not slot.name]
        if adopted:
            self.say(f"{len(adopted)} jobs of round {number} are still known")
        running = adopted
        failed_before = len(waiting)
        while waiting or running:
            if self.stop():
                self._cancel_all()
                raise Interrupted
            try:
                if running:
                    running = self._look_at(number, running)
                waiting = self._submit(number, tests, waiting, running)
                self._away_since = 0.0
            except SlurmError as exc:
                self._wait_for_slurm(exc)
            if waiting or running:
                self.sleep(POLL_S)
        ends = self.read_ends(number)
        if self._refusal and failed_before and not any(end.nodes for end in ends):
            raise ActionError(f"no test could be submitted: {self._refusal}")
        return ends

    def read_ends(self, number: int) -> list[TestEnd]:
        """Read what the tests of round *number* left."""
        ends: dict[int, TestEnd] = {}
        for place, name, job in list_documents(self.journal, number):
            run = read_run(self.journal.folder / name) if name else None
            ends[place] = TestEnd(run, job.reason, job.nodes)
        return [ends[place] for place in sorted(ends)]

    # Jobs

    def _adopt(self, number: int, slots: Iterable[_Slot]) -> list[_Slot]:
        """Find the jobs that a process before us submitted, by their names."""
        submitted = self.journal.rounds[number - 1].submitted
        begun = {
            slot.tests: [job for job in submitted if job.tests == slot.tests] for slot in slots
        }
        last = [jobs[-1] for jobs in begun.values() if jobs]
        known = self._find_submitted(last) if last else {}
        adopted: list[_Slot] = []
        for slot in slots:
            slot.attempt = len(begun[slot.tests])
            mine = begun[slot.tests][-1] if slot.attempt else None
            if mine and (mine.name in known or self._are_all_there(mine)):
                job = known.get(mine.name)
                slot.name, slot.nodes, slot.since = mine.name, mine.nodes, self.clock()
                slot.job = job.id if job else 0
                adopted.append(slot)
        return adopted

    def _find_submitted(self, wanted: Sequence[SubmittedJob]) -> dict[str, Job]:
        """
        Find the jobs *wanted*, by name; wait for those that Slurm may still be taking in.

        Whoever submitted them was killed, perhaps with the request under way.
        """
        is_reported = False
        while True:
            known = {job.name: job for job in self.slurm.list_jobs(self.prefix).values()}
            missing = (job for job in wanted if job.name not in known)
            ages = [self.clock() - job.at for job in missing if not self._are_all_there(job)]
            if not any(0 <= age < MAX_SUBMISSION_S for age in ages):
                return known
            if not is_reported:
                self.say(
                    "a job was being submitted when we were killed: waiting for Slurm to show it"
                )
                is_reported = True
            if self.stop():
                raise Interrupted
            self.sleep(POLL_S)

    def _are_all_there(self, job: SubmittedJob) -> bool:
        return all(path.exists() for path in self._list_outputs(job.name, job.tests))

    def _list_outputs(self, job: str, tests: Sequence[int]) -> Iterator[Path]:
        yield from (self.outbox / name_document(job, index) for index in range(len(tests)))

    def _look_at(self, number: int, running: Sequence[_Slot]) -> list[_Slot]:
        """Take in the jobs that have ended; return the others."""
        known = self.slurm.list_jobs(self.prefix, [slot.job for slot in running if slot.job])
        ours = {slot.name for slot in running}
        strays = [j.id for j in known.values() if j.name not in ours and not j.end]
        self.slurm.cancel(*strays)
        by_name = {job.name: job for job in known.values()}
        return [s for s in running if not self._end_if_over(number, s, by_name.get(s.name))]

    def _end_if_over(self, number: int, slot: _Slot, job: Job | None) -> bool:
        paths = list(self._list_outputs(slot.name, slot.tests))
        if job is None or job.end:
            self._forget_cached_folder()
        documents = [path for path in paths if read_run(path, slot.nodes) is not None]
        ending = classify_ending(
            job,
            document=len(documents) == len(paths),
            now=self.clock(),
            max_arrival=MAX_ARRIVAL_S,
        )
        wait = self.journal.order.wait
        if ending is Ending.PENDING and self.clock() - slot.since > wait:
            ending = Ending.NEVER_STARTED
        if not ending.is_over:
            return False
        if job is not None and not job.end:
            self.slurm.cancel(job.id)
        if ending is not Ending.FINISHED:  # ranks that were ended are missed by the others
            documents = []
        for path in documents:
            write_bytes(self.journal.folder / path.name, path.read_bytes())
        reason = "" if documents else self._explain(slot, ending, job)
        if reason:
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
                node_minutes=self._count_minutes(job) * len(slot.nodes),
            )
        )
        return True

    def _forget_cached_folder(self) -> None:
        """
        Have the folder of the documents read anew.

        An NFS client may believe for a minute that a file is not there (acdirmax, nfs(5)),
        unless it has itself changed the folder since. A job has renamed its documents
        before it ends.
        """
        with suppress(OSError), TemporaryFile(dir=self.outbox):
            pass

    def _explain(self, slot: _Slot, ending: Ending, job: Job | None) -> str:
        description = describe_ending(ending, fold(slot.nodes), job)
        return f"{name_members(slot.nodes)}: {description}"

    def _count_minutes(self, job: Job | None) -> float:
        if job is None or not job.start:
            return 0.0
        return max(0.0, (job.end or self.clock()) - job.start) / 60

    def _cancel_all(self) -> None:
        known = self.slurm.list_jobs(self.prefix)
        self.slurm.cancel(*(job.id for job in known.values() if not job.end))

    # Submission

    def _submit(
        self,
        number: int,
        tests: Sequence[GroupTest],
        waiting: Sequence[_Slot],
        running: list[_Slot],
    ) -> list[_Slot]:
        """Submit those whose nodes are idle, into *running*; return those that still wait."""
        room = self.at_once - len(running)
        if room <= 0 or not waiting:
            return list(waiting)
        hosts = self._list_hosts(waiting)
        left: list[_Slot] = []
        for slot in waiting:
            self._give_up_lost(slot, hosts)
            slot.nodes = tuple(node for node in slot.nodes if node not in self.gone)
            busy = [node for node in slot.nodes if self._explain_busy(hosts.get(node))]
            slot.since = (slot.since or self.clock()) if busy else 0.0
            test = tests[slot.tests[0]]
            if not _has_enough_nodes(test, slot.nodes):
                self._end_untested(number, slot, test)
            elif busy or room <= 0:
                left.append(slot)
            else:
                room -= 1
                if self._submit_one(number, [tests[at] for at in slot.tests], slot, hosts):
                    running.append(slot)
        return left

    def _list_hosts(self, waiting: Iterable[_Slot]) -> Mapping[str, Host]:
        """Read the nodes that are waited for; one that is missing here is not in Slurm."""
        names = sorted({node for slot in waiting for node in slot.nodes})
        try:
            return self.slurm.list_hosts(*names)
        except SlurmError:  # Slurm is away, or does not know one of the names
            return self.slurm.list_hosts()

    def _explain_busy(self, host: Host | None) -> str:
        if host is None:
            return MISSING
        return explain_not_idle(host, reserved=bool(self.journal.order.reservation))

    def _give_up_lost(self, slot: _Slot, hosts: Mapping[str, Host]) -> None:
        is_late = bool(slot.since) and self.clock() - slot.since > self.journal.order.wait
        for node in slot.nodes:
            host = hosts.get(node)
            is_lost = (
                host is None or host.state in LOST_STATES or not LOST_FLAGS.isdisjoint(host.flags)
            )
            if node not in self.gone and (why := self._explain_busy(host)) and (is_lost or is_late):
                self.gone[node] = why
                self.say(f"{node} {why}: it is left out from here on")

    def _end_untested(self, number: int, slot: _Slot, test: GroupTest) -> None:
        lost = ", ".join(f"{n} {self.gone[n]}" for n in test.members if n in self.gone)
        self.journal.append(EndedJob(round=number, tests=slot.tests, reason=lost))

    def _submit_one(
        self, number: int, tests: Sequence[GroupTest], slot: _Slot, hosts: Mapping[str, Host]
    ) -> bool:
        slot.name = f"{self.prefix}r{number}t{slot.tests[0]}a{slot.attempt}"
        self.journal.append(
            SubmittedJob(
                round=number,
                tests=slot.tests,
                name=slot.name,
                nodes=slot.nodes,
                at=self.clock(),
            )
        )
        job = GroupJob(
            name=slot.name,
            nodes=slot.nodes,
            tests=tuple(tests),
            documents=tuple(self._list_outputs(slot.name, slot.tests)),
        )
        gpus = min(hosts[node].gpus for node in slot.nodes)
        start_within = self.journal.order.wait + POLL_S
        spec = build_job_spec(job, self.settings, gpus=gpus, start_within=start_within)
        try:
            slot.job = submit(spec, self.slurm)
        except SlurmError as exc:
            return self._is_there_anyway(number, slot, exc)
        slot.since = self.clock()
        return True

    def _is_there_anyway(self, number: int, slot: _Slot, exc: SlurmError) -> bool:
        known = self.slurm.list_jobs(self.prefix)  # if it answers, the error is this job's
        submitted = next((job for job in known.values() if job.name == slot.name), None)
        if submitted:
            slot.job, slot.since = submitted.id, self.clock()
            return True
        self._refusal = str(exc)
        self.say(f"{name_members(slot.nodes)}: {exc}")
        self.journal.append(EndedJob(round=number, tests=slot.tests, reason=str(exc)))
        return False

    def _wait_for_slurm(self, exc: SlurmError) -> None:
        """Wait for a scheduler that is away for a while: what runs goes on."""
        now = self.clock()
        if not self._away_since:
            self._away_since = now
            self.say(f"{exc}; waiting for it")
        if now - self._away_since > MAX_AWAY_S:
            raise exc


def _make_slots(tests: Sequence[GroupTest]) -> list[_Slot]:
    """Make a job of each test; both directions of a pair go with its test."""
    slots: dict[frozenset[str], _Slot] = {}
    for place, test in enumerate(tests):
        members = frozenset(test.members)
        if test.purpose is GroupPurpose.SEND and members in slots:
            slots[members].tests += (place,)
        else:
            slots[members] = _Slot(tests=(place,), nodes=test.members)
    return list(slots.values())


def _has_enough_nodes(test: GroupTest, nodes: Sequence[str]) -> bool:
    if test.purpose in WHOLE_PURPOSES:
        return len(nodes) == len(test.members)
    return len(nodes) > 1 or (test.purpose is GroupPurpose.INSIDE and len(nodes) == 1)
