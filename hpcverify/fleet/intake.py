"""
From a node's document to what the controller makes of the node.

A document is kept first and judged then, each once: what was killed in between finds
it in the spool again. All that came together is judged together, so that the breaker
sees a bad night before anybody is acted on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from hpcverify.config import Site
from hpcverify.model import Run
from hpcverify.quarantine.breaker import doubted, held_back, trips
from hpcverify.quarantine.evidence import Evidence, evidence_of
from hpcverify.quarantine.ledger import Ledger
from hpcverify.quarantine.life import Hold, Node
from hpcverify.quarantine.policy import FAILED, after
from hpcverify.store import Store

DAY = timedelta(days=1).total_seconds()
HOUR = timedelta(hours=1).total_seconds()


@dataclass(frozen=True)
class Judged:
    """A run, and what it made of its node."""

    evidence: Evidence
    before: Node
    after: Node

    @property
    def newly_held(self) -> bool:
        """Whether the node would be held for what it is, and was not."""
        return _is_blamed(self.after) and not _is_blamed(self.before)


@dataclass(frozen=True)
class Intake:
    """Takes documents in: into the *store* as they are, into the *ledger* as judged."""

    site: Site
    store: Store
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def take(self, runs: Iterable[Run], eligible: int) -> list[Judged]:
        """Keep and judge *runs*, of a fleet of *eligible* nodes; each once."""
        found = [self._kept(run) for run in runs if not self.ledger.is_judged(run.id)]
        judged = self._judge(_each_ticket_once(found), eligible)
        for each in judged:
            self._record(each)
        return judged

    def _kept(self, run: Run) -> Evidence:
        ticket = self.ledger.ticket_of(run.node, run.token)
        # Who reads the store has no business with the token.
        if not self.store.document(run.id).exists():
            self.store.keep(replace(run, token=""))
        return evidence_of(run, ticket, self.site, self.clock())

    def _judge(self, found: Sequence[Evidence], eligible: int) -> list[Judged]:
        """Judge *found*, with the brakes on that all of it together calls for."""
        policy = self.site.quarantine
        since = self.clock() - policy.window_hours * HOUR
        outcomes = self.ledger.outcomes(since)
        for evidence in found:
            for check, failed in evidence.ran.items():
                outcomes.setdefault(check, {})[evidence.node] = failed
        doubts = doubted(outcomes, policy)
        tripped = self.ledger.tripped()
        judged = self._one_by_one(found, doubts, tripped)
        new = {each.after.name for each in judged if each.newly_held}
        why = "" if tripped else trips(self.ledger.holds(since), new, eligible, policy)
        if not why:
            return judged
        self.ledger.trip(why)
        return self._one_by_one(found, doubts, why)

    def _one_by_one(
        self, found: Iterable[Evidence], doubts: Mapping[str, str], tripped: str
    ) -> list[Judged]:
        """Judge *found* in sequence: what a run says depends on those before it."""
        now, policy = self.clock(), self.site.quarantine
        nodes = self.ledger.nodes()
        judged: list[Judged] = []
        brake = f"the breaker tripped: {tripped}" if tripped else ""
        for evidence in found:
            before = nodes.get(evidence.node, Node(name=evidence.node))
            past = self.ledger.quarantines(before.name, now - policy.lemon_days * DAY)
            node = after(before, evidence, self.site, now, past)
            if why := _in_doubt(evidence, node, doubts) or brake:
                node = held_back(before, node, why)
            nodes[node.name] = node
            judged.append(Judged(evidence, before, node))
        return judged

    def _record(self, each: Judged) -> None:
        changed = each.after.state is not each.before.state
        moved = changed or each.newly_held
        told = "verified" if each.evidence.conclusive else "cut short"
        told *= bool(each.evidence.ticket)  # a hook's run moves nothing
        what = each.after.state.value if moved else told
        if moved and not each.after.enforced and each.evidence.failures:
            what = f"{what} (observed)"
        self.ledger.judge(
            each.after,
            each.evidence.run,
            each.evidence.ran,
            what,
            f"run {each.evidence.run}: {each.after.reason or each.after.verdict}",
            ticket=each.evidence.ticket,
            held=each.newly_held,
        )


def _each_ticket_once(found: Iterable[Evidence]) -> list[Evidence]:
    """Leave its ticket to the first run that has it: a second one is of nobody."""
    used: set[int] = set()
    once: list[Evidence] = []
    for each in found:
        once.append(replace(each, ticket=0) if each.ticket in used else each)
        used.add(each.ticket)
    return once


def _is_blamed(node: Node) -> bool:
    """Whether *node* is out of service, and not for its turn alone."""
    return node.wanted is not Hold.NONE and not node.kept_free


def _in_doubt(evidence: Evidence, node: Node, doubts: Mapping[str, str]) -> str:
    """Say why what failed is not believed, if only checks failed that fail widely."""
    failed = {f.check for f in evidence.failures}
    if not failed and node.state in FAILED:  # for what it failed before
        failed = set(node.checks)
    if not failed.issubset(doubts):
        return ""
    return "; ".join(doubts[check] for check in sorted(failed))
