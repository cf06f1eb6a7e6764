"""
Runs the site's own program at each change: ``[quarantine] on_transition``.

The program is started once for each transition, with one JSON object on its standard
input. The ledger queues the event in the write that makes the change; it leaves the queue
when the program exits with 0. So none is lost, whenever the controller is killed;
one may be delivered twice, with the same ``number``.

The program cannot stop the controller. It has `PROGRAM_TIMEOUT_S` to end, and a cycle
starts none after `TIME_BUDGET_S`. The first failure ends the deliveries of that cycle.
The next one begins with those that were tried least, so that a transition that the
program cannot handle does not block the others. After a day it is dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import Unable
from hpcverify.errors import ConfigError, StoreError
from hpcverify.events.event import EventKind
from hpcverify.fleet.evidence import OpenFault, build_fault
from hpcverify.fleet.ledger import Ledger, PendingTransition
from hpcverify.model import Fault, Remedy, Run, Verdict
from hpcverify.processes import run_tool
from hpcverify.records import documents
from hpcverify.records.store import Store
from hpcverify.summary.faults import (
    choose_deciding,
    group_by_part,
    list_checks,
    list_run_faults,
    recall_gone_parts,
)
from hpcverify.summary.printable import escape_json
from hpcverify.trust import refuse_if_others_can_change

PROGRAM_TIMEOUT_S = 10.0
"""How long one start of the program may take."""
TIME_BUDGET_S = 30.0
"""After which a cycle no longer starts it: an operator may be waiting for the cycle."""
RETRY_PAUSE_S = 60.0
"""Between a failure and the next try: a sweep may take a cycle every other second."""
EXPIRY_S = 86400.0
"""How long a transition is kept that could not be delivered."""
MAX_TRANSITIONS = 10_000
"""In one cycle."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
"""The program's whole environment: ours may hold secrets, or influence it."""


TransitionKind = Literal["node", "breaker", "check"]
TRANSITION_KINDS: dict[EventKind, TransitionKind] = {
    EventKind.NODE_CHANGED: "node",
    EventKind.BREAKER_TRIPPED: "breaker",
    EventKind.BREAKER_RESET: "breaker",
    EventKind.CHECK_DOUBTED: "check",
    EventKind.CHECK_TRUSTED: "check",
}
"""What the program calls the events that it gets."""


class FailedPart(Struct, frozen=True, kw_only=True):
    """A part that failed."""

    id: str
    """What survives a reseat: a UUID, a serial number, an address; or "node"."""
    label: str
    """Its name for people."""
    remedy: Remedy
    faults: tuple[Fault, ...]
    """What it failed, the gravest first, as in the run document, without the evidence."""


class TransitionMessage(Struct, frozen=True, kw_only=True):
    """What the program reads. Fields are added, never renamed."""

    event: TransitionKind
    number: int
    """The same if it is delivered again."""
    time: str
    """When it changed: UTC, ISO 8601."""
    node: str
    before: str
    after: str
    enforced: bool
    """Whether it is acted on; a site that only observes gets it too."""
    reason: str
    part: str
    """The labels of `parts`, for people."""
    parts: tuple[FailedPart, ...]
    remedy: Remedy
    """The strongest that the evidence calls for."""
    checks: tuple[str, ...]
    run: str
    by: str


@dataclass
class TransitionNotifier:
    """Delivers what the *ledger* has queued to *program*; empty: there is none."""

    program: str
    ledger: Ledger
    store: Store
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    timeout: float = PROGRAM_TIMEOUT_S
    time_budget: float = TIME_BUDGET_S
    _paused_until: float = -math.inf

    def notify(self) -> None:
        """Deliver what is due; a failure is one line, never an error."""
        if not self.program:
            self.ledger.drop_old_transitions(math.inf)
            return
        began = time.monotonic()
        if began < self._paused_until:
            return
        if lost := self.ledger.drop_old_transitions(self.clock() - EXPIRY_S):
            them = "1 transition was" if lost == 1 else f"{lost} transitions were"
            self.say(f"{them} dropped: {self.program} has failed for a day")
        for pending in self.ledger.list_pending_transitions(MAX_TRANSITIONS):
            if time.monotonic() - began > self.time_budget:
                return
            number = pending.event.number
            run = self._read_run(pending.change.run)
            faults = () if run else self.ledger.list_outer_faults(pending.event.node)
            message = build_message(pending, run, faults)
            if why := self._run_program(message):
                self.ledger.count_failed_delivery(number)
                self.say(f"on_transition: {why}; the next cycle tries again")
                self._paused_until = time.monotonic() + RETRY_PAUSE_S
                return
            self.ledger.remove_transition(number)

    def _run_program(self, message: TransitionMessage) -> str:
        try:
            refuse_if_others_can_change(Path(self.program))
            done = run_tool(
                [self.program],
                timeout=self.timeout,
                cwd=Path("/"),
                env=ENVIRONMENT,
                stdin=escape_json(msgspec.json.encode(message)) + b"\n",
            )
        except (ConfigError, Unable) as exc:
            return str(exc)
        except OSError as exc:
            return f"{self.program} cannot be run: {exc.strerror}"
        if done.returncode == 0:
            return ""
        # The last line: a script's traceback ends in what went wrong.
        lines = done.stderr.decode(errors="replace").strip().split("\n")
        return f"{self.program}: {lines[-1] or f'exit status {done.returncode}'}"

    def _read_run(self, run: str) -> Run | None:
        if not run:
            return None
        try:
            return documents.read(self.store.get_document_path(run))
        except StoreError:  # the transition has the reason without it
            return None


def build_message(
    pending: PendingTransition, run: Run | None, faults: Iterable[OpenFault] = ()
) -> TransitionMessage:
    """Describe what changed, with the parts that failed in *run*, or have open *faults*."""
    event, change = pending.event, pending.change
    checks = change.checks or tuple(filter(None, (change.subject,)))
    outer = (
        FailedPart(
            id=fault.part,
            label=fault.label,
            remedy=fault.remedy,
            faults=(build_fault(fault.check, fault.code, fault.text),),
        )
        for fault in faults
        if fault.check in checks
    )
    parts = tuple(list_failed_parts(run, checks) if run else outer)
    return TransitionMessage(
        event=TRANSITION_KINDS[event.kind],
        number=event.number,
        time=f"{event.time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        node=event.node,
        before=change.before,
        after=change.after,
        enforced=change.enforced,
        reason=pending.reason,
        part=", ".join(part.label for part in parts),
        parts=parts,
        remedy=max((part.remedy for part in parts), key=[*Remedy].index, default=Remedy.NONE),
        checks=checks,
        run=change.run,
        by=pending.by,
    )


def list_failed_parts(run: Run, checks: Collection[str]) -> Iterator[FailedPart]:
    """Yield the parts that failed one of *checks* in *run*, each once."""
    inventory = recall_gone_parts(run)
    for part_id, faults in group_by_part(list_run_faults(run), inventory).items():
        deciding = choose_deciding(faults)
        if faults[0].verdict is Verdict.FAIL and not {*checks}.isdisjoint(list_checks(deciding)):
            yield FailedPart(
                id=part_id,
                label=inventory.find_label(part_id),
                remedy=faults[0].remedy,
                faults=tuple(replace(fault, evidence={}) for fault in deciding),
            )
