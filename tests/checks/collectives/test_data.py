"""The data of a collective fill every bit, differ wherever they may, and add up exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hpcverify_checks.collectives.data import StepData, Weights, Words, format_value

CPU = torch.device("cpu")
COUNT = 2000
ROWS = Words.make(7, COUNT, CPU)


def share(step: int, rank: int, world: int, *, floats: bool) -> Tensor:
    data = StepData(7, step, world, floats)
    return ROWS.build(data, data.weigh_share(rank), 0, COUNT)


def total(step: int, world: int, *, floats: bool) -> Tensor:
    data = StepData(7, step, world, floats)
    return ROWS.build(data, data.weigh_sum(), 0, COUNT)


@pytest.mark.parametrize("world", [2, 3, 8, 17])
@pytest.mark.parametrize("step", range(4))
def test_words_of_all_ranks_add_up_modulo_two_to_the_32(world: int, step: int) -> None:
    shares = torch.stack([share(step, rank, world, floats=False) for rank in range(world)])

    assert torch.equal(shares.sum(0, dtype=torch.int32), total(step, world, floats=False))


@pytest.mark.parametrize("world", [2, 3, 8, 1856])
def test_floats_add_up_exactly_in_any_order(world: int) -> None:
    ranks = range(world)
    shares = torch.stack([share(1, rank, world, floats=True) for rank in ranks])
    right = total(1, world, floats=True).view(torch.float32)
    values = shares.view(torch.float32)
    for order in (values, values.flip(0)):
        summed = torch.zeros(COUNT)
        for row in order:
            summed += row  # in float32, one after the other
        assert torch.equal(summed, right)
    assert (values.double().abs().sum(0) <= 2**24).all()  # so any partial sum is exact
    assert right.min() < 0 < right.max()


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("step", range(4))
def test_every_bit_of_words_changes_from_word_to_word(world: int, step: int) -> None:
    for words in (
        *(share(step, r, world, floats=False) for r in range(world)),
        total(step, world, floats=False),
    ):
        for bit in range(32):
            ones = int((words >> bit & 1).sum())
            assert 0.4 * COUNT < ones < 0.6 * COUNT


@pytest.mark.parametrize("world", [2, 3, 8, 1856])
def test_the_lowest_bit_of_floats_changes_from_value_to_value(world: int) -> None:
    for step in (1, 3):
        sums = total(step, world, floats=True).view(torch.float32)
        odd = int((sums.long() & 1).sum())
        assert 0.4 * COUNT < odd < 0.6 * COUNT
        assert sums.abs().max() > 2**20  # and the highest of the significand are in use


@pytest.mark.parametrize("floats", [False, True])
def test_no_step_no_rank_and_no_place_has_the_data_of_another(*, floats: bool) -> None:
    steps = range(1, 12, 2)
    rows = [share(step, rank, 8, floats=floats) for step in steps for rank in range(8)]
    sums = [total(step, 8, floats=floats) for step in steps]
    for one, other in [*pairwise(rows), *pairwise(sums)]:
        assert (one == other).float().mean() < 0.01
    for row in (*rows, *sums):
        assert (row[1:] == row[:-1]).float().mean() < 0.01


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("place", [0, 1000, COUNT - 1])
def test_one_wrong_word_is_found_where_it_is(place: int, *, floats: bool) -> None:
    data = StepData(7, 1, 3, floats)
    weights = data.weigh_sum()
    found, log = total(1, 3, floats=floats), torch.zeros(4, dtype=torch.int64)
    right = int(found[place])
    ROWS.compare(found, data, (weights, 0, 50), log)
    assert log.tolist() == [0, 0, 0, 0]

    found[place] ^= 1
    ROWS.compare(found, data, (weights, 0, 50), log)
    ROWS.compare(torch.zeros_like(found), data, (weights, 0, 9000), log)  # a later piece
    assert log[1:].tolist() == [50 + place, right ^ 1, right]


def test_a_zero_of_any_sign_is_right_and_nan_is_not() -> None:
    data = StepData(7, 1, 2, floats=True)
    nothing, log = Weights(0, 0), torch.zeros(4, dtype=torch.int64)
    zeros = torch.full((COUNT,), -0.0).view(torch.int32)
    ROWS.compare(zeros, data, (nothing, 0, 0), log)
    assert log[0] == 0

    zeros.view(torch.float32)[3] = float("nan")
    ROWS.compare(zeros, data, (nothing, 0, 0), log)
    assert log[:2].tolist() == [1, 3]


def test_words_are_told_in_hexadecimal_and_floats_as_numbers() -> None:
    assert format_value(-1, floats=False) == "0xffffffff"
    assert format_value(0x40400000, floats=True) == "3"
