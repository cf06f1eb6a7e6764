"""Units convert within their dimension, and nothing is guessed."""

from __future__ import annotations

import pytest

from hpcverify.errors import ConfigError
from hpcverify.units import UNIT_FACTORS, convert_unit


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


@pytest.mark.parametrize("unit", sorted(UNIT_FACTORS))
def test_every_unit_converts_into_itself(unit: str) -> None:
    assert convert_unit(7, unit, unit) == 7


def test_an_unknown_unit_gets_a_hint() -> None:
    with pytest.raises(ConfigError, match=r"no unit is called 'TFLOPs'; did you mean"):
        convert_unit(1, "TFLOPs", "GFLOP/s")


def test_a_unit_of_another_dimension_is_refused() -> None:
    with pytest.raises(ConfigError, match="'ms' is a time; 'GB/s' is a bandwidth"):
        convert_unit(1, "ms", "GB/s")
