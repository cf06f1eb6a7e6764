"""Measure something, and have no selftest."""

from __future__ import annotations

from hpcverify.check import Check, Metric, Rule
from tests.site.acme_checks.steady import SteadyParams, measure

CHECK = Check(
    summary="a check without a selftest",
    measure=measure,
    params=SteadyParams,
    metrics={"level": Metric(unit="ms", worse="high", meaning="the number")},
    rules={"level": Rule(low=1.0)},
)
