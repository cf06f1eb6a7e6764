"""
What the kernel said since we last looked, from wherever it can be read.

Its ring buffer (``/dev/kmsg``) is asked first: it has the whole text, numbers every
message and costs milliseconds. Where it may not be read, or has lost messages since
the cursor, journald is asked, and then the files of a syslog daemon. The cursor is
one short string with the id of the boot and the time, so that what was seen is not
seen again.

After a reboot the ring is a new one, and what the kernel said last before it, which is
often why somebody pulled the plug, is in the journal or in the files, if anywhere.
They are asked for what came since the time of the cursor. If they reach over the
reboot but not back to that time, that is a gap. If nothing on the node ever keeps the
log over a reboot (a ring alone, a journal in memory), it is told as
`KernelLog.unseen`: a gap would then be told after each planned reboot, and
nobody could mend it here.

Only messages of the kernel count. A process can write to ``/dev/kmsg`` and to
syslog, but the kernel stamps its own facility (0) on nobody else's text; in the
files of syslog only the tag ``kernel:`` is left to go by.
"""

from __future__ import annotations

import os
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.check import Unable
from hpcverify.model import Cause, Remedy
from hpcverify.processes import CompletedTool, run_tool
from hpcverify.telemetry import sysfs

ToolRunner = Callable[..., CompletedTool]
"""`run_tool`, or a recording of it."""

ACCESS_FIX = (
    "run as root, or sysctl kernel.dmesg_restrict=0; in a container, hand it the host's /dev/kmsg"
)
RECORD_PATTERN = re.compile(rb"^(\d+),(\d+),(\d+)[^;\n]*;(.*)$", re.MULTILINE)
"""A message in /dev/kmsg: priority, number, us since boot; continuation lines, which
begin with a space, say which device it is about. See the kernel's
Documentation/ABI/testing/dev-kmsg."""
CHUNK_BYTES = 1 << 16
"""Bytes to ask /dev/kmsg for; it gives one message at a time, of up to 8 KiB."""
MAX_LOG_BYTES = 1 << 26
"""Bytes to read at most: twice the largest ring buffer, a day of a busy log file."""
KERNEL_PRIORITIES = 8
"""The priority is 8 x facility + level, so the kernel's own are below this."""

CLOCK_SLACK_SECONDS = 300.0
"""How far the clock that stamps /dev/kmsg, which nobody steers, may have run away."""
JOURNAL_TIMEOUT_SECONDS = 5.0
LAST_ENTRY_OPTIONS = ("--lines=1",)
"""The option of journalctl for the last entry alone."""
JOURNAL_FOLDERS = ("run/log/journal", "var/log/journal")
SYSLOG_NAMES = ("kern.log", "messages", "syslog")
STAMP_PATTERN = r"(?P<stamp>\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) "
"""RFC 5424 or classic."""
LINE_PATTERN = re.compile(
    STAMP_PATTERN + r"\S+ kernel: (?:\[ *\d+\.\d+\] ?)?(?:\[ *[TC]\d+\] ?)?(?P<text>.*)"
)
"""A line of syslog: stamp, host, tag, and perhaps the time since boot and who printed
it (a thread or a CPU)."""
MONTH_NAMES = "JanFebMarAprMayJunJulAugSepOctNovDec"
DAY_SECONDS = 86400.0


class KernelMessage(Struct, frozen=True):
    """What the kernel said; *time* in seconds since 1970, if it is known."""

    text: str
    time: float | None
    position: str
    """Its place in the source that it was read from."""


class KernelLog(Struct, frozen=True, kw_only=True):
    """What was found in one source since the cursor."""

    source: str
    messages: tuple[KernelMessage, ...]
    """Those with a word that was asked for."""
    older: tuple[KernelMessage, ...] = ()
    """Such messages of this boot from before a first look, which takes one day."""
    message_count: int
    """How many messages there were in all."""
    first: float | None
    last: float | None
    """When the first and the last message were written that were looked at."""
    gap: str
    """What was not seen, in words; nothing if all was."""
    unseen: str = ""
    """What was not seen because this source never keeps it over a reboot."""
    cursor: str
    """What to give to the next `read`."""


