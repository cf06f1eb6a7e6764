"""
How often a healthy fleet has a name in a night, by one run and as runs are followed.

Fleets are made of 400 parts with a run each night. *Equal* parts differ by their runs alone;
*lasting* ones differ by themselves, too, with the tails of Student's t of 3 degrees of freedom;
of *busy* ones, each run in twenty is 3 to 20 % slow. Then 1 % of the parts are 4 % slow from the
tenth night on, always or every third night: told is how many of them are told by the last night.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.insight.judgement import FleetJudgement, JudgedOutlier  # noqa: E402 - below the path
from hpcverify.insight.night import (  # noqa: E402 - as this
    choose_named,
    follow_up,
    list_by_chance,
)
from hpcverify.peers.fleet import judge_metric  # noqa: E402 - as this
from hpcverify.peers.floors import PeerFloor  # noqa: E402 - as this
from hpcverify.peers.values import MetricName, PartValue  # noqa: E402 - as this

PARTS, NIGHTS, FLEETS = 400, 30, 20
SLOW, SLOW_FROM = 0.96, 10
FIRST = date(2026, 11, 2)
NAME = MetricName("bf16.sustained", "gemm", "idle", "TFLOP/s")
FLOOR = PeerFloor(floor=0.02)
Draw = Callable[[random.Random], float]


def draw_normal(rng: random.Random) -> float:
    """Draw a normal value."""
    return rng.gauss(0, 1)


def draw_heavy_tailed(rng: random.Random) -> float:
    """Draw from Student's t of 3 degrees of freedom, with the median spread of a normal value."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(1.5, 2 / 3)) * 0.882


def draw_busy(rng: random.Random) -> float:
    """Draw a run of 0.15 %, of which one in twenty is 3 to 20 % slow."""
    slow = rng.uniform(0.03, 0.2) / 0.0015 if rng.random() < 1 / 20 else 0.0
    return rng.gauss(0, 1) - slow


def run_fleet(
    seed: int, draws: tuple[Draw, Draw], spreads: tuple[float, float], slow: int, every: int
) -> list[int]:
    """Count, over the nights of a fleet, those with a name by one run, by several; parts told."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    own, run = draws
    parts = [1 + spreads[0] * own(rng) for _ in range(PARTS)]
    before: FleetJudgement | None = None
    single = twice = 0
    told: set[str] = set()
    for number in range(NIGHTS):
        night = FIRST + timedelta(days=number)
        bad = slow if number >= SLOW_FROM and number % every == 0 else 0
        fleet = [
            PartValue(
                node=f"n{i}",
                part="GPU 0",
                value=500 * mine * (1 + spreads[1] * run(rng)) * (SLOW if i < bad else 1),
                runs=1,
                spread=None,
                groups={},
                sensors={},
            )
            for i, mine in enumerate(parts)
        ]
        found = [
            JudgedOutlier(
                level=one.level,
                name=one.name,
                node=one.node,
                nodes=(one.node,),
                suite="idle",
                metric=str(NAME),
                verdict=one.verdict,
                distance=one.distance,
                since=night,
                last=night,
            )
            for one in judge_metric(NAME, fleet, FLOOR, "low").outliers
        ]
        last = {(f"n{i}", "idle"): night for i in range(PARTS)}
        followed = follow_up(found, before, last)
        by_chance = list_by_chance(followed, before, {str(NAME): (PARTS, PARTS)})
        confirmed = choose_named(followed, by_chance, night)
        before = FleetJudgement(
            night=night,
            outliers=tuple(confirmed),
            unconfirmed=tuple(one for one in followed if one not in confirmed),
        )
        slow_ones = {f"n{i}" for i in range(slow)}
        single += any(one.node not in slow_ones for one in found)
        twice += any(one.node not in slow_ones for one in confirmed)
        told |= {one.node for one in confirmed} & slow_ones
    return [single, twice, len(told)]


def main() -> None:
    """Measure, and print a line for each kind of fleet."""
    kinds: dict[str, tuple[Draw, Draw, tuple[float, float]]] = {
        "equal, normal runs of 0.6 %": (draw_normal, draw_normal, (0.0, 0.006)),
        "equal, heavy-tailed runs of 0.6 %": (draw_normal, draw_heavy_tailed, (0.0, 0.006)),
        "equal, heavy-tailed runs of 1 %": (draw_normal, draw_heavy_tailed, (0.0, 0.01)),
        "lasting normal 0.6 %, runs of 0.15 %": (draw_normal, draw_normal, (0.006, 0.0015)),
        "lasting heavy-tailed 0.6 %, runs of 0.15 %": (
            draw_heavy_tailed,
            draw_normal,
            (0.006, 0.0015),
        ),
        "busy, runs of 0.15 %": (draw_normal, draw_busy, (0.006, 0.0015)),
    }
    for kind, (own, run, spreads) in kinds.items():
        for slow, every in ((0, 1), (PARTS // 100, 1), (PARTS // 100, 3)):
            rows = [run_fleet(seed, (own, run), spreads, slow, every) for seed in range(FLEETS)]
            single, twice, told = (sum(column) for column in zip(*rows, strict=True))
            nights = FLEETS * NIGHTS
            found = f"; {told} of {slow * FLEETS} slow parts told" if slow else ""
            print(
                f"{kind}, slow every {every}: a healthy part named in {single} of {nights}"
                f" fleet-nights by one run, in {twice} by several{found}",
                flush=True,
            )


if __name__ == "__main__":
    main()
