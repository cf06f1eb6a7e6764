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

from msgspec.structs import replace

from hpcverify.config import Fleet, Site
from hpcverify.errors import ConfigError
from hpcverify.executors.slurm import (
    ARRIVAL_S,
    PREFIX,
    Ending,
    Errand,
    ending_of,
    job_name,
    minutes_for,
    submit,
    told,
)
from hpcverify.quarantine.ledger import Ledger, Ticket
from hpcverify.quarantine.life import Hold, Node, State, elapsed
from hpcverify.quarantine.policy import Purpose
from hpcverify.quarantine.slurm import RESERVATION
from hpcverify.slurm import Host, Job, Partition
from hpcverify.slurm.client import Slurm
from hpcverify.suite import load_suite

GHOST_S = 20.0
"""After its document was judged no job of ours is still at work."""
UNHEARD_S = 180.0
"""Until a submission without an answer is given up: it may take effect late."""


@dataclass
class Orders:
    """Gives tickets out and closes them, in the *ledger*."""

    site: Site
    ledger: Ledger
    slurm: Slurm
    say: Callable[[str], None]
    clock: Callable[[], float]

    def verify(self, host: Host, suite: str) -> Ticket:
        """
        Have *host* run *suite*, or what it is kept for, where it is kept.

        Raises:
            ConfigError: the suite is not known, or takes longer than a job may.
            SlurmError: Slurm did not take the job, or nobody knows whether it did.

        """
        node = self.ledger.node(host.name)
        kept = node.wanted is Hold.RESERVATION and bool(node.hold)
        # What it failed is in the suite that it failed in; what a person names is run.
        owes = bool(node.owed) and suite == self.site.fleet.suite
        suite = node.suite or suite if kept or owes else suite
        minutes = self.minutes(suite)
        purpose = _purpose(node) if kept else Purpose.SWEEP
        ticket = self.ledger.issue(host.name, purpose, suite)
        errand = self._errand(host, ticket, minutes, kept=kept)
        self.ledger.submitted(ticket, submit(errand, self.slurm))
        return ticket

    def give_up(self, node: str) -> None:
        """Cancel the verification of *node* that is under way, if one is."""
        tickets = [t for t in self.ledger.open_tickets() if t.node == node and t.job]
        self.slurm.cancel(*(ticket.job for ticket in tickets))
        for ticket in tickets:
            self.ledger.ended(ticket, Ending.CANCELLED)

    def follow(self) -> bool:
        """
        Close the tickets whose jobs have ended, in one question for all.

        A job that the answer lacks is asked for once more before it is given up. Jobs
        of tickets that were closed before are ended.
        """
        tickets = self.ledger.open_tickets()
        known = self._jobs(tickets)
        if any(self._is_missing(ticket, known) for ticket in tickets):
            known = {**self._jobs(tickets), **known}
        self._end_strays(known.values())
        closed = [self._follow(ticket, _job_of(ticket, known)) for ticket in tickets]
        return any(closed)

    def _jobs(self, tickets: Iterable[Ticket]) -> dict[int, Job]:
        """Ask for all our jobs, by number; for those of *tickets* where they ended."""
        return self.slurm.jobs(PREFIX, [t.job for t in tickets if t.job])

    def _is_missing(self, ticket: Ticket, known: Collection[int]) -> bool:
        """Whether Slurm took the job of *ticket*, and does not list it any more."""
        return bool(ticket.job) and not ticket.run and ticket.job not in known

    def _end_strays(self, jobs: Iterable[Job]) -> None:
        """
        Cancel jobs of ours that go on though their ticket is closed.

        Slurm, once killed, may not know that they ended, or one was given up that
        Slurm started late. Another controller may use the same names: where the number
        of the job is known, it has to be that one.
        """
        going = {job.name: job for job in jobs if not job.end}
        numbers = filter(None, map(_number, going))
        strays = [
            going[_name(ticket)].id
            for ticket in self.ledger.by_number(numbers)
            if ticket.ended
            and _name(ticket) in going
            and ticket.job in {0, going[_name(ticket)].id}
        ]
        if strays:
            self.say(f"ending {len(strays)} of our jobs that nobody waits for any more")
            self.slurm.cancel(*strays)

    def _follow(self, ticket: Ticket, job: Job | None) -> bool:
        """Close *ticket* if its *job* has ended, and say if something was amiss."""
        if job is not None and not ticket.job:  # killed before it was written down
            self.ledger.submitted(ticket, job.id)
        if job is None and not self._is_over(ticket):
            return False
        ending = ending_of(job, document=bool(ticket.run), now=self.clock())
        if job is not None and (
            ending is Ending.LAUNCH_FAILED or self._is_ghost(ticket, ending)
        ):
            self.slurm.cancel(job.id)  # it would sit in the queue, and keep the node
            ending = ending if ending.over else Ending.FINISHED
        if ending.over:
            self.ledger.ended(ticket, ending)
        if ending.over and ending is not Ending.FINISHED:
            why = told(ending, ticket.node, job)
            self.say(f"{ticket.node}: {why}")
            self._end_turn(ticket, why)
        return ending.over

    def _end_turn(self, ticket: Ticket, why: str) -> None:
        """Let a node go that was kept free for its turn, and had it in vain."""
        node = self.ledger.node(ticket.node)
        if node.kept_free and node.enforced and ticket.number > node.after:
            free = {"state": State.UNVERIFIED, "enforced": False, "reason": why}
            now = replace(node, since=self.clock(), **free)
            self.ledger.put(now, "turn over", why)

    def _is_ghost(self, ticket: Ticket, ending: Ending) -> bool:
        """Whether a job goes on for Slurm alone, which once killed forgot its end."""
        judged = self.ledger.judged_at(ticket.run)
        return not ending.over and GHOST_S < elapsed(self.clock(), judged) < math.inf

    def _is_over(self, ticket: Ticket) -> bool:
        """Whether nothing more will come of a job that Slurm does not know."""
        unheard = ARRIVAL_S if ticket.job else UNHEARD_S
        return bool(ticket.run) or elapsed(self.clock(), ticket.made) > unheard

    def minutes(self, suite: str) -> int:
        """
        Say how long a job may take that runs *suite*.

        Raises:
            ConfigError: it is not known, or takes longer than its partition allows.
            SlurmError: Slurm has no such partition, or does not answer.

        """
        needed = minutes_for(load_suite(suite).budget)  # a name that is gone ends here
        if needed > self.partition.minutes:
            raise ConfigError(
                f"suite {suite} may take {needed} minutes, and partition "
                f"{self.site.fleet.partition} allows {self.partition.minutes:g}: raise "
                "its MaxTime, or choose a shorter suite"
            )
        return needed

    @cached_property
    def partition(self) -> Partition:
        """What the partition allows in which verification runs."""
        name, user = self.site.fleet.partition, self.site.fleet.user
        found = self.slurm.partition(name)
        if found.root_only and user != "root":
            raise ConfigError(
                f"partition {name} has RootOnly=YES, and jobs are to run as {user}: "
                "use AllowGroups, or have them run as root"
            )
        if not found.preempted:
            self.say(f"partition {name} has PreemptMode=OFF: no user's job comes first")
        return found

    def _errand(
        self, host: Host, ticket: Ticket, minutes: int, *, kept: bool
    ) -> Errand:
        fleet = self.site.fleet
        return Errand(
            node=host.name,
            gpus=host.gpus,
            suite=ticket.suite,
            token=ticket.token,
            name=job_name(ticket.number, host.name),
            minutes=minutes,
            deadline_hours=fleet.deadline_hours,
            partition=fleet.partition,
            spool=fleet.spool,
            reservation=RESERVATION.format(node=host.name) if kept else "",
            user="" if uid_of(fleet.user) == os.geteuid() else fleet.user,
            program=fleet.program,
            options=tuple(options_of_site(fleet)),
        )


