"""The ring buffer of the kernel, ``/dev/kmsg``."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path

from hpcverify.telemetry.kernel_log.query import (
    CLOCK_SLACK_SECONDS,
    MAX_LOG_BYTES,
    KernelLog,
    KernelMessage,
    LogQuery,
    StartPoint,
)

RECORD_PATTERN = re.compile(rb"^(\d+),(\d+),(\d+)[^;\n]*;(.*)$", re.MULTILINE)
"""A message in /dev/kmsg: priority, number, us since boot; continuation lines, which
begin with a space, say which device it is about. See the kernel's
Documentation/ABI/testing/dev-kmsg."""
CHUNK_BYTES = 1 << 16
"""Bytes to ask /dev/kmsg for; it gives one message at a time, of up to 8 KiB."""
KERNEL_PRIORITIES = 8
"""The priority is 8 x facility + level, so the kernel's own are below this."""


def read_ring(query: LogQuery) -> KernelLog:
    """Read the ring buffer of the kernel."""
    data = b"".join(_read_chunks(query.root / "dev/kmsg"))
    records = RECORD_PATTERN.findall(data)
    if not records:  # a container's is often /dev/null; the kernel's is never empty
        raise OSError("it is empty, as no kernel's is")
    oldest, newest = int(records[0][1]), int(records[-1][1])
    begin = _find_next_number(query.since, oldest, newest)
    new = records[bisect_left(records, begin, key=lambda record: int(record[1])) :]
    gap, unseen = _explain_overwritten(newest + 1 - begin - len(new)), ""
    if query.since.rebooted:
        _, unseen = query.explain_missing(None)
    elif not query.since.first and not query.since.position:
        new = [record for record in new if _is_recent(query, record)]
        gap = _explain_too_late(query, records[0])
    ends = [_compute_time(query, record[2]) for record in (*new[:1], *new[-1:])]
    return query.build_log(
        (
            KernelMessage(text.decode(errors="replace"), _compute_time(query, us), number.decode())
            for priority, number, us, text in (new if query.wants(data) else ())
            if query.wants(text) and int(priority) < KERNEL_PRIORITIES
        ),
        len(new),
        (ends[0], ends[-1]) if ends else (None, None),
        str(newest),
        (gap, unseen),
    )


def _find_next_number(since: StartPoint, oldest: int, newest: int) -> int:
    """Say which number comes next; if nobody looked before, the oldest there is."""
    if since.rebooted:
        return 0
    if since.position.isdigit() and int(since.position) <= newest:
        return int(since.position) + 1
    # A number beyond the newest is of a machine that was set back to a snapshot.
    return oldest


def _explain_overwritten(count: int) -> str:
    return f"{count} messages were overwritten before they were read" if count else ""


def _explain_too_late(query: LogQuery, oldest: tuple[bytes, ...]) -> str:
    """Say so if the ring buffer does not reach back to when we last looked."""
    stamp, since = _compute_time(query, oldest[2]), query.since.time
    if stamp is None or int(oldest[1]) == 0:
        return ""
    late = stamp - since
    return f"the {late:.0f} s before are overwritten" if late > CLOCK_SLACK_SECONDS else ""


def _read_chunks(path: Path) -> Iterator[bytes]:
    device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    size = 0
    try:
        while size < MAX_LOG_BYTES:
            try:
                chunk = os.read(device, CHUNK_BYTES)
            except BlockingIOError:  # that was the last message
                return
            except BrokenPipeError:  # overwritten while we read: the next is older
                continue
            if not chunk:
                return
            size += len(chunk)
            yield chunk
    finally:
        os.close(device)


def _is_recent(query: LogQuery, record: tuple[bytes, ...]) -> bool:
    stamp = _compute_time(query, record[2])
    return stamp is None or stamp >= query.since.time - CLOCK_SLACK_SECONDS


def _compute_time(query: LogQuery, us: bytes) -> float | None:
    return None if query.booted is None else query.booted + int(us) / 1e6
