"""A platform has a floor between nodes only if somebody published what it reaches."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import hpcverify.limits
from hpcverify.isolation.judge import floors_of
from hpcverify.limits.specs import load_specs
from hpcverify.records.collectives import CollectiveRun, CollectiveTiming, RankPlace
from hpcverify.units import GIB, MIB

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"


def run_of(
    name: str, nodes: int, gpus: int, wire: float, *, algorithm: str = "ring", size: int = 4 * GIB
) -> CollectiveRun:
    ranks = tuple(
        RankPlace(rank, f"n{rank // gpus}", f"GPU-{rank}", name, wire)
        for rank in range(nodes * gpus)
    )
    timing = CollectiveTiming("all_reduce", size, 9, 1.0, 1.0, 1.0, 1.0, 1.0)
    return CollectiveRun(
        id="",
        started="",
        ended="",
        version="",
        backend="nccl",
        algorithm=algorithm,
        ranks=ranks,
        timings=(timing,),
    )


@pytest.mark.parametrize(
    ("run", "least"),
    [
        (run_of(H200, 4, 8, 400), 0.9 * 250),
        (run_of(H100, 2, 8, 400, algorithm="auto"), 0.75 * 450),
        (run_of(H100, 2, 8, 100), 0.9 * 60),
        (run_of("NVIDIA B200", 4, 8, 400), 0.9 * 250),
    ],
)
def test_a_known_platform_has_a_floor_below_what_it_reaches(
    run: CollectiveRun, least: float
) -> None:
    assert floors_of(run) == {"all_reduce": pytest.approx(least)}


@pytest.mark.parametrize(
    "run",
    [
        run_of(H100, 2, 8, 400),  # by rings nobody told: a tree hides the wire
        run_of(H200, 4, 8, 50),  # another network
        run_of(H200, 4, 8, 0),  # no adapter of its own
        run_of(H200, 4, 4, 400),  # half of each node
        run_of(H200, 1, 8, 400),  # nothing between nodes
        run_of(H200, 4, 8, 400, size=64 * MIB),  # far from its full bandwidth
        run_of("NVIDIA GeForce RTX 4090", 4, 8, 400),
        run_of("", 4, 8, 400),
    ],
)
def test_what_nobody_published_has_no_floor(run: CollectiveRun) -> None:
    assert floors_of(run) == {}


def test_every_figure_is_of_a_part_with_a_data_sheet_and_has_a_source() -> None:
    path = Path(hpcverify.limits.__file__).parent / "fabric_reached.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    keys = {spec.key for spec in load_specs()}
    assert len(rows) > 5
    for row in rows:
        assert row["part"] in keys
        assert row["kind"] in {"reached", "least"}
        assert row["source"]
        if row["algorithm"] != "auto":  # a tree between two nodes hides the wire
            assert float(row["busbw"]) <= float(row["wire"])
