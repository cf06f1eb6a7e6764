"""
The controller: takes in runs, follows jobs and holds nodes, in one cycle.

A cycle may be killed anywhere, even by -9. The next one continues from the ledger and
the scheduler's answer: every step compares what is with what is wanted. Only one
controller acts at a time. If the scheduler does not answer in full, nothing is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from pathlib import Path
from socket import gethostname
from traceback import extract_tb
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.errors import (
    ActionError,
    DamagedError,
    HpcverifyError,
    SlurmError,
    SpoolError,
    StoreError,
    explain_shortage,
)
from hpcverify.fleet.breaker import (
    Doubt,
    compute_allowance,
    compute_out_limit,
    explain_trip,
    find_doubts,
    list_out,
    select_doubts,
)
from hpcverify.fleet.claim import hold_controller_lock, take_claim
from hpcverify.fleet.event_journal import JOURNAL_READER, JournalStream
from hpcverify.fleet.event_stream import EventStream
from hpcverify.fleet.evidence import FaultReport
from hpcverify.fleet.holds import (
    MAX_CLOCK_SKEW_S,
    PROLOG_ERROR,
    HoldBackend,
    HoldHistory,
    HoldReading,
    apply_hold,
    apply_reading,
    is_hold_lost,
    plan_next_write,
    read_hold_history,
    take_over_hook_drain,
    undo_hook_drain,
)
from hpcverify.fleet.intake import Intake, JudgedRun
from hpcverify.fleet.ledger import Ledger
from hpcverify.fleet.notify import TransitionNotifier
from hpcverify.fleet.orders import Dispatcher
from hpcverify.fleet.publish import publish_job_gates, publish_refusal_places
from hpcverify.fleet.risk import read_ranking
from hpcverify.fleet.schedule import SweepPlan, is_overdue, is_rerun_due, plan_sweep
from hpcverify.fleet.standing import (
    beat_daily,
    follow_claim,
    follow_configuration,
    follow_refusals,
    follow_suppressions,
    follow_used_suppressions,
)
from hpcverify.fleet.states import (
    DAY_S,
    HOUR_S,
    Hold,
    Node,
    NodeChange,
    State,
    add_return,
    compute_elapsed,
    is_kept_for_fabric,
)
from hpcverify.fleet.transitions import (
    explains_refusal,
    has_unanswered_evidence,
    keep_until_verified,
    list_refusing_checks,
    quarantine_refused,
    release_if_doubted,
    reserve_for_evidence,
    reserve_overdue,
)
from hpcverify.history.writer import MeasurementWriter
from hpcverify.model import Run, Verdict
from hpcverify.plan.config import Site, look_up_uid
from hpcverify.records import spool
from hpcverify.records.store import Store
from hpcverify.run.conclude import list_conclusive
from hpcverify.selection.ranking import RiskRanking
from hpcverify.slurm import Host
from hpcverify.slurm.client import Slurm
from hpcverify.summary.verdict import shorten

RISK_VALID_S = 600.0
"""How long a ranking of the nodes is used: a sweep plans anew every few seconds."""
MAX_REASON_CHARACTERS = 500
"""The longest line about why a convenience does not work."""
HISTORY = "history of measurements"
METRICS = "metrics"
METRICS_INTERVAL_S = 60.0
"""Between two writes of metrics while nothing happens."""
EVENT_STREAM = "events.jsonl"
REFUSAL_S = 300.0
"""From the start of a run in a prolog until Slurm has surely drained its node for the refusal."""
MAX_NODE_SKEW_S = 60.0
"""How far the clock of such a node may be ahead."""
SLURMCTLD_SAVE_S = 30.0
"""Until slurmctld has surely saved a change: it saves every 5 s."""


T = TypeVar("T")


class Cycle(Struct, frozen=True, kw_only=True):
    """What a cycle has found and done, for the metrics of the fleet."""

    listed: Collection[str]
    """The nodes that the scheduler has just listed."""
    doubts: Collection[str]
    """The checks that are doubted."""
    seconds: float = 0.0
    errors: int = 0
    refusals: int = 0
    """Documents and directories in the spool that were refused."""


@dataclass
class Controller:
    """Everything that acts on the fleet."""

    site: Site
    state: Path
    ledger: Ledger
    store: Store
    slurm: Slurm
    backend: HoldBackend
    say: Callable[[str], None]
    """Prints what an operator should know, a line at a time."""
    clock: Callable[[], float] = time.time
    measurements: MeasurementWriter | None = None
    """Keeps what runs measured; None: DuckDB is not installed."""
    write_metrics: Callable[[Controller, Cycle], None] | None = None
    """Writes the metrics of the fleet after a cycle; None: the site wants none."""
    runs_taken_in: int = 0
    _refusals: set[spool.Refusal] = field(default_factory=set[spool.Refusal])
    _errors: list[str] = field(default_factory=list[str])
    _convenience_errors: set[str] = field(default_factory=set[str])
    """Those of conveniences, which are among the errors."""
    _cycle: Cycle | None = None
    """The last one that acted."""
    _metrics_due: float = 0.0
    """When its metrics are written again though nothing happened, by the monotonic clock."""
    _eligible_count: int = 0
    """Nodes in the scheduler's last full list."""
    _risks: RiskRanking | None = None

    def choose_exit_status(self) -> int:
        """Choose the exit status of a cycle: 0 if everything in it succeeded."""
        return ActionError.exit_code if self._errors else 0

    def has_failed_action(self) -> bool:
        """Whether an action on the fleet failed; a convenience that does not work is not one."""
        return not self._convenience_errors.issuperset(self._errors)

    @contextmanager
    def hold_lock(self) -> Generator[None]:
        """
        Hold the controller's lock and the spool's claim.

        Raises:
            UnverifiedError: another command is using this state directory.
            ActionError: the spool belongs to another controller.

        """
        spool_path = Path(self.site.fleet.spool)
        with hold_controller_lock(self.state / "fleet.lock", self.say):
            began = time.monotonic()
            self._take_claim(spool_path)
            try:
                yield
            finally:  # bring what the site's collectors read up to date
                with self.run_convenience(EVENT_STREAM):
                    EventStream(self.state, self.site.events, self.ledger).drain()
                with self.run_convenience(JOURNAL_READER):
                    JournalStream(self.site.events, self.ledger).drain()
            self._write_metrics(began)

    def _take_claim(self, spool_path: Path) -> None:
        refusal = ""
        try:
            take_claim(spool_path, self.ledger, gethostname(), self.clock())
        except StoreError as exc:  # without the spool a node can still be held
            if str(exc) not in self._errors:
                self._record_error(str(exc))
        except ActionError as exc:
            refusal = str(exc)
            raise
        finally:
            follow_claim(self.ledger, spool_path, refusal)

    def _write_metrics(self, began: float) -> None:
        """
        Write the metrics of the fleet after a cycle that *began* then, by the monotonic clock.

        One that had nothing to do writes them now and then: a sweep that waits for hours for one
        node is not silent.
        """
        now = time.monotonic()
        if self.write_metrics is None or self._cycle is None or now < self._metrics_due:
            return
        self._metrics_due = now + METRICS_INTERVAL_S
        cycle = replace(
            self._cycle,
            seconds=now - began,
            errors=len(self._errors),
            refusals=len(self._refusals),
        )
        with self.run_convenience(METRICS):
            self.write_metrics(self, cycle)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """What orders verifications and follows their jobs."""
        return Dispatcher(self.site, self.ledger, self.slurm, self.say, self.clock)

    @cached_property
    def notifier(self) -> TransitionNotifier:
        """What runs the site's own program at each change."""
        program = self.site.quarantine.on_transition
        return TransitionNotifier(program, self.ledger, self.store, self.say, self.clock)

    @contextmanager
    def run_convenience(
        self,
        what: str,
        *,
        of: str = "",
        is_over: bool = True,
        stops: tuple[type[HpcverifyError], ...] = (),
    ) -> Generator[None]:
        """
        Do something that the fleet can do without, such as the history: its end is not ours.

        Whatever goes wrong there is reported in one line and kept as a state, which
        `hpcverify nodes` shows until the convenience works again: until it *is over* without
        an error. The cycle goes on, but for an error that *stops* it anyway. *what* is done is one
        step *of* it, if so.

        Raises:
            DamagedError: the ledger or the index is damaged, without which nothing goes on.

        """
        why = ""
        try:
            yield
        except Exception as exc:
            if isinstance(exc, (DamagedError, *stops)):
                raise
            why = shorten(" ".join(_explain_failure(exc).split()), MAX_REASON_CHARACTERS)
            if (problem := f"{what}: {why}") not in self._errors:
                self._convenience_errors.add(problem)
                self._record_error(problem)
        if why or is_over:
            try:
                self.ledger.record_malfunction(of or what, why)
            except DamagedError:
                raise
            except StoreError as exc:  # the disk is full: what holds nodes says so as well
                self._record_error(str(exc))

    def iterate_convenience(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield *items* as far as they come; see `run_convenience`."""
        with self.run_convenience(name):
            yield from items

    def take_faults(self, reports: Iterable[FaultReport]) -> None:
        """
        Judge the *reports* of other sources than runs.

        Raises:
            SlurmError: the scheduler does not answer in full; nothing was judged.

        """
        if listed := list(reports):
            self.observe_holds()  # the breaker counts them
            intake = Intake(self.site, self.store, self.ledger, self.clock)
            taken = intake.take_faults(listed, self._eligible_count)
            for judged in taken:
                self._report(judged)
            self._follow_used_suppressions(taken)

    def reconcile(self) -> None:
        """
        Do all that is due: take in runs, judge, act, order reruns, write gate files.

        Raises:
            SlurmError: the scheduler does not answer in full; nothing was done.

        """
        seen = self.observe_holds()
        with self.run_convenience("events of the configuration"):
            follow_configuration(self.ledger, self.site)
            follow_suppressions(self.ledger, self.site, self.clock())
            beat_daily(self.ledger, self.site, self.clock())
        self.collect_results()
        self._act(seen)

    def collect_results(self) -> bool:
        """Take in new runs and ended jobs; return whether there was any."""
        judged = self._take_in(self._eligible_count)
        return self.dispatcher.close_ended_tickets() or judged

    def act(self) -> None:
        """Act on what `collect_results` took in."""
        self._act(self.observe_holds())

    def observe_holds(self) -> Mapping[str, HoldReading]:
        """
        Read how all nodes are held, and add new ones to the ledger.

        Raises:
            SlurmError: the scheduler does not answer in full.

        """
        seen = self.backend.read_holds()
        self._eligible_count = len(seen)
        if strangers := seen.keys() - self.ledger.list_nodes().keys():
            self.ledger.add_nodes(strangers)
        return seen

    def _act(self, seen: Mapping[str, HoldReading]) -> None:
        self._release_doubted_suspects()
        seen = {**seen, **self._settle_hook_drains(seen)}
        self._apply_holds(seen)
        self._reserve_for_verification(seen)
        self._order_reruns(seen)
        known = self.ledger.list_nodes()
        nodes = {name: known[name] for name in seen}
        doubts, tripped = self.find_doubts(), self.ledger.read_trip_reason()
        refusing = {name for name, there in seen.items() if there.hook_failed}
        publish_gates = partial(publish_job_gates, nodes, self.site, tripped, doubts)
        publish_places = partial(
            publish_refusal_places, self.site, tripped, self._count_room, refusing
        )
        for publish in (publish_gates, publish_places):
            try:
                publish(self.clock())
            except StoreError as exc:
                self._record_error(str(exc))
        for check in self.ledger.record_doubts({check: d.why for check, d in doubts.items()}):
            self.say(f"a check is doubted: {doubts[check].why}")
        self.notifier.notify()
        keep_nights = self.site.history.keep_nights
        self._keep_measurements(lambda writer: writer.write(keep_nights), is_over=True)
        self._cycle, self._metrics_due = Cycle(listed=seen.keys(), doubts=doubts), 0.0

    def _count_room(self, more: Collection[str]) -> int:
        """Count how many nodes may be held next to those held lately, and *more*."""
        policy = self.site.quarantine
        held = self.ledger.list_newly_held(self.clock() - policy.window_hours * HOUR_S)
        out = list_out(self.ledger.list_nodes().values(), self.clock())
        return max(
            0,
            min(
                compute_allowance(self._eligible_count, policy) - len(held | {*more}),
                compute_out_limit(self._eligible_count, policy) - len(out | {*more}),
            ),
        )

    # -- what was found

    def _take_in(self, eligible: int) -> bool:
        intake = Intake(self.site, self.store, self.ledger, self.clock)
        taken: list[spool.Arrival] = []
        refused: list[spool.Refusal] = []
        tripped = self.ledger.read_trip_reason()
        try:
            with self.ledger.keep_open():
                judged = intake.take_in(self._gather_arrivals(taken, refused), eligible)
            for run in judged:
                self._report(run)
            self._follow_used_suppressions(judged)
            with self.run_convenience("events of the spool"):
                follow_refusals(self.ledger, refused, {arrival.run.node for arrival in taken})
        except SpoolError as exc:  # what is known already is still acted on
            self._record_error(str(exc))
        if not tripped and (why := self.ledger.read_trip_reason()):
            self.say(f"the breaker tripped: {why}")
        for arrival in taken:
            try:
                spool.remove_document(arrival)
            except StoreError as exc:  # the next cycle removes it
                self.say(str(exc))
        self.runs_taken_in += len(taken)
        keep, deleted = self.site.fleet.keep_runs, 0
        for name in self.store.list_overfull(keep) & {arrival.run.node for arrival in taken}:
            spare = {self.ledger.read_node(name).run} - {""}
            deleted += self.store.prune(name, keep, spare)
        if deleted:
            self.store.shrink()
        return bool(taken)

    def _follow_used_suppressions(self, taken: Iterable[JudgedRun]) -> None:
        used: dict[str, set[str]] = {}
        for judged in taken:
            used.setdefault(judged.after.name, set()).update(judged.evidence.suppressed_checks)
        with self.run_convenience("events of suppressions"):
            follow_used_suppressions(self.ledger, self.site, self.clock(), used)

    def _gather_arrivals(
        self, taken: list[spool.Arrival], refused: list[spool.Refusal]
    ) -> Iterator[Run]:
        where = Path(self.site.fleet.spool)
        owner = look_up_uid(self.site.fleet.user)
        for arrival in spool.gather(
            where, owner, self.ledger.is_judged, self.ledger.explain_untimely, clock=self.clock
        ):
            if isinstance(arrival, spool.Arrival):
                now = datetime.fromtimestamp(self.clock(), UTC)  # if the clock of its node is wrong
                add = partial(MeasurementWriter.add, run=arrival.run, arrived=now)
                self._keep_measurements(add)
                yield arrival.run
                taken.append(replace(arrival, run=replace(arrival.run, results=())))
                continue
            refused.append(arrival)
            if arrival not in self._refusals:
                self._refusals.add(arrival)
                self.say(f"{arrival.node}: {arrival.reason}")
        self._keep_measurements(MeasurementWriter.flush)

    def _keep_measurements(
        self, act: Callable[[MeasurementWriter], None], *, is_over: bool = False
    ) -> None:
        """Write measurements, if that can be done: judging does not wait for it."""
        if (writer := self.measurements) is None:
            return
        self.measurements = None  # for this command, unless it works
        with self.run_convenience(HISTORY, is_over=is_over):
            act(writer)
            self.measurements = writer

    def _report(self, judged: JudgedRun) -> None:
        old, new = judged.before, judged.after
        if (old.state, old.desired_hold) == (new.state, new.desired_hold):
            return
        how = ""
        if not new.enforced and new.checks and judged.evidence.ticket:
            how = " (observed only)"
        elif not new.enforced and new.checks:
            how = " (not ordered by the controller: first in the next sweep)"
        because = f": {new.full_reason}" if new.reason else ""
        self.say(f"{new.name}: {old.state} -> {new.state}{how}{because}")

    # -- how nodes are held

    def _settle_hook_drains(self, seen: Mapping[str, HoldReading]) -> Mapping[str, HoldReading]:
        """
        Take over Slurm's own drain where a run or a gate file of ours explains it, or undo it.

        Return how those nodes are held afterwards.
        """
        known = self.ledger.list_nodes()
        drains = {name: there for name, there in sorted(seen.items()) if there.hook_failed}
        refused = [known[name] for name in drains if self._has_refused(known[name], drains[name])]
        believed = self._quarantine_refused(refused, drains) if refused else set[str]()
        changed: dict[str, HoldReading] = {}
        for name, there in drains.items():
            if known[name].desired_hold is Hold.DRAIN or name in believed:
                self._try(name, partial(self._take_over_hook_drain, there, changed))
        for node in refused:
            if node.name not in believed:
                undo = partial(self._undo_hook_drain, node, drains[node.name], changed)
                self._try(node.name, undo)
        return changed

    def _has_refused(self, node: Node, there: HoldReading) -> bool:
        """
        Whether the prolog of *node* refused a job for what a run found just before.

        The site's own prolog may fail on a node on which we found something at another time.
        """
        held = node.desired_hold is Hold.DRAIN or there.reason != PROLOG_ERROR
        if held or not explains_refusal(node, self.site):
            return False
        recent = (
            run
            for run in self.store.list_runs(node.name)
            if run.verdict is Verdict.FAIL
            and -MAX_NODE_SKEW_S <= there.at - run.started.timestamp() <= REFUSAL_S
        )
        refusing = set(list_refusing_checks(self.site))
        return any(
            result.check in refusing and list_conclusive(result, Verdict.FAIL)
            for run in self.store.read_documents(recent)
            for result in run.results
        )

    def _quarantine_refused(
        self, nodes: Sequence[Node], drains: Mapping[str, HoldReading]
    ) -> set[str]:
        doubts, now = self.find_doubts(), self.clock()
        believed = [n for n in nodes if not select_doubts(doubts, n.name).keys() >= {*n.checks}]
        if self.ledger.read_trip_reason() or self._trip_if_too_many(believed):
            return set()
        since = now - self.site.quarantine.repeat_days * DAY_S
        for node in believed:
            past = self.ledger.count_quarantines(node.name, since)
            gone = quarantine_refused(node, drains[node.name].reason, self.site, now, past)
            self.ledger.put(gone, gone.state.value, gone.full_reason, held=True)
            self.say(f"{node.name}: {node.state} -> {gone.state}: {gone.full_reason}")
        return {node.name for node in believed}

    def _undo_hook_drain(
        self, node: Node, there: HoldReading, changed: dict[str, HoldReading]
    ) -> None:
        changed[node.name] = undo_hook_drain(node, there, self.backend, self.ledger)
        why = f"a finding that is not acted on: {node.reason}"
        self.ledger.put(node, "undid hook drain", why)
        self.say(f"{node.name}: resumed; its prolog refused a job for {why}")

    def _take_over_hook_drain(self, there: HoldReading, changed: dict[str, HoldReading]) -> None:
        node = self.ledger.read_node(there.node)
        adopted = take_over_hook_drain(node, there, self.backend, self.ledger)
        if adopted.hold_id:
            self.ledger.put(adopted, "took over hook drain", there.reason)
        changed[there.node] = self.backend.read_hold(there.node)

    def find_doubts(self) -> Mapping[str, Doubt]:
        """Find the checks that fail too widely to be believed, by name."""
        policy = self.site.quarantine
        doubts = find_doubts(self.ledger, self.store, policy, self.clock())
        return {doubt.check: doubt for doubt in doubts}

    def _trip_if_too_many(self, new: Sequence[Node]) -> bool:
        policy, names = self.site.quarantine, [node.name for node in new]
        held = self.ledger.list_newly_held(self.clock() - policy.window_hours * HOUR_S)
        out = list_out(self.ledger.list_nodes().values(), self.clock())
        if why := explain_trip(held, names, out, self._eligible_count, policy):
            self.ledger.trip(why)
            self.say(f"the breaker tripped: {why}")
        return bool(why)

    def _try(self, name: str, act: Callable[[], object]) -> None:
        """
        Do *act* for one node; its failure must not stop the others.

        Raises:
            SlurmError: the scheduler does not answer at all.

        """
        try:
            act()
        except HpcverifyError as exc:
            if isinstance(exc, SlurmError):
                self.backend.read_holds()  # if it answers, the error is this node's
            self._record_error(f"{name}: {exc}")

    def _record_error(self, what: str) -> None:
        self._errors.append(what)
        self.say(what)

    def _apply_holds(self, seen: Mapping[str, HoldReading]) -> None:
        """
        Hold each node as its state says; report one that fails, and go on.

        *seen* is the basis. A node is read again only before a write, and all of them
        once if a hold of ours is gone from any: one answer is not enough to give it up.
        """
        known = self.ledger.list_nodes()
        began = cache(self.backend.read_start_time)
        changes: list[NodeChange] = []
        lost: list[Node] = []
        for name, there in seen.items():
            node = known[name]
            if needs_no_settling(node, there):  # as nearly all are
                continue
            before = replace(node, missing_since=0.0)
            if is_free(there) and self._may_have_lost_hold(before, began):
                before = replace(before, hold_id="")
            now, act = plan_next_write(before, there, self._read_hold_history(before, there))
            if is_hold_lost(before, now):
                lost.append(before)
            elif act:
                self._try(name, partial(self._apply_hold, before, there))
            elif now != node:
                changes.append(self._build_change(node, now))
            elif not there.unregistered:
                self._confirm_hold(node)
        self._write_changes([*changes, *self._find_missing(known, seen)])
        self._confirm_lost_holds(lost)

    def _write_changes(self, changes: Collection[NodeChange]) -> None:
        self.ledger.put_all(changes)
        for change in changes:
            node = change.node
            if node.desired_hold is Hold.RESERVATION and not (node.hold_id or node.foreign):
                self._try(node.name, partial(self._apply_hold, node))

    def _read_hold_history(self, node: Node, there: HoldReading) -> HoldHistory:
        ours = node.hold_id or there.hold_id or there.reserved
        return read_hold_history(node, self.ledger) if ours else HoldHistory()

    def _find_missing(
        self, known: Mapping[str, Node], seen: Collection[str]
    ) -> Iterator[NodeChange]:
        """
        Record since when the scheduler does not list a node.

        That alone changes nothing: its next answer may list it again.
        """
        now = self.clock()
        for name in known.keys() - seen:
            if not 0 < known[name].missing_since <= now:
                missing = replace(known[name], missing_since=now)
                detail = "the scheduler does not list it"
                yield NodeChange(node=missing, what="not listed by Slurm", detail=detail)

    def _confirm_lost_holds(self, lost: Sequence[Node]) -> None:
        if not lost:
            return
        seen = self.backend.read_holds()
        changes: list[NodeChange] = []
        for node in lost:
            there = seen.get(node.name)
            if there is None:
                continue
            now, act = plan_next_write(node, there, self._read_hold_history(node, there))
            if is_hold_lost(node, now) and act:
                self._try(node.name, partial(self._apply_hold, node, there))
            elif is_hold_lost(node, now):
                changes.append(self._build_change(node, now))
        self._write_changes(changes)

    def _build_change(self, before: Node, after: Node) -> NodeChange:
        now = self.clock()
        lost = is_hold_lost(before, after)
        if after.state is not before.state:
            after = replace(after, since=now)
        let_go = (lost or before.foreign) and not after.foreign
        if let_go and after.owed_checks and not after.has_returned:
            after = add_return(after, now)
            # Not if they deleted its reservation: they know what it was for.
            drained = before.state not in {State.SUSPECT, State.VERIFYING}
            wanted = self.site.quarantine.verify_returned
            if wanted and drained and not self.ledger.read_trip_reason():
                after = keep_until_verified(after, now, self.ledger.read_last_ticket_number())
        what, detail = _describe_change(before, after)
        return NodeChange(node=after, what=what, detail=detail, lost=lost)

    def _confirm_hold(self, node: Node) -> None:
        """Record that a hold was seen after the scheduler had saved it."""
        if not node.hold_id:
            return
        lasting = self.ledger.read_last_write_time(node.name) + SLURMCTLD_SAVE_S
        if node.hold_confirmed_at < lasting < self.clock():
            confirmed = replace(node, hold_confirmed_at=self.clock())
            self.ledger.put(confirmed, "hold confirmed", node.hold_id)

    def _may_have_lost_hold(self, node: Node, began: Callable[[], float]) -> bool:
        """
        Whether the scheduler may have lost our hold of *node* in a restart.

        It restarted after our write, and we have not seen the hold since it had time
        to save it.
        """
        written = self.ledger.read_last_write_time(node.name) if node.hold_id else 0.0
        unsaved = bool(node.hold_id) and node.hold_confirmed_at < written
        return unsaved and began() > written - MAX_CLOCK_SKEW_S

    def _apply_hold(self, node: Node, there: HoldReading | None = None) -> None:
        held = apply_hold(node, self.backend, self.ledger, there)
        if held != self.ledger.read_node(node.name):
            self._write_changes([self._build_change(node, held)])

    def _release_doubted_suspects(self) -> None:
        doubts = self.find_doubts()
        freed = [
            release_if_doubted(node, select_doubts(doubts, node.name))
            for node in self.ledger.list_nodes().values()
            if doubts and node.state is State.SUSPECT and node.enforced
        ]
        self.ledger.put_all(
            NodeChange(node=node, what="released (check in doubt)", detail=node.full_reason)
            for node in freed
            if not node.enforced
        )

    # -- which nodes to verify outside the sweep

    def _reserve_for_verification(self, seen: Mapping[str, HoldReading]) -> None:
        """
        Reserve nodes until they are verified: suspects with evidence, then overdue ones.

        With those that are out these are no more than half of the fleet, or else one at a time.
        """
        if self.ledger.read_trip_reason():
            return
        known = self.ledger.list_nodes()
        nodes = [known[name] for name in seen if not seen[name].unregistered]
        waiting = sum(known[name].awaits_verification for name in seen)
        left = len(seen) // 2 - len(list_out(nodes, self.clock()))
        allowed = min(compute_allowance(len(seen), self.site.quarantine), max(1, left))
        room = max(0, allowed - waiting)
        last = self.ledger.read_last_ticket_number()
        with_evidence = self._find_suspects_with_evidence(nodes)
        kept = [reserve_for_evidence(node, last) for node in with_evidence[:room]]
        began, now = self.ledger.read_fleet_start(), self.clock()  # began is then not ahead
        days, suite = self.site.fleet.overdue_days, self.site.fleet.suite
        overdue = sorted(
            (node for node in nodes if days and is_overdue(node, began, now, days)),
            key=lambda node: (-compute_elapsed(now, node.last_pass_at), node.name),
        )
        kept += [
            reserve_overdue(node, suite, days, now, last) for node in overdue[: room - len(kept)]
        ]
        for node in kept:
            why = "overdue" if node.is_reserved_overdue else "conclusive evidence"
            self.ledger.put(node, f"reserved ({why})")
            self._try(node.name, partial(self._apply_hold, node))

    def _find_suspects_with_evidence(self, nodes: Iterable[Node]) -> list[Node]:
        found = [n for n in nodes if has_unanswered_evidence(n, self.site) and not n.foreign]
        if not found:
            return []
        now, doubts, ended = self.clock(), self.find_doubts(), self.ledger.find_last_ended()

        def is_due(node: Node) -> bool:
            last = ended.get(node.name)
            if last is None or last.ended < node.since:
                return True
            return not last.run and is_rerun_due(node, last, now)

        believed = (n for n in found if not select_doubts(doubts, n.name).keys() >= {*n.checks})
        return sorted(filter(is_due, believed), key=lambda node: (node.since, node.name))

    def _order_reruns(self, seen: Mapping[str, HoldReading]) -> None:
        nodes = self.ledger.list_nodes()
        # What was ordered before its node was reserved waits outside the reservation, which lets
        # no job in; its run would not count.
        for ticket in self.ledger.list_open_tickets():
            node = nodes.get(ticket.node, Node(name=ticket.node))
            reserved = node.desired_hold is Hold.RESERVATION and node.hold_id
            if reserved and not ticket.run and ticket.number <= node.not_before_ticket:
                self._try(node.name, partial(self.dispatcher.cancel_verification, node.name))
        busy = {ticket.node for ticket in self.ledger.list_open_tickets()}
        ended = self.ledger.find_last_ended()
        due = [
            node
            for node in self.ledger.list_nodes().values()
            if node.desired_hold is Hold.RESERVATION
            and node.hold_id
            and not node.foreign
            and node.name in seen
            and node.name not in busy
            and not is_kept_for_fabric(node)
            and is_rerun_due(node, ended.get(node.name), self.clock())
        ]
        if not due:
            return
        hosts = self.slurm.list_hosts()  # asking for a name that is gone is an error
        for node in due:
            if host := hosts.get(node.name):
                verify = partial(self.dispatcher.order_verification, host, self.site.fleet.suite)
                self._try(node.name, verify)

    # -- plans

    def rank_risks(self) -> RiskRanking:
        """Rank the nodes by the risk that each fails next; anew after `RISK_VALID_S`."""
        now = self.clock()
        if self._risks is None or not 0 <= now - self._risks.now * DAY_S < RISK_VALID_S:
            self._risks = read_ranking(self.ledger, self.site.fleet, now)
        return self._risks

    def plan(
        self,
        hosts: Mapping[str, Host],
        *,
        only: Collection[str] = (),
        done: Collection[str] = (),
        limit: int | None = None,
    ) -> SweepPlan:
        """Choose which of *hosts* to verify now; see `plan_sweep`."""
        return plan_sweep(
            hosts,
            self.ledger.list_nodes(),
            {ticket.node for ticket in self.ledger.list_open_tickets()},
            self.site.fleet,
            self.clock(),
            only=only,
            done=done,
            limit=limit,
            tried=self.ledger.find_last_ended(),
            risks=self.rank_risks().scores,
            seed=self.ledger.read_seed(),
        )


def _explain_failure(exc: Exception) -> str:
    """Say in one line why a convenience failed; of a bug of ours, where."""
    if isinstance(exc, HpcverifyError):
        return str(exc)
    place = extract_tb(exc.__traceback__)[-1]
    where = f"{Path(place.filename).name}:{place.lineno}"
    return explain_shortage(exc) or f"a bug in hpcverify, {type(exc).__name__} at {where}: {exc}"


def _describe_change(before: Node, after: Node) -> tuple[str, str]:
    if after.foreign and after.foreign != before.foreign:
        return "held by others", after.foreign
    if before.foreign and not after.foreign:
        return "let go by others", f"it was held: {before.foreign}"
    if after.hold_id and not before.hold_id:
        return "held", f"{after.hold_id} {after.full_reason}"
    if before.hold_id and not after.hold_id:
        return "released", after.full_reason
    if before.missing_since and not after.missing_since:
        return "listed again", "the scheduler lists it"
    return after.state.value, after.full_reason


def needs_no_settling(node: Node, seen: HoldReading) -> bool:
    """Whether *node* is neither held nor to be held, and the ledger says so."""
    if node.desired_hold is not Hold.NONE or node.hold_id or node.missing_since:
        return False
    if seen.hold_id or seen.reserved:
        return False
    return apply_reading(node, seen, HoldHistory()) == node


def is_free(seen: HoldReading) -> bool:
    """Whether nothing keeps users' jobs off."""
    return not (seen.drained or seen.reserved or seen.unavailable)
