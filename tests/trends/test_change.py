"""A step in the runs of one part is found within five runs, and nothing else is one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from statistics import median

import pytest

from hpcverify.peers.values import PartRuns
from hpcverify.trends.change import DEFAULT_STEP, find_changes
from tests.peers.fleets import draw_heavy_tailed, read_longhorn

STEP = 0.01


def order(runs: PartRuns) -> list[float]:
    return [value for _, value in sorted(zip(runs.times, runs.values, strict=True))]


def is_unchanged(values: Sequence[float]) -> bool:
    """Whether the halves of the runs are alike, and no quarter is away from the whole."""
    whole, half, quarter = median(values), len(values) // 2, len(values) // 4
    quarters = [values[i * quarter : (i + 1) * quarter] for i in range(3)] + [values[3 * quarter :]]
    alike = abs(median(values[half:]) / median(values[:half]) - 1) < 0.003
    return alike and all(abs(median(part) / whole - 1) < 0.005 for part in quarters)


def read_quiet_gpus() -> list[list[float]]:
    """Read the GPUs of SGEMM with enough runs that are what they were."""
    series = [order(runs) for runs in read_longhorn("sgemm") if len(runs.values) >= 20]
    return list(filter(is_unchanged, series))


def test_a_step_of_1_percent_is_found_within_5_runs_on_real_gpus() -> None:
    gpus = read_quiet_gpus()
    found = 0
    for values in gpus:
        begin = len(values) // 2
        stepped = values[:begin] + [value * (1 + STEP) for value in values[begin:]]
        changes = [change for change in find_changes(stepped) if change.size > 0]
        found += any(begin <= change.found < begin + 5 for change in changes)

    assert len(gpus) > 150
    assert found / len(gpus) > 0.85


def test_no_real_gpu_that_is_what_it_was_is_flagged() -> None:
    flagged = [change for values in read_quiet_gpus() for change in find_changes(values)]
    assert flagged == []


@pytest.mark.parametrize("size", [0.01, -0.01, 0.03])
def test_a_step_is_found_where_it_is(size: float) -> None:
    delays = []
    for seed in range(200):
        rng = random.Random(seed)
        values = [
            100 * rng.gauss(1, 0.0015) * (1 + (size if run >= 30 else 0)) for run in range(60)
        ]
        (change,) = find_changes(values)
        assert abs(change.index - 30) <= 1
        assert change.size == pytest.approx(size, rel=0.3)
        delays.append(change.found - 30 + 1)

    assert median(delays) <= 4


@pytest.mark.parametrize("noise", ["normal", "heavy tails", "outliers", "equal", "few"])
def test_runs_without_a_step_have_none(noise: str) -> None:
    for seed in range(200):
        rng = random.Random(seed)
        draws = {
            "normal": lambda: rng.gauss(0, 0.002),  # noqa: B023 - called at once
            "heavy tails": lambda: 0.001 * draw_heavy_tailed(rng),  # noqa: B023
            "outliers": lambda: rng.gauss(0, 0.001) + (0.2 if rng.random() < 0.03 else 0),  # noqa: B023
            "equal": lambda: 0.0,
            "few": lambda: rng.gauss(0, 0.1),  # noqa: B023
        }
        length = 7 if noise == "few" else 90
        assert find_changes([100 * (1 + draws[noise]()) for _ in range(length)]) == [], seed


def test_a_smaller_step_than_the_least_one_is_none() -> None:
    rng = random.Random(1)
    size = DEFAULT_STEP / 2
    values = [100 * rng.gauss(1, 0.0002) * (1 + (size if i >= 30 else 0)) for i in range(60)]
    assert find_changes(values) == []


def test_each_of_two_steps_is_found() -> None:
    rng = random.Random(1)
    steps = accumulate(0.03 if i in {20, 40} else 0.0 for i in range(60))
    values = [100 * rng.gauss(1, 0.001) * (1 + step) for step in steps]
    assert [change.index for change in find_changes(values)] == [20, 40]


def test_values_around_zero_have_no_step() -> None:
    assert find_changes([0.0] * 30 + [5.0] * 30) == []
