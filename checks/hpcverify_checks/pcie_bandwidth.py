"""
Copy between host and GPU memory: how fast, and does every bit arrive.

The host buffers are pinned, so that the GPU's copy engines access them directly, and
they are placed by and copied from cores on the GPU's own socket: from the other socket,
the link between the sockets would be measured. Each GPU copies alone, since GPUs may
share the way to the host. The rate is compared with what the link carries at that
moment, which an idle GPU does not show, and that with the links of its siblings: whether a
link lost lanes or speed is for the check pcie.

Each word is a hash of its place in one round and the complement in the next, so every
bit travels as 0 and as 1, and old data is never mistaken for new. If words come back
wrong, their digest on the GPU tells whether the way out or the way back changed them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.telemetry import aer
from hpcverify.telemetry.vendors import NVIDIA
from hpcverify.units import GIGA, format_count
from hpcverify_checks.exact.bits import WORD_BYTES, compute_digest
from hpcverify_checks.exact.mismatch import Mismatch, find_mismatch
from hpcverify_checks.exact.transfers import Copy, copy, make_pattern
from hpcverify_checks.exact.vote import HOST_MEMORY, MEMORY_CODE, MEMORY_TEXT, PRODUCT_FINDING_RULES
from hpcverify_checks.node.cores import format_ranges, list_near_cores
from hpcverify_checks.node.device import find_torch_device, require_memory, wait_for_device
from hpcverify_checks.node.gpu_source import name_vendor
from hpcverify_checks.node.stalls import STALL, StallMeter, read_core_wait
from hpcverify_checks.node.timing import choose_timer

if TYPE_CHECKING:
    import torch
    from torch import Tensor


SLOW_BYTES_PER_SECOND = 2e9
"""The rate of a copy with its comparison, and of making and pinning a buffer: far below any
link that passes."""
BUFFER_COUNT = 3


class PcieBandwidthParams(hv.Params, frozen=True):
    """Size, time and number of the copies."""

    size: Annotated[int, Meta(ge=1)] = 256 * 2**20
    """Bytes."""
    seconds: Annotated[float, Meta(gt=0)] = 1.0
    """The time of timed copies per direction."""
    warm_up_seconds: Annotated[float, Meta(ge=0)] = 0.2
    """Before that, for the GPU to raise its link to full speed."""
    rounds: Annotated[int, Meta(ge=1)] = 4
    """Copies out and back with every bit compared."""


DIRECTIONS = {"h2d": "from the host", "d2h": "to the host"}


@dataclass(frozen=True, slots=True)
class Route:
    """The way between the host and one GPU; tests supply their own links and copies."""

    device: torch.device
    link: Callable[[], aer.Link | None]
    """Reads what the link carries now."""
    cores: frozenset[int]
    """Those near the GPU, to which this process keeps; empty if unknown."""
    copy: Copy = copy


def applies(ctx: hv.Context) -> None:
    """Raise `Skip` for the host."""
    if ctx.device.kind == "cpu":
        raise hv.Skip("a CPU has no PCIe link to measure")


def estimate(_ctx: hv.Context, params: PcieBandwidthParams) -> float:
    """Add up the timed copies of both ways and the compared ones, on a narrow link."""
    timed = 2 * (params.warm_up_seconds + params.seconds)
    compared = 2 * params.rounds * params.size / SLOW_BYTES_PER_SECOND
    return timed + compared + BUFFER_COUNT * params.size / SLOW_BYTES_PER_SECOND


def measure(ctx: hv.Context, params: PcieBandwidthParams) -> Iterator[hv.CheckItem]:
    """Copy out and back, compare, and time both directions."""
    applies(ctx)
    device = find_torch_device(ctx)
    require_memory(device, 2 * params.size)
    gpu = ctx.inventory.find_part(ctx.device.part)
    address = gpu.facts.get("pci_address", "") if gpu else ""
    # The links of others may be within the package, as with MI300A.
    known = name_vendor(ctx) == NVIDIA
    route = Route(
        device,
        partial(aer.read_link, address) if known else lambda: None,
        list_near_cores(ctx, ctx.device.part),
    )
    yield from measure_route(route, ctx, params)


def measure_route(
    route: Route, ctx: hv.Context, params: PcieBandwidthParams
) -> Iterator[hv.CheckItem]:
    """Verify and time the copies on one *route*."""
    import torch

    part_id = ctx.device.part
    words = make_pattern(ctx.seed, range(params.size // WORD_BYTES), torch.device("cpu"))
    with hv.operation("copies from the host and back", ctx.device):
        buffers = CopyBuffers.allocate(route.device, words)
        yield from _verify_round_trips(buffers, route, params.rounds, ctx)
    for name, step in buffers.make_steps(route).items():
        with hv.operation(f"copies {DIRECTIONS[name]}", ctx.device):
            yield from _time_direction(name, step, route, params, part_id)
    cores = format_ranges(sorted(route.cores))
    origin = f"cores {cores}, near the GPU" if cores else "any core"
    text = (
        f"{params.rounds} copies of {params.size // 2**20} MiB out and back compared "
        f"bit by bit, then {params.seconds:g} s timed each way, from {origin}"
    )
    yield hv.Coverage(part_id, text)
    if route.link() is None:
        yield hv.Coverage(
            part_id, "the speed of its link is not known: rates are not compared with it"
        )


@dataclass(frozen=True, slots=True)
class CopyBuffers:
    """The words on the host, their copy on the GPU, and what comes back."""

    words: Tensor
    gpu_words: Tensor
    returned_words: Tensor

    @classmethod
    def allocate(cls, device: torch.device, words: Tensor) -> CopyBuffers:
        """Allocate them; the host's buffers are near the cores of this thread."""
        import torch

        pinned = device.type == "cuda"
        out, back = (torch.zeros_like(words, pin_memory=pinned) for _ in range(2))
        out.copy_(words)
        return cls(out, torch.zeros_like(words, device=device), back)

    def make_steps(self, route: Route) -> dict[str, Callable[[], None]]:
        """Make one copy step for each direction."""
        return {
            "h2d": partial(route.copy, self.gpu_words, self.words),
            "d2h": partial(route.copy, self.returned_words, self.gpu_words),
        }


