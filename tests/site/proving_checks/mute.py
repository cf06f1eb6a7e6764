"""Measure something, and have no selftest."""

from __future__ import annotations

from hpcverify.check import Check, Metric
from tests.site.acme_checks.steady import SteadyParams, measure

CHECK = Check(
    summary="a check without a selftest",
    measure=measure,
    params=SteadyParams,
    metrics={"level": Metric("ms", "high", "the number").fail(low=1.0, optional=False)},
)
