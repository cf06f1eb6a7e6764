"""
The chain over the lines of events: each holds the digest of the line before.

A line that was changed, left out or put in shows at the next one. A chain alone does not show
that its beginning or its end is missing, nor that all of it was written anew, as root on the
controller can. Digests that are kept elsewhere show it: the heartbeat of each day carries one
to whoever collects the events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import astuple, replace


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


EventNumber = Annotated[int, Meta(ge=1, le=2**63 - 1)]  # as SQLite has them
NO_EVENT_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding a line raises that is none of ours."""


class ChainedLine(Struct, frozen=True):
    """What the chain needs of an event."""

    number: EventNumber
    previous: str


LineJudge = Callable[[int, str], str]
"""Says what is wrong with the line that has a number and a digest; empty: nothing."""


def compute_digest(line: bytes) -> str:
    """Compute the SHA-256 of *line*, which has no newline, in hexadecimal digits."""
    return hashlib.sha256(line).hexdigest()


def verify_chain(
    lines: Iterable[bytes],
    start: ChainLink | None = None,
    judge: LineJudge = lambda _number, _digest: "",
    expected: Mapping[int, str] = {},
) -> ChainReport:
    """
    Verify *lines*, without newlines, up to the first that does not fit.

    They follow *start*; if that is not known, the first line is taken as it is. *judge* knows
    more of each line, and *expected* has the digests of some, by number: these must be there.
    """
    report = ChainReport(last=start or CHAIN_START)
    known = start is not None
    for line in lines:
        after = report.last.number + 1
        try:
            entry = msgspec.json.decode(line, type=ChainedLine)
        except NO_EVENT_ERRORS as exc:
            why = f"it is not an event: {exc}"
            return replace(report, wrong=after if known else 1, why=why)
        if known and entry.number != after:
            why = f"the next line has the number {entry.number}"
            return replace(report, wrong=after, why=why)
        if known and entry.previous != report.last.digest:
            why = f"it does not follow the line before: that, or event {entry.number}, was changed"
            return replace(report, wrong=entry.number, why=why)
        link = ChainLink(entry.number, compute_digest(line))
        digest = expected.get(link.number, link.digest)
        other = f"its digest is {link.digest}, not {digest}" if link.digest != digest else ""
        if why := other or judge(*astuple(link)):
            return replace(report, wrong=entry.number, why=why)
        report = ChainReport(first=report.first or entry.number, last=link)
        known = True
    first = report.first or report.last.number + 1
    for number in sorted(expected):
        if not first <= number <= report.last.number:
            return replace(report, wrong=number, why="it is expected and missing")
    return report
