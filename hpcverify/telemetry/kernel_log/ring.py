"""The ring buffer of the kernel, ``/dev/kmsg``."""

from __future__ import annotations

import os
import re
import stat
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from hpcverify.telemetry.kernel_log.query import (
    CLOCK_SLACK_SECONDS,
    MAX_LOG_BYTES,
    KernelLog,
    KernelMessage,
    LogQuery,
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
    """Read the ring buffer of the kernel; what this process has read it keeps."""
    path = query.root / "dev/kmsg"
    # A child shares the place in a device that its parent opened, so it opens its own.
    status = path.stat()
    device = (os.getpid(), status.st_dev, status.st_ino)
    content = () if stat.S_ISCHR(status.st_mode) else (status.st_size, status.st_mtime_ns)
    records = _open_ring(path, (*device, *content)).read()
    if not records:  # a container's is often /dev/null; the kernel's is never empty
        raise OSError("/dev/kmsg is empty, so it is not the log of the kernel")
    oldest, newest = int(records[0][1]), int(records[-1][1])
    position = query.since.position
    if query.since.rebooted:
        begin = 0
    elif position.isdigit() and int(position) <= newest:
        begin = int(position) + 1
    else:  # never read, or a machine that was set back to a snapshot
        begin = oldest
    new = records[bisect_left(records, begin, key=lambda record: int(record[1])) :]
    count = newest + 1 - begin - len(new)
    gap, unseen = (f"{count} messages were overwritten before they were read" if count else ""), ""
    if query.since.rebooted:
        _, unseen = query.explain_missing(None)
    elif not query.since.first and not query.since.position:
        earliest = query.since.time - CLOCK_SLACK_SECONDS
        new = [r for r in new if (stamp := _compute_time(query, r[2])) is None or stamp >= earliest]
        reached = _compute_time(query, records[0][2])
        late = 0.0 if reached is None or not oldest else reached - query.since.time
        gap = f"the {late:.0f} s before are overwritten" if late > CLOCK_SLACK_SECONDS else ""
    ends = [_compute_time(query, record[2]) for record in (*new[:1], *new[-1:])]
    wanted = query.narrow(b"\n".join(record[3] for record in new))
    return query.build_log(
        (
            KernelMessage(text.decode(errors="replace"), _compute_time(query, us), number.decode())
            for priority, number, us, text in (new if wanted.words else ())
            if wanted.wants(text) and int(priority) < KERNEL_PRIORITIES
        ),
        len(new),
        (ends[0], ends[-1]) if ends else (None, None),
        str(newest),
        (gap, unseen),
    )


class _Ring:
    """The ring buffer, held open, with the messages so far: /dev/kmsg gives each message once."""

    def __init__(self, path: Path, _identity: tuple[int, ...]) -> None:
        self._device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        self._records: list[tuple[bytes, ...]] = []

    def __del__(self) -> None:
        """Close it, if it could be opened."""
        if hasattr(self, "_records"):
            os.close(self._device)

    def read(self) -> list[tuple[bytes, ...]]:
        """Give all messages from the oldest that it had when it was opened."""
        self._records += RECORD_PATTERN.findall(b"".join(_read_chunks(self._device)))
        return self._records


_open_ring = lru_cache(maxsize=1)(_Ring)


def _read_chunks(device: int) -> Iterator[bytes]:
    size = 0
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


def _compute_time(query: LogQuery, us: bytes) -> float | None:
    return None if query.booted is None else query.booted + int(us) / 1e6
