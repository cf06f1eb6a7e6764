"""
Orders for verifications: a ticket, its job, and how the job ended.

The ticket is written before the job is submitted, and the job is named after it. If a
controller dies in between, its successor finds the job by its name.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hpcverify.errors import ConfigError
from hpcverify.fleet.holds_slurm import RESERVATION_FORMAT
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, State, Ticket, compute_elapsed
from hpcverify.fleet.transitions import Purpose, end_verification
from hpcverify.model import FABRIC_SUITE
from hpcverify.plan.config import Fleet, Site, look_up_uid
from hpcverify.plan.suite import load_suite
from hpcverify.slurm import Host, Job, Partition
from hpcverify.slurm.client import Slurm
from hpcverify.slurm.submit import (
    JOB_NAME_PREFIX,
    MAX_ARRIVAL_S,
    Ending,
    JobSpec,
    build_job_name,
    classify_ending,
    compute_minutes,
    describe_ending,
    submit,
)

GHOST_S = 20.0
"""Seconds after its document was judged, a job of ours has certainly ended."""
MAX_SUBMISSION_DELAY_S = 180.0
"""Until a submission without an answer is given up: it may take effect late."""


@dataclass
class Dispatcher:
    """Issues tickets and closes them, in the *ledger*."""

    site: Site
    ledger: Ledger
    slurm: Slurm
    say: Callable[[str], None]
    clock: Callable[[], float]

    def order_verification(self, host: Host, suite: str) -> Ticket:
        """
        Have *host* run *suite*, or the suite that its node must pass.

        A node that we reserve is verified inside its reservation.

        Raises:
            ConfigError: the suite is unknown, or takes longer than a job may.
            SlurmError: Slurm refused the job, or it is unknown whether it did.

        """
        node = self.ledger.read_node(host.name)
        kept = node.desired_hold is Hold.RESERVATION and bool(node.hold_id)
        # It is to pass the suite that it failed in, unless a person named another.
        owes = bool(node.owed_checks) and suite == self.site.fleet.suite
        owes &= node.suite != FABRIC_SUITE  # which no node runs by itself
        suite = node.suite or suite if kept or owes else suite
        minutes = self.compute_job_minutes(suite)
        purpose = _choose_purpose(node) if kept else Purpose.SWEEP
        ticket = self.ledger.issue_ticket(host.name, purpose, suite)
        spec = self._build_job_spec(host, ticket, minutes, kept=kept)
        self.ledger.record_job(ticket, submit(spec, self.slurm))
        return ticket

    def cancel_verification(self, node: str) -> None:
        """Cancel the verification of *node*, if one is under way."""
        tickets = [t for t in self.ledger.list_open_tickets() if t.node == node and t.job]
        self.slurm.cancel(*(ticket.job for ticket in tickets))
        for ticket in tickets:
            self.ledger.close_ticket(ticket, Ending.CANCELLED)

    def close_ended_tickets(self) -> bool:
        """
        Close the tickets whose jobs have ended; return whether there were any.

        One query covers all jobs; if a job is missing, it is repeated once before that
        job is given up. Jobs that outlive their tickets are cancelled.
        """
        tickets = self.ledger.list_open_tickets()
        ours = [ticket.job for ticket in tickets if ticket.job]
        known = self.slurm.list_jobs(JOB_NAME_PREFIX, ours)
        if any(t.job and not t.run and t.job not in known for t in tickets):
            known = {**self.slurm.list_jobs(JOB_NAME_PREFIX, ours), **known}
        self._cancel_strays(known.values())
        closed = [self._close_if_ended(ticket, _find_job(ticket, known)) for ticket in tickets]
        return any(closed)

    def _cancel_strays(self, jobs: Iterable[Job]) -> None:
        """
        Cancel jobs of ours that are still there though their ticket is closed.

        Slurm may have been killed and not know that they ended, or have started late
        one that was given up. Another controller may use the same names, so where the
        number of the job is known, it must match.
        """
        going = {job.name: job for job in jobs if not job.end}
        named = (re.match(rf"{JOB_NAME_PREFIX}(\d{{1,15}})-", name) for name in going)
        numbers = [int(match[1]) for match in named if match and int(match[1])]
        strays = [
            going[_name_job(ticket)].id
            for ticket in self.ledger.find_tickets(numbers)
            if ticket.ended
            and _name_job(ticket) in going
            and ticket.job in {0, going[_name_job(ticket)].id}
        ]
        if strays:
            self.say(f"cancelling {len(strays)} verification jobs without an open ticket")
            self.slurm.cancel(*strays)

    def _close_if_ended(self, ticket: Ticket, job: Job | None) -> bool:
        if job is not None and not ticket.job:  # killed before it was written down
            self.ledger.record_job(ticket, job.id)
        max_wait = MAX_ARRIVAL_S if ticket.job else MAX_SUBMISSION_DELAY_S
        late = compute_elapsed(self.clock(), ticket.made) > max_wait
        if job is None and not (ticket.run or late):
            return False
        ending = classify_ending(job, document=bool(ticket.run), now=self.clock())
        judged = compute_elapsed(self.clock(), self.ledger.read_judged_time(ticket.run))
        # Killed, Slurm may have forgotten the end of a job, and think that it continues.
        is_ghost = not ending.is_over and GHOST_S < judged < math.inf
        if job is not None and (ending is Ending.LAUNCH_FAILED or is_ghost):
            self.slurm.cancel(job.id)  # it would sit in the queue, and keep the node
            ending = ending if ending.is_over else Ending.FINISHED
        if ending.is_over:
            self.ledger.close_ticket(ticket, ending)
        if ending.is_over and ending is not Ending.FINISHED:
            why = describe_ending(ending, ticket.node, job)
            self.say(f"{ticket.node}: {why}")
            node = self.ledger.read_node(ticket.node)
            if (
                node.awaits_verification
                and node.enforced
                and ticket.number > node.not_before_ticket
            ):
                self.ledger.put(
                    end_verification(node, why, self.clock()), "released unverified", why
                )
        return ending.is_over

    def compute_job_minutes(self, suite: str) -> int:
        """
        Return how many minutes a job that runs *suite* may take.

        Raises:
            ConfigError: it is unknown, or takes longer than its partition allows.
            SlurmError: Slurm has no such partition, or does not answer.

        """
        needed = compute_minutes(load_suite(suite).budget)
        if needed > self.partition.max_minutes:
            raise ConfigError(
                f"suite {suite} may take {needed} minutes, and partition "
                f"{self.site.fleet.partition} allows {self.partition.max_minutes:g}: raise "
                "its MaxTime, or choose a shorter suite"
            )
        return needed

    @cached_property
    def partition(self) -> Partition:
        """The partition in which verifications run."""
        name, user = self.site.fleet.partition, self.site.fleet.user
        partition = self.slurm.read_partition(name)
        if partition.root_only and user != "root":
            raise ConfigError(
                f"partition {name} has RootOnly=YES, but jobs are to run as {user}: "
                "use AllowGroups, or run them as root"
            )
        if not partition.is_preemptible:
            self.say(f"partition {name} has PreemptMode=OFF: users' jobs must wait")
        return partition

    def _build_job_spec(self, host: Host, ticket: Ticket, minutes: int, *, kept: bool) -> JobSpec:
        fleet = self.site.fleet
        return JobSpec(
            node=host.name,
            gpus=host.gpus,
            suite=ticket.suite,
            token=ticket.token,
            name=build_job_name(ticket.number, host.name),
            minutes=minutes,
            deadline_hours=fleet.deadline_hours,
            partition=fleet.partition,
            spool=fleet.spool,
            reservation=RESERVATION_FORMAT.format(node=host.name) if kept else "",
            user="" if look_up_uid(fleet.user) == os.geteuid() else fleet.user,
            program=fleet.program,
            options=tuple(list_site_options(fleet)),
        )


def list_site_options(fleet: Fleet) -> Iterator[str]:
    """Yield the site's own options for sbatch."""
    yield from fleet.sbatch_options
    if fleet.account:
        yield f"--account={fleet.account}"
    if fleet.qos:
        yield f"--qos={fleet.qos}"


def _name_job(ticket: Ticket) -> str:
    return build_job_name(ticket.number, ticket.node)


def _find_job(ticket: Ticket, known: Mapping[int, Job]) -> Job | None:
    """
    Find the job of *ticket* among those *known*; by name only if it has no number yet.

    An earlier ledger, since lost, may have given the same names to other jobs, which
    Slurm still lists.
    """
    if ticket.job:
        return known.get(ticket.job)
    named = [job for job in known.values() if job.name == _name_job(ticket)]
    return max(named, key=lambda job: job.id, default=None)


def _choose_purpose(node: Node) -> Purpose:
    if node.state is State.SUSPECT:
        return Purpose.CONFIRM
    if not node.by:
        return Purpose.SWEEP
    return Purpose.RETURN if node.run else Purpose.ADMISSION