class _StartPoint(Struct, frozen=True, kw_only=True):
    """Where to begin: at a place of this source, else at a time."""

    time: float
    position: str = ""
    first: bool = False
    """Whether nobody looked before: then nothing can be missed."""
    rebooted: bool = False
    """Whether the machine was started anew since."""


class _LogQuery(Struct, frozen=True, kw_only=True):
    """What a source is asked."""

    root: Path
    words: Sequence[bytes]
    boot: str
    booted: float | None
    now: float
    tool: ToolRunner
    since: _StartPoint
    source: str = ""

    def wants(self, text: bytes) -> bool:
        return any(word in text for word in self.words)

    def is_before_boot(self, stamp: float | None) -> bool:
        """Say whether *stamp*, which may be of whole seconds, is of an earlier boot."""
        if stamp is None or self.booted is None:
            return False
        return stamp < self.booted - 1.0

    def is_old(self, message: KernelMessage) -> bool:
        """Say whether *message* is from before the day that a first look takes."""
        if message.time is None or not self.since.first:
            return False
        return message.time < self.since.time

    def build_log(  # the parts of a `KernelLog`
        self,
        messages: Iterable[KernelMessage],
        looked_at: int,
        span: tuple[float | None, float | None],
        position: str,
        missing: tuple[str, str] = ("", ""),
    ) -> KernelLog:
        found = tuple(messages)
        return KernelLog(
            source=self.source,
            messages=tuple(m for m in found if not self.is_old(m)),
            older=tuple(m for m in found if self.is_old(m)),
            message_count=looked_at,
            first=span[0],
            last=span[1],
            gap=missing[0],
            unseen=missing[1],
            cursor=f"{self.boot} {int(self.now)} {self.source} {position}",
        )

    def explain_missing(self, oldest: float | None) -> tuple[str, str]:
        """Give the `gap` and the `unseen` of a source that begins with *oldest*."""
        since, text = self.since, format_moment(self.since.time)
        if not since.rebooted:
            return f"it does not reach back to {text}, when it was read last", ""
        text = (
            f"what the kernel said between {text} and the boot at "
            f"{format_moment(self.booted)} was not seen"
        )
        return (text, "") if self.is_before_boot(oldest) else ("", text)


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
    question = _LogQuery(
        root=root,
        words=words,
        boot=boot,
        booted=_read_boot_time(root),
        now=now,
        tool=tool,
        since=_StartPoint(time=now - DAY_SECONDS, first=True),
    )
    refused: dict[str, OSError | Unable] = {}
    logs: list[KernelLog] = []
    for name, source in LOG_SOURCES.items():
        since = _parse_cursor(cursor, boot, name) or question.since
        try:
            logs.append(source(replace(question, source=name, since=since)))
        except (OSError, Unable) as exc:
            refused[name] = exc
        if logs and not logs[-1].gap and not logs[-1].unseen:
            break
    if not logs:
        raise _build_unreadable_error(refused)
    return _join_logs(logs, question)


def _build_unreadable_error(refused: Mapping[str, OSError | Unable]) -> Unable:
    """Say why there is no log; a tool that hangs is not a permission that lacks."""
    reason = "; ".join(f"{name}: {exc}" for name, exc in refused.items())
    cause, remedy = Cause.DENIED, Remedy.FIX_CONFIGURATION
    for exc in refused.values():
        if isinstance(exc, Unable) and exc.cause in (Cause.TIMEOUT, Cause.HUNG):
            cause, remedy = exc.cause, exc.remedy
    return Unable(f"the kernel log cannot be read ({reason}): {ACCESS_FIX}", cause, remedy)


def _join_logs(logs: Sequence[KernelLog], question: _LogQuery) -> KernelLog:
    """Make one of what the sources have; the best one says where to go on from."""
    whole = next((log for log in logs if not log.gap), logs[0])
    kept = sorted((log for log in logs if not log.unseen), key=lambda log: bool(log.gap))
    if not whole.unseen or not kept:
        return replace(whole, cursor=logs[0].cursor)
    past = [m for m in kept[0].messages if question.is_before_boot(m.time)]
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


def _parse_cursor(cursor: str | None, boot: str, source: str) -> _StartPoint | None:
    """Understand *cursor*; one that was written by something else is none."""
    fields = (cursor or "").split(" ", 3)
    if len(fields) != len(("boot", "time", "source", "position")):
        return None
    with suppress(ValueError):
        return _StartPoint(
            time=float(fields[1]),
            position=fields[3] if fields[2] == source else "",
            rebooted=fields[0] != boot,
        )
    return None


