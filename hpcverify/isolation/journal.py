"""
The journal of an isolation: one file of JSON lines that only grows.

Whatever is done is written down before or right after it, and flushed to the disk. So an
isolation that was killed at any point goes on where it was: rounds that were judged are
not tested again, and jobs that still run are found by their names. A last line without an
end was being written when its writer was killed, and is dropped.

One process works on an isolation: it keeps the file locked.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from hpcverify.errors import ActionError, ConfigError, StoreError
from hpcverify.isolation.group_tests import GroupTest, Members
from hpcverify.isolation.judge import GroupJudgement, PairSpeed
from hpcverify.records.collectives import CollectiveRun
from hpcverify.records.documents import MAX_DOCUMENT_BYTES

FOLDER_NAME = "isolations"
JOURNAL_NAME = "journal.jsonl"
ID_PATTERN = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


class IsolationOrder(Struct, frozen=True, kw_only=True, tag_field="kind", tag="ordered"):
    """What is to be tested: the first line."""

    id: str
    at: float
    """Seconds since 1970."""
    version: str
    nodes: tuple[str, ...]
    left_out: dict[str, str] = {}
    """Nodes that were asked for and not idle, and why."""
    switches: dict[str, str] = {}
    seed: str
    inside: bool
    """Whether each node is tested alone first."""
    budget: float = 0.0
    """Node-minutes; 0: no limit."""
    wait: float
    """Seconds that a busy node is waited for."""
    reservation: str = ""
    pairs: tuple[Members, ...] = ()
    """The pairs of a sweep are tested first, and *nodes* only if some fail."""
    node_kind: str = ""
    """What the nodes of a sweep have in common."""
    usual: tuple[PairSpeed, ...] = ()
    """What such pairs reached in earlier sweeps."""


class PlannedRound(Struct, frozen=True, kw_only=True, tag_field="kind", tag="planned"):
    """A round that is about to be tested."""

    number: int
    """From 1."""
    tests: tuple[GroupTest, ...]


class SubmittedJob(Struct, frozen=True, kw_only=True, tag_field="kind", tag="submitted"):
    """A job that is about to be submitted."""

    round: int
    tests: tuple[int, ...]
    """Their places in the round, from 0: both directions of a pair are in its job."""
    name: str
    nodes: tuple[str, ...]
    at: float = 0.0
    """Seconds since 1970."""


class EndedJob(Struct, frozen=True, kw_only=True, tag_field="kind", tag="ended"):
    """A job that has ended, or tests for which there is none."""

    round: int
    tests: tuple[int, ...]
    documents: tuple[str, ...] = ()
    """Names of the files of the tests, "" for one that left none."""
    name: str = ""
    job: int = 0
    nodes: tuple[str, ...] = ()
    reason: str = ""
    """Why it left no document."""
    node_minutes: float = 0.0


class JudgedRound(Struct, frozen=True, kw_only=True, tag_field="kind", tag="judged"):
    """What came of a round."""

    number: int
    judgements: tuple[GroupJudgement, ...]
    gone: dict[str, str] = {}
    """Nodes that could not be tested any more from this round on, and why."""


class ConcludedIsolation(Struct, frozen=True, kw_only=True, tag_field="kind", tag="concluded"):
    """The end."""

    at: float
    end_reason: str = ""
    """Why it ended before its time."""


Entry = IsolationOrder | PlannedRound | SubmittedJob | EndedJob | JudgedRound | ConcludedIsolation
_DECODER = msgspec.json.Decoder(Entry)


class RoundRecord(Struct):
    """What the journal has of a round."""

    tests: tuple[GroupTest, ...]
    submitted: list[SubmittedJob] = field(default_factory=list)
    ended: list[EndedJob] = field(default_factory=list)
    judged: JudgedRound | None = None


class Journal:
    """The journal of one isolation, open and locked."""

    def __init__(self, folder: Path, flags: int = 0) -> None:
        """Open the journal in *folder*, read it, and cut off a line that was never finished."""
        self.folder = folder
        self.rounds: list[RoundRecord] = []
        self.concluded: ConcludedIsolation | None = None
        self._order: IsolationOrder | None = None
        path = folder / JOURNAL_NAME
        flags |= os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as exc:
            raise StoreError(f"{path} cannot be opened: {exc.strerror}") from exc
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(path)
        except BlockingIOError:
            self.close()
            raise ActionError(f"another hpcverify process uses isolation {folder.name}") from None
        except StoreError:
            self.close()
            raise

    def _read(self, path: Path) -> None:
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                self._take(_DECODER.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as exc:
                raise StoreError(f"{path}, line {number}, is damaged: {exc}") from exc

    @property
    def order(self) -> IsolationOrder:
        """What is to be tested."""
        if self._order is None:
            raise StoreError(f"{self.folder / JOURNAL_NAME} is truncated. Fix: rm -r {self.folder}")
        return self._order

    @property
    def is_unfinished(self) -> bool:
        """Whether it can go on: it was not killed before its first line, and has not ended."""
        return self._order is not None and self.concluded is None

    @property
    def node_minutes(self) -> float:
        """The node-minutes that its jobs took."""
        return sum(job.node_minutes for record in self.rounds for job in record.ended)

    def list_documents(self, number: int) -> list[tuple[int, str, EndedJob]]:
        """List the place of each test of round *number* that ended, its document and its job."""
        documents: dict[int, tuple[int, str, EndedJob]] = {}
        for ended in self.rounds[number - 1].ended:
            names = ended.documents or ("",) * len(ended.tests)
            for place, name in zip(ended.tests, names, strict=True):
                documents[place] = (place, name, ended)
        return [documents[place] for place in sorted(documents)]

    def append(self, entry: Entry) -> None:
        """Write *entry*, so that it is on the disk."""
        line = msgspec.json.encode(entry) + b"\n"
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as exc:
            raise StoreError(f"{self.folder} cannot be written: {exc.strerror}") from exc
        self._take(entry)

    def close(self) -> None:
        """Close the file and give up its lock."""
        os.close(self._file)

    def _take(self, entry: Entry) -> None:
        match entry:
            case IsolationOrder():
                self._order = entry
            case PlannedRound():
                self.rounds.append(RoundRecord(entry.tests))
            case SubmittedJob():
                self.rounds[entry.round - 1].submitted.append(entry)
            case EndedJob():
                self.rounds[entry.round - 1].ended.append(entry)
            case JudgedRound():
                self.rounds[entry.number - 1].judged = entry
            case ConcludedIsolation():
                self.concluded = entry


def create_journal(state: Path, order: IsolationOrder) -> Journal:
    """Begin the journal of *order* in the state directory."""
    folder = state / FOLDER_NAME / order.id
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as exc:
        raise StoreError(f"{folder} cannot be made: {exc.strerror}") from exc
    journal = Journal(folder, os.O_CREAT | os.O_EXCL)
    journal.append(order)
    return journal


def resume_journal(state: Path, wanted: str = "") -> Journal:
    """
    Open the journal of the isolation *wanted*, or of the last one that has not ended.

    Raises:
        ConfigError: there is none.
        ActionError: another process works on it.
        StoreError: it cannot be read.

    """
    for name in [wanted] if wanted else list_isolations(state):
        folder = state / FOLDER_NAME / name
        if not ID_PATTERN.fullmatch(name) or not (folder / JOURNAL_NAME).exists():
            known = ", ".join(list_isolations(state)[:5]) or "none"
            raise ConfigError(f"no isolation {name!r}; the last isolations: {known}")
        journal = Journal(folder)
        if wanted or journal.is_unfinished:
            return journal
        journal.close()
    raise ConfigError("no isolation to resume: all have ended")


def list_unfinished(state: Path) -> Iterator[Journal]:
    """Open the journals of the isolations that have not ended and on which no process works."""
    for name in list_isolations(state):
        try:
            journal = resume_journal(state, name)
        except (ActionError, ConfigError, StoreError):  # at work, being begun, or damaged
            continue
        if journal.is_unfinished:
            yield journal
        journal.close()


def list_isolations(state: Path) -> list[str]:
    """Name the isolations, the newest first."""
    try:
        names = [path.name for path in (state / FOLDER_NAME).iterdir()]
    except OSError:
        return []
    return sorted(filter(ID_PATTERN.fullmatch, names), reverse=True)


def make_isolation_id() -> str:
    """Make the id of an isolation, by which the newest sorts last."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"


READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_run(path: Path, nodes: Sequence[str] = ()) -> CollectiveRun | None:
    """Read the document *path* if it is complete and of these *nodes*, without trusting it."""
    try:
        file = os.open(path, READ_FLAGS)
    except OSError:
        return None
    with os.fdopen(file, "rb") as content:
        try:
            read = content.read(MAX_DOCUMENT_BYTES)
            run = msgspec.json.decode(read, type=CollectiveRun)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
    ranks = {place.rank for place in run.ranks}
    named = {*run.missing, *(wrong.rank for wrong in run.wrong)}
    of_these = {place.node for place in run.ranks} == set(nodes) or not nodes
    return run if of_these and named <= ranks else None
