"""What a database may turn away, the judge has nothing to say about."""

from __future__ import annotations

import random
from statistics import median

from hpcverify.peers.level import Standing
from hpcverify.peers.rule import find_distance, find_mad, needs_judgement
from tests.peers.fleets import FLOOR, judge_values


def test_a_metric_that_the_screen_turns_away_has_no_outlier_and_is_not_split() -> None:
    turned_away = 0
    for seed in range(300):
        rng = random.Random(seed)
        spread, bad = rng.choice((0.001, 0.003, 0.006, 0.02)), rng.choice((0, 0, 1, 5, 60))
        away = rng.choice((0.01, 0.02, 0.03, 0.05))
        values = [100 * rng.gauss(1 - (away if i < bad else 0), spread) for i in range(200)]
        centre = median(values)
        worst = max(find_distance(value, centre, low_is_bad=True) for value in values)
        if needs_judgement(centre, find_mad(values, centre), worst, FLOOR.floor):
            continue
        turned_away += 1
        judged = judge_values([[value] for value in values])
        assert judged.outliers == (), seed
        assert judged.standing not in {Standing.SPLIT, Standing.TOO_NOISY}, seed

    assert turned_away > 50


def test_a_distance_is_positive_on_the_bad_side() -> None:
    assert find_distance(97, 100, low_is_bad=True) == 0.03
    assert find_distance(97, 100, low_is_bad=False) == -0.03
