"""
What a run says about its node, as far as it matters for the node's state.

Only stable checks count, and the worst of several rounds. A failure that a person has
suppressed is neither a failure nor a pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.fleet.part_counts import PartCount, count_parts
from hpcverify.fleet.states import Ticket
from hpcverify.model import FABRIC_SUITE, Cause, Maturity, Result, Run, Verdict, effective_verdict
from hpcverify.plan.config import Site
from hpcverify.plan.hostlist import expand
from hpcverify.run.conclude import list_conclusive
from hpcverify.summary.diagnosis import Diagnosis, diagnose_run
from hpcverify.summary.rounds import choose_worst_rounds

PASSING_VERDICTS = (Verdict.PASS, Verdict.WARN)
ALL_CHECKS = "*"
"""Stands for every check in ``[quarantine] enforce``."""


class Failure(Struct, frozen=True):
    """A check that failed."""

    check: str
    conclusive: bool
    """Whether no rerun can clear it."""


class Evidence(Struct, frozen=True, kw_only=True):
    """What a run says about its node."""

    run: str
    node: str
    suite: str
    ticket: int
    """0: without one, or with one that was used before."""
    by_bmc: bool = False
    """Whether the controller made it, of what it read from the node's BMC."""
    complete: bool
    """Whether it ran to its end."""
    passive: bool
    """Whether nothing in it loaded the node."""
    verdict: Verdict
    failures: tuple[Failure, ...]
    diagnoses: tuple[Diagnosis, ...]
    """What these checks failed, part by part, the gravest first."""
    suppressed_checks: tuple[str, ...]
    """Checks that failed and are suppressed."""
    passed_checks: frozenset[str]
    unresolved_checks: frozenset[str]
    """Checks that passed, and say that conclusive evidence of an earlier run still stands."""
    not_applicable: frozenset[str]
    """Checks of parts that the node does not have, or no longer has."""
    unanswered_checks: dict[str, str]
    """Checks that were in the run and gave no answer that counts, and why."""
    unjudged: tuple[tuple[Cause, str], ...]
    """Why it could not be judged, each with a sentence."""
    parts: tuple[PartCount, ...] = ()
    """What its inventory counted."""

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
        if not (self.ticket and self.complete) or self.suite == FABRIC_SUITE:
            return {}
        failed = {f.check for f in self.failures}
        return {check: check in failed for check in (*self.passed_checks, *failed)}


def extract_evidence(
    run: Run, ticket: Ticket | None, site: Site, now: float, *, by_bmc: bool = False
) -> Evidence:
    """Reduce *run*, which came in *now* (seconds since 1970) for *ticket*, to evidence."""
    worst = list(choose_worst_rounds(run.results))
    bad = [r for r in worst if r.verdict is Verdict.FAIL]
    counting = [r for r in bad if r.maturity is Maturity.STABLE]
    silenced = list_suppressed_checks(run.node, site, now)
    heard = {r.check for r in counting} - silenced
    failed = {r.check for r in counting}
    absent = {r.check for r in worst if is_absent(r)}
    ours = ticket is not None and not ticket.run and ticket.suite == run.suite
    return Evidence(
        run=run.id,
        node=run.node,
        suite=run.suite,
        ticket=ticket.number if ours and ticket is not None else 0,
        by_bmc=by_bmc,
        complete=run.complete,
        passive=run.passive,
        verdict=run.verdict,
        parts=count_parts(run),
        failures=tuple(
            Failure(r.check, _has_conclusive_failure(r.check, run))
            for r in counting
            if r.check in heard
        ),
        diagnoses=_diagnose_failures(run, heard),
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
    )


def _diagnose_failures(run: Run, checks: Collection[str]) -> tuple[Diagnosis, ...]:
    results = tuple(r for r in run.results if r.check in checks)
    diagnoses = diagnose_run(replace(run, results=results)) if results else ()
    return tuple(d for d in diagnoses if d.verdict is Verdict.FAIL)


def is_absent(result: Result) -> bool:
    """Whether the node has no such part, and the suite does not require it."""
    skipped = effective_verdict(result) is Verdict.SKIP
    return skipped and result.cause is Cause.NOT_APPLICABLE


def _has_conclusive_failure(check: str, run: Run) -> bool:
    """Whether *check* failed conclusively in any round of *run*, not only in the worst one."""
    return any(r.check == check and list_conclusive(r, Verdict.FAIL) for r in run.results)


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
