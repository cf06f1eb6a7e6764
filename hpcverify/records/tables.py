"""
The tables of the index, and the statements that fill and prune them.

For a run of several rounds, `results` has the worst round of each check and
`measurements` the median of each value, so that it counts as one run among the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import msgspec

from hpcverify.model import Run
from hpcverify.summary.diagnosis import diagnose_run
from hpcverify.summary.facts import collect_facts
from hpcverify.summary.rounds import (
    choose_worst_rounds,
    compute_medians,
    count_rounds,
    group_by_check,
)
from hpcverify.summary.verdict import explain_verdict

INDEX_VERSION = 11
"""The version of `TABLES`: an index of an earlier one is made again."""
TABLES = """
create table runs (
    id text primary key, node text not null, suite text not null,
    started text not null, seconds real not null, verdict text not null,
    complete integer not null, inventory blob not null,
    rounds integer not null, bytes integer not null, reason text not null,
    diagnoses blob not null
);
-- with rounds and bytes: what sums them reads no row of the table
create index runs_by_node on runs (node, started, rounds, bytes);
create table results (
    run text not null references runs (id), name text not null,
    verdict text not null, reason text not null, cause text not null,
    remedy text not null, seconds real not null
);
create index results_by_run on results (run);
create table measurements (
    run text not null references runs (id), name text not null,
    metric text not null, part text not null, value real, unit text not null
);
-- by run first: a run then adds to a dozen pages, and not one value to each page
create index measurements_by_run on measurements (run, name, metric, part);
create table taken_in (changed integer not null);
create table marks (
    node text not null, name text not null, mark text not null,
    part text not null, value text not null, run text not null,
    primary key (node, name, mark, part)
);
-- a row for each set of facts that a source reported of a node, and when first and last
create table facts (
    node text not null, source text not null, first text not null, last text not null,
    facts blob not null
);
create index facts_by_node on facts (node, source);
"""
PRUNE_SLACK_DIVISOR = 50
"""`prune` waits for a surplus of a fiftieth, because a prolog waits for `prune`."""
MAX_CARRY_OVER_RUNS = 16
"""
Runs that `prune` spares for a mark. A check leaves all its marks in each run, so these
are few: the last run of each check, and one for each time that parts were removed for
good.
"""
MAX_FAULTS = 16
"""The gravest faults of a result, which say what an overview shows of it."""
MAX_FACT_ROWS = 32
"""Sets of facts that are kept of a node and a source: what it was before, for rollouts."""
NEWEST_FIRST_CLAUSE = "order by started > :now, started desc"
"""Runs dated after ``:now`` come last."""
REFERENCE_CLAUSE = (
    "from runs join results r on r.run = runs.id where node = :node"
    " and r.name = 'inventory' and r.verdict in ('pass', 'warn')"
    f" {NEWEST_FIRST_CLAUSE} limit 1"
)
IF_NEWER_CLAUSE = (
    "where excluded.run <= :ahead and (marks.run > :ahead or marks.run <= excluded.run)"
)
"""The id of a run begins with its date: ids from ``:ahead`` on are in the future."""


def find_overfull(db: sqlite3.Connection, keep: int, room: int) -> set[str]:
    """Find the nodes of which `find_surplus` may find runs: one query for all of them."""
    rows = db.execute(
        "select node from runs group by node having count(*) > ? or sum(bytes) > ?",
        (_add_slack(keep), _add_slack(room)),
    )
    return {node for (node,) in rows}


def _add_slack(most: int) -> int:
    return most + most // PRUNE_SLACK_DIVISOR


def find_surplus(db: sqlite3.Connection, node: str, keep: int, room: int, now: str) -> set[str]:
    """Find the runs of *node* beyond *keep* runs or *room* bytes, at the time *now*."""
    count, weight = db.execute(
        "select count(*), coalesce(sum(bytes), 0) from runs where node = ?", (node,)
    ).fetchone()
    spent: set[str] = set()
    if count > _add_slack(keep):
        spent |= _find_beyond_quota(db, node, "1", keep, now) - _find_carry_over_runs(db, node, now)
    if weight > _add_slack(room):
        spent |= _find_beyond_quota(db, node, "bytes", room, now)
    return spent


def _find_beyond_quota(
    db: sqlite3.Connection, node: str, cost: str, room: int, now: str
) -> set[str]:
    """
    Find the runs of *node* that do not fit into *room*, where each has its *cost*.

    The newest runs of each suite get room in turn, the suite that has the least first.
    """
    rows = db.execute(
        "select id from (select id, sum(cost) over (order by share, started > :now,"  # noqa: S608 - our own words
        "   started desc rows unbounded preceding) used"
        f" from (select id, started, {cost} cost, sum({cost}) over (partition by suite"
        f"   {NEWEST_FIRST_CLAUSE} rows unbounded preceding) share"
        "   from runs where node = :node)) where used > :room",
        {"node": node, "room": room, "now": now},
    )
    return {run for (run,) in rows}


def find_reference(db: sqlite3.Connection, node: str, now: str) -> set[str]:
    """Find the run whose inventory the next run of *node* is compared with."""
    rows = db.execute(f"select runs.id {REFERENCE_CLAUSE}", {"node": node, "now": now})
    return {run for (run,) in rows}


def _find_carry_over_runs(db: sqlite3.Connection, node: str, now: str) -> set[str]:
    rows = db.execute(
        "select id from runs where id in (select run from marks where node = :node)"  # noqa: S608 - our own words
        f" {NEWEST_FIRST_CLAUSE} limit :most",
        {"node": node, "most": MAX_CARRY_OVER_RUNS, "now": now},
    )
    return {run for (run,) in rows}


def save_mtime(db: sqlite3.Connection, changed: int) -> None:
    """Record that all documents are indexed that the directory had when it *changed*."""
    db.execute("delete from taken_in")
    db.execute("insert into taken_in values (?)", (changed,))


def insert_run(db: sqlite3.Connection, run: Run, size: int) -> None:
    """Index *run*, whose document has *size* bytes, unless it is indexed already."""
    inserted = db.execute(
        "insert or ignore into runs values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            run.id,
            run.node,
            run.suite,
            run.started.isoformat(),
            run.seconds,
            run.verdict.value,
            run.complete,
            msgspec.json.encode(run.inventory),
            max(1, count_rounds(run)),
            size,
            explain_verdict(run),
            msgspec.json.encode(diagnose_run(run)),
        ),
    )
    if not inserted.rowcount:  # another process was faster
        return
    db.executemany(
        "insert into results values (?, ?, ?, ?, ?, ?, ?)",
        [
            (
                run.id,
                r.check,
                r.verdict.value,
                r.reason,
                r.cause,
                r.remedy,
                r.seconds,
            )
            for r in choose_worst_rounds(run.results)
        ],
    )
    db.executemany(
        "insert into measurements values (?, ?, ?, ?, ?, ?)",
        [
            (run.id, check, m.name, m.part_id, m.value, m.unit)
            for check, rounds in group_by_check(run.results).items()
            for m in compute_medians(rounds)
        ],
    )


def insert_facts(
    db: sqlite3.Connection,
    node: str,
    source: str,
    facts: Mapping[str, str],
    started: str,
) -> None:
    """
    Note that *source* reported *facts* of *node* in a run that *started* then.

    In whatever order the runs of a node come, the rows are the same in the end.
    """
    encoded = msgspec.json.encode(facts, order="sorted")
    seen = {"node": node, "source": source, "started": started, "facts": encoded}
    again = db.execute(
        "update facts set first = min(first, :started), last = max(last, :started)"
        " where node = :node and source = :source and facts = :facts",
        seen,
    )
    if again.rowcount:
        return
    db.execute("insert into facts values (:node, :source, :started, :started, :facts)", seen)
    db.execute(
        "delete from facts where rowid in (select rowid from facts"
        " where node = :node and source = :source order by last desc limit -1 offset :most)",
        {"node": node, "source": source, "most": MAX_FACT_ROWS},
    )


def insert_facts_of_run(db: sqlite3.Connection, run: Run, latest: str) -> None:
    """Note the facts of *run*, unless its clock was ahead: it is dated after *latest*."""
    started = run.started.isoformat()
    if started <= latest:
        for source, facts in collect_facts(run).items():
            insert_facts(db, run.node, source, facts, started)


def insert_carry_overs(db: sqlite3.Connection, run: Run, where: str, ahead: str = "") -> None:
    """
    Store the marks of *run*; they replace earlier ones that the clause *where* selects.

    *ahead* is its ``:ahead``: the ids of runs from the future begin there.
    """
    if not run.complete:
        return
    last = {(r.check, m.name, m.part_id): m.value for r in run.results for m in r.marks}
    db.executemany(
        "insert into marks values (:node, :name, :mark, :part, :value, :run)"  # noqa: S608 - our own words
        " on conflict (node, name, mark, part)"
        f" do update set value = excluded.value, run = excluded.run {where}",
        [
            {
                "node": run.node,
                "name": check,
                "mark": mark,
                "part": part,
                "value": value,
                "run": run.id,
                "ahead": ahead,
            }
            for (check, mark, part), value in last.items()
        ],
    )
