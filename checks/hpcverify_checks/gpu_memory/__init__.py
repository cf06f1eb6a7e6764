"""
Test nearly all memory of a GPU with March C-, and measure its bandwidth.

The memory is allocated in chunks until only a small reserve is free, and the share
that was tested is itself judged: memory that could not be allocated was not tested and
does not pass. Only what no process can have does not count: a context and the reserve,
what a display server holds, and on a superchip pages of the host.

The first pass writes words that hash their own address and waits twice before it reads
them; the next ones have other backgrounds, while time lasts (see `march`). The first pass
is always complete. The GPU does the comparing; after each pass a canary, one flipped bit,
proves that the comparison works.

With ECC, a bad cell is corrected silently (the `ecc` check counts that) or ends the
test with an error of CUDA, which fails the GPU in every check. A word that is wrong
without either was corrupted outside the ECC, in transit or by its address, or there is no
ECC: no row remap and no reset repairs that, so the part must be replaced.

Reading is a float32 sum, writing a fill, copying a negation into another buffer, with
both ways counted as in STREAM. All three are kernels: the driver may leave a plain copy
to the copy engines, which can be slower than the memory (2 instead of 3.3 TB/s on an
H20: NVIDIA/cuda-samples issue 366). The sum has read 3136 GB/s on an H100 SXM, 94 % of
its data sheet (pytorch issue 132964).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from statistics import median
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.telemetry.gpus import NotStartedError
from hpcverify.telemetry.vendors import SourceFinder, find_source
from hpcverify.units import GIB, GIGA, MIB
from hpcverify_checks.exact.march import (
    ACCESSES_PER_PASS,
    CORRUPTED_CODE,
    MARCH_FINDING_RULES,
    MARCH_METRICS,
    PAUSES,
    MarchPass,
    Memory,
    PassTally,
    generate_backgrounds,
    go_on,
    run_pass,
)
from hpcverify_checks.gpu_memory.allocate import (
    RESERVE_BYTES,
    WORDS_PER_PIECE,
    DeviceMemory,
    allocate_chunks,
    query_gpu_memory,
)
from hpcverify_checks.node.device import find_torch_device, name_torch_vendor, require_memory
from hpcverify_checks.node.estimates import SLOWEST_MEMORY_BYTES, find_gpu_bytes
from hpcverify_checks.node.fixes import write_fix
from hpcverify_checks.node.gpu_source import name_vendor
from hpcverify_checks.node.parts import COHERENT_NAME_PREFIXES, find_model
from hpcverify_checks.node.stalls import STALL, StallMeter, read_core_wait
from hpcverify_checks.node.timing import Step, Timer, choose_timer

if TYPE_CHECKING:
    import torch

BUFFER_BYTES = 2**32
"""Bytes read, written or copied per step: the largest cache is 3 % of it."""
MAX_BUFFER_SHARE = 1 / 4
"""The share of a small GPU's memory that such a buffer takes at most."""
MIN_COVERED = 0.9
FLOAT_BYTES = 4
WARM_UP_SECONDS = 0.3


class GpuMemoryParams(hv.Params, frozen=True):
    """Times in seconds."""

    seconds: Annotated[float, Meta(gt=0)] = 20.0
    """The time of the patterns, pauses included; the first pass always completes."""
    pause: Annotated[float, Meta(ge=0)] = 2.0
    """The rest before the second and the third sweep of the first pass."""
    bandwidth_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """The time of each of reading, writing and copying."""


def applies(ctx: hv.Context) -> None:
    """Raise `Skip` for the host."""
    if ctx.device.kind == "cpu":
        raise hv.Skip("this check does not test host memory")


def estimate(ctx: hv.Context, params: GpuMemoryParams) -> float:
    """Add the pass that the time may end in, at the speed of the slowest GPUs."""
    bandwidths = 3 * (WARM_UP_SECONDS + params.bandwidth_seconds)
    one_pass = ACCESSES_PER_PASS * find_gpu_bytes(ctx) / SLOWEST_MEMORY_BYTES
    return bandwidths + max(params.seconds, PAUSES * params.pause) + one_pass


