"""Units convert within their dimension, and nothing is guessed."""

from __future__ import annotations

import math

import pytest

from hpcverify.errors import ConfigError, UnknownNameError
from hpcverify.units import (
    UNIT_FACTORS,
    choose_unit,
    convert_unit,
    format_age,
    format_count,
    have_one_dimension,
    parse_decimal,
    scale_unit,
)


@pytest.mark.parametrize(
    ("value", "unit", "to", "expected"),
    [
        (2, "TFLOP/s", "GFLOP/s", 2000),
        (50, "ms", "s", 0.05),
        (1, "GiB", "B", 2**30),
        (85, "%", "ratio", 0.85),
        (3, "", "", 3),
    ],
)
def test_units_of_one_dimension_convert(value: float, unit: str, to: str, expected: float) -> None:
    assert convert_unit(value, unit, to) == pytest.approx(expected)


def test_every_unit_converts_into_itself() -> None:
    assert {convert_unit(7, unit, unit) for unit in UNIT_FACTORS} == {7}


def test_an_unknown_unit_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"no unit is called 'TFLOPs'; did you mean"):
        convert_unit(1, "TFLOPs", "GFLOP/s")


def test_a_unit_of_another_dimension_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ms' is a time; 'GB/s' is a bandwidth"):
        convert_unit(1, "ms", "GB/s")


@pytest.mark.parametrize(
    ("value", "unit", "scaled"),
    [
        (2**-10, "GiB", (1.0, "MiB")),
        (0.005, "ms", (5.0, "us")),
        (742_000.0, "GFLOP/s", (742.0, "TFLOP/s")),
        (-1500.0, "us", (-1.5, "ms")),
        (0.2, "ns", (0.2, "ns")),
        (7200.0, "s", (7200.0, "s")),
        (0.0, "GiB", (0.0, "GiB")),
        (1980.0, "MHz", (1980.0, "MHz")),
        (0.25, "ratio", (0.25, "ratio")),
        (300_000.0, "", (300_000.0, "")),
    ],
)
def test_a_number_is_put_in_a_unit_that_suits_its_size(
    value: float, unit: str, scaled: tuple[float, str]
) -> None:
    number, printed = scale_unit(value, unit)

    assert printed == scaled[1]
    assert number == pytest.approx(scaled[0])


def test_one_is_not_plural() -> None:
    assert [format_count(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [format_count(n, "day") for n in (1.0, 0.5)] == ["1 day", "0.5 days"]
    assert str(UnknownNameError("node", "x", ["vm"])).endswith("there is only vm")


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-5, "under 1 min"),
        (59, "under 1 min"),
        (60, "1 min"),
        (7199, "1 h"),
        (47.9 * 3600, "47 h"),
        (2 * 86400, "2 days"),
        (400 * 86400, "400 days"),
    ],
)
def test_an_age_is_told_in_the_unit_that_matters(seconds: float, told: str) -> None:
    assert format_age(seconds) == told


@pytest.mark.parametrize(
    ("values", "unit", "chosen"),
    [
        ((504e3, 715e3, None, 0.0), "GFLOP/s", ("TFLOP/s", 1e-3)),
        ((1.0, 2.0, 5e6), "GFLOP/s", ("GFLOP/s", 1.0)),
        ((0.0, math.inf, math.nan), "GFLOP/s", ("GFLOP/s", 1.0)),
        ((5e4,), "a unit of a site", ("a unit of a site", 1.0)),
    ],
)
def test_values_of_a_metric_share_one_unit(
    values: tuple[float | None, ...], unit: str, chosen: tuple[str, float]
) -> None:
    assert choose_unit(values, unit) == chosen


def test_units_of_one_dimension_can_be_compared() -> None:
    assert have_one_dimension("ms", "us")
    assert have_one_dimension("a unit of a site", "a unit of a site")
    assert not have_one_dimension("ms", "GB/s")
    assert not have_one_dimension("ms", "a unit of a site")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("38.125", 38.125),
        ("-1e-3", -0.001),
        ("38,1", 38.1),
        ("0,125", 0.125),
        ("1234,567", 1234.567),
        ("1.234,5", 1234.5),
        ("1,234.5", 1234.5),
        ("1,234,567", 1234567),
        ("-1.234.567", -1234567),
    ],
)
def test_a_number_is_read_as_people_write_it(text: str, number: float) -> None:
    assert parse_decimal(text) == number


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1,234", "'1,234' may be 1.234 or 1234: write a decimal point and no separators"),
        ("1,2,3", "'1,2,3' is not a number"),
        ("1.23.4", "'1.23.4' is not a number"),
        ("fast", "'fast' is not a number"),
        ("", "'' is not a number"),
    ],
)
def test_a_number_that_may_be_either_of_two_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_decimal(text)
