"""
Counters of the ledger for metrics: they only grow, in the write of the change that they count.

A text file is written anew after each cycle, and Prometheus would take a counter that begins
again there for a restart. So they are kept where what they count is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from sqlite3 import Connection

import msgspec

from hpcverify.fleet.ledger_file import SET_FACT, LedgerFile
from hpcverify.fleet.outages import NodeOutage
from hpcverify.fleet.part_counts import PartCount
from hpcverify.fleet.states import DAY_S
from hpcverify.metrics.text import METRICS_BY_NAME, BucketCounts, LabelValues

COUNTER_TABLES = """
create table counters (
    metric text not null, labels text not null, value real not null,
    primary key (metric, labels)
) without rowid;
create table part_counts (
    node text not null, kind text not null, expected integer not null, present integer not null,
    primary key (node, kind)
) without rowid;
"""
COUNTED_FACT = "node seconds counted"
"""The fact that says until when node-seconds are counted."""
MAX_COUNTED_GAP_S = DAY_S
SWEEP_FACT = "sweep ended"
SUM = "sum"
"""In place of the bound of a bucket: the sum of all that was observed."""


def count(db: Connection, metric: str, labels: Iterable[str], amount: float = 1) -> None:
    """Add *amount* to the counter of *metric* with *labels*; nothing if that is not positive."""
    if amount <= 0:
        return
    db.execute(
        "insert into counters values (?, ?, ?)"
        " on conflict (metric, labels) do update set value = value + excluded.value",
        (metric, msgspec.json.encode(tuple(labels)).decode(), amount),
    )


def observe(db: Connection, metric: str, labels: Iterable[str], value: float) -> None:
    """Count *value*, not below 0, in its bucket of the histogram *metric*."""
    buckets = (*METRICS_BY_NAME[metric].buckets, math.inf)
    seconds = max(0.0, value)
    bound = next(bound for bound in buckets if seconds <= bound)
    count(db, metric, (*labels, repr(bound)))
    count(db, metric, (*labels, SUM), seconds)


def count_outage(db: Connection, before: NodeOutage | None, after: NodeOutage, now: float) -> None:
    """Count what *now* became of an outage."""
    cause = (after.cause.value,)
    if before is None:
        count(db, "hpcverify_outages_total", cause)
    if after.is_failure and not (before and before.is_failure):
        count(db, "hpcverify_failures_total", cause)
    if after.held and not (before and before.held):
        observe(db, "hpcverify_time_to_hold_seconds", cause, now - after.began)
    if after.ended:
        observe(db, "hpcverify_time_to_return_seconds", cause, after.ended - after.began)


class CounterLedger(LedgerFile):
    """What the ledger counts: changes in the write that makes them, and the time of nodes."""

    def read_counter(
        self, metric: str, possible: Iterable[LabelValues] = ()
    ) -> dict[LabelValues, float]:
        """Read the counter *metric* by its labels, 0 for what is *possible* and never was."""
        return {**dict.fromkeys(possible, 0.0), **dict(self._select_counters(metric))}

    def read_histogram(
        self, metric: str, possible: Iterable[LabelValues] = ()
    ) -> dict[LabelValues, BucketCounts]:
        """Read the histogram *metric*, likewise."""
        counts: dict[LabelValues, dict[float, float]] = {labels: {} for labels in possible}
        sums: dict[LabelValues, float] = {}
        for (*labels, bound), value in self._select_counters(metric):
            key = tuple(labels)
            if bound == SUM:
                sums[key] = value
            else:
                counts.setdefault(key, {})[float(bound)] = value
        return {key: BucketCounts(counts[key], sums.get(key, 0.0)) for key in counts}

    def _select_counters(self, metric: str) -> list[tuple[LabelValues, float]]:
        query = "select labels, value from counters where metric = ? order by labels"
        decode = msgspec.json.Decoder(tuple[str, ...]).decode
        return [(decode(labels), value) for labels, value in self._select(query, metric)]

    def count_node_seconds(self, by_state: Mapping[str, int], by_hold: Mapping[str, int]) -> None:
        """
        Count the time since the last call for so many nodes in each state and hold.

        A longer time than `MAX_COUNTED_GAP_S` is left out: no controller was there to see what
        the nodes did.
        """
        now = self.clock()
        last = float(self.read_fact(COUNTED_FACT) or now)
        elapsed = now - last if 0 < now - last <= MAX_COUNTED_GAP_S else 0.0
        with self._open_database(write=True) as db:
            db.execute(SET_FACT, (COUNTED_FACT, repr(now)))
            for metric, nodes in (
                ("hpcverify_node_seconds_total", by_state),
                ("hpcverify_held_node_seconds_total", by_hold),
            ):
                for label, number in nodes.items():
                    count(db, metric, (label,), number * elapsed)

    def list_part_counts(self) -> list[PartCount]:
        """List how many parts of each kind the nodes should have, and how many they have."""
        rows = self._select("select node, kind, expected, present from part_counts")
        return [PartCount(*row) for row in rows]

    def record_sweep_end(self) -> None:
        """Record that a sweep has ended now."""
        self._execute(SET_FACT, SWEEP_FACT, repr(self.clock()))

    def read_sweep_end(self) -> float:
        """Say when the last sweep ended, in seconds since 1970; 0: none has."""
        return float(self.read_fact(SWEEP_FACT) or 0)
