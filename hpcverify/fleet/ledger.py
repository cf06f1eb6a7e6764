"""
What the controller has decided and done about nodes, and why: an SQLite file.

It cannot be rebuilt from run documents: keep it. Every change of a node is written
together with its event, or not at all. A write to the scheduler is recorded as an intent
before and gets an outcome after, so that the successor of a controller that died knows
what may have been done.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from sqlite3 import Connection
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

from hpcverify.errors import StoreError
from hpcverify.events.event import Event, EventKind, RunOutcome, StateChange
from hpcverify.fleet import counters, finding_log
from hpcverify.fleet.counters import COUNTER_TABLES, CounterLedger
from hpcverify.fleet.event_ledger import EventLedger
from hpcverify.fleet.event_log import (
    BREAKER_CLOSED,
    BREAKER_TRIPPED,
    CHECK_DOUBTED,
    CHECK_TRUSTED,
    EVENT_TABLES,
    FORGOTTEN_STATE,
    IDENTITY_FACT,
    KIND_BY_WORDS,
    NewEvent,
)
from hpcverify.fleet.evidence import Evidence
from hpcverify.fleet.finding_log import FINDING_TABLES
from hpcverify.fleet.holds import Intent
from hpcverify.fleet.ledger_file import SET_FACT
from hpcverify.fleet.outages import NodeOutage, follow_outage
from hpcverify.fleet.part_counts import PartCount
from hpcverify.fleet.states import DAY_S, Node, NodeChange, State, Ticket
from hpcverify.fleet.transitions import forget_evidence
from hpcverify.isolation.judge import PairSpeed
from hpcverify.isolation.links import KnownLinks, LinkHistory, LinkPair
from hpcverify.model import Run, Source, Verdict
from hpcverify.records import documents
from hpcverify.records.sqlite import create_tables, read_version
from hpcverify.slurm.submit import Ending
from hpcverify.units import UtcTime

TABLES = f"""
create table nodes (name text primary key, record blob not null);
create table tickets (
    number integer primary key autoincrement, node text not null, token text not null,
    purpose text not null, suite text not null, made real not null,
    job integer not null default 0, ended real not null default 0,
    ending text not null default '', run text not null default ''
);
create index tickets_open on tickets (ended, node);
-- each run that comes in asks for its ticket, and a year of 10,000 nodes has millions
create index tickets_by_node on tickets (node, token);
create table judged (run text primary key, at real not null);
create table outcomes (
    node text not null, name text not null, at real not null, failed integer not null,
    primary key (node, name)
);
create table holds (at real not null, node text not null);
create table intents (
    number integer primary key autoincrement, at real not null, node text not null,
    act text not null, reason text not null, reason_before text not null,
    outcome text not null default '', drain_after text
);
create index intents_by_node on intents (node, number);
create table facts (name text primary key, value text not null);
create table node_links (
    node text primary key, kind text not null, switch text not null,
    tried real not null default 0
);
create table switch_links (
    one text not null, other text not null, tried real not null, primary key (one, other)
);
create table pair_speeds (
    at real not null, kind text not null, operation text not null, size integer not null,
    busbw real not null
);
create table outages (
    number integer primary key, node text not null, began real not null,
    ended real not null, record blob not null
);
create index outages_by_node on outages (node, ended);
{EVENT_TABLES}{FINDING_TABLES}{COUNTER_TABLES}"""
LEDGER_VERSION = 1
"""The version of `TABLES`."""
LEDGER_FILE_NAME = "fleet.sqlite"
"""The ledger, in the state directory of the controller."""
BREAKER_RETENTION_S = 90 * DAY_S
"""How long what the breaker counts is kept: longer than any useful window."""
MAX_RUN_AGE_S = 14 * DAY_S
"""
How old a run may be that nobody ordered: as long as the holidays of whoever looks after
the controller. A thousand nodes whose hooks leave 300 runs a day each make 4 million
rows of `judged` in that time, of 70 bytes.
"""
PAIR_SPEED_RETENTION_S = 28 * DAY_S
"""How long it is kept what pairs of nodes reached: with a new NCCL they reach something else."""
MIN_PAIR_SPEEDS = 8
"""From so many on, their median is what is usual."""
RESET_FACT = "reset"
"""The name of the fact that says when the breaker was last reset."""
BREAKER_FACT = "tripped"
"""The name of the fact with the reason why the breaker is tripped."""
SECRET_FACT = "secret"  # noqa: S105 - its name
MARK_DIGITS = 12
"""The digits of a run's id after its date."""
DAYS_FACT = "days"
"""The fact with the last days on which runs were judged, in the order in which they were seen."""
SPARE_DAYS = 3
"""Days more that are kept: so many of them may be those of a wrong clock."""
DOUBTS_FACT = "doubted"
"""The fact that names the doubted checks, as JSON: check and why."""
FOUND_ACT = "found"
"""The act of a row that is no intent, but a drain that was found."""
SEED_FACT = "seed"
FORGOTTEN_FACT_PREFIX = "forgotten:"
"""Begins the names of the facts that say when a node was forgotten."""
NOTICE_FACT_PREFIX = "notice:"
"""Begins the names of the facts that say what was reported already."""
NODE_TABLES = (
    ("nodes", "name"),
    ("outcomes", "node"),
    ("holds", "node"),
    ("intents", "node"),
    ("node_links", "node"),
    ("outages", "node"),
    ("part_counts", "node"),
    ("run_verdicts", "node"),
)
"""What is known of a node, by table and column."""
MALFUNCTION_FACT_PREFIX = "malfunction:"
"""Begins the names of the facts that say which convenience of the controller does not work."""
MAX_NODE_SUITES = 32
"""Suites of a node whose last verdict is kept: a node may name what it likes."""
HOST_FACT = "host"
BEGAN_FACT = "began"


