"""Each measurement with its limits and what came of them, for tables."""

from __future__ import annotations

from dataclasses import dataclass

from hpcverify.check import Judgement, applies, list_judgements
from hpcverify.model import Finding, FindingRule, Limit, Measurement, Remedy, Result, Verdict
from hpcverify.summary.wording import format_bounds
from hpcverify_reports.labels import format_number

UNKNOWN_FINDING_RULE = FindingRule(Verdict.ERROR, Remedy.FIX_CHECKER)
"""The rule for a finding whose code has none."""


@dataclass(frozen=True, slots=True)
class JudgedMeasurement:
    """A measurement, its limits, and the judgement by each."""

    item: Measurement
    judged_limits: tuple[tuple[Limit, Judgement], ...]

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The limits that apply to it."""
        return tuple(limit for limit, _ in self.judged_limits)

    @property
    def broken_limits(self) -> tuple[tuple[Limit, Judgement], ...]:
        """The limits that it exceeds, or that are too noisy to judge by."""
        return tuple(
            (limit, judgement)
            for limit, judgement in self.judged_limits
            if judgement.verdict is not Verdict.PASS
        )

    @property
    def verdict(self) -> Verdict | None:
        """The worst judgement; None without a limit."""
        return max((j.verdict for _, j in self.judged_limits), default=None)


def judge_measurements(result: Result) -> tuple[JudgedMeasurement, ...]:
    """Judge every measurement of *result* by its limits, as the engine did."""
    passed = Judgement(verdict=Verdict.PASS)
    return tuple(
        JudgedMeasurement(
            item,
            tuple(
                (limit, next(iter(list_judgements([item], [limit], {})), passed))
                for limit in result.limits
                if applies(limit, item)
            ),
        )
        for item in result.measurements
    )


def find_rule(finding: Finding, result: Result) -> FindingRule:
    """Find the rule for *finding*; without one it is an ERROR."""
    return result.rulings.get(finding.code, UNKNOWN_FINDING_RULE)


def format_range(limit: Limit) -> str:
    """Print the range that *limit* admits."""
    return format_bounds(limit, format_number) or "any number"
