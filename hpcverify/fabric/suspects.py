"""
What becomes of a node that an isolation accuses: a run in the spool, as from a hook.

It has no ticket, so it can make the node a suspect and nothing else. A node that was
cleared gets no run: collectives with others are no verification of it. Only at the end of
an admission both are ordered, with a ticket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from hpcverify.fleet.external_run import build_outside_run
from hpcverify.isolation.answer import AccusedNode, IsolationAnswer, TestRecord, describe_record
from hpcverify.model import (
    COLLECTIVES_CHECK,
    FABRIC_SUITE,
    Finding,
    FindingRule,
    Remedy,
    Result,
    Run,
    Verdict,
)
from hpcverify.units import format_count

ISOLATED_CODE = "isolated"
ISOLATED_RULE = FindingRule(Verdict.FAIL, Remedy.INSPECT)
CLEARED_CODE = "cleared"
CLEARED_RULE = FindingRule(Verdict.PASS)
MakeMark = Callable[..., str]
"""Makes the end of an id from words: see `Ledger.make_mark`."""


def build_accusation(
    answer: IsolationAnswer, accused: AccusedNode, now: datetime, make_mark: MakeMark
) -> Run:
    """
    Build the run that says what *accused* failed.

    Its id follows from those of the isolation and the node: if it is left twice, since the
    first one who did was killed, it counts once.
    """
    finding = Finding(
        ISOLATED_CODE,
        "node",
        accused.summary,
        {
            "isolation": answer.id,
            "failed": _list_lines(accused.failed),
            "passed": _list_lines(accused.passed) or "none",
        },
    )
    result = Result(
        check=COLLECTIVES_CHECK,
        verdict=Verdict.FAIL,
        reason=accused.summary,
        remedy=Remedy.INSPECT,
        findings=(finding,),
        rulings={ISOLATED_CODE: ISOLATED_RULE},
    )
    return _build_run(answer, accused.node, result, now, make_mark)


def build_clearance(answer: IsolationAnswer, node: str, now: datetime, make_mark: MakeMark) -> Run:
    """Build the run that says that *node* was tested with others and is not to blame."""
    reason = f"not the cause of any failure in {format_count(answer.tests, 'test')} between nodes"
    finding = Finding(CLEARED_CODE, "node", reason, {"isolation": answer.id})
    result = Result(
        check=COLLECTIVES_CHECK,
        verdict=Verdict.PASS,
        reason=reason,
        findings=(finding,),
        rulings={CLEARED_CODE: CLEARED_RULE},
    )
    return _build_run(answer, node, result, now, make_mark)


def _build_run(
    answer: IsolationAnswer, node: str, result: Result, now: datetime, make_mark: MakeMark
) -> Run:
    mark = make_mark(answer.id, node)
    began = answer.id.rpartition("-")[0]
    return build_outside_run(f"{began}-{mark}", node, FABRIC_SUITE, now, result)


def _list_lines(records: Iterable[TestRecord]) -> str:
    return "; ".join(map(describe_record, records))
