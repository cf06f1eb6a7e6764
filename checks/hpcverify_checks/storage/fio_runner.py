"""
Run fio on files, one stream per file, and return plain numbers.

Every block written carries a header with its own offset and a CRC-32C, which is checked
when it is read (see `extents`). Streams begin at a random place in a sparse file, so a
block that still holds the data of an earlier run carries the wrong offset. Several
streams share the work because one fio thread generates and checks little more than
1 GB/s of fresh data (measured on an EPYC core with fio 3.33), which is slower than a
good disk.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import hpcverify.check as hv
from hpcverify.processes import (
    NO_THREAD_HINT,
    CompletedTool,
    is_stopped,
    list_session_members,
    name_signal,
    run_tool,
)
from hpcverify_checks.node.stalls import Absence
from hpcverify_checks.storage.extents import FileExtent

ENGINES = ("libaio", "io_uring")
"""The first is preferred: containers and hardened kernels often forbid io_uring."""

GRACE_SECONDS = 90.0
MIN_BYTES_PER_SECOND = 10e6
"""A slower disk, or one that stalls longer than the grace, times out; the grace is well
above the 30 s stall that is a fault, so that such a stall is still measured."""

MAX_IDLE_SECONDS = 30.0
"""A job that made no access in less gets at most this long. fio 3.16 never makes one where we
write, at an offset into a new file."""

DIRECTIONS = ("read", "write")

CORRUPTION_ERRNOS = frozenset({errno.EILSEQ})
"""fio's error for a block that does not verify, and Linux's for protection data."""

NO_THREAD_MESSAGES = ("failed to start", "pthread_create: ", "failed to create helper thread")
"""fio prints these when it gets no thread, or not within 5 s."""

MAX_SHOWN_OUTPUT_CHARACTERS = 300

run_fio = partial(run_tool, package="fio")


class FaultError(Exception):
    """An access failed, or data did not read back as written."""

    def __init__(self, number: int, text: str, evidence: Mapping[str, str] | None = None) -> None:
        """Keep the kernel's error *number*, and the *text* of the tool that met it."""
        super().__init__(text)
        self.number = number
        self.evidence = dict(evidence or {})


@dataclass(frozen=True, slots=True)
class FioReport:
    """fio's report on one job, stream by stream."""

    jobs: Sequence[Mapping[str, Any]] = field(repr=False)
    cached: int = 0
    """Bytes that the page cache still had when reading began."""

    def merge(self, other: FioReport) -> FioReport:
        """Take the streams of both for those of one job."""
        return FioReport((*self.jobs, *other.jobs), self.cached + other.cached)

    def list_moved_bytes(self, way: str) -> tuple[int, ...]:
        """List the bytes moved by each stream."""
        return tuple(job[way]["io_bytes"] for job in self.jobs)

    def compute_bandwidth(self, way: str) -> float:
        """Bandwidth of all streams over the time of the slowest, in MB/s."""
        return sum(self.list_moved_bytes(way)) / 1e6 / self._find_runtime(way)

    def compute_rate(self, way: str) -> float:
        """Rate of accesses of all streams together, in 1/s."""
        return sum(int(job[way]["total_ios"]) for job in self.jobs) / self._find_runtime(way)

    def compute_latency(self, way: str, quantile: float) -> float | None:
        """Latency at *quantile* of the accesses, or of the flushes ("sync"), in ms."""
        bins: Counter[int] = Counter()
        for job in self.jobs:
            times = job["sync"]["lat_ns"] if way == "sync" else job[way]["clat_ns"]
            for bin_ns, count in times.get("bins", {}).items():
                bins[int(bin_ns)] += count
        seen, total = 0, sum(bins.values())
        for nanoseconds in sorted(bins):
            seen += bins[nanoseconds]
            if seen >= quantile * total:
                return nanoseconds / 1e6
        return None

    def find_longest(self) -> float:
        """Time of the slowest access or flush, in s."""
        ways = (*DIRECTIONS, "sync")
        return max(int(job[w]["lat_ns"]["max"]) for job in self.jobs for w in ways) / 1e9

    def _find_runtime(self, way: str) -> float:
        # fio counts in whole milliseconds.
        return max(1, *(int(job[way]["runtime"]) for job in self.jobs)) / 1e3


