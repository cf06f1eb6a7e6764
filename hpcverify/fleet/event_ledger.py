"""The events and the findings of the ledger, and who reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from sqlite3 import Connection

import msgspec
from msgspec import Struct

from hpcverify.events.chain import ChainLink
from hpcverify.events.event import EventKind, StateChange
from hpcverify.fleet import finding_log
from hpcverify.fleet.event_log import (
    HEARTBEAT_FACT,
    AuditEntry,
    KeptEvent,
    LogEnds,
    NewEvent,
    append_event,
    iterate_lines,
    prune_events,
    read_anchor,
    read_chain_end,
    read_log_ends,
)
from hpcverify.fleet.evidence import OUTER_SOURCES, OpenFault
from hpcverify.fleet.finding_log import FindingCount
from hpcverify.fleet.ledger_file import SET_FACT, LedgerFile
from hpcverify.units import convert_time

StandingWording = Callable[[str, str, str], NewEvent | None]
"""Makes the event of what stands: from its key, and its value before and now."""
FILES_FACT = "event_files"
MAX_FILES = 1000
"""Files whose beginnings are known: three years of one a day."""
STANDING_FACT_PREFIX = "standing:"
"""Begins the names of the facts that say what stands, as `record_standing` keeps it."""


class EventReader(Struct, frozen=True):
    """Who gets the events of the ledger, and how many wait."""

    name: str
    pending: int
    oldest: float
    """When the oldest of these happened, in seconds since 1970; 0: none waits."""


class EventLedger(LedgerFile):
    """What the ledger keeps of changes: each is appended in the transaction of the change."""

    # -- findings

    def count_findings(self) -> list[FindingCount]:
        """Count the findings of each check, code and verdict, since ever and now."""
        with self._open_database() as db:
            return finding_log.count_findings(db)

    def list_outer_faults(self, node: str | None = None) -> list[OpenFault]:
        """List what is open of *node*, or of all, by the sources that have no runs."""
        with self._open_database() as db:
            known = finding_log.select_open(db, node).values()
        return [fault for fault in known if fault.source in OUTER_SOURCES]

    # -- events, and their readers

    def record_event(self, new: NewEvent) -> None:
        """Record what changed, but no node."""
        with self._open_database(write=True) as db:
            self._append(db, new)

    def record_heartbeat(self, text: str, days: int) -> None:
        """Prune what all readers have, from before the last *days*, and write the heartbeat."""
        with self._open_database(write=True) as db:
            (read,) = db.execute("select min(number) from cursors").fetchone()
            (queued,) = db.execute("select min(number) - 1 from deliveries").fetchone()
            last = read_chain_end(db).number
            prune_events(db, days, min(n for n in (read, queued, last) if n is not None))
            db.execute(SET_FACT, (HEARTBEAT_FACT, repr(self.clock())))
            oldest = read_anchor(db).number + 1
            self._append(db, NewEvent(kind=EventKind.HEARTBEAT, oldest=oldest, text=text))

    def record_standing(self, name: str, now: Mapping[str, str], describe: StandingWording) -> None:
        """
        Record what stands *now*, each with its value, and the events of what changed.

        *describe* gets what it is, and its value before and now, empty where there is none.
        """
        fact = STANDING_FACT_PREFIX + name
        known = self.read_standing(name)
        if known == now:
            return
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (fact, msgspec.json.encode(dict(now), order="sorted").decode()))
            for key in sorted(known.keys() | now.keys()):
                before, after = known.get(key, ""), now.get(key, "")
                if before != after and (new := describe(key, before, after)):
                    self._append(db, new)

    def read_standing(self, name: str) -> dict[str, str]:
        """Read what stood the last time, with its values."""
        query = "select value from facts where name = ?"
        (known,) = self._select_records(dict[str, str], query, STANDING_FACT_PREFIX + name) or [{}]
        return known

    def read_lines(
        self, after: int, limit: int, where: str = "", *values: object
    ) -> list[tuple[int, bytes]]:
        """Read numbers and lines of events with a later number than *after*, oldest first."""
        with self._open_database() as db:
            return list(iterate_lines(db, after, limit, where, values))

    def read_chain_end(self) -> ChainLink:
        """Read which event the next one comes after."""
        with self._open_database() as db:
            return read_chain_end(db)

    def read_log_ends(self) -> LogEnds:
        """Read what the ledger says of the first and the last event."""
        with self._open_database() as db:
            return read_log_ends(db)

    def read_kept_events(self, after: int, limit: int) -> list[KeptEvent]:
        """Read events with a later number than *after*, with all that is kept of them."""
        query = (
            "select number, cast(line as blob), digest, kind, node, actor, what, at, detail"
            " from events where number > ? order by number limit ?"
        )
        with self._open_database() as db:
            rows = db.execute(query, (after, limit)).fetchall()
            return msgspec.convert(rows, list[KeptEvent])

    def read_anchor(self) -> ChainLink:
        """Read which event the oldest one comes after."""
        with self._open_database() as db:
            return read_anchor(db)

    def has_event(self, link: ChainLink) -> bool:
        """Whether *link* is an event of this ledger, or as old as one that was pruned."""
        digest = self.read_digests(link.number - 1, 1).get(link.number)
        return digest == link.digest or link.number <= self.read_anchor().number

    def read_digests(self, after: int, limit: int) -> dict[int, str]:
        """Read the digests of events with a later number than *after*, by number."""
        query = "select number, digest from events where number > ? order by number limit ?"
        return dict(self._select(query, after, limit))

    def list_readers(self) -> list[EventReader]:
        """List the readers of events, by name, each with what waits for it."""
        query = (
            "select reader, count(events.number), ifnull(min(at), 0) from cursors"
            " left join events on events.number > cursors.number group by reader order by reader"
        )
        return [EventReader(*row) for row in self._select(query)]

    def read_cursors(self) -> dict[str, int]:
        """Read up to which number each reader has the events."""
        return dict(self._select("select reader, number from cursors"))

    def add_reader(self, reader: str) -> int:
        """Keep events for *reader* from now on, and read up to which number it has them."""
        number = self.read_cursors().get(reader)
        if number is not None:
            return number
        with self._open_database(write=True) as db:
            number = read_anchor(db).number
            db.execute("insert or ignore into cursors values (?, ?)", (reader, number))
            return number

    def move_cursor(self, reader: str, number: int) -> None:
        """Record that *reader* has the events up to *number*."""
        self._execute("insert or replace into cursors values (?, ?)", reader, number)

    def record_file(self, number: int) -> None:
        """Record that a file of events begins with *number*."""
        known = self.read_files()
        if number not in known:
            begins = " ".join(map(str, [*known, number][-MAX_FILES:]))
            self._execute(SET_FACT, FILES_FACT, begins)

    def read_files(self) -> list[int]:
        """Read with which numbers files of events begin, the oldest first."""
        return [*map(int, self.read_fact(FILES_FACT).split())]

    def remove_cursor(self, reader: str) -> None:
        """Forget *reader*: nothing is kept for it."""
        if reader in self.read_cursors():
            self._execute("delete from cursors where reader = ?", reader)

    # -- the audit log

    def read_audit(self, node: str | None = None, limit: int = 50) -> list[AuditEntry]:
        """Read the log, of *node* or of all, newest first."""
        rows = self._select(
            "select at, actor, node, what, detail from events where what <> ''"
            " and (?1 is null or node = ?1) order by number desc limit ?2",
            *(node, limit),
        )
        return [AuditEntry(convert_time(at), *row) for at, *row in rows]

    def count_quarantines(self, node: str, since: float) -> int:
        """Count the quarantines of *node* after *since*; as `list_newly_held`."""
        often = (
            "select count(*) from events where node = ? and at > ? and at <= ?"
            " and what in ('quarantined', 'repeat offender')"
        )
        return int(self._select(often, node, since, self.clock())[0][0])

    def _append(self, db: Connection, *events: NewEvent) -> None:
        for new in events:
            append_event(db, new, self.clock(), self.host)

    def _append_transition(self, db: Connection, new: NewEvent, reason: str, by: str) -> None:
        number = append_event(db, new, self.clock(), self.host)
        row = (number, reason, by)
        db.execute("insert into deliveries (number, reason, decided_by) values (?, ?, ?)", row)

    def _append_brake(
        self,
        db: Connection,
        kind: EventKind,
        before: str,
        after: str,
        why: str,
        *,
        subject: str = "",
        by: str = "",
    ) -> None:
        what = f"check {after}" if subject else kind.value.replace(".", " ")
        new = NewEvent(
            kind=kind,
            by=by,
            change=StateChange(subject=subject, before=before, after=after),
            what=what,
            detail=why,
            text=why,
        )
        self._append_transition(db, new, why, by)
