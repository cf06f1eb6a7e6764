"""
The PCIe link of each GPU: is it as wide and fast as it can be, and is it clean.

An idle GPU lowers its link to generation 1 to save power, so the generation is judged
by samples of the run while the GPU worked; the width of a healthy link never falls. A
link fails if most GPUs of the same model in this node have more, or if it had more itself, in
this run or an earlier one. What the driver calls the maximum is no such evidence: a hypervisor
hides the slot, and a healthy L40S of AWS has 8 of 16 lanes. Nor is a single other GPU: one of
two in a workstation may be in a slot with fewer lanes (`nvidia-smi -a` of two RTX 4060 Ti in
thamada/nvidia-smi). So a link that is below that maximum and has lost nothing is a warning,
once. A slot that supports less than the GPU is listed and passes.

Errors are read at both ends: the GPU's own counters, and the kernel's (AER) for the GPU
and the ports above it up to the root, since the faulty end need not be the one that
notices. The counters start with the driver or the node and are judged by their rise
since the last run. Replays and other corrected errors happen on good links now and
then: their rate is judged by what PCI Express allows on so fast and wide a link. Requests
that nobody answers are how software looks for devices and do not count; neither do the
recoveries at each change of generation.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

import hpcverify.check as hv
from hpcverify.limits.specs import PCIE_LANE_RATES
from hpcverify.telemetry import aer, problems
from hpcverify.telemetry.gpus import GpuAnswers, PcieLink
from hpcverify.telemetry.vendors import SourceFinder, find_source
from hpcverify.units import HOUR_SECONDS, MINUTE_SECONDS
from hpcverify_checks.node import gpu_source
from hpcverify_checks.node.counters import (
    USUAL_LINK,
    Growth,
    compare_with_last_run,
    find_peak_increase,
    list_aer_counts,
    read_moment,
)
from hpcverify_checks.node.parts import SUPERCHIP_KEY_PREFIXES, find_model, look_up_spec

REPLAY_WINDOWS = {"replays.minute": MINUTE_SECONDS, "replays.quarter": 15 * MINUTE_SECONDS}
"""Seconds within which the most replays are measured."""
ERROR_KINDS = ("fatal", "non_fatal", "correctable", "replays")


class PcieParams(hv.Params, frozen=True):
    """What counts as load."""

    loaded: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """At this utilization a GPU must run its link at full speed."""


def measure(
    ctx: hv.Context, params: PcieParams, find: SourceFinder = find_source
) -> Iterator[hv.CheckItem]:
    """Read the links as they are now, and their errors since the last run."""
    yield from report_links(gpu_source.open_gpu_source(ctx, find).read_pcie(), ctx, Path("/"))


def report_links(
    reply: GpuAnswers[PcieLink], ctx: hv.Context, root: Path
) -> Iterator[hv.CheckItem]:
    """Report the state and the errors of the links in *reply*."""
    if not (reply.answers or reply.findings):
        raise hv.Skip("no GPU reports its PCIe link", hv.Cause.NOT_OBSERVABLE)
    yield from gpu_source.report_troubles(reply)
    levels = {
        part_id: LinkLevel(link.width, link.max_width, link.width)
        for part_id, link in reply.answers.items()
        if link.width is not None and link.max_width is not None
    }
    yield from (hv.Measurement("width", level.now, "", w) for w, level in levels.items())
    yield from _report_missing("width", levels, ctx)
    for part_id, link in reply.answers.items():
        yield from _report_platform_limits(link, ctx, part_id)
        text = (
            f"PCIe generation {link.generation or '?'} of {link.max_generation or '?'}, "
            f"{link.width or '?'} of {link.max_width or '?'} lanes, at {link.address}; "
            "the errors of both ends read"
        )
        yield hv.Coverage(part_id, text)
    now = read_moment(root)
    allowed = {
        w: _count_allowed(link.max_generation, link.width) for w, link in reply.answers.items()
    }
    for part_id, counts in count_errors(reply.answers, ctx, root).items():
        growth = compare_with_last_run(ctx, part_id, counts, now)
        yield from report_errors(growth, part_id, allowed.get(part_id, max(allowed.values())))
        yield growth.carry_over


class LinkLevel(Struct, frozen=True):
    """What a link does, and what it could do."""

    now: int
    best: int
    """The maximum by the driver."""
    peak: int
    """The most that it did in this run."""


def _report_missing(
    what: str, levels: Mapping[str, LinkLevel], ctx: hv.Context, suffix: str = ""
) -> Iterator[hv.CheckItem]:
    """
    Measure by how much each link is below what it, or most of its model, were seen to do.

    Without a *suffix*, also measure once by how much a link that has lost nothing is below
    its maximum, and remember the most that it did.
    """
    for part_id, level in levels.items():
        sheet = look_up_spec(ctx, part_id)
        if sheet and sheet.key.startswith(SUPERCHIP_KEY_PREFIXES):
            continue
        like = [s.now for w, s in levels.items() if find_model(ctx, w) == find_model(ctx, part_id)]
        reached = None if ctx.accepts_parts else ctx.recall(f"{what} reached", part_id)
        before = int(reached) if reached and reached.isdecimal() else 0
        usual = sorted(like)[(len(like) - 1) // 2]
        missing = max(0, min(level.best, max(level.peak, before, usual)) - level.now)
        yield hv.Measurement(f"{what}.missing{suffix}", missing, "", part_id)
        if suffix:
            continue
        if not (missing or before):
            unused = max(0, level.best - level.now)
            yield hv.Measurement(f"{what}.unused", unused, "", part_id)
        yield hv.CarryOver(f"{what} reached", str(max(level.peak, before)), part_id)


def _report_platform_limits(link: PcieLink, ctx: hv.Context, part_id: str) -> Iterator[hv.Finding]:
    sheet = look_up_spec(ctx, part_id)
    pairs = (
        ("generation", link.max_generation, link.gpu_max_generation),
        ("width", link.max_width, sheet.pcie_width if sheet else None),
    )
    for what, slot, gpu in pairs:
        if slot is not None and gpu is not None and slot < gpu:
            text = f"the slot supports PCIe {what} {slot}, the GPU {gpu}"
            yield hv.Finding("platform_limit", part_id, text)


def count_errors(
    links: Mapping[str, PcieLink], ctx: hv.Context, root: Path
) -> dict[str, dict[str, int]]:
    """
    Read all errors, by the part that they belong to.

    A port with several GPUs below it belongs to the node: it fails none of them. GPUs
    that do not answer now count as well.
    """
    chains = {w: (k.address, *aer.list_ports(k.address, root)) for w, k in links.items()}
    known = {gpu.facts.get("pci_address", "") for gpu in ctx.inventory.of_kind("gpu")}
    silent = known - {"", *(k.address for k in links.values())}
    others = [aer.list_ports(address, root) for address in silent]
    shared = Counter(chain.from_iterable([*chains.values(), *others]))
    counts: dict[str, dict[str, int]] = {}
    for part_id, link in links.items():
        own = {f"GPU {kind}": link.counters[kind] for kind in ERROR_KINDS if kind in link.counters}
        if "GPU non_fatal" in own:
            unanswered = link.counters.get("unsupported", 0)
            own["GPU non_fatal"] = max(0, own["GPU non_fatal"] - unanswered)
        counts[part_id] = own
    for part_id, addresses in chains.items():
        for address in addresses:
            owner = part_id if shared[address] == 1 else "node"
            own = list_aer_counts(address, aer.read_errors(address, root))
            counts.setdefault(owner, {}).update(own)
    return counts


def _count_allowed(generation: int | None, width: int | None) -> float:
    """Count the bit errors an hour that are no fault of a GPU's link."""
    known = aer.Link(generation or USUAL_LINK.generation, width or USUAL_LINK.width)
    return (known if known.generation in PCIE_LANE_RATES else USUAL_LINK).allowed_errors


