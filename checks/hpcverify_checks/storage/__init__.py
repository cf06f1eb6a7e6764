"""
Load the disk under the scratch directory with fio, and verify what it returns.

Only files in the run's own scratch directory are touched, never a raw device. All data
is fresh, written past the page cache, and verified by checksum and place when it is
read back (see `fio_runner`). This finds flipped bits, lost writes and misdirected
writes, apart from errors that the disk reports. Writes are limited by size as well as
by time, to spare the flash.

Where the file system refuses O_DIRECT, or is memory, the same runs through the page
cache: it finds wrong data and errors too, but the speeds are partly those of memory, so
they are named ``cached.*`` and never judged. A stall or error of a network file system
may be its server's fault: it is named ``remote.*`` and never fails this node.
"""

from __future__ import annotations

import errno
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from hpcverify.check import (
    Cause,
    Check,
    CheckItem,
    Context,
    Coverage,
    Finding,
    FindingRule,
    Measurement,
    Metric,
    Params,
    Placement,
    Remedy,
    Series,
    Unable,
    Verdict,
    fail_outside,
    operation,
    warn_outside,
)
from hpcverify.telemetry import smart
from hpcverify.units import MIB
from hpcverify_checks.common.disk_health import SMART_METRICS, SMART_RULES, measure_health
from hpcverify_checks.common.mounts import require_mounted
from hpcverify_checks.storage import fio_runner
from hpcverify_checks.storage.fio_runner import (
    CORRUPTION_ERRNOS,
    FaultError,
    FileExtent,
    Fio,
    FioReport,
)
from hpcverify_checks.storage.jobs import (
    cut_to_written,
    flush,
    read_back,
    read_random,
    write,
    write_random,
)
from hpcverify_checks.storage.scratch import (
    ScratchSite,
    describe_site,
    find_site,
    require_space,
    require_writable,
    space_of,
)
from hpcverify_checks.storage.small_files import FILE_CONTENT, time_small_files

JOURNAL_BYTES = 16 * MIB
"""Size of the file that is written and flushed 4 KiB at a time."""

TIMED_PHASES = 6
"""Limited by `StorageParams.seconds`, or about as long: four that write or access at
random, and two that read all of it back."""
FLASH_BYTES_PER_SECOND, SLOW_BYTES_PER_SECOND = 500e6, 30e6
"""Of checkpoints: a slow disk on SATA; a disk that turns, or a network, that others use."""
SLOW_CALLS_PER_SECOND = 1000
"""On small files."""

NO_SPACE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
DENIED_ERRNOS = frozenset({errno.EACCES, errno.EPERM})
IO_ERROR_ERRNOS = frozenset(
    {
        errno.EIO,
        errno.ENODATA,  # a medium error (blk_status_to_errno in block/blk-core.c)
        errno.EREMOTEIO,  # a target error
        errno.ENOLINK,  # a transport error
        errno.ETIMEDOUT,
        errno.ENXIO,
        errno.ENODEV,
        errno.EUCLEAN,  # ext4, xfs and btrfs: damaged structure
        errno.EBADMSG,  # the same, found by a checksum
        errno.EROFS,  # was writable at first: an error turned it read-only
    }
)


class StorageParams(Params, frozen=True):
    """Sizes, counts and times."""

    size_mib: Annotated[int, Meta(ge=1)] = 2048
    """Written sequentially, read back, and read and written at random."""
    checkpoint_mib: Annotated[int, Meta(ge=1)] = 512
    """Size of a checkpoint: written, flushed and read back."""
    repeats: Annotated[int, Meta(ge=2)] = 4
    """Number of checkpoints."""
    seconds: Annotated[float, Meta(gt=0)] = 3.0
    """Limit for the sequential write and each random phase."""
    streams: Annotated[int, Meta(ge=1)] = 4
    """Files written at the same time; never more than there are cores."""
    files: Annotated[int, Meta(ge=1)] = 2000
    """Number of small files."""


def estimate(ctx: Context, params: StorageParams) -> float:
    """Add up the phases, at a speed that follows from where the scratch directory is."""
    speed = FLASH_BYTES_PER_SECOND if is_on_flash(ctx) else SLOW_BYTES_PER_SECOND
    checkpoints = 2 * params.repeats * params.checkpoint_mib * MIB / speed
    files = len(FILE_STEPS) * params.files / SLOW_CALLS_PER_SECOND
    return TIMED_PHASES * params.seconds + checkpoints + files


def is_on_flash(ctx: Context) -> bool:
    """Whether the scratch directory is on one local disk without moving parts."""
    mounts = [mount for mount in ctx.inventory.of_kind("mount") if "disk" in mount.facts]
    disks = [ctx.inventory.find_part(mount.facts["disk"]) for mount in mounts]
    return bool(disks) and all(d and d.facts.get("rotational") == "no" for d in disks)


