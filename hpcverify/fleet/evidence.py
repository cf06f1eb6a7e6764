"""
What a run, or another source of faults, says about a node, as far as it matters for its state.

Only stable checks count, and the worst of several rounds. A failure that a person has
suppressed is neither a failure nor a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.events.event import FindingState, make_finding_uid
from hpcverify.fleet.part_counts import PartCount, count_parts
from hpcverify.fleet.states import Ticket
from hpcverify.model import (
    Cause,
    Fault,
    FaultKind,
    Maturity,
    Remedy,
    Result,
    Run,
    Source,
    Verdict,
    effective_verdict,
)
from hpcverify.plan.config import Site
from hpcverify.plan.hostlist import expand
from hpcverify.run.conclude import list_conclusive
from hpcverify.summary.diagnosis import Diagnosis, diagnose_run
from hpcverify.summary.faults import list_faults, recall_gone_parts
from hpcverify.summary.rounds import choose_worst_rounds
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count

PASSING_VERDICTS = (Verdict.PASS, Verdict.WARN)
ANSWERS = (*PASSING_VERDICTS, Verdict.FAIL)
MAX_RUN_FINDINGS = 200
"""The gravest findings of a run that are kept."""
MAX_NAME_CHARACTERS = 200
"""The most characters of a part, a label or a code: a node may write what it likes."""
OUTER_SOURCES = frozenset(Source) - {Source.RUN, Source.BMC}
"""Those without a run: what they found is over once the node is healthy."""
ALL_CHECKS = "*"
"""Stands for every check in ``[quarantine] enforce``."""


class FaultReport(Struct, frozen=True, kw_only=True):
    """What another source than a run has found of a node as a whole."""

    node: str
    source: Source
    at: float
    """When, in seconds since 1970."""
    key: tuple[str, ...]
    """What is reported again with the same time and key counts once."""
    faults: tuple[Fault, ...]
    examined: frozenset[str]
    """The checks that the faults, or their absence, are about."""
    token: str = ""
    """That of the controller's order; empty: it ordered nothing."""


def build_fault(
    check: str, code: str, text: str, evidence: Mapping[str, str] = MappingProxyType({})
) -> Fault:
    """Build the fault of a node as a whole that *check*, the name of its source, has found."""
    return Fault(
        kind=FaultKind.FINDING,
        part_id="node",
        check=check,
        code=code,
        text=text,
        verdict=Verdict.FAIL,
        remedy=Remedy.INSPECT,
        evidence=dict(evidence),
    )


