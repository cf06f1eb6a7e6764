"""
The controller: what was found, what became of jobs, how nodes are held; in one turn.

A turn may end anywhere, by -9 too, and the next one goes on from what is written and
from what the scheduler says: every step compares what is with what is wanted. One
controller acts at a time, whoever starts it. If the scheduler does not answer in full,
nothing is done at all.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from msgspec.structs import replace

from hpcverify import spool, standing
from hpcverify.config import Site
from hpcverify.errors import (
    ActionError,
    ConfigError,
    HpcverifyError,
    SlurmError,
    StoreError,
    UnverifiedError,
)
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
from hpcverify.fleet.intake import HOUR, Intake, Judged
from hpcverify.fleet.schedule import SweepPlan, has_waited, rerun_is_due
from hpcverify.fleet.schedule import plan as plan_sweep
from hpcverify.model import Run
from hpcverify.quarantine.breaker import allowance, trips
from hpcverify.quarantine.keeper import Keeper, Seen, adopt, as_found, settle
from hpcverify.quarantine.ledger import Ledger, Ticket
from hpcverify.quarantine.life import Hold, Node, State, elapsed
from hpcverify.quarantine.policy import (
    Purpose,
    explains_refusal,
    may_refuse,
    refused,
)
from hpcverify.quarantine.slurm import RESERVATION
from hpcverify.slurm import Host
from hpcverify.slurm.client import Slurm
from hpcverify.store import Store
from hpcverify.suite import load_suite

PATIENCE_S = 600.0
"""For the lock of another controller: a turn takes seconds, and minutes where many
nodes are to be held, since Slurm is not asked more than once a second."""
TOLD_S = 3.0
"""After which we say that we wait for it."""
UNHEARD_S = 180.0
"""Until a submission without an answer is given up: it may take effect late."""
LASTS_S = 30.0
"""Until slurmctld has surely written down what it was told: it does so every 5 s."""
CLOCKS_S = 5.0
"""That Slurm's clock may differ from ours."""


