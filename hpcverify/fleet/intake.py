"""
From a node's document to what the controller makes of the node.

A document is kept first and judged then, each once: what was killed in between finds
it in the spool again. All that came together is judged together, so that the breaker
sees a bad night before anybody is acted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from hpcverify.config import Site
from hpcverify.model import Run
from hpcverify.quarantine.breaker import doubted, trips
from hpcverify.quarantine.ledger import Ledger, Ticket
from hpcverify.quarantine.life import Hold, Node
from hpcverify.quarantine.policy import Evidence, after, evidence_of
from hpcverify.store import Store

DAY = timedelta(days=1).total_seconds()
HOUR = timedelta(hours=1).total_seconds()


@dataclass(frozen=True)
class Judged:
    """A run, and what it made of its node."""

    evidence: Evidence
    before: Node
    after: Node
    ran: Mapping[str, bool]
    """Which checks it ran, and whether they failed."""

    @property
    def newly_held(self) -> bool:
        """Whether the node would be held, and was not."""
        return self.before.wanted is Hold.NONE and self.after.wanted is not Hold.NONE


@dataclass(frozen=True)
class Intake:
    """Takes documents in: into the *store* as they are, into the *ledger* as judged."""

    site: Site
    store: Store
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def take(self, runs: Iterable[Run], eligible: int) -> list[Judged]:
        """Keep and judge *runs*, of a fleet of *eligible* nodes; each once."""
        judged: list[Judged] = []
        nodes = self.ledger.nodes()
        for run in runs:
            if self.ledger.is_judged(run.id):
                continue
            ticket = self.ledger.ticket_of(run.node, run.token)
            # Who reads the store has no business with the token.
            if not self.store.document(run.id).exists():
                self.store.keep(replace(run, token=""))
            node = nodes.get(run.node, Node(name=run.node))
            judged.append(self._judge(run, ticket, node))
            nodes[run.node] = judged[-1].after
        allowed = self._braked(judged, eligible)
        for each in allowed:
            self._record(each)
        return allowed

    def _judge(self, run: Run, ticket: Ticket | None, node: Node) -> Judged:
        now, policy = self.clock(), self.site.quarantine
        evidence = evidence_of(run, ticket, self.site, now)
        past = self.ledger.quarantines(node.name, now - policy.lemon_days * DAY)
        failed = {f.check for f in evidence.failures}
        counts = evidence.ticket and evidence.conclusive
        ran = {c: c in failed for c in (*evidence.passed, *failed)} if counts else {}
        return Judged(
            evidence=evidence,
            before=node,
            after=after(node, evidence, self.site, now, past),
            ran=ran,
        )

    def _braked(self, judged: list[Judged], eligible: int) -> list[Judged]:
        """Leave in service who would be held by a check in doubt, or by a bad night."""
        policy = self.site.quarantine
        since = self.clock() - policy.window_hours * HOUR
        outcomes = self.ledger.outcomes(since)
        for each in judged:
            for check, failed in each.ran.items():
                outcomes.setdefault(check, {})[each.after.name] = failed
        doubts = doubted(outcomes, policy)
        judged = [_spared(each, doubts) for each in judged]
        why = self.ledger.tripped()
        if not why:
            new = {each.after.name for each in judged if each.newly_held}
            why = trips(self.ledger.holds(since), new, eligible, policy)
            if why:
                self.ledger.trip(why)
        return [_left_alone(each) if why else each for each in judged]

    def _record(self, each: Judged) -> None:
        changed = each.after.state is not each.before.state
        moved = changed or each.newly_held
        told = "verified" if each.evidence.ticket else ""  # a hook's run moves nothing
        what = each.after.state.value if moved else told
        if moved and not each.after.enforced and each.evidence.failures:
            what = f"{what} (observed)"
        self.ledger.judge(
            each.after,
            each.evidence.run,
            each.ran,
            what,
            f"run {each.evidence.run}: {each.after.reason or each.after.verdict}",
            ticket=each.evidence.ticket,
            held=each.newly_held,
        )


def _spared(each: Judged, doubts: Mapping[str, str]) -> Judged:
    """Do not hold a node only for checks that fail nearly everywhere."""
    failed = {f.check for f in each.evidence.failures}
    if not each.newly_held or not failed or not failed.issubset(doubts):
        return each
    told = "; ".join(doubts[check] for check in sorted(failed))
    spared = _left_alone(each)
    reason = f"{spared.after.reason} (not acted on: {told})"
    return Judged(
        spared.evidence, spared.before, replace(spared.after, reason=reason), spared.ran
    )


def _left_alone(each: Judged) -> Judged:
    """Let the state say what was found, and act on nobody who was in service."""
    if not each.newly_held:
        return each
    return Judged(
        each.evidence, each.before, replace(each.after, enforced=False), each.ran
    )