def measure(ctx: hv.Context, params: GpuMemoryParams) -> Iterator[hv.CheckItem]:
    """Measure the bandwidth, then fill the memory and test it."""
    applies(ctx)
    device = find_torch_device(ctx)
    import torch

    if torch.cuda.get_device_properties(device).is_integrated:
        raise hv.Skip("this GPU has no memory of its own: it shares the host's")
    part_id = ctx.device.part
    whole = torch.cuda.mem_get_info(device)[1]
    size = min(BUFFER_BYTES, int(whole * MAX_BUFFER_SHARE) // MIB * MIB)
    require_memory(device, 2 * size + RESERVE_BYTES)
    timer = choose_timer(device)
    with hv.operation("reading, writing and copying its memory", ctx.device):
        yield from measure_bandwidths(
            make_steps(device, size), part_id, params.bandwidth_seconds, timer
        )
    with hv.operation("the patterns in its memory", ctx.device):
        room = query_gpu_memory(device, partial(count_withheld, ctx))
        memory = Memory(allocate_chunks(room), WORDS_PER_PIECE)
        end = perf_counter() + params.seconds
        yield from examine_memory(
            memory,
            part_id,
            room,
            ctx.seed,
            enough=lambda: perf_counter() >= end,
            rest=partial(sleep, params.pause),
        )


def count_withheld(ctx: hv.Context, used: int, find: SourceFinder = find_source) -> int:
    """
    Count the bytes of the GPU that others hold by right, of *used* before our allocations.

    These belong to processes that only draw, or to a server of MPS that waits. The memory of a
    superchip is the kernel's as well: what no process has of it may be pages of the host.
    """
    source = find(name_vendor(ctx))
    try:
        setup = source.read_setup().answers.get(ctx.device.part) if source else None
    except NotStartedError:
        setup = None
    processes = setup.processes or () if setup else ()
    drawn = sum(p.memory or 0 for p in processes if not p.computes)
    if not find_model(ctx, ctx.device.part).startswith(COHERENT_NAME_PREFIXES):
        return drawn
    computing = sum(p.memory or 0 for p in processes if p.computes and p.pid != os.getpid())
    return max(drawn, used - computing)


def make_steps(device: torch.device, size: int = BUFFER_BYTES) -> Mapping[str, tuple[Step, int]]:
    """Make each kind of step, with the bytes that it moves."""
    import torch

    floats = size // FLOAT_BYTES
    source, target = (torch.empty(floats, device=device).normal_() for _ in range(2))
    return {
        "read": (partial(torch.sum, source), size),
        "write": (partial(target.fill_, 1.5), size),
        "copy": (partial(torch.neg, source, out=target), 2 * size),
    }


def measure_bandwidths(
    steps: Mapping[str, tuple[Step, int]], part_id: str, seconds: float, timer: Timer
) -> Iterator[hv.CheckItem]:
    """Time each of *steps* for *seconds*; the median counts."""
    stalls = StallMeter()
    for name, (step, moved) in steps.items():
        timer(step, WARM_UP_SECONDS)
        began, times = read_core_wait(), timer(step, seconds)
        stalls.note(times, read_core_wait() - began)
        rate = moved / median(times) / GIGA
        yield hv.Measurement(f"memory.{name}", rate, "GB/s", part_id)
    yield from stalls.report(part_id)
    size = steps["read"][1] / GIB
    yield hv.Coverage(
        part_id,
        f"bandwidth with {size:g} GiB buffers: a float32 sum reads, a fill writes, a "
        f"negation copies (both ways counted), {seconds:g} s each",
    )


def examine_memory(
    memory: Memory,
    part_id: str,
    room: DeviceMemory,
    seed: int,
    *,
    enough: Callable[[], bool],
    rest: Callable[[], None],
) -> Iterator[hv.CheckItem]:
    """Make passes over *memory* until it is *enough* or a pass finds a wrong word."""
    if not memory.chunks:
        raise hv.Unable(
            f"none of {room.total / GIB:.1f} GiB GPU memory could be allocated: "
            f"{write_fix('free_memory', name_torch_vendor())}",
            hv.Cause.NO_SPACE,
        )
    tally, chance = PassTally(), random.Random(seed)  # noqa: S311 - no secret
    for background in generate_backgrounds(memory.words_per_piece, seed):
        march = memory.start_pass(background)
        yield from report_pass(march, part_id, tally, rest)
        if tally.mismatches:
            break
        march.require_canary(chance)
        if enough():
            break
        rest = go_on
    reachable = room.total
    if memory.size < MIN_COVERED * reachable:
        reachable -= room.withheld()
    covered = min(1.0, memory.size / max(reachable, 1))
    yield hv.Measurement("covered", covered, "ratio", part_id)
    yield hv.Measurement("passes", tally.passes.total(), "", part_id)
    yield hv.Measurement("mismatches", tally.mismatches, "", part_id)
    size = f"{memory.size / GIB:.2f} of {reachable / GIB:.2f} GiB that a process can have"
    yield hv.Coverage(part_id, f"{size}, {tally.describe()}")


def report_pass(
    march: MarchPass, part_id: str, tally: PassTally, rest: Callable[[], None]
) -> Iterator[hv.Finding]:
    """Make one pass and describe the first wrong words."""
    for wrong in run_pass(march.background.name, march.sweep, tally, rest):
        yield hv.Finding(CORRUPTED_CODE, part_id, wrong.describe(), wrong.to_evidence())
    if not tally.mismatches and not march.is_table_intact():
        tally.mismatches += 1
        yield hv.Finding(CORRUPTED_CODE, part_id, "the reference table in GPU memory changed")


CLOCK_SOURCE = (
    "hpcverify default: the memory clock of a healthy GPU is fixed; that of the SMs, which the "
    "power limit lowers, may bound a sum"
)

CHECK = hv.Check(
    summary="GPU memory: patterns over nearly all of it, and its bandwidth",
    measure=measure,
    estimate=estimate,
    applies=applies,
    params=GpuMemoryParams,
    metrics={
        "memory.*": hv.Metric("GB/s", "low", "bandwidth; a copy counts both ways")
        .fail(of_spec=0.9, of_siblings=0.9, of_baseline=0.9, source=CLOCK_SOURCE)
        .warn("memory*", of_spec=0.9, of_siblings=0.95, source=CLOCK_SOURCE),
        "covered": hv.Metric("ratio", "low", "tested share of what a process can have").error(
            low=MIN_COVERED,
            cause=hv.Cause.NO_SPACE,
            remedy=hv.Remedy.FIX_CONFIGURATION,
            source="hpcverify default: untested memory does not pass; end the processes "
            "of others that use the GPU",
        ),
        **MARCH_METRICS,
        "stall": STALL,
    },
    finding_rules=MARCH_FINDING_RULES,
    placement=hv.Placement.DEVICES,
    timeout=600.0,
)
