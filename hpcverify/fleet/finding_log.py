"""
The findings of the fleet: each is opened, changed and closed by what runs say of its part.

A check that did not run says nothing: its findings stay as they are. Any run that the
controller takes in may open what failed, or say that it is graver. Only one that may clear
a node says that it is less grave, or closes it: an ordered one, or a round over the BMCs for
what such a round has found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from sqlite3 import Connection

import msgspec
from msgspec import Struct

from hpcverify.events.event import EventKind, FindingState, RunOutcome
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.states import Node

MAX_NODE_FINDINGS = 200
"""Findings of a node that are open at a time: a node may write what it likes."""
MAX_COUNTED = 2000
"""Pairs of check and code that are counted each on its own; others are one."""
OTHER_CODE = "other"
FINDING_TABLES = """
create table findings (
    uid text primary key, node text not null, part text not null, check_name text not null,
    code text not null, verdict text not null, source text not null, opened real not null,
    run text not null, record blob not null
);
create index findings_by_node on findings (node);
create table finding_counts (
    check_name text not null, code text not null, verdict text not null,
    opened integer not null, primary key (check_name, code, verdict)
);
"""


class RunReport(Struct, frozen=True, kw_only=True):
    """What a run says of the findings of its node."""

    outcome: RunOutcome
    findings: tuple[FindingState, ...]
    """What it found that is to be kept as findings."""
    examined: frozenset[str]
    """The checks that gave an answer."""
    planned: frozenset[str] = frozenset()
    """The checks of its suite, whether they gave an answer or not."""
    unanswered: frozenset[tuple[str, str]] = frozenset()
    """Checks and parts that these checks could not judge."""
    closes: frozenset[str] | None = frozenset()
    """The suites whose findings it may close; None: all."""


class FindingCount(Struct, frozen=True):
    """How many findings of one kind there were, and are."""

    check: str
    code: str
    verdict: str
    opened_total: int
    """Since the ledger was made; it only grows."""
    open: int


def follow_findings(
    db: Connection, node: Node, report: RunReport, run: str, at: float
) -> Iterator[NewEvent]:
    """Open, change and close the findings of *node* by *report*; yield what changed."""
    yield from _raise_findings(db, node.name, report, run, at)
    if report.closes == frozenset():
        return
    standing = {*node.checks} if node.conclusive else set[str]()  # no rerun takes that back
    cleared = report.examined - standing
    kept = report.planned | {*node.checks}  # others are no longer in the suite
    sources = dict(db.execute("select uid, source from findings where node = ?", (node.name,)))
    found = {state.uid for state in report.findings}
    over = [
        state
        for uid, state in _select_open(db, node.name)
        if uid not in found
        and (
            state.check in cleared
            or (sources[uid] == report.outcome.suite and state.check not in kept)
        )
        and report.unanswered.isdisjoint({(state.check, state.part), (state.check, "node")})
        and (report.closes is None or sources[uid] in report.closes)
    ]
    yield from _close(db, node.name, over)


def _raise_findings(
    db: Connection, node: str, report: RunReport, run: str, at: float
) -> Iterator[NewEvent]:
    """Open and change the findings that *report* has."""
    known = dict(_select_open(db, node))
    for state in report.findings:
        before = known.get(state.uid)
        if before is None:
            if len(known) >= MAX_NODE_FINDINGS:
                continue
            known[state.uid] = state
            _insert(db, node, state, (report.outcome.suite, at, run))
            yield _build_event(EventKind.FINDING_OPENED, node, state)
        elif _has_changed(before, state, may_relax=report.closes != frozenset()):
            known[state.uid] = state
            db.execute(
                "update findings set verdict = ?, run = ?, record = ? where uid = ?",
                (state.verdict.value, run, msgspec.json.encode(state), state.uid),
            )
            if state.verdict is not before.verdict:
                _count(db, state)
            yield _build_event(EventKind.FINDING_CHANGED, node, state)


def close_findings(
    db: Connection, node: str, checks: Collection[str] | None = None, keep: Collection[str] = ()
) -> Iterator[NewEvent]:
    """Close the findings of *node*, of *checks* or all, but for the uids to *keep*."""
    known = (state for uid, state in _select_open(db, node) if uid not in keep)
    over = [state for state in known if checks is None or state.check in checks]
    yield from _close(db, node, over)


def count_findings(db: Connection) -> list[FindingCount]:
    """Count the findings of each check, code and verdict."""
    counted = db.execute("select check_name, code, verdict, opened from finding_counts")
    total = {(check, code, verdict): opened for check, code, verdict, opened in counted}
    now: dict[tuple[str, str, str], int] = {}
    query = "select check_name, code, verdict, count(*) from findings group by 1, 2, 3"
    for check, code, verdict, count in db.execute(query):
        key = (check, code, verdict)
        key = key if key in total else (OTHER_CODE, OTHER_CODE, verdict)
        now[key] = now.get(key, 0) + count
    return [
        FindingCount(check, code, verdict, opened, now.get((check, code, verdict), 0))
        for (check, code, verdict), opened in sorted(total.items())
    ]


def _select_open(db: Connection, node: str) -> Iterator[tuple[str, FindingState]]:
    rows = db.execute("select uid, record from findings where node = ? order by opened", (node,))
    for uid, record in rows.fetchall():
        yield uid, msgspec.json.decode(record, type=FindingState)


def _has_changed(before: FindingState, after: FindingState, *, may_relax: bool) -> bool:
    """Whether *after* is news: a node may write fifty runs a turn that contradict each other."""
    if not may_relax:
        return after.verdict > before.verdict or after.enforced > before.enforced
    return (before.verdict, before.remedy, before.enforced) != (
        after.verdict,
        after.remedy,
        after.enforced,
    )


def _insert(db: Connection, node: str, state: FindingState, origin: tuple[str, float, str]) -> None:
    """Keep *state*, which is open from now on; its *origin* is a suite, a time and a run."""
    db.execute(
        "insert into findings values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            state.uid,
            node,
            state.part,
            state.check,
            state.code,
            state.verdict.value,
            *origin,
            msgspec.json.encode(state),
        ),
    )
    _count(db, state)


def _count(db: Connection, state: FindingState) -> None:
    key = (state.check, state.code, state.verdict.value)
    (kinds,) = db.execute("select count(*) from finding_counts").fetchone()
    known = "select 1 from finding_counts where (check_name, code, verdict) = (?, ?, ?)"
    if kinds >= MAX_COUNTED and db.execute(known, key).fetchone() is None:
        key = (OTHER_CODE, OTHER_CODE, state.verdict.value)
    db.execute(
        "insert into finding_counts values (?, ?, ?, 1)"
        " on conflict do update set opened = opened + 1",
        key,
    )


def _close(db: Connection, node: str, states: Iterable[FindingState]) -> Iterator[NewEvent]:
    for state in states:
        db.execute("delete from findings where uid = ?", (state.uid,))
        yield _build_event(EventKind.FINDING_CLOSED, node, state)


def _build_event(kind: EventKind, node: str, state: FindingState) -> NewEvent:
    return NewEvent(kind=kind, node=node, finding=state, text=f"{state.label}: {state.code}")
