"""Measure a number that the parameters choose."""

from __future__ import annotations

from collections.abc import Iterator

from hpcverify.check import Check, CheckItem, Context, Measurement, Metric, Params, Placement


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
    metrics={"level": Metric("ms", "high", "the number").fail(low=1.0, high=10.0, optional=False)},
    placement=Placement.NODE,
)
