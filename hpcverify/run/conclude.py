"""
Turn the answers of all workers into the one result of a check.

What a check found is judged by today's limits. A worker that could not do its part
adds an ERROR, which hides no FAIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    """Judge the items of *step*; *answers* are by part, and all skipped is a SKIP."""
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
    if any(finding.code not in rulings for finding in result.findings):
        # What the engine may find in any check: errors of CUDA, hangs.
        from hpcverify.telemetry import cuda_errors  # noqa: PLC0415 - for what a prolog never finds

        rulings = {**cuda_errors.build_finding_rules(), **ENGINE_FINDING_RULES, **rulings}
    limits = resolve(rules, result.measurements, inventory, past, overrides)
    codes = sorted({finding.code for finding in result.findings})
    ruled = msgspec.structs.replace(
        result,
        limits=tuple(limits),
        rulings={code: rulings[code] for code in codes if code in rulings},
    )
    return judge(ruled, inventory)


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
    """Judge a check whose workers *cut* were ended by the budget; None if it found nothing bad."""
    others = any(short.part_id not in cut for short in result.shortfalls)
    if others or result.verdict is Verdict.FAIL:
        return result
    short = Coverage("node", "cut short: the suite's time ran out")
    unmet = frozenset(LimitIndex(result.limits).list_unmet(result.measurements))
    judged = judge(
        msgspec.structs.replace(
            result,
            coverage=(*result.coverage, short),
            # A limit that needs enough measurements, or a noisy one, does not judge half a check.
            limits=tuple(
                limit
                for limit in result.limits
                if limit.otherwise is not Verdict.ERROR and not limit.noisy and limit not in unmet
            ),
            shortfalls=(),
        ),
        inventory,
    )
    return None if judged.verdict is Verdict.PASS else judged


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
