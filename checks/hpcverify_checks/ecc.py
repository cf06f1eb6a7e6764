"""
Memory errors, of the host by EDAC and of GPUs by NVML: now, and over the run.

A fault of memory shows under load: one fleet saw thousands of corrected errors a
second that were exactly none when idle. So this check comes last in a suite, is
given the samples of the whole run, and judges what the counters did meanwhile,
apart from what they have gathered over the life of the part.

Corrected errors are judged by the worst minute, not by the mean of the run, in
which a burst would drown. A counter that falls was reset under way; what it shows
then is new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from hpcverify.check import (
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Rule,
    Sample,
    Skip,
    Unable,
    Watch,
)
from hpcverify.model import (
    Cause,
    Covered,
    Finding,
    Found,
    Measurement,
    Remedy,
    Ruling,
    Verdict,
)
from hpcverify.telemetry import Reading, problems, readers

COUNTERS = ("ecc.", "remap.", "retired.")
"""How the names of the series begin that tell of memory errors."""

CHANGING = ("ecc.corrected", "ecc.uncorrected")
SHORTEST = 10.0
"""Seconds: over less than this a single error would make a rate."""


class EccParams(Params, frozen=True):
    """Over how long to take the rate of corrected errors."""

    window: float = 60.0
    """Seconds: the worst stretch of this length counts."""


def measure(ctx: Context, params: EccParams) -> Iterator[Found]:
    """Yield what the counters show now, and what they have gathered so far."""
    yield from read_counters(ctx, Path("/"))


def read_counters(ctx: Context, root: Path) -> Iterator[Found]:
    """Read the counters of the machine whose file system begins at *root*."""
    read = list(read_now(ctx, root))
    counters = [r for r in read if r.name.startswith(COUNTERS)]
    unwell = [r for r in read if r.name in problems.BROKEN]
    if not counters and not unwell:
        raise nothing_to_read(ctx)
    for reading in counters:
        yield Measurement(reading.name, reading.value, reading.unit, reading.where)
        if reading.name == "ecc.mode" and not reading.value:
            text = "ECC is off although this GPU has it: nvidia-smi -e 1, then reset"
            yield Finding("ecc_disabled", reading.where, text)
    for reading in unwell:
        text = f"the GPU answers no more: {reading.name.replace('_', ' ')}"
        yield Finding(reading.name, reading.where, text)
    yield from inforoms(counters)
    for where in sorted({r.where for r in counters}):
        yield Covered(where, "error counters read")


def read_now(ctx: Context, root: Path) -> Iterator[Reading]:
    """Read each of the node's readers once."""
    for reader in readers(ctx.inventory, root):
        with closing(reader):
            yield from reader.read()


def nothing_to_read(ctx: Context) -> Skip | Unable:
    """Say why there is no counter: no sensor, or a driver that is not there."""
    blocked = next(iter(problems.of_view(ctx.inventory)), None)
    if blocked:
        return Unable(blocked.text, problems.VIEW[blocked.code])
    return Skip(
        "no EDAC driver and no GPU that counts memory errors on this machine",
        Cause.NOT_OBSERVABLE,
    )


def inforoms(counters: Sequence[Reading]) -> Iterator[Finding]:
    """Check the memory in which GPUs keep these records, where there are GPUs."""
    if not any(r.name == "ecc.mode" for r in counters):
        return
    from hpcverify.telemetry.nvml import invalid_inforoms

    for uuid, why in invalid_inforoms():
        text = f"the InfoROM, which keeps the error records, is invalid: {why}"
        yield Finding("gpu_inforom_corrupted", uuid, text)


def observe(watch: Watch, ctx: Context, params: EccParams) -> Iterator[Found]:
    """Yield what the counters did from the first sample of the run to the last."""
    for name in problems.BROKEN:
        for where, _ in watch.series(name):
            text = f"the GPU stopped answering during the run: {name.replace('_', ' ')}"
            yield Finding(name, where, text)
    for name in CHANGING:
        for where, samples in watch.series(name):
            if len(samples) < 2:  # noqa: PLR2004 - a difference needs two
                continue
            total = increases(samples)
            yield Measurement(f"{name}.delta", total[-1], "", where)
            if name == "ecc.corrected":
                rate = worst_rate(samples, total, params.window)
                yield Measurement("ecc.corrected.rate", rate, "1/s", where)


