"""
The findings of the fleet: each is opened, changed and closed by what is said of its part.

A check that did not run says nothing: its findings stay as they are. Any source may open what
failed, or say that it is graver. Only a run that may clear a node says that it is less grave, or
closes it: an ordered one, or a round over the BMCs for what such a round has found. What
`OUTER_SOURCES` found no run of the node can see: that is over once the node passes a whole suite.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from sqlite3 import Connection

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpcverify.events.event import EventKind, FindingState
from hpcverify.fleet.event_log import NewEvent
from hpcverify.fleet.evidence import OUTER_SOURCES, Evidence, OpenFault
from hpcverify.fleet.states import Node, State
from hpcverify.model import Source

MAX_NODE_FINDINGS = 200
"""Findings of a node by one source that are open at a time: a node may write what it likes."""
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


class FindingCount(Struct, frozen=True):
    """How many findings of one kind there were, and are."""

    check: str
    code: str
    verdict: str
    opened_total: int
    """Since the ledger was made; it only grows."""
    open: int


def follow_findings(
    db: Connection, node: Node, evidence: Evidence, closes: frozenset[Source], at: float
) -> Iterator[NewEvent]:
    """
    Open, change and close the findings of *node* by *evidence*; yield what changed.

    It may close the findings of the sources that it *closes*.
    """
    known = select_open(db, node.name)
    yield from _raise_findings(db, known, evidence, at, may_relax=bool(closes))
    standing = {*node.checks} if node.conclusive else set[str]()  # no rerun takes that back
    cleared = evidence.examined - standing
    kept = evidence.planned | {*node.checks}  # others are no longer in the suite
    suites = dict(db.execute("select uid, source from findings where node = ?", (node.name,)))
    found = {state.uid for state in evidence.found}
    seen = {Source.RUN, Source.BMC, evidence.source}
    is_well = node.state is State.HEALTHY and evidence.is_full_pass
    over = [
        state
        for uid, state in known.items()
        if state.source in closes
        and uid not in found
        and (state.source in seen or is_well)
        and (
            state.source in OUTER_SOURCES - {evidence.source}
            or state.check in cleared
            or (suites[uid] == evidence.suite and state.check not in kept)
        )
        and evidence.unanswered_parts.isdisjoint({(state.check, state.part), (state.check, "node")})
    ]
    yield from _close(db, over)


def _raise_findings(
    db: Connection, known: dict[str, OpenFault], evidence: Evidence, at: float, *, may_relax: bool
) -> Iterator[NewEvent]:
    for found in evidence.found:
        before = known.get(found.uid)
        if before is None:
            if sum(one.source is found.source for one in known.values()) >= MAX_NODE_FINDINGS:
                continue
            known[found.uid] = state = replace(found, since=at)
            _insert(db, state, evidence)
            yield _build_event(EventKind.FINDING_OPENED, state)
        elif _has_changed(before, found, may_relax=may_relax):
            state = replace(found, since=before.since, source=before.source)
            known[state.uid] = state
            db.execute(
                "update findings set verdict = ?, run = ?, record = ? where uid = ?",
                (state.verdict.value, evidence.id, msgspec.json.encode(state), state.uid),
            )
            if state.verdict is not before.verdict:
                _count(db, state)
            yield _build_event(EventKind.FINDING_CHANGED, state)


def close_findings(db: Connection, node: str) -> Iterator[NewEvent]:
    """Close the findings of *node*."""
    yield from _close(db, select_open(db, node).values())


def close_outer_findings(
    db: Connection,
    node: str,
    passed: Collection[str],
    keep: Collection[str],
    closes: frozenset[Source],
) -> Iterator[NewEvent]:
    """
    Close what no run of *node*, which is healthy now, would find again, but the uids to *keep*.

    These are what those of `OUTER_SOURCES` found that this *closes*, and the findings of the
    checks that it has *passed*.
    """
    outer = OUTER_SOURCES & closes
    for uid, state in select_open(db, node).items():
        if uid not in keep and (state.source in outer or state.check in passed):
            yield from _close(db, [state])


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


def select_open(db: Connection, node: str | None = None) -> dict[str, OpenFault]:
    """Select the findings of *node*, or of all, the oldest first, by their uids."""
    query = "select record from findings where ?1 is null or node = ?1 order by opened"
    faults = [msgspec.json.decode(row, type=OpenFault) for (row,) in db.execute(query, (node,))]
    return {fault.uid: fault for fault in faults}


def _has_changed(before: FindingState, after: FindingState, *, may_relax: bool) -> bool:
    """Whether *after* is news: a node may write fifty runs a cycle that contradict each other."""
    if not may_relax:
        return after.verdict > before.verdict or after.enforced > before.enforced
    return (before.verdict, before.remedy, before.enforced) != (
        after.verdict,
        after.remedy,
        after.enforced,
    )


def _insert(db: Connection, state: OpenFault, evidence: Evidence) -> None:
    db.execute(
        "insert into findings values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            state.uid,
            state.node,
            state.part,
            state.check,
            state.code,
            state.verdict.value,
            evidence.suite,
            state.since,
            evidence.id,
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


def _close(db: Connection, states: Iterable[OpenFault]) -> Iterator[NewEvent]:
    for state in states:
        db.execute("delete from findings where uid = ?", (state.uid,))
        yield _build_event(EventKind.FINDING_CLOSED, state)


def _build_event(kind: EventKind, state: OpenFault) -> NewEvent:
    finding = msgspec.convert(state, FindingState, from_attributes=True)
    text = f"{state.label}: {state.code}"
    return NewEvent(kind=kind, node=state.node, finding=finding, text=text)
