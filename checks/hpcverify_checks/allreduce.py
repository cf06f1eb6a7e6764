"""
Measure the all-reduce between the devices of a node, and verify every sum.

Each device's worker is one rank. The ranks meet through a file and talk over NVLink or
PCIe (NCCL); on a node with fewer than two GPUs they are extra processes that talk over
the loopback (gloo). The inputs differ at each step and fill every bit, words and floats in
turn (see `ranks/step_data.py`); their sum is known exactly, and each result
is compared to it on the device, outside the timed section. So is each rank's share
before the sum: a share that one GPU's memory got wrong makes the sums of all GPUs wrong,
and only that GPU is reported for it. If several get wrong sums and no share was wrong, no
single GPU is reported: a link changed a share on its way to all. The bandwidth reported is
the bus bandwidth of nccl-tests: algorithm bandwidth x 2 (n - 1) / n, which does not
depend on the number of ranks and can be set against the speed of the links.

That of the largest message is held against what others measured with the same part and
wiring (``gpu_reached.csv``), as a share of its NVLinks: by rings (``ring``), in switches
that add up (``nvls``: more than the links carry), in a tray of a rack (``tray``) or
between GPUs that are wired to each other (``mesh``). Over PCIe there is no such figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

import hpcverify.check as hv
from hpcverify.limits.floors import Floor, find_floor
from hpcverify.limits.specs import explain_unknown, find_achievable, find_spec
from hpcverify.units import GIB, KIB, MIB, format_count
from hpcverify_checks.node.contention import CpuUsage
from hpcverify_checks.node.device import find_torch_device, name_torch_vendor, report_overrides
from hpcverify_checks.node.estimates import count_gpus
from hpcverify_checks.node.fixes import write_fix
from hpcverify_checks.node.parts import classify_wiring, has_optional_links
from hpcverify_checks.node.stalls import OWN_WORK, STALL
from hpcverify_checks.ranks.collective import (
    CollectiveJob,
    StepTimes,
    compute_timing,
    measure_processes,
    measure_rank,
)
from hpcverify_checks.ranks.operations import ALL_REDUCE, Operation
from hpcverify_checks.ranks.process_group import report_nccl_settings
from hpcverify_checks.ranks.rendezvous import RANK_LOST_RULE, merge_lost_ranks, report_lost_ranks
from hpcverify_checks.ranks.sizes import format_size
from hpcverify_checks.ranks.step_data import MAX_RANKS, StepMismatch
from hpcverify_checks.ranks.wrong_sums import (
    WITNESS_CODE,
    WRONG_SUM_RULES,
    attribute_wrong_sums,
    explain,
)

if TYPE_CHECKING:
    import torch

CPU_SIZES = (KIB, 32 * KIB, MIB, 16 * MIB)
GPU_SIZES = (64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB, 4 * GIB)
MIN_STEPS, MAX_STEPS = 10, 2000
CONTENDED_METRICS = ("busbw.*", "jitter.*")
"""Left out on CPUs that other processes use."""
WARM_UP_SECONDS = 0.5
"""The warm-up of each size: a few sums, and the buffers."""
JUDGED_BYTES = GIB
"""From this size on, an all-reduce comes near its full bandwidth."""
NVLS_GPUS = 8
"""GPUs for which there are figures of sums in the switches; with fewer NCCL may use rings."""
REDUCTIONS = {
    "ring": "rings through the node's switches",
    "nvls": "sums in the node's switches; where they are off (see NCCL_NVLS_ENABLE, and whether "
    "nvidia-fabricmanager runs) rings reach 0.77 to 0.81 of that",
    "tray": "rings through the switches of the rack",
    "mesh": "rings over the links between the GPUs",
}
"""How GPUs reduce, in words."""
SHARE_WRONG_CODE = "words_wrong"
"""As in `p2p`: words that are wrong in the memory of one GPU."""
LARGE_BYTES = MIB
"""From this size on, bandwidth and jitter matter, not latency."""


class AllreduceParams(hv.Params, frozen=True):
    """Message sizes, ranks and time."""

    sizes: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """Message sizes in bytes; if empty, those of the part. What does not fit is left out."""
    seconds: Annotated[float, Meta(gt=0)] = 3.0
    """The time for all sizes together."""
    ranks: Annotated[int, Meta(ge=2, le=MAX_RANKS)] = 2
    """Processes on a CPU; each GPU is one rank."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """After this a silent rank counts as lost."""


def estimate(ctx: hv.Context, params: AllreduceParams) -> float:
    """
    Double the time of the sums, for the verification, and add the warm-up of each size.

    0 where it is skipped.
    """
    if ctx.device.kind == "cpu" and count_gpus(ctx) > 1:
        return 0.0
    return 2 * params.seconds + WARM_UP_SECONDS * max(len(params.sizes), len(GPU_SIZES))


def measure(
    ctx: hv.Context, params: AllreduceParams, operation: Operation = ALL_REDUCE
) -> Iterator[hv.CheckItem]:
    """Reduce with all peers; rank 0 reports the times, each rank its own errors."""
    gpus = [d for d in ctx.inventory.devices if d.kind == "cuda"]
    if ctx.device.kind == "cuda" and len(ctx.peers) == 1:
        raise hv.Skip("only one GPU: nothing to reduce with")
    if ctx.device.kind == "cpu" and len(gpus) > 1:
        raise hv.Skip("it runs on the GPUs of this node instead")
    yield from report_lost_ranks(ctx, _measure_rank(ctx, params, operation))


def _measure_rank(
    ctx: hv.Context, params: AllreduceParams, operation: Operation
) -> Iterator[hv.CheckItem]:
    device = find_torch_device(ctx)
    yield from report_overrides(ctx)
    yield from report_nccl_settings(ctx)
    job = _build_job(ctx, params, on_cpu=device.type == "cpu")
    if device.type == "cuda":
        yield from _measure_gpus(ctx, job, device, operation)
    else:
        crowd, measured = CpuUsage.read(), list[list[StepTimes]]()
        for rank, timed in measure_processes(job, {ALL_REDUCE.name: operation}):
            measured.append(timed)
            yield from report_wrong_sums(timed, rank, ctx.device.part)
        numbers = report_times(job, measured[0], "gloo on the loopback")
        yield from crowd.omit_if_busy(CONTENDED_METRICS, numbers)


def _build_job(ctx: hv.Context, params: AllreduceParams, *, on_cpu: bool) -> CollectiveJob:
    return CollectiveJob(
        folder=str(ctx.shared),
        world=params.ranks if on_cpu else len(ctx.peers),
        backend="gloo" if on_cpu else "nccl",
        timeout=params.timeout_seconds,
        operations=(ALL_REDUCE.name,),
        sizes=params.sizes or (CPU_SIZES if on_cpu else GPU_SIZES),
        seconds=params.seconds,
        seed=ctx.seed,
        min_steps=MIN_STEPS,
        max_steps=MAX_STEPS,
        compare_shares=True,
    )


def _measure_gpus(
    ctx: hv.Context, job: CollectiveJob, device: torch.device, operation: Operation
) -> Iterator[hv.CheckItem]:
    from torch.cuda import nccl

    timed = measure_rank(job, ctx.rank, device, {ALL_REDUCE.name: operation})
    yield from OWN_WORK.meter.report(ctx.device.part)
    if not timed:
        fix = write_fix("free_memory", name_torch_vendor())
        text = (
            f"not even {format_size(min(job.sizes))} fit into the free memory of every GPU: {fix}"
        )
        raise hv.Unable(text, hv.Cause.NO_SPACE)
    yield from report_wrong_sums(timed, ctx.rank, ctx.device.part)
    if ctx.rank == 0:
        version = ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call]
        yield from report_times(job, timed, f"NCCL {version}")
        yield from report_bus_bandwidth(ctx, timed)


class WrongStep(Struct, frozen=True):
    """The data of a finding about wrong elements: its place among the others."""

    rank: int
    size: int
    """The size of the message, in bytes."""
    step: int


def report_wrong_sums(timed: Sequence[StepTimes], rank: int, part_id: str) -> Iterator[hv.Finding]:
    """Report each message size at which *rank* got a wrong sum, or had a wrong share."""
    for times in timed:
        size = format_size(times.size)
        if share := times.wrong_share:
            is_wrong = share.found != share.expected
            what = "holds wrong words in its memory" if is_wrong else "takes right words for wrong"
            text = (
                f"rank {rank} {what}, by the host's own result, in its share of a sum of {size}, "
                f"before it: {describe_elements(share)}; not a link fault"
            )
            place = WrongStep(rank, times.size, share.step)
            yield _build_finding(SHARE_WRONG_CODE, part_id, text, place, share)
        if wrong := times.wrong:
            text = f"rank {rank} got a wrong sum of {size}: {describe_elements(wrong)}"
            place = WrongStep(rank, times.size, wrong.step)
            yield _build_finding(WITNESS_CODE, part_id, text, place, wrong)


def describe_elements(wrong: StepMismatch) -> str:
    """Describe how many elements are wrong, and the first of them."""
    text = f"{format_count(wrong.count, 'element')}, {wrong.describe()}"
    return f"{text}: {wrong.hint}" if wrong.hint else text


def _build_finding(
    code: str, part_id: str, text: str, place: WrongStep, wrong: StepMismatch
) -> hv.Finding:
    evidence = {
        "rank": str(place.rank),
        "size": format_size(place.size),
        "step": str(wrong.step),
        **wrong.to_evidence("element"),
        "hint": wrong.hint,
    }
    return hv.Finding(code, part_id, text, evidence, msgspec.to_builtins(place))


def reconcile(items: Sequence[hv.JudgedItem], inventory: hv.Inventory) -> Iterator[hv.JudgedItem]:
    """Report for wrong sums only a GPU that had a wrong share, or that got them alone."""
    merged = list(merge_lost_ranks(items, inventory))
    findings = [item for item in merged if isinstance(item, hv.Finding)]
    sums = [finding for finding in findings if finding.code == WITNESS_CODE]
    yield from (item for item in merged if item not in sums)
    for size in dict.fromkeys(map(read_size, sums)):
        shares = [f for f in findings if f.code == SHARE_WRONG_CODE and read_size(f) == size]
        since = min(map(read_step, shares), default=math.inf)
        names = inventory.format_names([share.part_id for share in shares])
        alike = [finding for finding in sums if read_size(finding) == size]
        for finding in alike:
            if read_step(finding) >= since:
                yield explain(finding, f"the share of {names} was wrong")
        before = [finding for finding in alike if read_step(finding) < since]
        yield from attribute_wrong_sums(before, read_step, inventory)


def read_size(wrong: hv.Finding) -> int:
    """Read the size of the message in which a finding's elements are *wrong*, in bytes."""
    return wrong.data_as(WrongStep).size


