"""The kinds of events, and how grave they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpcverify.events.event import (
    EventKind,
    FindingState,
    RunOutcome,
    Severity,
    StateChange,
    make_finding_uid,
)
from hpcverify.events.severity import grade_event
from hpcverify.model import Remedy, Verdict

PAGE = Path(__file__).parents[2] / "docs/how-to/events.md"
FAILED = FindingState(
    uid="1",
    part="GPU-1",
    label="GPU 1",
    check="gemm",
    code="slow",
    verdict=Verdict.FAIL,
    remedy=Remedy.INSPECT,
    enforced=True,
)


@pytest.mark.parametrize("kind", EventKind)
def test_the_page_on_events_says_when_each_kind_comes(kind: EventKind) -> None:
    subject, word = kind.split(".")
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]

    assert any(f"`{subject}." in row and f".{word}`" in row for row in rows)


@pytest.mark.parametrize(("enforced", "severity"), [(True, Severity.HIGH), (False, Severity.LOW)])
def test_what_is_only_observed_is_at_most_low(severity: Severity, *, enforced: bool) -> None:
    change = StateChange(subject="", before="healthy", after="quarantined", enforced=enforced)
    finding = replace(FAILED, enforced=enforced)

    assert grade_event(EventKind.NODE_CHANGED, change=change) is severity
    assert grade_event(EventKind.FINDING_OPENED, finding=finding) is severity


def test_what_is_over_is_informational() -> None:
    back = StateChange(subject="", before="quarantined", after="healthy")
    passed = RunOutcome(id="r1", suite="quick", verdict=Verdict.PASS)

    assert grade_event(EventKind.NODE_CHANGED, change=back) is Severity.INFORMATIONAL
    assert grade_event(EventKind.FINDING_CLOSED, finding=FAILED) is Severity.INFORMATIONAL
    assert grade_event(EventKind.RUN_FINISHED, run=passed) is Severity.INFORMATIONAL
    assert grade_event(EventKind.MALFUNCTION_ENDED) is Severity.INFORMATIONAL


def test_a_uid_is_of_the_node_the_part_the_check_and_the_code() -> None:
    words = ("n1", "GPU-1", "gemm", "slow")
    others = [(*words[:i], "other", *words[i + 1 :]) for i in range(4)]

    uids = {make_finding_uid(*key) for key in (words, *others)}
    assert len(uids) == 5
    assert make_finding_uid(*words) in uids
