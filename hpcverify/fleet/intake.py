"""
From what was found of a node to the node's new state.

A run's document is first stored, then judged, each once: a controller killed in between finds
it in the spool again. The faults of another source have no document: they are judged, and kept
in the ledger, in one write. All that arrived together is judged together, so that the breaker
sees a bad night before any node is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from math import inf

from msgspec.structs import replace

from hpcverify.fleet.breaker import Doubt, explain_trip, find_doubts, list_out, select_doubts
from hpcverify.fleet.evidence import Evidence, FaultReport, extract_evidence, weigh_faults
from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.states import DAY_S, FAILED_STATES, HOUR_S, Hold, Node
from hpcverify.fleet.transitions import apply_evidence, restrain_hold
from hpcverify.model import Run, Source
from hpcverify.plan.config import Site
from hpcverify.records.store import Store

BATCH_RUNS = 50
"""Runs that are kept together: what waits in memory, and is read again after a kill."""


@dataclass(frozen=True)
class JudgedRun:
    """What a run or another source found, and its node before and after that was judged."""

    evidence: Evidence
    before: Node
    after: Node

    @property
    def newly_held(self) -> bool:
        """Whether the node is to be held because of this."""
        return _is_held(self.after) and not _is_held(self.before)


@dataclass(frozen=True)
class Intake:
    """Keeps documents in the *store*, and what was judged from them in the *ledger*."""

    site: Site
    store: Store
    ledger: Ledger
    clock: Callable[[], float] = time.time

    def take_in(self, runs: Iterable[Run], eligible: int) -> list[JudgedRun]:
        """Keep and judge *runs*, each once, in a fleet of *eligible* nodes."""
        evidence: list[Evidence] = []
        rest = iter(runs)
        while batch := list(islice(rest, BATCH_RUNS)):
            known = self.ledger.find_judged(run.id for run in batch)
            new = [run for run in batch if run.id not in known]
            # The token is secret, and the store is not.
            self.store.save_new(replace(run, token="") for run in new)
            evidence += map(self._extract, new)
        return self._conclude(evidence, eligible)

    def take_faults(self, reports: Iterable[FaultReport], eligible: int) -> list[JudgedRun]:
        """Judge what other sources than runs found, each once, in a fleet of *eligible* nodes."""
        by_id: dict[str, FaultReport] = {}
        for report in reports:  # an id as a run has, by whose date the ledger forgets it
            mark = self.ledger.make_mark(report.source, report.node, *report.key)
            by_id[f"{datetime.fromtimestamp(report.at, UTC):%Y%m%d-%H%M%S}-{mark}"] = report
        known, now = self.ledger.find_judged(by_id), self.clock()
        forgotten = self.ledger.list_forgotten()
        evidence: list[Evidence] = []
        for id_, report in by_id.items():
            if id_ not in known and report.at > forgotten.get(report.node, -inf):
                ticket = self.ledger.find_ticket(report.node, report.token)
                evidence.append(weigh_faults(report, id_, ticket, self.site, now))
        return self._conclude(evidence, eligible)

    def _conclude(self, evidence: Iterable[Evidence], eligible: int) -> list[JudgedRun]:
        judged = self._judge(_drop_duplicate_tickets(evidence), eligible)
        self.ledger.record_judgments(map(_build_judgment, judged))
        return judged

    def _extract(self, run: Run) -> Evidence:
        ticket = self.ledger.find_ticket(run.node, run.token)
        # A node can write into its folder what it likes, and would have its BMC take all back.
        by_bmc = run.suite == Source.BMC and self.ledger.has_signed(run)
        source = Source.BMC if by_bmc else Source.RUN
        return extract_evidence(run, ticket, self.site, self.clock(), source)

    def _judge(self, found: Sequence[Evidence], eligible: int) -> list[JudgedRun]:
        policy = self.site.quarantine
        now = self.clock()
        doubted = find_doubts(self.ledger, self.store, policy, now, found)
        doubts = {doubt.check: doubt for doubt in doubted}
        tripped = self.ledger.read_trip_reason()
        judged = self._judge_in_sequence(found, doubts, tripped)
        new = {run.after.name for run in judged if run.newly_held}
        held = self.ledger.list_newly_held(now - policy.window_hours * HOUR_S)
        after = self.ledger.list_nodes() | {run.after.name: run.after for run in judged}
        out = list_out(after.values(), now) - new
        if tripped or not (why := explain_trip(held, new, out, eligible, policy)):
            return judged
        self.ledger.trip(why)
        return self._judge_in_sequence(found, doubts, why)

    def _judge_in_sequence(
        self, found: Iterable[Evidence], doubts: Mapping[str, Doubt], tripped: str
    ) -> list[JudgedRun]:
        """Judge *found* one after another: each verdict depends on those before."""
        now, policy = self.clock(), self.site.quarantine
        nodes = self.ledger.list_nodes()
        judged: list[JudgedRun] = []
        brake = f"the breaker tripped: {tripped}" if tripped else ""
        for evidence in found:
            before = nodes.get(evidence.node, Node(name=evidence.node))
            past = self.ledger.count_quarantines(before.name, now - policy.repeat_days * DAY_S)
            node = apply_evidence(before, evidence, self.site, now, past)
            of_node = select_doubts(doubts, node.name)
            if why := _explain_doubt(evidence, node, of_node) or brake:
                node = restrain_hold(before, node, why)
            nodes[node.name] = node
            judged.append(JudgedRun(evidence, before, node))
        return judged


def _build_judgment(each: JudgedRun) -> LedgerChange:
    changed = each.after.state is not each.before.state
    moved = changed or each.newly_held
    what = ""  # a hook's run that changes nothing gets no line
    if moved:
        what = each.after.state.value
    elif each.evidence.ticket:
        what = "verified" if each.evidence.complete else "incomplete"
    if moved and not each.after.enforced and each.evidence.failures:
        what = f"{what} (observed)"
    origin = f"run {each.evidence.run}" if each.evidence.run else each.evidence.source.value
    return LedgerChange(
        node=each.after,
        run=each.evidence.id,
        outcomes=each.evidence.failed_by_check,
        what=what,
        detail=f"{origin}: {each.after.full_reason or each.after.verdict}",
        ticket=each.evidence.ticket,
        held=each.newly_held,
        parts=each.evidence.parts,
        evidence=each.evidence,
        closes=_choose_closed_sources(each),
    )


def _choose_closed_sources(judged: JudgedRun) -> frozenset[Source]:
    """Choose the sources whose findings this may close: what was ordered all, a BMC its own."""
    evidence = judged.evidence
    if evidence.complete and evidence.ticket > judged.before.not_before_ticket:
        return frozenset(Source)
    by_bmc = evidence.complete and evidence.source is Source.BMC
    return frozenset({Source.BMC}) if by_bmc else frozenset()


def _drop_duplicate_tickets(found: Iterable[Evidence]) -> list[Evidence]:
    """Leave a ticket to the first run that has it."""
    used: set[int] = set()
    once: list[Evidence] = []
    for evidence in found:
        once.append(replace(evidence, ticket=0) if evidence.ticket in used else evidence)
        used.add(evidence.ticket)
    return once


def _is_held(node: Node) -> bool:
    """Whether *node* is out of service, and not only for one verification."""
    return node.desired_hold is not Hold.NONE and not node.awaits_verification


def _explain_doubt(evidence: Evidence, node: Node, doubts: Mapping[str, str]) -> str:
    """Say why the failure is not believed, if only checks in doubt failed."""
    if evidence.source is Source.FABRIC:  # see `Evidence.failed_by_check`
        return ""
    failed = {*evidence.failures}
    if not failed and node.state in FAILED_STATES:  # for what it failed before
        failed = set(node.checks)
    if not failed.issubset(doubts):
        return ""
    return "; ".join(doubts[check] for check in sorted(failed))
