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

from hpcverify.check import (
    Check,
    CheckItem,
    Context,
    Coverage,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Placement,
    Remedy,
    Verdict,
    fail_outside,
    warn_outside,
)
from hpcverify.telemetry import smart
from hpcverify_checks.common.disk_health import (
    SMART_FINDINGS,
    SMART_METRICS,
    SMART_RULES,
    measure_health,
)
from hpcverify_checks.common.mounts import require_mounted
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


def measure(ctx: Context, params: StorageParams) -> Iterator[CheckItem]:
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
) -> Iterator[Measurement | Finding | Coverage]:
    """Report the disk's SMART data, and which counts grew under our load."""
    if after.unread_reason:
        yield Coverage(site.part, f"SMART cannot be read: {after.unread_reason}")
    yield from measure_health(before, after, site.part)


LINUX_TIMEOUT_SOURCE = "Linux gives up on a SCSI or NVMe command after this time"

SPEED_METRICS = {
    "seq_write.bandwidth": Metric(unit="MB/s", worse="low", meaning="fresh data, 1 MiB blocks"),
    "seq_read.bandwidth": Metric(
        unit="MB/s", worse="low", meaning="the same data, read and verified"
    ),
    "rand_read.iops": Metric(
        unit="1/s", worse="low", meaning="4 KiB reads, verified, 32 in flight"
    ),
    "rand_read.p99": Metric(unit="ms", worse="high", meaning="99th percentile of these"),
    "rand_write.iops": Metric(unit="1/s", worse="low", meaning="4 KiB writes, 32 in flight"),
    "rand_write.p99": Metric(unit="ms", worse="high", meaning="99th percentile of these"),
    "fsync.p50": Metric(unit="ms", worse="high", meaning="median flush after a 4 KiB write"),
    "fsync.p99": Metric(unit="ms", worse="high", meaning="99th percentile of these"),
    "fsync.p999": Metric(unit="ms", worse="high", meaning="99.9th percentile of these"),
    "checkpoint.write": Metric(unit="MB/s", worse="low", meaning="median, overwritten and flushed"),
    "checkpoint.read": Metric(unit="MB/s", worse="low", meaning="median, read and verified"),
    "checkpoint.write.cv": Metric(unit="ratio", worse="high", meaning="spread / mean of repeats"),
    "checkpoint.read.cv": Metric(unit="ratio", worse="high", meaning="spread / mean of repeats"),
    **{
        f"files.{s}": Metric(unit="1/s", worse="low", meaning=f"{s} of small files")
        for s in FILE_STEPS
    },
    **{
        f"files.{s}.p99": Metric(unit="ms", worse="high", meaning=f"99th percentile of {s}")
        for s in FILE_STEPS
    },
}


# The spread of checkpoints has no limit: other users of the disk, or other guests of the
# same host, can make it as large as they like.
SPEED_RULES = {
    "fsync.p99": warn_outside(
        high=1000, source="hpcverify default: a hundred times what etcd asks of a disk"
    ),
    **{f"{phase}.longest": fail_outside(high=30, source=LINUX_TIMEOUT_SOURCE) for phase in PHASES},
    "remote.*.longest": warn_outside(high=30, source=LINUX_TIMEOUT_SOURCE),
    **{
        name: warn_outside(of_baseline=0.5)
        for name in ("seq_*.bandwidth", "rand_*.iops", "checkpoint.write", "checkpoint.read")
    },
}

CHECK = Check(
    summary="speed, tail latency and data integrity of the scratch disk, and its SMART health",
    measure=measure,
    estimate=estimate,
    params=StorageParams,
    metrics={
        **SPEED_METRICS,
        **{f"cached.{name}": metric for name, metric in SPEED_METRICS.items()},
        "*.longest": Metric(unit="s", worse="high", meaning="the slowest access or flush"),
        **SMART_METRICS,
        "smart.*.delta": Metric(unit="", worse="high", meaning="growth of a count under our load"),
    },
    rules={**SPEED_RULES, **SMART_RULES},
    finding_rules={
        **SMART_FINDINGS,
        "corruption": FindingRule(Verdict.FAIL, Remedy.REPLACE, conclusive=True),
        "io_error": FindingRule(Verdict.FAIL, Remedy.REPLACE),
        "remote_corruption": FindingRule(Verdict.ERROR, Remedy.INSPECT),
        "remote_io_error": FindingRule(Verdict.ERROR, Remedy.INSPECT),
    },
    placement=Placement.NODE,
    timeout=1800,
)
