"""The five numbers of a metric are those of the rule in Python, from all its values."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

from hpcverify.history.reader import Choice
from hpcverify.history.screen import PartValue, PeerMetric, open_screen
from tests.history.nights import make_run, write_runs

PRODUCTS = PeerMetric("idle", "gemm", "bf16.sustained", "TFLOP/s", "gpu", "H100")


def test_a_metric_is_summarized_as_the_rule_does(tmp_path: Path) -> None:
    dice = random.Random(17)
    values = [500 * dice.gauss(1, 0.01) for _ in range(40)]
    write_runs(tmp_path, *(make_run(f"n{i:02}", value=v, gpus=1) for i, v in enumerate(values)))

    with open_screen(tmp_path, Choice()) as screen:
        (found,) = (one for one in screen.summarize() if one.of == PRODUCTS)

    centre = median(values)
    assert (found.parts, found.centre) == (40, centre)
    assert found.mad == median(abs(value - centre) for value in values)
    assert (found.low, found.high) == (min(values), max(values))


def test_a_part_has_one_value_the_median_of_its_runs(tmp_path: Path) -> None:
    write_runs(tmp_path, *(make_run("n1", night, 480.0 + night, gpus=1) for night in range(3)))
    write_runs(tmp_path, *(make_run("n2", night, 500.0, gpus=1) for night in range(2)))

    with open_screen(tmp_path, Choice()) as screen:
        (found,) = (one for one in screen.summarize() if one.of == PRODUCTS)
        values = screen.read_values(PRODUCTS)

    assert (found.parts, found.low, found.high) == (2, 481.0, 500.0)
    assert values == [
        PartValue("n1", "GPU-n1-0", "GPU 0", 481.0, 3),
        PartValue("n2", "GPU-n2-0", "GPU 0", 500.0, 2),
    ]


def test_a_value_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    write_runs(tmp_path, make_run("n1", value=None, gpus=1), make_run("n2", gpus=1))

    with open_screen(tmp_path, Choice()) as screen:
        assert [one.node for one in screen.read_values(PRODUCTS)] == ["n2"]
