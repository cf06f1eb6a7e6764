"""
The log of events in the ledger: what happened, who did it, and the line that goes out.

Everything here runs in the transaction of the change. A line is never written anew. Only
the oldest ones are pruned, and the end of what is gone is kept as an anchor, so that the
chain over the rest can still be verified.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator
from datetime import UTC, datetime
from sqlite3 import Connection

import msgspec
from msgspec import Struct

from hpcverify.events.chain import CHAIN_START, ChainLink, compute_digest
from hpcverify.events.event import (
    SCHEMA,
    Actor,
    Command,
    Event,
    EventKind,
    FindingState,
    RunOutcome,
    StateChange,
)
from hpcverify.events.severity import grade_event
from hpcverify.summary.printable import escape_json
from hpcverify.units import UtcTime

CONTROLLER_ACTOR = "hpcverify"
"""The actor when no person acted."""
FORGOTTEN_STATE = "forgotten"
"""The state of a node that Slurm no longer has and a person forgot."""
BREAKER_CLOSED, BREAKER_TRIPPED = "closed", "tripped"
CHECK_TRUSTED, CHECK_DOUBTED = "trusted", "doubted"
IDENTITY_FACT = "identity"
DETAIL_KEY_FACT = "detail_key"
HEARTBEAT_FACT = "heartbeat"
"""When the last heartbeat was written, in seconds since 1970."""
SPARE_HEARTBEATS = 7
"""Heartbeats that a clock which jumps may add within the time that events are kept."""
ANCHOR_FACT = "events_anchor"
"""The number and the digest of the last event that was pruned."""
EVENT_TABLES = """
create table events (
    number integer primary key, at real not null, kind text not null, node text not null,
    actor text not null, what text not null, detail text not null, line blob not null,
    digest text not null
);
create index events_by_node on events (node, number);
create index events_by_time on events (at);
create trigger events_stay before update on events
begin select raise(abort, 'the audit log is not rewritten'); end;
create trigger events_remain before delete on events
when old.number > ifnull(
    (select cast(value as integer) from facts where name = 'events_anchor'), 0)
begin select raise(abort, 'the audit log is not shortened'); end;
create trigger events_grow before insert on events
when new.number <> 1 + coalesce((select max(number) from events),
    (select cast(value as integer) from facts where name = 'events_anchor'), 0)
begin select raise(abort, 'the audit log is not rewritten'); end;
create table deliveries (
    number integer primary key, reason text not null, decided_by text not null,
    tries integer not null default 0
);
create table cursors (reader text primary key, number integer not null);
create table run_verdicts (
    node text not null, suite text not null, verdict text not null, primary key (node, suite)
);
"""
KIND_BY_WORDS = {
    "drain": EventKind.HOLD_CHANGED,
    "resume": EventKind.HOLD_CHANGED,
    "reserve": EventKind.HOLD_CHANGED,
    "unreserve": EventKind.HOLD_CHANGED,
    "restore": EventKind.HOLD_CHANGED,
    "wipe": EventKind.HOLD_CHANGED,
    "held": EventKind.HOLD_CHANGED,
    "released": EventKind.HOLD_CHANGED,
    "hold confirmed": EventKind.HOLD_CHANGED,
    "took over hook drain": EventKind.HOLD_CHANGED,
    "undid hook drain": EventKind.HOLD_CHANGED,
    "verified": EventKind.RUN_FINISHED,
    "incomplete": EventKind.RUN_FINISHED,
    "verification ended": EventKind.VERIFICATION_ENDED,
    "breaker tripped": EventKind.BREAKER_TRIPPED,
    "breaker reset": EventKind.BREAKER_RESET,
    "check doubted": EventKind.CHECK_DOUBTED,
    "check trusted": EventKind.CHECK_TRUSTED,
}
"""The kinds of events that change no state of a node, by what was done."""


class NewEvent(Struct, frozen=True, kw_only=True):
    """An event before it has its place in the log."""

    kind: EventKind
    by: str = ""
    """The person who caused it, if a person did."""
    node: str = ""
    change: StateChange | None = None
    finding: FindingState | None = None
    run: RunOutcome | None = None
    command: Command | None = None
    what: str = ""
    oldest: int = 0
    detail: str = ""
    """What `hpcverify nodes` shows beside *what*. It may quote others, and stays here."""
    text: str = ""
    """What goes out."""


class LogEnds(Struct, frozen=True, kw_only=True):
    """What the ledger says of the first and the last event."""

    anchor: ChainLink
    """The event that the first one comes after."""
    heartbeat: bytes
    """The line of the last heartbeat, which says which event was the first then."""
    given: int
    """The number up to which readers and the site's program were given events."""
    key: str
    """That of the digests of details."""


class KeptEvent(Struct, frozen=True, array_like=True):
    """An event as it is kept: its line, and the columns beside it."""

    number: int
    line: bytes
    digest: str
    kind: str
    node: str
    actor: str
    what: str
    at: float
    detail: str


