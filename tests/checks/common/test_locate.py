"""What is wrong with a product is described, and multiprocessors are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from importlib import import_module
from typing import cast

import pytest
import torch
from torch import Tensor

from hpcverify_checks.common.locate import (
    FIRST_BOUND,
    PROGRAMS_PER_SM,
    TILE_PLANS,
    TILE_ROUNDS,
    FaultySm,
    Tile,
    examine_sms,
    find_faulty_sms,
    find_span,
    make_tile,
    measure_extent,
    sum_by_sm,
)
from tests.checks.common.interpreted import interpreter

CPU = torch.device("cpu")


def spoiled(harm: Callable[[Tensor], object], dtype: torch.dtype = torch.float32) -> str:
    """Say what is text of a product of 512 x 512 that *harm* was done to."""
    generator = torch.Generator().manual_seed(1)
    right = torch.randint(-(2**20), 2**20, (512, 512), generator=generator)
    expected = right.to(dtype)
    found = expected.clone()
    harm(found)
    return measure_extent(found, expected).describe()


def test_one_element_is_one_element() -> None:
    def harm(out: Tensor) -> None:
        out[17, 33] += 64

    assert spoiled(harm) == "1 element, row 17, column 33, off by 64"


def test_a_swapped_pair_of_tiles_is_two_tiles() -> None:
    def harm(out: Tensor) -> None:
        first, second = out[:128, :64].clone(), out[:128, 448:].clone()
        out[:128, :64], out[:128, 448:] = second, first

    text = spoiled(harm)
    assert text.startswith("16384 elements, rows 0 to 127, columns 0 to 511")
    assert "all of 2 tiles of 128 x 64" in text


def test_a_tile_that_was_not_written_is_one_tile() -> None:
    def harm(out: Tensor) -> None:
        out[128:256, 256:384] = torch.nan

    text = spoiled(harm)
    assert text == (
        "16384 elements, rows 128 to 255, columns 256 to 383, all of 1 tile of 128 x 128"
    )


def test_a_lane_of_every_fragment_is_periodic() -> None:
    def harm(out: Tensor) -> None:
        out[3::64, 5::8] += 4096

    text = spoiled(harm)
    assert "rows 3 to 451 (3 of every 64)" in text
    assert "columns 5 to 509 (5 of every 8)" in text
    assert text.endswith("off by 4096")


def test_a_bit_that_is_stuck_in_a_tile_still_shows_the_tile() -> None:
    def harm(out: Tensor) -> None:
        tile = out.view(torch.int32)[64:128, 128:192]
        tile.bitwise_or_(1 << 12)

    text = spoiled(harm)
    assert "rows 64 to 127, columns 128 to 191" in text
    assert "of 1 tile of 64 x 64" in text


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
    extent = measure_extent(found, expected)
    assert (extent.elements, extent.errors) == (64, None)


def test_a_product_that_no_tile_divides_has_none() -> None:
    found, expected = torch.ones(12, 20), torch.zeros(12, 20)
    text = measure_extent(found, expected).describe()
    assert text == "240 elements, rows 0 to 11, columns 0 to 19, off by 1"


@pytest.mark.parametrize("period", [2, 4, 8, 16, 32, 64, 128])
def test_every_period_of_a_warp_is_recognised(period: int) -> None:
    span = find_span(range(period - 1, 2048, period))
    assert (span.period, span.residues) == (period, (period - 1,))


def test_several_lanes_of_a_period_are_told_together() -> None:
    rows = [block + row for block in range(0, 1024, 64) for row in (8, 9, 10, 40)]
    assert find_span(rows).describe("row") == "rows 8 to 1000 (8-10,40 of every 64)"


@pytest.mark.parametrize(
    "places",
    [range(64), range(128, 256), [3, 67], [0, 5, 9, 100], range(4096)],
    ids=["first tile", "a tile", "two", "few", "all"],
)
def test_what_chance_or_one_tile_makes_is_no_period(places: range | list[int]) -> None:
    assert find_span(places).period == 0


def test_random_places_have_no_period() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        few = torch.randperm(4096, generator=generator)[:30].sort().values
        assert find_span(few.tolist()).period == 0


def test_multiprocessors_are_added_up_by_number() -> None:
    rows = [[0, 0, 0], [5, 3, 0b1000], [5, 4, -(2**31)], [7, 0, 0], [-1, -1, -1]]
    found = sum_by_sm(rows, 4)
    assert found.faulty == (FaultySm(5, 7, 2**31 + 0b1000),)
    assert found.describe() == "5 (7 elements, bits 3,31) of the 3 seen of 4"


def test_no_suspect_is_no_suspect() -> None:
    assert sum_by_sm([[sm, 0, 0] for sm in range(4)], 4).describe() == "none of the 4 seen of 4"


def test_all_units_are_looked_at_with_every_tile_in_every_round() -> None:
    asked: list[tuple[Tile, int]] = []

    def faulty(tile: Tile, programs: int) -> Tensor:
        asked.append((tile, programs))
        return torch.tensor([[sm % 6, int(sm % 6 == 2), 1] for sm in range(programs)])

    found = examine_sms(faulty, 6)
    assert [programs for _, programs in asked] == [6 * PROGRAMS_PER_SM] * TILE_ROUNDS * len(
        TILE_PLANS
    )
    assert [s.sm for s in found.faulty] == [2]
    assert found.seen == found.units == 6


def test_without_a_gpu_nothing_is_located() -> None:
    assert find_faulty_sms(CPU) is None


@pytest.mark.parametrize(("bound", "bias"), TILE_PLANS)
def test_the_tile_is_exact_in_any_order(bound: int, bias: int) -> None:
    tile = make_tile(bound, bias)
    a, b = tile.a.long(), tile.b.long()
    assert int((a.abs() @ b.abs()).max()) < 2**24
    assert torch.equal((a @ b).float(), tile.expected)
    assert int(a[:, 1:].abs().max()) == FIRST_BOUND
    assert int(b[1:].abs().max()) == bound


def test_both_tiles_together_change_every_bit_that_can_change() -> None:
    tiles = [make_tile(*plan).expected.view(torch.int32) for plan in TILE_PLANS]
    values = torch.stack(tiles).flatten()
    seen = [int((values >> bit & 1).sum()) for bit in range(23)]
    assert all(0 < count < values.numel() for count in seen)


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Executor]:
    with interpreter() as pool:
        yield pool


def looked(*args: object) -> list[list[int]]:
    """Import and call what only the process that interprets can import."""
    called = import_module("tests.checks.looked").looked(*args)
    return cast("list[list[int]]", called)


@pytest.mark.system
@pytest.mark.parametrize("plan", TILE_PLANS)
def test_a_sound_program_finds_its_tile_right(interpreted: Executor, plan: tuple[int, int]) -> None:
    rows = interpreted.submit(looked, plan).result()
    assert rows == [[40, 0, 0], [41, 0, 0]]


@pytest.mark.system
def test_a_faulty_program_counts_its_elements_and_bits(interpreted: Executor) -> None:
    mask = 1 << 30 | 1 << 3
    rows = interpreted.submit(looked, TILE_PLANS[1], 31, mask).result()
    assert rows == [[40, 2 * 32, mask], [41, 2 * 32, mask]]
    sound = interpreted.submit(looked, TILE_PLANS[0]).result()
    found = sum_by_sm([*sound, [42, *rows[0][1:]]], 132)
    assert found.describe() == "42 (64 elements, bits 3,30) of the 3 seen of 132"
