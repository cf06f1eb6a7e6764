"""
Orders for verifications: a ticket each, a job for it, and what became of the job.

The ticket is written before the job is submitted, and the job is named by it: whoever
comes after a controller that died in between finds the one by the other.
"""

from __future__ import annotations

import math
import os
import pwd
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hpcverify.errors import ConfigError
from hpcverify.fleet.holds_slurm import RESERVATION_FORMAT
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.states import Hold, Node, State, Ticket, compute_elapsed
from hpcverify.fleet.transitions import Purpose, end_turn
from hpcverify.plan.config import Fleet, Site
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
"""After its document was judged no job of ours is still at work."""
MAX_SUBMISSION_DELAY_S = 180.0
"""Until a submission without an answer is given up: it may take effect late."""


@dataclass
class Dispatcher:
    """Gives tickets out and closes them, in the *ledger*."""

    site: Site
    ledger: Ledger
    slurm: Slurm
    say: Callable[[str], None]
    clock: Callable[[], float]

    def order_verification(self, host: Host, suite: str) -> Ticket:
        """
        Have *host* run *suite*, or what it is kept for, where it is kept.

        Raises:
            ConfigError: the suite is not known, or takes longer than a job may.
            SlurmError: Slurm did not take the job, or nobody knows whether it did.

        """
        node = self.ledger.read_node(host.name)
        kept = node.desired_hold is Hold.RESERVATION and bool(node.hold_id)
        # What it failed is in the suite that it failed in; what a person names is run.
        owes = bool(node.owed_checks) and suite == self.site.fleet.suite
        suite = node.suite or suite if kept or owes else suite
        minutes = self.compute_job_minutes(suite)
        purpose = _choose_purpose(node) if kept else Purpose.SWEEP
        ticket = self.ledger.issue_ticket(host.name, purpose, suite)
        spec = self._build_job_spec(host, ticket, minutes, kept=kept)
        self.ledger.record_job(ticket, submit(spec, self.slurm))
        return ticket

    def cancel_verification(self, node: str) -> None:
        """Cancel the verification of *node* that is under way, if one is."""
        tickets = [t for t in self.ledger.list_open_tickets() if t.node == node and t.job]
        self.slurm.cancel(*(ticket.job for ticket in tickets))
        for ticket in tickets:
            self.ledger.close_ticket(ticket, Ending.CANCELLED)

    def close_ended_tickets(self) -> bool:
        """
        Close the tickets whose jobs have ended, in one question for all.

        A job that the answer lacks is asked for once more before it is given up. Jobs
        of tickets that were closed before are ended.
        """
        tickets = self.ledger.list_open_tickets()
        known = self._query_jobs(tickets)
        if any(self._is_missing(ticket, known) for ticket in tickets):
            known = {**self._query_jobs(tickets), **known}
        self._cancel_strays(known.values())
        closed = [self._close_if_ended(ticket, _find_job(ticket, known)) for ticket in tickets]
        return any(closed)

    def _query_jobs(self, tickets: Iterable[Ticket]) -> dict[int, Job]:
        return self.slurm.list_jobs(JOB_NAME_PREFIX, [t.job for t in tickets if t.job])

    def _is_missing(self, ticket: Ticket, known: Collection[int]) -> bool:
        """Whether Slurm took the job of *ticket*, and does not list it any more."""
        return bool(ticket.job) and not ticket.run and ticket.job not in known

    def _cancel_strays(self, jobs: Iterable[Job]) -> None:
        """
        Cancel jobs of ours that go on though their ticket is closed.

        Slurm, once killed, may not know that they ended, or one was given up that
        Slurm started late. Another controller may use the same names: where the number
        of the job is known, it has to be that one.
        """
        going = {job.name: job for job in jobs if not job.end}
        numbers = filter(None, map(_parse_ticket_number, going))
        strays = [
            going[_name_job(ticket)].id
            for ticket in self.ledger.find_tickets(numbers)
            if ticket.ended
            and _name_job(ticket) in going
            and ticket.job in {0, going[_name_job(ticket)].id}
        ]
        if strays:
            self.say(f"cancelling {len(strays)} verification jobs that nobody waits for")
            self.slurm.cancel(*strays)

    def _close_if_ended(self, ticket: Ticket, job: Job | None) -> bool:
        """Close *ticket* if its *job* has ended, and say if something was amiss."""
        if job is not None and not ticket.job:  # killed before it was written down
            self.ledger.record_job(ticket, job.id)
        if job is None and not self._is_over(ticket):
            return False
        ending = classify_ending(job, document=bool(ticket.run), now=self.clock())
        if job is not None and (ending is Ending.LAUNCH_FAILED or self._is_ghost(ticket, ending)):
            self.slurm.cancel(job.id)  # it would sit in the queue, and keep the node
            ending = ending if ending.is_over else Ending.FINISHED
        if ending.is_over:
            self.ledger.close_ticket(ticket, ending)
        if ending.is_over and ending is not Ending.FINISHED:
            why = describe_ending(ending, ticket.node, job)
            self.say(f"{ticket.node}: {why}")
            self._release_overdue_node(ticket, why)
        return ending.is_over

    def _release_overdue_node(self, ticket: Ticket, why: str) -> None:
        """Let a node go that was kept free for its turn, and had it in vain."""
        node = self.ledger.read_node(ticket.node)
        if node.is_reserved_overdue and node.enforced and ticket.number > node.not_before_ticket:
            self.ledger.put(end_turn(node, why, self.clock()), "released unverified", why)

    def _is_ghost(self, ticket: Ticket, ending: Ending) -> bool:
        """Whether a job goes on for Slurm alone, which once killed forgot its end."""
        judged = self.ledger.read_judged_time(ticket.run)
        return not ending.is_over and GHOST_S < compute_elapsed(self.clock(), judged) < math.inf

    def _is_over(self, ticket: Ticket) -> bool:
        """Whether nothing more will come of a job that Slurm does not know."""
        unheard = MAX_ARRIVAL_S if ticket.job else MAX_SUBMISSION_DELAY_S
        return bool(ticket.run) or compute_elapsed(self.clock(), ticket.made) > unheard

    def compute_job_minutes(self, suite: str) -> int:
        """
        Say how long a job may take that runs *suite*.

        Raises:
            ConfigError: it is not known, or takes longer than its partition allows.
            SlurmError: Slurm has no such partition, or does not answer.

        """
        needed = compute_minutes(load_suite(suite).budget)  # a name that is gone ends here
        if needed > self.partition.max_minutes:
            raise ConfigError(
                f"suite {suite} may take {needed} minutes, and partition "
                f"{self.site.fleet.partition} allows {self.partition.max_minutes:g}: raise "
                "its MaxTime, or choose a shorter suite"
            )
        return needed

    @cached_property
    def partition(self) -> Partition:
        """What the partition allows in which verification runs."""
        name, user = self.site.fleet.partition, self.site.fleet.user
        found = self.slurm.read_partition(name)
        if found.root_only and user != "root":
            raise ConfigError(
                f"partition {name} has RootOnly=YES, and jobs are to run as {user}: "
                "use AllowGroups, or have them run as root"
            )
        if not found.is_preemptible:
            self.say(f"partition {name} has PreemptMode=OFF: no user's job comes first")
        return found

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
    """Yield what the site wants sbatch to be told beside what we do."""
    yield from fleet.sbatch_options
    if fleet.account:
        yield f"--account={fleet.account}"
    if fleet.qos:
        yield f"--qos={fleet.qos}"


