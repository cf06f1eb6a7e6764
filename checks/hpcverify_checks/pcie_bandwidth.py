"""
Copy between the host's memory and a GPU's: how fast, and does every bit arrive.

The host's buffers are pinned, so that the GPU's copy engines read and write them, and
they are made by, and copied from, cores on the GPU's own socket: from the far one the
link between the sockets would be measured. Each GPU copies alone, for GPUs may share
the way to the host. What is reached is set beside what the link carries at that very
moment, which an idle GPU does not show, and that beside what GPU and slot can do.

The words are a hash of their places and then the complement of that, by turns, so that
every bit of every word travels as both and is never taken for what was there before.
Words that come back wrong are traced by their digest on the GPU: lost on the way out,
or on the way back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from hpcverify.check import (
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Skip,
    fail_outside,
    warn_outside,
)
from hpcverify.model import CheckItem, Coverage, Finding, FindingRule, Measurement, Remedy, Verdict
from hpcverify.telemetry import aer
from hpcverify.units import GIGA
from hpcverify_checks.common.bits import WORD_BYTES, compute_digest
from hpcverify_checks.common.cores import format_ranges
from hpcverify_checks.common.device import find_torch_device, require_memory, wait_for_device
from hpcverify_checks.common.parts import SUPERCHIP_KEY_PREFIXES, look_up_spec
from hpcverify_checks.common.timing import choose_timer
from hpcverify_checks.common.transfers import (
    Copy,
    WrongWords,
    compare_words,
    copy,
    make_pattern,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PcieBandwidthParams(Params, frozen=True):
    """How much to copy at a time, how often, and for how long."""

    size: int = 256 * 2**20
    """Bytes."""
    seconds: float = 1.0
    """Of timed copies in each direction."""
    warm_up_seconds: float = 0.2
    """Before that, for the GPU to raise its link to full speed."""
    rounds: int = 4
    """Copies out and back of which every bit is compared."""


@dataclass(frozen=True, slots=True)
class Route:
    """The way between the host and one GPU; tests put their own links and copies."""

    device: torch.device
    link: Callable[[], aer.Link | None]
    """Reads what the link carries now."""
    best: aer.Link | None
    """What GPU and slot can do together."""
    cores: frozenset[int]
    """Those on the same socket; none if it is not known."""
    copy: Copy = copy


def applies(ctx: Context) -> None:
    """Raise `Skip` for the host."""
    if ctx.device.kind == "cpu":
        raise Skip("a CPU has no PCIe link to measure")


def measure(ctx: Context, params: PcieBandwidthParams) -> Iterator[CheckItem]:
    """Copy out and back, compare, and time both directions."""
    applies(ctx)
    device = find_torch_device(ctx)
    require_memory(device, 2 * params.size)
    gpu = ctx.inventory.find_part(ctx.device.part)
    address = gpu.facts.get("pci_address", "") if gpu else ""
    sheet = look_up_spec(ctx, ctx.device.part)
    by_pcie = not (sheet and sheet.key.startswith(SUPERCHIP_KEY_PREFIXES))
    route = Route(
        device,
        partial(aer.read_link, address),
        aer.find_best_link(address) if by_pcie else None,
        aer.list_local_cpus(address),
    )
    yield from measure_route(route, ctx, params)


def measure_route(route: Route, ctx: Context, params: PcieBandwidthParams) -> Iterator[CheckItem]:
    """Yield what was wrong, and how fast it went, on one *route*."""
    import torch

    where = ctx.device.part
    # Before we are bound: torch's threads keep the cores that they begin on.
    words = make_pattern(ctx.seed, range(params.size // WORD_BYTES), torch.device("cpu"))
    with _pin_near(route.cores) as cores:
        buffers = CopyBuffers.allocate(route.device, words)
        yield from _verify_round_trips(buffers, route, params.rounds, where)
        for name, step in buffers.make_steps(route).items():
            yield from _time_direction(name, step, route, params, where)
    bound = f"cores {format_ranges(sorted(cores))}, near the GPU" if cores else "any core"
    text = (
        f"{params.rounds} copies of {params.size // 2**20} MiB out and back compared "
        f"bit by bit, then {params.seconds:g} s timed each way, from {bound}"
    )
    yield Coverage(where, text)
    if route.link() is None:
        text = "what the link carries cannot be read: the rates are not held against it"
        yield Coverage(where, text)


@contextmanager
def _pin_near(cores: frozenset[int]) -> Generator[frozenset[int]]:
    """Stay on those of *cores* that we may use, for a while; anywhere, if on none."""
    before = os.sched_getaffinity(0)
    usable = cores & before
    if usable:
        os.sched_setaffinity(0, usable)
    try:
        yield usable
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class CopyBuffers:
    """The words on the host, their place on the GPU, and where they come back to."""

    words: Tensor
    gpu_words: Tensor
    returned_words: Tensor

    @classmethod
    def allocate(cls, device: torch.device, words: Tensor) -> CopyBuffers:
        """Make them; the host's are placed near the cores of this thread."""
        import torch

        pinned = device.type == "cuda"
        out, back = (torch.zeros_like(words, pin_memory=pinned) for _ in range(2))
        out.copy_(words)
        return cls(out, torch.zeros_like(words, device=device), back)

    def make_steps(self, route: Route) -> dict[str, Callable[[], None]]:
        """Give a step that copies each way."""
        return {
            "h2d": partial(route.copy, self.gpu_words, self.words),
            "d2h": partial(route.copy, self.returned_words, self.gpu_words),
        }