@dataclass
class Controller:
    """All that acts on the fleet, in one hand."""

    site: Site
    state: Path
    ledger: Ledger
    store: Store
    slurm: Slurm
    keeper: Keeper
    say: Callable[[str], None]
    """Told what an operator should know, a line at a time."""
    clock: Callable[[], float] = time.time
    _refused: set[str] = field(default_factory=set[str])
    _mishaps: list[str] = field(default_factory=list[str])
    _eligible: int = 0
    """Nodes that the scheduler named when it was last asked for all."""

    def status(self) -> int:
        """Choose the exit status: whether all actions took."""
        return ActionError.exit_code if self._mishaps else 0

    @contextmanager
    def alone(self, patience: float = PATIENCE_S) -> Generator[None]:
        """
        Hold the controller's lock, which is gone with its holder.

        Raises:
            UnverifiedError: another controller holds it all the while.

        """
        path = self.state / "fleet.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(descriptor, path, patience)
            yield
        finally:
            os.close(descriptor)

    def _wait_for(self, lock: int, path: Path, patience: float) -> None:
        began, told = time.monotonic(), False
        while not _locked(lock):
            waited = time.monotonic() - began
            if waited > patience:
                raise UnverifiedError(
                    f"another hpcverify holds {path} for {patience:g} s: see who with "
                    f"fuser {path}"
                )
            if waited > TOLD_S and not told:
                self.say("another hpcverify acts on the fleet: waiting for it")
                told = True
            time.sleep(0.05)

    def turn(self) -> None:
        """
        Do all that is due: take in, judge, act, ask for reruns, tell the nodes.

        Raises:
            SlurmError: the scheduler does not answer in full; nothing was done.

        """
        seen = self._look()
        self.news()
        self._act(seen)

    def news(self) -> bool:
        """Take in what came; return whether there was anything to act on."""
        judged = self._take_in(self._eligible)
        return self._follow_jobs() or judged

    def act(self) -> None:
        """Do what follows from the news."""
        self._act(self._look())

    def _look(self) -> Mapping[str, Seen]:
        seen = self.keeper.look()
        self._eligible = len(seen)
        return seen

    def _act(self, seen: Mapping[str, Seen]) -> None:
        self._adopt(seen)
        self._settle(seen)
        self._give_turns(seen)
        self._order_reruns(seen)
        self._tell_nodes(seen)

    # -- what became of the jobs

    def _follow_jobs(self) -> bool:
        """Close the tickets whose jobs have ended, in one question for all."""
        tickets = self.ledger.open_tickets()
        if not tickets:
            return False
        closed = False
        known = self.slurm.jobs(PREFIX, [t.job for t in tickets if t.job])
        by_name = {job.name: job for job in known.values()}
        for ticket in tickets:
            job = by_name.get(job_name(ticket.number, ticket.node))
            if job is not None and not ticket.job:  # killed before it was written down
                self.ledger.submitted(ticket, job.id)
            unheard = ARRIVAL_S if ticket.job else UNHEARD_S
            document = bool(ticket.run)
            late = elapsed(self.clock(), ticket.made) > unheard
            if job is None and not (document or late):
                continue
            ending = ending_of(job, document=document, now=self.clock())
            if ending is Ending.LAUNCH_FAILED and job is not None:
                self.slurm.cancel(job.id)  # it would sit in the queue, held
            if ending.over:
                closed = True
                self.ledger.ended(ticket, ending)
                if ending is not Ending.FINISHED:
                    self.say(f"{ticket.node}: {told(ending, ticket.node, job)}")
        return closed

    # -- what was found

    def _take_in(self, eligible: int) -> bool:
        """Take the spool in; what is refused is told, each once."""
        intake = Intake(self.site, self.store, self.ledger, self.clock)
        taken: list[spool.Arrival] = []
        for judged in intake.take(self._arrivals(taken), eligible):
            self._report(judged)
        for arrival in taken:
            try:
                spool.done(arrival)
            except StoreError as exc:  # it is known, and will be removed the next time
                self.say(str(exc))
        self._prune({arrival.run.node for arrival in taken})
        return bool(taken)

    def _arrivals(self, taken: list[spool.Arrival]) -> Iterator[Run]:
        """Yield the runs in the spool, and note in *taken* where they lie."""
        where = Path(self.site.fleet.spool)
        owner = _uid(self.site.fleet.user)
        for found in spool.gather(
            where, owner, self.ledger.is_judged, self.ledger.untimely, clock=self.clock
        ):
            if isinstance(found, spool.Arrival):
                yield found.run
                taken.append(replace(found, run=replace(found.run, results=())))
            elif found.reason not in self._refused:
                self._refused.add(found.reason)
                self.say(f"{found.node}: {found.reason}")

    def _report(self, judged: Judged) -> None:
        old, new = judged.before, judged.after
        if old.state is not new.state:
            observed = "" if new.enforced or not new.checks else " (observed only)"
            because = f": {new.reason}" if new.reason else ""
            self.say(f"{new.name}: {old.state} -> {new.state}{observed}{because}")

    def _prune(self, nodes: Collection[str]) -> None:
        known = self.ledger.nodes()
        for name in nodes:
            spare = {known[name].run} - {""} if name in known else set[str]()
            self.store.prune(name, self.site.fleet.keep_runs, spare)

    # -- how nodes are held

    def _adopt(self, seen: Mapping[str, Seen]) -> None:
        """Make Slurm's own drain ours where a run or a word of ours explains it."""
        for node in self.ledger.nodes().values():
            there = seen.get(node.name)
            if there is None or not there.hook_failed or node.hold:
                continue
            if node.wanted is not Hold.DRAIN:
                if self.ledger.tripped() or not explains_refusal(node, self.site):
                    continue
                node = refused(node, there.reason, self.clock())  # noqa: PLW2901
                if self._trips(node.name):
                    return
            self._try(node.name, partial(self._adopt_one, node, there))

    def _adopt_one(self, node: Node, there: Seen) -> None:
        adopted = adopt(node, there, self.keeper, self.ledger)
        if adopted.hold:
            self.ledger.put(adopted, "adopted", there.reason, held=True)

    def _trips(self, name: str) -> bool:
        """Whether to hold one node more is one too many."""
        policy = self.site.quarantine
        held = self.ledger.holds(self.clock() - policy.window_hours * HOUR)
        if why := trips(held, [name], self._eligible, policy):
            self.ledger.trip(why)
            self.say(f"the breaker tripped: {why}")
        return bool(why)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        """
        Do *act* for one node; what does not take there must not stop the others.

        Raises:
            SlurmError: it is the scheduler that is away.

        """
        try:
            act()
        except HpcverifyError as exc:
            if isinstance(exc, SlurmError):
                self.keeper.look()  # if it answers, it was about this node
            self._mishaps.append(str(exc))
            self.say(f"{name}: {exc}")

    def _settle(self, seen: Mapping[str, Seen]) -> None:
        """Hold each node as it is wanted; one that cannot be is told, others go on."""
        known = self.ledger.nodes()
        for name, there in seen.items():
            node = known.get(name, Node(name=name))
            if is_settled(node, there):  # as nearly all are: nobody needs to be asked
                self._note_that_it_lasts(node)
                continue
            if is_free(there) and self._forgotten(node):
                node = replace(node, hold="")
            self._try(name, partial(self._settle_one, node))

    def _note_that_it_lasts(self, node: Node) -> None:
        """Note that a hold was seen after the scheduler had written it down."""
        if not node.hold:
            return
        lasting = self.ledger.told(node.name) + LASTS_S
        if node.stood < lasting < self.clock():
            self.ledger.put(replace(node, stood=self.clock()), "stands", node.hold)

    def _forgotten(self, node: Node) -> bool:
        """
        Whether the scheduler may have lost our hold of *node*, and nobody let it go.

        It was started since it was told, and we have not seen the hold since it had
        the time to write that down.
        """
        told = self.ledger.told(node.name)
        unsaved = bool(node.hold) and node.stood < told
        return unsaved and self.keeper.began() > told - CLOCKS_S

    def _settle_one(self, node: Node) -> None:
        settled = settle(node, self.keeper, self.ledger)
        if settled.state is not node.state:
            settled = replace(settled, since=self.clock())
        if settled != node:
            self.ledger.put(settled, *_changed(node, settled))

    # -- whom to verify outside the sweep

    def _give_turns(self, seen: Mapping[str, Seen]) -> None:
        """Keep nodes free that have not passed for too long, some at a time."""
        days = self.site.fleet.overdue_days
        if not days or self.ledger.tripped():
            return
        known = self.ledger.nodes()
        nodes = [known.get(name, Node(name=name)) for name in seen]
        now, began = self.clock(), self.ledger.began()
        waiting = [node for node in nodes if node.kept_free]
        room = allowance(len(seen), self.site.quarantine) - len(waiting)
        due = sorted(
            (node for node in nodes if has_waited(node, began, now, days)),
            key=lambda node: (-elapsed(now, node.passed), node.name),
        )
        for node in due[: max(0, room)]:
            self.ledger.put(
                replace(
                    node,
                    state=State.VERIFYING,
                    since=self.clock(),
                    reason=f"has not passed for {days:g} days: kept free for its turn",
                    enforced=True,
                    suite=self.site.fleet.suite,
                    after=self.ledger.last_ticket(),
                ),
                "kept free",
            )
        self._settle({n.name: seen[n.name] for n in due if n.name in seen})

    def _order_reruns(self, seen: Mapping[str, Seen]) -> None:
        """Submit what suspects, new and repaired nodes wait for, once they are kept."""
        busy = {ticket.node for ticket in self.ledger.open_tickets()}
        ended = self.ledger.last_ended()
        due = [
            node
            for node in self.ledger.nodes().values()
            if node.wanted is Hold.RESERVATION
            and node.hold
            and not node.foreign
            and node.name in seen
            and node.name not in busy
            and rerun_is_due(node, ended.get(node.name), self.clock())
        ]
        if not due:
            return
        hosts = self.slurm.hosts(*(node.name for node in due))
        for node in due:
            host = hosts[node.name]
            self._try(node.name, partial(self.verify, host, self.site.fleet.suite))

    # -- jobs

    def verify(self, host: Host, suite: str) -> Ticket:
        """Have *host* run *suite*, or what it is kept for, where it is kept."""
        node = self.ledger.node(host.name)
        if node.wanted is Hold.RESERVATION and node.hold:
            return self.order(host, _purpose(node), node.suite or suite, kept=True)
        return self.order(host, Purpose.SWEEP, suite)

    def order(
        self, host: Host, purpose: Purpose, suite: str, *, kept: bool = False
    ) -> Ticket:
        """Give out a ticket for *host* and submit its job; if *kept*, where it is."""
        fleet = self.site.fleet
        minutes = minutes_for(load_suite(suite).budget)  # a name that is gone ends here
        if minutes > self._longest:
            raise ConfigError(
                f"suite {suite} may take {minutes} minutes, and partition "
                f"{fleet.partition} allows {self._longest:g}: raise its MaxTime, or "
                "choose a shorter suite"
            )
        ticket = self.ledger.issue(host.name, purpose, suite)
        errand = Errand(
            node=host.name,
            gpus=host.gpus,
            suite=suite,
            token=ticket.token,
            name=job_name(ticket.number, host.name),
            minutes=minutes,
            deadline_hours=fleet.deadline_hours,
            partition=fleet.partition,
            spool=fleet.spool,
            reservation=RESERVATION.format(node=host.name) if kept else "",
            user="" if _is_us(fleet.user) else fleet.user,
            program=fleet.program,
        )
        self.ledger.submitted(ticket, submit(errand, self.slurm))
        return ticket

    @cached_property
    def _longest(self) -> float:
        """Minutes for a job: Slurm would queue a longer one, and never start it."""
        return self.slurm.longest(self.site.fleet.partition)

    def give_up(self, node: str) -> None:
        """Cancel the verification of *node* that is under way, if one is."""
        tickets = [t for t in self.ledger.open_tickets() if t.node == node]
        self.slurm.cancel(*(ticket.job for ticket in tickets if ticket.job))

    def plan(
        self,
        hosts: Mapping[str, Host],
        *,
        only: Collection[str] = (),
        done: Collection[str] = (),
        limit: int | None = None,
    ) -> SweepPlan:
        """Choose whom of *hosts* to verify now, of all or of *only* some."""
        return plan_sweep(
            hosts,
            self.ledger.nodes(),
            {ticket.node for ticket in self.ledger.open_tickets()},
            self.site.fleet,
            self.clock(),
            only=only,
            done=done,
            limit=limit,
            seed=self.ledger.seed(),
        )

    # -- what the nodes are told

    def _tell_nodes(self, seen: Iterable[str]) -> None:
        """Leave the controller's word for each node in the spool."""
        folder = Path(self.site.fleet.spool) / standing.FILE
        tripped = self.ledger.tripped()
        nodes = self.ledger.nodes()
        until = int(self.clock() + self.site.fleet.word_hours * HOUR)
        half = (until + self.clock()) / 2
        for name in seen:
            node = nodes.get(name, Node(name=name))
            old = standing.read(folder / name, self.clock())
            # One that stands for longer is of a clock that was ahead.
            lasts = old is not None and half <= old.until <= until
            same = old and old == self._word(node, tripped, old.until)
            if not (lasts and same):
                standing.write(folder / name, self._word(node, tripped, until))

    def _word(self, node: Node, tripped: str, until: int) -> standing.Word:
        if tripped:
            return standing.Word(standing.OK, until, f"the breaker tripped: {tripped}")
        checks = may_refuse(self.site)
        if node.wanted is not Hold.DRAIN:
            return standing.Word(standing.OK, until, "", checks)
        held = node.state is State.HELD
        verdict = standing.HOLD if held else standing.QUARANTINED
        return standing.Word(verdict, until, node.reason, checks)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _uid(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise ConfigError(
            f"fleet.user: there is no user {user!r} on this machine"
        ) from None


def _is_us(user: str) -> bool:
    return _uid(user) == os.geteuid()


def _changed(before: Node, after: Node) -> tuple[str, str]:
    """Say in the audit log what settling has made of a node."""
    if after.foreign and after.foreign != before.foreign:
        return "external", after.foreign
    if before.foreign and not after.foreign:
        return "let go", f"no longer held by others: {before.foreign}"
    if after.hold and not before.hold:
        return "held", f"{after.hold} {after.reason}"
    if before.hold and not after.hold:
        return "released", after.reason
    return after.state.value, after.reason


def is_settled(node: Node, seen: Seen) -> bool:
    """Whether *node*, as *seen*, is held as it is wanted, and so written down."""
    if node.wanted is Hold.NONE and not (node.hold or seen.ours or seen.reserved):
        return as_found(node, seen, ()) == node
    if node.foreign or seen.unavailable:
        return False
    held = {
        Hold.NONE: False,
        Hold.RESERVATION: seen.reserved and not seen.drained and bool(node.hold),
        Hold.DRAIN: seen.drained and seen.ours == node.hold != "" and not seen.reserved,
    }
    return held[node.wanted]


def is_free(seen: Seen) -> bool:
    """Whether nothing at all keeps users' jobs off."""
    return not (seen.drained or seen.reserved or seen.unavailable)


def _purpose(node: Node) -> Purpose:
    if node.state is State.SUSPECT:
        return Purpose.CONFIRM
    if not node.by:
        return Purpose.SWEEP
    return Purpose.RETURN if node.run else Purpose.ADMISSION
