"""
The index over all runs: SQLite, by hand, one writer.

The documents beside it are the truth: the index can be deleted and is rebuilt from them.
Opening it indexes new documents, each exactly once by the run's id. An index that is
damaged is set aside and rebuilt; one of an earlier version is replaced.

The time in the runs decides which is the newest, since documents may be indexed in any
order. A run dated in the future, because the clock was ahead, counts as older than all
others.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpcverify.errors import (
    ConfigError,
    DamagedError,
    NoRunsError,
    OutdatedError,
    ReplacedError,
    StoreError,
    UnknownNameError,
)
from hpcverify.limits.resolve import PastValues
from hpcverify.model import CarryOver, Inventory, Remedy, Run, Source, Verdict
from hpcverify.records import documents
from hpcverify.records.last_result import LastResult
from hpcverify.records.reported_facts import ReportedFacts
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
    find_overfull,
    find_reference,
    find_surplus,
    insert_carry_overs,
    insert_facts_of_run,
    insert_run,
    save_mtime,
)
from hpcverify.summary.diagnosis import Diagnosis

FiniteFloat = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
DocumentSize = Annotated[int, Meta(ge=0, le=documents.MAX_DOCUMENT_BYTES)]
S = TypeVar("S", bound=Struct)
T = TypeVar("T")

Rows = list[tuple[object, ...]]
NO_DIAGNOSES = b"[]"
UNREADABLE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError)
"""What msgspec raises of values of another kind than ours."""
MAX_INTEGER = 2**63
MAX_PRUNED_RUNS = 200
"""Runs that `prune` deletes in one call: about a second on a busy disk."""
BATCH_DOCUMENTS = 50
"""Documents to index in one transaction: what a killed process may lose."""
MAX_REBUILDS = 3
"""Each of several processes may set an index aside."""
SPARSE_BYTES = 16 * 2**20
"""Free bytes in the index that are not worth rewriting it."""
MAX_NODE_BYTES = 512 * 2**20
"""
Bytes of a node's documents that `prune` leaves. On eight GPUs a prolog's run has 0.1 MB
and a round of all checks 1 MB, so this holds two hundred nights and four burn-ins of
the longest kind.
"""
MAX_BASELINE_RUNS = 30
MAX_CLOCK_AHEAD = timedelta(minutes=10)
"""How far in the future a run may be dated, since clocks are corrected now and then."""
LAST_RUN = "last"
"""The id that means the newest run."""
NAMED_RUNS = 3
"""Runs to name when an id fits several."""
LAST_CHARACTER = "\U0010ffff"
"""After every other one: what begins with a text is less than the text and this."""
EMPTY: Mapping[str, str] = {}


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run in the index."""

    id: str
    node: str
    suite: str
    started: datetime
    seconds: FiniteFloat
    verdict: Verdict
    complete: bool
    rounds: Annotated[int, Meta(ge=0)]
    reason: str
    """Its verdict in one clause, the worst part first; empty if it passed."""


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
        Open the index, or create it.

        Indexes new documents, the newest first, for up to *seconds*: if there are very
        many, a prolog leaves the rest to the next run.
        """
        self.path = state / "store.sqlite"
        self.damaged_path = self.path.with_suffix(".damaged")
        """Where a damaged index is moved to."""
        self.documents = state / "runs"
        self._fix = f"move it away, and it is rebuilt from {self.documents}"
        self._seconds = seconds
        self._clock = clock
        self._timer = timer
        self._seen_mtime = 0
        self._rebuilds = 0
        self._inode: int | None = None
        """The inode of the file that was opened as the index."""
        self.warnings: list[str] = []
        """About the index, and documents that cannot be indexed."""
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
        if self._run_transaction(read_version) != INDEX_VERSION:  # writing waits for the disk
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
        """Do *work* in a transaction; if the index is damaged, on a new one."""
        try:
            with transaction(self.path, if_damaged=self._fix, write=write) as db:
                return work(db)
        except (DamagedError, ReplacedError) as exc:
            self._rebuild(exc)
        with transaction(self.path, if_damaged=self._fix, write=write) as db:
            return work(db)

    def _select(
        self, query: str, values: Mapping[str, str | int | None], build: Callable[[Rows], T]
    ) -> T:
        """
        Make what *build* does of the rows of *query*.

        SQLite does not notice a wrong value in a field. What no run of ours has is damage too.
        """

        def fetch(db: sqlite3.Connection) -> Rows:
            # A writer waits for whoever reads: the rows are fetched first.
            return db.execute(query, values).fetchall()

        try:
            return build(self._run_transaction(fetch))
        except UNREADABLE_ERRORS as exc:
            damage = DamagedError(f"{self.path} is damaged ({exc}): {self._fix}")
        self._rebuild(damage)
        try:
            return build(self._run_transaction(fetch))
        except UNREADABLE_ERRORS:
            raise damage from None

    def _rebuild(self, why: DamagedError | ReplacedError) -> None:
        """
        Rebuild the index from the documents, which hold everything; keep a damaged one aside.

        If another process has done so meanwhile, use its index.

        Raises:
            DamagedError: that failed, or was done too often.
            ReplacedError: likewise.

        """
        if self._rebuilds == MAX_REBUILDS:
            raise why
        self._rebuilds += 1
        if isinstance(why, ReplacedError) or self._read_inode() != self._inode:
            self._open()
            return
        try:
            # SQLite would apply the journal to the new index.
            self.path.with_name(f"{self.path.name}-journal").unlink(missing_ok=True)
            if isinstance(why, OutdatedError):
                self.path.unlink()
            else:
                self.path.replace(self.damaged_path)
                self.warnings.append(f"{why}; it was moved to {self.damaged_path} and rebuilt")
        except OSError:
            raise why from None
        self._open()

    def get_document_path(self, run: str) -> Path:
        """Return the path of the document of *run*."""
        return self.documents / f"{run}.json"

    def _read_mtime(self) -> int:
        """Read when the directory of documents changed; SQLite holds ns since 1970 until 2262."""
        return self.documents.stat().st_mtime_ns % MAX_INTEGER

    def index_new(self) -> None:
        """
        Index new documents, each exactly once.

        A directory that has not changed since the last time is not read again: with
        thousands of runs, a prolog would wait for that.
        """
        changed = self._seen_mtime = self._read_mtime()
        if self._run_transaction(lambda db: (changed,) in db.execute("select * from taken_in")):
            return
        until = self._timer() + self._seconds
        known = self._run_transaction(lambda db: {i for (i,) in db.execute("select id from runs")})
        new = [p for p in self.documents.glob("*.json") if p.stem not in known]
        new.sort(key=lambda path: path.stem, reverse=True)
        ahead = self._format_latest_id()
        new.sort(key=lambda path: path.stem > ahead)
        unread: list[str] = []
        while new and self._timer() < until:
            batch, new = new[:BATCH_DOCUMENTS], new[BATCH_DOCUMENTS:]
            runs = list(_read_whole(batch, unread))
            self._run_transaction(partial(self._insert_all, runs=runs), write=True)
        self.warnings += unread
        if new:  # so that `save` does not record the rest as indexed
            self._seen_mtime = 0
        seen = 0 if new or unread else changed
        self._run_transaction(lambda db: save_mtime(db, seen), write=True)

    def _insert_all(self, db: sqlite3.Connection, runs: Iterable[tuple[Run, int]]) -> None:
        """Index *runs*, which may be older than those in the index."""
        for run, size in runs:
            insert_run(db, run, size)
            insert_carry_overs(db, run, IF_NEWER_CLAUSE, self._format_latest_id())
            insert_facts_of_run(db, run, self._format_latest_time())

    def _format_latest_time(self) -> str:
        """Format the latest time that counts as now, as in the column `started`."""
        return _format_time(self._clock() + MAX_CLOCK_AHEAD, "")

    def _format_latest_id(self) -> str:
        """Format that time as the beginning of a run's id."""
        return f"{self._clock() + MAX_CLOCK_AHEAD:%Y%m%d-%H%M%S}"

    def save(self, run: Run) -> None:
        """
        Write the document of *run*, and index it.

        Raises:
            StoreError: it could not be written; or not indexed, but then it is kept.

        """
        self._index_written(self._write_documents([run]))

    def save_new(self, runs: Iterable[Run]) -> None:
        """
        Write the documents of those of *runs* that have none, then index them together.

        Raises:
            StoreError: as in `save`; what was written is indexed the next time.

        """
        new = [run for run in runs if not self.get_document_path(run.id).exists()]
        if new:
            self._index_written(self._write_documents(new))

    def _write_documents(self, runs: Iterable[Run]) -> list[tuple[Run, int]]:
        """Write the documents of *runs*, and see whether others write too; with their sizes."""
        written: list[tuple[Run, int]] = []
        with documents.open_folder(self.documents) as keep:
            for run in runs:
                alone = self._read_mtime() == self._seen_mtime
                written.append((run, keep(run)))
                self._seen_mtime = self._read_mtime() if alone else 0
        return written

    def _index_written(self, runs: Iterable[tuple[Run, int]]) -> None:
        """Index *runs* that we have just written, each with its size in bytes."""
        seen, self._seen_mtime = self._seen_mtime, 0  # if this fails, they are not indexed

        def index(db: sqlite3.Connection) -> None:
            for run, size in runs:
                insert_run(db, run, size)
                # The one that came last, whatever the clock.
                insert_carry_overs(db, run, "where true")
                insert_facts_of_run(db, run, self._format_latest_time())
            if seen:  # nobody else has added a document: nothing is new
                save_mtime(db, seen)

        self._run_transaction(index, write=True)
        self._seen_mtime = seen

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

        Deletes at most *max_pruned*: the next call goes on.

        The suite with the most runs loses them first, so that a prolog's runs do not
        push out the nightly ones. Runs in *spare* stay, and so does the one that
        `load_previous_inventory` reads. Beyond *keep*, the runs that `load_carry_overs`
        reads also stay, up to `MAX_CARRY_OVER_RUNS`; the marks of a deleted run are
        forgotten.

        Raises:
            StoreError: a document could not be deleted; the index is unchanged.

        """
        self._select(  # by a wrong size, the wrong documents would go
            "select coalesce(max(bytes), 0), coalesce(min(bytes), 0) from runs where node = :node",
            {"node": node},
            lambda rows: msgspec.convert(rows, list[tuple[DocumentSize, DocumentSize]]),
        )
        now = self._format_latest_time()
        spent = self._run_transaction(
            lambda db: find_surplus(db, node, keep, max_bytes, now) - find_reference(db, node, now)
        )
        oldest = sorted(spent.difference(spare))[:max_pruned]
        if not oldest:
            return 0
        before = self._read_mtime()

        def forget(db: sqlite3.Connection) -> None:
            for run in oldest:
                self._delete_run(db, node, run)
            if before == self._seen_mtime:
                save_mtime(db, self._read_mtime())

        self._run_transaction(forget, write=True)
        return len(oldest)

    def list_overfull(self, keep: int, max_bytes: int = MAX_NODE_BYTES) -> set[str]:
        """List the nodes that have more runs, or bytes, than `prune` leaves."""
        return self._run_transaction(lambda db: find_overfull(db, keep, max_bytes))

    def shrink(self, sparse: int = SPARSE_BYTES) -> None:
        """Free the room of deleted runs, if it is more than *sparse* bytes."""
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

    def list_runs(
        self, node: str | None = None, limit: int = 50, since: datetime | None = None
    ) -> list[RunEntry]:
        """List runs, of *node* or of all nodes, from *since* (UTC) on, newest first."""
        which = "node = :node and" if node is not None else ""  # an "or" would use no index
        return self._select_entries(
            f"where {which} started >= :since {NEWEST_FIRST_CLAUSE} limit :limit",
            {
                "node": node,
                "limit": limit,
                "since": _format_time(since, ""),
                "now": self._format_latest_time(),
            },
        )

    def list_future_runs(self, node: str) -> list[RunEntry]:
        """List the runs of *node* dated in the future: the clock was ahead."""
        return self._select_entries(
            f"where node = :node and started > :now {NEWEST_FIRST_CLAUSE}",
            {"node": node, "now": self._format_latest_time()},
        )

    def explain_future_runs(self, node: str) -> str:
        """Say, in one sentence, that runs of *node* are dated in the future, if any are."""
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
        List the newest complete run of every node from *since* to *until*.

        A node's clock may have been years ahead once: without *until*, that run stays its
        newest. What the controller asked of its BMC is no run of the node.
        """
        # SQLite takes the other columns from the row that has the maximum.
        return self._select_entries(
            "where id in (select id from (select id, max(started) from runs"
            "   where complete and suite != :bmc and started between :since and :until"
            "   group by node))",
            {
                "since": _format_time(since, ""),
                "until": _format_time(until, "9999"),
                "bmc": Source.BMC,
            },
        )

    def list_last_results(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[LastResult]:
        """
        List the result of each check in the newest complete run of every node and suite.

        Only from *since* to *until*, as in `list_newest`. By suite, because the passive
        suites run after every job and say nothing about the other checks.
        """
        return self._select(
            "select node, suite, id, started, overall, name, verdict, reason,"
            " cause, remedy, diagnoses from (select node, suite, id, max(started) started,"
            "   verdict overall, diagnoses from runs where complete"
            "   and started between :since and :until group by node, suite)"
            " join results on run = id",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
            _build_last_results,
        )

    def list_remedies(self, runs: Collection[str]) -> dict[tuple[str, str], Remedy]:
        """Map each of *runs* and its checks to what to do about their results."""
        rows = self._select_rows(
            "select run, name, remedy from results"
            " where run in (select value from json_each(:runs))",
            {"runs": msgspec.json.encode(list(runs)).decode()},
            tuple[str, str, Remedy],
        )
        return {(run, check): remedy for run, check, remedy in rows}

    def list_facts(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[ReportedFacts]:
        """
        List the facts reported of every node from *since* to *until*, oldest first.

        Nodes of one image tell the same: each set of facts is decoded once.
        """
        decode = cache(msgspec.json.Decoder(dict[str, str]).decode)

        @cache
        def parse(moment: object) -> float:
            return msgspec.convert(moment, datetime).timestamp()

        def build(rows: Rows) -> list[ReportedFacts]:
            known = msgspec.convert(rows, list[tuple[str, str, str, str, bytes]])
            return [
                ReportedFacts(
                    node=node,
                    source=source,
                    first=parse(first),
                    last=parse(last),
                    facts=decode(encoded),
                )
                for node, source, first, last, encoded in known
            ]

        return self._select(
            "select node, source, first, last, facts from facts"
            " where last >= :since and first <= :until order by last",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
            build,
        )

    def list_failures(
        self, since: datetime | None = None, until: datetime | None = None
    ) -> list[tuple[str, float]]:
        """List the node and the start, in s since 1970, of each failed run."""
        selected = self._select(
            "select node, started from runs where verdict = 'fail'"
            " and started between :since and :until",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
            lambda rows: msgspec.convert(rows, list[tuple[str, datetime]]),
        )
        return [(node, at.timestamp()) for node, at in selected]

    def list_day_verdicts(
        self, since: datetime, until: datetime
    ) -> list[tuple[str, date, Verdict]]:
        """List each verdict that the runs of a node had on a day (UTC), once."""
        return self._select(
            "select distinct node, substr(started, 1, 10), verdict from runs"
            " where started between :since and :until",
            {"since": _format_time(since, ""), "until": _format_time(until, "9999")},
            lambda rows: msgspec.convert(rows, list[tuple[str, date, Verdict]]),
        )

    def _select_entries(self, which: str, values: Mapping[str, str | int | None]) -> list[RunEntry]:
        return self._select_structs(
            "select id, node, suite, started, seconds, verdict, complete, rounds, reason"  # noqa: S608 - our own words
            f" from runs {which}",
            values,
            RunEntry,
        )

    def _select_structs(
        self, query: str, values: Mapping[str, str | int | None], kind: type[S]
    ) -> list[S]:
        """Return the rows of *query* as values of *kind*, whose fields are the columns."""
        return self._select(query, values, lambda rows: _build_structs(rows, kind))

    def load(self, run: str) -> Run:
        """
        Read the document of *run*: its id, the start of one, or ``last``.

        Raises:
            UnknownNameError: no run has that id.
            ConfigError: several do.
            NoRunsError: *run* is ``last``, and there is none.

        """
        if run == LAST_RUN:
            if not (newest := self._list_newest_ids(1)):
                raise NoRunsError
            return documents.read(self.get_document_path(newest[0]))
        query = "select count(*), min(id) from runs where id >= :run and id < :end"
        begin = run.encode(errors="replace").decode()  # as typed; SQLite takes text alone
        values = {"run": begin, "end": begin + LAST_CHARACTER}
        ((count, first),) = self._select_rows(query, values, tuple[int, str | None])
        is_one = first == run or count == 1  # an id is the first of those that begin with it
        if first is not None and is_one:
            return documents.read(self.get_document_path(first))
        if count:
            newest = self._list_newest_ids(NAMED_RUNS, "where id >= :run and id < :end", values)
            raise ConfigError(
                f"{count} runs begin with {run!r}: type more of one; newest: {', '.join(newest)}"
            )
        raise UnknownNameError("run", run, self._list_newest_ids(NAMED_RUNS))

    def _list_newest_ids(
        self, limit: int, which: str = "", values: Mapping[str, str] = EMPTY
    ) -> list[str]:
        """List the ids of the newest runs: a controller has millions, so nothing else is read."""
        query = f"select id from runs {which} {NEWEST_FIRST_CLAUSE} limit {limit}"  # noqa: S608 - our own words
        wanted = {**values, "now": self._format_latest_time()}
        return [run for (run,) in self._select_rows(query, wanted, tuple[str])]

    def _select_rows(self, query: str, values: Mapping[str, str], kind: type[T]) -> list[T]:
        return self._select(query, values, lambda rows: msgspec.convert(rows, list[kind]))  # type: ignore[valid-type]

    def read_documents(self, entries: Iterable[RunEntry]) -> Iterator[Run]:
        """Read the documents of *entries*; unreadable ones become warnings."""
        for entry in entries:
            try:
                yield documents.read(self.get_document_path(entry.id))
            except StoreError as exc:
                self.warnings.append(str(exc))

    def load_previous_inventory(self, node: str) -> Inventory | None:
        """
        Load the last inventory of *node* that was not refused.

        A run that missed a part is not a reference, or the next run would not miss it.
        """
        query = f"select inventory {REFERENCE_CLAUSE}"
        values = {"node": node, "now": self._format_latest_time()}

        def build(rows: Rows) -> Inventory | None:
            known = msgspec.convert(rows, list[tuple[bytes]])
            return msgspec.json.decode(known[0][0], type=Inventory) if known else None

        return self._select(query, values, build)

    def count_all_runs(self) -> int:
        """Count the runs of all nodes."""
        ((count,),) = self._select_rows("select count(*) from runs", EMPTY, tuple[int])
        return count

    def list_run_nodes(self) -> set[str]:
        """Name the nodes that have a run."""
        query = "select distinct node from runs"
        return {node for (node,) in self._select_rows(query, EMPTY, tuple[str])}

    def count_runs(self, node: str) -> int:
        """Count the runs of *node*; each round counts as one."""
        return self._select(
            "select coalesce(sum(rounds), 0) from runs where node = :node",
            {"node": node},
            lambda rows: msgspec.convert(rows, list[tuple[int]])[0][0],
        )

    def load_carry_overs(self, node: str) -> dict[str, tuple[CarryOver, ...]]:
        """
        Load what each check carries over on *node*: the newest mark of each name.

        An interrupted run is inconclusive, so what it looked at still counts as new. The
        newest is the one that came last, whatever the clock said.
        """
        rows = self._select(
            "select name, mark, value, part from marks where node = :node",
            {"node": node},
            lambda rows: msgspec.convert(rows, list[tuple[str, str, str, str]]),
        )
        carry_overs: dict[str, tuple[CarryOver, ...]] = {}
        for check, *mark in rows:
            carry_overs[check] = (*carry_overs.get(check, ()), CarryOver(*mark))
        return carry_overs

    def list_runs_judging(self, checks: Collection[str], run: Run) -> list[RunEntry]:
        """List the runs of that node before *run* in which *checks* judged parts, newest first."""
        return self._select_entries(
            "where node = :node and started < :before"
            " and exists (select * from results r where r.run = runs.id"
            "   and r.verdict in ('pass', 'warn', 'fail')"
            "   and instr(:checks, '\"' || r.name || '\"'))"
            " order by started desc",
            {
                "node": run.node,
                "before": run.started.isoformat(),
                "checks": msgspec.json.encode(tuple(checks)).decode(),
            },
        )

    def read_part_ids(self, run: str) -> frozenset[str]:
        """Read the ids of the parts in the inventory of *run*."""

        def build(rows: Rows) -> frozenset[str]:
            known = msgspec.convert(rows, list[tuple[bytes]])
            found = [msgspec.json.decode(row[0], type=Inventory) for row in known]
            return frozenset(part.id for inventory in found for part in inventory.parts)

        return self._select("select inventory from runs where id = :run", {"run": run}, build)

    def make_past_lookup(self, node: str, suite: str, check: str, before: str = "9") -> PastValues:
        """
        Return a lookup of what *check* measured on *node* in runs of *suite*, up to *before*.

        Only passes count: if warnings did, a part that has become slow would soon be its
        own baseline.
        """

        def values(metric: str, part: str) -> Sequence[float]:
            until = min(before, self._format_latest_time())
            try:
                return self._select_values(
                    {
                        "node": node,
                        "suite": suite,
                        "name": check,
                        "metric": metric,
                        "part": part,
                        "until": until,
                        "most": MAX_BASELINE_RUNS,
                    }
                )
            except StoreError as exc:  # a run must not fail because its past is missing
                self.warnings.append(str(exc))
                return ()

        return values

    def make_earlier_lookup(self, run: Run) -> Callable[[str], PastValues]:
        """Return a lookup, by the name of a check, of what that node measured before *run*."""
        return partial(self.make_past_lookup, run.node, run.suite, before=run.started.isoformat())

    def _select_values(self, wanted: Mapping[str, str | int | None]) -> Sequence[float]:
        query = (
            "select value from measurements m"
            " join runs on runs.id = m.run"
            " join results r on r.run = m.run and r.name = m.name"
            " where node = :node and suite = :suite and m.name = :name and metric = :metric"
            " and part = :part and value is not null and r.verdict = 'pass'"
            " and started < :until order by started desc limit :most"
        )
        rows = self._select(query, wanted, lambda r: msgspec.convert(r, list[tuple[FiniteFloat]]))
        return [value for (value,) in rows]


def _read_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # another process has deleted it
        return 0


def _format_time(when: datetime | None, without: str) -> str:
    """Format a time in UTC as in the column `started`, so that it can be compared."""
    return without if when is None else when.replace(tzinfo=UTC).isoformat()


def _build_structs(rows: Rows, kind: type[S]) -> list[S]:
    names = kind.__struct_fields__
    return [msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False) for row in rows]


def _build_last_results(rows: Rows) -> list[LastResult]:
    """Build them; the diagnoses of a run are decoded once for all its checks."""
    decode = cache(msgspec.json.Decoder(tuple[Diagnosis, ...]).decode)
    stored = msgspec.convert([row[-1] for row in rows], list[bytes])
    results = _build_structs([(*row[:-1], ()) for row in rows], LastResult)
    return [
        replace(result, diagnoses=tuple(d for d in decode(text) if result.check in d.checks))
        if text != NO_DIAGNOSES
        else result
        for result, text in zip(results, stored, strict=True)
    ]


def _read_whole(paths: Iterable[Path], unread: list[str]) -> Iterator[tuple[Run, int]]:
    """Read the complete runs among *paths*, each with its size in bytes."""
    for path in paths:
        try:
            yield _read_run(path), _read_size(path)
        except StoreError as exc:
            if os.path.lexists(path):  # else another process has deleted it
                unread.append(str(exc))


def _read_run(path: Path) -> Run:
    run = documents.read(path)
    if run.id != path.stem:
        raise StoreError(f"{path} holds run {run.id}: rename it to {run.id}.json, or move it away")
    return run
