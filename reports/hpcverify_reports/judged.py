"""
Each measurement with its limits and what came of them, for tables.

All values of a metric are in one unit that suits their size, and so are its limits: a check
stores GFLOP/s where people read TFLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from hpcverify.check import Judgement, applies, list_judgements
from hpcverify.model import Finding, FindingRule, Limit, Measurement, Remedy, Result, Verdict
from hpcverify.summary.wording import format_bounds
from hpcverify.units import choose_unit
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
    values: dict[tuple[str, str], list[float | None]] = {}
    for item in result.measurements:
        values.setdefault((item.name, item.unit), []).append(item.value)
    units = {(name, unit): choose_unit(some, unit) for (name, unit), some in values.items()}
    judged = (
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
    return tuple(_scale(one, *units[one.item.name, one.item.unit]) for one in judged)


def _scale(one: JudgedMeasurement, unit: str, factor: float) -> JudgedMeasurement:
    """Multiply the value and the limits of *one* by *factor*, which makes them of *unit*."""
    if factor == 1:
        return one
    value = None if one.item.value is None else one.item.value * factor
    return JudgedMeasurement(
        replace(one.item, value=value, unit=unit),
        tuple(
            (
                replace(
                    limit,
                    low=None if limit.low is None else limit.low * factor,
                    high=None if limit.high is None else limit.high * factor,
                ),
                judgement,
            )
            for limit, judgement in one.judged_limits
        ),
    )


def find_rule(finding: Finding, result: Result) -> FindingRule:
    """Find the rule for *finding*; without one it is an ERROR."""
    return result.rulings.get(finding.code, UNKNOWN_FINDING_RULE)


def format_range(limit: Limit) -> str:
    """Print the range that *limit* admits."""
    return format_bounds(limit, format_number) or "any number"
