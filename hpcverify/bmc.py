"""
One round over the BMCs of a fleet: each is asked once, and its node gets a run.

Such a run is made on the controller, by the rules of the check `chassis`. It goes into the
spool like that of a hook: it has no ticket, so it can make its node a suspect and nothing
else. It is signed: only such a run takes back what the BMC showed before. It says nothing of
the node's GPUs, its hooks or its age.

A wrong password must not lock an account. So a BMC gets one try in a round, the round begins
with one BMC, asks twice as many at once after each group that refused nothing, and ends after
three refusals in a row.

Workers of their own ask: one that hangs, or waits for a name service, is left behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpcverify.check import Context
from hpcverify.errors import StoreError
from hpcverify.model import (
    CarryOver,
    Cause,
    Device,
    Inventory,
    Result,
    Run,
    Source,
    Verdict,
    verdict_of,
)
from hpcverify.plan.bmc import BmcAccess
from hpcverify.plan.config import Site, look_up_uid
from hpcverify.plan.suite import Step, Suite, SuiteEntry, make_plan
from hpcverify.records import spool
from hpcverify.records.store import Store
from hpcverify.run.conclude import conclude
from hpcverify.run.executor import Answer, Executor
from hpcverify.run.orchestrator import collect_versions, make_run_id
from hpcverify.run.wire import ReadBmc
from hpcverify.units import format_count

CHECK = "chassis"
MARK_PREFIX = "redfish."
"""Before the names of our marks: the node has marks of its own, which are not ours."""
WORKER_SECONDS = 30.0
"""How long a worker may take to start and to log out, besides what its BMC may take."""
MAX_REFUSALS = 3
"""Passwords refused in a row that end the round."""
OWN_LOG_AGE = timedelta(hours=36)
"""A node that has reported its BMC's event log itself within this time will do so again."""
MIN_ALIKE, ALIKE_SHARE = 3, 0.5
"""BMCs that cannot be read for one cause, and their share, from which it is no node's."""
POLL_SECONDS = 0.1


