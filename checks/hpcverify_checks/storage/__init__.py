"""
Load the disk under the scratch directory with fio, and verify what it returns.

Only files in the run's own scratch directory are touched, never a raw device. All data
is fresh, and verified by checksum, place and generation when it is read back past the
page cache (see `extents`). This finds flipped bits, lost writes and overwrites, misdirected
and torn writes, and stale reads, apart from errors that the disk reports (see
docs/explanation/sdc.md).
Writes are limited by size as well as by time, to spare the flash.

Where the file system refuses O_DIRECT, or is memory, the same runs through the page
cache: it finds wrong data and errors too, but the speeds are partly those of memory, so
they are named ``cached.*`` and never judged. Before data is read back, the cache has to
give it up; the coverage says if it kept some. What a network file system does wrong may be
its server's fault: stalls are named ``remote.*``, wrong data and errors ``remote_*``, and
none of them fails this node. Nor does a stall of a time in which the check itself did not
run, as in a job that was suspended (see `Absence`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from msgspec.structs import replace

import hpcverify.check as hv
from hpcverify.telemetry import smart
from hpcverify_checks.node.disk_health import (
    SMART_FINDINGS,
    SMART_METRICS,
    limit_growth,
    measure_health,
)
from hpcverify_checks.node.mounts import require_mounted
from hpcverify_checks.storage import fio_runner
from hpcverify_checks.storage.explain import explain_fault
from hpcverify_checks.storage.fio_runner import FaultError, Fio
from hpcverify_checks.storage.params import StorageParams, estimate
from hpcverify_checks.storage.phases import FILE_STEPS, PHASES, run_phases
from hpcverify_checks.storage.scratch import (
    ScratchSite,
    describe_site,
    find_site,
    query_space,
    require_space,
    require_writable,
)


def measure(ctx: hv.Context, params: StorageParams) -> Iterator[hv.CheckItem]:
    """Check that the disk can be measured, load it, and read its SMART data."""
    engine = fio_runner.find_engine()
    require_mounted(ctx)
    require_space(ctx.scratch, params.most_bytes, *query_space(ctx.scratch))
    direct = require_writable(ctx.scratch)
    site = find_site(ctx.scratch, ctx.inventory, direct=direct)
    yield describe_site(site)
    before = smart.read(site.own_disk)
    fio = Fio(folder=ctx.scratch, engine=engine, direct=site.direct)
    try:
        yield from run_phases(site, fio, params, random.Random(ctx.seed))  # noqa: S311 - data to write, no secret
    except FaultError as fault:
        yield explain_fault(fault, site)
    yield from report_health(before, smart.read(site.own_disk), site)


def report_health(
    before: smart.Health, after: smart.Health, site: ScratchSite
) -> Iterator[hv.Measurement | hv.Finding | hv.Coverage]:
    """Report the disk's SMART data, and which counts grew under our load."""
    if after.unread_reason:
        yield hv.Coverage(site.part, f"SMART cannot be read: {after.unread_reason}")
    yield from measure_health(before, after, site.part)


LINUX_TIMEOUT_SOURCE = "Linux gives up on a SCSI or NVMe command after this time"

# The spread of checkpoints has no limit: other users of the disk, or other guests of the
# same host, can make it as large as they like.
SPEED_METRICS = {
    "seq_write.bandwidth": hv.Metric("MB/s", "low", "fresh data, 1 MiB blocks").warn(
        of_baseline=0.5
    ),
    "seq_read.bandwidth": hv.Metric("MB/s", "low", "the same data, read and verified").warn(
        of_baseline=0.5
    ),
    "rand_read.iops": hv.Metric("1/s", "low", "4 KiB reads, verified, 32 in flight").warn(
        of_baseline=0.5
    ),
    "rand_read.p99": hv.Metric("ms", "high", "99th percentile of these"),
    "rand_write.iops": hv.Metric("1/s", "low", "4 KiB writes, 32 in flight").warn(of_baseline=0.5),
    "rand_write.p99": hv.Metric("ms", "high", "99th percentile of these"),
    "fsync.p50": hv.Metric("ms", "high", "median flush after a 4 KiB write"),
    "fsync.p99": hv.Metric("ms", "high", "99th percentile of these").warn(
        high=1000, source="hpcverify default: a hundred times what etcd asks of a disk"
    ),
    "fsync.p999": hv.Metric("ms", "high", "99.9th percentile of these"),
    "checkpoint.write": hv.Metric("MB/s", "low", "median, overwritten and flushed").warn(
        of_baseline=0.5
    ),
    "checkpoint.read": hv.Metric("MB/s", "low", "median, read and verified").warn(of_baseline=0.5),
    "checkpoint.write.cv": hv.Metric("ratio", "high", "spread / mean of repeats"),
    "checkpoint.read.cv": hv.Metric("ratio", "high", "spread / mean of repeats"),
    **{f"files.{s}": hv.Metric("1/s", "low", f"{s} of small files") for s in FILE_STEPS},
    **{f"files.{s}.p99": hv.Metric("ms", "high", f"99th percentile of {s}") for s in FILE_STEPS},
}

CHECK = hv.Check(
    summary="speed, tail latency and data integrity of the scratch disk, and its SMART health",
    measure=measure,
    estimate=estimate,
    params=StorageParams,
    metrics={
        **SPEED_METRICS,
        **{f"cached.{n}": replace(m, limits={}) for n, m in SPEED_METRICS.items()},
        "*.longest": hv.Metric("s", "high", "the slowest access or flush")
        .fail(*(f"{phase}.longest" for phase in PHASES), high=30, source=LINUX_TIMEOUT_SOURCE)
        .warn("remote.*.longest", high=30, source=LINUX_TIMEOUT_SOURCE),
        **SMART_METRICS,
        "smart.*.delta": limit_growth("growth of a count under our load"),
    },
    finding_rules={
        **SMART_FINDINGS,
        **hv.fail_on("corruption", remedy=hv.Remedy.REPLACE, conclusive=True),
        **hv.fail_on("io_error", remedy=hv.Remedy.REPLACE),
        **hv.error_on("remote_corruption", "remote_io_error"),
    },
    placement=hv.Placement.NODE,
    timeout=1800,
)
