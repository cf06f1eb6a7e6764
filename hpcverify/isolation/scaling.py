"""
How collectives and steps hold up from one node to many: efficiency by number of nodes.

The efficiency of a collective is its busbw, which with equal links does not depend on the
number of ranks, as a share of that on the fewest nodes between which it crosses the
network. That of a step of equal work on each rank (weak scaling) is the time of a step on
the fewest nodes, as a share of its time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from hpcverify.records.collectives import CollectiveRun

NETWORK_NODES = 2
STEP = "step"
"""The steps of equal work by which stragglers are found; it stands in place of an operation."""

Measured = tuple[str, int]
"""An operation and its size."""


class ScalingPoint(Struct, frozen=True):
    """One operation of one size on so many nodes; medians, if several runs had as many."""

    operation: str
    size: int
    nodes: int
    ranks: int
    value: float
    """busbw in GB/s; of a step, seconds."""
    efficiency: float


def compute_scaling(runs: Sequence[CollectiveRun]) -> tuple[ScalingPoint, ...]:
    """Compute the efficiency of all that was measured on different numbers of nodes."""
    values: dict[Measured, dict[tuple[int, int], list[float]]] = {}
    for run in runs:
        nodes = len({place.node for place in run.ranks})
        for measured, value in _list_values(run):
            values.setdefault(measured, {}).setdefault((nodes, len(run.ranks)), []).append(value)
    return tuple(
        point
        for measured, by_count in sorted(values.items())
        if len(by_count) > 1
        for point in _compare(measured, by_count)
    )


def _list_values(run: CollectiveRun) -> Iterator[tuple[Measured, float]]:
    for timing in run.timings:
        yield (timing.operation, timing.size), timing.busbw
    if run.steps and (step := time_step(run)):
        yield (STEP, 0), step


def time_step(run: CollectiveRun) -> float:
    """Time the median step of equal work, from the last rank's end to the next; 0 without."""
    ends = [max(step) for step in zip(*(rank.ends for rank in run.steps), strict=False)]
    return median(after - before for before, after in pairwise(ends)) if len(ends) > 1 else 0.0


def _compare(
    measured: Measured, by_count: Mapping[tuple[int, int], Sequence[float]]
) -> Iterator[ScalingPoint]:
    operation, size = measured
    middles = {count: median(values) for count, values in sorted(by_count.items())}
    over_network = [count for count in middles if count[0] >= NETWORK_NODES]
    base = middles[next(iter(middles)) if operation == STEP else min(over_network or middles)]
    for (nodes, ranks), value in middles.items():
        share = base / value if operation == STEP else value / base
        yield ScalingPoint(operation, size, nodes, ranks, value, share)