def options_of_site(fleet: Fleet) -> Iterator[str]:
    """Yield what the site wants sbatch to be told beside what we do."""
    yield from fleet.sbatch_options
    if fleet.account:
        yield f"--account={fleet.account}"
    if fleet.qos:
        yield f"--qos={fleet.qos}"


def _name(ticket: Ticket) -> str:
    """Name the job of *ticket*."""
    return job_name(ticket.number, ticket.node)


def _job_of(ticket: Ticket, known: Mapping[int, Job]) -> Job | None:
    """
    Find the job of *ticket* among all that are *known*.

    Its name says which it is only as long as its number was not written down: a ledger
    that was lost gave the same names to other jobs, which Slurm lists until it forgets.
    """
    if ticket.job:
        return known.get(ticket.job)
    named = [job for job in known.values() if job.name == _name(ticket)]
    return max(named, key=lambda job: job.id, default=None)


def _number(name: str) -> int:
    """Read the number of its ticket in a job's *name*; 0: there is none."""
    found = re.match(rf"{PREFIX}(\d{{1,15}})-", name)
    return int(found[1]) if found else 0


def uid_of(user: str) -> int:
    """
    Give the number of the user whom the verification runs as.

    Raises:
        ConfigError: there is no such user here.

    """
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(
            f"fleet.user: there is no user {user!r} on this machine"
        ) from None


def _purpose(node: Node) -> Purpose:
    if node.state is State.SUSPECT:
        return Purpose.CONFIRM
    if not node.by:
        return Purpose.SWEEP
    return Purpose.RETURN if node.run else Purpose.ADMISSION
