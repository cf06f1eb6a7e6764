"""
What the kernel said since we last looked, from wherever it can be read.

Its ring buffer (``/dev/kmsg``) is asked first: it has the whole text, numbers every
message and costs milliseconds. Where it may not be read, or has lost messages since
the cursor, journald is asked. The cursor is one short string with the id of the boot and
the time, so that what was seen is not seen again.

After a reboot the ring is a new one, and what the kernel said last before it, which is
often why somebody pulled the plug, is in the journal, if anywhere. It is asked for what
came since the time of the cursor. If it reaches over the reboot but not back to that time,
that is a gap. If the node never keeps the log over a reboot (a ring alone, a journal in
memory), it is reported as `KernelLog.unseen`: a gap would then be reported after each
planned reboot, and nobody could mend it here.

Only messages of the kernel count. A process can write to ``/dev/kmsg`` and to journald,
but the kernel stamps its own facility (0) on no other text. The text files of a syslog
daemon are not read: there any user may write with the tag of the kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify.processes import ToolRunner, run_tool
from hpcverify.telemetry import sysfs
from hpcverify.telemetry.kernel_log.journal import read_journal
from hpcverify.telemetry.kernel_log.query import (
    KernelLog,
    KernelMessage,
    LogQuery,
    StartPoint,
    format_moment,
)
from hpcverify.telemetry.kernel_log.ring import read_ring

__all__ = ["KernelLog", "KernelMessage", "format_moment", "parse_last_look", "parse_moment", "read"]

ACCESS_FIX = (
    "run as root, or sysctl kernel.dmesg_restrict=0; in a container, pass /dev/kmsg of the host"
)
FIRST_LOOK_SECONDS = 86400.0
"""How far back a first look goes: a day."""
LAST_SECOND = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""Later than any mark; what is beyond has no date."""
LOG_SOURCES: dict[str, Callable[[LogQuery], KernelLog]] = {
    "/dev/kmsg": read_ring,
    "journald": read_journal,
}


def read(
    cursor: str | None,
    words: Sequence[bytes],
    root: Path = Path("/"),
    tool: ToolRunner = run_tool,
    clock: Callable[[], float] = time.time,
) -> KernelLog:
    """
    Read the messages with one of *words* that came after *cursor*.

    Without a cursor those of this boot and of the last day are new. When messages were
    lost and another source has them, they are taken from there.

    Raises:
        Unable: no source can be read (DENIED; or TIMEOUT or HUNG if a tool was so).

    """
    boot = sysfs.read_boot_id(root) or "unknown"
    now = clock()
    lines = (sysfs.read_text(root / "proc/stat") or "").splitlines()
    booted = (float(line.split()[1]) for line in lines if line.startswith("btime "))
    query = LogQuery(
        root=root,
        words=words,
        boot=boot,
        booted=next(booted, None),
        now=now,
        tool=tool,
        since=StartPoint(time=now - FIRST_LOOK_SECONDS, first=True),
    )
    refused: dict[str, OSError | Unable] = {}
    logs: list[KernelLog] = []
    for name, source in LOG_SOURCES.items():
        since = _parse_cursor(cursor, boot, name) or query.since
        try:
            logs.append(source(replace(query, source=name, since=since)))
        except (OSError, Unable) as exc:
            refused[name] = exc
        if logs and not logs[-1].gap and not logs[-1].unseen:
            break
    if logs:
        return _join_logs(logs, query)
    reason = "; ".join(f"{name}: {exc}" for name, exc in refused.items())
    cause, remedy = Cause.DENIED, Remedy.FIX_CONFIGURATION
    for error in refused.values():  # a tool that hangs is no permission that lacks
        if isinstance(error, Unable) and error.cause in (Cause.TIMEOUT, Cause.HUNG):
            cause, remedy = error.cause, error.remedy
    raise Unable(f"the kernel log cannot be read ({reason}): {ACCESS_FIX}", cause, remedy)


def _join_logs(logs: Sequence[KernelLog], query: LogQuery) -> KernelLog:
    """Make one of what the sources have; the best one says where to go on from."""
    whole = next((log for log in logs if not log.gap), logs[0])
    kept = sorted((log for log in logs if not log.unseen), key=lambda log: bool(log.gap))
    if not whole.unseen or not kept:
        return replace(whole, cursor=logs[0].cursor)
    past = [m for m in kept[0].messages if query.is_before_boot(m.time)]
    return replace(
        whole,
        source=f"{kept[0].source} and {whole.source}",
        messages=(*past, *whole.messages),
        message_count=kept[0].message_count + whole.message_count,
        first=kept[0].first,
        gap="; ".join(filter(None, (kept[0].gap, whole.gap))),
        unseen="",
        cursor=logs[0].cursor,
    )


def _parse_cursor(cursor: str | None, boot: str, source: str) -> StartPoint | None:
    """Understand *cursor*; one that was written by something else is none."""
    fields = (cursor or "").split(" ", 3)
    if len(fields) != len(("boot", "time", "source", "position")):
        return None
    with suppress(ValueError):
        return StartPoint(
            time=parse_moment(fields[1]),
            position=fields[3] if fields[2] == source else "",
            rebooted=fields[0] != boot,
        )
    return None


def parse_moment(text: str) -> float:
    """Read the time of a mark, in seconds since 1970; ValueError if it is invalid."""
    value = float(text)
    if not 0 <= value < LAST_SECOND:
        raise ValueError(text)
    return value


def parse_last_look(cursor: str | None) -> float | None:
    """Say when *cursor* was made, in seconds since 1970; of one that is none, nothing."""
    start = _parse_cursor(cursor, "", "")
    return start.time if start else None
