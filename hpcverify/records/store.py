"""
The index over all runs: SQLite, by hand, one writer.

The documents beside it are the truth: the index can be deleted and is built again from
them. Opening it indexes the documents that are new, each exactly once by the run's id.
An index that is damaged, or of an earlier version, is set aside and built again.

Which run is the newest goes by the time in the runs, since documents may be indexed in
any order. A run that is dated after now, because the clock was ahead, counts as older
than all others.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from hpcverify.errors import (
    ConfigError,
    DamagedError,
    NoRunsError,
    ReplacedError,
    StoreError,
    UnknownNameError,
)
from hpcverify.limits.resolve import PastValues
from hpcverify.model import CarryOver, Inventory, Run, Verdict
from hpcverify.records import documents
from hpcverify.records.last_result import LastResult
from hpcverify.records.sqlite import (
    count_free_bytes,
    create_tables,
    read_version,
    transaction,
    vacuum,
)
from hpcverify.records.tables import (
    IF_NEWER_CLAUSE,
    INDEX_VERSION,
    NEWEST_FIRST_CLAUSE,
    REFERENCE_CLAUSE,
    TABLES,
    find_reference,
    find_surplus,
    insert_carry_overs,
    insert_run,
    save_mtime,
)

S = TypeVar("S", bound=Struct)
T = TypeVar("T")

MAX_PRUNED_RUNS = 200
"""Runs that `prune` deletes in one call: about a second on a busy disk."""
BATCH_DOCUMENTS = 50
"""Documents that are taken in by one transaction: what a killed process may lose."""
MAX_REBUILDS = 3
"""Times that an index is built anew: each of several processes may set one aside."""
SPARSE_BYTES = 16 * 2**20
"""Free bytes in the index below which it is not worth writing it anew."""
MAX_NODE_BYTES = 512 * 2**20
"""
Bytes of a node's documents that `prune` leaves. On eight GPUs one of the prolog has
0.1 MB and a round of all checks 1 MB, so that this is two hundred nights and four
burn-ins as long as any can be.
"""
MAX_BASELINE_RUNS = 30
"""Runs that a baseline looks back on."""
MAX_CLOCK_AHEAD = timedelta(minutes=10)
"""How far after now a run may be dated, by a clock that is put right now and then."""
RUN_IDS_QUERY = "select id from runs"
TAKEN_IN_QUERY = "select changed from taken_in"
LAST_RUN = "last"
NAMED_RUNS = 3
"""Of those that an id may mean."""
"""As the id of a run: the newest."""


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run as the index knows it."""

    id: str
    node: str
    suite: str
    started: datetime
    seconds: float
    verdict: Verdict
    complete: bool
    rounds: int
    reason: str
    """Of its worst result."""