def format_moment(time: float | None) -> str:
    """Print *time*, seconds since 1970."""
    if time is None:
        return "an unknown time"
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _read_boot_time(root: Path) -> float | None:
    """Say when the machine was started, in seconds since 1970."""
    for line in (sysfs.read_text(root / "proc/stat") or "").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return None


def _read_kmsg(question: _LogQuery) -> KernelLog:
    """Read the ring buffer of the kernel."""
    data = b"".join(_read_chunks(question.root / "dev/kmsg"))
    records = RECORD_PATTERN.findall(data)
    if not records:  # a container's is often /dev/null; the kernel's is never empty
        raise OSError("it is empty, as no kernel's is")
    oldest, newest = int(records[0][1]), int(records[-1][1])
    begin = _find_next_number(question.since, oldest, newest)
    new = records[bisect_left(records, begin, key=lambda record: int(record[1])) :]
    gap, unseen = _explain_overwritten(newest + 1 - begin - len(new)), ""
    if question.since.rebooted:
        _, unseen = question.explain_missing(None)
    elif not question.since.first and not question.since.position:
        new = [record for record in new if _is_recent(question, record)]
        gap = _explain_too_late(question, records[0])
    ends = [_compute_time(question, record[2]) for record in (*new[:1], *new[-1:])]
    return question.build_log(
        (
            KernelMessage(
                text.decode(errors="replace"), _compute_time(question, us), number.decode()
            )
            for priority, number, us, text in (new if question.wants(data) else ())
            if question.wants(text) and int(priority) < KERNEL_PRIORITIES
        ),
        len(new),
        (ends[0], ends[-1]) if ends else (None, None),
        str(newest),
        (gap, unseen),
    )


def _find_next_number(since: _StartPoint, oldest: int, newest: int) -> int:
    """Say which number comes next; if nobody looked before, the oldest there is."""
    if since.rebooted:
        return 0
    if since.position.isdigit() and int(since.position) <= newest:
        return int(since.position) + 1
    # A number beyond the newest is of a machine that was set back to a snapshot.
    return oldest


def _explain_overwritten(count: int) -> str:
    return f"{count} messages were overwritten before they were read" if count else ""


def _explain_too_late(question: _LogQuery, oldest: tuple[bytes, ...]) -> str:
    """Say so if the ring buffer does not reach back to when we last looked."""
    stamp, since = _compute_time(question, oldest[2]), question.since.time
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


def _is_recent(question: _LogQuery, record: tuple[bytes, ...]) -> bool:
    stamp = _compute_time(question, record[2])
    return stamp is None or stamp >= question.since.time - CLOCK_SLACK_SECONDS


def _compute_time(question: _LogQuery, us: bytes) -> float | None:
    return None if question.booted is None else question.booted + int(us) / 1e6


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


def _read_journal(question: _LogQuery) -> KernelLog:
    """Read the kernel's messages that journald kept."""
    if not any((question.root / folder).is_dir() for folder in JOURNAL_FOLDERS):
        raise FileNotFoundError("there is no journal")
    since = question.since
    lines = _query_journal(question, *_build_start_options(since))
    decode = msgspec.json.Decoder(_JournalEntry).decode
    seen_last = bool(lines) and _is_same_entry(since.position, decode(lines[0]).cursor)
    lines = lines[1:] if seen_last else lines
    ends = [decode(line) for line in (*lines[:1], *lines[-1:])]
    if not _is_live(question, ends, seen_last=seen_last):
        raise OSError("it has no message of this boot's kernel")
    whole = seen_last or since.first or (not since.position and _reaches_back(question))
    return question.build_log(
        (
            KernelMessage(entry.text, entry.time, entry.cursor)
            for entry in (decode(line) for line in lines if question.wants(line))
            if isinstance(entry.text, str) and entry.facility == "0"
        ),
        len(lines),
        (ends[0].time, ends[-1].time) if ends else (None, None),
        ends[-1].cursor if ends else since.position if seen_last else "",
        ("", "") if whole else question.explain_missing(ends[0].time if ends else None),
    )


