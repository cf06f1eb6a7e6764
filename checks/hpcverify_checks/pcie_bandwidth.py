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

from hpcverify.check import Check, Context, Metric, Params, Placement, Rule, Skip
from hpcverify.model import (
    Covered,
    Finding,
    Found,
    Measurement,
    Remedy,
    Ruling,
    Verdict,
)
from hpcverify.telemetry import aer
from hpcverify_checks._bits import digest
from hpcverify_checks._cores import listed
from hpcverify_checks._links import SUPERCHIPS, part, spec
from hpcverify_checks._load import timer_for
from hpcverify_checks._torch import require_memory, torch_device
from hpcverify_checks._transfers import (
    WORD,
    Copy,
    Wrong,
    compared,
    copy,
    pattern,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

GIGA = 1e9


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
        raise Skip("a CPU has no PCIe link of its own")


def measure(ctx: Context, params: PcieBandwidthParams) -> Iterator[Found]:
    """Copy out and back, compare, and time both directions."""
    applies(ctx)
    device = torch_device(ctx)
    require_memory(device, 2 * params.size)
    gpu = part(ctx, ctx.device.part)
    address = gpu.facts.get("pci_address", "") if gpu else ""
    sheet = spec(ctx, ctx.device.part)
    by_pcie = not (sheet and sheet.key.startswith(SUPERCHIPS))
    route = Route(
        device,
        partial(aer.link, address),
        aer.best_link(address) if by_pcie else None,
        aer.local_cpus(address),
    )
    yield from transfers(route, ctx, params)


def transfers(
    route: Route, ctx: Context, params: PcieBandwidthParams
) -> Iterator[Found]:
    """Yield what was wrong, and how fast it went, on one *route*."""
    import torch

    where = ctx.device.part
    # Before we are bound: torch's threads keep the cores that they begin on.
    words = pattern(ctx.seed, range(params.size // WORD), torch.device("cpu"))
    with near(route.cores) as cores:
        buffers = Buffers.made(route.device, words)
        yield from verified(buffers, route, params.rounds, where)
        for name, step in buffers.directions(route).items():
            yield from timed(name, step, route, params, where)
    bound = f"cores {listed(sorted(cores))}, near the GPU" if cores else "any core"
    text = (
        f"{params.rounds} copies of {params.size // 2**20} MiB out and back compared "
        f"bit by bit, then {params.seconds:g} s timed each way, from {bound}"
    )
    yield Covered(where, text)
    if route.link() is None:
        text = "what the link carries cannot be read: the rates are not held against it"
        yield Covered(where, text)


@contextmanager
def near(cores: frozenset[int]) -> Generator[frozenset[int]]:
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
class Buffers:
    """The words on the host, their place on the GPU, and where they come back to."""

    words: Tensor
    there: Tensor
    back: Tensor

    @classmethod
    def made(cls, device: torch.device, words: Tensor) -> Buffers:
        """Make them; the host's are placed near the cores of this thread."""
        import torch

        pinned = device.type == "cuda"
        out, back = (torch.zeros_like(words, pin_memory=pinned) for _ in range(2))
        out.copy_(words)
        return cls(out, torch.zeros_like(words, device=device), back)

    def directions(self, route: Route) -> dict[str, Callable[[], None]]:
        """Give a step that copies each way."""
        return {
            "h2d": partial(route.copy, self.there, self.words),
            "d2h": partial(route.copy, self.back, self.there),
        }


def verified(
    buffers: Buffers, route: Route, rounds: int, where: str
) -> Iterator[Finding]:
    """Copy out and back *rounds* times; yield the first round that came back wrong."""
    for number in range(rounds):
        for step in buffers.directions(route).values():
            step()
        settle(route.device)
        wrong = compared(buffers.back, buffers.words)
        if wrong:
            yield corrupted(buffers, wrong, number, where)
            return
        buffers.words.bitwise_not_()


def settle(device: torch.device) -> None:
    """Wait until *device* has done what was begun."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def corrupted(buffers: Buffers, wrong: Wrong, number: int, where: str) -> Finding:
    """Say what came back wrong, and on which way it was lost."""
    arrived = digest(buffers.there) == digest(buffers.words)
    way = "from the GPU to the host" if arrived else "from the host to the GPU"
    text = (
        f"{wrong.words} words were changed on the way {way}, the first at byte "
        f"{wrong.index * WORD}"
    )
    evidence = {"way": way, "round": str(number), **wrong.evidence()}
    return Finding("transfer_corrupted", where, text, evidence)


def timed(
    name: str,
    step: Callable[[], None],
    route: Route,
    params: PcieBandwidthParams,
    where: str,
) -> Iterator[Measurement]:
    """Yield the rate of copies in one direction, and its share of what the link has."""
    links: list[aer.Link | None] = []

    def watched() -> None:
        step()
        links.append(route.link())  # while the copies are under way

    timer = timer_for(route.device)
    timer(step, params.warm_up_seconds)
    rate = params.size / median(timer(watched, params.seconds)) / GIGA
    yield Measurement(name, rate, "GB/s", where)
    link = links[-1]
    if link:
        yield Measurement(f"{name}.link", link.bandwidth, "GB/s", where)
        yield Measurement(f"{name}.of_link", rate / link.bandwidth, "ratio", where)
    if link and route.best:
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
        "*.link": Metric(
            unit="GB/s", meaning="what the link carried meanwhile, at most"
        ),
        "*.of_link": Metric(unit="ratio", meaning="share of that which was reached"),
        "*.of_best": Metric(unit="ratio", meaning="link / what GPU and slot can do"),
    },
    rules={
        "?2?": Rule(
            of_siblings=0.7, of_baseline=0.85, otherwise=Verdict.WARN, optional=True
        ),
        "?2?.of_link": Rule(
            low=0.6,
            of_siblings=0.85,
            optional=True,
            source="Azure NHC: floors of 0.63 (V100), 0.67 (A100), 0.76 (H100)",
        ),
        "*.of_link": Rule(
            low=0.75,
            otherwise=Verdict.WARN,
            optional=True,
            source="nvbandwidth: 0.76 to 0.88 of the link on good nodes",
        ),
        "*.link.of_best": Rule(
            low=1,
            otherwise=Verdict.WARN,
            optional=True,
            source="what GPU and slot can do, by the kernel; see pcie",
        ),
    },
    rulings={"transfer_corrupted": Ruling(Verdict.FAIL, Remedy.INSPECT, hard=True)},
    placement=Placement.DEVICES_ALONE,
    timeout=120.0,
)
