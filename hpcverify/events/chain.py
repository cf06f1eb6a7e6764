"""
The chain over the lines of events: each holds the digest of the line before.

A line that was changed, left out or put in shows at the next one. That is proof only against
who cannot write the whole chain anew: root on the controller can. So keep digests elsewhere;
the heartbeat of each day carries one to whoever collects the events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace


class ChainLink(Struct, frozen=True):
    """The end of a chain."""

    number: int
    """That of its last event."""
    digest: str
    """The SHA-256 of its last line, without the newline, in hexadecimal digits."""


CHAIN_START = ChainLink(0, "0" * 64)
"""What the first event of a ledger comes after."""


class ChainReport(Struct, frozen=True, kw_only=True):
    """What was found of a chain."""

    first: int = 0
    """The number of its first event; 0: there was none."""
    last: ChainLink = CHAIN_START
    """The last line that fits."""
    wrong: int = 0
    """The number of the first event that does not fit, or is missing; 0: all fit."""
    why: str = ""


class ChainedLine(Struct, frozen=True):
    """What the chain needs of an event."""

    number: int
    previous: str


def compute_digest(line: bytes) -> str:
    """Compute the SHA-256 of *line*, which has no newline, in hexadecimal digits."""
    return hashlib.sha256(line).hexdigest()


def verify_chain(lines: Iterable[bytes], start: ChainLink | None = None) -> ChainReport:
    """
    Verify *lines*, without newlines, up to the first that does not fit.

    They follow *start*; if that is not known, the first line is taken as it is.
    """
    report = ChainReport(last=start or CHAIN_START)
    known = start is not None
    for line in lines:
        expected = report.last.number + 1
        try:
            entry = msgspec.json.decode(line, type=ChainedLine)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            why = f"it is not an event: {exc}"
            return replace(report, wrong=expected if known else 1, why=why)
        if known and entry.number != expected:
            why = f"the next line has the number {entry.number}"
            return replace(report, wrong=expected, why=why)
        if known and entry.previous != report.last.digest:
            why = f"it does not follow the line before: that, or event {entry.number}, was changed"
            return replace(report, wrong=entry.number, why=why)
        report = ChainReport(
            first=report.first or entry.number,
            last=ChainLink(entry.number, compute_digest(line)),
        )
        known = True
    return report
