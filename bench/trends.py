"""
A CUSUM of our own against ruptures (PyPI): delay, false alarms, CPU seconds.

    pip install ruptures
    .venv/bin/python bench/trends.py

Series: each fifth of the GPUs of Longhorn's SGEMM (tests/peers/longhorn) with at least 20 runs that
are what they were (tests/trends/test_change.py); and made ones of 60 runs (spread 0.15 %, Student's
t of 3 degrees of freedom). Each is judged as it is, and with a step of 1 % from its middle on.
ruptures sees all runs up to each one in turn, as an operator would after each night; its penalty is
3 ln(n) sigma^2 (BIC) and more. Both name only lasting steps of at least 0.75 %.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import ruptures  # see above

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from hpcverify.trends.change import (  # noqa: E402 - below the path
    DEFAULT_STEP,
    MIN_AFTER,
    MIN_PAST,
    find_changes,
)
from tests.peers.fleets import draw_heavy_tailed  # noqa: E402 - as are
from tests.trends.test_change import read_quiet_gpus  # noqa: E402 - these

SIZE = 0.01
LATEST = 5
"""Runs within which a step has to be found."""
Finder = Callable[[Sequence[float]], "int | None"]
"""Takes a series; returns the run in which its first step to the worse was told."""


def find_by_cusum(values: Sequence[float]) -> int | None:
    """Find the first alarm of ours."""
    return next((change.found for change in find_changes(values) if change.size > 0), None)


def find_by_pelt(penalty: float, cost: str) -> Finder:
    """Make a finder that runs PELT after each run."""

    def find(values: Sequence[float]) -> int | None:
        for run in range(MIN_PAST + MIN_AFTER, len(values) + 1):
            seen = np.array(values[:run]) / median(values[:run])
            noise = 1.4826 * float(np.median(np.abs(np.diff(seen)))) / math.sqrt(2) + 1e-6
            pelt = ruptures.Pelt(model=cost, min_size=MIN_AFTER, jump=1).fit(seen / noise)
            ends = pelt.predict(pen=penalty * math.log(run))
            if len(ends) < 2:
                continue
            begin = ends[-3] if len(ends) > 2 else 0
            before, after = seen[begin : ends[-2]], seen[ends[-2] :]
            if float(np.median(after) / np.median(before)) - 1 >= DEFAULT_STEP:
                return run - 1
        return None

    return find


def make_series(seed: int) -> list[float]:
    """Make 60 runs without a step."""
    rng = random.Random(seed)
    return [100 * (1 + 0.0015 / 1.13 * draw_heavy_tailed(rng)) for _ in range(60)]


def measure(name: str, find: Finder, series: Sequence[list[float]]) -> None:
    """Print what *find* does with *series*, without a step and with one."""
    began = time.process_time()
    false = sum(find(values) is not None for values in series)
    delays: list[int] = []
    missed = 0
    for values in series:
        begin = max(MIN_PAST, len(values) // 2)
        stepped = values[:begin] + [value * (1 + SIZE) for value in values[begin:]]
        found = find(stepped)
        if found is None or found < begin:
            missed += 1
        else:
            delays.append(found - begin + 1)
    soon = sum(delay <= LATEST for delay in delays)
    print(
        f"  {name:26} found within {LATEST}: {soon}/{len(series)}, median delay "
        f"{median(delays) if delays else math.nan:.0f}, missed {missed}, "
        f"false alarms {false}/{len(series)}, CPU {time.process_time() - began:.2f} s"
    )


def main() -> None:
    """Measure each finder on both kinds of series."""
    finders: dict[str, Finder] = {"CUSUM": find_by_cusum}
    for penalty in (3, 10):
        finders[f"PELT l2, {penalty} ln n"] = find_by_pelt(penalty, "l2")
    finders["PELT rbf, 3 ln n"] = find_by_pelt(3, "rbf")
    kinds = {"Longhorn": read_quiet_gpus()[::5], "made": [make_series(seed) for seed in range(30)]}
    for kind, series in kinds.items():
        print(f"{kind}: {len(series)} series, {sum(map(len, series))} runs")
        for name, find in finders.items():
            measure(name, find, series)


if __name__ == "__main__":
    main()
