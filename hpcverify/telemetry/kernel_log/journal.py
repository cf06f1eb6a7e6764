"""The kernel's messages that journald kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
from msgspec import Struct

from hpcverify.processes import ToolRunner
from hpcverify.telemetry.kernel_log.query import KernelLog, KernelMessage, LogQuery, StartPoint

JOURNAL_TIMEOUT_SECONDS = 5.0
LOOK_SECONDS = 10.0
"""How long an answer of journalctl serves: the checks of one look follow each other."""
LAST_ENTRY_OPTIONS = ("--lines=1",)
"""The option of journalctl for the last entry alone."""
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
    lines = _run_journalctl(query, *_build_start_options(since))
    decode = msgspec.json.Decoder(_JournalEntry).decode
    seen_last = bool(lines) and _is_same_entry(since.position, decode(lines[0]).cursor)
    lines = lines[1:] if seen_last else lines
    ends = [decode(line) for line in (*lines[:1], *lines[-1:])]
    if not _is_live(query, ends, seen_last=seen_last):
        raise OSError("it has no message of this boot's kernel")
    whole = seen_last or since.first or (not since.position and _reaches_back(query))
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


def _is_live(query: LogQuery, ends: Sequence[_JournalEntry], *, seen_last: bool) -> bool:
    """Say whether the kernel of this boot writes to it, new entries or not."""
    if ends and not query.is_before_boot(ends[-1].time):
        return True
    if query.since.rebooted:  # a boot writes a lot
        return False
    return seen_last or bool(_run_journalctl(query, *LAST_ENTRY_OPTIONS, "--boot"))


def _build_start_options(since: StartPoint) -> tuple[str, ...]:
    """
    Say with which options journalctl begins there.

    Not with --after-cursor: if that entry is gone, it silently leaves out the first
    of those that remain (systemd 252). Begun at the entry itself, it is seen or not.
    """
    if since.position:
        return (f"--cursor={since.position}",)
    return (f"--since=@{since.time:.0f}", *(("--boot",) if since.first else ()))


def _is_same_entry(position: str, cursor: str) -> bool:
    """Say if two cursors of the journal are of one entry, whatever file it is in."""
    a, b = (
        [field for field in text.split(";") if field[:2] not in ("s=", "i=")]
        for text in (position, cursor)
    )
    return a == b and bool(position)


def _reaches_back(query: LogQuery) -> bool:
    """Say whether it has something from before the time, and so all since."""
    return bool(_run_journalctl(query, *LAST_ENTRY_OPTIONS, f"--until=@{query.since.time:.0f}"))


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
