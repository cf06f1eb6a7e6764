"""
Copy between every two GPUs of the node: how fast, and does every bit arrive.

Each GPU makes a pattern of its own, where each word is a hash of its place. It copies
the pattern to every other GPU, over the complement of what will arrive, and that GPU
compares it with the same hash of its own. A missing copy, a wrong bit and words of
another GPU all show, and the host need not compare. If words are wrong, the host
computes the first one itself and reads it at the source: bad memory or arithmetic at
one end does not count as a fault of the link. Over PCIe all pairs may go wrong in the
same way: then the node is set up so that peers do not reach each other.

Then every ordered pair is timed alone, and all GPUs at once, each sending to the next.
A GPU is judged by the median over its pairs: its slowest pair may be the other end's
fault, which would then show on every GPU. What a pair can reach depends on the wiring.
Behind switches each pair has all of a GPU's NVLinks (``p2p.*``), also if a node has few
GPUs and the switches are in the rack (``tray.*``; there the data sheet only warns, since
boards of the same GPUs without switches exist). Up to four GPUs may divide their links
among each other; they are compared with each other but not with the data sheet
(``mesh.*``). Elsewhere some pairs share a PCIe switch and others cross the sockets, and
the node is compared with its own past (``peer.*``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from statistics import median
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.model import PairRates
from hpcverify.telemetry.problems import NOT_USED
from hpcverify.units import GIGA, format_count
from hpcverify_checks.exact.bits import WORD_BYTES, format_word
from hpcverify_checks.exact.mismatch import Mismatch, find_mismatch
from hpcverify_checks.exact.transfers import Copy, copy, make_pattern
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.device import find_torch_device, require_memory, wait_for_device
from hpcverify_checks.node.estimates import count_gpus
from hpcverify_checks.node.parts import classify_wiring
from hpcverify_checks.node.timing import MIN_STEPS, choose_timer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COMPARE_BUFFERS = 8
"""Memory that a comparison takes, in buffers: the words and temporaries."""
RING_FACTOR = 10
"""Times as long as a pair, all GPUs copy at once."""
SLOW_BYTES_PER_SECOND = 10e9
"""The rate of a copy through the host, where GPUs do not reach each other."""
MISROUTED_FIX = (
    "a fault, or the IOMMU or ACS misroutes copies between GPUs: on bare metal turn both "
    "off (boot with intel_iommu=off or amd_iommu=off; ACS in the firmware), and run again"
)
"""CUDA C++ programming guide, IOMMU on Linux: the driver does not support such copies
on bare metal with an IOMMU, and memory may be silently corrupted."""

Rates = Mapping[tuple[int, int], float]
"""GB/s from one GPU to another, by their indices."""


class P2pParams(hv.Params, frozen=True):
    """Sizes and time of the copies."""

    size: Annotated[int, Meta(ge=1)] = 512 * 2**20
    """Bytes of a timed copy; small copies would time the host that starts them."""
    verified: Annotated[int, Meta(ge=1)] = 64 * 2**20
    """Bytes that are compared between each pair."""
    seconds: Annotated[float, Meta(gt=0)] = 0.1
    """The time of timed copies per pair; ten times that for all at once."""


@dataclass(frozen=True, slots=True)
class Rig:
    """The GPUs, and what copies between them; tests supply their own."""

    devices: tuple[torch.device, ...]
    gpus: tuple[hv.Device, ...]
    reaches: Callable[[torch.device, torch.device], bool]
    """Whether the first can access the memory of the second directly; if not, copies go
    through the host."""
    seed: int
    copy: Copy = copy

    def list_pairs(self) -> dict[tuple[int, int], bool]:
        """List each ordered pair of indices, and whether the first reaches the second."""
        pairs = permutations(enumerate(self.devices), 2)
        return {(i, j): self.reaches(source, target) for (i, source), (j, target) in pairs}


def applies(ctx: hv.Context) -> None:
    """Raise `Skip` where there is no pair."""
    gpu_source.require_gpus(ctx)
    if len(_list_gpus(ctx)) < 2:  # noqa: PLR2004 - a pair
        raise hv.Skip("fewer than two GPUs: no pair to copy between")


def _list_gpus(ctx: hv.Context) -> tuple[hv.Device, ...]:
    return tuple(d for d in ctx.inventory.devices if d.kind == "cuda")


def estimate(ctx: hv.Context, params: P2pParams) -> float:
    """Add up the compared and the timed copies of all pairs, and the ring."""
    count = count_gpus(ctx)
    compared = COMPARE_BUFFERS * params.verified / SLOW_BYTES_PER_SECOND
    slowest = MIN_STEPS * params.size / SLOW_BYTES_PER_SECOND  # the fewest copies that are timed
    pairs = count * (count - 1) * (compared + params.seconds + slowest)
    return pairs + RING_FACTOR * params.seconds


def measure(ctx: hv.Context, params: P2pParams) -> Iterator[hv.CheckItem]:
    """Verify and time the copies between all GPUs of the node."""
    applies(ctx)  # before torch is loaded
    gpus = _list_gpus(ctx)
    devices = tuple(find_torch_device(replace(ctx, device=gpu)) for gpu in gpus)
    import torch

    for gpu, device in zip(gpus, devices, strict=True):
        needed = 2 * params.size + COMPARE_BUFFERS * params.verified
        require_memory(device, needed, f"the memory of {gpu.label}")
    rig = Rig(devices, gpus, torch.cuda.can_device_access_peer, ctx.seed)
    yield from measure_pairs(rig, ctx, params)


def measure_pairs(rig: Rig, ctx: hv.Context, params: P2pParams) -> Iterator[hv.CheckItem]:
    """Verify and time the copies between the GPUs of *rig*."""
    for problem in ctx.inventory.problems:  # an earlier check of the run left them hung
        if problem.code == NOT_USED:
            label = ctx.inventory.find_label(problem.part_id)
            yield hv.Coverage(problem.part_id, f"{label} was left out of all pairs: {problem.text}")
    wiring = classify_wiring(rig.gpus, ctx)
    unreached: dict[int, list[str]] = {}
    for (i, j), direct in rig.list_pairs().items():
        if not direct:
            unreached.setdefault(i, []).append(rig.gpus[j].label)
    for i, labels in unreached.items():
        text = f"no peer access to {', '.join(labels)}: copies go through the host"
        code = "p2p_by_host" if wiring == "peer" else "p2p_refused"
        yield hv.Finding(code, rig.gpus[i].part, text)
    wrong = tuple(verify_pairs(rig, params.verified // WORD_BYTES))
    yield from _explain_stray_words(rig, wrong, wiring)
    rates, ring = _time_pairs(rig, params)
    yield from report_rates(rig, rates, ring, wiring)
    verified = f"{params.verified // 2**20} MiB compared bit by bit on each"
    yield hv.Coverage("node", f"{len(rates)} pairs: {verified}", tabulate_rates(rig.gpus, rates))


def verify_pairs(rig: Rig, words: int) -> Iterator[hv.Finding]:
    """Copy the pattern of each GPU to every other GPU, and compare it there."""
    for i, j in rig.list_pairs():
        source, target = rig.devices[i], rig.devices[j]
        with hv.operation(f"a compared copy to {rig.gpus[j].label}", rig.gpus[i]):
            sent, expected = (make_pattern(rig.seed + i, range(words), d) for d in (source, target))
            arrived = ~expected
            rig.copy(arrived, sent)
            wait_for_device(source, target)
            wrong = find_mismatch(arrived, expected)
        if wrong:
            yield explain_corruption(rig, (i, j), wrong, int(sent[wrong.index]))


def explain_corruption(rig: Rig, pair: tuple[int, int], wrong: Mismatch, sent: int) -> hv.Finding:
    """Say what was wrong, and in which part, by the word that the host computes."""
    import torch

    source, target = (rig.gpus[place] for place in pair)
    place = range(wrong.index, wrong.index + 1)
    truth = int(make_pattern(rig.seed + pair[0], place, torch.device("cpu")))
    evidence = {
        "from": source.part,
        "to": target.part,
        **wrong.to_evidence(),
        "at_the_source": format_word(sent),
        "right": format_word(truth),
    }
    for gpu, word, what in (
        (source, sent, "holds wrong words in its memory"),
        (target, wrong.expected, "computes wrong words"),
    ):
        if word != truth:
            text = f"the GPU {what}, by the host's own result: not a link fault"
            return hv.Finding("words_wrong", gpu.part, text, evidence)
    text = (
        f"{format_count(wrong.count, 'word')} changed between {source.label} and {target.label}: "
        f"{wrong.describe()}"
    )
    return hv.Finding("p2p_corrupted", source.part, text, evidence)


def _explain_stray_words(
    rig: Rig, wrong: Sequence[hv.Finding], wiring: str
) -> Iterator[hv.Finding]:
    # If all PCIe pairs are wrong, the setup explains it better than the links.
    parts = [gpu.part for gpu in rig.gpus]
    reached = (pair for pair, direct in rig.list_pairs().items() if direct and wiring == "peer")
    direct = {(parts[i], parts[j]) for i, j in reached}
    stray = [
        finding
        for finding in wrong
        if finding.code == "p2p_corrupted"
        and (finding.evidence["from"], finding.evidence["to"]) in direct
    ]
    yield from (finding for finding in wrong if finding not in stray)
    if direct and len(stray) == len(direct):
        text = f"words were changed between all {len(direct)} pairs: {MISROUTED_FIX}"
        yield hv.Finding("p2p_misrouted", "node", text, stray[0].evidence)
    else:
        for finding in stray:
            yield replace(finding, text=f"{finding.text}: {MISROUTED_FIX}")


def _time_pairs(rig: Rig, params: P2pParams) -> tuple[Rates, dict[int, float]]:
    """Time each pair alone, then all GPUs at once, each sending to the next."""
    import torch

    def make_buffers() -> list[Tensor]:
        words = params.size // WORD_BYTES
        return [torch.zeros(words, dtype=torch.int64, device=d) for d in rig.devices]

    sources, targets = make_buffers(), make_buffers()
    wait_for_device(*rig.devices)

    def measure_rate(seconds: float, i: int, j: int) -> float:
        step = partial(rig.copy, targets[j], sources[i])
        doing = hv.operation(f"timed copies to {rig.gpus[j].label}", rig.gpus[i])
        with doing, use_streams(rig.devices[j], rig.devices[i]):
            times = choose_timer(rig.devices[i])(step, seconds)
        return params.size / median(times) / GIGA

    alone = {(i, j): measure_rate(params.seconds, i, j) for i, j in rig.list_pairs()}
    places = range(len(rig.devices))
    following = [*places[1:], 0]
    with ThreadPoolExecutor(len(places)) as pool:
        at_once = pool.map(partial(measure_rate, RING_FACTOR * params.seconds), places, following)
        return alone, dict(enumerate(at_once))


def use_streams(*devices: torch.device) -> AbstractContextManager[object]:
    """
    Work in new streams of *devices*, the last of which becomes the current device.

    A copy waits for earlier work in the streams of both ends: if a GPU sent and received
    in the same stream, the copies of a ring would run one after the other.
    """
    import torch

    if devices[0].type != "cuda":
        return nullcontext()
    stack = ExitStack()
    for device in devices:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stack.enter_context(torch.cuda.stream(stream))
    return stack


def report_rates(
    rig: Rig, rates: Rates, ring: Mapping[int, float], prefix: str
) -> Iterator[hv.CheckItem]:
    """Report the rates of each GPU, and the slowest pair."""
    for i, gpu in enumerate(rig.gpus):
        numbers = {
            "write": median(r for (source, _), r in rates.items() if source == i),
            "read": median(r for (_, target), r in rates.items() if target == i),
            "ring": ring[i],
        }
        for name, rate in numbers.items():
            yield hv.Measurement(f"{prefix}.{name}", rate, "GB/s", gpu.part)
    (i, j), slowest = min(rates.items(), key=lambda item: item[1])
    yield hv.Measurement(f"{prefix}.slowest", slowest / median(rates.values()), "ratio")
    pair = f"{rig.gpus[i].label} to {rig.gpus[j].label}"
    yield hv.Coverage("node", f"the slowest pair: {pair}, {slowest:.4g} GB/s")


def tabulate_rates(gpus: Sequence[hv.Device], rates: Rates) -> PairRates:
    """Arrange the rates of all pairs, one row per sending GPU."""
    places = range(len(gpus))
    rows = tuple(tuple(rates.get((i, j)) for j in places) for i in places)
    return PairRates("GB/s", tuple(gpu.part for gpu in gpus), rows)


SPREAD_SOURCE = "hpcverify default: pairs of a good node differ by 5 % (NCCL issue 1264)"
TRAY_SOURCE = "hpcverify default; a board without switches, as GB200 NVL4, reaches a third"

CHECK = hv.Check(
    summary="copies between every two GPUs: bandwidth, all at once, every bit compared",
    measure=measure,
    estimate=estimate,
    applies=applies,
    params=P2pParams,
    metrics={
        "*.write": hv.Metric("GB/s", "low", "to another GPU, median of its pairs")
        .fail("p2p.write", of_spec=0.9, of_siblings=0.85, source=SPREAD_SOURCE)
        .fail("mesh.write", "tray.write", of_siblings=0.85, source=SPREAD_SOURCE)
        .warn("tray*.write", of_spec=0.9, source=TRAY_SOURCE)
        .warn("peer.write", of_baseline=0.8),
        "*.read": hv.Metric("GB/s", "low", "from another GPU, median of its pairs")
        .fail("p2p.read", "mesh.read", "tray.read", of_siblings=0.85, source=SPREAD_SOURCE)
        .warn("peer.read", of_baseline=0.8),
        "*.ring": hv.Metric("GB/s", "low", "to the next GPU, all at the same time")
        .fail("p2p.ring", "mesh.ring", "tray.ring", of_siblings=0.85, source=SPREAD_SOURCE)
        .warn("peer.ring", of_baseline=0.8),
        "*.slowest": hv.Metric("ratio", "low", "slowest pair / median pair").fail(
            *("p2p.slowest", "mesh.slowest", "tray.slowest"), low=0.85, source=SPREAD_SOURCE
        ),
    },
    finding_rules={
        **hv.fail_on("p2p_corrupted", conclusive=True),
        **hv.not_set_up("p2p_misrouted"),
        **hv.fail_on("words_wrong", remedy=hv.Remedy.REPLACE, conclusive=True),
        **hv.warn_on("p2p_refused", remedy=hv.Remedy.FIX_CONFIGURATION),
        **hv.listed("p2p_by_host"),
    },
    placement=hv.Placement.DEVICES_TOGETHER,
    timeout=300.0,
)