def has_stopped_process() -> bool:
    """Whether a signal has stopped a process of this session, as fio."""
    return any(map(is_stopped, list_session_members([os.getsid(0)])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fio:
    """How to call fio in one *folder*: past the page cache when *direct*."""

    folder: Path
    engine: str
    direct: bool
    absence: Absence = field(default_factory=partial(Absence, has_stopped=has_stopped_process))
    """When fio or this process did not run: then a slow access says nothing of the disk."""

    def run(
        self,
        extents: Sequence[FileExtent],
        *,
        seed: int = 0,
        seconds: float = 0.0,
        own: Sequence[Mapping[str, object]] = (),
        **options: object,
    ) -> FioReport:
        """
        Run one job with *options* on all *extents* at the same time, for *seconds* if not 0.

        *own* has more options of each stream. fio counts the time before its threads get
        a core too: a job to which no time was left runs again, with twice the time.

        Raises:
            FaultError: an access failed, or did not verify.

        """
        settings = {
            "thread": 1,  # so that all streams die with one process
            "ioengine": self.engine,
            "direct": int(self.direct),
            "randrepeat": 0,
            "randseed": seed,
            "fallocate": "none",  # or it would fill the hole before the extent
            "verify_state_save": 0,
            **options,
        }
        streams = own or [{}] * len(extents)
        report = self._run_once(extents, streams, settings, seconds)
        while seconds and not any(sum(report.list_moved_bytes(way)) for way in DIRECTIONS):
            seconds *= 2
            if seconds > MAX_IDLE_SECONDS:
                raise hv.Unable(
                    f"fio made no access within {seconds / 2:.0f} s: run this on a quieter node, "
                    "or install a newer fio",
                    hv.Cause.TIMEOUT,
                    hv.Remedy.RERUN,
                )
            report = self._run_once(extents, streams, settings, seconds)
        return report

    def _run_once(
        self,
        extents: Sequence[FileExtent],
        streams: Sequence[Mapping[str, object]],
        settings: Mapping[str, object],
        seconds: float,
    ) -> FioReport:
        limit = {"runtime": f"{seconds * 1e3:.0f}ms"} if seconds else {}
        size = sum(extent.size for extent in extents)
        done = run_fio(
            _build_command({**settings, **limit}, extents, streams),
            timeout=seconds + GRACE_SECONDS + size / MIN_BYTES_PER_SECOND,
            cwd=self.folder,
        )
        return _parse_report(done)


def find_engine() -> str:
    """Name an engine of this fio that can keep several accesses in flight."""
    try:
        done = run_fio(["fio", "--enghelp"], timeout=GRACE_SECONDS)
    except hv.Unable as exc:
        if exc.cause is hv.Cause.MISSING:  # a suite decides whether it requires this check
            raise hv.Skip(str(exc), hv.Cause.NOT_OBSERVABLE) from exc
        raise
    if done.returncode:
        printed = done.stderr.decode(errors="replace")
        _require_undisturbed(done.returncode, printed)
        output = printed.strip() or f"exit code {done.returncode}"
        raise hv.Unable(
            f"fio does not start ({output[:MAX_SHOWN_OUTPUT_CHARACTERS]}): run fio --enghelp by "
            "hand; if that works, compare ulimit -a with that of the process that starts this",
            hv.Cause.MISCONFIGURED,
        )
    listing = done.stdout.decode(errors="replace").split()
    engine = next((name for name in ENGINES if name in listing), None)
    if engine:
        return engine
    lack = f"this fio has none of {', '.join(ENGINES)}"
    raise hv.Unable(lack, hv.Cause.MISSING, fix="apt-get install fio")


def _build_command(
    settings: Mapping[str, object],
    extents: Sequence[FileExtent],
    own: Sequence[Mapping[str, object]],
) -> tuple[str, ...]:
    streams = [settings]
    for extent, more in zip(extents, own, strict=True):
        place = {
            "filename": extent.path.name,  # in our folder: a colon in its name would make a list
            "offset": extent.offset,
            "size": extent.size,
            "verify_offset": extent.header_offset,
        }
        streams.append({**place, **more})
    names = ("global", *(f"stream{i}" for i in range(len(extents))))
    options = [
        option
        for name, stream in zip(names, streams, strict=True)
        for option in (f"--name={name}", *(f"--{key}={value}" for key, value in stream.items()))
    ]
    return ("fio", "--output-format=json+", *options)


def _parse_report(done: CompletedTool) -> FioReport:
    before, brace, after = done.stdout.decode(errors="replace").partition("{\n")
    output = done.stderr.decode(errors="replace") + before
    _require_undisturbed(done.returncode, output)
    jobs: list[Mapping[str, Any]] = []
    if brace:
        jobs = json.JSONDecoder().raw_decode(brace + after)[0]["jobs"]
    # What fails before the job starts is only in fio's output, not in its report.
    printed = re.search(r"\berr=(\d+)/", output)
    number = next((job["error"] for job in jobs if job["error"]), printed and int(printed[1]))
    if number:
        raise FaultError(number, _summarize_output(output), {"fio": output.strip()[:2000]})
    if done.returncode or not jobs:
        raise RuntimeError(f"fio ended with {done.returncode}: {output.strip()[-500:]}")
    return FioReport(jobs)


def _require_undisturbed(status: int, output: str) -> None:
    # A fio that was killed or got no threads says nothing about the disk.
    if status < 0:
        raise hv.Unable(
            f"fio was killed by {name_signal(-status)}: look for the OOM killer in the kernel log",
            hv.Cause.CRASHED,
            hv.Remedy.INSPECT,
        )
    if any(sign in output for sign in NO_THREAD_MESSAGES):
        raise hv.Unable(
            f"fio could not start its threads ({_summarize_output(output)}): {NO_THREAD_HINT}",
            hv.Cause.NO_RESOURCES,
            hv.Remedy.INSPECT,
        )


def _summarize_output(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "verify" in line or "error" in line]
    return (errors or lines or ["fio printed nothing"])[0]
