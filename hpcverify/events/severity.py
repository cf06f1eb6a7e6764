"""How grave an event is: by its kind, and by what the site acts on."""

from __future__ import annotations

from hpcverify.events.event import EventKind, FindingState, RunOutcome, Severity, StateChange
from hpcverify.model import Verdict

KIND_SEVERITIES = {
    EventKind.CLAIM_REFUSED: Severity.HIGH,
    EventKind.BREAKER_TRIPPED: Severity.CRITICAL,
    EventKind.CHECK_DOUBTED: Severity.MEDIUM,
    EventKind.LINK_FAILED: Severity.MEDIUM,
    EventKind.MALFUNCTION_BEGUN: Severity.MEDIUM,
    EventKind.DOCUMENT_REFUSED: Severity.LOW,
    EventKind.OUTLIER_OPENED: Severity.LOW,
    EventKind.SUPPRESSION_USED: Severity.LOW,
}
"""The severities of kinds that have always the same; others are informational."""
STATE_SEVERITIES = {
    "suspect": Severity.MEDIUM,
    "quarantined": Severity.HIGH,
    "repeat offender": Severity.HIGH,
}
"""Those of the states that a node enters because it failed, if the site acts on it."""


def grade_event(
    kind: EventKind,
    change: StateChange | None = None,
    finding: FindingState | None = None,
    run: RunOutcome | None = None,
) -> Severity:
    """Grade an event; what is only observed, or only warns, is at most low."""
    if kind is EventKind.NODE_CHANGED and change:
        severity = STATE_SEVERITIES.get(change.after, Severity.INFORMATIONAL)
        return _observe(severity, enforced=change.enforced)
    if kind in (EventKind.FINDING_OPENED, EventKind.FINDING_CHANGED) and finding:
        failed = finding.verdict is Verdict.FAIL
        return _observe(Severity.HIGH, enforced=failed and finding.enforced)
    if kind is EventKind.RUN_FINISHED and run:
        bad = run.verdict in (Verdict.FAIL, Verdict.ERROR)
        return Severity.LOW if bad else Severity.INFORMATIONAL
    return KIND_SEVERITIES.get(kind, Severity.INFORMATIONAL)


def _observe(severity: Severity, *, enforced: bool) -> Severity:
    return severity if enforced or severity is Severity.INFORMATIONAL else Severity.LOW