def measure(ctx: Context, params: StorageParams) -> Iterator[CheckItem]:
    """Check that the disk can be measured, load it, and read its SMART data."""
    engine = fio_runner.find_engine()
    require_mounted(ctx)
    fullest = max(params.size_mib * MIB, params.checkpoint_mib * MIB, JOURNAL_BYTES)
    needed = max(fullest, params.files * len(FILE_CONTENT))
    require_space(ctx.scratch, needed, space_of(ctx.scratch))
    direct = require_writable(ctx.scratch)
    site = find_site(ctx.scratch, ctx.inventory, direct=direct)
    yield describe_site(site)
    before = smart.read(site.disk)
    fio = Fio(folder=ctx.scratch, engine=engine, direct=site.direct)
    try:
        yield from run_phases(site, fio, params, random.Random(ctx.seed))  # noqa: S311 - data to write, no secret
    except FaultError as fault:
        yield explain_fault(fault, site)
    yield from report_health(before, smart.read(site.disk), site)


def run_phases(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[CheckItem]:
    """
    Run all phases in turn; each removes what it wrote.

    Raises:
        FaultError: an access failed, or did not verify; later phases do not run.

    """
    streams = min(params.streams, len(os.sched_getaffinity(0)))
    with operation(f"large and random accesses to {site.folder}"):
        yield from _run_blocks(site, fio, params, streams, rng)
    with operation(f"flushes to {site.folder}"):
        yield from _run_flushes(site, fio, params)
    with operation(f"checkpoints in {site.folder}"):
        yield from _run_checkpoints(site, fio, params, streams, rng)
    with operation(f"small files in {site.folder}"):
        yield from run_small_files(site, params)


def _run_blocks(
    site: ScratchSite, fio: Fio, params: StorageParams, streams: int, rng: random.Random
) -> Iterator[CheckItem]:
    room = fio_runner.lay_out(fio.folder, params.size_mib * MIB, streams, rng)
    wrote = write(fio, room, rng, params.seconds)
    yield from _report_bandwidth(site, "seq_write", wrote, "write")
    filled = cut_to_written(room, wrote)
    yield from _report_bandwidth(site, "seq_read", read_back(fio, filled), "read")
    sampled = read_random(fio, filled, rng, params.seconds)
    yield from _report_accesses(site, "rand_read", sampled, "read")
    rewrote = write_random(fio, filled, rng, params.seconds)
    yield from _report_accesses(site, "rand_write", rewrote, "write")
    read_back(fio, filled)
    _remove(room)
    yield Coverage(
        site.part,
        f"{_format_mib(wrote, 'write')} in {streams} streams written, read back and verified "
        f"by CRC-32C and place; {_format_mib(sampled, 'read')} read at random and verified; "
        f"{_format_mib(rewrote, 'write')} written at random and verified",
    )


def _run_flushes(site: ScratchSite, fio: Fio, params: StorageParams) -> Iterator[CheckItem]:
    journal = FileExtent(fio.folder / "journal", 0, JOURNAL_BYTES)
    flushed = flush(fio, journal, params.seconds)
    for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        yield _make_measurement(
            site, f"fsync.{name}", flushed.compute_latency("sync", quantile), "ms"
        )
    yield _make_longest(site, "fsync", flushed.find_longest())
    _remove([journal])


def _run_checkpoints(
    site: ScratchSite, fio: Fio, params: StorageParams, streams: int, rng: random.Random
) -> Iterator[CheckItem]:
    start = time.monotonic()
    t: list[float] = []
    speeds: dict[str, list[float]] = {way: [] for way in fio_runner.DIRECTIONS}
    longest = 0.0
    for _ in range(params.repeats):
        room = fio_runner.lay_out(fio.folder, params.checkpoint_mib * MIB, streams, rng)
        t.append(time.monotonic() - start)
        reports = {"write": write(fio, room, rng), "read": read_back(fio, room)}
        for way, report in reports.items():
            speeds[way].append(report.compute_bandwidth(way))
            longest = max(longest, report.find_longest())
        _remove(room)
    for way, values in speeds.items():
        name, spread = f"checkpoint.{way}", statistics.stdev(values) / statistics.mean(values)
        yield _make_measurement(site, name, statistics.median(values), "MB/s")
        yield _make_measurement(site, f"{name}.cv", spread, "ratio")
        yield Series(site.name_metric(name), "MB/s", site.part, tuple(t), tuple(values))
    yield _make_longest(site, "checkpoint", longest)
    yield Coverage(
        site.part,
        f"{params.repeats} checkpoints of {params.checkpoint_mib} MiB written, flushed, "
        "read back and verified",
    )


def run_small_files(site: ScratchSite, params: StorageParams) -> Iterator[CheckItem]:
    """
    Report the rate and the tail latency of each step on small files.

    Raises:
        FaultError: a step failed.

    """
    try:
        times = time_small_files(site.folder / "files", params.files)
    except OSError as exc:
        raise FaultError(exc.errno or errno.EIO, f"small files: {exc}") from exc
    for step, calls in times.items():
        yield _make_measurement(site, f"files.{step}", calls.rate, "1/s")
        yield _make_measurement(site, f"files.{step}.p99", calls.p99, "ms")
    slowest = max(max(calls.seconds) for calls in times.values())
    yield _make_longest(site, "files", slowest)
    yield Coverage(site.part, f"{params.files} files of 4 KiB created, written and removed")


def _report_bandwidth(
    site: ScratchSite, phase: str, report: FioReport, way: str
) -> Iterator[Measurement]:
    yield _make_measurement(site, f"{phase}.bandwidth", report.compute_bandwidth(way), "MB/s")
    yield _make_longest(site, phase, report.find_longest())


def _report_accesses(
    site: ScratchSite, phase: str, report: FioReport, way: str
) -> Iterator[Measurement]:
    yield _make_measurement(site, f"{phase}.iops", report.compute_rate(way), "1/s")
    yield _make_measurement(site, f"{phase}.p99", report.compute_latency(way, 0.99), "ms")
    yield _make_longest(site, phase, report.find_longest())


def _make_measurement(site: ScratchSite, name: str, value: float | None, unit: str) -> Measurement:
    return Measurement(site.name_metric(name), value, unit, site.part)


def _make_longest(site: ScratchSite, phase: str, seconds: float) -> Measurement:
    return Measurement(site.name_stall(phase), seconds, "s", site.part)


def _format_mib(report: FioReport, way: str) -> str:
    return f"{sum(report.list_moved_bytes(way)) / MIB:.0f} MiB"


def _remove(extents: Sequence[FileExtent]) -> None:
    for extent in extents:
        extent.path.unlink()


def explain_fault(fault: FaultError, site: ScratchSite) -> Finding:
    """
    Say what a failed access means.

    Raises:
        Unable: the disk is not at fault: it is full, or we may not write.
        FaultError: an error that we do not know.

    """
    if fault.number in NO_SPACE_ERRNOS:
        raise Unable(
            f"{site.folder} filled up during the test ({fault}): free some space or raise "
            "the quota",
            Cause.NO_SPACE,
        ) from fault
    if fault.number in DENIED_ERRNOS:
        raise Unable(
            f"{site.folder} cannot be used ({fault}): fix its permissions", Cause.DENIED
        ) from fault
    if fault.number in CORRUPTION_ERRNOS:
        text = f"data read back differs from what was written: {fault}"
        return Finding("corruption", site.part, text, fault.evidence)
    if fault.number in IO_ERROR_ERRNOS:
        code = "remote_io_error" if site.remote else "io_error"
        text = f"{os.strerror(fault.number)}: {fault}"
        return Finding(code, site.part, text, fault.evidence)
    raise fault


def report_health(
    before: smart.Health, after: smart.Health, site: ScratchSite
) -> Iterator[Measurement | Coverage]:
    """Report the disk's SMART data, and which counts grew under our load."""
    if after.unread_reason:
        yield Coverage(site.part, f"SMART cannot be read: {after.unread_reason}")
    yield from measure_health(before, after, site.part)


PHASES = ("seq_write", "seq_read", "rand_read", "rand_write", "fsync", "checkpoint", "files")
FILE_STEPS = ("create", "write", "stat", "unlink")

LINUX_TIMEOUT_SOURCE = "Linux gives up on a SCSI or NVMe command after this time"

SPEED_METRICS = {
    "seq_write.bandwidth": Metric(unit="MB/s", meaning="fresh data, 1 MiB blocks"),
    "seq_read.bandwidth": Metric(unit="MB/s", meaning="the same data, read and verified"),
    "rand_read.iops": Metric(unit="1/s", meaning="4 KiB reads, verified, 32 in flight"),
    "rand_read.p99": Metric(unit="ms", meaning="99th percentile of these"),
    "rand_write.iops": Metric(unit="1/s", meaning="4 KiB writes, 32 in flight"),
    "rand_write.p99": Metric(unit="ms", meaning="99th percentile of these"),
    "fsync.p50": Metric(unit="ms", meaning="median flush after a 4 KiB write"),
    "fsync.p99": Metric(unit="ms", meaning="99th percentile of these"),
    "fsync.p999": Metric(unit="ms", meaning="99.9th percentile of these"),
    "checkpoint.write": Metric(unit="MB/s", meaning="median, written and flushed"),
    "checkpoint.read": Metric(unit="MB/s", meaning="median, read and verified"),
    "checkpoint.write.cv": Metric(unit="ratio", meaning="spread / mean of repeats"),
    "checkpoint.read.cv": Metric(unit="ratio", meaning="spread / mean of repeats"),
    **{f"files.{s}": Metric(unit="1/s", meaning=f"{s} of small files") for s in FILE_STEPS},
    **{f"files.{s}.p99": Metric(unit="ms", meaning=f"99th percentile of {s}") for s in FILE_STEPS},
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
        "*.longest": Metric(unit="s", meaning="the slowest access or flush"),
        **SMART_METRICS,
        "smart.*.delta": Metric(unit="", meaning="growth of a count under our load"),
    },
    rules={**SPEED_RULES, **SMART_RULES},
    finding_rules={
        "corruption": FindingRule(Verdict.FAIL, Remedy.REPLACE, hard=True),
        "io_error": FindingRule(Verdict.FAIL, Remedy.REPLACE),
        "remote_io_error": FindingRule(Verdict.ERROR, Remedy.INSPECT),
    },
    placement=Placement.NODE,
    timeout=1800,
)