def _verify_round_trips(
    buffers: CopyBuffers, route: Route, rounds: int, ctx: hv.Context
) -> Iterator[hv.Finding]:
    for number in range(rounds):
        for step in buffers.make_steps(route).values():
            step()
        wait_for_device(route.device)
        wrong = find_mismatch(buffers.returned_words, buffers.words)
        if wrong:
            yield explain_corruption(buffers, wrong, number, ctx)
            return
        buffers.words.bitwise_not_()


def explain_corruption(
    buffers: CopyBuffers, wrong: Mismatch, number: int, ctx: hv.Context
) -> hv.Finding:
    """Say what came back wrong, and in which direction it changed, if the host's words did not."""
    made = make_pattern(ctx.seed, range(buffers.words.numel()), buffers.words.device)
    changed = find_mismatch(buffers.words, made.bitwise_not_() if number % 2 else made)
    if changed:
        text = f"{MEMORY_TEXT}: words to be copied changed there, {changed.describe()}"
        return hv.Finding(MEMORY_CODE, HOST_MEMORY, text, changed.to_evidence())
    arrived = compute_digest(buffers.gpu_words) == compute_digest(buffers.words)
    way = "from the GPU to the host" if arrived else "from the host to the GPU"
    text = f"{format_count(wrong.count, 'word')} changed on the way {way}: {wrong.describe()}"
    evidence = {"way": way, "round": str(number), **wrong.to_evidence()}
    return hv.Finding("transfer_corrupted", ctx.device.part, text, evidence)


def _time_direction(
    name: str,
    step: Callable[[], None],
    route: Route,
    params: PcieBandwidthParams,
    part_id: str,
) -> Iterator[hv.Measurement]:
    links: list[aer.Link | None] = []

    def copy_and_read_link() -> None:
        step()
        links.append(route.link())  # while the copies are under way

    timer = choose_timer(route.device)
    timer(step, params.warm_up_seconds)
    began, times = read_core_wait(), timer(copy_and_read_link, params.seconds)
    stalls = StallMeter()
    stalls.note(times, read_core_wait() - began)
    yield from stalls.report(part_id, f"{name}.stall")
    rate = params.size / median(times) / GIGA
    yield hv.Measurement(name, rate, "GB/s", part_id)
    if link := links[-1]:
        yield hv.Measurement(f"{name}.link", link.bandwidth, "GB/s", part_id)
        yield hv.Measurement(f"{name}.of_link", rate / link.bandwidth, "ratio", part_id)


CHECK = hv.Check(
    summary="copies between host and GPU: speed against the link, every bit compared",
    measure=measure,
    estimate=estimate,
    applies=applies,
    params=PcieBandwidthParams,
    metrics={
        "h2d": hv.Metric("GB/s", "low", "host to GPU, pinned, median copy").warn(
            "?2?", of_siblings=0.7, of_baseline=0.85
        ),
        "d2h": hv.Metric("GB/s", "low", "GPU to host, pinned, median copy"),
        "*.stall": STALL,
        "*.link": hv.Metric("GB/s", "low", "maximum of the link at that moment").warn(
            of_siblings=1, source="links of GPUs of one model; see pcie"
        ),
        "*.of_link": hv.Metric("ratio", "low", "rate / maximum of the link")
        .fail(
            "?2?.of_link",
            low=0.6,
            of_siblings=0.85,
            source="Azure NHC: floors of 0.63 (V100), 0.67 (A100), 0.76 (H100)",
        )
        .warn(low=0.75, source="nvbandwidth: 0.76 to 0.88 of the link on good nodes"),
    },
    finding_rules={
        **hv.fail_on("transfer_corrupted", conclusive=True),
        MEMORY_CODE: PRODUCT_FINDING_RULES[MEMORY_CODE],
    },
    placement=hv.Placement.DEVICES_ALONE,
    timeout=120.0,
)
