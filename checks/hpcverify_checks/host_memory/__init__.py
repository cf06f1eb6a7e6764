"""
Test half of the host's free memory, on every NUMA node, with March C-.

Each core takes memory of its own NUMA node, and all march over it at the same time (see
`march`, which `gpu_memory` uses as well). As much is taken as the time allows; half of
what is free is left to others, and if they want more, memory is given back. The coverage
says how much was tested where, by what the kernel says of its pages.

A word that is wrong is written and read again by the same core and by another one. If only
the first errs, that core fails and not the memory. With ECC the memory corrects a bad
cell silently (the `ecc` check counts that), or the kernel ends the process; a word that is
wrong without either was corrupted on its way, or there is no ECC.

Not found: which memory the kernel gives is not ours to choose, so a word is tested in some
runs and not in others. What only goes wrong right after a write does not show, since the
caches answer then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

import hpcverify.check as hv
from hpcverify.telemetry import cpu
from hpcverify.telemetry.edac import EdacReader
from hpcverify.units import GIB, MIB
from hpcverify_checks.exact.march import MARCH_FINDING_RULES, MARCH_METRICS, PAUSES
from hpcverify_checks.exact.vote import HOST_MEMORY
from hpcverify_checks.host_memory.examination import HostExamination, name_node
from hpcverify_checks.host_memory.mapping import die_first
from hpcverify_checks.host_memory.regions import (
    RESERVED_SHARE,
    TESTED_SHARE,
    HostMemory,
    count_tested,
    find_host_memory,
    plan_regions,
)
from hpcverify_checks.host_memory.trials import selftest
from hpcverify_checks.node.cores import format_ranges
from hpcverify_checks.node.device import find_torch_device, report_overrides

EVICTING_FACTOR = 2
"""One sweep over this many times the size of a cache leaves nothing in it for the next."""
END_SECONDS = 2.0
"""The memory is given back, and the sweep in which the time ends is completed."""


class HostMemoryParams(hv.Params, frozen=True):
    """
    Times in seconds: of the whole check, and of each of the two pauses within it.

    The pauses are made even where they alone are longer than the check.
    """

    seconds: Annotated[float, Meta(gt=0)] = 30.0
    """The time of all, pauses included: with less time, less memory is tested."""
    pause: Annotated[float, Meta(ge=0)] = 2.0
    """The rest before the second and the third sweep of the first pass."""


def estimate(_ctx: hv.Context, params: HostMemoryParams) -> float:
    """Count the pauses even where they take all of the time."""
    return max(params.seconds, PAUSES * params.pause) + END_SECONDS


def measure(
    ctx: hv.Context, params: HostMemoryParams, host: HostMemory | None = None
) -> Iterator[hv.CheckItem]:
    """Take memory and march over it, and say how much of it there was."""
    find_torch_device(ctx)
    yield from report_overrides(ctx)
    host = host or find_host_memory()
    free = host.read_free()
    regions = plan_regions(host, cpu.read_cores().allowed, ctx.rotation)
    exam = HostExamination(
        host=host,
        regions=regions,
        seconds=params.seconds,
        pause=params.pause,
        seed=ctx.seed,
        reserve=int(free * RESERVED_SHARE),
        began=host.read_clock(),
    )
    before = count_errors()
    with die_first(), hv.operation("March C- over the host's memory", ctx.device):
        for finding in exam.run():
            yield add_dimms(ctx, finding, before)
    if not exam.regions:
        raise hv.Unable(
            f"of {free / GIB:.2f} GiB free memory none could be tested: "
            f"{2 * host.chunk_bytes / GIB:.2f} GiB and as much again must be free: end the "
            "processes that hold the memory, or raise the limit of the job",
            hv.Cause.NO_SPACE,
        )
    yield from report(exam)


def count_errors() -> Mapping[str, float]:
    """Count the errors that EDAC has seen, by the id of the DIMM."""
    counts: dict[str, float] = {}
    for reading in EdacReader().read():
        counts[reading.part_id] = counts.get(reading.part_id, 0.0) + reading.value
    return counts


def add_dimms(ctx: hv.Context, finding: hv.Finding, before: Mapping[str, float]) -> hv.Finding:
    """Add to *finding* the DIMMs whose errors EDAC has counted meanwhile."""
    now = count_errors()
    risen = [part_id for part_id, count in now.items() if count > before.get(part_id, 0.0)]
    if not risen:
        state = "counted no error meanwhile" if now else "is not there"
        return _extend(finding, f"EDAC {state}")
    return _extend(finding, f"EDAC counted errors of {ctx.inventory.format_names(risen)}")


def _extend(finding: hv.Finding, note: str) -> hv.Finding:
    return hv.Finding(
        finding.code, finding.part_id, f"{finding.text}; {note}", {**finding.evidence, "edac": note}
    )


def report(exam: HostExamination) -> Iterator[hv.CheckItem]:
    """Report what was tested of each NUMA node, and what was wrong."""
    tested, is_known = count_tested(exam.regions, exam.host)
    for node in exam.host.nodes:
        part_id, size = name_node(node.number), tested[node.number]
        share = size / node.free if node.free else 0.0
        yield hv.Measurement("tested", size, "B", part_id)
        yield hv.Measurement("covered", share, "ratio", part_id)
        cores = sorted({r.core for r in exam.regions if r.node == node.number})
        text = (
            f"NUMA node {node.number}: {size / GIB:.2f} of {node.free / GIB:.2f} GiB free "
            f"memory ({share:.0%}), by cores {format_ranges(cores)}"
        )
        short = "; there was no time or no room for half of it" if share < TESTED_SHARE else ""
        if 0 < size < EVICTING_FACTOR * exam.host.cache_bytes:
            short += f"; a cache of {exam.host.cache_bytes / MIB:.0f} MiB may have answered"
        yield hv.Coverage(part_id, text + short)
    for part_id, words in exam.count_wrong().items():
        yield hv.Measurement("mismatches", words, "", part_id)
    yield hv.Measurement("passes", exam.tally.passes.total(), "", HOST_MEMORY)
    placed = "" if is_known else "; the kernel does not say on which NUMA node the pages are"
    yield hv.Coverage(
        HOST_MEMORY,
        f"{exam.tally.describe()}; {exam.pause:g} s of rest before the second and the third "
        f"sweep of the first pass{placed}",
    )


CHECK = hv.Check(
    summary="the host's memory: March C- over half of what is free, on every NUMA node",
    measure=measure,
    estimate=estimate,
    params=HostMemoryParams,
    metrics={
        "tested": hv.Metric("B", "low", "memory that was tested").error(
            low=1,
            cause=hv.Cause.NO_SPACE,
            remedy=hv.Remedy.FIX_CONFIGURATION,
            source="hpcverify default: untested memory does not pass; end the processes that "
            "hold the memory of this NUMA node",
        ),
        "covered": hv.Metric("ratio", "low", "share of the free memory that was tested"),
        **MARCH_METRICS,
    },
    finding_rules=MARCH_FINDING_RULES,
    placement=hv.Placement.NODE,
    timeout=300.0,
    selftest=selftest,
)
