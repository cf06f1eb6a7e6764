"""
From a node's document to the node's new state.

A document is first stored, then judged, each once: a controller killed in between finds
it in the spool again. All that arrived together is judged together, so that the breaker
sees a bad night before any node is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from hpcverify.fleet.breaker import explain_trip, find_doubts, list_out
from hpcverify.fleet.evidence import Evidence, extract_evidence
from hpcverify.fleet.finding_log import RunReport
from hpcverify.fleet.ledger import Ledger, LedgerChange
from hpcverify.fleet.run_report import build_report
from hpcverify.fleet.states import DAY_S, FAILED_STATES, HOUR_S, Hold, Node
from hpcverify.fleet.transitions import apply_evidence, restrain_hold
from hpcverify.model import BMC_SUITE, FABRIC_SUITE, Run
from hpcverify.plan.config import Site
from hpcverify.records.store import Store

ReportedEvidence = tuple[Evidence, RunReport]
"""What a run says of the state of its node, and of its findings."""
BATCH_RUNS = 50
"""Runs that are kept together: what waits in memory, and is read again after a kill."""


@dataclass(frozen=True)
class JudgedRun:
    """A run, and its node before and after it was judged."""

    evidence: Evidence
    report: RunReport
    before: Node
    after: Node

    @property
    def newly_held(self) -> bool:
        """Whether the node is to be held because of this run."""
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
        evidence: list[ReportedEvidence] = []
        rest = iter(runs)
        while batch := list(islice(rest, BATCH_RUNS)):
            evidence += self._keep_runs(batch)
        judged = self._judge(_drop_duplicate_tickets(evidence), eligible)
        self.ledger.record_judgments(map(_build_judgment, judged))
        return judged

    def _keep_runs(self, runs: Sequence[Run]) -> list[ReportedEvidence]:
        known = self.ledger.find_judged(run.id for run in runs)
        new = [run for run in runs if run.id not in known]
        # The token is secret, and the store is not.
        self.store.save_new(replace(run, token="") for run in new)
        return [self._extract(run) for run in new]

    def _extract(self, run: Run) -> ReportedEvidence:
        ticket = self.ledger.find_ticket(run.node, run.token)
        # A node can write into its folder what it likes, and would have its BMC take all back.
        by_bmc = run.suite == BMC_SUITE and self.ledger.has_signed(run)
        now = self.clock()
        evidence = extract_evidence(run, ticket, self.site, now, by_bmc=by_bmc)
        return evidence, build_report(run, self.site, now, ordered=bool(evidence.ticket))

    def _judge(self, found: Sequence[ReportedEvidence], eligible: int) -> list[JudgedRun]:
        """Judge *found*, with the brakes that all of it together calls for."""
        policy = self.site.quarantine
        now = self.clock()
        answers = [(evidence.node, evidence.failed_by_check) for evidence, _ in found]
        doubted = find_doubts(self.ledger, self.store, policy, now, answers)
        doubts = {doubt.check: doubt.why for doubt in doubted}
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
        self, found: Iterable[ReportedEvidence], doubts: Mapping[str, str], tripped: str
    ) -> list[JudgedRun]:
        """Judge *found* one after another: each verdict depends on those before."""
        now, policy = self.clock(), self.site.quarantine
        nodes = self.ledger.list_nodes()
        judged: list[JudgedRun] = []
        brake = f"the breaker tripped: {tripped}" if tripped else ""
        for evidence, report in found:
            before = nodes.get(evidence.node, Node(name=evidence.node))
            past = self.ledger.count_quarantines(before.name, now - policy.repeat_days * DAY_S)
            node = apply_evidence(before, evidence, self.site, now, past)
            if why := _explain_doubt(evidence, node, doubts) or brake:
                node = restrain_hold(before, node, why)
            nodes[node.name] = node
            judged.append(JudgedRun(evidence, report, before, node))
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
    return LedgerChange(
        node=each.after,
        run=each.evidence.run,
        outcomes=each.evidence.failed_by_check,
        what=what,
        detail=f"run {each.evidence.run}: {each.after.full_reason or each.after.verdict}",
        ticket=each.evidence.ticket,
        held=each.newly_held,
        parts=each.evidence.parts,
        report=replace(each.report, closes=_choose_closed_suites(each)),
    )


def _choose_closed_suites(judged: JudgedRun) -> frozenset[str] | None:
    """Choose the suites whose findings a run may close, as it may clear its node; None: all."""
    evidence = judged.evidence
    if evidence.complete and evidence.ticket > judged.before.not_before_ticket:
        return None
    return frozenset({BMC_SUITE}) if evidence.complete and evidence.by_bmc else frozenset()


def _drop_duplicate_tickets(found: Iterable[ReportedEvidence]) -> list[ReportedEvidence]:
    """Leave a ticket to the first run that has it."""
    used: set[int] = set()
    once: list[ReportedEvidence] = []
    for evidence, report in found:
        again = evidence.ticket in used
        once.append((replace(evidence, ticket=0) if again else evidence, report))
        used.add(evidence.ticket)
    return once


def _is_held(node: Node) -> bool:
    """Whether *node* is out of service, and not only for its turn."""
    return node.desired_hold is not Hold.NONE and not node.awaits_turn


def _explain_doubt(evidence: Evidence, node: Node, doubts: Mapping[str, str]) -> str:
    """Say why the failure is not believed, if only checks in doubt failed."""
    if evidence.suite == FABRIC_SUITE:  # see `Evidence.failed_by_check`
        return ""
    failed = {f.check for f in evidence.failures}
    if not failed and node.state in FAILED_STATES:  # for what it failed before
        failed = set(node.checks)
    if not failed.issubset(doubts):
        return ""
    return "; ".join(doubts[check] for check in sorted(failed))
