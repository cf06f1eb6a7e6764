"""The picture of a metric: every value has a bar, every outlier a mark and a name."""

from __future__ import annotations

import re
from itertools import pairwise

from hpcverify.model import Verdict
from hpcverify_reports.histogram import (
    BARS_BOTTOM,
    LEAST_BAR,
    MAX_NAMED,
    WIDTH,
    Histogram,
    OutlierPoint,
    draw_histogram,
)
from hpcverify_reports.labels import ICONS
from tests.reports.fleets import GEMM, distribute


def point(name: str, value: float) -> OutlierPoint:
    """Make an outlier that warns."""
    return OutlierPoint(name, value, "4 % too low", ICONS[Verdict.WARN])


def draw(*far: float, outliers: int = 0) -> Histogram:
    """Draw 512 values around 700, with some that are far and the outliers among them."""
    points = [point(f"n{place}", value) for place, value in enumerate(far[:outliers])]
    metric, values = distribute(GEMM, "TFLOP/s", 700.0, 0.005, *far)
    return draw_histogram(metric.name, values, 700.0, points, "512 parts")


def test_a_single_value_far_from_all_others_has_a_bar_that_is_seen() -> None:
    heights = [float(tall) for tall in re.findall(r"v-([0-9.]+)", draw(500.0).bars)]

    assert heights[0] == LEAST_BAR
    assert max(heights) == 60.0


def test_an_outlier_has_a_mark_where_its_value_is() -> None:
    (mark,) = draw(600.0, outliers=1).marks
    first = re.match(r"M([0-9.]+) ", draw(600.0).bars)

    assert first is not None
    assert abs(mark.x + 6.5 - float(first[1])) < 4
    assert mark.y < BARS_BOTTOM - 60
    assert mark.title == "n0: 4 % too low"


def test_marks_of_near_values_do_not_lie_over_each_other() -> None:
    marks = draw(600.0, 600.1, 600.2, outliers=3).marks

    assert len({mark.y for mark in marks}) == 3


def test_a_few_outliers_are_named_below_and_the_others_counted() -> None:
    drawn = draw(*(600.0 + i for i in range(MAX_NAMED + 2)), outliers=MAX_NAMED + 2)

    assert drawn.caption.startswith("n0, 4 % too low; n1")
    assert drawn.caption.endswith("; and 2 more")
    assert drawn.caption in drawn.description


def test_equal_values_are_one_bar_in_the_middle() -> None:
    metric, values = distribute(GEMM, "TFLOP/s", 700.0, 0.0)
    drawn = draw_histogram(metric.name, values, 700.0, [], "512 parts")

    assert drawn.bars.count("M") == 1
    assert drawn.median == WIDTH / 2
    assert [tick.text for tick in drawn.ticks] == ["700"]
    assert drawn.caption == "512 parts"


def test_numbers_below_the_axis_do_not_touch() -> None:
    places = sorted(tick.at for tick in draw(699.0).ticks)

    assert all(b - a >= 60 for a, b in pairwise(places))
