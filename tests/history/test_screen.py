"""The five numbers of a metric are those of the rule in Python, from all its values."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

import pytest

from hpcverify.history import screen as screen_module
from hpcverify.history.reader import Choice
from hpcverify.history.screen import PartMedian, PeerMetric, ScreenedList, open_screen
from hpcverify.peers.level import judge_level
from hpcverify.peers.rule import DEFAULT_FLOOR as FLOOR
from hpcverify.peers.rule import find_distance
from hpcverify.stats import find_mad
from tests.history.nights import make_run, write_runs

PRODUCTS = PeerMetric("idle", "gemm", "bf16.sustained", "TFLOP/s", "gpu", "H100")


def write_fleet(state: Path, values: list[float]) -> None:
    """Write a night in which each node has one GPU with its own of *values*."""
    write_runs(state, *(make_run(f"n{i:03}", value=v, gpus=1) for i, v in enumerate(values)))


def screen_products(state: Path, *, whole_nodes: bool = False) -> ScreenedList:
    with open_screen(state, Choice()) as screen:
        (found,) = (
            one
            for one in screen.screen(lambda _: FLOOR)
            if one.of == PRODUCTS and one.whole_nodes == whole_nodes
        )
    return found


def draw_values(count: int, seed: int, spread: float = 0.005) -> list[float]:
    dice = random.Random(seed)
    return [500 * dice.gauss(1, spread) for _ in range(count)]


def test_a_list_is_summarized_as_the_rule_does(tmp_path: Path) -> None:
    values = draw_values(40, 17)
    write_fleet(tmp_path, values)

    summary = screen_products(tmp_path).summary

    centre = median(values)
    assert (summary.peers, summary.centre) == (40, centre)
    assert summary.mad == find_mad(values, centre)
    assert (summary.low, summary.high) == (min(values), max(values))


@pytest.mark.parametrize("ends", [1, screen_module.END_VALUES])
@pytest.mark.parametrize("seed", range(8))
def test_whom_the_rule_names_is_never_turned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ends: int
) -> None:
    monkeypatch.setattr(screen_module, "END_VALUES", ends)
    dice = random.Random(seed)
    values = draw_values(60, seed, spread=dice.choice([0.001, 0.004, 0.008, 0.03]))
    for i in range(dice.randrange(4)):
        values[i] *= 1 - dice.uniform(0.01, 0.06)
    centre = median(values)
    distances = [find_distance(value, centre, low_is_bad=True) for value in values]
    judged = judge_level(distances, FLOOR, [0.0] * len(distances))
    write_fleet(tmp_path, values)

    found = screen_products(tmp_path)

    named = {f"n{i:03}" for i in judged.outliers}
    assert found.needs_judgement or not named
    assert found.may_be_split or named <= {one.node for one in found.far}


def test_an_even_fleet_needs_no_judgement(tmp_path: Path) -> None:
    write_fleet(tmp_path, draw_values(200, 3))
    assert not screen_products(tmp_path).needs_judgement


def test_a_slow_gpu_is_far(tmp_path: Path) -> None:
    values = draw_values(200, 3)
    values[7] *= 0.96
    write_fleet(tmp_path, values)
    (far,) = screen_products(tmp_path).far
    assert far == PartMedian("n007", "GPU-n007-0", "GPU 0", values[7], 1)


def test_a_node_has_the_median_of_its_parts(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1", value=480.0, gpus=3), make_run("n2", gpus=1))

    with open_screen(tmp_path, Choice()) as screen:
        found = screen.read_values(PRODUCTS, whole_nodes=True)

    assert [(one.node, one.part, one.value) for one in found] == [
        ("n1", "", 501.0),
        ("n2", "", 500.0),
    ]


def test_a_part_has_one_value_the_median_of_its_runs(tmp_path: Path) -> None:
    write_runs(tmp_path, *(make_run("n1", night, 480.0 + night, gpus=1) for night in range(3)))
    write_runs(tmp_path, *(make_run("n2", night, 500.0, gpus=1) for night in range(2)))

    with open_screen(tmp_path, Choice()) as screen:
        values = screen.read_values(PRODUCTS)
    found = screen_products(tmp_path).summary
    assert (found.peers, found.low, found.high) == (2, 481.0, 500.0)
    assert values == [
        PartMedian("n1", "GPU-n1-0", "GPU 0", 481.0, 3),
        PartMedian("n2", "GPU-n2-0", "GPU 0", 500.0, 2),
    ]


def test_a_value_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1", value=None, gpus=1), make_run("n2", gpus=1))
    with open_screen(tmp_path, Choice()) as screen:
        assert [one.node for one in screen.read_values(PRODUCTS)] == ["n2"]
