"""
Each measurement with its limits and what came of them, for tables.

All values of a metric are in one unit that suits their size, and so are its limits: a check
stores GFLOP/s where people read TFLOP/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from hpcverify.check import LimitIndex
from hpcverify.model import Fault, Limit, Measurement, Result, Verdict
from hpcverify.summary.actions import FaultIndex
from hpcverify.summary.wording import format_bounds
from hpcverify.units import choose_unit
from hpcverify_reports.labels import format_number


@dataclass(frozen=True, slots=True)
class JudgedMeasurement:
    """A measurement with the limits that apply to it, and the faults of the judge."""

    item: Measurement
    limits: tuple[Limit, ...]
    faults: tuple[Fault, ...]

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict; None without a limit."""
        passed = [Verdict.PASS] if self.limits else []
        return max([*(c.verdict for c in self.faults), *passed], default=None)


def pair_measurements(result: Result) -> tuple[JudgedMeasurement, ...]:
    """Pair every measurement of *result* with its limits and with what came of them."""
    values: dict[tuple[str, str], list[float | None]] = {}
    for item in result.measurements:
        values.setdefault((item.name, item.unit), []).append(item.value)
    units = {(name, unit): choose_unit(some, unit) for (name, unit), some in values.items()}
    limits, faults = LimitIndex(result.limits), FaultIndex(result)
    return tuple(
        _scale_judged(
            JudgedMeasurement(item, tuple(limits.find(item)), tuple(faults.find(item))),
            *units[item.name, item.unit],
        )
        for item in result.measurements
    )


def _scale_judged(judged: JudgedMeasurement, unit: str, factor: float) -> JudgedMeasurement:
    """Multiply everything by *factor*, which makes it a value in *unit*."""
    item = judged.item
    value = _scale(item.value, factor)
    return JudgedMeasurement(
        replace(item, value=value, unit=unit),
        tuple(_scale_limit(limit, factor) for limit in judged.limits),
        tuple(
            replace(c, value=value, unit=unit, limit=c.limit and _scale_limit(c.limit, factor))
            for c in judged.faults
        ),
    )


def _scale_limit(limit: Limit, factor: float) -> Limit:
    return replace(limit, low=_scale(limit.low, factor), high=_scale(limit.high, factor))


def _scale(value: float | None, factor: float) -> float | None:
    return value if value is None or factor == 1 else value * factor


def format_range(limit: Limit) -> str:
    """Print the range that *limit* admits."""
    return format_bounds(limit, format_number) or "any number"
