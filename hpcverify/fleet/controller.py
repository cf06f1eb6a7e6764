"""
The controller: what was found, what became of jobs, how nodes are held; in one turn.

A turn may end anywhere, by -9 too, and the next one goes on from what is written and
from what the scheduler says: every step compares what is with what is wanted. One
controller acts at a time, whoever starts it. If the scheduler does not answer in full,
nothing is done at all.
"""

from __future__ import annotations

import time
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from socket import gethostname

from msgspec.structs import replace

from hpcverify import spool
from hpcverify.config import Site
from hpcverify.errors import (
    ActionError,
    HpcverifyError,
    SlurmError,
    SpoolError,
    StoreError,
)
from hpcverify.fleet import claim
from hpcverify.fleet.intake import DAY, HOUR, Intake, Judged
from hpcverify.fleet.lock import alone
from hpcverify.fleet.orders import Orders, uid_of
from hpcverify.fleet.schedule import SweepPlan, has_waited, rerun_is_due
from hpcverify.fleet.schedule import plan as plan_sweep
from hpcverify.fleet.telling import Teller
from hpcverify.fleet.words import tell
from hpcverify.model import Run
from hpcverify.quarantine.breaker import allowance, doubted, trips
from hpcverify.quarantine.keeper import (
    CLOCKS_S,
    Keeper,
    Marks,
    Seen,
    adopt,
    as_found,
    foresee,
    is_lost,
    marks_of,
    settle,
)
from hpcverify.quarantine.ledger import Ledger, NodeChange
from hpcverify.quarantine.life import Hold, Node, State, came_back, elapsed
from hpcverify.quarantine.policy import (
    believes_no_more,
    explains_refusal,
    kept_until_verified,
    refused,
)
from hpcverify.slurm import Host
from hpcverify.slurm.client import Slurm
from hpcverify.store import Store