class Store:
    """Reads and writes the index in the state directory *state*."""

    def __init__(
        self,
        state: Path,
        seconds: float = math.inf,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Open the index, or make it.

        Documents that are new are taken in, the newest first, for *seconds* at most: a
        prolog leaves the rest of a great many to the next run.
        """
        self.path = state / "store.sqlite"
        self.damaged_path = self.path.with_suffix(".damaged")
        """Where an index lies that was damaged."""
        self.documents = state / "runs"
        self._seconds = seconds
        self._clock = clock
        self._timer = timer
        self._seen_mtime = 0
        self._rebuilds = 0
        self._inode: int | None = None
        """The number of the file that was opened as the index."""
        self.warnings: list[str] = []
        """Complaints about documents that cannot be taken in, and about the index."""
        try:
            self.documents.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StoreError(
                f"the state directory {state} cannot be written: {exc.strerror}; "
                "set HPCVERIFY_STATE to one that can"
            ) from exc
        self._open()

    def _open(self) -> None:
        self._inode = self._read_inode()
        if self._run_transaction(read_version) != INDEX_VERSION:  # to write waits for the disk
            self._run_transaction(
                lambda db: create_tables(db, self.path, TABLES, INDEX_VERSION), write=True
            )
        self._inode = self._inode or self._read_inode()
        self.index_new()

    def _read_inode(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None

    def _run_transaction(
        self, work: Callable[[sqlite3.Connection], T], *, write: bool = False
    ) -> T:
        """Do *work* in a transaction; if the index is damaged, on one that is new."""
        fix = f"move it away, and it is built again from {self.documents}"
        try:
            with transaction(self.path, if_damaged=fix, write=write) as db:
                return work(db)
        except (DamagedError, ReplacedError) as exc:
            self._rebuild(exc)
        with transaction(self.path, if_damaged=fix, write=write) as db:
            return work(db)

    def _rebuild(self, why: DamagedError | ReplacedError) -> None:
        """
        Set the index aside and build another: all that it says is in the documents.

        Where another process has done so meanwhile, go on with what it is building.

        Raises:
            DamagedError: that cannot be done, or was done again and again.
            ReplacedError: likewise.

        """
        if self._rebuilds == MAX_REBUILDS:
            raise why
        self._rebuilds += 1
        if isinstance(why, ReplacedError) or self._read_inode() != self._inode:
            self._open()
            return
        try:
            # SQLite would take the journal for one of the new index.
            self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            self.path.replace(self.damaged_path)
        except OSError:
            raise why from None
        self.warnings.append(f"{why}; it is now {self.damaged_path}, and was built again")
        self._open()

    def get_document_path(self, run: str) -> Path:
        """Say where the document of *run* lies."""
        return self.documents / f"{run}.json"

    def index_new(self) -> None:
        """
        Index the documents that are new; each once, however often it is called.

        A directory that has not changed since the last time is not read again, which
        a prolog on a node with thousands of runs would wait for.
        """
        changed = self._seen_mtime = self.documents.stat().st_mtime_ns
        if self._run_transaction(lambda db: (changed,) in db.execute(TAKEN_IN_QUERY)):
            return
        until = self._timer() + self._seconds
        known = self._run_transaction(lambda db: {run for (run,) in db.execute(RUN_IDS_QUERY)})
        new = [p for p in self.documents.glob("*.json") if p.stem not in known]
        new.sort(key=lambda path: path.stem, reverse=True)
        ahead = self._format_latest_id()
        new.sort(key=lambda path: path.stem > ahead)
        complaints: list[str] = []
        while new and self._timer() < until:
            batch, new = new[:BATCH_DOCUMENTS], new[BATCH_DOCUMENTS:]
            runs = list(_read_whole(batch, complaints))
            self._run_transaction(partial(self._insert_all, runs=runs), write=True)
        self.warnings += complaints
        if new:  # so that `save` does not take the rest for known
            self._seen_mtime = 0
        seen = 0 if new or complaints else changed
        self._run_transaction(lambda db: save_mtime(db, seen), write=True)

    def _insert_all(self, db: sqlite3.Connection, runs: Iterable[tuple[Run, int]]) -> None:
        """Index *runs*, which may be older than what is known."""
        for run, size in runs:
            insert_run(db, run, size)
            insert_carry_overs(db, run, IF_NEWER_CLAUSE, self._format_latest_id())

    def _format_latest_time(self) -> str:
        """Write the time after which no run can be dated as `list_runs` has it."""
        return _format_time(self._clock() + MAX_CLOCK_AHEAD, "")

    def _format_latest_id(self) -> str:
        """Write that time as the id of a run begins."""
        return f"{self._clock() + MAX_CLOCK_AHEAD:%Y%m%d-%H%M%S}"

    def save(self, run: Run) -> None:
        """
        Write the document of *run*, and index it.

        Raises:
            StoreError: it could not be written, or (and then it is kept all the same)
                not be indexed.

        """
        before = self.documents.stat().st_mtime_ns
        documents.write(run, self.get_document_path(run.id))
        size = _read_size(self.get_document_path(run.id))

        def index(db: sqlite3.Connection) -> None:
            insert_run(db, run, size)
            insert_carry_overs(db, run, "where true")  # the one that came last, whatever the clock
            # If nobody else has put anything there since we looked, nothing is new.
            if before == self._seen_mtime:
                save_mtime(db, self.documents.stat().st_mtime_ns)

        self._run_transaction(index, write=True)

    def prune(
        self,
        node: str,
        keep: int,
        spare: Collection[str] = (),
        max_bytes: int = MAX_NODE_BYTES,
        max_pruned: int = MAX_PRUNED_RUNS,
    ) -> int:
        """
        Delete the oldest runs of *node* beyond *keep* runs or *max_bytes*; count them.

        At most *max_pruned* of them: the next call goes on.

        Those of the suite that has the most go first, so that a prolog's runs do not
        drive out the night's. Those in *spare* stay, and the run that
        `load_previous_inventory` reads. Beyond *keep*, the runs that `load_carry_overs`
        reads stay as well, up to `MAX_CARRY_OVER_RUNS`; a mark whose run is deleted is
        forgotten.

        Raises:
            StoreError: a document is there still, and the index as it was.

        """
        now = self._format_latest_time()
        spent = self._run_transaction(
            lambda db: find_surplus(db, node, keep, max_bytes, now) - find_reference(db, node, now)
        )
        oldest = sorted(spent.difference(spare))[:max_pruned]
        if not oldest:
            return 0
        before = self.documents.stat().st_mtime_ns

        def forget(db: sqlite3.Connection) -> None:
            for run in oldest:
                self._delete_run(db, node, run)
            if before == self._seen_mtime:
                save_mtime(db, self.documents.stat().st_mtime_ns)

        self._run_transaction(forget, write=True)
        return len(oldest)

    def shrink(self, sparse: int = SPARSE_BYTES) -> None:
        """Give back the room that deleted runs left, if that is more than *sparse*."""
        if self._run_transaction(count_free_bytes) > sparse:
            vacuum(self.path)

    def _delete_run(self, db: sqlite3.Connection, node: str, run: str) -> None:
        try:
            self.get_document_path(run).unlink(missing_ok=True)
        except OSError as exc:
            raise StoreError(
                f"{self.get_document_path(run)} cannot be deleted: {exc.strerror}"
            ) from exc
        for table, column in (("results", "run"), ("measurements", "run"), ("runs", "id")):
            db.execute(f"delete from {table} where {column} = ?", (run,))  # noqa: S608 - our own words
        db.execute("delete from marks where node = ? and run = ?", (node, run))

    def list_runs(self, node: str | None = None, limit: int = 50) -> list[RunEntry]:
        """List runs, of *node* or of all, newest first."""
        return self._select_entries(
            f"where :node is null or node = :node {NEWEST_FIRST_CLAUSE} limit :limit",
            {"node": node, "limit": limit, "now": self._format_latest_time()},
        )

    def list_future_runs(self, node: str) -> list[RunEntry]:
        """List the runs of *node* that are dated after now, whose clock was ahead."""
        return self._select_entries(
            f"where node = :node and started > :now {NEWEST_FIRST_CLAUSE}",
            {"node": node, "now": self._format_latest_time()},
        )

    def explain_future_runs(self, node: str) -> str:
        """Say, in one sentence, that runs of *node* are dated after now, if any are."""
        ahead = self.list_future_runs(node)
        if not ahead:
            return ""
        more = f" (and {len(ahead) - 1} more)" if ahead[1:] else ""
        return (
            f"run {ahead[0].id}{more} is dated after now: the clock was ahead then, or "
            "is behind now, see date; until then, it counts only where there is no "
            "other run to compare with"
        )

    def list_newest(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[RunEntry]:
        """
        List of every node the newest run that came to its end, of that span.

        A node's clock may have been years ahead once: give *until*, or that run is its
        newest for ever.
        """
        # SQLite takes the other columns from the row that has the maximum.
        return self._select_entries(
            "where id in (select id from (select id, max(started) from runs"
            "   where complete and started between :since and :until group by node))",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
        )

    def list_last_results(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[LastResult]:
        """
        List what each check said in the newest whole run of every node and suite.

        Of the span from *since* to *until*, as in `list_newest`.

        By suite, for the passive ones run after every job and say nothing of the rest.
        """
        return self._select_structs(
            "select node, suite, id, started, overall, name, verdict, reason,"
            " cause, remedy from (select node, suite, id, max(started) started,"
            "   verdict overall from runs where complete"
            "   and started between :since and :until group by node, suite)"
            " join results on run = id",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
            LastResult,
        )

    def list_failures(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[tuple[str, float]]:
        """List the node and the beginning, in s since 1970, of each run that failed."""
        rows = self._run_transaction(
            lambda db: db.execute(
                "select node, started from runs where verdict = 'fail' and started between ? and ?",
                (_format_time(since, ""), _format_time(until, "9999")),
            ).fetchall()
        )
        return [(node, datetime.fromisoformat(at).timestamp()) for node, at in rows]

    def _select_entries(self, which: str, values: Mapping[str, str | int | None]) -> list[RunEntry]:
        return self._select_structs(
            "select id, node, suite, started, seconds, verdict, complete, rounds,"  # noqa: S608 - our own words
            " coalesce((select reason from results where run = runs.id"
            "   and results.verdict = runs.verdict limit 1), '')"
            f" from runs {which}",
            values,
            RunEntry,
        )

    def _select_structs(
        self, query: str, values: Mapping[str, str | int | None], kind: type[S]
    ) -> list[S]:
        """Answer *query* with values of *kind*, whose fields are its columns."""
        return self._run_transaction(lambda db: _build_structs(db.execute(query, values), kind))

    def load(self, run: str) -> Run:
        """
        Read the document of *run*: its id, the start of one, or ``last``.

        Raises:
            UnknownNameError: no run is called so.
            ConfigError: more than one is.
            NoRunsError: there is none, and the last was asked for.

        """
        entries = self.list_runs(limit=-1)
        if run == LAST_RUN:
            if not entries:
                raise NoRunsError
            return documents.read(self.get_document_path(entries[0].id))
        ids = [e.id for e in entries if e.id.startswith(run)]
        if len(ids) == 1 or run in ids:
            return documents.read(self.get_document_path(run if run in ids else ids[0]))
        if ids:
            newest = ", ".join(ids[:NAMED_RUNS])
            raise ConfigError(
                f"{len(ids)} runs begin with {run!r}: type more of one; newest: {newest}"
            )
        raise UnknownNameError("run", run, [e.id for e in entries[:5]])

    def read_documents(self, entries: Iterable[RunEntry]) -> Iterator[Run]:
        """Read the documents of *entries*; keep complaints of those that are not."""
        for entry in entries:
            try:
                yield documents.read(self.get_document_path(entry.id))
            except StoreError as exc:
                self.warnings.append(str(exc))

    def load_previous_inventory(self, node: str) -> Inventory | None:
        """
        Recall what *node* is made of: its last inventory that was not refused.

        A run that missed a part is no reference, or the second one would not.
        """
        query = f"select inventory {REFERENCE_CLAUSE}"
        values = {"node": node, "now": self._format_latest_time()}

        def read(db: sqlite3.Connection) -> Inventory | None:
            row = db.execute(query, values).fetchone()
            return None if row is None else msgspec.json.decode(row[0], type=Inventory)

        return self._run_transaction(read)

    def count_runs(self, node: str) -> int:
        """Count the runs of *node*, each round of one as one."""
        query = "select coalesce(sum(rounds), 0) from runs where node = ?"

        def read(db: sqlite3.Connection) -> int:
            found: int = db.execute(query, (node,)).fetchone()[0]
            return found

        return self._run_transaction(read)

    def load_carry_overs(self, node: str) -> dict[str, tuple[CarryOver, ...]]:
        """
        Recall what each check wanted to know again of *node*: the newest of each.

        A run that was interrupted is inconclusive, so what it looked at is new still;
        and the newest is the one that came last, whatever the clock said.
        """
        query = "select name, mark, value, part from marks where node = ?"
        found: dict[str, tuple[CarryOver, ...]] = {}
        for check, *mark in self._run_transaction(lambda db: db.execute(query, (node,)).fetchall()):
            found[check] = (*found.get(check, ()), CarryOver(*mark))
        return found

    def list_runs_judging(self, part: str, checks: Collection[str], run: Run) -> list[RunEntry]:
        """
        List the runs of that node before *run* in which *checks* judged *part*.

        Newest first. One that failed may have been without the part.
        """
        return self._select_entries(
            "where node = :node and started < :before"
            " and (verdict = 'fail' or instr(inventory, cast(:part as blob)))"
            " and exists (select * from results r where r.run = runs.id"
            "   and r.verdict in ('pass', 'warn', 'fail')"
            "   and instr(:checks, '\"' || r.name || '\"'))"
            " order by started desc",
            {
                "node": run.node,
                "before": run.started.isoformat(),
                "part": msgspec.json.encode(part).decode(),
                "checks": msgspec.json.encode(tuple(checks)).decode(),
            },
        )

    def make_past_lookup(self, node: str, suite: str, check: str, before: str = "9") -> PastValues:
        """
        Recall what *check* measured on *node* in runs of *suite*, from *before*.

        Only what passed counts: were warnings taken in, a part that has become slow
        would be its own measure after a while.
        """

        def values(metric: str, part: str) -> Sequence[float]:
            until = min(before, self._format_latest_time())
            try:
                return self._select_values(
                    (node, suite, check, metric, part, until, MAX_BASELINE_RUNS)
                )
            except StoreError as exc:  # a run must not be lost for want of its past
                self.warnings.append(str(exc))
                return ()

        return values

    def make_earlier_lookup(self, run: Run) -> Callable[[str], PastValues]:
        """Recall by the name of a check what that node measured before *run*."""
        return partial(self.make_past_lookup, run.node, run.suite, before=run.started.isoformat())

    def _select_values(self, wanted: tuple[str | int, ...]) -> Sequence[float]:
        query = (
            "select value from measurements m"
            " join runs on runs.id = m.run"
            " join results r on r.run = m.run and r.name = m.name"
            " where node = ? and suite = ? and m.name = ? and metric = ?"
            " and part = ? and value is not null and r.verdict = 'pass'"
            " and started < ? order by started desc limit ?"
        )
        return self._run_transaction(lambda db: [v for (v,) in db.execute(query, wanted)])


def _read_size(path: Path) -> int:
    """Say how many bytes a document has."""
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has deleted it meanwhile
        return 0


def _format_time(when: datetime | None, without: str) -> str:
    """Write a time in UTC as `list_runs` has it, so that it can be compared."""
    return without if when is None else when.replace(tzinfo=UTC).isoformat()


def _build_structs(rows: Iterable[tuple[object, ...]], kind: type[S]) -> list[S]:
    names = kind.__struct_fields__
    return [msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False) for row in rows]


def _read_whole(paths: Iterable[Path], complaints: list[str]) -> Iterator[tuple[Run, int]]:
    """Read those of *paths* that hold whole runs, each with its size in bytes."""
    for path in paths:
        try:
            yield _read_run(path), _read_size(path)
        except StoreError as exc:
            if os.path.lexists(path):  # else another process has deleted it meanwhile
                complaints.append(str(exc))


def _read_run(path: Path) -> Run:
    run = documents.read(path)
    if run.id != path.stem:
        raise StoreError(f"{path} holds run {run.id}: name it so, or move it away")
    return run
