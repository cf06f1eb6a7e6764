"""What a run says of the findings of its node."""

from __future__ import annotations

from hpcverify.events.event import FindingState, RunOutcome, make_finding_uid
from hpcverify.fleet.evidence import (
    PASSING_VERDICTS,
    is_absent,
    is_enforced,
    list_suppressed_checks,
)
from hpcverify.fleet.finding_log import RunReport
from hpcverify.model import Fault, Maturity, Run, Verdict
from hpcverify.plan.config import Site
from hpcverify.summary.faults import list_faults, recall_gone_parts
from hpcverify.summary.rounds import choose_worst_rounds
from hpcverify.summary.verdict import shorten
from hpcverify.units import format_count

MAX_RUN_FINDINGS = 200
"""The gravest findings of a run that are kept."""
MAX_NAME_CHARACTERS = 200
"""The most characters of a part, a label or a code: a node may write what it likes."""
ANSWERS = (*PASSING_VERDICTS, Verdict.FAIL)


def build_report(run: Run, site: Site, now: float, *, ordered: bool) -> RunReport:
    """
    Report what *run* says of the findings of its node at the time *now*.

    What fails is a finding; of an *ordered* run also what warns.
    """
    worst = choose_worst_rounds(run.results)
    silenced = list_suppressed_checks(run.node, site, now)
    least = Verdict.WARN if ordered else Verdict.FAIL
    found: dict[str, FindingState] = {}
    faults = [(result, fault) for result in run.results for fault in list_faults(result)]
    labels = {part.id: part.label for part in recall_gone_parts(run).parts}
    for result, fault in faults:
        if fault.verdict is Verdict.ERROR or fault.verdict < least:
            continue
        label = labels.get(fault.part_id, fault.part_id)
        acted_on = result.check not in silenced and is_enforced((result.check,), site)
        acted_on &= fault.verdict is Verdict.FAIL and result.maturity is Maturity.STABLE
        state = _build_state(run.node, fault, label, enforced=acted_on)
        known = found.get(state.uid)
        if known is None or (known.verdict, known.enforced) < (state.verdict, state.enforced):
            found[state.uid] = state
    gravest = sorted(found.values(), key=lambda state: state.verdict, reverse=True)
    answers = [r.check for r in worst if r.verdict in ANSWERS]
    return RunReport(
        outcome=RunOutcome(
            id=run.id,
            suite=run.suite,
            verdict=run.verdict,
            coverage=f"{len(answers)} of {format_count(len(worst), 'check')} answered",
        ),
        findings=tuple(gravest[:MAX_RUN_FINDINGS]),
        examined=frozenset({*answers, *(r.check for r in worst if is_absent(r))}),
        planned=frozenset(result.check for result in run.results),
        unanswered=frozenset(
            (result.check, c.part_id) for result, c in faults if c.verdict is Verdict.ERROR
        ),
    )


def _build_state(node: str, fault: Fault, label: str, *, enforced: bool) -> FindingState:
    part, code = _limit(fault.part_id), _limit(fault.name)
    (check,) = fault.checks
    return FindingState(
        uid=make_finding_uid(node, part, check, code),
        part=part,
        label=_limit(label),
        check=check,
        code=code,
        verdict=fault.verdict,
        remedy=fault.remedy,
        enforced=enforced,
    )


def _limit(name: str) -> str:
    return shorten(name, MAX_NAME_CHARACTERS)
