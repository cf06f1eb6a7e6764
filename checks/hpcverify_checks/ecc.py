"""
Memory errors of the host (EDAC) and of GPUs: now, since the last run, and in the run.

Bad memory shows under load: one fleet saw thousands of corrected errors a second, and
exactly none when idle. So this check runs last in a suite, gets the samples of the
whole run, and judges how the counters rose in it, apart from the total over the life of
the part. It also keeps the counts for the next run, to judge what the jobs in between
did: that needs no load and no sampler, only counters that survive, such as those that a
GPU keeps in its InfoROM.

Corrected errors are judged by the worst minute: the mean of the run would hide a burst.
A counter that falls was reset in between, and what it shows then is new.

Not every trace of bad memory is a fault now. An uncorrected error fails the node,
whether the row is remapped (DRAM) or not (SRAM, where only NVIDIA's threshold tells bad
luck from a bad part): work was lost, and the GPU must be reset before the next job. One
event is one failure: a run after the reset finds nothing new. A remap that waits for a
reset only warns, unlike in DCGM: "new workloads can be launched", NVIDIA says, since
the page is out of use. If the driver itself asks for a reset, the check `recovery`
fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.telemetry import Reading, problems
from hpcverify.telemetry.edac import EdacReader
from hpcverify.telemetry.gpus import GpuAnswers
from hpcverify.telemetry.vendors import SourceFinder, find_source
from hpcverify.units import HOUR_SECONDS
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.counters import (
    SNAPSHOT_NAME,
    Growth,
    Moment,
    compare_with_last_run,
    find_peak_rate,
    read_moment,
    sum_increases,
)
from hpcverify_checks.node.fixes import write_fix
from hpcverify_checks.node.parts import find_model, look_up_spec

RUN_COUNTERS = (
    "ecc.corrected",
    "ecc.uncorrected",
    "ecc.sram.uncorrected",
    "remap.correctable",
    "remap.uncorrectable",
)
"""Series that are judged by their rise during the run."""
RETIRED_PAGES = ("retired.single_bit", "retired.double_bit")
"""On GPUs before Ampere, which have room for 64 pages."""
PERSISTENT_COUNTERS = (
    "ecc.host.corrected",
    "ecc.host.uncorrected",
    "ecc.corrected.lifetime",
    "ecc.uncorrected.lifetime",
    "ecc.sram.uncorrected.lifetime",
    "remap.correctable",
    "remap.uncorrectable",
    *RETIRED_PAGES,
)
"""Counters that are judged by their rise since the last run. Those of the host start
again at each boot; the others last for life."""
LOST_GPU_CODES = (*problems.BROKEN_CODES, "gpu_hung")
"""Failures that are permanent, however briefly they were sampled."""
ECC_OFF_NAME_PREFIXES = ("NVIDIA RTX", "NVIDIA GeForce", "NVIDIA TITAN", "Quadro")
"""Boards for workstations are delivered with ECC off (`nvidia-smi -a` of RTX 6000 Ada, 4000 Ada,
2000 Ada and GeForce RTX 4090 in thamada/nvidia-smi), all other parts with it on."""
MIN_RATE_SECONDS = 10.0
"""Over less than this, a single error would count as a rate."""
MIN_SINCE_SECONDS = 60.0
"""The same between two runs, whose clock has whole seconds and may be changed."""
WARN_ERRORS_PER_SECOND, FAIL_ERRORS_PER_SECOND = 1.0, 100.0
"""
Corrected errors per second: what is worth a look, and what no good memory does.