class Malfunction(Struct, frozen=True):
    """A convenience of the controller that did not work the last time."""

    name: str
    since: UtcTime
    """When it first failed."""
    why: str


class PendingTransition(Struct, frozen=True):
    """An event that the site's own program is to get."""

    event: Event
    change: StateChange
    reason: str
    """Why it changed, in full."""
    by: str
    """The person who decided it, if a person did."""


class LedgerChange(Struct, frozen=True):
    """A node as a run has changed it, with its line of the audit log, if it gets one."""

    node: Node
    run: str
    outcomes: Mapping[str, bool]
    """Whether each check failed."""
    what: str
    detail: str = ""
    ticket: int = 0
    """The one that the run used."""
    held: bool = False
    """Whether the node is newly held, which the breaker counts."""
    parts: tuple[PartCount, ...] = ()
    """What the run counted."""
    evidence: Evidence | None = None
    """What it says of the findings of the node."""
    closes: frozenset[Source] = frozenset()
    """The sources whose findings it may close."""


class Ledger(EventLedger, CounterLedger):
    """Reads and writes ``fleet.sqlite`` in the state directory *state*."""

    def __init__(self, state: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(state / LEDGER_FILE_NAME, clock)
        try:
            state.mkdir(parents=True, exist_ok=True)
            self.path.touch(mode=0o600)  # the tokens are in it
        except PermissionError as exc:
            raise StoreError(
                f"the ledger {self.path} is readable by its owner only: be that user, or root"
            ) from exc
        except OSError as exc:
            raise StoreError(
                f"the state directory {state} cannot be written: {exc.strerror}; "
                "set HPCVERIFY_STATE to a writable one"
            ) from exc
        with self._open_database() as db:
            current = read_version(db)
        if current != LEDGER_VERSION:
            with self._open_database(write=True) as db:
                # Another process may have done it while this one waited for the lock.
                create_tables(db, self.path, TABLES, LEDGER_VERSION)

    # -- nodes

    def list_nodes(self) -> dict[str, Node]:
        """List all known nodes, by name."""
        nodes = self._select_records(Node, "select record from nodes order by name")
        return {node.name: node for node in nodes}

    def read_node(self, name: str) -> Node:
        """Read the node *name*; a new one if it is unknown."""
        with self._open_database() as db:
            return _read_node(db, name)

    def put(
        self,
        node: Node,
        what: str,
        detail: str = "",
        actor: str = "",
        *,
        text: str = "",
        held: bool = False,
    ) -> None:
        """Write *node* and its event; *held* as in `LedgerChange`, the rest as in `NewEvent`."""
        with self._open_database(write=True) as db:
            if held:
                db.execute("insert into holds values (?, ?)", (self.clock(), node.name))
            self._put(db, node, what, detail, actor, text=text)

    def put_all(self, changes: Iterable[NodeChange]) -> None:
        """Write many nodes and their events together."""
        if not (listed := list(changes)):
            return
        with self._open_database(write=True) as db:
            for change in listed:
                if change.lost:
                    self._record_found_drain(db, change.node.name, "")
                self._put(db, change.node, change.what, change.detail)

    def add_nodes(self, names: Iterable[str]) -> None:
        """Add a row for each of *names*, which the scheduler has just listed first."""
        now = self.clock()
        new = [Node(name=name, first_seen_at=now) for name in sorted(names)]
        rows = [(node.name, msgspec.json.encode(node)) for node in new]
        with self._open_database(write=True) as db:
            db.executemany("insert or ignore into nodes values (?, ?)", rows)

    def record_judgments(self, judgments: Iterable[LedgerChange]) -> int:
        """Write what runs have changed, all or nothing; count those not judged before."""
        now, count = self.clock(), 0
        with self._open_database(write=True) as db:
            for judgment in judgments:
                new = db.execute("insert or ignore into judged values (?, ?)", (judgment.run, now))
                if new.rowcount:
                    self._record_judgment(db, judgment, now)
                    count += 1
            _record_day(db, now)
            end = _find_end(db, MAX_RUN_AGE_S)
            old = (_format_run_prefix(end), end)
            db.execute("delete from judged where run < ? and at < ?", old)
            end = _find_end(db, BREAKER_RETENTION_S)
            for counted in ("outcomes", "holds"):
                db.execute(f"delete from {counted} where at < ?", (end,))  # noqa: S608 - our own words
        return count

    def _record_judgment(self, db: Connection, each: LedgerChange, now: float) -> None:
        db.executemany(
            "insert or replace into outcomes values (?, ?, ?, ?)",
            [(each.node.name, name, now, failed) for name, failed in each.outcomes.items()],
        )
        db.executemany(
            "insert or replace into part_counts values (?, ?, ?, ?)", map(astuple, each.parts)
        )
        db.execute("update tickets set run = ? where number = ?", (each.run, each.ticket))
        if each.held:
            db.execute("insert into holds values (?, ?)", (now, each.node.name))
        what, keep = each.what, frozenset[str]()
        if found := each.evidence:
            what = self._record_run(db, each, found) if found.run else what
            keep = frozenset(finding.uid for finding in found.found)
            follow = finding_log.follow_findings(db, each.node, found, each.closes, now)
            self._append(db, *follow)
        ordered, closes = bool(each.ticket), each.closes
        self._put(db, each.node, what, each.detail, ordered=ordered, keep=keep, closes=closes)

    def _record_run(self, db: Connection, each: LedgerChange, found: Evidence) -> str:
        """Write the event of a run, if it is news; return the words that are left to be said."""
        node = each.node
        stays = _get_shown(_read_node(db, node.name)) == _get_shown(node)
        if not each.ticket and not _is_new_verdict(db, node.name, found.suite, found.verdict):
            return each.what
        outcome = RunOutcome(
            id=found.run, suite=found.suite, verdict=found.verdict, coverage=found.coverage
        )
        said = each.what if stays and each.ticket else ""
        detail = each.detail if said else ""
        kind = EventKind.RUN_FINISHED
        new = NewEvent(kind=kind, node=node.name, run=outcome, what=said, detail=detail)
        self._append(db, new)
        return "" if said else each.what

    def is_judged(self, run: str) -> bool:
        """Whether *run* was judged already."""
        return bool(self._select("select 1 from judged where run = ?", run))

    def find_judged(self, runs: Iterable[str]) -> set[str]:
        """Find which of *runs* were judged already."""
        wanted = msgspec.json.encode(list(runs)).decode()
        known = "select run from judged where run in (select value from json_each(?))"
        return {run for (run,) in self._select(known, wanted)}

    def read_judged_time(self, run: str) -> float:
        """Say when *run* was judged, 0 if it was not."""
        return float(self._select("select total(at) from judged where run = ?", run)[0][0])

    def is_timely(self, run: Run) -> bool:
        """Whether the date of *run* is no more than `MAX_RUN_AGE_S` back and a day ahead."""
        now = self.clock()
        least, most = now - MAX_RUN_AGE_S, now + DAY_S
        return _format_run_prefix(least) <= run.id <= _format_run_prefix(most)

    def explain_untimely(self, run: Run) -> str:
        """
        Say why *run* is not to be judged, if we cannot know whether it was before.

        We forget that a run was judged once its id is dated more than `MAX_RUN_AGE_S`
        back and it was judged that long ago. So a run with such a date is refused, and
        so is one dated more than a day ahead of our clock: it could come again after it
        was forgotten. A run that is the first to use its ticket is new, however wrong
        the clock of its node may be.
        """
        if self.is_timely(run):
            return ""
        ticket = self.find_ticket(run.node, run.token)
        if ticket is not None and not ticket.run and ticket.suite == run.suite:
            return ""
        return (
            f"it is dated {run.id[:8]}, more than {MAX_RUN_AGE_S / DAY_S:g} days ago or ahead "
            "of our clock: check the clock of the node"
        )

    def forget(self, node: str, actor: str, reason: str) -> None:
        """Forget *node*, which is gone; its lines in the audit log stay."""
        known = self.read_node(node)
        now = self.clock()
        with self._open_database(write=True) as db:
            for table, column in NODE_TABLES:
                db.execute(f"delete from {table} where {column} = ?", (node,))  # noqa: S608 - our own words
            db.execute(
                "update tickets set ended = ?, ending = ? where node = ? and ended = 0",
                (now, FORGOTTEN_STATE, node),
            )
            db.execute(SET_FACT, (FORGOTTEN_FACT_PREFIX + node, repr(now)))
            change = StateChange(subject="", before=known.shown_state, after=FORGOTTEN_STATE)
            forgotten = NewEvent(
                kind=EventKind.NODE_CHANGED,
                by=actor,
                node=node,
                change=change,
                what="forget",
                detail=reason,
                text=reason,
            )
            counters.count(db, "hpcverify_transitions_total", (known.shown_state, FORGOTTEN_STATE))
            self._append(db, *finding_log.close_findings(db, node))
            self._append_transition(db, forgotten, reason, actor)

    def list_forgotten(self) -> dict[str, float]:
        """Say when nodes were last forgotten: what ran there before is not shown."""
        rows = self._select("select name, value from facts where name glob 'forgotten:*'")
        return {name.removeprefix(FORGOTTEN_FACT_PREFIX): float(at) for name, at in rows}

    def list_outages(self, since: float = 0.0) -> list[NodeOutage]:
        """List the outages that were not over by *since*, the oldest first."""
        query = "select record from outages where ended = 0 or ended > ? order by began, number"
        return self._select_records(NodeOutage, query, since)

    # -- tickets

    def issue_ticket(self, node: str, purpose: str, suite: str) -> Ticket:
        """Issue a ticket: the intent to verify *node*, before a job is submitted."""
        with self._open_database(write=True) as db:
            made = db.execute(
                "insert into tickets (node, token, purpose, suite, made)"
                " values (?, ?, ?, ?, ?) returning *",
                (node, secrets.token_hex(16), purpose, suite, self.clock()),
            )
            return Ticket(*made.fetchone())

    def record_job(self, ticket: Ticket, job: int) -> None:
        """Record the number of its job."""
        self._execute("update tickets set job = ? where number = ?", job, ticket.number)

    def close_ticket(self, ticket: Ticket, ending: str) -> None:
        """Record how it ended; the first record is final. An event if no run says so."""
        with self._open_database(write=True) as db:
            done = db.execute(
                "update tickets set ended = ?, ending = ? where number = ? and ended = 0"
                " returning run",
                (self.clock(), ending, ticket.number),
            ).fetchone()
            if done and not (done[0] and ending == Ending.FINISHED):
                detail = f"ticket {ticket.number}, job {ticket.job}: {ending}"
                ended = NewEvent(
                    kind=EventKind.VERIFICATION_ENDED,
                    node=ticket.node,
                    what="verification ended",
                    detail=detail,
                    text=detail,
                )
                self._append(db, ended)

    def list_open_tickets(self) -> list[Ticket]:
        """List the open tickets, oldest first."""
        return self._select_tickets("where ended = 0 order by number")

    def find_tickets(self, numbers: Iterable[int]) -> list[Ticket]:
        """Find the tickets of these *numbers*."""
        wanted = ",".join(map(str, numbers))
        return self._select_tickets(f"where number in ({wanted}) order by number")

    def find_ticket(self, node: str, token: str) -> Ticket | None:
        """Find the ticket of *node* with *token*, if we issued it."""
        if not token:
            return None
        tickets = self._select_tickets("where node = ? and token = ?", node, token)
        return tickets[0] if tickets else None

    def find_last_ended(self) -> dict[str, Ticket]:
        """Find each node's newest ticket among those that ended."""
        newest = "where number in (select max(number) from tickets"
        tickets = self._select_tickets(f"{newest} where ended > 0 group by node)")
        return {ticket.node: ticket for ticket in tickets}

    def read_last_ticket_number(self) -> int:
        """Say the number of the newest ticket."""
        return self._select("select max(number) from tickets")[0][0] or 0

    def _select_tickets(self, where: str, *values: Any) -> list[Ticket]:
        rows = self._select(f"select * from tickets {where}", *values)  # noqa: S608 - our own words
        return [Ticket(*row) for row in rows]

    # -- links between nodes

    def record_fabric(self, nodes: Mapping[str, tuple[str, str]]) -> None:
        """Record the kind and the switch, "" if unknown, of all *nodes* that sweeps test."""
        with self._open_database(write=True) as db:
            known = [name for (name,) in db.execute("select node from node_links")]
            gone = [(name,) for name in known if name not in nodes]
            db.executemany("delete from node_links where node = ?", gone)
            db.executemany(
                "insert into node_links (node, kind, switch) values (?, ?, ?) on conflict (node)"
                " do update set kind = excluded.kind, switch = excluded.switch",
                [(name, kind, switch) for name, (kind, switch) in nodes.items()],
            )

    def record_tried_links(self, pairs: Iterable[LinkPair], at: float) -> None:
        """Record that the links of *pairs* were tried *at* a time, unless they were later."""
        tried = list(pairs)
        with self._open_database(write=True) as db:
            db.executemany(
                "update node_links set tried = max(tried, ?) where node = ?",
                [(at, node) for pair in tried for node in pair.nodes],
            )
            db.executemany(
                "insert into switch_links values (?, ?, ?) on conflict (one, other)"
                " do update set tried = max(tried, excluded.tried)",
                [(*pair.switches, at) for pair in tried if pair.switches],
            )

    def record_pair_speeds(self, kind: str, speeds: Iterable[PairSpeed], at: float) -> None:
        """Record what pairs of nodes of a *kind* reached *at* a time, once."""
        rows = [(at, kind, speed.operation, speed.size, speed.busbw) for speed in speeds]
        with self._open_database(write=True) as db:
            oldest = _find_end(db, PAIR_SPEED_RETENTION_S)
            db.execute("delete from pair_speeds where at < ?", (oldest,))
            db.execute("delete from pair_speeds where at = ? and kind = ?", (at, kind))
            db.executemany("insert into pair_speeds values (?, ?, ?, ?, ?)", rows)

    def forget_pair_speeds(self, kind: str) -> None:
        """Forget what pairs of a *kind* have reached."""
        self._execute("delete from pair_speeds where kind = ?", kind)

    def read_usual_speeds(self, kind: str) -> tuple[PairSpeed, ...]:
        """Read what pairs of a *kind* usually reach, once enough have passed: the medians."""
        rows = self._select(
            "select operation, size, busbw from pair_speeds where kind = ?"
            " order by operation, size",
            kind,
        )
        by_size = groupby(rows, key=lambda row: row[:2])
        values = [(key, [busbw for *_, busbw in group]) for key, group in by_size]
        return tuple(
            PairSpeed(operation, size, median(group))
            for (operation, size), group in values
            if len(group) >= MIN_PAIR_SPEEDS
        )

    def read_links(self) -> KnownLinks:
        """Read what the last sweep saw of the fabric, and when links were tried."""
        rows = self._select("select node, kind, switch, tried from node_links")
        between = self._select("select one, other, tried from switch_links")
        return KnownLinks(
            kinds={node: kind for node, kind, _, _ in rows},
            switches={node: switch for node, _, switch, _ in rows if switch},
            history=LinkHistory(
                nodes={node: tried for node, _, _, tried in rows},
                switches={(near, other): tried for near, other, tried in between},
            ),
        )

    # -- intents, as `holds.apply_hold` writes them

    def record_intent(self, node: str, act: str, reason: str, before: str = "") -> int:
        """Record what is about to be done, and the node's reason *before* it."""
        with self._open_database(write=True) as db:
            made = db.execute(
                "insert into intents (at, node, act, reason, reason_before) values (?, ?, ?, ?, ?)",
                (self.clock(), node, act, reason, before),
            )
            assert made.lastrowid is not None  # noqa: S101 - narrows the type
            return made.lastrowid

    def record_outcome(self, intent: int, text: str, drain_after: str | None = None) -> None:
        """Record the outcome, here and in the audit log; see `Intent.drain_after`."""
        with self._open_database(write=True) as db:
            node, act, reason = db.execute(
                "update intents set outcome = ?, drain_after = ? where number = ?"
                " returning node, act, reason",
                (text, drain_after, intent),
            ).fetchone()
            # What the node is now mostly shows the reason.
            detail = text if reason in text else f"{text}: {reason}"
            kind = EventKind.HOLD_CHANGED
            self._append(db, NewEvent(kind=kind, node=node, what=act, detail=detail))

    def record_found_drain(self, node: str, drain_reason: str) -> None:
        """Record which drain of ours was found on *node*; empty: none."""
        with self._open_database(write=True) as db:
            self._record_found_drain(db, node, drain_reason)

    def list_intents(self, node: str) -> list[Intent]:
        """List every write to *node* that was ever intended, in order."""
        rows = self._select(
            "select number, act, reason, reason_before, drain_after, at from intents"
            " where node = ? order by number",
            node,
        )
        return [Intent(*row) for row in rows]

    def has_given_hold_id(self, node: str, hold_id: str) -> bool:
        """Whether a write of ours was ever to put *hold_id* on *node*."""
        query = "select 1 from intents where node = ? and instr(reason, ?) = 1 limit 1"
        return bool(self._select(query, node, hold_id))

    def read_last_write_time(self, node: str) -> float:
        """Say when the last write to *node* was about to be made; 0: never."""
        last = "select max(at) from intents where node = ? and act <> ?"
        return float(self._select(last, node, FOUND_ACT)[0][0] or 0)

    # -- the breaker

    def list_newly_held(self, since: float) -> set[str]:
        """
        Name the nodes newly held after *since* and the last reset of the breaker.

        Times in the future, from a clock that was later set back, do not count.
        """
        newly = "select distinct node from holds where at > ? and at <= ?"
        since = max(since, self._read_reset_time())
        return {node for (node,) in self._select(newly, since, self.clock())}

    def read_outcomes(self, since: float) -> dict[str, dict[str, bool]]:
        """Map check and node to whether the node failed it; as `list_newly_held`."""
        outcomes: dict[str, dict[str, bool]] = {}
        lately = "select name, node, failed from outcomes where at > ? and at <= ?"
        since = max(since, self._read_reset_time())
        for name, node, failed in self._select(lately, since, self.clock()):
            outcomes.setdefault(name, {})[node] = bool(failed)
        return outcomes

    def read_passes(self, check: str) -> dict[str, float]:
        """Say when each node passed *check* that did so last, whenever the breaker was reset."""
        passed = "select node, at from outcomes where name = ? and not failed and at <= ?"
        return dict(self._select(passed, check, self.clock()))

    def _read_reset_time(self) -> float:
        """Say when the breaker was last reset; 0 if never, or by a clock that was ahead."""
        at = float(self.read_fact(RESET_FACT) or 0)
        return at if at <= self.clock() else 0.0

    def read_trip_reason(self) -> str:
        """Say why the breaker is tripped; empty if it is not."""
        return self.read_fact(BREAKER_FACT)

    def trip(self, why: str) -> None:
        """Trip the breaker: no new holds until a person resets it."""
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (BREAKER_FACT, why))
            self._append_brake(db, EventKind.BREAKER_TRIPPED, BREAKER_CLOSED, BREAKER_TRIPPED, why)

    def reset(self, actor: str, reason: str) -> None:
        """Reset the breaker: failures count from now on, earlier ones no more."""
        nodes, now = self.list_nodes().values(), self.clock()
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (BREAKER_FACT, ""))
            db.execute(SET_FACT, (RESET_FACT, repr(now)))
            for before in nodes:
                if (node := forget_evidence(before, now)) != before:
                    what = "" if node.state is before.state else node.state.value
                    self._put(db, node, what, f"breaker reset: {reason}")
            states = BREAKER_TRIPPED, BREAKER_CLOSED
            self._append_brake(db, EventKind.BREAKER_RESET, *states, reason, by=actor)

    def record_doubts(self, doubts: Mapping[str, str]) -> list[str]:
        """Record which checks are doubted now, and why; return the new ones."""
        query = "select value from facts where name = ? and value != ''"
        (known,) = self._select_records(dict[str, str], query, DOUBTS_FACT) or [{}]
        new, over = doubts.keys() - known.keys(), known.keys() - doubts.keys()
        if not new and not over:
            return []
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (DOUBTS_FACT, msgspec.json.encode(dict(doubts)).decode()))
            for check in sorted(new):
                states = CHECK_TRUSTED, CHECK_DOUBTED
                why = doubts[check]
                self._append_brake(db, EventKind.CHECK_DOUBTED, *states, why, subject=check)
            for check in sorted(over):
                states = CHECK_DOUBTED, CHECK_TRUSTED
                why = f"{check} fails on few enough nodes again"
                self._append_brake(db, EventKind.CHECK_TRUSTED, *states, why, subject=check)
        return sorted(new)

    def record_notice(self, subject: str, text: str) -> bool:
        """Record what there is to tell of *subject*, if anything; return whether it is new."""
        if self.read_fact(NOTICE_FACT_PREFIX + subject) == text:
            return False
        self._execute(SET_FACT, NOTICE_FACT_PREFIX + subject, text)
        return bool(text)

    def record_malfunction(self, name: str, why: str) -> None:
        """Record *why* the convenience *name* does not work; nothing: it does."""
        known = next((m for m in self.list_malfunctions() if m.name == name), None)
        if why == (known.why if known else ""):
            return
        fact = MALFUNCTION_FACT_PREFIX + name
        with self._open_database(write=True) as db:
            if why:
                now = datetime.fromtimestamp(int(self.clock()), UTC)
                malfunction = Malfunction(name, known.since if known else now, why)
                db.execute(SET_FACT, (fact, msgspec.json.encode(malfunction).decode()))
            else:
                db.execute("delete from facts where name = ?", (fact,))
            if why and known:  # it goes on, for another reason
                return
            kind = EventKind.MALFUNCTION_BEGUN if why else EventKind.MALFUNCTION_ENDED
            states = ("works", "does not work") if why else ("does not work", "works")
            change = StateChange(subject=name, before=states[0], after=states[1])
            self._append(db, NewEvent(kind=kind, change=change, text=why))

    def list_malfunctions(self) -> list[Malfunction]:
        """List the conveniences of the controller that do not work, by name."""
        query = "select value from facts where substr(name, 1, ?) = ? order by name"
        rows = self._select(query, len(MALFUNCTION_FACT_PREFIX), MALFUNCTION_FACT_PREFIX)
        return [msgspec.json.decode(value, type=Malfunction) for (value,) in rows]

    def list_answers(self, check: str, since: float) -> list[tuple[float, str, bool]]:
        """List when each node last ran *check* and if it failed; as `list_newly_held`."""
        rows = self._select(
            "select at, node, failed from outcomes"
            " where name = ? and at > ? and at <= ? order by at",
            *(check, max(since, self._read_reset_time()), self.clock()),
        )
        return [(at, node, bool(failed)) for at, node, failed in rows]

    # -- transitions for the site's own program

    def list_pending_transitions(self, limit: int) -> list[PendingTransition]:
        """List the transitions not delivered yet, the least often tried first."""
        query = (
            "select line, reason, decided_by from deliveries join events using (number)"
            " order by tries, number limit ?"
        )
        with self._open_database() as db:
            rows = db.execute(query, (limit,)).fetchall()
            decoded = [(msgspec.json.decode(line, type=Event), *row) for line, *row in rows]
            return [
                PendingTransition(event, event.change, reason, by)
                for event, reason, by in decoded
                if event.change
            ]

    def count_pending_transitions(self) -> int:
        """Count the transitions that the site's own program has not got yet."""
        return int(self._select("select count(*) from deliveries")[0][0])

    def remove_transition(self, number: int) -> None:
        """Remove a delivered transition from the queue."""
        self._execute("delete from deliveries where number = ?", number)

    def count_failed_delivery(self, number: int) -> None:
        """Count one more failed delivery of a transition."""
        self._execute("update deliveries set tries = tries + 1 where number = ?", number)

    def drop_old_transitions(self, before: float) -> int:
        """Drop the transitions from *before* that time; return how many."""
        at = "(select at from events where events.number = deliveries.number)"
        old = f"from deliveries where {at} < ?"
        ((stale,),) = self._select(f"select count(*) {old}", before)
        if stale:
            self._execute(f"delete {old}", before)
        return int(stale)

    def read_seed(self) -> int:
        """Return the fleet's own random number, which spreads out turns."""
        return int(self._get_or_set_fact(SEED_FACT, str(secrets.randbelow(2**31))))

    def read_fleet_start(self) -> float:
        """
        Return when this was first called: no node can be overdue since before that.

        If the clock was ahead then and has been set back, it is now.
        """
        now = self.clock()
        began = float(self._get_or_set_fact(BEGAN_FACT, repr(now)))
        if began > now:
            self._execute(SET_FACT, BEGAN_FACT, repr(now))
        return min(began, now)

    def read_identity(self) -> str:
        """Return the id of this ledger, made once; copies of it have the same."""
        return self._get_or_set_fact(IDENTITY_FACT, secrets.token_hex(8))

    def sign(self, run: Run) -> str:
        """Make what proves, in the place of its token, that *run* is ours: no node can make it."""
        written = msgspec.json.encode(replace(run, token=""))
        as_read = documents.parse(written, run.id)  # a whole number of seconds has a point
        return self._make_code(msgspec.json.encode(as_read))

    def has_signed(self, run: Run) -> bool:
        """Whether *run*, as it is now, has a token that `sign` made."""
        return hmac.compare_digest(run.token.encode(), self.sign(run).encode())

    def make_mark(self, *words: str) -> str:
        """
        Make the end of the id of a run of ours that is about *words*: the same each time.

        Nobody else can tell it in advance and use it first, so that our run would pass for known.
        """
        return self._make_code(msgspec.json.encode(words))[:MARK_DIGITS]

    def _make_code(self, content: bytes) -> str:
        secret = self._get_or_set_fact(SECRET_FACT, secrets.token_hex(32))
        return hmac.new(secret.encode(), content, "sha256").hexdigest()

    def read_host(self) -> str:
        """Name the host that the controller of this ledger last acted on, if any."""
        return self.read_fact(HOST_FACT)

    def record_host(self, host: str) -> None:
        """Record which host the controller acts on."""
        if host != self.read_host():
            self._execute(SET_FACT, HOST_FACT, host)

    def _get_or_set_fact(self, name: str, value: str) -> str:
        if known := self.read_fact(name):
            return known
        self._execute("insert or ignore into facts values (?, ?)", name, value)
        return self.read_fact(name)

    def _record_found_drain(self, db: Connection, node: str, drain_reason: str) -> None:
        db.execute(
            "insert into intents (at, node, act, reason, reason_before, outcome, drain_after)"
            " values (?, ?, ?, '', '', 'as it is', ?)",
            (self.clock(), node, FOUND_ACT, drain_reason),
        )

    def _put(
        self,
        db: Connection,
        node: Node,
        what: str,
        detail: str = "",
        by: str = "",
        *,
        text: str = "",
        ordered: bool = False,
        keep: Collection[str] = (),
        closes: frozenset[Source] = frozenset(Source),
    ) -> None:
        before = _read_node(db, node.name)
        db.execute(
            "insert or replace into nodes values (?, ?)", (node.name, msgspec.json.encode(node))
        )
        changed = _get_shown(before) != _get_shown(node)
        kind = KIND_BY_WORDS.get(what, EventKind.NODE_CHANGED)
        change = StateChange(
            subject="",
            before=before.shown_state,
            after=node.shown_state,
            enforced=node.enforced,
            checks=node.checks,
            run=node.run,
        )
        new = NewEvent(
            kind=EventKind.NODE_CHANGED if changed else kind,
            by=by,
            node=node.name,
            change=change if changed else None,
            what=what,
            detail=detail,
            text=text,
        )
        if changed:
            self._append_transition(db, new, node.foreign or node.full_reason, node.by)
            if before.shown_state != node.shown_state:  # else the site began to act on it, or not
                states = before.shown_state, node.shown_state
                counters.count(db, "hpcverify_transitions_total", states)
            _follow_outage(db, node, self.clock(), ordered=ordered)
        elif what:
            self._append(db, new)
        if node.state is State.HEALTHY and before.state is not State.HEALTHY:
            # No suite of its own runs the checks that others made of it, as of its peers.
            passed = {*before.checks} - {*node.checks}
            over = finding_log.close_outer_findings(db, node.name, passed, keep, closes)
            self._append(db, *over)