def _name_job(ticket: Ticket) -> str:
    return build_job_name(ticket.number, ticket.node)


def _find_job(ticket: Ticket, known: Mapping[int, Job]) -> Job | None:
    """
    Find the job of *ticket* among all that are *known*.

    Its name says which it is only as long as its number was not written down: a ledger
    that was lost gave the same names to other jobs, which Slurm lists until it forgets.
    """
    if ticket.job:
        return known.get(ticket.job)
    named = [job for job in known.values() if job.name == _name_job(ticket)]
    return max(named, key=lambda job: job.id, default=None)


def _parse_ticket_number(name: str) -> int:
    """Read the number of its ticket in a job's *name*; 0: there is none."""
    found = re.match(rf"{JOB_NAME_PREFIX}(\d{{1,15}})-", name)
    return int(found[1]) if found else 0


def look_up_uid(user: str) -> int:
    """
    Give the number of the user whom the verification runs as.

    Raises:
        ConfigError: there is no such user here.

    """
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(f"fleet.user: there is no user {user!r} on this machine") from None


def _choose_purpose(node: Node) -> Purpose:
    if node.state is State.SUSPECT:
        return Purpose.CONFIRM
    if not node.by:
        return Purpose.SWEEP
    return Purpose.RETURN if node.run else Purpose.ADMISSION
