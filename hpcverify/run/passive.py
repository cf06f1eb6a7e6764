"""
A passive check runs before the load and after it, and gives one result.

Both times it begins from what the last run remembered, so the second result has all that
the first one has and more: it stands. (If there was no last run, a check may begin the second
time from the first: `Context.before_load`.) What only the first has is kept beside it, such as a
link that came back, or a line that the kernel log has lost, but not what could only not be judged
yet, such as a fabric that still starts; and if the time runs out, or the GPUs answer no more, the
first is better than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from hpcverify.limits.resolve import PastValues
from hpcverify.model import (
    Coverage,
    FaultKind,
    Finding,
    FindingRule,
    Inventory,
    Measurement,
    Remedy,
    Result,
    Verdict,
)
from hpcverify.plan.suite import Step
from hpcverify.run.conclude import judge_result

SEEN_EARLIER = "seen before the load, but not after it"


def keep_first(first: Result, why: str) -> Result:
    """Let the *first* result stand, and say *why* there is no other."""
    note = Coverage("node", f"checked only before the load: {why}")
    return replace(first, coverage=(*first.coverage, note))


def merge_results(
    step: Step, first: Result, last: Result, inventory: Inventory, past: PastValues
) -> Result:
    """Judge the *last* result of *step* together with what only the *first* one has."""
    if last.verdict is Verdict.SKIP:
        return last if first.verdict is Verdict.SKIP else keep_first(first, last.reason)
    if first.verdict is Verdict.SKIP:
        return last
    # What the last one remembered, or the first if the last did not come to its end: then the
    # next run reads what has happened since the first, and nothing twice.
    fallback, preferred = (last, first) if last.shortfalls else (first, last)
    marks = (*fallback.marks, *preferred.marks)
    merged = replace(
        last,
        seconds=round(first.seconds + last.seconds, 3),
        findings=(*last.findings, *_list_gone(first, last, step.check.finding_rules)),
        measurements=tuple(_merge_measurements(first, last)),
        marks=tuple({(m.name, m.part_id): m for m in marks}.values()),
        facts=last.facts or first.facts,
    )
    check = step.check
    return judge_result(
        merged, check.rules, check.finding_rules, inventory, past, overrides=step.overrides
    )


def _list_gone(
    first: Result, last: Result, rulings: Mapping[str, FindingRule]
) -> Iterator[Finding]:
    """List what only the *first* has, but for what asks for a rerun to be judged: it had one."""
    seen = {(finding.code, finding.part_id) for finding in last.findings}
    for finding in first.findings:
        rule = rulings.get(finding.code)
        had_rerun = rule and (rule.verdict, rule.remedy) == (Verdict.ERROR, Remedy.RERUN)
        if (finding.code, finding.part_id) not in seen and not had_rerun:
            yield replace(finding, text=f"{finding.text} ({SEEN_EARLIER})")


def _merge_measurements(first: Result, last: Result) -> Iterator[Measurement]:
    """Take the last value of each; the first one where only that is bad, or there is no other."""
    earlier = {_identify(m): m for m in first.measurements}
    later = {_identify(m) for m in last.measurements}
    outside_first, outside_last = (
        {(c.code, c.part_id) for c in result.faults if c.kind is FaultKind.OUTSIDE}
        for result in (first, last)
    )
    for measurement in last.measurements:
        before = earlier.get(_identify(measurement))
        only_first = _identify(measurement) in outside_first - outside_last
        yield before if before and only_first else measurement
    yield from (m for key, m in earlier.items() if key not in later)


def _identify(item: Measurement) -> tuple[str, str]:
    return item.name, item.part_id
