"""
What a GPU shows under load, read once a second.

Throttled time comes from the cumulative counters (ns), because samples of the event
reasons miss what is shorter than their period.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_int

from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.nvml import get_source, questions
from hpcverify.telemetry.nvml.binding import pynvml as nv
from hpcverify.telemetry.nvml.events import XidEvents
from hpcverify.telemetry.nvml.query import GpuQuery
from hpcverify.telemetry.nvml.questions import (
    MILLI,
    scale,
)
from hpcverify.telemetry.reading import MAX_CELSIUS, Reading

NANO = 1e-9
GAUGE_FIELDS: Mapping[int, tuple[str, str, float]] = {
    nv.NVML_FI_DEV_MEMORY_TEMP: ("temperature.memory", "°C", 1),
    nv.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: ("energy", "J", MILLI),
    nv.NVML_FI_DEV_PCIE_REPLAY_COUNTER: ("pcie.replays", "", 1),
    nv.NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER: ("pcie.recoveries", "", 1),
    nv.NVML_FI_DEV_PERF_POLICY_POWER: ("throttled.sw_power_cap", "s", NANO),
    nv.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: ("throttled.sync_boost", "s", NANO),
}
"""The fields that are read in one call: name, unit, and factor to the unit."""
SLOWDOWNS = ("sw_thermal", "hw_thermal", "hw_power_brake")
"""In the order of `questions.find_slowdown_counters`."""
SAMPLE_PATIENCE_SECONDS = 5.0
"""Seconds for one call until a sample of this GPU is given up, so that the others get theirs."""
LINKS_PERIOD_SECONDS = 10.0
"""Seconds between readings of the NVLink counters: most values of a GPU, and slow ones."""
MIN_THRESHOLD_CELSIUS = 50
"""Slowdown thresholds are 80 °C and more; offsets of T.Limit, which GPUs from Ada on give in
their place, are a few degrees, mostly negative (`nvidia-smi -q` of H100 and B200: -2, -3)."""

DELAY_CODES = frozenset({"gpu_blocked", "gpu_slow", "gpu_unread"})
"""What costs a GPU a sample, and no more: processes that start CUDA hold the driver's lock."""

BENIGN_LINK_ERRORS = frozenset({"recovered", "symbol"})
"""Errors of links that were corrected, as is normal."""


class NvmlReader:
    """Reads all GPUs; a GPU that is in trouble yields that beside what it answers."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._events = XidEvents()
        self._clock = clock
        self._links_due = float("-inf")

    def read(self) -> Iterator[Reading]:
        """Yield what each GPU answers, and the Xids since the last time."""
        question = read_gauges
        if self._clock() >= self._links_due:
            question, self._links_due = read_all, self._clock() + LINKS_PERIOD_SECONDS
        try:
            heard = get_source().ask_all(question, SAMPLE_PATIENCE_SECONDS)
        except NotStartedError:  # the next round tries again
            return
        for answers in heard.answers.values():
            yield from answers
        yield from (
            Reading(f.code, 1.0, "", f.part_id) for f in heard.findings if f.code not in DELAY_CODES
        )
        yield from self._events.read(get_source().list_reachable())

    def close(self) -> None:
        """Let go of the events; NVML itself stays with the process."""
        self._events.close()


def read_all(gpu: GpuQuery) -> list[Reading]:
    """Read everything that is worth a series."""
    readings = read_gauges(gpu)
    if errors := [link.errors for link in questions.read_nvlinks(gpu) or ()]:
        total = sum(v for e in errors for k, v in e.items() if k not in BENIGN_LINK_ERRORS)
        readings.append(Reading("nvlink.errors", float(total), "", gpu.gpu.uuid))
    return readings


def read_gauges(gpu: GpuQuery) -> list[Reading]:
    """Read everything but the links, which take as long as all the rest."""
    gauges = [
        Reading(name, float(value), unit, gpu.gpu.uuid)
        for name, unit, value in (*_read_calls(gpu), *_read_fields(gpu))
        if value is not None
    ]
    return [*gauges, *questions.read_memory_errors(gpu)]


def _read_calls(gpu: GpuQuery) -> Iterator[tuple[str, str, float | None]]:
    celsius = questions.read_temperature(gpu)
    yield "temperature", "°C", celsius
    yield "temperature.headroom", "°C", _read_headroom(gpu, celsius)
    yield "clock", "MHz", gpu.ask(nv.nvmlDeviceGetClockInfo, nv.NVML_CLOCK_SM)
    yield "clock.memory", "MHz", gpu.ask(nv.nvmlDeviceGetClockInfo, nv.NVML_CLOCK_MEM)
    yield "power", "W", scale(MILLI, gpu.ask(nv.nvmlDeviceGetPowerUsage))
    usage = gpu.ask(nv.nvmlDeviceGetUtilizationRates)
    yield "utilization", "ratio", scale(0.01, usage.gpu if usage else None)
    yield "pcie.generation", "", gpu.ask(nv.nvmlDeviceGetCurrPcieLinkGeneration)
    yield "pcie.width", "", gpu.ask(nv.nvmlDeviceGetCurrPcieLinkWidth)
    reasons = gpu.ask(nv.nvmlDeviceGetCurrentClocksEventReasons)
    for name, bit in questions.EVENT_REASON_BITS.items():
        value = None if reasons is None else float(bool(reasons & bit))
        yield f"event.{name}", "", value


def _read_headroom(gpu: GpuQuery, celsius: float | None) -> float | None:
    """Say how far it is to slowdown, in °C: as the GPU says, or by its threshold."""
    margin = gpu.ask(nv.nvmlDeviceGetMarginTemperature)
    if margin is not None:
        return float(margin)
    limit = gpu.ask(nv.nvmlDeviceGetTemperatureThreshold, nv.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    if (
        limit is None
        or celsius is None
        or celsius > MAX_CELSIUS
        or c_int(limit).value < MIN_THRESHOLD_CELSIUS
    ):
        return None
    return float(limit) - celsius


def _read_fields(gpu: GpuQuery) -> Iterator[tuple[str, str, float | None]]:
    counters = questions.find_slowdown_counters(gpu.gpu.driver)
    slowdowns = zip(counters, SLOWDOWNS, strict=False)
    fields = {
        **GAUGE_FIELDS,
        **{field: (f"throttled.{cause}", "s", NANO) for field, cause in slowdowns},
    }
    values = gpu.read_fields(list(fields))
    for (name, unit, factor), value in zip(fields.values(), values, strict=True):
        if name == "temperature.memory" and value is not None and value > MAX_CELSIUS:
            continue
        yield name, unit, scale(factor, value)