def _is_live(question: _LogQuery, ends: Sequence[_JournalEntry], *, seen_last: bool) -> bool:
    """Say whether the kernel of this boot writes to it, new entries or not."""
    if ends and not question.is_before_boot(ends[-1].time):
        return True
    if question.since.rebooted:  # a boot writes a lot
        return False
    return seen_last or bool(_query_journal(question, *LAST_ENTRY_OPTIONS, "--boot"))


def _build_start_options(since: _StartPoint) -> tuple[str, ...]:
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


def _reaches_back(question: _LogQuery) -> bool:
    """Say whether it has something from before the time, and so all since."""
    return bool(
        _query_journal(question, *LAST_ENTRY_OPTIONS, f"--until=@{question.since.time:.0f}")
    )


def _query_journal(question: _LogQuery, *options: str) -> list[bytes]:
    """Ask journalctl for messages of the kernel, one JSON object a line."""
    command = ["journalctl", "_TRANSPORT=kernel", "--output=json", "--no-pager", "--all"]
    command.append("--output-fields=MESSAGE,SYSLOG_FACILITY")
    if question.root != Path("/"):
        command.append(f"--root={question.root}")
    done = question.tool([*command, *options], timeout=JOURNAL_TIMEOUT_SECONDS)
    complaint = done.stderr.decode(errors="replace").strip()
    # Without permission it succeeds, shows nothing, and says so in passing.
    if done.returncode or (complaint and not done.stdout):
        raise PermissionError(complaint or f"journalctl ended with {done.returncode}")
    return done.stdout.splitlines()


def _read_files(question: _LogQuery) -> KernelLog:
    """Read the files that a syslog daemon writes."""
    folder = question.root / "var/log"
    path = next((folder / name for name in SYSLOG_NAMES if (folder / name).exists()), None)
    if path is None:
        raise FileNotFoundError(f"no {', '.join(SYSLOG_NAMES)} in /var/log")
    data, position, gap = _read_new_part(path, question.since)
    lines, earliest = data.splitlines(), _find_earliest(question, gap)
    messages = [
        KernelMessage(match["text"], stamp, path.name)
        for line in lines
        if question.wants(line)
        and (match := LINE_PATTERN.match(line.decode(errors="replace")))
        and (stamp := parse_stamp(match["stamp"], question.now)) is not None
        and stamp >= earliest
    ]
    ends = [_parse_line_time(line, question.now) for line in (*lines[:1], *lines[-1:])]
    first, last = (ends[0], ends[-1]) if ends else (None, None)
    return question.build_log(
        messages,
        data.count(b" kernel: "),
        (first, last),
        position,
        _explain_lacking(question, gap, first, last),
    )


def _find_earliest(question: _LogQuery, gap: str) -> float:
    """Say what is not of this boot, or was seen; a stamp may be of whole seconds."""
    since = question.since
    if since.first:
        return (question.booted or 1.0) - 1.0
    if since.position and not gap:
        return 0.0
    return int(since.time) - (CLOCK_SLACK_SECONDS if since.position else 0.0)


def _explain_lacking(
    question: _LogQuery, gap: str, first: float | None, last: float | None
) -> tuple[str, str]:
    """
    Say what the lines from *first* to *last* lack, and nobody can have seen.

    Raises:
        OSError: the file is one that the kernel's messages went to in earlier boots.

    """
    since = question.since
    if since.rebooted and (last is None or question.is_before_boot(last)):
        raise OSError("the log file has no line of this boot")
    if since.first or (since.position and not gap):
        return "", ""
    if since.position and not since.rebooted:
        return gap, ""
    reaches = first is not None and first <= since.time
    return ("", "") if reaches else question.explain_missing(first)


def _read_new_part(path: Path, since: _StartPoint) -> tuple[bytes, str, str]:
    """Read what was added since the cursor, over one rotation; say where it ends."""
    chain = [*_find_rotated(path), path]
    inode, _, offset = since.position.partition(":")
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
        gap = gap or (skipped if since.position else "")
        parts.append(part)
        begin = 0
    return b"".join(parts), position, gap


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
    return time.mktime((year - 1, *rest)) if value > now + DAY_SECONDS else value


LOG_SOURCES: dict[str, Callable[[_LogQuery], KernelLog]] = {
    "/dev/kmsg": _read_kmsg,
    "journald": _read_journal,
    "/var/log": _read_files,
}
"""Where to look, the best first."""
