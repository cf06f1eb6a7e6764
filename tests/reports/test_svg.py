"""The geometry of the charts: no spike is lost, no label hides another."""

from __future__ import annotations

import math
import re
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcverify.model import Verdict
from hpcverify_reports.labels import ICONS
from hpcverify_reports.svg import (
    CHART_HEIGHT,
    CHART_WIDTH,
    MAX_LABELED_LINES,
    MAX_POINTS,
    STRIP_WIDTH,
    Chart,
    Tick,
    Trace,
    choose_round_steps,
    draw_chart,
    draw_sparkline,
    draw_strip,
    is_drawable,
    space_labels,
    thin_trace,
    write_path,
)

FINITE = st.floats(-1e6, 1e6)


def trace(values: list[float], label: str = "GPU 0") -> Trace:
    return Trace(label, tuple(map(float, range(len(values)))), tuple(values))


def drawn(*traces: Trace, bounds: tuple[Tick, ...] = ()) -> Chart:
    made = draw_chart("clock", "MHz", traces, bounds)
    assert made is not None
    return made


def points(text: str) -> list[tuple[float, float]]:
    numbers = [int(n) / 10 for n in re.findall(r"-?\d+", text)]
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return list(accumulate(pairs, lambda a, b: (a[0] + b[0], a[1] + b[1])))


@given(st.integers(0, 599))
def test_a_spike_of_one_sample_is_kept(at: int) -> None:
    values = [1980.0] * 600
    values[at] = 345.0

    kept = thin_trace(trace(values))

    assert (float(at), 345.0) in kept
    assert len(kept) <= MAX_POINTS


def test_a_spike_is_drawn_where_it_was() -> None:
    values = [1980.0] * 600
    values[412] = 345.0

    made = drawn(trace(values))

    deepest = max(points(made.lines[0].path), key=lambda point: point[1])
    assert math.isclose(deepest[0], made.x(412.0), abs_tol=0.1)
    assert math.isclose(deepest[1], made.y(345.0), abs_tol=0.1)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=50))
def test_a_path_is_read_back_to_a_tenth_of_a_pixel(some: list[tuple[float, float]]) -> None:
    for (x, y), (rx, ry) in zip(some, points(write_path(some)), strict=True):
        assert math.isclose(x, rx, abs_tol=0.051)
        assert math.isclose(y, ry, abs_tol=0.051)


@given(st.lists(st.lists(FINITE, min_size=1, max_size=9), min_size=1, max_size=20))
def test_every_line_lies_on_the_paper(lines: list[list[float]]) -> None:
    made = drawn(*(trace(values, f"GPU {i}") for i, values in enumerate(lines)))

    assert len(made.lines) == len(lines)
    for line in made.lines:
        for x, y in points(line.path):
            assert 0 <= x <= CHART_WIDTH
            assert 0 <= y <= CHART_HEIGHT


@given(st.floats(), st.floats())
def test_no_number_is_too_odd_to_draw(one: float, two: float) -> None:
    draw_chart("clock", "", [trace([one, two])])
    draw_strip("", [(v, None) for v in (one, two) if is_drawable(v)], [0.0], [])


def test_nothing_is_drawn_of_no_samples() -> None:
    assert draw_chart("clock", "MHz", [trace([]), trace([math.nan])]) is None


def test_a_line_of_one_sample_is_a_dot() -> None:
    assert drawn(trace([5.0])).lines[0].path.endswith("l0 0")


def test_a_limit_is_on_the_paper_though_far_from_the_values() -> None:
    made = drawn(trace([20.0, 30.0]), bounds=(Tick(87.0, "limit 87 °C"),))

    assert made.y.end <= made.bounds[0].at <= made.y.start


def test_an_axis_bears_units_that_suit_its_length() -> None:
    day = Trace("GPU 0", (0.0, 86400.0), (1.0, 2.0))

    assert "seconds" in drawn(trace([1.0] * 100)).x_name
    assert "minutes" in drawn(trace([1.0] * 600)).x_name
    assert "hours" in drawn(day).x_name


@given(FINITE, FINITE)
def test_steps_are_round_and_embrace_the_range(one: float, two: float) -> None:
    steps = choose_round_steps(min(one, two), max(one, two), about=4)

    slack = 1e-9 * max(1, abs(one), abs(two))  # far less than a tenth of a pixel
    assert 2 <= len(steps) <= 8
    assert steps[0] <= min(one, two) + slack
    assert steps[-1] >= max(one, two) - slack


@given(st.lists(st.floats(0, 180), max_size=MAX_LABELED_LINES))
def test_labels_do_not_overlap_and_keep_their_order(wanted: list[float]) -> None:
    placed = space_labels(wanted, 10, 176)

    assert all(b - a >= 11.7 for a, b in pairwise(sorted(placed)))
    assert all(9.9 <= y <= 176.1 for y in placed)
    ranks = sorted(range(len(wanted)), key=lambda i: (wanted[i], i))
    assert [placed[i] for i in ranks] == sorted(placed)


def test_of_many_lines_the_extremes_and_the_accused_are_named() -> None:
    many = [trace([float(i)], f"core {i}") for i in range(128)]
    many[40] = Trace("core 40", (0.0,), (40.0,), flagged=True)

    named = {line.label.text for line in drawn(*many).lines if line.label}

    assert named == {"core 0", "core 40", "core 127"}


def test_a_strip_shades_what_the_limit_forbids() -> None:
    made = draw_strip("TFLOP/s", [(612.0, ICONS[Verdict.FAIL]), (750.0, None)], [700.0], [])

    assert made is not None
    (start, width) = made.zones[0]
    assert start == 0
    assert made.bounds == f"M{width:g} 1v18"
    tick = float(made.ticks.removeprefix("M").split()[0])
    assert made.icons[0][0] < width < tick < STRIP_WIDTH


def test_one_value_without_a_limit_makes_no_strip() -> None:
    assert draw_strip("s", [(1.0, None)], [], []) is None


def test_a_sparkline_ends_in_its_last_value() -> None:
    made = draw_sparkline("3 runs", [1.0, 2.0, 3.0], 2.0)

    assert points(made.path)[-1] == pytest.approx((made.x, made.y))
    assert made.y < made.rule
