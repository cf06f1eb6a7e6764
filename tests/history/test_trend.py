"""What has moved over many nights is named, and what has not is left out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hpcverify.history.reader import Choice
from hpcverify.history.screen import open_screen
from hpcverify.history.trend import PartTrend
from tests.history.nights import make_run, write_runs
from tests.history.test_screen import PRODUCTS

NIGHTS = 20
LEAST = 0.008


def read_trends(state: Path) -> list[PartTrend]:
    with open_screen(state, Choice()) as screen:
        return screen.read_trends(PRODUCTS, LEAST)


def write_nights(state: Path, factors: list[float]) -> None:
    """Write nights of one node whose value changes by *factors*, and of two that stay."""
    dice = random.Random(5)
    write_runs(
        state,
        *(
            make_run(node, night, 500 * factor * dice.gauss(1, 0.001), gpus=1)
            for night, moved in enumerate(factors)
            for node, factor in (("moved", moved), ("one", 1.0), ("two", 1.0))
        ),
        night=NIGHTS,
    )


def test_parts_that_stay_are_not_named(tmp_path: Path) -> None:
    write_nights(tmp_path, [1.0] * NIGHTS)

    assert read_trends(tmp_path) == []


def test_a_step_of_one_percent_is_seen_after_three_runs(tmp_path: Path) -> None:
    write_nights(tmp_path, [1.0] * (NIGHTS - 3) + [0.99] * 3)

    (found,) = read_trends(tmp_path)

    assert found.node == "moved"
    assert found.step == pytest.approx(-0.01, abs=0.003)


def test_a_slow_drift_is_seen_with_its_slope(tmp_path: Path) -> None:
    write_nights(tmp_path, [1 - 0.001 * night for night in range(NIGHTS)])

    (found,) = read_trends(tmp_path)

    assert (found.node, found.runs, found.days) == ("moved", NIGHTS, NIGHTS - 1)
    assert found.slope == pytest.approx(-0.5, rel=0.1)
    assert found.drift == pytest.approx(-0.019, rel=0.1)


def test_few_runs_have_no_trend(tmp_path: Path) -> None:
    write_nights(tmp_path, [1.0, 1.0, 0.9, 0.9, 0.9])

    assert read_trends(tmp_path) == []
