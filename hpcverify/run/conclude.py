"""
Make one result of what all workers said about one check.

What a check found is judged by the limits that hold now; that a worker could not
do its part is an ERROR beside it, and hides no FAIL that was found before.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from hpcverify.check import (
    JudgedItem,
    Judgement,
    Rule,
    applies,
    combine_judgements,
    judge,
    list_judgements,
)
from hpcverify.limits.resolve import PastValues, resolve
from hpcverify.model import (
    CarryOver,
    Cause,
    Coverage,
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
    Judge what was found by *step*; *answers* are by the part that gave them.

    A check that was skipped on every device is a skip; one skipped on some says so
    in its coverage.
    """
    outcomes = {part: answer.outcome for part, answer in answers.items()}
    found = [item for answer in answers.values() for item in answer.items]
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
            *(item for item in found if isinstance(item, Coverage)),
            *(Coverage(p, f"skipped: {o.reason}") for p, o in skipped.items()),
        ),
        measurements=tuple(i for i in found if isinstance(i, Measurement)),
        findings=tuple(i for i in found if isinstance(i, Finding)),
        series=tuple(i for i in found if isinstance(i, Series)),
        marks=tuple(i for i in found if isinstance(i, CarryOver)),
        params=to_json_types(msgspec.to_builtins(step.params)),
    )
    if skipped and len(skipped) == len(outcomes):
        causes = {outcome.cause for outcome in skipped.values()}
        return msgspec.structs.replace(
            result,
            verdict=Verdict.SKIP,
            reason="; ".join(dict.fromkeys(o.reason for o in skipped.values())),
            cause=min(causes, key=[Cause.NOT_OBSERVABLE, *Cause].index),
            coverage=(),
        )
    shortfalls = tuple(
        Shortfall(
            where=part,
            reason=_prefix_label(inventory.find_label(part), outcome.reason, len(outcomes)),
            cause=outcome.cause,
            remedy=outcome.remedy,
            code=outcome.code,
        )
        for part, outcome in outcomes.items()
        if outcome.verdict is Verdict.ERROR
    )
    result = msgspec.structs.replace(result, shortfalls=shortfalls)
    return judge_result(result, step.rules, step.check.finding_rules, inventory, past)


def _prefix_label(label: str, reason: str, parts: int) -> str:
    """Name the part only where there are several."""
    return reason if parts == 1 else f"{label}: {reason}"


def judge_result(
    result: Result,
    rules: Mapping[str, Rule],
    rulings: Mapping[str, FindingRule],
    inventory: Inventory,
    past: PastValues,
) -> Result:
    """Judge *result* by today's *rules* and *rulings*; its shortfalls stand."""
    limits = resolve(rules, result.measurements, inventory, past)
    short = [
        Judgement(verdict=Verdict.ERROR, reason=s.reason, cause=s.cause, remedy=s.remedy)
        for s in result.shortfalls
    ]
    holding = [lim for lim in limits if not short or _is_measured(lim, result)]
    names = inventory.recall(result.findings).format_names
    verdict = judge((*result.measurements, *result.findings), holding, rulings, names)
    total = combine_judgements([verdict, *short])
    return msgspec.structs.replace(
        result,
        verdict=total.verdict,
        reason=total.reason,
        cause=total.cause,
        remedy=total.remedy,
        limits=tuple(limits),
        rulings={code: rulings[code] for code in _list_finding_codes(result) if code in rulings},
    )


def rejudge_result(
    result: Result,
    rules: Mapping[str, Rule],
    rulings: Mapping[str, FindingRule],
    inventory: Inventory,
    past: PastValues,
) -> Result:
    """Judge a stored result again; a check that was skipped stays skipped."""
    if result.verdict is Verdict.SKIP:
        return result
    return judge_result(result, rules, rulings, inventory, past)


def list_hard_evidence(result: Result, inventory: Inventory) -> tuple[str, ...]:
    """
    List what failed in *result* that a rerun cannot take back, a sentence each.

    By the limits and rulings that it was judged by. A check in beta gives none: it can
    do no more than warn.
    """
    if result.verdict is not Verdict.FAIL or result.maturity is Maturity.BETA:
        return ()
    found: list[Measurement | Finding] = [*result.measurements, *result.findings]
    told = list_judgements(found, result.limits, result.rulings, inventory.format_names)
    return tuple(c.reason for c in told if c.hard and c.verdict is Verdict.FAIL)


def judge_cut_short(result: Result, cut: frozenset[str], inventory: Inventory) -> Result | None:
    """
    Say what counts of a check whose workers *cut* had their end with the budget.

    That is no ERROR where an earlier round had been to the end. What was found until
    then counts if it is bad; half a check passes nothing, and is no result.
    """
    others = any(short.where not in cut for short in result.shortfalls)
    if others or result.verdict is Verdict.FAIL:
        return result
    limits = [limit for limit in result.limits if _applies_to_part_result(limit, result)]
    found: list[JudgedItem] = [*result.measurements, *result.findings]
    told = judge(found, limits, result.rulings, inventory.format_names)
    if told.verdict is Verdict.PASS:
        return None
    short = Coverage("node", "cut short: the suite's time was used up")
    return msgspec.structs.replace(
        result,
        verdict=told.verdict,
        reason=told.reason,
        cause=told.cause,
        remedy=told.remedy,
        coverage=(*result.coverage, short),
        limits=tuple(limits),
        shortfalls=(),
    )


def _applies_to_part_result(limit: Limit, result: Result) -> bool:
    """Whether *limit* holds for half a check: not if it says how much is enough."""
    decides = limit.otherwise is not Verdict.ERROR and not limit.noisy
    return decides and _is_measured(limit, result)


def build_not_run_result(
    step: Step, reason: str, cause: Cause, remedy: Remedy = Remedy.RERUN
) -> Result:
    """Say that *step* had no turn, and why."""
    return Result(
        check=step.name,
        verdict=Verdict.ERROR,
        reason=reason,
        cause=cause,
        remedy=remedy,
        shortfalls=(Shortfall("node", reason, cause, remedy),),
        maturity=step.check.maturity,
        required=step.required,
    )


def _list_finding_codes(result: Result) -> list[str]:
    return sorted({finding.code for finding in result.findings})


def _is_measured(limit: Limit, result: Result) -> bool:
    return any(applies(limit, item) for item in result.measurements)