def _read_node(db: Connection, name: str) -> Node:
    row = db.execute("select record from nodes where name = ?", (name,)).fetchone()
    return msgspec.json.decode(row[0], type=Node) if row else Node(name=name)


def _follow_outage(db: Connection, node: Node, now: float, *, ordered: bool) -> None:
    row = db.execute(
        "select record from outages where node = ? and ended = 0", (node.name,)
    ).fetchone()
    known = msgspec.json.decode(row[0], type=NodeOutage) if row else None
    outage = follow_outage(known, node, now, ordered=ordered)
    if outage is None:
        return
    counters.count_outage(db, known, outage, now)
    if not outage.number:
        number = db.execute("select ifnull(max(number), 0) + 1 from outages").fetchone()[0]
        outage = replace(outage, number=number)
    db.execute(
        "insert or replace into outages values (?, ?, ?, ?, ?)",
        (outage.number, outage.node, outage.began, outage.ended, msgspec.json.encode(outage)),
    )


def _read_days(db: Connection) -> list[int]:
    row = db.execute("select value from facts where name = ?", (DAYS_FACT,)).fetchone()
    return msgspec.json.decode(row[0], type=list[int]) if row else []


def _record_day(db: Connection, now: float) -> None:
    day, days = int(now // DAY_S), _read_days(db)
    if day not in days:
        kept = [*days, day][-int(BREAKER_RETENTION_S / DAY_S) - SPARE_DAYS :]
        db.execute(SET_FACT, (DAYS_FACT, msgspec.json.encode(kept).decode()))


def _find_end(db: Connection, seconds: float) -> float:
    """
    Say before when all is older than *seconds*, in seconds since 1970.

    Days on which runs were judged count: a clock that is wrong makes nothing older than it is.
    """
    count = int(seconds / DAY_S) + SPARE_DAYS
    last = _read_days(db)[-count:]
    return min(last) * DAY_S if len(last) == count else 0.0


def _format_run_prefix(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y%m%d-%H%M%S}"


def _get_shown(node: Node) -> tuple[str, bool]:
    """Get what a change of is a transition of *node*."""
    return node.shown_state, node.enforced


def _is_new_verdict(db: Connection, node: str, suite: str, verdict: Verdict) -> bool:
    """Whether a run that nobody ordered says something else than the last one of its suite."""
    row = db.execute(
        "select verdict from run_verdicts where node = ? and suite = ?", (node, suite)
    ).fetchone()
    if row and row[0] == verdict.value:
        return False
    (known,) = db.execute("select count(*) from run_verdicts where node = ?", (node,)).fetchone()
    if row is None and known >= MAX_NODE_SUITES:
        return False
    db.execute("insert or replace into run_verdicts values (?, ?, ?)", (node, suite, verdict.value))
    return row is not None or verdict is not Verdict.PASS
