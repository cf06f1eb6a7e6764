"""
Whether the log of events is whole: the ledger by itself, and files by the ledger.

The ledger is read in batches: the controller can write meanwhile.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path

import msgspec
from msgspec.structs import replace

from hpcverify.errors import ConfigError
from hpcverify.events.chain import (
    CHAIN_START,
    NO_EVENT_ERRORS,
    ChainLink,
    ChainReport,
    verify_chain,
)
from hpcverify.events.event import Event
from hpcverify.fleet.event_log import KeptEvent, compute_detail_digest
from hpcverify.fleet.event_stream import EVENTS_FILE_NAME, FILE_READER, read_number
from hpcverify.fleet.ledger import Ledger

BATCH_EVENTS = 1000
CLOCK_RESOLUTION_S = 1e-3
OTHER_LINE = "the ledger has another line"


class LedgerEvents:
    """The lines of the events in the *ledger*, and what is kept beside them."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ends = ledger.read_log_ends()
        self._kept: dict[int, KeptEvent] = {}

    def __iter__(self) -> Iterator[bytes]:
        """Take the lines."""
        last = self.ends.anchor.number
        while batch := self.ledger.read_kept_events(last, BATCH_EVENTS):
            self._kept = {event.number: event for event in batch}
            yield from (event.line for event in batch)
            last = batch[-1].number

    def judge(self, number: int, digest: str) -> str:
        """Say what is kept beside the line *number* and is not in it; empty: nothing."""
        kept = self._kept[number]
        if kept.digest != digest:
            return "its line is not the one that was written"
        try:
            event = msgspec.json.decode(kept.line, type=Event)
        except NO_EVENT_ERRORS as exc:
            return f"it is not an event: {exc}"
        if compute_detail_digest(kept.detail, self.ends.key) != event.detail_digest:
            return "its detail in the audit log is not the one that was written"
        is_same_time = abs(kept.at - event.time.timestamp()) < CLOCK_RESOLUTION_S
        for name, shown, written in (
            ("kind", kept.kind, event.kind),
            ("node", kept.node, event.node),
            ("actor", kept.actor, event.actor.name),
            ("action", kept.what, event.what),
            ("time", event.time if is_same_time else kept.at, event.time),
        ):
            if shown != written:
                return f"its {name} in the audit log is {shown}, and in its line {written}"
        return ""


def verify_ledger(ledger: Ledger, expected: Mapping[int, str] = {}) -> ChainReport:
    """
    Verify the chain over all events in the *ledger*, what is kept beside each, and both ends.

    *expected* has digests of some, by number. The last heartbeat says which event is the oldest;
    readers and the site's program were given events.
    """
    events = LedgerEvents(ledger)
    ends, first = events.ends, events.ends.anchor.number + 1
    report = verify_chain(events, ends.anchor, events.judge, expected)
    if report.wrong and ledger.read_anchor() != ends.anchor:  # the oldest were pruned meanwhile
        return verify_ledger(ledger, expected)
    if report.wrong:
        return report
    oldest = msgspec.json.decode(ends.heartbeat, type=Event).oldest if ends.heartbeat else 1
    if ends.anchor.digest != CHAIN_START.digest and first != oldest:
        why = f"by the last heartbeat it is the oldest, but {first} is"
        return replace(report, wrong=oldest, why=why)
    if ends.given > report.last.number:
        why = f"events up to {ends.given} were read, but {report.last.number} is the last"
        return replace(report, wrong=report.last.number + 1, why=why)
    return report


def list_event_files(state: Path) -> list[Path]:
    """List the file of events in *state*, and its rotated ones, such as .1 or -20261128.gz."""
    name = re.compile(re.escape(EVENTS_FILE_NAME) + r"([.-]\d+)?(\.gz)?")
    return sorted(p for p in state.iterdir() if name.fullmatch(p.name) and p.is_file())


class EventFiles:
    """
    The whole lines of *paths* together, in the order of their numbers.

    A file that another one begins with is left out: it is a copy, or was renamed meanwhile.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        files = [(path, content) for path in paths if (content := _read_whole_lines(path))]
        files.sort(key=lambda file: (read_number(file[1].partition(b"\n")[0]), -len(file[1])))
        longer = [b"", *(content for _, content in files)]
        self._files = [f for f, c in zip(files, longer, strict=False) if not c.startswith(f[1])]
        self.counts: dict[Path, int] = {}
        """The lines of each file that were taken."""

    @property
    def place(self) -> str:
        """Where the last line that was taken is."""
        path, count = next(reversed(self.counts.items()), (None, 0))
        return f"{path}, line {count}" if path else "files"

    def __iter__(self) -> Iterator[bytes]:
        """Take the lines, without newlines."""
        for path, content in self._files:
            for count, line in enumerate(BytesIO(content), start=1):
                self.counts[path] = count
                yield line[:-1]


def _read_whole_lines(path: Path) -> bytes:
    """Read *path* up to its last newline: a line without its end is still being written."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as exc:
        why = getattr(exc, "strerror", None) or exc
        raise ConfigError(f"{path} cannot be read: {why}") from exc
    return content[: content.rfind(b"\n") + 1]


class LedgerComparison:
    """Judges lines of files by those of the *ledger*."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._pruned = ledger.read_anchor()
        self._known: dict[int, str] = {}

    def __call__(self, number: int, digest: str) -> str:
        """Say how the line that has this *number* and *digest* differs; empty: it does not."""
        if number <= self._pruned.number:
            is_other = ChainLink(number, digest) != self._pruned
            return OTHER_LINE if is_other and number == self._pruned.number else ""
        if number not in self._known:
            self._known = self.ledger.read_digests(number - 1, BATCH_EVENTS)
        if known := self._known.get(number):
            return "" if known == digest else OTHER_LINE
        if self.ledger.has_event(ChainLink(number, digest)):  # it was pruned meanwhile
            return ""
        return f"the ledger ends with event {self.ledger.read_chain_end().number}"


def verify_files(
    paths: Iterable[Path], ledger: Ledger | None = None, expected: Mapping[int, str] = {}
) -> tuple[ChainReport, str]:
    """
    Verify the lines of *paths* together, by the *ledger* if there is one; with the place.

    Raises:
        ConfigError: a file cannot be read.

    """
    written = ledger.read_cursors().get(FILE_READER, 0) if ledger else 0  # before they are read
    files = EventFiles(paths)
    if ledger is None:
        return verify_chain(files, expected=expected), files.place
    report = verify_chain(files, None, LedgerComparison(ledger), expected)
    if report.wrong:
        return report, files.place
    return _verify_file_ends(report, files, ledger, written)


def _verify_file_ends(
    report: ChainReport, files: EventFiles, ledger: Ledger, written: int
) -> tuple[ChainReport, str]:
    first, last, begins = report.first, report.last.number, {1, *ledger.read_files()}
    if written and not first:
        why = "no file has a line: give the rotated files too"
        return replace(report, wrong=written, why=why), files.place
    if first and first not in begins:
        why = f"the file begins with event {first}, and lines before it are gone"
        return replace(report, wrong=first - 1, why=why), str(next(iter(files.counts)))
    if last < written and last + 1 not in begins:
        why = f"the file ends with event {last}, and was written up to {written}"
        return replace(report, wrong=last + 1, why=why), str(next(reversed(files.counts)))
    return report, files.place
