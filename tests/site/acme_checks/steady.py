"""Measure a number that the parameters choose."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Check, CheckItem, Context, Measurement, Metric, Params, Placement, Rule


class SteadyParams(Params, frozen=True):
    """What to say was measured."""

    value: float = 5.0


def measure(ctx: Context, params: SteadyParams) -> Iterator[CheckItem]:
    """Say it."""
    yield Measurement("level", params.value, "ms", ctx.device.part)


CHECK = Check(
    summary="a number that the parameters choose",
    measure=measure,
    params=SteadyParams,
    metrics={"level": Metric(unit="ms", worse="high", meaning="the number")},
    rules={"level": Rule(low=1.0, high=10.0)},
    placement=Placement.NODE,
)
