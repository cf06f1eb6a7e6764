"""
Who is named among planted faults and in healthy fleets, and what a large table costs.

Equal and graded faults (6, 10 and 30 %, and spread from 5.5 to 30 %) of 1 to 15 % of 32 to 1,000
parts; a fault beyond 5 % and five spreads is to be named. Healthy fleets are judged by one night
and by two that agree. Sites are of 64 nodes with eight parts each and ten metrics, over 30 nights.
Noise is drawn from normal values and Student's t; with FILES, tables of real runs with the columns
gpu and milliseconds, also from those: the better half of their parts, mirrored, so that what is bad
in them is not in it. Who is named in the FILES themselves comes first.

    python bench/peers.py [FILE ...]
    python bench/peers.py --table      # 10,000 nodes x 200 metrics: CPU and memory of the command
"""

from __future__ import annotations

import csv
import gzip
import math
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.peers.fleet import judge_metric  # noqa: E402 - below the path
from hpcverify.peers.floors import PeerFloor  # noqa: E402 - as this
from hpcverify.peers.level import judge_level  # noqa: E402 - as this
from hpcverify.peers.table import choose_columns, collect_runs  # noqa: E402 - as this
from hpcverify.peers.values import MetricName, PartValue, reduce_runs  # noqa: E402 - as this
from hpcverify.stats import MAD_SCALE, find_mad  # noqa: E402 - as this

FLOOR = PeerFloor(floor=0.02)
FEW_SIZES, MANY_SIZES = (4, 7, 12), (32, 64, 100, 232, 400, 1000)
SIZES = (*FEW_SIZES, *MANY_SIZES)
SHARES = (0.01, 0.03, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15)
FAULTS: dict[str, Callable[[random.Random], float]] = {
    "6 %": lambda _: 0.06,
    "10 %": lambda _: 0.10,
    "30 %": lambda _: 0.30,
    "5.5 to 30 %": lambda rng: rng.uniform(0.055, 0.30),
    "5.5 to 30 %, most small": lambda rng: 0.055 * 5.5 ** rng.random(),
}
LEAST, SPREADS = 0.05, 5.0
SEEDS, HEALTHY = 4, 300
SITES, SITE_METRICS, SITE_NIGHTS, SITE_NODES, SITE_PARTS = 20, 10, 30, 64, 8
NODES, METRICS = 10_000, 200
Draw = Callable[[random.Random], float]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read the rows of a table of runs."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file))


def report_real(path: Path) -> None:
    """Print who is named in a table of real runs."""
    rows = read_rows(path)
    ((name, runs),) = collect_runs(rows, choose_columns(list(rows[0]), {}, ())).items()
    parts = list(filter(None, map(reduce_runs, runs.values())))
    named = judge_metric(name, parts, FLOOR, "high").outliers
    listed = ", ".join(f"{one.name} ({100 * one.distance:.1f} %)" for one in named)
    print(f"{path.name}: {len(named)} named: {listed}")


def read_noise(path: Path) -> tuple[Draw, float]:
    """Make what draws from the parts of a table of runs, and find their spread."""
    runs: dict[str, list[float]] = {}
    for row in read_rows(path):
        runs.setdefault(row["gpu"], []).append(float(row["milliseconds"]))
    values = [median(some) for some in runs.values()]
    centre = median(values)
    distances = [value / centre - 1 for value in values]
    if abs(min(distances)) > 10 * MAD_SCALE * find_mad(distances, 0.0):  # of two kinds
        distances = [d for d in distances if d > min(distances) / 2]
    better = [d - median(distances) for d in distances if d <= median(distances)]
    pool = [*better, *(-d for d in better)]
    return (lambda rng: rng.choice(pool)), MAD_SCALE * find_mad(pool, 0.0)


def make_noises(paths: Sequence[Path]) -> dict[str, tuple[Draw, float]]:
    """Make all kinds of noise, each with its spread."""
    return {
        "normal 0.2 %": (lambda rng: rng.gauss(0, 0.002), 0.002),
        "normal 0.6 %": (lambda rng: rng.gauss(0, 0.006), 0.006),
        "normal 1.7 %": (lambda rng: rng.gauss(0, 0.017), 0.017),
        "t of 5, 0.4 %": (lambda rng: 0.004 * draw_t(rng, 5), 0.0042),
        **{path.name.split(".")[0]: read_noise(path) for path in paths},
    }