def _verify_round_trips(
    buffers: CopyBuffers, route: Route, rounds: int, where: str
) -> Iterator[Finding]:
    """Copy out and back *rounds* times; yield the first round that came back wrong."""
    for number in range(rounds):
        for step in buffers.make_steps(route).values():
            step()
        wait_for_device(route.device)
        wrong = compare_words(buffers.returned_words, buffers.words)
        if wrong:
            yield explain_corruption(buffers, wrong, number, where)
            return
        buffers.words.bitwise_not_()


def explain_corruption(buffers: CopyBuffers, wrong: WrongWords, number: int, where: str) -> Finding:
    """Say what came back wrong, and on which way it was lost."""
    arrived = compute_digest(buffers.gpu_words) == compute_digest(buffers.words)
    way = "from the GPU to the host" if arrived else "from the host to the GPU"
    text = (
        f"{wrong.words} words were changed on the way {way}, the first at byte "
        f"{wrong.index * WORD_BYTES}"
    )
    evidence = {"way": way, "round": str(number), **wrong.to_evidence()}
    return Finding("transfer_corrupted", where, text, evidence)


def _time_direction(
    name: str, step: Callable[[], None], route: Route, params: PcieBandwidthParams, where: str
) -> Iterator[Measurement]:
    links: list[aer.Link | None] = []

    def copy_and_read_link() -> None:
        step()
        links.append(route.link())  # while the copies are under way

    timer = choose_timer(route.device)
    timer(step, params.warm_up_seconds)
    rate = params.size / median(timer(copy_and_read_link, params.seconds)) / GIGA
    yield Measurement(name, rate, "GB/s", where)
    link = links[-1]
    if not link:
        return
    yield Measurement(f"{name}.link", link.bandwidth, "GB/s", where)
    yield Measurement(f"{name}.of_link", rate / link.bandwidth, "ratio", where)
    if route.best:
        share = link.bandwidth / route.best.bandwidth
        yield Measurement(f"{name}.link.of_best", share, "ratio", where)


CHECK = Check(
    summary="copies between host and GPU: speed against the link, every bit compared",
    measure=measure,
    applies=applies,
    params=PcieBandwidthParams,
    metrics={
        "h2d": Metric(unit="GB/s", meaning="host to GPU, pinned, median copy"),
        "d2h": Metric(unit="GB/s", meaning="GPU to host, pinned, median copy"),
        "*.link": Metric(unit="GB/s", meaning="what the link carried meanwhile, at most"),
        "*.of_link": Metric(unit="ratio", meaning="share of that which was reached"),
        "*.of_best": Metric(unit="ratio", meaning="link / what GPU and slot can do"),
    },
    rules={
        "?2?": warn_outside(of_siblings=0.7, of_baseline=0.85),
        "?2?.of_link": fail_outside(
            low=0.6,
            of_siblings=0.85,
            source="Azure NHC: floors of 0.63 (V100), 0.67 (A100), 0.76 (H100)",
        ),
        "*.of_link": warn_outside(
            low=0.75, source="nvbandwidth: 0.76 to 0.88 of the link on good nodes"
        ),
        "*.link.of_best": warn_outside(
            low=1, source="what GPU and slot can do, by the kernel; see pcie"
        ),
    },
    finding_rules={"transfer_corrupted": FindingRule(Verdict.FAIL, Remedy.INSPECT, hard=True)},
    placement=Placement.DEVICES_ALONE,
    timeout=120.0,
)
