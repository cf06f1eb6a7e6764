"""
The PCIe link of each GPU: is it as wide and as fast as it can be, and is it clean.

An idle GPU lowers its link to generation 1 to save power, so the generation is judged
by what was sampled during the run while the GPU worked; the width never falls in
health. A link that is slower than GPU and slot can do is a fault, unless all like GPUs
of the node show the same: then a riser or the firmware may hold them back, and the node
is warned of. What the slot takes from the GPU is listed and held against nobody.

Errors are read at both ends: the GPU's own counters, and those of the kernel (AER) of
the GPU and of the ports above it, up to the root, since the end that is at fault need
not be the one that notices. They count from the start of the driver or the node, and
are judged by what came since the last run. Replays and other errors that the link
corrects happen on good links now and then: their rate counts. Requests that nobody
answers are how software looks for devices, and count for nothing; neither does the
recovery that each change of generation goes through.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path

from msgspec import Struct

from hpcverify.check import (
    LISTED,
    Check,
    Context,
    Metric,
    Params,
    Placement,
    Sample,
    Skip,
    Watch,
    fail_outside,
    warn_outside,
)
from hpcverify.model import (
    Cause,
    CheckItem,
    Coverage,
    Finding,
    FindingRule,
    Measurement,
    Remedy,
    Verdict,
)
from hpcverify.telemetry import aer, problems
from hpcverify.telemetry.gpus import GpuAnswers, PcieLink
from hpcverify.units import HOUR_SECONDS, MINUTE_SECONDS
from hpcverify_checks.common import gpu_source
from hpcverify_checks.common.counters import (
    Growth,
    compare_with_last_run,
    find_peak_increase,
    read_moment,
)
from hpcverify_checks.common.parts import SUPERCHIP_KEY_PREFIXES, find_model, look_up_spec

PEAKS = (
    ("pcie.replays", "replays.minute", MINUTE_SECONDS),
    ("pcie.replays", "replays.quarter", 15 * MINUTE_SECONDS),
    ("pcie.recoveries", "recoveries.run", float("inf")),
)
"""Of what series the most within so many seconds is measured, and under what name."""
ERROR_KINDS = ("fatal", "non_fatal", "correctable", "replays")
HARMLESS_ERRORS = frozenset({"UnsupReq", "NonFatalErr"})
"""What the kernel calls a request that nobody answered, as an error and as a mere
advice: software that looks for devices causes them."""


class PcieParams(Params, frozen=True):
    """What counts as load."""

    loaded: float = 0.5
    """The utilization from which on a GPU must run its link at full speed."""


def measure(ctx: Context, params: PcieParams) -> Iterator[CheckItem]:
    """Read the links as they are now, and what they counted since the last run."""
    yield from report_links(gpu_source.open_gpu_source(ctx).read_pcie(), ctx, Path("/"))


def report_links(heard: GpuAnswers[PcieLink], ctx: Context, root: Path) -> Iterator[CheckItem]:
    """Yield the state and the errors of the links that were *heard* of."""
    if not (heard.answers or heard.findings):
        raise Skip("no GPU reports its PCIe link", Cause.NOT_OBSERVABLE)
    yield from gpu_source.report_troubles(heard)
    yield from _measure_widths(heard.answers, ctx)
    for where, link in heard.answers.items():
        yield from _report_platform_limits(link, ctx, where)
        text = (
            f"PCIe generation {link.generation or '?'} of {link.max_generation or '?'}, "
            f"{link.width or '?'} of {link.max_width or '?'} lanes, at {link.address}; "
            "the errors of both ends read"
        )
        yield Coverage(where, text)
    now = read_moment(root)
    for where, counts in count_errors(heard.answers, ctx, root).items():
        growth = compare_with_last_run(ctx, where, counts, now)
        yield from report_errors(growth, where)
        yield growth.carry_over


def _measure_widths(links: Mapping[str, PcieLink], ctx: Context) -> Iterator[CheckItem]:
    told = {
        where: LinkLevel(link.width, link.max_width)
        for where, link in links.items()
        if link.width is not None and link.max_width is not None
    }
    for where, shown in told.items():
        yield Measurement("width", shown.now, "", where)
    yield from _report_missing("width", told, ctx)


class LinkLevel(Struct, frozen=True):
    """What a link does now, and the best that GPU and slot can do together."""

    now: int
    best: int


def _report_missing(
    what: str, told: Mapping[str, LinkLevel], ctx: Context, suffix: str = ""
) -> Iterator[CheckItem]:
    """Yield what each link lacks, or that all like GPUs lack the same."""
    for where, shown in told.items():
        sheet = look_up_spec(ctx, where)
        if sheet and sheet.key.startswith(SUPERCHIP_KEY_PREFIXES):
            continue
        like = [s for w, s in told.items() if find_model(ctx, w) == find_model(ctx, where)]
        missing = max(0, shown.best - shown.now)
        if missing and len(like) > 1 and set(like) == {shown}:
            text = (
                f"PCIe {what} {shown.now}, although GPU and slot support "
                f"{shown.best}, as on all {len(like)} GPUs alike: a riser, or a "
                "setting of the firmware?"
            )
            yield Finding(f"{what}_limited", where, text)
        else:
            yield Measurement(f"{what}.missing{suffix}", missing, "", where)


def _report_platform_limits(link: PcieLink, ctx: Context, where: str) -> Iterator[Finding]:
    """Say what the slot takes from the GPU, which is no fault of either."""
    sheet = look_up_spec(ctx, where)
    pairs = (
        ("generation", link.max_generation, link.gpu_max_generation),
        ("width", link.max_width, sheet.pcie_width if sheet else None),
    )
    for what, slot, gpu in pairs:
        if slot is not None and gpu is not None and slot < gpu:
            text = f"the slot supports PCIe {what} {slot}, the GPU {gpu}"
            yield Finding("platform_limit", where, text)


def count_errors(
    links: Mapping[str, PcieLink], ctx: Context, root: Path
) -> dict[str, dict[str, int]]:
    """
    Read all errors, by the part that they belong to.

    A port with several GPUs below belongs to the node: it says nothing of one of them.
    That goes by all GPUs of the node, also those that do not answer now.
    """
    chains = {w: (k.address, *aer.list_ports(k.address, root)) for w, k in links.items()}
    known = {gpu.facts.get("pci_address", "") for gpu in ctx.inventory.of_kind("gpu")}
    silent = known - {"", *(k.address for k in links.values())}
    unheard = [aer.list_ports(address, root) for address in silent]
    shared = Counter(chain.from_iterable([*chains.values(), *unheard]))
    found = {where: _count_gpu_errors(link.counters) for where, link in links.items()}
    for where, addresses in chains.items():
        for address in addresses:
            owner = where if shared[address] == 1 else "node"
            found.setdefault(owner, {}).update(_count_aer_errors(address, root))
    return found


def _count_gpu_errors(told: Mapping[str, int]) -> dict[str, int]:
    """Take the counters of the GPU that are judged, less the requests unanswered."""
    counts = {f"GPU {kind}": told[kind] for kind in ERROR_KINDS if kind in told}
    if "non_fatal" in told:
        counts["GPU non_fatal"] = max(0, told["non_fatal"] - told.get("unsupported", 0))
    return counts


def _count_aer_errors(address: str, root: Path) -> dict[str, int]:
    """Read the errors of one end; each kind that it counts is there, be it at zero."""
    found = aer.read_errors(address, root)
    return {f"{address} {kind}": 0 for kind in found} | {
        f"{address} {kind} {name}": count
        for kind, counts in found.items()
        for name, count in counts.items()
        if name not in HARMLESS_ERRORS
    }


def report_errors(new: Growth, where: str) -> Iterator[CheckItem]:
    """Yield how many errors of each kind are *new*, and who counted them."""
    yield Measurement("fatal", _sum_kind(new.shown, "fatal"), "", where)
    if new.from_last_run:
        for kind in ("fatal", "non_fatal"):
            yield Measurement(f"{kind}.delta", _sum_kind(new.last.counts, kind), "", where)
    for kind in ("replays", "correctable"):
        span = new.choose_delta(HOUR_SECONDS)
        rate = span.compute_rate(_sum_kind(span.counts, kind), HOUR_SECONDS)
        if rate is not None:
            yield Measurement(f"{kind}.rate", rate, "1/h", where)
    if new.last.grown:
        worst = sorted(new.last.grown.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name} {count}" for name, count in worst)
        evidence = {name: str(count) for name, count in worst}
        yield Finding("pcie_errors", where, f"PCIe errors since {new.start}: {listed}", evidence)


def _sum_kind(counts: Mapping[str, int], kind: str) -> int:
    """Add up the errors of *kind*: what both ends noticed is taken for the same."""
    ends: Counter[str] = Counter()
    for name, count in counts.items():
        end, named, *_ = name.split(" ")
        if named == kind:
            ends[end] += count
    return max(ends.values(), default=0)


def observe(watch: Watch, ctx: Context, params: PcieParams) -> Iterator[CheckItem]:
    """Yield how the links did during the run."""
    slowest: dict[str, LinkLevel] = {}
    usage = dict(watch.group_by_part("utilization"))
    for where, samples in watch.group_by_part("pcie.generation"):
        best = _read_fact(ctx, where, "pcie_generation")
        under_load = select_loaded(samples, usage.get(where, []), params.loaded)
        lowest = _find_steady_low(under_load)
        if best is None or lowest is None:
            why = "never under load in this run" if best else "its best is not known"
            yield Coverage(where, f"generation not judged: {why}")
            continue
        yield Measurement("generation", lowest, "", where)
        yield Coverage(where, f"generation judged by {len(under_load)} samples of load")
        slowest[where] = LinkLevel(lowest, best)
    yield from _report_missing("generation", slowest, ctx)
    yield from _measure_run_widths(watch, ctx)
    yield from _measure_replays(watch)


def _read_fact(ctx: Context, where: str, name: str) -> int | None:
    found = ctx.inventory.find_part(where)
    text = found.facts.get(name, "") if found else ""
    return int(text) if text.isdigit() else None


def select_loaded(samples: Sequence[Sample], usage: Sequence[Sample], least: float) -> list[Sample]:
    """
    Keep the *samples* before and after which the GPU was in use.

    Of a series that was thinned the extremes are kept, so that a pause between two
    samples of a long run would be one of them.
    """
    times = [u.t for u in usage]

    def is_loaded(t: float) -> bool:
        before, after = bisect_right(times, t) - 1, bisect_left(times, t)
        within = before >= 0 and after < len(times)
        return within and min(usage[before].value, usage[after].value) >= least

    return [sample for sample in samples if is_loaded(sample.t)]


def _find_steady_low(samples: Sequence[Sample]) -> int | None:
    """Find the lowest value that two samples in a row agree on: one may be a change."""
    return min((int(max(a.value, b.value)) for a, b in pairwise(samples)), default=None)


def _measure_run_widths(watch: Watch, ctx: Context) -> Iterator[CheckItem]:
    narrowest: dict[str, LinkLevel] = {}
    for where, samples in watch.group_by_part("pcie.width"):
        best = _read_fact(ctx, where, "pcie_width")
        lowest = _find_steady_low(samples)
        if best is not None and lowest is not None:
            narrowest[where] = LinkLevel(lowest, best)
    yield from _report_missing("width", narrowest, ctx, ".run")


def _measure_replays(watch: Watch) -> Iterator[Measurement]:
    for series, name, seconds in PEAKS:
        for where, samples in watch.group_by_part(series):
            yield Measurement(name, find_peak_increase(samples, seconds), "", where)


BEST_LINK_SOURCE = "what GPU and slot can do, by NVML"
FATAL_SOURCE = "PCI Express: after a fatal error a link is not to be relied on"
REPLAYS_SOURCE = "DCGM 4: 8 replays a minute, as NVIDIA's driver team recommends"

CHECK = Check(
    summary="PCIe links of the GPUs: width, generation under load, errors at both ends",
    measure=measure,
    observe=observe,
    params=PcieParams,
    metrics={
        "width": Metric(unit="", meaning="lanes of the link now"),
        "width.missing": Metric(unit="", meaning="lanes missing against what GPU and slot support"),
        "width.missing.run": Metric(unit="", meaning="the same at its worst in the run"),
        "generation": Metric(unit="", meaning="the lowest while the GPU worked"),
        "generation.missing": Metric(unit="", meaning="generations below what GPU and slot can do"),
        "fatal": Metric(unit="", meaning="fatal errors since the driver was started"),
        "fatal.delta": Metric(unit="", meaning="fatal errors since the last run"),
        "non_fatal.delta": Metric(
            unit="", meaning="uncorrected errors since the last run that were not fatal"
        ),
        "correctable.rate": Metric(unit="1/h", meaning="corrected errors, either end"),
        "replays.rate": Metric(unit="1/h", meaning="packets sent again since last run"),
        "replays.minute": Metric(unit="", meaning="the most in a minute of the run"),
        "replays.quarter": Metric(unit="", meaning="the most in 15 minutes of the run"),
        "recoveries.run": Metric(unit="", meaning="times the link recovered in the run"),
    },
    rules={
        "width.missing": fail_outside(high=0, source=BEST_LINK_SOURCE),
        "width.missing.run": fail_outside(high=0, source=BEST_LINK_SOURCE),
        "generation.missing": fail_outside(high=0, source=BEST_LINK_SOURCE),
        "fatal": warn_outside(high=0, source=FATAL_SOURCE),
        "fatal.delta": fail_outside(
            high=0,
            hard=True,
            source=FATAL_SOURCE,
        ),
        "non_fatal.delta": warn_outside(high=0, source="PCI Express: a request was lost"),
        "correctable.rate": warn_outside(high=480, source="hpcverify default: as for replays"),
        "replays.rate": warn_outside(high=480, source=REPLAYS_SOURCE),
        "replays.minute": warn_outside(high=8, source=REPLAYS_SOURCE),
        "replays.quarter": fail_outside(
            high=80, source="DCGM 4 diag: max_pcie_replays=80, in a test of minutes"
        ),
    },
    finding_rules={
        **problems.PROBLEM_RULES,
        "width_limited": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "generation_limited": FindingRule(Verdict.WARN, Remedy.INSPECT),
        "platform_limit": LISTED,
        "pcie_errors": LISTED,
    },
    placement=Placement.PASSIVE,
    timeout=60,
)
