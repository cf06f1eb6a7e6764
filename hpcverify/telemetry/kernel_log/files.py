"""The files that a syslog daemon writes."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
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
STAMP_PATTERN = (
    r"(?:<(?P<priority>\d+)>(?:1 )?)?(?P<stamp>\d{4}-\d\d-\d\d[T ]\S+"
    r"|(?:\d{4} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:[.,]\d+)?) "
)
"""RFC 5424 or classic, which may have a year and parts of a second; perhaps the priority."""
LINE_PATTERN = (
    STAMP_PATTERN + r"(?:(?!\w+\.(?:emerg|alert|crit|err|warn|notice|info|debug) )\S+ )?"
    r"(?:kern\.[a-z]+ )?kernel(?:(?:\[0\])?: | - \S+ (?:-|\[.*?\]) \ufeff?)"
    r"(?:\[ *(?P<since>\d+\.\d+)\] ?)?(?:\[ *[TC]\d+\] ?)?(?P<text>.*)"
)
"""A line of syslog: stamp, host, perhaps the facility (busybox), tag, and perhaps the time
since boot and who printed it (a thread or a CPU)."""
KERNEL_MARKERS = (b" kernel: ", b" kernel[0]: ", b" kernel - ")
KERNEL_PRIORITIES = 8
"""The priority is 8 x facility + level, so the kernel's own are below this."""
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
    # A user may have the kernel quote a carriage return, which not all daemons escape.
    lines, earliest = data.split(b"\n")[:-1], _find_earliest(query, gap)
    _require_readable(path, lines, whole=not query.since.position)
    wanted = query.narrow(data)
    messages = [
        KernelMessage(text, stamp, path.name)
        for match, text in _join_lines(lines, wanted)
        if (stamp := parse_stamp(match["stamp"], query.now)) is not None and stamp >= earliest
    ]
    ends = [_parse_line_time(line, query.now) for line in (*lines[:1], *lines[-1:])]
    first, last = (ends[0], ends[-1]) if ends else (None, None)
    return query.build_log(
        messages,
        sum(data.count(marker) for marker in KERNEL_MARKERS),
        (first, last),
        position,
        _explain_lacking(query, gap, first, last),
    )


def _require_readable(path: Path, lines: Sequence[bytes], *, whole: bool) -> None:
    """
    Refuse a file in a form that we cannot read, or one that the kernel's messages do not go to.

    Only the *whole* log must have a message of the kernel: it wrote many at the boot.

    Raises:
        OSError: it is such a file.

    """
    if any(b"kernel" in line and _parse_line(line) for line in lines):
        return
    if whole or (lines and not any(_parse_stamp_of(line) for line in lines)):
        raise OSError(f"{path.name} has no line of the kernel in a form that syslog writes")


def _join_lines(lines: Sequence[bytes], wanted: LogQuery) -> Iterator[tuple[re.Match[str], str]]:
    """
    Yield the messages with a word of *wanted*: the first line, and the whole text.

    A syslog daemon gets a message of several lines as so many messages, all with the time
    of the first. The rest of what a user was quoted with must not look like a message of
    its own.
    """
    done = 0
    for index, line in enumerate(lines):
        if index < done or not wanted.wants(line) or not (match := _parse_line(line)):
            continue
        begin, done, parts = index, index + 1, [match]
        if match["since"] and float(match["since"]):  # at the start of the boot it stands still
            while begin and (before := _parse_line(lines[begin - 1])) and _is_same(before, match):
                begin, parts = begin - 1, [before, *parts]
            while (
                done < len(lines) and (after := _parse_line(lines[done])) and _is_same(after, match)
            ):
                done, parts = done + 1, [*parts, after]
        yield parts[0], "\n".join(part["text"] for part in parts)


def _is_same(one: re.Match[str], other: re.Match[str]) -> bool:
    return one["since"] == other["since"]


def _parse_line(line: bytes) -> re.Match[str] | None:
    match = re.match(LINE_PATTERN, line.decode(errors="replace"))
    if match and match["priority"] and int(match["priority"]) >= KERNEL_PRIORITIES:
        return None
    return match


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
    match = _parse_stamp_of(line)
    return parse_stamp(match["stamp"], now) if match else None


def _parse_stamp_of(line: bytes) -> re.Match[str] | None:
    return re.match(STAMP_PATTERN, line.decode(errors="replace"))


def parse_stamp(stamp: str, now: float) -> float | None:
    """
    Read a stamp of syslog, in seconds since 1970.

    A classic one has no zone: it is local. Without a year it is never in the future.
    """
    with suppress(ValueError, OverflowError):
        if stamp[4:5] == "-":
            return datetime.fromisoformat(stamp.replace(",", ".")).timestamp()
        *years, month, day, clock = stamp.split()
        hour, minute, second = clock.replace(",", ".").split(":")
        if month not in MONTH_NAMES:
            return None
        year = int(years[0]) if years else time.localtime(now).tm_year
        number = MONTH_NAMES.index(month) // 3 + 1
        whole = int(float(second))
        rest = (number, int(day), int(hour), int(minute), whole, 0, 0, -1)
        part = float(second) - whole
        value = time.mktime((year, *rest)) + part
        if not years and value > now + STAMP_SLACK_SECONDS:
            return time.mktime((year - 1, *rest)) + part
        return value
    return None
