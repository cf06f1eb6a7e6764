"""
What the past of parts finds, how soon, and how often it names a healthy one.

    .venv/bin/python bench/trends.py [steps|rollouts|drifts|afternoons|healthy ...]

Fleets have 64 nodes of four GPUs and a run each night, judged after each. Runs differ as those of
Longhorn's BERT and ResNet do (tests/peers/longhorn): what one of its GPUs ran, by its own median.
The levels of the nights and the first look are those of SQL, in numpy; what is judged is ours.
*Healthy* are sites of 64 nodes with eight GPUs and ten metrics, whose nodes, parts and runs differ
by 0.3 % each: 30 nights, and how many of them name a part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.stats import MAD_SCALE  # noqa: E402 - below the path
from hpcverify.trends.fleet import (  # noqa: E402 - as this
    DEFAULT_STEP,
    FIRST_RUNS,
    LAST_RUNS,
    MIN_RUNS,
    RUNS_BEFORE,
    FleetPast,
    TrendJudgement,
    find_peaks,
    judge_histories,
)
from hpcverify.trends.levels import NightLevel, PartHistory, collect_levels  # noqa: E402 - as this
from hpcverify.units import DAY_SECONDS  # noqa: E402 - as this
from tests.peers.fleets import read_longhorn  # noqa: E402 - as this

Array = NDArray[np.float64]
GPUS, PARTS, NIGHTS, BEGIN, FLEETS = 4, 256, 50, 25, 4
DRIVERS = ("550", "560")
BAD = 6
"""Parts that change, each on a node of its own."""
SITES, SITE_NIGHTS, METRICS = 100, 30, 10


def read_noise(workload: str) -> tuple[Array, Array]:
    """Read how far GPUs are from their median, and runs from that of their GPU."""
    if workload == "0.6 %":  # as Frontera's ResNet
        rng = np.random.default_rng(1)
        return 1 + 0.02 * rng.normal(size=1000), 1 + 0.006 * rng.normal(size=10_000)
    parts = [part.values for part in read_longhorn(workload) if len(part.values) >= 4]
    usual = median(median(values) for values in parts)
    own = [median(values) / usual for values in parts]
    return np.array(own), np.array([v / median(values) for values in parts for v in values])


def make_runs(rng: np.random.Generator, noise: tuple[Array, Array]) -> Array:
    """Make the times of all parts in all nights."""
    own, runs = noise
    values: Array = rng.choice(own, PARTS)[:, None] * rng.choice(runs, (PARTS, NIGHTS))
    return values


def judge(values: Array, new: Array, gpus: int, series: int) -> TrendJudgement:
    """Judge the parts after the last night of *values*; *new* is 1 in runs with a new driver."""
    nights, node = values.shape[1], np.arange(len(values)) // gpus
    found: list[NightLevel] = []
    for night in range(nights):
        for mark in (None, 0.0, 1.0):
            own = new[:, night] == mark if mark is not None else new[:, night] >= 0
            if own.any():
                level = float(np.median(values[own, night]))
                several = bool(np.ptp(node[own]))
                found.append(NightLevel(night, to_mark(mark), level, int(own.sum()), several))
    levels = collect_levels(found)
    divisors = np.empty_like(values)
    for night in range(nights):
        for mark in set(new[:, night]):
            divisors[new[:, night] == mark, night] = levels.find(night, (DRIVERS[int(mark)],))
    ratios = values / divisors
    usual = np.median(ratios, axis=1)
    spread = MAD_SCALE * float(
        np.median(np.median(np.abs(ratios - usual[:, None]), axis=1) / usual)
    )

    def make_history(i: int) -> PartHistory:
        return PartHistory(
            node=f"n{node[i]}",
            part=f"GPU {i % gpus}",
            times=tuple((night + 0.9) * DAY_SECONDS for night in range(nights)),
            values=tuple(values[i].tolist()),
            levels=tuple(divisors[i].tolist()),
            marks={"driver": tuple(DRIVERS[int(mark)] for mark in new[i])},
        )

    moved = np.zeros(len(values), bool)
    for count in LAST_RUNS:
        now = np.median(ratios[:, -count:], axis=1)
        for before in (ratios[:, : -LAST_RUNS[0]][:, -RUNS_BEFORE:], ratios[:, :FIRST_RUNS]):
            moved |= np.abs(now - np.median(before, axis=1)) >= DEFAULT_STEP / 2
    carriers = np.flatnonzero(np.ptp(new, axis=1))
    past = FleetPast(
        histories=[make_history(i) for i in np.flatnonzero(moved).tolist()],
        carriers=[make_history(i) for i in carriers.tolist()],
        levels=levels,
        parts=len(values),
        spread=spread,
        peaks=find_peaks(ratios[:: max(1, len(ratios) // 200)].tolist()),
        series=series,
    )
    return judge_histories(past, low_is_bad=False)


def to_mark(mark: float | None) -> tuple[str, ...] | None:
    """Name the driver."""
    return None if mark is None else (DRIVERS[int(mark)],)


def name_after_each(
    values: Array, new: Array, gpus: int = GPUS, series: int = PARTS
) -> Iterator[set[int]]:
    """Name the parts that are worse, after each night."""
    for nights in range(MIN_RUNS, values.shape[1] + 1):
        judged = judge(values[:, :nights], new[:, :nights], gpus, series)
        worse = [change for change in judged.changes if change.size > 0]
        yield {int(c.node[1:]) * gpus + int(c.part[4:]) for c in worse}


def report(what: str, fleets: list[tuple[Array, Array]], bad: list[set[int]]) -> None:
    """Print how many of the *bad* parts are named, after how many nights, and who else is."""
    delays: list[int] = []
    false: set[tuple[int, int]] = set()
    for number, ((values, new), ill) in enumerate(zip(fleets, bad, strict=True)):
        first: dict[int, int] = {}
        for nights, named in enumerate(name_after_each(values, new), MIN_RUNS):
            for part in named:
                first.setdefault(part, nights)
        delays += [first[part] - BEGIN for part in ill if part in first]
        false |= {(number, part) for part in first.keys() - ill}
    count = sum(map(len, bad))
    print(
        f"{what}: {len(delays)} of {count} found, after {median(delays or [0]):g} nights;"
        f" {len(false)} healthy parts named in {len(fleets) * (NIGHTS - MIN_RUNS)} fleet-nights",
        flush=True,
    )


def measure(kind: str, workload: str, size: float) -> None:
    """Measure fleets of one *kind* in which six parts become slower by *size* than the others."""
    noise = read_noise(workload)
    fleets, bad = [], []
    for seed in range(FLEETS):
        rng = np.random.default_rng(seed)
        values, new = make_runs(rng, noise), np.zeros((PARTS, NIGHTS))
        ill = rng.choice(PARTS // GPUS, BAD, replace=False) * GPUS
        nights = np.arange(NIGHTS)
        begins = np.full(PARTS, BEGIN)
        if kind == "rollout in ten nights":
            begins = BEGIN + (np.arange(PARTS) // GPUS) % 10
        if kind.startswith("rollout"):
            new = (nights >= begins[:, None]).astype(float)
            values *= 1 + 0.03 * new
        elif kind == "fleet drifts":
            values *= 1 + 0.03 * nights / NIGHTS
        elif kind == "afternoons":
            values *= 1 + 0.02 * (rng.random((PARTS // GPUS, NIGHTS)) < 1 / 3).repeat(GPUS, axis=0)
        since = begins[ill] + (6 if kind.endswith("later") else 0)
        worse = nights >= since[:, None]
        if kind == "drift":
            values[ill] *= 1 + size * np.clip((nights - BEGIN) / (NIGHTS - BEGIN), 0, 1)
        else:
            values[ill] *= 1 + size * worse
        fleets.append((values, new))
        bad.append(set(ill.tolist()) if size else set())
    report(f"{workload}, {kind}, {size:.1%}", fleets, bad)


def measure_healthy(sites: int) -> None:
    """Count the sites that name a healthy part in their first 30 nights."""
    count = 64 * 8
    named = 0
    for seed in range(sites):
        rng = np.random.default_rng(1000 + seed)
        names: set[int] = set()
        for _ in range(METRICS):
            own = 1 + 0.003 * (
                rng.normal(size=(64, 1)).repeat(8, axis=0) + rng.normal(size=(count, 1))
            )
            values = own * (1 + 0.003 * rng.normal(size=(count, SITE_NIGHTS)))
            same = np.zeros_like(values)
            for found in name_after_each(values, same, 8, count * METRICS):
                names |= found
        named += bool(names)
    print(f"healthy: {named} of {sites} sites name a part in {SITE_NIGHTS} nights", flush=True)


KINDS = {
    "steps": (("step", 0.0), ("step", 0.01), ("step", 0.02), ("step", 0.03)),
    "drifts": (("drift", 0.01), ("drift", 0.02), ("drift", 0.03)),
    "rollouts": (
        ("rollout", 0.03),
        ("rollout in ten nights", 0.03),
        ("rollout, later", 0.03),
    ),
    "fleets": (("fleet drifts", 0.0), ("fleet drifts", 0.03)),
    "afternoons": (("afternoons", 0.0), ("afternoons", 0.03)),
}


def main() -> None:
    """Measure what is asked for, or all."""
    asked = sys.argv[1:] or [*KINDS, "healthy"]
    for kind in (kind for kind in KINDS if kind in asked):
        for workload in ("sgemm", "bert", "resnet", "0.6 %"):
            for name, size in KINDS[kind]:
                measure(name, workload, size)
    if "healthy" in asked:
        measure_healthy(SITES)


if __name__ == "__main__":
    main()