class AuditEntry(Struct, frozen=True):
    """An event, as `hpcverify nodes` shows it."""

    time: UtcTime | None
    actor: str
    node: str
    what: str
    detail: str


def append_event(db: Connection, new: NewEvent, at: float, host: str) -> int:
    """Append *new*, which happened *at* a time, to the log; return its number."""
    before = read_chain_end(db)
    number = before.number + 1
    event = Event(
        schema=SCHEMA,
        number=number,
        # a ledger that is restored from a backup gives its last numbers again, and not their ids
        id=f"{read_identity(db)}-{number}-{secrets.token_hex(4)}",
        time=datetime.fromtimestamp(at, UTC),
        kind=new.kind,
        severity=grade_event(new.kind, new.change, new.finding, new.run),
        actor=Actor(name=new.by or CONTROLLER_ACTOR, host=host, is_person=bool(new.by)),
        previous=before.digest,
        node=new.node,
        change=new.change,
        finding=new.finding,
        run=new.run,
        command=new.command,
        what=new.what,
        oldest=new.oldest,
        detail_digest=compute_detail_digest(
            new.detail, _read_or_make_secret(db, DETAIL_KEY_FACT, 32)
        ),
        text=new.text,
    )
    line = escape_json(msgspec.json.encode(event))
    db.execute(
        "insert into events values (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            number,
            at,
            new.kind.value,
            new.node,
            event.actor.name,
            new.what,
            new.detail,
            line,
            compute_digest(line),
        ),
    )
    return number


def read_identity(db: Connection) -> str:
    """Read the id of the ledger, made with its first event."""
    return _read_or_make_secret(db, IDENTITY_FACT, 8)


def compute_detail_digest(detail: str, key: str) -> str:
    """Compute what an event has of *detail*: without *key*, nobody can guess and try that."""
    return hmac.new(key.encode(), detail.encode(), "sha256").hexdigest() if detail else ""


def _read_or_make_secret(db: Connection, fact: str, size: int) -> str:
    if not (secret := _read_secret(db, fact)):
        secret = secrets.token_hex(size)
        db.execute("insert into facts values (?, ?)", (fact, secret))
    return secret


def _read_secret(db: Connection, fact: str) -> str:
    row = db.execute("select value from facts where name = ?", (fact,)).fetchone()
    return str(row[0]) if row else ""


def read_chain_end(db: Connection) -> ChainLink:
    """Read which event the next one comes after."""
    last = "select number, digest from events order by number desc limit 1"
    row = db.execute(last).fetchone()
    return ChainLink(*row) if row else read_anchor(db)


def read_log_ends(db: Connection) -> LogEnds:
    """Read what the ledger says of the first and the last event."""
    row = db.execute(
        "select cast(line as blob) from events where node = '' and kind = ?"
        " order by number desc limit 1",
        (EventKind.HEARTBEAT,),
    ).fetchone()
    (given,) = db.execute(
        "select ifnull(max(number), 0)"
        " from (select number from cursors union select number from deliveries)"
    ).fetchone()
    return LogEnds(
        anchor=read_anchor(db),
        heartbeat=row[0] if row else b"",
        given=given,
        key=_read_secret(db, DETAIL_KEY_FACT),
    )


def read_anchor(db: Connection) -> ChainLink:
    """Read which event the oldest one in the log comes after."""
    row = db.execute("select value from facts where name = ?", (ANCHOR_FACT,)).fetchone()
    if row is None:
        return CHAIN_START
    number, digest = row[0].split()
    return ChainLink(int(number), digest)


def prune_events(db: Connection, days: int, reserved: int) -> None:
    """
    Prune events from before the last *days* with a heartbeat, up to the number *reserved*.

    Days are counted by heartbeats: a clock that is wrong makes no event older than it is.
    """
    row = db.execute(
        "select max(number) from events where node = '' and kind = ?"
        " group by cast(at / 86400 as integer) order by 1 desc limit 1 offset ?",
        (EventKind.HEARTBEAT, days + SPARE_HEARTBEATS - 1),
    ).fetchone()
    kept = min(row[0], reserved + 1) if row else 0
    last = db.execute("select digest from events where number = ?", (kept - 1,)).fetchone()
    if last:
        value = f"{kept - 1} {last[0]}"
        db.execute("insert or replace into facts values (?, ?)", (ANCHOR_FACT, value))
        db.execute("delete from events where number < ?", (kept,))


def iterate_lines(
    db: Connection, after: int, limit: int, where: str = "", values: tuple[object, ...] = ()
) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and lines of at most *limit* events with a later number than *after*."""
    chosen = f"from events where number > ? {where} order by number limit ?"
    query = f"select number, cast(line as blob) {chosen}"
    yield from db.execute(query, (after, *values, limit))