def report_errors(new: Growth, part_id: str, allowed: float) -> Iterator[hv.CheckItem]:
    """Report the *new* errors of each kind, of which so many an hour are *allowed*."""
    yield hv.Measurement("fatal", _sum_kind(new.shown, "fatal"), "", part_id)
    if new.from_last_run:
        for kind in ("fatal", "non_fatal"):
            yield hv.Measurement(f"{kind}.delta", _sum_kind(new.last.counts, kind), "", part_id)
    for kind in ("replays", "correctable"):
        rate = new.compute_rate(partial(_sum_kind, kind=kind), HOUR_SECONDS)
        if rate is not None:
            yield hv.Measurement(f"{kind}.rate", rate / allowed, "ratio", part_id)
    if evidence := new.list_new():
        listed = ", ".join(f"{name} {count}" for name, count in evidence.items())
        text = f"PCIe errors since {new.start}: {listed}"
        yield hv.Finding("pcie_errors", part_id, text, evidence)


def _sum_kind(counts: Mapping[str, int], kind: str) -> int:
    # What both ends noticed counts once.
    ends: Counter[str] = Counter()
    for name, count in counts.items():
        end, named, *_ = name.split(" ")
        if named == kind:
            ends[end] += count
    return max(ends.values(), default=0)


def observe(watch: hv.Watch, ctx: hv.Context, params: PcieParams) -> Iterator[hv.CheckItem]:
    """Report how the links did during the run."""
    slowest: dict[str, LinkLevel] = {}
    usage = dict(watch.group_by_part("utilization"))
    for part_id, samples in watch.group_by_part("pcie.generation"):
        best = _read_fact(ctx, part_id, "pcie_generation")
        under_load = select_loaded(samples, usage.get(part_id, []), params.loaded)
        lowest = _find_steady_low(under_load)
        if best is None or lowest is None:
            why = "never under load in this run" if best else "what it supports is not known"
            yield hv.Coverage(part_id, f"generation not judged: {why}")
            continue
        yield hv.Measurement("generation", lowest, "", part_id)
        yield hv.Coverage(part_id, f"generation judged by {len(under_load)} samples under load")
        slowest[part_id] = LinkLevel(lowest, best, _find_peak(samples))
    yield from _report_missing("generation", slowest, ctx)
    narrowest = {
        part_id: LinkLevel(lowest, best, _find_peak(samples))
        for part_id, samples in watch.group_by_part("pcie.width")
        if (best := _read_fact(ctx, part_id, "pcie_width")) is not None
        and (lowest := _find_steady_low(samples)) is not None
    }
    yield from _report_missing("width", narrowest, ctx, ".run")
    for part_id, samples in watch.group_by_part("pcie.replays"):
        allowed = _count_allowed(
            _read_fact(ctx, part_id, "pcie_generation"), _read_fact(ctx, part_id, "pcie_width")
        )
        for name, seconds in REPLAY_WINDOWS.items():
            most = allowed * seconds / HOUR_SECONDS
            yield hv.Measurement(
                name, find_peak_increase(samples, seconds) / most, "ratio", part_id
            )
    for part_id, samples in watch.group_by_part("pcie.recoveries"):
        yield hv.Measurement("recoveries.run", find_peak_increase(samples, inf), "", part_id)


