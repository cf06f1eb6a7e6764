"""
The numbers that one asks a check for first: how fast, and how near to its data sheet.

A verdict says that all limits held. Who wants to know why a training is slow asks for
TFLOP/s, busbw and GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from hpcverify.check import GLOB, matches, quantity
from hpcverify.limits import median
from hpcverify.model import Measurement, Result

FIRST: Mapping[str, tuple[str, ...]] = {
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
MOST = 2
"""Figures of one check."""
LARGER = {"GFLOP/s": "TFLOP/s", "GOP/s": "TOP/s", "MB/s": "GB/s"}
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

    def told(self, value: float) -> str:
        """Print *value* in the unit that suits it."""
        if self.unit == PER_SECOND:
            return f"{quantity(value, '')} per second"
        larger = LARGER.get(self.unit)
        if larger is None or value < THOUSAND:
            return quantity(value, self.unit)
        return quantity(value / THOUSAND, larger)


def figures(result: Result) -> tuple[Figure, ...]:
    """Choose the figures of *result*; a check that is not listed here has none."""
    wanted = FIRST.get(result.check, ())
    found = (_fastest(pattern, result.measurements) for pattern in wanted)
    names = dict.fromkeys(name for name in found if name)
    return tuple(_figure(name, result) for name in names)[:MOST]


def _fastest(pattern: str, measurements: Sequence[Measurement]) -> str | None:
    """Name the metric that *pattern* stands for."""
    fits = [m for m in measurements if m.value is not None and matches(m.name, pattern)]
    rates = [m for m in fits if m.unit.endswith("/s")] if _is_glob(pattern) else fits
    fastest = max(rates, key=_value, default=None)
    return fastest.name if fastest else None


def _is_glob(pattern: str) -> bool:
    return not GLOB.isdisjoint(pattern)


def _figure(name: str, result: Result) -> Figure:
    values = [m for m in result.measurements if m.name == name and m.value is not None]
    slowest = min(values, key=_value)
    return Figure(
        check=result.check,
        name=name,
        unit=slowest.unit,
        typical=median(map(_value, values)),
        slowest=slowest,
        parts=len(values),
        share=_share(slowest, result.measurements),
    )


def _value(item: Measurement) -> float:
    return item.value or 0.0


def _share(item: Measurement, among: Sequence[Measurement]) -> str:
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
