"""
A run that the controller makes of what is said of a node from outside it.

It loads nothing and has no ticket, as one from a hook: it can make the node a suspect in
service, and nothing else.
"""

from __future__ import annotations

from datetime import datetime

from hpcverify.check import add_faults
from hpcverify.model import (
    Finding,
    FindingRule,
    Inventory,
    Remedy,
    Result,
    Run,
    Verdict,
    verdict_of,
)
from hpcverify.records.spool import MAX_DATES_APART, read_id_time
from hpcverify.run.orchestrator import collect_versions

RULE = FindingRule(Verdict.FAIL, Remedy.INSPECT)


def build_failed_run(run: str, node: str, suite: str, started: datetime, finding: Finding) -> Run:
    """Build the run of the id *run* in which *node* fails the check of the name of *suite*."""
    result = Result(
        check=suite,
        verdict=Verdict.FAIL,
        reason=finding.text,
        remedy=Remedy.INSPECT,
        findings=(finding,),
        rulings={finding.code: RULE},
    )
    return build_outside_run(run, node, suite, started, result)


def build_outside_run(run: str, node: str, suite: str, started: datetime, result: Result) -> Run:
    """
    Build the run of the id *run* that has one *result* of *node*.

    If it *started* long before or after what its id is about, its start is cut to what the
    spool takes.
    """
    at = read_id_time(run)
    return Run(
        id=run,
        node=node,
        suite=suite,
        started=min(max(started, at - MAX_DATES_APART), at + MAX_DATES_APART),
        seconds=0.0,
        verdict=verdict_of((result,)),
        complete=True,
        passive=False,
        inventory=Inventory(),
        results=(add_faults(result, Inventory()),),
        versions=collect_versions(),
    )
