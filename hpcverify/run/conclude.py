"""
Turn the answers of all workers into the one result of a check.

What a check found is judged by today's limits. A worker that could not do its part
adds an ERROR, which hides no FAIL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hpcverify.check import (
    ENGINE_FINDING_RULES,
    LimitIndex,
    Rule,
    add_faults,
    judge,
)
from hpcverify.limits.resolve import PastValues, resolve
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
    Fact,
    Fault,
    Finding,
    FindingRule,
    Inventory,
    Limit,
    Maturity,
    Measurement,
    Remedy,
    Result,
    Series,
    Shortfall,
    Verdict,
)
from hpcverify.plan.config import to_json_types
from hpcverify.plan.suite import Step
from hpcverify.run.executor import Answer


def conclude(
    step: Step,
    answers: Mapping[str, Answer],
    inventory: Inventory,
    past: PastValues,
    seconds: float,
) -> Result:
    """
    Judge what *step* found; *answers* are keyed by the part that gave them.

    A check skipped on every device is a SKIP; skipped on some, its coverage says so.
    """
    outcomes = {part: answer.outcome for part, answer in answers.items()}
    items = [item for answer in answers.values() for item in answer.items]
    skipped = {
        part: outcome for part, outcome in outcomes.items() if outcome.verdict is Verdict.SKIP
    }
    result = Result(
        check=step.name,
        verdict=Verdict.PASS,
        maturity=step.check.maturity,
        required=step.required,
        seconds=round(seconds, 3),
        coverage=(
            *(item for item in items if isinstance(item, Coverage)),
            *(Coverage(p, f"skipped: {o.reason}") for p, o in skipped.items()),
        ),
        measurements=tuple(i for i in items if isinstance(i, Measurement)),
        findings=tuple(i for i in items if isinstance(i, Finding)),
        series=tuple(i for i in items if isinstance(i, Series)),
        marks=tuple(i for i in items if isinstance(i, CarryOver)),
        facts=tuple(i for i in items if isinstance(i, Fact)),
        params=to_json_types(msgspec.to_builtins(step.params)),
    )
    if skipped and len(skipped) == len(outcomes):
        causes = {outcome.cause for outcome in skipped.values()}
        skip = msgspec.structs.replace(
            result,
            verdict=Verdict.SKIP,
            reason="; ".join(dict.fromkeys(o.reason for o in skipped.values())),
            cause=min(causes, key=[Cause.NOT_OBSERVABLE, *Cause].index),
            coverage=(),
        )
        return add_faults(skip, inventory)
    shortfalls = tuple(
        Shortfall(part, o.reason, o.cause, o.remedy, o.code, o.fix)
        for part, o in outcomes.items()
        if o.verdict is Verdict.ERROR
    )
    result = msgspec.structs.replace(result, shortfalls=shortfalls)
    check = step.check
    return judge_result(
        result, check.rules, check.finding_rules, inventory, past, overrides=step.overrides
    )


def judge_result(
    result: Result,
    rules: Mapping[str, Rule],
    rulings: Mapping[str, FindingRule],
    inventory: Inventory,
    past: PastValues,
    *,
    overrides: Sequence[Rule] = (),
) -> Result:
    """Judge *result* by today's *rules*, *overrides* and *rulings*; its shortfalls remain."""
    rulings = add_common_rules(rulings, result.findings)
    limits = resolve(rules, result.measurements, inventory, past, overrides)
    codes = sorted({finding.code for finding in result.findings})
    ruled = msgspec.structs.replace(
        result,
        limits=tuple(limits),
        rulings={code: rulings[code] for code in codes if code in rulings},
    )
    return judge(ruled, inventory)


def add_common_rules(
    rulings: Mapping[str, FindingRule], findings: Iterable[Finding]
) -> Mapping[str, FindingRule]:
    """
    Add to a check's own *rulings* what the engine may find in any: CUDA's errors, hangs.

    Only if there are *findings* that the check has no rule for: a prolog on a healthy node
    reads no table.
    """
    if all(finding.code in rulings for finding in findings):
        return rulings
    from hpcverify.telemetry import cuda_errors  # noqa: PLC0415 - for what a prolog never finds

    return {**cuda_errors.build_finding_rules(), **ENGINE_FINDING_RULES, **rulings}


def list_conclusive(result: Result, verdict: Verdict) -> tuple[Fault, ...]:
    """
    List the faults of *result* that no rerun can undo, if they and it have *verdict*.

    FAIL lists conclusive evidence. WARN lists what is left of that of an earlier run, which
    must not fail a node twice: such as a machine check that the kernel logged before the last
    run, on a node that has not been rebooted since. A check in beta has none: it can only warn.
    """
    if result.verdict is not verdict or result.maturity is Maturity.BETA:
        return ()
    return tuple(c for c in result.faults if c.conclusive and c.verdict is verdict)


def judge_cut_short(result: Result, cut: frozenset[str], inventory: Inventory) -> Result | None:
    """
    Say what counts of a check whose workers *cut* were ended when the budget ran out.

    That is no ERROR if an earlier round was complete. What was found counts if it is
    bad. Half a check passes nothing: then there is no result.
    """
    others = any(short.part_id not in cut for short in result.shortfalls)
    if others or result.verdict is Verdict.FAIL:
        return result
    short = Coverage("node", "cut short: the suite's time ran out")
    unmet = frozenset(LimitIndex(result.limits).list_unmet(result.measurements))
    judged = judge(
        msgspec.structs.replace(
            result,
            coverage=(*result.coverage, short),
            limits=tuple(x for x in result.limits if _decides(x) and x not in unmet),
            shortfalls=(),
        ),
        inventory,
    )
    return None if judged.verdict is Verdict.PASS else judged


def _decides(limit: Limit) -> bool:
    """Whether *limit* decides about half a check: not if it says how much is enough."""
    return limit.otherwise is not Verdict.ERROR and not limit.noisy


def build_not_run_result(
    step: Step, reason: str, cause: Cause, remedy: Remedy = Remedy.RERUN, fix: str = ""
) -> Result:
    """Say that *step* did not run, why, and what to do if that is known exactly."""
    result = Result(
        check=step.name,
        verdict=Verdict.ERROR,
        shortfalls=(Shortfall("node", reason, cause, remedy, fix=fix),),
        maturity=step.check.maturity,
        required=step.required,
    )
    return judge(result, Inventory())
