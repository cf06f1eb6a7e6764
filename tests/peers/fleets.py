"""Fleets for the tests: real ones, and made ones."""

from __future__ import annotations

import csv
import gzip
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from hpcverify.peers.fleet import MetricJudgement, judge_metric
from hpcverify.peers.floors import PeerFloor
from hpcverify.peers.table import CollectedRuns, choose_columns, collect_runs
from hpcverify.peers.values import MetricName, PartRuns, PartValue, reduce_runs

LONGHORN = Path(__file__).parent / "longhorn"
FLOOR = PeerFloor(floor=0.02)
NAME = MetricName("rate", "gemm", "", "GFLOP/s")
Draw = Callable[[random.Random], float]


def read_longhorn(workload: str) -> list[PartRuns]:
    """Read the runs of each GPU in one workload."""
    with gzip.open(LONGHORN / f"{workload}.csv.gz", "rt") as file:
        header, *rows = csv.reader(file)
    collected = collect(header, rows)
    (parts,) = collected.values()
    return list(parts.values())


def collect(header: Sequence[str], rows: Sequence[Sequence[str]]) -> CollectedRuns:
    """Collect the runs of a table with its usual columns."""
    return collect_runs(
        (dict(zip(header, row, strict=True)) for row in rows), choose_columns(header, {}, ())
    )


def reduce_all(runs: Sequence[PartRuns]) -> list[PartValue]:
    """Reduce the runs of each part."""
    return [value for part in runs if (value := reduce_runs(part))]


def judge_longhorn(workload: str) -> MetricJudgement:
    """Judge one workload as the command does."""
    parts = reduce_all(read_longhorn(workload))
    return judge_metric(MetricName("time", unit="ms"), parts, FLOOR, "high")


def make_fleet(values: Sequence[Sequence[float]], gpus: int = 1) -> list[PartValue]:
    """Make a fleet with *gpus* per node from the runs of each part, ten nodes in a rack."""
    return reduce_all(
        [
            PartRuns(f"n{i // gpus}", f"gpu{i % gpus}", {"rack": f"r{i // gpus // 10}"}, list(runs))
            for i, runs in enumerate(values)
        ]
    )


def judge_values(values: Sequence[Sequence[float]], gpus: int = 1) -> MetricJudgement:
    """Judge the runs of made parts; low values are bad."""
    return judge_metric(NAME, make_fleet(values, gpus), FLOOR, "low")


def draw_heavy_tailed(rng: random.Random, freedom: float = 3) -> float:
    """Draw from Student's t."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(freedom / 2, 2 / freedom))
