"""Measure how long NCCL takes to start, to reduce for the first time and to end."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Annotated

from msgspec import Meta

from hpcverify.check import (
    RANK_LOST_CODE,
    Check,
    CheckItem,
    Context,
    Coverage,
    Measurement,
    Metric,
    Params,
    Placement,
    Skip,
    operation,
)
from hpcverify.units import GIB
from hpcverify_checks.common.device import find_torch_device, wait_for_device
from hpcverify_checks.common.process_group import await_ranks, join_group
from hpcverify_checks.common.rendezvous import (
    RANK_LOST_RULE,
    RankGroup,
    exchange_messages,
    merge_lost_ranks,
    report_lost_ranks,
)
from hpcverify_checks.qualification import require_gpu

USUAL_SECONDS = 20.0
"""The usual time for NCCL to start, reduce once and end."""


class NcclStartParams(Params, frozen=True):
    """After how many seconds a silent rank counts as lost."""

    timeout_seconds: Annotated[float, Meta(gt=0)] = 120.0


def applies(ctx: Context) -> None:
    """Raise `Skip` for the host, and where there is only one GPU."""
    require_gpu(ctx)
    if len(ctx.peers) == 1:
        raise Skip("only one GPU: nothing to reduce with")


def estimate(_ctx: Context, _params: NcclStartParams) -> float:
    """Assume so much for one group."""
    return USUAL_SECONDS


def measure(ctx: Context, params: NcclStartParams) -> Iterator[CheckItem]:
    """Yield the seconds of each phase, and the memory that NCCL takes."""
    applies(ctx)
    yield from report_lost_ranks(ctx, _time_phases(ctx, params))


def _time_phases(ctx: Context, params: NcclStartParams) -> Iterator[CheckItem]:
    import torch

    device, part_id = find_torch_device(ctx), ctx.device.part
    group = RankGroup(str(ctx.shared), len(ctx.peers), "nccl", params.timeout_seconds)
    torch.ones(1, device=device)
    wait_for_device(device)
    free, _ = torch.cuda.mem_get_info(device)
    exchange_messages(group, ctx.rank, "ready")  # torch is loaded everywhere by now
    times = [perf_counter()]
    with operation("a group of NCCL", ctx.device), join_group(group, ctx.rank, device):
        times.append(perf_counter())
        await_ranks(group, device)
        wait_for_device(device)
        times.append(perf_counter())
        left, _ = torch.cuda.mem_get_info(device)
        times.append(perf_counter())
    times.append(perf_counter())
    yield Measurement("nccl.start", times[1] - times[0], "s", part_id)
    yield Measurement("nccl.first_reduce", times[2] - times[1], "s", part_id)
    yield Measurement("nccl.end", times[4] - times[3], "s", part_id)
    yield Measurement("nccl.memory", (free - left) / GIB, "GiB", part_id)
    yield Coverage(part_id, f"a group of {group.world} ranks, made once")


CHECK = Check(
    summary="how long NCCL takes to start and to end, and the memory it takes",
    measure=measure,
    params=NcclStartParams,
    metrics={
        "nccl.start": Metric("s", "high", "to make a group of all GPUs"),
        "nccl.first_reduce": Metric("s", "high", "the first all-reduce of it"),
        "nccl.end": Metric("s", "high", "to end the group"),
        "nccl.memory": Metric("GiB", "high", "of the GPU, after the first all-reduce"),
    },
    finding_rules={RANK_LOST_CODE: RANK_LOST_RULE},
    reconcile=merge_lost_ranks,
    applies=applies,
    estimate=estimate,
    placement=Placement.DEVICES,
    timeout=300.0,
)
