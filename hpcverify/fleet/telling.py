"""
Tells the site's own program what changed: ``[quarantine] on_transition``.

The program is started once for each transition, with one JSON object on its standard
input. The ledger queues a transition in the write that makes the change, and it leaves
the queue when the program ended with 0. So none is lost, whenever the controller is
killed; one may be told twice, under the same ``number``.

The program cannot stop the controller. It has `DEADLINE_S` to end, and a turn starts
none after `TURN_S`. The first failure ends the telling of that turn; the next turn
begins with those that were tried least, so that one transition that the program cannot
take keeps no other back. What is a day old is given up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify import documents
from hpcverify.actions import affected
from hpcverify.check import Unable
from hpcverify.errors import ConfigError, StoreError
from hpcverify.model import Remedy, Run, Verdict
from hpcverify.processes import run_tool
from hpcverify.quarantine.ledger import Ledger
from hpcverify.quarantine.transition import Transition, TransitionKind
from hpcverify.store import Store
from hpcverify.trust import refuse_if_others_can_change

DEADLINE_S = 10.0
"""For one start of the program."""
TURN_S = 30.0
"""After which a turn starts it no more: an operator may wait for the turn to end."""
REST_S = 60.0
"""Between a failure and the next try: a sweep may take a turn every other second."""
KEPT_S = 86400.0
"""How long a transition is kept that nobody could be told of."""
MOST = 10_000
"""Transitions that are looked at in one turn."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
"""All that the program has of ours: the rest may hold secrets, or sway it."""


class AccusedPart(Struct, frozen=True, kw_only=True):
    """A part that the evidence speaks against."""

    id: str
    """What survives a reseat: a UUID, a serial number, an address; or "node"."""
    label: str
    """What a person calls it."""
    remedy: Remedy


class TransitionMessage(Struct, frozen=True, kw_only=True):
    """What the program reads. Fields are added, never renamed."""

    event: TransitionKind
    number: int
    """The same if it is told again."""
    time: str
    """When it changed: UTC, ISO 8601."""
    node: str
    before: str
    after: str
    enforced: bool
    """Whether it is acted on; a site that observes is told too."""
    reason: str
    part: str
    """The labels of `parts`, for people."""
    parts: tuple[AccusedPart, ...]
    remedy: Remedy
    """The strongest that the evidence calls for."""
    checks: tuple[str, ...]
    run: str
    by: str


@dataclass
class Teller:
    """Tells *program* what the *ledger* has queued; empty: there is none."""

    program: str
    ledger: Ledger
    store: Store
    say: Callable[[str], None]
    clock: Callable[[], float] = time.time
    deadline: float = DEADLINE_S
    room: float = TURN_S
    _rests_until: float = -math.inf

    def tell(self) -> None:
        """Tell what is due; what goes wrong is one line, and never an error."""
        if not self.program:
            self.ledger.give_up_telling(math.inf)
            return
        began = time.monotonic()
        if began < self._rests_until:
            return
        if lost := self.ledger.give_up_telling(self.clock() - KEPT_S):
            them = "1 transition was" if lost == 1 else f"{lost} transitions were"
            self.say(f"{them} given up: {self.program} did not take it for a day")
        for number, changed in self.ledger.untold(MOST):
            if time.monotonic() - began > self.room:
                return
            if why := self._failure(message(number, changed, self._evidence(changed))):
                self.ledger.not_told_of(number)
                self.say(f"on_transition: {why}; the next turn tries again")
                self._rests_until = time.monotonic() + REST_S
                return
            self.ledger.told_of(number)

    def _failure(self, said: TransitionMessage) -> str:
        """Start the program on *said*; say what went wrong, if something did."""
        try:
            refuse_if_others_can_change(Path(self.program))
            done = run_tool(
                [self.program],
                timeout=self.deadline,
                cwd=Path("/"),
                env=ENVIRONMENT,
                stdin=msgspec.json.encode(said) + b"\n",
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

    def _evidence(self, changed: Transition) -> Run | None:
        """Read the run that *changed* rests on, if it can be read."""
        if not (changed.run and changed.checks):
            return None
        try:
            return documents.read(self.store.document(changed.run))
        except StoreError:  # the reason stands in the transition all the same
            return None


def message(number: int, changed: Transition, run: Run | None) -> TransitionMessage:
    """Say what *changed*, with the parts that *run* speaks against."""
    parts = tuple(accused(run, changed.checks)) if run else ()
    return TransitionMessage(
        event=changed.kind,
        number=number,
        time=f"{datetime.fromtimestamp(changed.at, UTC):%Y-%m-%dT%H:%M:%SZ}",
        node=changed.node,
        before=changed.before,
        after=changed.after,
        enforced=changed.enforced,
        reason=changed.reason,
        part=", ".join(part.label for part in parts),
        parts=parts,
        remedy=max(
            (part.remedy for part in parts), key=[*Remedy].index, default=Remedy.NONE
        ),
        checks=changed.checks,
        run=changed.run,
        by=changed.by,
    )


def accused(run: Run, checks: Collection[str]) -> Iterator[AccusedPart]:
    """Yield the parts that failed one of *checks* in *run*, each once."""
    for part in affected(run):
        if part.verdict is Verdict.FAIL and not {*checks}.isdisjoint(part.checks):
            yield AccusedPart(id=part.where, label=part.label, remedy=part.remedy)
