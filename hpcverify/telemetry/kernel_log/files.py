"""The files that a syslog daemon writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from hpcverify.telemetry.kernel_log.query import (
    CLOCK_SLACK_SECONDS,
    MAX_LOG_BYTES,
    KernelLog,
    KernelMessage,
    LogQuery,
)

SYSLOG_NAMES = ("kern.log", "messages", "syslog")
STAMP_PATTERN = r"(?P<stamp>\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) "
"""RFC 5424 or classic."""
LINE_PATTERN = STAMP_PATTERN + r"\S+ kernel: (?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?(?P<text>.*)"
"""A line of syslog: stamp, host, tag, and perhaps the time since boot and who printed
it (a thread or a CPU)."""
MONTH_NAMES = "JanFebMarAprMayJunJulAugSepOctNovDec"
STAMP_SLACK_SECONDS = 86400.0
"""How far after now a stamp without a year is still of this year."""


def read_files(query: LogQuery) -> KernelLog:
    """Read the files that a syslog daemon writes."""
    folder = query.root / "var/log"
    path = next((folder / name for name in SYSLOG_NAMES if (folder / name).exists()), None)
    if path is None:
        raise FileNotFoundError(f"no {', '.join(SYSLOG_NAMES)} in /var/log")
    files = (*_find_rotated(path), path)
    data, position, gap = _read_new_part(files, query.since.position, _identify(files))
    lines, earliest = data.splitlines(), _find_earliest(query, gap)
    wanted = query.narrow(data)
    messages = [
        KernelMessage(match["text"], stamp, path.name)
        for line in lines
        if wanted.wants(line)
        and (match := re.match(LINE_PATTERN, line.decode(errors="replace")))
        and (stamp := parse_stamp(match["stamp"], query.now)) is not None
        and stamp >= earliest
    ]
    ends = [_parse_line_time(line, query.now) for line in (*lines[:1], *lines[-1:])]
    first, last = (ends[0], ends[-1]) if ends else (None, None)
    return query.build_log(
        messages,
        data.count(b" kernel: "),
        (first, last),
        position,
        _explain_lacking(query, gap, first, last),
    )


def _find_earliest(query: LogQuery, gap: str) -> float:
    """Say what is not of this boot, or was seen; a stamp may be of whole seconds."""
    since = query.since
    if since.first:
        return (query.booted or 1.0) - 1.0
    if since.position and not gap:
        return 0.0
    return int(since.time) - (CLOCK_SLACK_SECONDS if since.position else 0.0)


def _explain_lacking(
    query: LogQuery, gap: str, first: float | None, last: float | None
) -> tuple[str, str]:
    """
    Say what the lines from *first* to *last* lack, and nobody can have seen.

    Raises:
        OSError: the file is one that the kernel's messages went to in earlier boots.

    """
    since = query.since
    if since.rebooted and (last is None or query.is_before_boot(last)):
        raise OSError("the log file has no line of this boot")
    if since.first or (since.position and not gap):
        return "", ""
    if since.position and not since.rebooted:
        return gap, ""
    reaches = first is not None and first <= since.time
    return ("", "") if reaches else query.explain_missing(first)


@lru_cache(maxsize=1)
def _read_new_part(
    files: Sequence[Path], last_position: str, _identity: tuple[int, ...]
) -> tuple[bytes, str, str]:
    """
    Read what was added since the cursor, over one rotation; say where it ends.

    The second check of a look, which asks from the same place, gets what the first has read.
    """
    chain, path = list(files), files[-1]
    inode, _, offset = last_position.partition(":")
    known = [i for i, p in enumerate(chain) if str(p.stat().st_ino) == inode]
    gap = ""
    if known and offset.isdigit() and int(offset) <= chain[known[0]].stat().st_size:
        chain = chain[known[0] :]
        begin = int(offset)
    else:
        begin = 0
        gap = f"{path} was replaced since it was read last" if inode else ""
    parts: list[bytes] = []
    position = ""
    for file in chain:
        part, position, skipped = _read_tail(file, begin)
        gap = gap or (skipped if last_position else "")
        parts.append(part)
        begin = 0
    return b"".join(parts), position, gap


def _identify(files: Sequence[Path]) -> tuple[int, ...]:
    """Tell what files are from what they were before."""
    known = [path.stat() for path in files]
    return tuple(n for status in known for n in (status.st_ino, status.st_size, status.st_mtime_ns))


def _find_rotated(path: Path) -> list[Path]:
    """Find the file that *path* was before, under either scheme of logrotate."""
    old = [*path.parent.glob(f"{path.name}.1")]
    old += path.parent.glob(f"{path.name}-{'[0-9]' * 8}")
    return sorted(old, key=lambda p: p.stat().st_mtime)[-1:]


def _read_tail(path: Path, begin: int) -> tuple[bytes, str, str]:
    """Read *path* from *begin*; give its new end, and what was too much to read."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        start = max(begin, status.st_size - MAX_LOG_BYTES)
        file.seek(start)
        data = file.read(status.st_size - start)
    data = data[: data.rfind(b"\n") + 1]  # the rest of a line may be on its way
    skipped = f"{start - begin} bytes of {path} were too many to read"
    end = f"{status.st_ino}:{start + len(data)}"
    return data, end, skipped if start > begin else ""


def _parse_line_time(line: bytes, now: float) -> float | None:
    match = re.match(STAMP_PATTERN, line.decode(errors="replace"))
    return parse_stamp(match["stamp"], now) if match else None


def parse_stamp(stamp: str, now: float) -> float | None:
    """
    Read a stamp of syslog, in seconds since 1970.

    A classic one has neither year nor zone: it is local, and never in the future.
    """
    if stamp[:1].isdigit():
        with suppress(ValueError):
            return datetime.fromisoformat(stamp).timestamp()
        return None
    month, day, clock = stamp.split()
    hour, minute, second = map(int, clock.split(":"))
    if month not in MONTH_NAMES:
        return None
    year = time.localtime(now).tm_year
    rest = (MONTH_NAMES.index(month) // 3 + 1, int(day), hour, minute, second, 0, 0, -1)
    value = time.mktime((year, *rest))
    return time.mktime((year - 1, *rest)) if value > now + STAMP_SLACK_SECONDS else value