def read_step(wrong: hv.Finding) -> int:
    """Read in which step the elements of a finding were *wrong*."""
    return wrong.data_as(WrongStep).step


def report_times(job: CollectiveJob, timed: Sequence[StepTimes], by: str) -> Iterator[hv.CheckItem]:
    """Report the times as measurements of the node, and say what was verified."""
    for times in timed:
        timing, size = compute_timing([times], job.world), format_size(times.size)
        yield hv.Measurement(f"busbw.{size}", timing.busbw, "GB/s")
        for name, seconds in (("p50", timing.p50), ("p95", timing.p95), ("p99", timing.p99)):
            yield hv.Measurement(f"time_{name}.{size}", seconds * 1e6, "us")
        if times.size >= LARGE_BYTES:
            yield hv.Measurement(f"jitter.{size}", timing.p99 / timing.p50, "ratio")
    checked = sum(times.checked for times in timed)
    sizes = ", ".join(format_size(times.size) for times in timed)
    left_out = ", ".join(map(format_size, job.sizes[len(timed) :]))
    text = (
        f"{job.world} ranks, {by}: {checked} sums of words and of float32 ({sizes}) verified on "
        "each rank, element by element"
    )
    yield hv.Coverage("node", f"{text}; too large: {left_out}" if left_out else text)