A good GPU counts a handful a year; one of NVIDIA's own cases counted 4,647 to 17,657 a
second under load and none at rest (NVIDIA/NVSentinel issue 1748). No vendor gives a
limit in between: both figures are inferred. At `FAIL_ERRORS_PER_SECOND` a GPU takes 56
hours of work to reach the 20 million at which Azure's node health checks reject it.
"""

NOT_COUNTED = "nothing on this machine counts memory errors: no EDAC driver, no GPU with ECC"

EccAnswers = GpuAnswers[tuple[Reading, ...]]
"""The memory error readings of all GPUs."""


class EccParams(hv.Params, frozen=True):
    """The window for the rate of corrected errors."""

    window: Annotated[float, Meta(gt=0)] = 60.0
    """In seconds; the worst window of the run counts."""


def measure(
    ctx: hv.Context, params: EccParams, find: SourceFinder = find_source
) -> Iterator[hv.CheckItem]:
    """Report the counters, and how much they rose since the last run."""
    yield from read_counters(
        ctx, Path("/"), lambda: gpu_source.open_gpu_source(ctx, find).read_memory_errors()
    )


def read_counters(
    ctx: hv.Context, root: Path, ask: Callable[[], EccAnswers]
) -> Iterator[hv.CheckItem]:
    """
    Read the counters of the host with file system *root*, then those of the GPUs.

    Raises:
        Skip: nothing here counts memory errors.
        Unable: *ask* could not query the GPUs.

    """
    host = [replace(r, name=_name_host_counter(r.name)) for r in EdacReader(root).read()]
    yield from _report_counters(ctx, host, read_moment(root))
    unobservable = NOT_COUNTED
    try:
        reply = ask()
    except (hv.Skip, hv.Unable) as exc:
        yield from _carry_over_unread(ctx, host)
        if isinstance(exc, hv.Unable):
            raise
        if exc.cause is hv.Cause.NOT_OBSERVABLE:
            unobservable = str(exc)
            yield hv.Coverage("node", unobservable)
        reply = GpuAnswers()
    else:
        gpus = [reading for answer in reply.answers.values() for reading in answer]
        yield from _report_counters(ctx, gpus, Moment("", time.time()))
        yield from _carry_over_unread(ctx, [*host, *gpus])
    facts = [*report_modes(ctx, reply)]
    # A GPU without ECC has no counters: that explains the queries it does not answer.
    without = {fact.part_id for fact in facts}
    facts += (f for f in reply.findings if f.code != "gpu_unlike" or f.part_id not in without)
    yield from facts
    yield from reply.unanswered
    if not (host or facts or any(reply.answers.values())):
        raise hv.Skip(unobservable, hv.Cause.NOT_OBSERVABLE)


def _name_host_counter(name: str) -> str:
    # The host is judged by other rules than a GPU.
    return name.replace("ecc.", "ecc.host.", 1)


def _report_counters(
    ctx: hv.Context, readings: Sequence[Reading], now: Moment
) -> Iterator[hv.CheckItem]:
    for part_id in dict.fromkeys(r.part_id for r in readings):
        own = [r for r in readings if r.part_id == part_id]
        yield from (hv.Measurement(r.name, r.value, r.unit, part_id) for r in own)
        pages = [r.value for r in own if r.name in RETIRED_PAGES]
        if pages:
            yield hv.Measurement("retired.pages", sum(pages), "", part_id)
        counts = {r.name: int(r.value) for r in own if r.name in PERSISTENT_COUNTERS}
        growth = compare_with_last_run(ctx, part_id, counts, now)
        if growth.from_last_run or growth.restarted:
            for counter, rise in growth.last.counts.items():
                name = counter.removesuffix(".lifetime")
                yield hv.Measurement(f"{name}.since", rise, "", part_id)
                rate = growth.last.compute_rate(rise, MIN_SINCE_SECONDS)
                if name in ("ecc.corrected", "ecc.host.corrected") and rate is not None:
                    value = rate / MIN_SINCE_SECONDS
                    yield hv.Measurement(f"{name}.since.rate", value, "1/s", part_id)
        yield growth.carry_over
        yield hv.Coverage(part_id, describe_coverage(len(own), growth))


def describe_coverage(counters: int, growth: Growth) -> str:
    """Say how many counters were read, and what they were compared with."""
    read = f"{counters} memory error counters read"
    if growth.restarted:
        return f"{read}; all counts are new since the node booted"
    if not growth.from_last_run:
        return f"{read}; no earlier run to compare with"
    ago = growth.last.seconds
    if ago is None:
        return f"{read} and compared with the last run"
    age = f"{ago / HOUR_SECONDS:.1f} h" if ago > HOUR_SECONDS else f"{ago:.0f} s"
    return f"{read} and compared with {age} ago"


def _carry_over_unread(ctx: hv.Context, read: Sequence[Reading]) -> Iterator[hv.CarryOver]:
    fresh = {reading.part_id for reading in read}
    yield from (m for m in ctx.carry_overs if m.name == SNAPSHOT_NAME and m.part_id not in fresh)


def report_modes(ctx: hv.Context, reply: EccAnswers) -> Iterator[hv.Finding]:
    """Report the GPUs that run without ECC, or will after the next reset."""
    unwell = {f.part_id for f in reply.findings if f.code != "gpu_unlike"}
    for uuid, readings in reply.answers.items():
        values = {r.name: r.value for r in readings}
        mode, spec = values.get("ecc.mode"), look_up_spec(ctx, uuid)
        if mode is not None:
            pending = values.get("ecc.mode.pending", mode)
            enable = write_fix("ecc", gpu_source.name_vendor(ctx))
            name = find_model(ctx, uuid)
            yield from _report_mode(uuid, name, enable, on=bool(mode), next_on=bool(pending))
        elif (
            spec
            and uuid not in unwell
            and not any(n.startswith("ecc.") and not n.startswith("ecc.mode") for n in values)
        ):
            text = "reports no ECC, although its data sheet lists it"
            yield hv.Finding("ecc_unsupported", uuid, text)


def _report_mode(
    uuid: str, name: str, enable: str, *, on: bool, next_on: bool
) -> Iterator[hv.Finding]:
    if on and not next_on:
        yield hv.Finding("ecc_disabled", uuid, f"ECC will be off after the next reset: {enable}")
    elif next_on and not on:
        yield hv.Finding("ecc_reset_due", uuid, "ECC is off until this GPU is reset")
    elif not on and name.startswith(ECC_OFF_NAME_PREFIXES):
        text = f"ECC is off, as boards for workstations are delivered: {enable} turns it on"
        yield hv.Finding("ecc_off_as_delivered", uuid, text)
    elif not on:
        text = f"ECC is off although this GPU has it: {enable}, then reset"
        yield hv.Finding("ecc_disabled", uuid, text)


def observe(watch: hv.Watch, ctx: hv.Context, params: EccParams) -> Iterator[hv.CheckItem]:
    """Report how the counters rose from the first sample of the run to the last."""
    for code in LOST_GPU_CODES:
        for part_id, samples in watch.group_by_part(code):
            after = samples[0].t - watch.start
            yield hv.Finding(code, part_id, f"{code.replace('_', ' ')}, {after:.0f} s into the run")
    for part_id, samples in watch.group_by_part(problems.MUTE):
        span = f"{samples[0].t - watch.start:.0f} to {samples[-1].t - watch.start:.0f} s"
        text = f"answered no call {span} into the run: was it reset meanwhile?"
        yield hv.Finding("gpu_pause", part_id, text)
    gpus = {gpu.id for gpu in ctx.inventory.of_kind("gpu")}
    for series in RUN_COUNTERS:
        for part_id, samples in watch.group_by_part(series):
            if len(samples) < 2:  # noqa: PLR2004 - a difference needs two
                continue
            name = series if part_id in gpus else _name_host_counter(series)
            rise = sum_increases(samples)[-1][1]
            yield hv.Measurement(f"{name}.delta", rise, "", part_id)
            if series == "ecc.corrected":
                for suffix, shortest in (("rate", MIN_RATE_SECONDS), ("sustained", params.window)):
                    rate = find_peak_rate(samples, params.window, shortest)
                    yield hv.Measurement(f"{name}.{suffix}", rate, "1/s", part_id)


LOST_WORK = {
    "high": 0,
    "remedy": hv.Remedy.RESET_GPU,
    "conclusive": True,
    "source": "uncorrected errors lose work: reset, rerun",
}
LOST_WORK_OF_HOST = {"high": 0, "conclusive": True}
REMAPPED = {
    "high": 0,
    "remedy": hv.Remedy.RERUN,
    "source": "further rows or pages may fail: load the GPU again",
}
MANY = {"high": WARN_ERRORS_PER_SECOND, "source": "good memory corrects a handful in a year"}
TOO_MANY = {"high": FAIL_ERRORS_PER_SECOND, "source": "no good memory corrects that many"}
RESET_DUE = {"high": 0, "remedy": hv.Remedy.RESET_GPU}

CHECK = hv.Check(
    summary="ECC errors, remapped rows, retired pages: now, since the last run, in this run",
    measure=measure,
    observe=observe,
    params=EccParams,
    metrics={
        "ecc.corrected.rate": hv.Metric("1/s", "high", "corrected, worst minute").warn(**MANY),
        "ecc.corrected.sustained": hv.Metric(
            "1/s", "high", "the same, a shorter run spread over a minute"
        ).fail(**TOO_MANY, remedy=hv.Remedy.CONTACT_VENDOR),
        "ecc.corrected.since.rate": hv.Metric(
            "1/s", "high", "corrected since the last run, on average"
        ).warn(**MANY),
        "ecc.host.corrected.rate": hv.Metric("1/s", "high", "the same for a DIMM").warn(**MANY),
        "ecc.host.corrected.sustained": hv.Metric("1/s", "high", "the same").fail(**TOO_MANY),
        "ecc.host.corrected.since.rate": hv.Metric("1/s", "high", "the same").warn(**MANY),
        "ecc.*.delta": hv.Metric("", "high", "errors during the run")
        .fail("ecc.uncorrected.delta", "ecc.sram.uncorrected.delta", **LOST_WORK)
        .fail("ecc.host.uncorrected.delta", **LOST_WORK_OF_HOST),
        "ecc.*.since": hv.Metric("", "high", "errors since the last run")
        .fail("ecc.uncorrected.since", "ecc.sram.uncorrected.since", **LOST_WORK)
        .fail("ecc.host.uncorrected.since", **LOST_WORK_OF_HOST),
        "ecc.*.lifetime": hv.Metric("", "high", "errors over the life of the part"),
        "ecc.host.*": hv.Metric("", "high", "host memory errors since boot").warn(
            "ecc.host.uncorrected", high=0
        ),
        "ecc.corrected": hv.Metric("", "high", "corrected since the driver started"),
        "ecc.uncorrected": hv.Metric("", "high", "uncorrected since then").warn(
            **RESET_DUE, source="uncorrected since the driver started: a reset clears it"
        ),
        "ecc.sram.*": hv.Metric("", "high", "errors in caches and registers"),
        "ecc.dram.*": hv.Metric("", "high", "errors in the memory itself"),
        "ecc.mode": hv.Metric("", "low", "1 if ECC is on"),
        "ecc.mode.pending": hv.Metric("", "low", "1 if it is on after a reset"),
        "ecc.sram_threshold": hv.Metric("", "high", "1 past NVIDIA's SRAM limit").fail(
            high=0, remedy=hv.Remedy.CONTACT_VENDOR, source="NVML's SRAM threshold flag"
        ),
        "remap.banks.*": hv.Metric("", "neither", "banks by spare rows left").warn(
            "remap.banks.none",
            high=0,
            remedy=hv.Remedy.CONTACT_VENDOR,
            source="banks without a spare row: the next bad one there cannot be remapped",
        ),
        "remap.*": hv.Metric("", "high", "memory rows remapped, or waiting for it")
        .fail(
            "remap.failed",
            high=0,
            remedy=hv.Remedy.REPLACE,
            conclusive=True,
            source="NVIDIA memory error management: a failed row remap",
        )
        .fail(
            "remap.uncorrectable",
            high=511,
            remedy=hv.Remedy.CONTACT_VENDOR,
            source="DCGM 4.6: 512 uncorrectable remaps",
        )
        .warn(
            "remap.pending",
            **RESET_DUE,
            source="NVIDIA memory error management: a remap waits for a reset",
        )
        .warn(
            "remap.bank.pending",
            **RESET_DUE,
            source="Blackwell and later: a bank remap waits for a reset",
        )
        .warn(
            "remap.bank.exhausted",
            high=0,
            remedy=hv.Remedy.CONTACT_VENDOR,
            source="groups without a spare bank: the next bad one there cannot be remapped",
        )
        .warn("remap.*.delta", "remap.*.since", **REMAPPED),
        "retired.*": hv.Metric("", "high", "memory pages retired, or about to be")
        .warn("retired.*.since", **REMAPPED)
        .warn(
            "retired.pending",
            **RESET_DUE,
            source="NVIDIA page retirement: it takes effect with a reset",
        )
        .fail(
            "retired.pages", high=62, remedy=hv.Remedy.REPLACE, source="DCGM 4.6: 63 retired pages"
        ),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        **hv.listed("gpu_pause", "ecc_off_as_delivered"),
        **hv.warn_on("ecc_disabled", remedy=hv.Remedy.FIX_CONFIGURATION),
        **hv.warn_on("ecc_reset_due", remedy=hv.Remedy.RESET_GPU),
        **hv.warn_on("ecc_unsupported"),
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
