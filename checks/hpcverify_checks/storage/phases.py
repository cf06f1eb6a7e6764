"""The phases of the storage check: each load writes, reads back, and removes what it wrote."""

from __future__ import annotations

import errno
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import hpcverify.check as hv
from hpcverify.units import MIB
from hpcverify_checks.node.stalls import Absence
from hpcverify_checks.storage.compare import explain_wrong, find_wrong
from hpcverify_checks.storage.extents import FileExtent, cut_to, lay_out, mark_beginning
from hpcverify_checks.storage.fio_runner import DIRECTIONS, FaultError, Fio, FioReport
from hpcverify_checks.storage.jobs import (
    flush,
    read_back,
    read_overwritten,
    read_random,
    write,
    write_random,
)
from hpcverify_checks.storage.params import JOURNAL_BYTES, StorageParams
from hpcverify_checks.storage.scratch import ScratchSite
from hpcverify_checks.storage.small_files import (
    FILE_BYTES,
    SmallFiles,
    read_files,
    remove_files,
    write_files,
)

PHASES = ("seq_write", "seq_read", "rand_read", "rand_write", "fsync", "checkpoint", "files")
DOUBTED_SECONDS = 5.0
"""A shorter access is fast enough, whatever else happened meanwhile."""
DOUBTED_SHARE = 0.5
"""If less than this share of an access was a pause, the disk took the rest."""
FILE_STEPS = ("create", "write", "overwrite", "read", "stat", "unlink")


def run_blocks(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[hv.CheckItem]:
    """Write large files, read them, and read and overwrite 4 KiB of them at random."""
    streams = _count_streams(params)
    room = lay_out(fio.folder, params.size_mib * MIB, streams, rng)
    wrote = write(fio, room, rng, params.seconds)
    yield from _report_bandwidth(site, fio, "seq_write", wrote, "write")
    filled = cut_to(room, wrote.list_moved_bytes("write"))
    read = read_back(fio, filled)
    yield from _report_bandwidth(site, fio, "seq_read", read, "read")
    sampled = read_random(fio, filled, rng, params.seconds)
    yield from _report_accesses(site, fio, "rand_read", sampled, "read")
    rewrote, overwritten = write_random(fio, filled, rng, params.seconds)
    yield from _report_accesses(site, fio, "rand_write", rewrote, "write")
    last = read_overwritten(fio, overwritten)
    _remove(room)
    cached = read.cached + sampled.cached + last.cached
    yield hv.Coverage(
        site.part,
        f"{_format_mib(wrote, 'write')} in {streams} streams written, read back and verified "
        f"by CRC-32C, place and generation; {_format_mib(sampled, 'read')} read at random and "
        f"verified; {_format_mib(rewrote, 'write')} overwritten at random: these verified as "
        f"the second write, all others as the first; {site.describe_reads(cached)}",
    )


def run_flushes(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[hv.CheckItem]:
    """Append to a journal and flush it each 4 KiB, and then overwrite it so."""
    journal = FileExtent(fio.folder / "journal", 0, JOURNAL_BYTES)
    appended = flush(fio, journal, rng, params.seconds / 2)
    # fio empties a file that is shorter than what it is asked to write.
    (written,) = cut_to([journal], appended.list_moved_bytes("write"))
    overwrote = flush(fio, written.write_again(), rng, params.seconds / 2)
    flushed = appended.merge(overwrote)
    for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999)):
        yield _make_measurement(
            site, f"fsync.{name}", flushed.compute_latency("sync", quantile), "ms"
        )
    yield _make_longest(site, fio, "fsync", flushed.find_longest())
    (again,) = overwrote.list_moved_bytes("write")
    read = read_overwritten(fio, [mark_beginning(written, again)])
    _remove([journal])
    yield hv.Coverage(
        site.part,
        f"{_format_mib(appended, 'write')} written to a journal and flushed 4 KiB at a time, and "
        f"{_format_mib(overwrote, 'write')} of it overwritten so; all read back and verified in "
        f"the same way; {site.describe_reads(read.cached)}",
    )


