"""
The key figures of a check: speed, share of the data sheet, change since the last run.

A verdict shows whether limits held. To learn why a training job is slow, people want
TFLOP/s, busbw and GB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from hpcverify.check import format_quantity, matches
from hpcverify.limits.resolve import PastValues
from hpcverify.limits.specs import find_spec
from hpcverify.model import Inventory, Limit, Measurement, Result
from hpcverify.stats import median
from hpcverify.units import convert_unit, scale_unit

FIGURE_METRICS: Mapping[str, tuple[str, ...]] = {
    "allreduce": ("busbw.*", "time_p50.*"),
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
    "thermal": ("temperature.max", "rate.mean"),
    "training": ("tokens",),
}
"""The metrics by check, most important first; a pattern stands for its fastest metric."""
MAX_FIGURES = 2
"""Figures of one check."""
RATE_WORDS = {"1/s": "per second", "1/h": "per hour"}


def format_scaled(value: float | None, unit: str) -> str:
    """Print *value*, given in *unit*, in a unit that suits its size."""
    if value is not None:
        value, unit = scale_unit(value, unit)
    return format_quantity(value, RATE_WORDS.get(unit, unit))


def format_bounds(limit: Limit, format_value: Callable[[float], str]) -> str:
    """Print the range that *limit* admits; *format_value* prints its bounds."""
    if limit.low is not None and limit.high is not None:
        low, high = format_value(limit.low), format_value(limit.high)
        return f"= {low}" if low == high else f"{low} to {high}"
    if limit.low is not None:
        return f"≥ {format_value(limit.low)}"
    return "" if limit.high is None else f"≤ {format_value(limit.high)}"


class Figure(Struct, frozen=True, kw_only=True):
    """One metric over all parts that have it."""

    check: str
    name: str
    unit: str
    typical: float
    """The median over the parts."""
    slowest: Measurement
    parts: int
    share: str = ""
    """Which share of the possible the slowest part reaches, if known."""
    change: str = ""
    """The change of the slowest part since its last run, in per cent, if there is one."""

    def format_value(self, value: float) -> str:
        """Print *value* in a unit that suits its size."""
        return format_scaled(value, self.unit)


def choose_figures(
    result: Result, inventory: Inventory, past: PastValues = lambda _name, _part: ()
) -> tuple[Figure, ...]:
    """
    Choose the figures of *result*; a check outside `FIGURE_METRICS` has none.

    *past* looks up what earlier runs of the node measured, newest first.
    """
    wanted = FIGURE_METRICS.get(result.check, ())
    found = (_find_fastest(pattern, result.measurements) for pattern in wanted)
    names = dict.fromkeys(name for name in found if name)
    return tuple(_build_figure(name, result, inventory, past) for name in names)[:MAX_FIGURES]


def _find_fastest(pattern: str, measurements: Sequence[Measurement]) -> str | None:
    fits = [m for m in measurements if m.value is not None and matches(m.name, pattern)]
    fastest = min(fits, key=_slowness, default=None)
    return fastest.name if fastest else None


def _slowness(item: Measurement) -> float:
    """Order rates and times alike, the fastest first."""
    value = item.value or 0.0
    return -value if item.unit.endswith("/s") else value


def _build_figure(name: str, result: Result, inventory: Inventory, past: PastValues) -> Figure:
    items = [m for m in result.measurements if m.name == name and m.value is not None]
    slowest = max(items, key=_slowness)
    return Figure(
        check=result.check,
        name=name,
        unit=slowest.unit,
        typical=median(m.value or 0.0 for m in items),
        slowest=slowest,
        parts=len(items),
        share=_find_measured_share(slowest, result.measurements)
        or _compute_sheet_share(slowest, inventory),
        change=_compute_change(slowest, past(name, slowest.part_id)),
    )


def _find_measured_share(item: Measurement, among: Sequence[Measurement]) -> str:
    """Print the share that the check itself measured for *item*."""
    wanted = {
        f"{item.name.removesuffix('.sustained')}.of_peak": "of peak",
        f"{item.name}.of_link": "of the link",
        **({"mfu": "MFU"} if item.name == "tokens" else {}),
    }
    for other in among:
        if other.part_id == item.part_id and other.value and other.name in wanted:
            return f"{other.value * 100:.3g} % {wanted[other.name]}"
    return ""


def _compute_sheet_share(item: Measurement, inventory: Inventory) -> str:
    """Print *item* as a share of its part's data sheet, if the sheet has it."""
    promised = find_sheet_value(item, inventory)
    return f"{(item.value or 0.0) / promised * 100:.3g} % of data sheet" if promised else ""


def find_sheet_value(item: Measurement, inventory: Inventory) -> float | None:
    """Find what the data sheet of a GPU promises for *item*, in its unit; None if it does not."""
    part = next((p for p in inventory.of_kind("gpu") if p.id == item.part_id), None)
    spec = find_spec(part) if part else None
    promise = spec.find_promise(item.name.partition(".")[0]) if spec else None
    return convert_unit(promise.value, promise.unit, item.unit) if promise else None


def _compute_change(item: Measurement, past: Sequence[float]) -> str:
    if not past or not past[0]:
        return ""
    if item.unit == "°C":  # a share of a temperature means nothing
        return f"{(item.value or 0.0) - past[0]:+.1f} °C"
    return f"{((item.value or 0.0) / past[0] - 1) * 100:+.1f} %"