def report_bus_bandwidth(ctx: hv.Context, timed: Sequence[StepTimes]) -> Iterator[hv.CheckItem]:
    """Report the bus bandwidth of the largest message by how the GPUs are wired."""
    kind, why = choose_reduction(ctx)
    largest = max(timed, key=lambda times: times.size, default=None)
    if largest is None or largest.size < JUDGED_BYTES:
        why = why or f"no message of {format_size(JUDGED_BYTES)} or more was reduced"
    if largest is None or why:
        yield hv.Coverage("node", f"the bus bandwidth is not held against a data sheet: {why}")
        return
    yield hv.Coverage(
        "node", f"{kind}.busbw is that of {format_size(largest.size)}, by {REDUCTIONS[kind]}"
    )
    busbw = compute_timing([largest], len(ctx.peers)).busbw
    yield hv.Measurement(f"{kind}.busbw", busbw, "GB/s")


def choose_reduction(ctx: hv.Context) -> tuple[str, str]:
    """
    Choose the kind of all-reduce that fits how the GPUs are wired: ring, nvls, tray or mesh.

    Or say, in words, why that is not known well enough to judge them.
    """
    gpus = [part for peer in ctx.peers if (part := ctx.inventory.find_part(peer.part))]
    if len({gpu.facts.get("name") for gpu in gpus}) != 1:
        return "", "the GPUs differ"
    sheet = find_spec(gpus[0])
    if sheet is None:
        return "", explain_unknown(gpus[0])
    if has_optional_links(sheet):
        return "", f"no NVLink joins all {sheet.name} of a node"
    wiring = classify_wiring(ctx.peers, ctx)
    kind = {"p2p": "ring", "peer": "mesh"}.get(wiring, wiring)
    if kind == "ring" and len(gpus) == NVLS_GPUS and find_achievable(sheet, "nvls", "busbw"):
        kind = "nvls"
    expected = find_floor(gpus[0], f"{kind}.busbw")
    return (kind, "") if isinstance(expected, Floor) else ("", expected)