def draw_t(rng: random.Random, freedom: float) -> float:
    """Draw from Student's t."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(freedom / 2, 2 / freedom))


def judge(distances: Sequence[float]) -> Mapping[int, float]:
    """Judge one list as the command does."""
    return judge_level(distances, FLOOR.floor).outliers


def report_planted(name: str, draw: Draw, spread: float, sizes: Sequence[int]) -> None:
    """Print in how many fleets with faults all of them were named."""
    counts: Counter[str] = Counter()
    for fault, plant in FAULTS.items():
        for size in sizes:
            for share in SHARES:
                for seed in range(SEEDS):
                    rng = random.Random(f"{fault} {size} {share} {seed}")  # noqa: S311 - no secret
                    planted = [plant(rng) for _ in range(max(1, round(share * size)))]
                    counts += Counter(_judge_planted(draw, spread, planted, size, rng))
    cells = " | ".join(str(counts[k]) for k in KEYS)
    print(f"| {name}, {min(sizes)} to {max(sizes)} | {cells} |", flush=True)


KEYS = ("fleets", "all named", "some missed", "all missed", "false")


def _judge_planted(
    draw: Draw, spread: float, planted: Sequence[float], size: int, rng: random.Random
) -> list[str]:
    values = [draw(rng) + (planted[i] if i < len(planted) else 0) for i in range(size)]
    far = max(LEAST, SPREADS * spread)
    due = {i for i, d in enumerate(planted) if d >= far and values[i] >= far}
    named = judge(values).keys()
    how = "all named" if due <= named else "some missed" if due & named else "all missed"
    return ["fleets", how, *(["false"] if any(i >= len(planted) for i in named) else [])]


def report_healthy(name: str, draw: Draw) -> None:
    """Print the share of healthy fleets with a name, by one night and by two that agree."""
    cells = []
    for size in SIZES:
        once = twice = 0
        for seed in range(HEALTHY):
            rng = random.Random(f"{size} {seed}")  # noqa: S311 - no secret
            first, second = (judge([draw(rng) for _ in range(size)]) for _ in range(2))
            once += bool(first)
            twice += bool(first.keys() & second.keys())
        cells.append(f"{100 * once / HEALTHY:.1f}, {100 * twice / HEALTHY:.1f}")
    print(f"| {name} | {' | '.join(cells)} |")


def report_sites(name: str, run: Draw) -> None:
    """Print how many healthy sites have a name on two nights in a row, and names of one night."""
    sites = once = twice = 0
    for site in range(SITES):
        names = [_list_names(f"{site} {metric}", run) for metric in range(SITE_METRICS)]
        agreed = sum(len(set().union(*(a & b for a, b in pairwise(some)))) for some in names)
        once += sum(len(night) for some in names for night in some)
        twice += agreed
        sites += bool(agreed)
    fleets = SITES * SITE_METRICS
    print(
        f"| {name} | {once / fleets / SITE_NIGHTS:.3f} | {twice / fleets:.3f}"
        f" | {sites} of {SITES} |",
        flush=True,
    )


def _list_names(seed: str, run: Draw) -> list[set[str]]:
    """List whom each night of a fleet names; nodes, parts and runs differ by 0.3 % each."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    levels = [
        (f"n{n}", f"GPU {g}", node + rng.gauss(0, 0.003))
        for n in range(SITE_NODES)
        for node in [rng.gauss(1, 0.003)]
        for g in range(SITE_PARTS)
    ]
    nights = []
    for _ in range(SITE_NIGHTS):
        parts = [
            PartValue(node, part, 500 * (level + run(rng)), 1, None, {}, {})
            for node, part, level in levels
        ]
        judged = judge_metric(MetricName("rate"), parts, FLOOR, "low")
        nights.append({outlier.name for outlier in judged.outliers})
    return nights


def report_table() -> None:
    """Print what the command costs on a table of 2,000,000 rows, in CSV, long and wide."""
    rng = random.Random(1)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as folder:
        tables = {"long": Path(folder, "long.csv"), "wide": Path(folder, "wide.csv")}
        with tables["long"].open("w") as long, tables["wide"].open("w") as wide:
            long.write("node,metric,value\n")
            wide.write(f"node,{','.join(f'm{m}_tflops' for m in range(METRICS))}\n")
            for n in range(NODES):
                bad = 0.95 if n % 500 == 0 else 1
                row = [100 * rng.gauss(1, 0.006) * (bad if m == 3 else 1) for m in range(METRICS)]
                wide.write(f"n{n:05},{','.join(f'{v:.4f}' for v in row)}\n")
                long.writelines(f"n{n:05},m{m}_tflops,{v:.4f}\n" for m, v in enumerate(row))
        for name, path in tables.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
            done = subprocess.run(
                [str(Path(sys.executable).with_name("hpcverify")), "peers", str(path)],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "HPCVERIFY_STATE": folder},
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(
                f"{name}: {done.stdout.splitlines()[0]}; {cpu:.1f} s of CPU, "
                f"{time.monotonic() - began:.1f} s, at most {after.ru_maxrss / 1024:.0f} MiB"
            )


def main() -> None:
    """Measure, and print a table."""
    if "--table" in sys.argv:
        report_table()
        return
    paths = [Path(path) for path in sys.argv[1:]]
    for path in paths:
        report_real(path)
    noises = make_noises(paths)
    print(f"\n| planted faults in | {' | '.join(KEYS)} |\n|---|---|---|---|---|---|")
    for name, (draw, spread) in noises.items():
        report_planted(name, draw, spread, MANY_SIZES)
        report_planted(name, draw, spread, FEW_SIZES)
    print(f"\n| healthy, % | {' | '.join(map(str, SIZES))} |\n|{'---|' * (len(SIZES) + 1)}")
    for name, (draw, _) in noises.items():
        report_healthy(name, draw)
    print("\n| healthy sites | names a night | on two nights | sites with one |\n|---|---|---|---|")
    report_sites("normal runs of 0.3 %", lambda rng: rng.gauss(0, 0.003))
    report_sites("runs of t of 3, 0.3 %", lambda rng: 0.003 * 0.882 * draw_t(rng, 3))
    report_sites("runs of t of 3, 0.5 %", lambda rng: 0.005 * 0.882 * draw_t(rng, 3))


if __name__ == "__main__":
    main()