def run_checkpoints(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[hv.CheckItem]:
    """Write checkpoints over each other, as training does."""
    room = lay_out(fio.folder, params.checkpoint_mib * MIB, _count_streams(params), rng)
    start = time.monotonic()
    t: list[float] = []
    speeds: dict[str, list[float]] = {way: [] for way in DIRECTIONS}
    longest, cached = 0.0, 0
    for generation in range(params.repeats):
        extents = [replace(extent, generation=generation) for extent in room]
        t.append(time.monotonic() - start)
        reports = {"write": write(fio, extents, rng), "read": read_back(fio, extents)}
        for way, report in reports.items():
            speeds[way].append(report.compute_bandwidth(way))
            longest = max(longest, report.find_longest())
            cached += report.cached
    _remove(room)
    for way, values in speeds.items():
        name, spread = f"checkpoint.{way}", statistics.stdev(values) / statistics.mean(values)
        yield _make_measurement(site, name, statistics.median(values), "MB/s")
        yield _make_measurement(site, f"{name}.cv", spread, "ratio")
        yield hv.Series(site.name_metric(name), "MB/s", site.part, tuple(t), tuple(values))
    yield _make_longest(site, fio, "checkpoint", longest)
    yield hv.Coverage(
        site.part,
        f"{params.repeats} checkpoints of {params.checkpoint_mib} MiB written over each other, "
        f"flushed, read back and verified in the same way; {site.describe_reads(cached)}",
    )


def run_small_files(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[hv.CheckItem]:
    """Create, write, overwrite, read, stat and remove many files of 4 KiB."""
    files = SmallFiles(
        folder=fio.folder / "files",
        count=params.files,
        seed=rng.getrandbits(64),
        direct=fio.direct,
    )
    times = write_files(files)
    answers, reading, cached = read_files(files)
    if find_wrong(files, answers):
        raise explain_wrong(files, answers, read_files(files)[0])
    times |= {"read": reading, **remove_files(files)}
    for step in FILE_STEPS:
        yield _make_measurement(site, f"files.{step}", times[step].rate, "1/s")
        yield _make_measurement(site, f"files.{step}.p99", times[step].p99, "ms")
    slowest = max(max(calls.seconds) for calls in times.values())
    yield _make_longest(site, fio, "files", slowest)
    yield hv.Coverage(
        site.part,
        f"{files.count} files of 4 KiB created, written, {len(files.rewritten)} of them flushed "
        f"and overwritten, all ({files.count * FILE_BYTES / MIB:.1f} MiB) read back and compared "
        f"byte by byte, and removed; {site.describe_reads(cached)}",
    )


LOADS = (
    ("large and random accesses to", run_blocks),
    ("flushes to", run_flushes),
    ("checkpoints in", run_checkpoints),
    ("small files in", run_small_files),
)


def run_phases(
    site: ScratchSite, fio: Fio, params: StorageParams, rng: random.Random
) -> Iterator[hv.CheckItem]:
    """
    Put all loads on the disk in turn; each removes what it wrote.

    Raises:
        FaultError: an access failed, or did not verify; later loads do not run.

    """
    stop = fio.absence.start()
    try:
        for what, load in LOADS:
            with hv.operation(f"{what} {site.folder}"):
                yield from load(site, fio, params, rng)
    except FileNotFoundError as exc:
        raise hv.Unable(
            f"{exc.filename} was removed while the check ran: keep other programs out of it",
            hv.Cause.MISCONFIGURED,
            hv.Remedy.FIX_CONFIGURATION,
        ) from exc
    except OSError as exc:
        raise FaultError(exc.errno or errno.EIO, str(exc)) from exc
    finally:
        stop()


def _count_streams(params: StorageParams) -> int:
    return min(params.streams, len(os.sched_getaffinity(0)))


def _report_bandwidth(
    site: ScratchSite, fio: Fio, phase: str, report: FioReport, way: str
) -> Iterator[hv.Measurement]:
    yield _make_measurement(site, f"{phase}.bandwidth", report.compute_bandwidth(way), "MB/s")
    yield _make_longest(site, fio, phase, report.find_longest())


def _report_accesses(
    site: ScratchSite, fio: Fio, phase: str, report: FioReport, way: str
) -> Iterator[hv.Measurement]:
    yield _make_measurement(site, f"{phase}.iops", report.compute_rate(way), "1/s")
    yield _make_measurement(site, f"{phase}.p99", report.compute_latency(way, 0.99), "ms")
    yield _make_longest(site, fio, phase, report.find_longest())


def _make_measurement(
    site: ScratchSite, name: str, value: float | None, unit: str
) -> hv.Measurement:
    return hv.Measurement(site.name_metric(name), value, unit, site.part)


def _make_longest(site: ScratchSite, fio: Fio, phase: str, seconds: float) -> hv.Measurement:
    require_presence(fio.absence, seconds)
    return hv.Measurement(site.name_stall(phase), seconds, "s", site.part)


def require_presence(absence: Absence, seconds: float) -> None:
    """Refuse to judge the disk by an access that took *seconds*."""
    if seconds > DOUBTED_SECONDS and absence.longest >= DOUBTED_SHARE * seconds:
        raise hv.Unable(
            f"an access took {seconds:.0f} s, but for {absence.longest:.0f} s the check did not "
            "run: was its job suspended (SIGSTOP), or the machine paused? Run it again",
            hv.Cause.TIMEOUT,
            hv.Remedy.RERUN,
        )


def _format_mib(report: FioReport, way: str) -> str:
    return f"{sum(report.list_moved_bytes(way)) / MIB:.1f} MiB"


def _remove(extents: Sequence[FileExtent]) -> None:
    for extent in extents:
        extent.path.unlink()