LASTS_S = 30.0
"""Until slurmctld has surely written down what it was told: it does so every 5 s."""


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
    taken_in: int = 0
    """Runs that came since this began."""
    _refused: set[spool.Refusal] = field(default_factory=set[spool.Refusal])
    _mishaps: list[str] = field(default_factory=list[str])
    _eligible: int = 0
    """Nodes that the scheduler named when it was last asked for all."""

    def status(self) -> int:
        """Choose the exit status: whether all actions took."""
        return ActionError.exit_code if self._mishaps else 0

    @contextmanager
    def alone(self) -> Generator[None]:
        """
        Hold the controller's lock, and the spool's claim.

        Raises:
            UnverifiedError: another command of this state directory is at work.
            ActionError: the spool is another controller's.

        """
        spool_path = Path(self.site.fleet.spool)
        with alone(self.state / "fleet.lock", self.say):
            try:
                claim.take(spool_path, self.ledger, gethostname(), self.clock())
            except StoreError as exc:  # the spool is away: a node can still be held
                if str(exc) not in self._mishaps:
                    self._miss(str(exc))
            yield

    @cached_property
    def orders(self) -> Orders:
        """What asks for verifications, and follows them."""
        return Orders(self.site, self.ledger, self.slurm, self.say, self.clock)

    @cached_property
    def teller(self) -> Teller:
        """What tells the site's own program of changes."""
        program = self.site.quarantine.on_transition
        return Teller(program, self.ledger, self.store, self.say, self.clock)

    def turn(self) -> None:
        """
        Do all that is due: take in, judge, act, ask for reruns, tell the nodes.

        Raises:
            SlurmError: the scheduler does not answer in full; nothing was done.

        """
        seen = self.look()
        self.news()
        self._act(seen)

    def news(self) -> bool:
        """Take in what came; return whether there was anything to act on."""
        judged = self._take_in(self._eligible)
        return self.orders.follow() or judged

    def act(self) -> None:
        """Do what follows from the news."""
        self._act(self.look())

    def look(self) -> Mapping[str, Seen]:
        """
        Give all nodes, and know each, though no run of it ever came.

        Raises:
            SlurmError: the scheduler does not answer in full.

        """
        seen = self.keeper.look()
        self._eligible = len(seen)
        if strangers := seen.keys() - self.ledger.nodes().keys():
            self.ledger.meet(strangers)
        return seen

    def _act(self, seen: Mapping[str, Seen]) -> None:
        self._free_the_doubted()
        seen = {**seen, **self._adopt(seen)}
        self._settle(seen)
        self._give_turns(seen)
        self._order_reruns(seen)
        known = self.ledger.nodes()
        nodes = {name: known[name] for name in seen}
        doubts = self.doubts()
        try:
            tell(nodes, self.site, self.ledger.tripped(), doubts, self.clock())
        except StoreError as exc:
            self._miss(str(exc))
        for check in self.ledger.doubt(doubts):
            self.say(f"a check is doubted: {doubts[check]}")
        self.teller.tell()

    # -- what was found

    def _take_in(self, eligible: int) -> bool:
        """Take the spool in; what is refused is told, each once."""
        intake = Intake(self.site, self.store, self.ledger, self.clock)
        taken: list[spool.Arrival] = []
        tripped = self.ledger.tripped()
        try:
            for judged in intake.take(self._arrivals(taken), eligible):
                self._report(judged)
        except SpoolError as exc:  # what is known already is acted on all the same
            self._miss(str(exc))
        if not tripped and (why := self.ledger.tripped()):
            self.say(f"the breaker tripped: {why}")
        for arrival in taken:
            try:
                spool.done(arrival)
            except StoreError as exc:  # it is known, and will be removed the next time
                self.say(str(exc))
        self.taken_in += len(taken)
        self._prune({arrival.run.node for arrival in taken})
        return bool(taken)

    def _arrivals(self, taken: list[spool.Arrival]) -> Iterator[Run]:
        """Yield the runs in the spool, and note in *taken* where they lie."""
        where = Path(self.site.fleet.spool)
        owner = uid_of(self.site.fleet.user)
        for found in spool.gather(
            where, owner, self.ledger.is_judged, self.ledger.untimely, clock=self.clock
        ):
            if isinstance(found, spool.Arrival):
                yield found.run
                taken.append(replace(found, run=replace(found.run, results=())))
            elif found not in self._refused:
                self._refused.add(found)
                self.say(f"{found.node}: {found.reason}")

    def _report(self, judged: Judged) -> None:
        old, new = judged.before, judged.after
        if (old.state, old.wanted) != (new.state, new.wanted):
            because = f": {new.reason}" if new.reason else ""
            self.say(f"{new.name}: {old.state} -> {_told(judged)}{because}")

    def _prune(self, nodes: Collection[str]) -> None:
        known, deleted = self.ledger.nodes(), 0
        for name in nodes:
            spare = {known[name].run} - {""} if name in known else set[str]()
            deleted += self.store.prune(name, self.site.fleet.keep_runs, spare)
        if deleted:
            self.store.shrink()

    # -- how nodes are held

    def _adopt(self, seen: Mapping[str, Seen]) -> Mapping[str, Seen]:
        """
        Make Slurm's own drain ours where a run or a word of ours explains it.

        Return how those nodes are held after that.
        """
        known = self.ledger.nodes()
        changed: dict[str, Seen] = {}
        for name in sorted(name for name, there in seen.items() if there.hook_failed):
            node = known[name]
            if node.wanted is Hold.DRAIN or self._quarantines(node, seen[name]):
                self._try(name, partial(self._adopt_one, seen[name], changed))
        return changed

    def _quarantines(self, node: Node, there: Seen) -> bool:
        """Quarantine *node* for what its prolog refused a job for, if we may."""
        if self.ledger.tripped() or not explains_refusal(node, self.site):
            return False
        in_doubt = self.doubts().keys() >= set(node.checks)
        if in_doubt or self._trips(node.name):
            return False
        now = self.clock()
        past = self.ledger.quarantines(
            node.name, now - self.site.quarantine.lemon_days * DAY
        )
        gone = refused(node, there.reason, self.site, now, past)
        self.ledger.put(gone, gone.state.value, gone.reason, held=True)
        self.say(f"{node.name}: {node.state} -> {gone.state}: {gone.reason}")
        return True

    def _adopt_one(self, there: Seen, changed: dict[str, Seen]) -> None:
        node = self.ledger.node(there.node)
        adopted = adopt(node, there, self.keeper, self.ledger)
        if adopted.hold:
            self.ledger.put(adopted, "adopted", there.reason)
        changed[there.node] = self.keeper.see(there.node)

    def doubts(self) -> Mapping[str, str]:
        """Name the checks that fail too widely to be believed, and say how widely."""
        policy = self.site.quarantine
        since = self.clock() - policy.window_hours * HOUR
        return doubted(self.ledger.outcomes(since), policy)

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
            self._miss(f"{name}: {exc}")

    def _miss(self, what: str) -> None:
        self._mishaps.append(what)
        self.say(what)

    def _settle(self, seen: Mapping[str, Seen]) -> None:
        """
        Hold each node as it is wanted; one that cannot be is told, others go on.

        What is known of them follows from *seen*. Only before a write is one asked for
        again, and all of them once if a hold of ours is gone from any: a single answer
        is not enough to give one up.
        """
        known = self.ledger.nodes()
        began = cache(self.keeper.began)
        found: list[NodeChange] = []
        lost: list[Node] = []
        for name, there in seen.items():
            node = known[name]
            if is_calm(node, there):  # as nearly all are
                continue
            before = replace(node, missing=0.0)
            if is_free(there) and self._forgotten(before, began):
                before = replace(before, hold="")
            now, act = foresee(before, there, self._marks(before, there))
            if is_lost(before, now):
                lost.append(before)
            elif act:
                self._try(name, partial(self._settle_one, before, there))
            elif now != node:
                found.append(self._change(node, now))
            else:
                self._note_that_it_lasts(node)
        self._write([*found, *self._missing(known, seen)])
        self._give_up(lost)

    def _write(self, changes: Collection[NodeChange]) -> None:
        """Write *changes* down; who is to be verified before jobs is kept at once."""
        self.ledger.put_all(changes)
        for each in changes:
            node = each.node
            if node.wanted is Hold.RESERVATION and not (node.hold or node.foreign):
                self._try(node.name, partial(self._settle_one, node))

    def _marks(self, node: Node, there: Seen) -> Marks:
        """Read what our holds are recognized by; a stranger's drain has none of it."""
        ours = node.hold or there.ours or there.reserved
        return marks_of(node, self.ledger) if ours else Marks()

    def _missing(
        self, known: Mapping[str, Node], seen: Collection[str]
    ) -> Iterator[NodeChange]:
        """
        Note of the nodes that the scheduler did not name since when it does not.

        That alone changes nothing: it may name them in its next answer.
        """
        now = self.clock()
        for name in known.keys() - seen:
            if not 0 < known[name].missing <= now:
                missing = replace(known[name], missing=now)
                told = "the scheduler's answer did not name it"
                yield NodeChange(node=missing, what="missing", detail=told)

    def _give_up(self, lost: Iterable[Node]) -> None:
        """Let the nodes be whose hold somebody else has lifted, if it is still so."""
        if not lost:
            return
        seen = self.keeper.look()
        changes: list[NodeChange] = []
        for node in lost:
            there = seen.get(node.name)
            if there is None:
                continue
            now, act = foresee(node, there, self._marks(node, there))
            if is_lost(node, now) and act:
                self._try(node.name, partial(self._settle_one, node, there))
            elif is_lost(node, now):
                changes.append(self._change(node, now))
        self._write(changes)

    def _change(self, before: Node, after: Node) -> NodeChange:
        """Say what settling has made of a node, for the ledger."""
        now = self.clock()
        lost = is_lost(before, after)
        if after.state is not before.state:
            after = replace(after, since=now)
        let_go = (lost or before.foreign) and not after.foreign
        if let_go and after.owed and not after.is_back:
            after = came_back(after, now)
            if self._takes_back(before):
                after = kept_until_verified(after, now, self.ledger.last_ticket())
        what, detail = _changed(before, after)
        return NodeChange(node=after, what=what, detail=detail, lost=lost)

    def _takes_back(self, before: Node) -> bool:
        """
        Whether the site has a node verified before jobs that somebody else let go.

        Not one whose reservation they have lifted: they know what it was for.
        """
        drained = before.state not in {State.SUSPECT, State.VERIFYING}
        wished = self.site.quarantine.verify_returned
        return wished and drained and not self.ledger.tripped()

    def _note_that_it_lasts(self, node: Node) -> None:
        """Note that a hold was seen after the scheduler had written it down."""
        if not node.hold:
            return
        lasting = self.ledger.told(node.name) + LASTS_S
        if node.stood < lasting < self.clock():
            self.ledger.put(replace(node, stood=self.clock()), "stands", node.hold)

    def _forgotten(self, node: Node, began: Callable[[], float]) -> bool:
        """
        Whether the scheduler may have lost our hold of *node*, and nobody let it go.

        It was started since it was told, and we have not seen the hold since it had
        the time to write that down.
        """
        told = self.ledger.told(node.name) if node.hold else 0.0
        unsaved = bool(node.hold) and node.stood < told
        return unsaved and began() > told - CLOCKS_S

    def _settle_one(self, node: Node, there: Seen | None = None) -> None:
        settled = settle(node, self.keeper, self.ledger, there)
        if settled != self.ledger.node(node.name):
            self._write([self._change(node, settled)])

    def _free_the_doubted(self) -> None:
        """Let suspects go whose checks fail too widely to be believed."""
        doubts = self.doubts()
        freed = [
            believes_no_more(node, doubts)
            for node in self.ledger.nodes().values()
            if doubts and node.state is State.SUSPECT and node.enforced
        ]
        self.ledger.put_all(
            NodeChange(node=node, what="let go", detail=node.reason)
            for node in freed
            if not node.enforced
        )

    # -- whom to verify outside the sweep

    def _give_turns(self, seen: Mapping[str, Seen]) -> None:
        """Keep nodes free that have not passed for too long, some at a time."""
        days = self.site.fleet.overdue_days
        if not days or self.ledger.tripped():
            return
        known = self.ledger.nodes()
        nodes = [known[name] for name in seen]
        began, now = self.ledger.began(), self.clock()
        waiting = [node for node in nodes if node.kept_free]
        room = allowance(len(seen), self.site.quarantine) - len(waiting)
        due = sorted(
            (node for node in nodes if has_waited(node, began, now, days)),
            key=lambda node: (-elapsed(now, node.passed), node.name),
        )
        suite = self.site.fleet.suite
        for node in due[: max(0, room)]:
            kept = replace(
                node,
                state=State.VERIFYING,
                since=now,
                reason=f"has not passed for {days:g} days: kept free for its turn",
                enforced=True,
                suite=(node.suite or suite) if node.owed else suite,
                after=self.ledger.last_ticket(),
            )
            self.ledger.put(kept, "kept free")
            self._try(node.name, partial(self._settle_one, kept))

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
        hosts = self.slurm.hosts()  # a name that is gone meanwhile would be an error
        for node in due:
            if host := hosts.get(node.name):
                verify = partial(self.orders.verify, host, self.site.fleet.suite)
                self._try(node.name, verify)

    # -- plans

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
            tried=self.ledger.last_ended(),
            seed=self.ledger.seed(),
        )


def _told(judged: Judged) -> str:
    """Name the state that a node is in now, and whether it is acted on."""
    node = judged.after
    if node.enforced or not node.checks:
        return str(node.state)
    if not judged.evidence.ticket:
        return f"{node.state} (not ordered by us: first in the next sweep)"
    return f"{node.state} (observed only)"


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
    if before.missing and not after.missing:
        return "named again", "the scheduler's answer names it"
    return after.state.value, after.reason


def is_calm(node: Node, seen: Seen) -> bool:
    """Whether nobody holds *node*, as *seen*, or means to, and so it is known."""
    if node.wanted is not Hold.NONE or node.hold or node.missing:
        return False
    if seen.ours or seen.reserved:
        return False
    return as_found(node, seen, Marks()) == node


def is_free(seen: Seen) -> bool:
    """Whether nothing at all keeps users' jobs off."""
    return not (seen.drained or seen.reserved or seen.unavailable)
