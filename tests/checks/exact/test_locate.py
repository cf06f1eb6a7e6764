"""What is wrong with a product is described."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hpcverify_checks.exact.locate import describe_errors, describe_span


def spoiled(harm: Callable[[Tensor], object], dtype: torch.dtype = torch.float32) -> str:
    """Describe a product of 512 x 512 that *harm* was done to."""
    generator = torch.Generator().manual_seed(1)
    right = torch.randint(-(2**20), 2**20, (512, 512), generator=generator)
    expected = right.to(dtype)
    found = expected.clone()
    harm(found)
    return describe_errors(found, expected)


def test_one_element_is_one_element() -> None:
    def harm(out: Tensor) -> None:
        out[17, 33] += 64

    assert spoiled(harm) == "1 element, row 17, column 33, off by 64"


def test_a_tile_that_was_not_written_has_rows_and_columns_but_no_errors() -> None:
    def harm(out: Tensor) -> None:
        out[128:256, 256:384] = torch.nan

    assert spoiled(harm) == "16384 elements, rows 128 to 255, columns 256 to 383"


def test_a_lane_of_every_fragment_is_periodic() -> None:
    def harm(out: Tensor) -> None:
        out[3::64, 5::8] += 4096

    text = spoiled(harm)
    assert "rows 3 to 451 (3 of every 64)" in text
    assert "columns 5 to 509 (5 of every 8)" in text
    assert text.endswith("off by 4096")


def test_errors_show_what_all_of_them_are_multiples_of() -> None:
    def harm(out: Tensor) -> None:
        out[7, 10:40] += 37 * torch.arange(1, 31)

    text = spoiled(harm)
    assert text.endswith("off by 30 values from 37 to 1110, multiples of 37")
    assert "row 7, columns 10 to 39" in text


def test_errors_with_no_divisor_name_none() -> None:
    def harm(out: Tensor) -> None:
        out[1, 1] -= 7
        out[2, 2] += 12

    assert spoiled(harm).endswith("off by 2 values from -7 to 12")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_errors_are_exact_in_every_type(dtype: torch.dtype) -> None:
    def harm(out: Tensor) -> None:
        out[511, 511] -= 2**30 + 1

    assert spoiled(harm, dtype).endswith(f"column 511, off by {-(2**30) - 1}")


def test_what_is_no_integer_has_no_error_to_tell_of() -> None:
    def harm(out: Tensor) -> None:
        out[0, 0], out[0, 1], out[0, 2] = torch.inf, torch.nan, 0.5

    assert spoiled(harm) == "3 elements, row 0, columns 0 to 2"


def test_the_sign_of_a_zero_is_a_wrong_element_without_an_error() -> None:
    found, expected = torch.full((8, 8), -0.0), torch.zeros(8, 8)
    assert describe_errors(found, expected) == "64 elements, rows 0 to 7, columns 0 to 7"


@pytest.mark.parametrize("period", [2, 4, 8, 16, 32, 64, 128])
def test_every_period_of_a_warp_is_recognised(period: int) -> None:
    text = describe_span("row", range(period - 1, 2048, period))
    assert text.endswith(f"({period - 1} of every {period})")


def test_several_lanes_of_a_period_are_told_together() -> None:
    rows = [block + row for block in range(0, 1024, 64) for row in (8, 9, 10, 40)]
    assert describe_span("row", rows) == "rows 8 to 1000 (8-10,40 of every 64)"


@pytest.mark.parametrize(
    "places",
    [range(64), range(128, 256), [3, 67], [0, 5, 9, 100], range(4096)],
    ids=["first tile", "a tile", "two", "few", "all"],
)
def test_what_chance_or_one_tile_makes_is_no_period(places: range | list[int]) -> None:
    assert "every" not in describe_span("row", places)


def test_random_places_have_no_period() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        few = torch.randperm(4096, generator=generator)[:30].sort().values
        assert "every" not in describe_span("row", few.tolist())
