"""What a source of the kernel's log is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpcverify.processes import ToolRunner

MAX_LOG_BYTES = 1 << 26
"""Bytes to read at most: twice the largest ring buffer."""
CLOCK_SLACK_SECONDS = 300.0
"""How far the clock that stamps /dev/kmsg, which nobody steers, may have run away."""


class KernelMessage(Struct, frozen=True):
    """What the kernel said; *time* in seconds since 1970, if it is known."""

    text: str
    time: float | None
    position: str


class KernelLog(Struct, frozen=True, kw_only=True):
    """What was found in one source since the cursor."""

    boot: str
    source: str
    messages: tuple[KernelMessage, ...]
    """Those with a word that was asked for."""
    older: tuple[KernelMessage, ...] = ()
    """Such messages of this boot from before a first look, which takes one day."""
    message_count: int
    first: float | None
    last: float | None
    """When the first and the last message were written that were looked at."""
    gap: str
    """What was not seen, in words; nothing if all was."""
    unseen: str = ""
    """What was not seen because this source never keeps it over a reboot."""
    cursor: str


class StartPoint(Struct, frozen=True, kw_only=True):
    """Where to begin: at a place of this source, else at a time."""

    time: float
    position: str = ""
    first: bool = False
    """Whether nobody looked before: then nothing can be missed."""
    rebooted: bool = False
    """Whether the machine was started anew since."""


class LogQuery(Struct, frozen=True, kw_only=True):
    """What a source is asked."""

    root: Path
    words: Sequence[bytes]
    boot: str
    booted: float | None
    now: float
    tool: ToolRunner
    since: StartPoint
    source: str = ""

    def wants(self, text: bytes) -> bool:
        """Say whether *text* has a word that is asked for."""
        return any(word in text for word in self.words)

    def narrow(self, data: bytes) -> LogQuery:
        """Ask only for the words that *data* has at all: of many, most logs have few."""
        return replace(self, words=[word for word in self.words if word in data])

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

    def build_log(
        self,
        messages: Iterable[KernelMessage],
        looked_at: int,
        span: tuple[float | None, float | None],
        position: str,
        missing: tuple[str, str] = ("", ""),
    ) -> KernelLog:
        """Build the answer, which read up to *position*; *missing* are `gap` and `unseen`."""
        lines = tuple(messages)
        return KernelLog(
            boot=self.boot,
            source=self.source,
            messages=tuple(m for m in lines if not self.is_old(m)),
            older=tuple(m for m in lines if self.is_old(m)),
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
            return f"the log does not reach back to the last read at {text}", ""
        text = (
            f"messages of the kernel between {text} and the boot at "
            f"{format_moment(self.booted)} are lost"
        )
        return (text, "") if self.is_before_boot(oldest) else ("", text)


def format_moment(time: float | None) -> str:
    """Print *time*, seconds since 1970."""
    if time is None:
        return "an unknown time"
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
