"""
What becomes of a node that an isolation accuses: a run in the spool, as from a hook.

It has no ticket, so it can make the node a suspect and nothing else. A node that was
cleared gets no run: collectives with others are no verification of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from zlib import crc32

from hpcverify.isolation.answer import AccusedNode, IsolationAnswer, TestRecord, describe_record
from hpcverify.model import (
    COLLECTIVES_CHECK,
    FABRIC_SUITE,
    Finding,
    FindingRule,
    Inventory,
    Remedy,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from hpcverify.run.orchestrator import collect_versions

ISOLATED_CODE = "isolated"
ISOLATED_RULE = FindingRule(Verdict.FAIL, Remedy.INSPECT)


def build_accusation(answer: IsolationAnswer, accused: AccusedNode, now: datetime) -> Run:
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
    mark = crc32(f"{answer.id} {accused.node}".encode()) % 16**6
    return Run(
        id=f"{answer.id[:-6]}{mark:06x}",
        node=accused.node,
        suite=FABRIC_SUITE,
        started=now,
        seconds=0.0,
        verdict=verdict_of((result,)),
        complete=True,
        passive=False,
        inventory=Inventory(),
        results=(result,),
        versions=collect_versions(),
    )


def _list_lines(records: Iterable[TestRecord]) -> str:
    return "; ".join(map(describe_record, records))
