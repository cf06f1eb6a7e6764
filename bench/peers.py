"""
Who is named among planted faults and in healthy fleets, and what a large table costs.

Equal and graded faults (6, 10 and 30 %, and spread from 5.5 to 30 %) of 1 to 20 % of 32 to 1,000
parts. A fault beyond 5 % and five spreads is to be named, or it is to be said that many are bad;
*noted* are those that are listed by name as far, but no further than chance may take one.
Healthy fleets are judged by one night and by two that agree. Noise is drawn from normal values and
Student's t; with FILES, tables of real runs with the columns gpu and milliseconds, also from those:
the better half of their parts, mirrored, so that what is bad in them is not in it.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.peers.level import (  # noqa: E402 - below the path
    Judgeability,
    LevelJudgement,
    find_unnamed,
    judge_level,
)
from hpcverify.stats import MAD_SCALE, find_mad  # noqa: E402 - as this

FLOOR = 0.02
SIZES = (32, 64, 100, 232, 400, 1000)
SHARES = (0.01, 0.03, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2)
FAULTS: dict[str, Callable[[random.Random], float]] = {
    "6 %": lambda _: 0.06,
    "10 %": lambda _: 0.10,
    "30 %": lambda _: 0.30,
    "5.5 to 30 %": lambda rng: rng.uniform(0.055, 0.30),
    "5.5 to 30 %, most small": lambda rng: 0.055 * 5.5 ** rng.random(),
}
LEAST, SPREADS, MANY = 0.05, 5.0, 0.1
SEEDS, HEALTHY = 4, 300
NODES, METRICS = 10_000, 200
Draw = Callable[[random.Random], float]


def read_noise(path: Path) -> tuple[Draw, float]:
    """Make what draws from the parts of a table of runs, and find their spread."""
    runs: dict[str, list[float]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
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


def judge(distances: Sequence[float]) -> LevelJudgement:
    """Judge one list as the command does."""
    return judge_level(distances, FLOOR, [0.0] * len(distances))


def report_planted(name: str, draw: Draw, spread: float) -> None:
    """Print how many fleets with faults had all of them named, or were said to have many."""
    counts: Counter[str] = Counter()
    for fault, plant in FAULTS.items():
        for size in SIZES:
            for share in SHARES:
                for seed in range(SEEDS):
                    rng = random.Random(f"{fault} {size} {share} {seed}")  # noqa: S311 - no secret
                    planted = [plant(rng) for _ in range(max(1, round(share * size)))]
                    counts += Counter(_judge_planted(draw, spread, planted, size, rng))
    print(f"| {name} | {' | '.join(str(counts[k]) for k in KEYS)} |")


KEYS = ("fleets", "all named", "said many", "noted", "missed", "false")


def _judge_planted(
    draw: Draw, spread: float, planted: Sequence[float], size: int, rng: random.Random
) -> list[str]:
    values = [draw(rng) + (planted[i] if i < len(planted) else 0) for i in range(size)]
    far = max(LEAST, SPREADS * spread)
    due = {i for i, d in enumerate(planted) if d >= far and values[i] >= far}
    judged = judge(values)
    many = judged.spread.judgeability is Judgeability.SPLIT or len(judged.outliers) > MANY * size
    left = [0.0 if i in judged.outliers else d for i, d in enumerate(values)]
    missing = due - judged.outliers.keys()
    noted = missing <= {*find_unnamed(left, judged.spread, FLOOR)}
    how = "missed" if missing else "all named"
    if missing and (many or noted):
        how = "said many" if many else "noted"
    healthy = [i for i in judged.outliers if i >= len(planted)]
    return ["fleets", how, *(["false"] if healthy else [])]


def report_healthy(name: str, draw: Draw) -> None:
    """Print the share of healthy fleets with a name, by one night and by two that agree."""
    cells = []
    for size in SIZES:
        once = twice = 0
        for seed in range(HEALTHY):
            rng = random.Random(f"{size} {seed}")  # noqa: S311 - no secret
            first, second = (judge([draw(rng) for _ in range(size)]).outliers for _ in range(2))
            once += bool(first)
            twice += bool(first.keys() & second.keys())
        cells.append(f"{100 * once / HEALTHY:.1f}, {100 * twice / HEALTHY:.1f}")
    print(f"| {name} | {' | '.join(cells)} |")


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
    noises = make_noises([Path(path) for path in sys.argv[1:]])
    print(f"| planted faults in | {' | '.join(KEYS)} |\n|---|---|---|---|---|---|---|")
    for name, (draw, spread) in noises.items():
        report_planted(name, draw, spread)
    print(f"\n| healthy, % | {' | '.join(map(str, SIZES))} |\n|---|---|---|---|---|---|---|")
    for name, (draw, _) in noises.items():
        report_healthy(name, draw)


if __name__ == "__main__":
    main()
