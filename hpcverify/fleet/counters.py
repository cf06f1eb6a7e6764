"""
Counters of the ledger for metrics: they only grow, in the write of the change that they count.

A text file is written anew after each turn, and Prometheus would take a counter that begins
again there for a restart. So they are kept where what they count is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from sqlite3 import Connection

import msgspec

from hpcverify.fleet.outages import NodeOutage
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


def build_counter(
    rows: Iterable[tuple[str, float]], possible: Iterable[LabelValues]
) -> dict[LabelValues, float]:
    """Build the values of a counter from its *rows*, 0 for what is *possible* and never was."""
    values = dict.fromkeys(possible, 0.0)
    return values | {_read_labels(labels): value for labels, value in rows}


def build_histogram(
    rows: Iterable[tuple[str, float]], possible: Iterable[LabelValues]
) -> dict[LabelValues, BucketCounts]:
    """Build the values of a histogram, likewise."""
    counts: dict[LabelValues, dict[float, float]] = {labels: {} for labels in possible}
    sums = dict.fromkeys(counts, 0.0)
    for encoded, value in rows:
        *labels, bound = _read_labels(encoded)
        key = tuple(labels)
        if bound == SUM:
            sums[key] = value
        else:
            counts.setdefault(key, {})[float(bound)] = value
    return {key: BucketCounts(counts[key], sums.get(key, 0.0)) for key in counts}


def _read_labels(encoded: str) -> LabelValues:
    return msgspec.json.decode(encoded, type=tuple[str, ...])
