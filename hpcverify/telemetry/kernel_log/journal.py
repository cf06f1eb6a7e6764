"""The kernel's messages that journald kept."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.processes import ToolRunner
from hpcverify.telemetry.kernel_log.query import KernelLog, KernelMessage, LogQuery

JOURNAL_TIMEOUT_SECONDS = 5.0
LOOK_SECONDS = 10.0
"""How long an answer of journalctl serves: the checks of one look follow each other."""
JOURNAL_FOLDERS = ("run/log/journal", "var/log/journal")


class _JournalEntry(Struct, frozen=True):
    """One message of the journal; see systemd.journal-fields(7)."""

    cursor: str = msgspec.field(name="__CURSOR")
    us: str = msgspec.field(name="__REALTIME_TIMESTAMP")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")
    text: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    """Bytes if it is no text; the kernel's always is."""

    @property
    def time(self) -> float:
        return int(self.us) / 1e6


def read_journal(query: LogQuery) -> KernelLog:
    """Read the kernel's messages that journald kept."""
    if not any((query.root / folder).is_dir() for folder in JOURNAL_FOLDERS):
        raise FileNotFoundError("there is no journal")
    since = query.since
    start = (f"--since=@{since.time:.0f}", *(("--boot",) if since.first else ()))
    # Not with --after-cursor: if that entry is gone, it silently leaves out the first of those
    # that remain (systemd 252). Begun at the entry itself, it is seen or not.
    lines = _run_journalctl(query, *((f"--cursor={since.position}",) if since.position else start))
    decode = msgspec.json.Decoder(_JournalEntry).decode
    seen_last = bool(lines) and _is_same_entry(since.position, decode(lines[0]).cursor)
    lines = lines[1:] if seen_last else lines
    ends = [decode(line) for line in (*lines[:1], *lines[-1:])]
    is_live = bool(ends) and not query.is_before_boot(ends[-1].time)
    if not is_live and not since.rebooted:  # a boot writes a lot
        is_live = seen_last or bool(_run_journalctl(query, "--lines=1", "--boot"))
    if not is_live:
        raise OSError("the journal contains no kernel message of this boot")
    whole = seen_last or since.first
    if not whole and not since.position:  # what is older than the time is followed by all since
        whole = bool(_run_journalctl(query, "--lines=1", f"--until=@{since.time:.0f}"))
    wanted = query.narrow(b"\n".join(lines))
    return query.build_log(
        (
            KernelMessage(entry.text, entry.time, entry.cursor)
            for entry in (decode(line) for line in lines if wanted.wants(line))
            if isinstance(entry.text, str) and entry.facility == "0"
        ),
        len(lines),
        (ends[0].time, ends[-1].time) if ends else (None, None),
        ends[-1].cursor if ends else since.position if seen_last else "",
        ("", "") if whole else query.explain_missing(ends[0].time if ends else None),
    )


def _is_same_entry(position: str, cursor: str) -> bool:
    """Say if two cursors of the journal are of one entry, whatever file it is in."""
    a, b = (
        [field for field in text.split(";") if field[:2] not in ("s=", "i=")]
        for text in (position, cursor)
    )
    return a == b and bool(position)


def _run_journalctl(query: LogQuery, *options: str) -> list[bytes]:
    """Ask journalctl for messages of the kernel, one JSON object a line."""
    command = ["journalctl", "_TRANSPORT=kernel", "--output=json", "--no-pager", "--all"]
    command.append("--output-fields=MESSAGE,SYSLOG_FACILITY")
    if query.root != Path("/"):
        command.append(f"--root={query.root}")
    look = int(query.now // LOOK_SECONDS)
    return list(_ask(query.tool, (*command, *options), look))


@lru_cache(maxsize=3)
def _ask(tool: ToolRunner, command: tuple[str, ...], _look: int) -> tuple[bytes, ...]:
    """Run *command* once in a look, whichever checks ask: it reads a day of the journal."""
    done = tool(command, timeout=JOURNAL_TIMEOUT_SECONDS)
    message = done.stderr.decode(errors="replace").strip()
    # Without permission it succeeds, shows nothing, and says so in passing.
    if done.returncode or (message and not done.stdout):
        raise PermissionError(message or f"journalctl ended with {done.returncode}")
    return tuple(done.stdout.splitlines())