def increases(samples: Sequence[Sample]) -> list[float]:
    """Add up what a counter rose by until each sample, across resets to zero."""
    total = [0.0]
    for before, after in pairwise(samples):
        step = after.value - before.value
        total.append(total[-1] + (step if step >= 0 else after.value))
    return total


def worst_rate(
    samples: Sequence[Sample], total: Sequence[float], window: float
) -> float:
    """Find the highest rate (1/s) over any stretch of *window* seconds or less."""
    worst, first = 0.0, 0
    for last in range(1, len(samples)):
        while samples[last].t - samples[first].t > window and first < last - 1:
            first += 1
        seconds = max(samples[last].t - samples[first].t, SHORTEST)
        worst = max(worst, (total[last] - total[first]) / seconds)
    return worst


CHECK = Check(
    summary="ECC errors, remapped rows and retired pages, over the run and now",
    measure=measure,
    observe=observe,
    params=EccParams,
    metrics={
        "ecc.corrected.delta": Metric(unit="", meaning="corrected during the run"),
        "ecc.uncorrected.delta": Metric(unit="", meaning="uncorrected in the run"),
        "ecc.corrected.rate": Metric(unit="1/s", meaning="corrected, worst minute"),
        "ecc.corrected": Metric(unit="", meaning="corrected since the driver started"),
        "ecc.uncorrected": Metric(unit="", meaning="uncorrected since then"),
        "ecc.*.lifetime": Metric(unit="", meaning="errors over the life of the part"),
        "ecc.mode": Metric(unit="", meaning="1 if ECC is on"),
        "ecc.sram_threshold": Metric(unit="", meaning="1 past NVIDIA's SRAM limit"),
        "remap.*": Metric(unit="", meaning="memory rows remapped, or waiting for it"),
        "retired.*": Metric(unit="", meaning="memory pages retired, or about to be"),
    },
    rules={
        "ecc.uncorrected.delta": Rule(high=0, optional=True),
        "ecc.corrected.rate": Rule(high=1, otherwise=Verdict.WARN, optional=True),
        "ecc.uncorrected": Rule(high=0, otherwise=Verdict.WARN, optional=True),
        "ecc.sram_threshold": Rule(
            high=0,
            remedy=Remedy.CONTACT_VENDOR,
            optional=True,
            source="NVML's SRAM threshold flag",
        ),
        "remap.failed": Rule(
            high=0,
            remedy=Remedy.REPLACE,
            optional=True,
            source="NVIDIA memory error management: a failed row remap",
        ),
        "remap.uncorrectable": Rule(
            high=511,
            remedy=Remedy.CONTACT_VENDOR,
            optional=True,
            source="DCGM 4.6: 512 uncorrectable remaps",
        ),
        "remap.pending": Rule(
            high=0,
            otherwise=Verdict.WARN,
            remedy=Remedy.RESET_GPU,
            optional=True,
            source="NVIDIA memory error management: a remap waits for a reset",
        ),
        "retired.pending": Rule(
            high=0,
            otherwise=Verdict.WARN,
            remedy=Remedy.RESET_GPU,
            optional=True,
            source="NVIDIA page retirement: it takes effect with a reset",
        ),
        "retired.double_bit": Rule(
            high=62,
            remedy=Remedy.REPLACE,
            optional=True,
            source="DCGM 4.6: 63 retired pages",
        ),
    },
    rulings={
        "ecc_disabled": Ruling(Verdict.WARN, Remedy.FIX_CONFIGURATION),
        "gpu_inforom_corrupted": Ruling(Verdict.FAIL, Remedy.CONTACT_VENDOR),
        "gpu_lost": Ruling(Verdict.FAIL, Remedy.REBOOT),
        "gpu_reset_required": Ruling(Verdict.FAIL, Remedy.RESET_GPU),
        "gpu_missing": Ruling(Verdict.FAIL, Remedy.REBOOT),
        "gpu_unpowered": Ruling(Verdict.FAIL, Remedy.INSPECT),
    },
    placement=Placement.PASSIVE,
    timeout=60,
)
