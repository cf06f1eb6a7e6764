"""Documents of collectives and isolations to print: made up, with one rank or node that differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hpcverify.isolation.answer import FaultyNode, IsolationAnswer, SendRecord, TestRecord
from hpcverify.isolation.group_tests import GroupOutcome, GroupPurpose
from hpcverify.records.collectives import (
    CollectiveRun,
    CollectiveTiming,
    RankDelay,
    RankPlace,
    Straggler,
)

COLUMNS = (("all_reduce", 65536), ("all_reduce", 2**28), ("all_gather", 2**28), ("sendrecv", 2**20))
STEP = 0.01
"""Seconds of a step."""


def a_collective_run(
    nodes: int = 4,
    per_node: int = 8,
    *,
    late: int | None = None,
    busbw: float = 50.3,
    **changes: Any,
) -> CollectiveRun:
    """Make a run over *nodes*; the rank *late* comes 6 ms late to each step of 10 ms."""
    ranks = tuple(
        RankPlace(rank, f"n{rank // per_node + 1}", f"GPU-{rank:04d}")
        for rank in range(nodes * per_node)
    )
    stragglers = (Straggler(late, "arrives_late", 0.006, 0.375),) if late is not None else ()
    made = CollectiveRun(
        id="20261122-120000-abcdef",
        started="2026-11-22T12:00:00Z",
        ended="2026-11-22T12:01:10Z",
        version="0.1.0",
        job=4711,
        ranks=ranks,
        backend="nccl",
        libraries={"torch": "2.9.0", "NCCL": "2.27.5"},
        algorithm="ring",
        settings={"NCCL_ALGO": "Ring"},
        wire_share=0.125,
        timings=tuple(
            CollectiveTiming(operation, size, 200, STEP, STEP * 1.1, STEP * 1.3, 26.8, busbw)
            for operation, size in COLUMNS
        ),
        delays=tuple(_list_delays(ranks, late)),
        stragglers=stragglers,
    )
    return CollectiveRun(**{name: getattr(made, name) for name in made.__struct_fields__} | changes)


def _list_delays(ranks: tuple[RankPlace, ...], late: int | None) -> Iterator[RankDelay]:
    for place in ranks:
        for operation, size in COLUMNS:
            wobble = (place.rank * 7919 + size) % 13 * 1e-5
            arrival = wobble + (0.006 if place.rank == late else 0.0)
            yield RankDelay(place.rank, operation, size, arrival, 0.004 + wobble, 2e-5)


def an_isolation(nodes: int = 48) -> IsolationAnswer:
    """Make an answer in which n7 sends slowly to all of the *nodes*."""
    names = tuple(f"n{i}" for i in range(1, nodes + 1))
    reason = "all_reduce 16 GB/s, 40% of the busbw of other tests"
    failed, passed = GroupOutcome.FAILED, GroupOutcome.PASSED
    test = TestRecord(
        round=1, purpose=GroupPurpose.PAIR, partners=("n20",), outcome=failed, reason=reason
    )
    slow = FaultyNode(
        node="n7", is_alone=False, directions=("sends",), failed=(test,) * 4, passed=()
    )
    sent = tuple(
        SendRecord(sender=a, receiver=b, outcome=failed if a == "n7" else passed, reason=reason)
        for a in names
        for b in names
        if a != b
    )
    return IsolationAnswer(
        id="20261122-120000-abcdef",
        faulty=(slow,),
        passed=nodes - 1,
        passed_nodes=tuple(name for name in names if name != "n7"),
        sent=sent,
        rounds=12,
        tests=38,
        node_minutes=50.0,
    )