def _read_fact(ctx: hv.Context, part_id: str, name: str) -> int | None:
    part = ctx.inventory.find_part(part_id)
    text = part.facts.get(name, "") if part else ""
    return int(text) if text.isdigit() else None


def select_loaded(
    samples: Sequence[hv.Sample], usage: Sequence[hv.Sample], least: float
) -> list[hv.Sample]:
    """
    Keep the *samples* before and after which the GPU was in use.

    Thinning keeps the extremes of a series, so a pause between two samples of a long
    run would still be in it.
    """
    times = [u.t for u in usage]

    def is_loaded(t: float) -> bool:
        before, after = bisect_right(times, t) - 1, bisect_left(times, t)
        within = before >= 0 and after < len(times)
        return within and min(usage[before].value, usage[after].value) >= least

    return [sample for sample in samples if is_loaded(sample.t)]


def _find_steady_low(samples: Sequence[hv.Sample]) -> int | None:
    # Two samples in a row must show it: one alone may be a change under way.
    return min((int(max(a.value, b.value)) for a, b in pairwise(samples)), default=None)


def _find_peak(samples: Sequence[hv.Sample]) -> int:
    return max(int(sample.value) for sample in samples)


SEEN_SOURCE = "what it, or most GPUs of this model in the node, were seen to do"
SLOT_SOURCE = (
    "what GPU and slot support: check the riser and the firmware setting of the slot; a virtual "
    "machine may hide lanes"
)
FATAL_SOURCE = "PCI Express: after a fatal error a link is unreliable"
BIT_ERRORS_SOURCE = "DCGM 4.6: PCI Express allows one error in 1e12 bits"

CHECK = hv.Check(
    summary="PCIe links of the GPUs: width, generation under load, errors at both ends",
    measure=measure,
    observe=observe,
    params=PcieParams,
    metrics={
        "width": hv.Metric("", "low", "lanes of the link now"),
        "width.missing": hv.Metric(
            "", "high", "lanes fewer than it or most siblings were seen to have"
        ).fail(high=0, source=SEEN_SOURCE),
        "width.missing.run": hv.Metric("", "high", "the same at its worst in the run").fail(
            high=0, source=SEEN_SOURCE
        ),
        "width.unused": hv.Metric(
            "", "neither", "lanes fewer than GPU and slot support, in the first run"
        ).warn(high=0, source=SLOT_SOURCE),
        "generation.unused": hv.Metric(
            "", "neither", "generations below what GPU and slot support, likewise"
        ).warn(high=0, source=SLOT_SOURCE),
        "generation": hv.Metric("", "low", "the lowest while the GPU worked"),
        "generation.missing": hv.Metric(
            "", "high", "generations below what it or most siblings did"
        ).fail(high=0, source=SEEN_SOURCE),
        "fatal": hv.Metric("", "high", "fatal errors since the driver started").warn(
            high=0, source=FATAL_SOURCE
        ),
        "fatal.delta": hv.Metric("", "high", "fatal errors since the last run").fail(
            high=0, conclusive=True, source=FATAL_SOURCE
        ),
        "non_fatal.delta": hv.Metric("", "high", "uncorrected, non-fatal, since the last run").warn(
            high=0, source="PCI Express: a request was lost"
        ),
        "correctable.rate": hv.Metric(
            "ratio", "high", "corrected errors, either end / what is allowed"
        ).warn(high=1, source="hpcverify default: as for replays"),
        "replays.rate": hv.Metric(
            "ratio", "high", "packets resent since the last run, likewise"
        ).warn(high=1, source=BIT_ERRORS_SOURCE),
        "replays.minute": hv.Metric(
            "ratio", "high", "the most in a minute of the run, likewise"
        ).warn(high=1, source=BIT_ERRORS_SOURCE),
        "replays.quarter": hv.Metric(
            "ratio", "high", "the most in 15 minutes of the run, likewise"
        ).fail(high=1, source=BIT_ERRORS_SOURCE),
        "recoveries.run": hv.Metric("", "high", "times the link recovered in the run"),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        **hv.listed("platform_limit", "pcie_errors"),
    },
    placement=hv.Placement.PASSIVE,
    timeout=60,
)