@dataclass
class BmcRound:
    """Asks the BMCs in *accesses*, by node, and leaves a run of each node in the spool."""

    site: Site
    store: Store
    executor: Executor
    accesses: Mapping[str, BmcAccess]
    say: Callable[[str], None]
    stop: Callable[[], bool]
    sign: Callable[[Run], str]
    """Makes what proves to the next collect that a run is ours."""
    accept_parts: bool = False
    """Whether what a chassis has now, or lacks, is meant so."""
    found: dict[str, Run] = field(default_factory=dict[str, Run])
    end_reason: str = ""
    mishaps: list[str] = field(default_factory=list[str])
    _kept: list[Run] = field(default_factory=list[Run])
    """Runs without an answer: whether it is the node's fault shows at the end."""
    _refusals: int = 0

    def run(self) -> None:
        """Read all BMCs, a group at a time."""
        step = plan_step(self.site)  # a mistake in the site file shows before anybody is asked
        look_up_uid(self.site.fleet.user)
        spool.list_homes(Path(self.site.fleet.spool))  # asks nobody in vain
        tellers = list_log_tellers(self.store, datetime.now(UTC))
        left = list(self.accesses)
        size = 1
        while left and not self.end_reason:
            group, left = left[:size], left[size:]
            refused = self._ask(group, step, tellers)
            size = 1 if refused else min(2 * size, self.site.bmc.at_once)
            if left:
                until = time.monotonic() + self.site.bmc.pause
                while time.monotonic() < until and not self.stop():
                    time.sleep(POLL_SECONDS)
                if self.stop():
                    self.end_reason = "interrupted"
        self._leave_unanswered()

    def _ask(self, group: Sequence[str], step: Step, tellers: Collection[str]) -> bool:
        """Ask the BMCs of the nodes *group* at once; return whether one refused us."""
        began, started = time.monotonic(), datetime.now(UTC)
        tasks = {node: self._make_task(node, step, tellers) for node in group}
        seconds = max(access.seconds for access in map(self.accesses.__getitem__, group))
        answers = self.executor.run(tasks, seconds + WORKER_SECONDS)
        self.executor.close()  # each has a password in its memory
        any_refused = False
        for node in group:
            own = plan_step(self.site, node)  # its limits may be its own
            result = self._conclude(node, own, answers[node], time.monotonic() - began)
            run = build_run(node, result, started)
            self.found[node] = run
            refused = result.cause is Cause.DENIED
            any_refused |= refused
            self._refusals = self._refusals + 1 if refused else 0
            if self._refusals == MAX_REFUSALS and not self.end_reason:
                self.end_reason = (
                    f"{MAX_REFUSALS} BMCs in a row refuse the password, so the round ends: "
                    f"{result.reason}"
                )
            if not answers[node].items and result.verdict is Verdict.ERROR:
                self._kept.append(run)
            else:
                self._leave(run)
        return any_refused

    def _make_task(self, node: str, step: Step, tellers: Collection[str]) -> ReadBmc:
        marks = self.store.load_carry_overs(node).get(step.name, ())
        context = Context(
            node=node,
            device=Device("cpu", "node", "the BMC"),
            peers=(),
            inventory=Inventory(),
            previous=None if self.accept_parts else Inventory(),
            scratch=Path(os.devnull),
            shared=Path(os.devnull),
            seed=0,
            carry_overs=tuple(
                replace(mark, name=mark.name.removeprefix(MARK_PREFIX))
                for mark in marks
                if mark.name.startswith(MARK_PREFIX)
            ),
        )
        return ReadBmc(
            name=step.name,
            packages=self.site.packages,
            params=msgspec.to_builtins(step.params),
            context=context,
            access=self.accesses[node],
            is_log_reported=node in tellers,
        )

    def _conclude(self, node: str, step: Step, answer: Answer, seconds: float) -> Result:
        items = tuple(
            replace(item, name=MARK_PREFIX + item.name) if isinstance(item, CarryOver) else item
            for item in answer.items
        )
        # A library that crashes may quote anything.
        reason = answer.outcome.reason.replace(self.accesses[node].password, "…")
        outcome = replace(answer.outcome, reason=reason)
        past = self.store.make_past_lookup(node, Source.BMC, step.name)
        named = {"node": Answer(items=items, outcome=outcome)}
        return conclude(step, named, Inventory(), past, seconds)

    def _leave(self, run: Run) -> None:
        owner = look_up_uid(self.site.fleet.user)
        try:
            spool.deposit(run, Path(self.site.fleet.spool), self.sign(run), owner=owner)
        except StoreError as exc:  # of this node's folder: the others have their own
            self.mishaps.append(str(exc))
            self.say(str(exc))
        if run.verdict >= Verdict.WARN:
            self.say(f"{run.node}: {run.verdict.value}: {run.results[0].reason}")

    def _leave_unanswered(self) -> None:
        """Leave the runs without an answer, unless so many are alike that it is reported once."""
        by_cause: dict[Cause, list[Run]] = {}
        for run in self._kept:
            by_cause.setdefault(run.results[0].cause, []).append(run)
        for runs in by_cause.values():
            if len(runs) >= max(MIN_ALIKE, ALIKE_SHARE * len(self.found)):
                self.say(
                    f"{len(runs)} of {len(self.found)} BMCs cannot be read, so their network or "
                    f"[bmc] is at fault, and their nodes get no run: {runs[0].results[0].reason}"
                )
                continue
            for run in runs:
                self._leave(run)


def plan_step(site: Site, node: str = "") -> Step:
    """Plan the check of a chassis by the limits of *site*, those of *node* among them."""
    suite = Suite(
        name=Source.BMC,
        summary="the chassis of a node, as reported by its BMC over the network",
        budget=site.bmc.seconds + WORKER_SECONDS,
        check=(SuiteEntry(name=CHECK),),
    )
    return make_plan(suite, site, node=node).steps[0]


def list_log_tellers(store: Store, now: datetime) -> Collection[str]:
    """List the nodes that report the event log of their BMC themselves."""
    judged = (Verdict.PASS, Verdict.WARN, Verdict.FAIL)
    return {
        result.node
        for result in store.list_last_results(now - OWN_LOG_AGE, now)
        if result.check == CHECK and result.suite != Source.BMC and result.verdict in judged
    }


def build_run(node: str, result: Result, started: datetime) -> Run:
    """Build the run of *node* with its one *result*."""
    return Run(
        id=make_run_id(started),
        node=node,
        suite=Source.BMC,
        started=started,
        seconds=result.seconds,
        verdict=verdict_of((result,)),
        complete=True,
        passive=True,
        inventory=Inventory(),
        results=(result,),
        versions=collect_versions(),
    )


def summarize_round(found: Iterable[Run]) -> str:
    """Count the verdicts of a round."""
    verdicts = [run.verdict for run in found]
    counts = [f"{verdicts.count(v)} {v.value}" for v in Verdict if v in verdicts]
    return f"{format_count(len(verdicts), 'BMC')} read: {', '.join(counts) or 'none'}"
