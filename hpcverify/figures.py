"""
The numbers that one asks a check for first: how fast, and how near to its data sheet.

A verdict says that all limits held. Who wants to know why a training is slow asks for
TFLOP/s, busbw and GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcverify.check import GLOB_CHARACTERS, format_quantity, matches
from hpcverify.limits import median
from hpcverify.model import Measurement, Result

FIGURE_METRICS: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("busbw.*",),
    "gemm": ("bf16.sustained", "fp16.sustained", "fp32.sustained"),
    "gpu_memory": ("memory.*",),
    "p2p": ("*.ring", "*.read", "*.write"),
    "pcie_bandwidth": ("h2d", "d2h"),
    "storage": (
        "seq_read.bandwidth",
        "seq_write.bandwidth",
        "cached.seq_read.bandwidth",
        "cached.seq_write.bandwidth",
    ),
    "thermal": ("rate.mean",),
    "training": ("tokens",),
}
"""The metrics by check, the first one first; of a pattern the fastest counts."""
MAX_FIGURES = 2
"""Figures of one check."""
LARGER_UNITS = {"GFLOP/s": "TFLOP/s", "GOP/s": "TOP/s", "MB/s": "GB/s"}
"""The unit to tell a value in from a thousand on."""
THOUSAND = 1000.0
PER_SECOND = "1/s"


class Figure(Struct, frozen=True, kw_only=True):
    """One metric over all parts that have it."""

    check: str
    name: str
    unit: str
    typical: float
    """The median over the parts."""
    slowest: Measurement
    """The part with the least."""
    parts: int
    share: str = ""
    """Which share of the possible the slowest part reaches, if that was measured."""

    def format_value(self, value: float) -> str:
        """Print *value* in the unit that suits it."""
        if self.unit == PER_SECOND:
            return f"{format_quantity(value, '')} per second"
        larger = LARGER_UNITS.get(self.unit)
        if larger is None or value < THOUSAND:
            return format_quantity(value, self.unit)
        return format_quantity(value / THOUSAND, larger)


def choose_figures(result: Result) -> tuple[Figure, ...]:
    """Choose the figures of *result*; a check that is not listed here has none."""
    wanted = FIGURE_METRICS.get(result.check, ())
    found = (_find_fastest(pattern, result.measurements) for pattern in wanted)
    names = dict.fromkeys(name for name in found if name)
    return tuple(_build_figure(name, result) for name in names)[:MAX_FIGURES]


def _find_fastest(pattern: str, measurements: Sequence[Measurement]) -> str | None:
    """Name the metric that *pattern* stands for."""
    fits = [m for m in measurements if m.value is not None and matches(m.name, pattern)]
    rates = [m for m in fits if m.unit.endswith("/s")] if _is_glob(pattern) else fits
    fastest = max(rates, key=_value_or_zero, default=None)
    return fastest.name if fastest else None


def _is_glob(pattern: str) -> bool:
    return not GLOB_CHARACTERS.isdisjoint(pattern)


def _build_figure(name: str, result: Result) -> Figure:
    values = [m for m in result.measurements if m.name == name and m.value is not None]
    slowest = min(values, key=_value_or_zero)
    return Figure(
        check=result.check,
        name=name,
        unit=slowest.unit,
        typical=median(map(_value_or_zero, values)),
        slowest=slowest,
        parts=len(values),
        share=_describe_share(slowest, result.measurements),
    )


def _value_or_zero(item: Measurement) -> float:
    return item.value or 0.0


def _describe_share(item: Measurement, among: Sequence[Measurement]) -> str:
    """Say what the check itself measured *item* to be a share of."""
    wanted = {
        f"{item.name.removesuffix('.sustained')}.of_peak": "of peak",
        f"{item.name}.of_link": "of the link",
        **({"mfu": "MFU"} if item.name == "tokens" else {}),
    }
    for other in among:
        if other.where == item.where and other.value and other.name in wanted:
            return f"{other.value * 100:.3g} % {wanted[other.name]}"
    return ""
