"""
Measure all-gather, reduce-scatter, all-to-all, broadcast and send-receive in a node.

The same measurement as ``hpcverify fabric test`` takes between nodes, with the workers of
this node's GPUs as ranks. What `allreduce` measures is left out. Every result is verified
to the bit, with data that change at each step. A wrong word is a finding about the node:
it may have changed in the GPU that sent it, in the one that got it or between the two.

On CPUs it only runs with ``ranks``: processes on the loopback, where `allreduce` says as
much about the node.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

import hpcverify.check as hv
from hpcverify.units import MIB, format_count
from hpcverify_checks.node.contention import CpuUsage
from hpcverify_checks.node.device import find_torch_device, report_overrides
from hpcverify_checks.node.estimates import count_gpus
from hpcverify_checks.ranks.collective import (
    CollectiveJob,
    StepTimes,
    compute_timing,
    measure_processes,
    measure_rank,
)
from hpcverify_checks.ranks.process_group import report_nccl_settings
from hpcverify_checks.ranks.rendezvous import (
    RANK_LOST_RULE,
    exchange_messages,
    merge_lost_ranks,
    report_lost_ranks,
)
from hpcverify_checks.ranks.sizes import format_size

SIZES = (MIB, 256 * MIB)
WARM_UP_SECONDS = 0.2
"""The warm-up of each operation and size."""
WRONG_CODE = "wrong_result"
CONTENDED_METRICS = ("busbw.*", "time_*")
"""Left out on CPUs that others use."""


OperationName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"
]


class CollectivesParams(hv.Params, frozen=True):
    """What to measure, and for how long."""

    operations: tuple[OperationName, ...] = (
        "all_gather",
        "reduce_scatter",
        "alltoall",
        "broadcast",
        "sendrecv",
    )
    sizes: tuple[Annotated[int, Meta(ge=1)], ...] = SIZES
    """In bytes, as nccl-tests counts them. What does not fit is left out."""
    seconds: Annotated[float, Meta(gt=0)] = 2.0
    """The time for all operations and sizes together."""
    ranks: Annotated[int, Meta(ge=0)] = 0
    """Processes on a CPU; each GPU is one rank."""
    timeout_seconds: Annotated[float, Meta(gt=0)] = 30.0
    """After this a silent rank counts as lost."""


def estimate(ctx: hv.Context, params: CollectivesParams) -> float:
    """Double the time of the steps, for the verification, and add the warm-ups; 0 if skipped."""
    if ctx.device.kind == "cpu" and _explain_skip(ctx, params):
        return 0.0
    return 2 * params.seconds + WARM_UP_SECONDS * len(params.operations) * len(params.sizes)


def _explain_skip(ctx: hv.Context, params: CollectivesParams) -> str:
    if ctx.device.kind == "cuda":
        return "only one GPU: nothing to exchange" if len(ctx.peers) == 1 else ""
    if count_gpus(ctx) > 1:
        return "it runs on the GPUs of this node instead"
    return "" if params.ranks > 1 else "no GPUs; on CPUs it runs with ranks of 2 or more"


def measure(ctx: hv.Context, params: CollectivesParams) -> Iterator[hv.CheckItem]:
    """Measure all operations with all peers; rank 0 reports times, each rank its wrong results."""
    if why := _explain_skip(ctx, params):
        raise hv.Skip(why)
    yield from report_lost_ranks(ctx, _measure_rank(ctx, params))


def _measure_rank(ctx: hv.Context, params: CollectivesParams) -> Iterator[hv.CheckItem]:
    device = find_torch_device(ctx)
    yield from report_overrides(ctx)
    yield from report_nccl_settings(ctx)
    on_cpu = device.type == "cpu"
    job = CollectiveJob(
        folder=str(ctx.shared),
        world=params.ranks if on_cpu else len(ctx.peers),
        backend="gloo" if on_cpu else "nccl",
        timeout=params.timeout_seconds,
        operations=params.operations,
        sizes=params.sizes,
        seconds=params.seconds,
        seed=ctx.seed,
    )
    if not on_cpu:
        own = measure_rank(job, ctx.rank, device)
        yield from report_wrong(job, own, ctx.rank)
        answers = exchange_messages(job, ctx.rank, "times", msgspec.msgpack.encode(own))
        if ctx.rank == 0:
            decoder = msgspec.msgpack.Decoder(list[StepTimes])
            yield from report_times(job, list(map(decoder.decode, answers)))
        return
    crowd, measured = CpuUsage.read(), list[list[StepTimes]]()
    for rank, own in measure_processes(job):
        measured.append(own)
        yield from report_wrong(job, own, rank)
    yield from crowd.omit_if_busy(CONTENDED_METRICS, report_times(job, measured))


def report_wrong(job: CollectiveJob, own: Sequence[StepTimes], rank: int) -> Iterator[hv.Finding]:
    """Report each operation and size of which *rank* got a wrong result."""
    if not own:
        text = f"no size fits into the free memory: {', '.join(map(format_size, job.sizes))}"
        raise hv.Unable(f"{text}: end what uses it, or set sizes", hv.Cause.NO_SPACE)
    for times in own:
        if wrong := times.wrong:
            text = (
                f"rank {rank} got a wrong result of {times.operation} of "
                f"{format_size(times.size)}: {format_count(wrong.count, 'element')} in step "
                f"{wrong.step}, {wrong.describe()}"
            )
            evidence = {
                "rank": str(rank),
                "operation": times.operation,
                "size": format_size(times.size),
                "step": str(wrong.step),
                **wrong.to_evidence("element"),
            }
            yield hv.Finding(WRONG_CODE, "node", text, evidence)


def report_times(
    job: CollectiveJob, measured: Sequence[Sequence[StepTimes]]
) -> Iterator[hv.CheckItem]:
    """Report what each rank *measured* as measurements of the node, and what was verified."""
    for times in zip(*measured, strict=True):
        timing = compute_timing(times, job.world)
        name = f"{timing.operation}.{format_size(timing.size)}"
        yield hv.Measurement(f"busbw.{name}", timing.busbw, "GB/s")
        yield hv.Measurement(f"time_p50.{name}", timing.p50 * 1e6, "us")
        yield hv.Measurement(f"time_p99.{name}", timing.p99 * 1e6, "us")
    checked = sum(times.checked for times in measured[0])
    sizes = ", ".join(dict.fromkeys(format_size(times.size) for times in measured[0]))
    done = ", ".join(job.operations)
    text = f"{job.world} ranks, {job.backend}: {checked} results of {done} ({sizes}) verified"
    yield hv.Coverage("node", f"{text} on each rank, to the bit, with other data in each step")


CHECK = hv.Check(
    summary="all-gather, all-to-all and others between the devices, every result verified",
    measure=measure,
    estimate=estimate,
    params=CollectivesParams,
    metrics={
        "busbw.*": hv.Metric("GB/s", "low", "bus bandwidth of the median step").warn(
            of_baseline=0.7
        ),
        "time_p50.*": hv.Metric("us", "high", "median time of a step, by its slowest rank"),
        "time_p99.*": hv.Metric("us", "high", "99 % of the steps take at most this"),
    },
    reconcile=merge_lost_ranks,
    finding_rules={
        **hv.fail_on(WRONG_CODE, conclusive=True),
        hv.RANK_LOST_CODE: RANK_LOST_RULE,
    },
    placement=hv.Placement.DEVICES,
    only_named=True,  # it has to wait for the devices to settle, and `allreduce` tells most
    timeout=180.0,
)