HALF_SOURCE = "hpcverify default: above half of what is reached, below what good nodes differ by"
NVLS_SOURCE = "hpcverify default: without sums in the switches a node reaches 0.77 to 0.81"

CHECK = hv.Check(
    summary="all-reduce between the devices: bandwidth, jitter, every sum verified",
    measure=measure,
    estimate=estimate,
    params=AllreduceParams,
    metrics={
        "busbw.*": hv.Metric("GB/s", "low", "bus bandwidth of the median step").warn(
            of_baseline=0.7
        ),
        "ring.busbw": hv.Metric("GB/s", "low", "the same by rings through switches").fail(
            of_spec=0.75, source=HALF_SOURCE
        ),
        "nvls.busbw": hv.Metric("GB/s", "low", "the same in switches that add up")
        .fail(of_spec=0.65, source=HALF_SOURCE)
        .warn("nvls.*", of_spec=0.85, source=NVLS_SOURCE),
        "tray.busbw": hv.Metric("GB/s", "low", "the same through the switches of a rack").warn(
            of_spec=0.75, source=HALF_SOURCE
        ),
        "mesh.busbw": hv.Metric("GB/s", "low", "the same between GPUs wired to each other").warn(
            of_spec=0.65, source=HALF_SOURCE
        ),
        "time_p50.*": hv.Metric("us", "high", "median time of an all-reduce"),
        "time_p95.*": hv.Metric("us", "high", "95 % of them take at most this"),
        "time_p99.*": hv.Metric("us", "high", "99 % of them take at most this"),
        "stall": STALL,
        "jitter.*": hv.Metric("ratio", "high", "time_p99 / time_p50").warn(
            high=20.0,
            remedy=hv.Remedy.RERUN,
            source="hpcverify default: something else may load the node",
        ),
    },
    reconcile=reconcile,
    finding_rules={
        **WRONG_SUM_RULES,
        **hv.fail_on(SHARE_WRONG_CODE, remedy=hv.Remedy.REPLACE, conclusive=True),
        hv.RANK_LOST_CODE: RANK_LOST_RULE,
    },
    placement=hv.Placement.DEVICES,
    timeout=180.0,
)