class OpenFault(FindingState, Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    A finding as the ledger keeps it.

    What a run says of it is in the run's document; what `OUTER_SOURCES` say is here, and does not
    leave the ledger with an event.
    """

    node: str
    text: str = ""
    evidence: dict[str, str] = {}
    since: float = 0.0
    """When it was opened, in seconds since 1970."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What a run, or another source of faults, says about a node."""

    id: str
    """That of the run; of other sources, what makes the evidence count once."""
    node: str
    suite: str
    """For other sources than runs, the name of the source."""
    source: Source = Source.RUN
    ticket: int
    """0: without one, or with one that was used before."""
    complete: bool
    """Whether it ran to its end."""
    passive: bool
    """Whether nothing in it loaded the node."""
    verdict: Verdict
    failures: dict[str, bool]
    """The checks that failed, each with whether no rerun can clear that."""
    diagnoses: tuple[Diagnosis, ...]
    """What these checks failed, part by part, the gravest first."""
    suppressed_checks: tuple[str, ...]
    """Checks that failed and are suppressed."""
    passed_checks: frozenset[str]
    unresolved_checks: frozenset[str] = frozenset()
    """Checks that passed, and say that conclusive evidence of an earlier run still stands."""
    not_applicable: frozenset[str] = frozenset()
    """Checks of parts that the node does not have, or no longer has."""
    unanswered_checks: dict[str, str] = {}
    """Checks that were in the run and gave no answer that counts, and why."""
    unjudged: tuple[tuple[Cause, str], ...] = ()
    """Why it could not be judged, each with a sentence."""
    parts: tuple[PartCount, ...] = ()
    """What its inventory counted."""
    found: tuple[OpenFault, ...] = ()
    """What is to be kept as findings."""
    examined: frozenset[str] = frozenset()
    """The checks that gave an answer, whether it counts for the state or not."""
    planned: frozenset[str] = frozenset()
    """The checks of the suite, whether they gave an answer or not."""
    unanswered_parts: frozenset[tuple[str, str]] = frozenset()
    """Checks and parts that these checks could not judge."""
    coverage: str = ""
    """How many checks gave an answer, in words."""

    @property
    def run(self) -> str:
        """The id of the run; empty if there is none."""
        return self.id if self.source in (Source.RUN, Source.BMC) else ""

    @property
    def is_full_pass(self) -> bool:
        """
        Whether it is a full pass: ordered by us, complete, without a failure or error.

        Passive checks alone are never one: they see the node idle.
        """
        return self._is_pass and not self.passive

    @property
    def _is_pass(self) -> bool:
        return bool(self.ticket) and self.complete and self.verdict in PASSING_VERDICTS

    @property
    def is_clean(self) -> bool:
        """Whether all of it was judged, and nothing failed but what is suppressed."""
        judged = bool(self.suppressed_checks and not self.failures and not self.unjudged)
        return self._is_pass or judged

    @property
    def cleared_checks(self) -> frozenset[str]:
        """The checks whose earlier failure, if any, no longer counts."""
        return self.passed_checks.union(self.suppressed_checks, self.not_applicable)

    def list_reasons(self, known: Collection[str] = ()) -> list[str]:
        """List what failed, each with all its checks; not if all of these are *known*."""
        return [
            diagnosis.reason
            for diagnosis in self.diagnoses
            if not set(diagnosis.checks) <= set(known)
        ]

    @property
    def failed_by_check(self) -> dict[str, bool]:
        """
        Which checks gave an answer that counts for doubts, and whether they failed.

        An isolation has compared nodes with each other already: it names those that
        fail where others pass.
        """
        if not (self.ticket and self.complete) or self.source is Source.FABRIC:
            return {}
        return dict.fromkeys(self.passed_checks, False) | dict.fromkeys(self.failures, True)


def extract_evidence(
    run: Run, ticket: Ticket | None, site: Site, now: float, source: Source = Source.RUN
) -> Evidence:
    """
    Reduce *run*, which came in *now* (seconds since 1970) for *ticket*, to evidence.

    What fails is kept as a finding; of an ordered run also what warns.
    """
    worst = list(choose_worst_rounds(run.results))
    bad = [r for r in worst if r.verdict is Verdict.FAIL]
    counting = [r for r in bad if r.maturity is Maturity.STABLE]
    silenced = list_suppressed_checks(run.node, site, now)
    heard = {r.check for r in counting} - silenced
    # In any round, not only in the worst one.
    conclusive = {r.check for r in run.results if list_conclusive(r, Verdict.FAIL)}
    failed = {r.check for r in counting}
    absent = {
        r.check
        for r in worst
        if effective_verdict(r) is Verdict.SKIP and r.cause is Cause.NOT_APPLICABLE
    }
    answered = {r.check for r in worst if r.verdict in ANSWERS}
    faults = [(result, fault) for result in run.results for fault in list_faults(result)]
    of_heard = replace(run, results=tuple(r for r in run.results if r.check in heard))
    number = _choose_ticket_number(ticket, run.suite)
    least = Verdict.WARN if number else Verdict.FAIL
    return Evidence(
        id=run.id,
        node=run.node,
        suite=run.suite,
        source=source,
        ticket=number,
        complete=run.complete,
        passive=run.passive,
        verdict=run.verdict,
        parts=count_parts(run),
        failures={r.check: r.check in conclusive for r in counting if r.check in heard},
        diagnoses=tuple(d for d in diagnose_run(of_heard) if d.verdict is Verdict.FAIL),
        suppressed_checks=tuple(r.check for r in counting if r.check in silenced),
        passed_checks=frozenset(r.check for r in worst if r.verdict in PASSING_VERDICTS),
        unresolved_checks=frozenset(r.check for r in worst if list_conclusive(r, Verdict.WARN)),
        not_applicable=frozenset(absent),
        unanswered_checks={
            r.check: r.reason
            for r in worst
            if r.verdict not in PASSING_VERDICTS and r.check not in failed | absent
        },
        unjudged=tuple(
            (r.cause, f"{r.check}: {r.reason}")
            for r in worst
            if effective_verdict(r) is Verdict.ERROR
        ),
        found=_choose_findings(
            run,
            [(r, f) for r, f in faults if f.verdict >= least and f.verdict is not Verdict.ERROR],
            source,
            {check for check in heard if is_enforced([check], site)},
        ),
        examined=frozenset(answered | absent),
        planned=frozenset(result.check for result in run.results),
        unanswered_parts=frozenset(
            (r.check, fault.part_id) for r, fault in faults if fault.verdict is Verdict.ERROR
        ),
        coverage=f"{len(answered)} of {format_count(len(worst), 'check')} answered",
    )


def weigh_faults(
    report: FaultReport, id_: str, ticket: Ticket | None, site: Site, now: float
) -> Evidence:
    """Reduce *report*, which came in *now* (seconds since 1970) for *ticket*, to evidence."""
    failed = {fault.check for fault in report.faults}
    silenced = failed & list_suppressed_checks(report.node, site, now)
    heard = [fault for fault in report.faults if fault.check not in silenced]
    conclusive = {fault.check for fault in heard if fault.conclusive}
    return Evidence(
        id=id_,
        node=report.node,
        suite=report.source.value,
        source=report.source,
        ticket=_choose_ticket_number(ticket, report.source.value),
        complete=True,
        passive=False,
        verdict=max((fault.verdict for fault in report.faults), default=Verdict.PASS),
        failures={fault.check: fault.check in conclusive for fault in heard},
        diagnoses=tuple(diagnose_alone(f.check, f.code, f.text, f.remedy) for f in heard),
        suppressed_checks=tuple(sorted(silenced)),
        passed_checks=report.examined - failed,
        found=tuple(
            _open(
                fault,
                report.node,
                report.source,
                "node",
                enforced=fault.check not in silenced and is_enforced([fault.check], site),
            )
            for fault in report.faults
        ),
        examined=report.examined,
    )


def diagnose_alone(check: str, code: str, text: str, remedy: Remedy) -> Diagnosis:
    """Diagnose the fault of a node as a whole that another source than a run has found."""
    return Diagnosis(
        verdict=Verdict.FAIL,
        remedy=remedy,
        part_ids=("node",),
        checks=(check,),
        faults=(f"{check} {code}",),
        codes=(code,),
        text=text,
    )


def _choose_ticket_number(ticket: Ticket | None, suite: str) -> int:
    ours = ticket is not None and not ticket.run and ticket.suite == suite
    return ticket.number if ours and ticket is not None else 0


def _choose_findings(
    run: Run, faults: Iterable[tuple[Result, Fault]], source: Source, heard: Collection[str]
) -> tuple[OpenFault, ...]:
    found: dict[str, OpenFault] = {}
    labels = {part.id: part.label for part in recall_gone_parts(run).parts}
    for result, fault in faults:
        acted_on = fault.verdict is Verdict.FAIL and result.check in heard
        label = labels.get(fault.part_id, fault.part_id)
        state = _open(fault, run.node, source, label, enforced=acted_on)
        known = found.get(state.uid)
        if known is None or (known.verdict, known.enforced) < (state.verdict, state.enforced):
            found[state.uid] = state
    gravest = sorted(found.values(), key=lambda state: state.verdict, reverse=True)
    return tuple(gravest[:MAX_RUN_FINDINGS])


def _open(fault: Fault, node: str, source: Source, label: str, *, enforced: bool) -> OpenFault:
    check = fault.check
    # A node may write any check's name into a run, and would take the place of what others found.
    origin = f"{source}:{check}" if source in OUTER_SOURCES else check
    part, code = (
        shorten(fault.part_id, MAX_NAME_CHARACTERS),
        shorten(fault.code, MAX_NAME_CHARACTERS),
    )
    return OpenFault(
        node=node,
        uid=make_finding_uid(node, part, origin, code),
        part=part,
        label=shorten(label, MAX_NAME_CHARACTERS),
        check=check,
        code=code,
        verdict=fault.verdict,
        remedy=fault.remedy,
        enforced=enforced,
        source=source,
        text=fault.text if source in OUTER_SOURCES else "",
        evidence=fault.evidence if source in OUTER_SOURCES else {},
    )


def list_suppressions(site: Site, now: float) -> Mapping[str, set[str]]:
    """Name by node the checks that are suppressed there today."""
    today = datetime.fromtimestamp(now, UTC).date()
    checks_by_node: dict[str, set[str]] = {}
    for suppression in site.suppress:
        if today <= suppression.until:
            for name in expand(suppression.nodes):
                checks_by_node.setdefault(name, set()).add(suppression.check)
    return checks_by_node


def list_suppressed_checks(node: str, site: Site, now: float) -> set[str]:
    """Name the checks that are suppressed on *node* today."""
    return list_suppressions(site, now).get(node, set())


def is_enforced(checks: Collection[str], site: Site) -> bool:
    """Whether a failure of one of *checks* takes a node out of service."""
    on = set(site.quarantine.enforce)
    return ALL_CHECKS in on or not on.isdisjoint(checks)
