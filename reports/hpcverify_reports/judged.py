"""What was held against which limit, taken apart again for tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpcverify.check import Judgement, applies, judge
from hpcverify.model import Finding, Limit, Measurement, Result, Verdict
from hpcverify_reports.words import format_number

Labeler = Callable[[str], str]
"""Turns the id of a part into what a person calls it."""


@dataclass(frozen=True, slots=True)
class JudgedMeasurement:
    """A measurement, the limits that it was held against, and what came of each."""

    item: Measurement
    judged_limits: tuple[tuple[Limit, Judgement], ...]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that are meant for it."""
        return tuple(limit for limit, _ in self.judged_limits)

    @property
    def broken_limits(self) -> tuple[tuple[Limit, Judgement], ...]:
        """The limits that it is outside of, or that are too noisy to judge by."""
        return tuple(
            (limit, judgement)
            for limit, judgement in self.judged_limits
            if judgement.verdict is not Verdict.PASS
        )

    @property
    def verdict(self) -> Verdict | None:
        """The worst that came of it; None if nothing was held against it."""
        return max((j.verdict for _, j in self.judged_limits), default=None)


def judge_measurements(result: Result) -> tuple[JudgedMeasurement, ...]:
    """Hold every measurement of *result* against its limits, as the engine did."""
    return tuple(
        JudgedMeasurement(
            item,
            tuple(
                (limit, judge([item], [limit], {}))
                for limit in result.limits
                if applies(limit, item)
            ),
        )
        for item in result.measurements
    )


def list_accused(result: Result) -> tuple[str, ...]:
    """List the parts that *result* complains of, each once."""
    broken = [one.item.where for one in judge_measurements(result) if one.broken_limits]
    ruled = [
        finding.where
        for finding in result.findings
        if judge_finding(finding, result) > Verdict.SKIP
    ]
    return tuple(dict.fromkeys([*broken, *ruled]))


def find_unmet_limits(result: Result) -> Iterator[Limit]:
    """Yield the limits of *result* that nothing was measured against."""
    for limit in result.limits:
        if not any(applies(limit, item) for item in result.measurements):
            yield limit


def judge_finding(finding: Finding, result: Result) -> Verdict:
    """Say how *finding* was ruled; one that nobody ruled on is an ERROR."""
    ruling = result.rulings.get(finding.code)
    return Verdict.ERROR if ruling is None else ruling.verdict


def format_range(limit: Limit) -> str:
    """Print the range that *limit* admits."""
    low, high = format_number(limit.low), format_number(limit.high)
    if limit.low is None and limit.high is None:
        return "any number"
    if limit.low is None:
        return f"≤ {high}"
    if limit.high is None:
        return f"≥ {low}"
    return f"= {low}" if limit.low == limit.high else f"{low} to {high}"
